import { expect, test } from "vitest";
import { differences } from "./difference";

const prompt = (seed: number, more: Record<string, unknown> = {}) => ({
  "3": { class_type: "KSampler", inputs: { seed, steps: 20, model: ["4", 0], ...more } },
  "4": { class_type: "CheckpointLoaderSimple", inputs: { ckpt_name: "a.safetensors" } },
});

test("equal results have no differences", () => {
  const one = { settings: [{ name: "Seed", value: "1" }], prompt: prompt(1) };
  expect(differences(one, one)).toEqual([]);
});

test("a difference named as a setting is not told again for its node", () => {
  const a = {
    settings: [
      { name: "Seed", value: "1" },
      { name: "Steps", value: "20" },
    ],
    prompt: prompt(1),
  };
  const b = {
    settings: [
      { name: "Seed", value: "2" },
      { name: "Steps", value: "20" },
    ],
    prompt: prompt(2, { eta: 0.5 }),
  };
  expect(differences(a, b)).toEqual([
    { name: "Seed", a: "1", b: "2" },
    { name: "KSampler: eta", a: "not used", b: "0.5" },
  ]);
});

test("other nodes and other links are told", () => {
  const a = { settings: [], prompt: prompt(1) };
  const b = { settings: [], prompt: { ...prompt(1, { model: ["9", 0] }), "9": { class_type: "LoraLoader", inputs: {} } } };
  expect(differences(a, b)).toEqual([
    { name: "KSampler: model", a: "from node 4", b: "from node 9" },
    { name: "Node 9", a: "not used", b: "LoraLoader" },
  ]);
});
