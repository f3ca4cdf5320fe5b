// Refusals reach the fields they are about, in words.
import { describe, expect, it } from "vitest";
import { ApiError } from "../api/client";
import { fieldsOf } from "./fields";
import { failureOf, problemsOf } from "./problems";
import { info, txt2img } from "./samples";

const reason = (type: string, input: string, more: Record<string, unknown> = {}) => ({
  type,
  message: type,
  details: input,
  extra_info: { input_name: input, ...more },
});

describe("problems", () => {
  const fields = fieldsOf(txt2img(), info);

  it("stand at the field concerned, also at the second input of a size", () => {
    const error = new ApiError("Prompt outputs failed validation", 400, "x", "", {
      "5": {
        class_type: "EmptyLatentImage",
        dependent_outputs: ["9"],
        errors: [reason("value_bigger_than_max", "height", { input_config: ["INT", { max: 16384 }] })],
      },
      "4": {
        class_type: "CheckpointLoaderSimple",
        dependent_outputs: ["9"],
        errors: [reason("value_not_in_list", "ckpt_name", { received_value: "v1-5.safetensors" })],
      },
      "8": { class_type: "VAEDecode", dependent_outputs: ["9"], errors: [reason("required_input_missing", "vae")] },
    });
    const found = problemsOf(error, fields, txt2img(), info);
    expect(found.fields).toEqual({ "5/width": "This must be 16384 or less.", "4/ckpt_name": '"v1-5.safetensors" is not on this machine. Choose another.' });
    expect(found.others).toEqual(["VAE Decode, vae: This is required."]);
  });

  it("without a node are told as they came", () => {
    expect(problemsOf(new ApiError("Prompt has no outputs", 400), fields, txt2img(), info).others).toEqual(["Prompt has no outputs"]);
  });

  it("of a run name the step", () => {
    expect(failureOf({ node_id: "8", exception_message: "out of\nmemory " }, txt2img(), info)).toBe('"VAE Decode" failed: out of memory');
    expect(failureOf(undefined, txt2img(), info)).toContain("no reason");
  });
});
