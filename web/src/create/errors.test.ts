// Errors as sentences, on the field they are about.
import { describe, expect, it } from "vitest";
import { ApiError } from "../api/client";
import { problemOf, problemOfRun } from "./errors";

const refused = (input_name: string, type: string, message: string) =>
  new ApiError("Prompt outputs failed validation", 400, "prompt_outputs_failed_validation", "", {
    "1": { class_type: "X", dependent_outputs: ["7"], errors: [{ type, message, details: "d", extra_info: { input_name } }] },
  });

describe("problemOf", () => {
  it("marks the field", () => {
    expect(problemOf(refused("ckpt_name", "value_not_in_list", "Value not in list"))).toMatchObject({
      help: "models",
      fields: { model: expect.stringContaining("no longer") },
    });
    expect(problemOf(refused("steps", "value_bigger_than_max", "Value 20000 bigger than max of 10000")).text).toBe(
      "The number of steps is too large: at most 10000.",
    );
    expect(problemOf(refused("image", "custom_validation_failed", "Custom validation failed for node")).fields.image).toContain("Choose it again");
  });

  it("tells the server's reason, and the nodes in the details", () => {
    expect(problemOf(refused("ckpt_name", "value_not_in_list", "Value not in list")).details).toContain("X (1): Value not in list: d");
    expect(problemOf(new ApiError("odd", 400))).toMatchObject({ text: "This job cannot run.", reason: "odd" });
    expect(problemOf(new ApiError("Fresco does not answer", 0, "network", "refused")).text).toContain("does not answer");
    expect(problemOf(new Error("boom")).reason).toBe("boom");
  });
});

describe("problemOfRun", () => {
  it("tells memory, models and the rest apart", () => {
    expect(problemOfRun({ exception_type: "torch.OutOfMemoryError", exception_message: "needs 9 GB\n", node_type: "KSampler", node_id: "5" })).toMatchObject({
      help: "memory",
      reason: "needs 9 GB",
      details: expect.stringContaining("needs 9 GB"),
    });
    expect(problemOfRun({ exception_type: "RuntimeError", exception_message: "bad header", node_type: "CheckpointLoaderSimple" }).fields.model).toBeDefined();
    expect(problemOfRun({ exception_type: "RuntimeError", exception_message: "x", node_type: "LoraLoader" }).fields.loras).toBeDefined();
    expect(problemOfRun({ exception_type: "E", exception_message: "a.safetensors is damaged\n", node_type: "CheckpointLoaderSimple" }).reason).toBe(
      "a.safetensors is damaged",
    );
    expect(problemOfRun(undefined).text).toContain("could not be finished");
  });
});
