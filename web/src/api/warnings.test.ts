import { expect, it } from "vitest";
import { readOutputs } from "../gallery/outputs";
import { warningsOf } from "./warnings";

const outputs = {
  "20": { warnings: ["The LoRA a changes nothing."] },
  "21": { warnings: ["The LoRA a changes nothing.", 5] },
  "7": { images: [{ filename: "a.png", subfolder: "", type: "output" }] },
};

it("reads what nodes warn of, each text once", () => {
  expect(warningsOf(outputs)).toEqual([{ node: "20", text: "The LoRA a changes nothing." }]);
  expect(warningsOf(undefined)).toEqual([]);
});

it("is no text that a node gave", () => {
  expect(readOutputs(outputs)).toMatchObject({ texts: [], files: [{ node: "7" }] });
});
