// What is said of files that cannot be dropped.
import { expect, it } from "vitest";
import { isModelFile, modelAdvice } from "./drops";

it("knows models by their ending", () => {
  expect(["a.safetensors", "b.GGUF", "c.ckpt", "d.png", "e.json"].map(isModelFile)).toEqual([true, true, true, false, false]);
});

it("says where a model belongs", () => {
  expect(modelAdvice("x.safetensors", "/data/models/checkpoints")).toContain(
    "Copy it into /data/models/checkpoints on the computer that runs Fresco (a LoRA into /data/models/loras)",
  );
  expect(modelAdvice("x.safetensors", "C:\\m\\checkpoints")).toContain("C:\\m\\loras");
  expect(modelAdvice("x.safetensors")).toContain("models/loras");
});
