// Presets, the given ones and the user's.
import { describe, expect, it } from "vitest";
import { applied, BUILT_IN, builtIn, matches, presetFrom, presetsIn, withPreset } from "./presets";
import { defaultValues } from "./values";

describe("built-in presets", () => {
  it("grow in steps for every kind of model", () => {
    for (const model of ["fresco-starter.safetensors", "sd15.safetensors", "sdxl_turbo.safetensors"]) {
      const steps = BUILT_IN.map((name) => builtIn(name, model).steps!);
      expect(steps).toEqual([...steps].sort((a, b) => a - b));
      expect(new Set(steps).size).toBe(3);
      expect(matches(builtIn("Balanced", model), defaultValues(model))).toBe(true);
    }
  });
});

describe("own presets", () => {
  const v = { ...defaultValues("a.safetensors"), prompt: "secret", seed: 9, steps: 31 };

  it("hold settings, not words or seeds", () => {
    const preset = presetFrom("Mine", v);
    expect(preset.values).not.toHaveProperty("prompt");
    expect(preset.values).not.toHaveProperty("seed");
    expect(applied({ ...defaultValues("a.safetensors"), prompt: "p" }, preset.values, ["a.safetensors"])).toMatchObject({ steps: 31, prompt: "p" });
    expect(matches(preset.values, v)).toBe(true);
    expect(matches(preset.values, { ...v, steps: 30 })).toBe(false);
  });

  it("leave the model alone when theirs is gone", () => {
    expect(applied(defaultValues("b"), { model: "gone", steps: 3 }, ["b"])).toMatchObject({ model: "b", steps: 3 });
  });

  it("are read from a file that others may have written", () => {
    expect(presetsIn(null)).toEqual([]);
    expect(presetsIn({ presets: [{ name: " " }, 3, { name: "A", values: { steps: "x", cfg: 3, loras: [], odd: 1 } }] })).toEqual([
      { name: "A", values: { cfg: 3, loras: [] } },
    ]);
  });

  it("replace one of the same name", () => {
    const list = [
      { name: "A", values: {} },
      { name: "B", values: {} },
    ];
    expect(withPreset(list, { name: "A", values: { steps: 1 } })).toEqual([
      { name: "A", values: { steps: 1 } },
      { name: "B", values: {} },
    ]);
    expect(withPreset(list, { name: "C", values: {} })).toHaveLength(3);
  });
});
