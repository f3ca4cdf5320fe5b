import { expect, test } from "vitest";
import type { UiWorkflow } from "../api/types";
import { duration, hasHugeNumber, isLink, modelName, nodeLines, seedsOf, shown, summarise } from "./settings";

const prompt = {
  "10": { class_type: "SaveImage", inputs: { images: ["2", 0], filename_prefix: "x" }, _meta: { title: "Keep" } },
  "2": { class_type: "Blend", inputs: { factor: 0.1 + 0.2, on: true, seed: 7, note: "a long text of words" } },
  "3": { class_type: "RandomNoise", inputs: { noise_seed: 7 } },
  "4": { class_type: "UNETLoader", inputs: { unet_name: "big/flux.gguf" } },
  "5": { class_type: "Other", inputs: { seed: ["3", 0] } },
};

test("nodes are listed by number with plain values", () => {
  const lines = nodeLines(prompt);
  expect(lines.map((l) => l.id)).toEqual(["2", "3", "4", "5", "10"]);
  expect(lines[0]?.inputs.map((i) => i.value)).toEqual(["0.3", "yes", "7", "a long text of words"]);
  expect(lines[4]).toMatchObject({
    title: "Keep",
    inputs: [
      { name: "images", value: "from node 2", link: true },
      { value: "x", link: false },
    ],
  });
  expect(isLink(["a", "b"])).toBe(false);
  expect(shown(null)).toBe("none");
});

test("a summary of a graph that Create does not know still has a title, a model and a seed", () => {
  const s = summarise({
    id: "j",
    workflow: { prompt, extra_data: {} },
    outputs: { "10": { images: [{ filename: "x_1.png", subfolder: "", type: "output" }] } },
  });
  expect(s).toMatchObject({ title: "a long text of words", model: "big/flux.gguf", seed: "7", workflow: "Custom workflow, 5 nodes" });
  for (const word of ["a long text", "flux.gguf", "x_1.png"]) expect(s.haystack).toContain(word);
  expect(summarise({ id: "j", workflow: { prompt: {}, extra_data: {} } }).title).toBe("No prompt");
  expect(modelName("big/flux.v2.gguf")).toBe("flux.v2");
});

test("a workflow's own name is shown", () => {
  const extra = { extra_pnginfo: { workflow: { name: "Portraits" } as unknown as UiWorkflow } };
  expect(summarise({ id: "j", workflow: { prompt, extra_data: extra } }).workflow).toBe("Portraits");
});

test("literal seeds are found, linked ones are not", () => {
  expect(seedsOf(prompt).map((s) => [s.node, s.input])).toEqual([
    ["2", "seed"],
    ["3", "noise_seed"],
  ]);
});

test("numbers a browser cannot repeat are found", () => {
  expect(hasHugeNumber(prompt)).toBe(false);
  expect(hasHugeNumber({ "1": { class_type: "K", inputs: { seed: 2 ** 60 } } })).toBe(true);
});

test("times are short", () => {
  expect([duration(undefined), duration(0), duration(1449), duration(9960), duration(185_000), duration(7_300_000)]).toEqual([
    "",
    "under 0.1 s",
    "1.4 s",
    "10 s",
    "3 min 5 s",
    "2 h 1 min",
  ]);
});
