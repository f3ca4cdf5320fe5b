// How the values follow the model and the start picture, and what storage may hand back.
import { describe, expect, it } from "vitest";
import {
  CHANGE_AREA,
  CHANGE_PICTURE,
  cleaned,
  COUNT_MAX,
  defaultValues,
  modeOf,
  rollSeed,
  SEED_MAX,
  seedsFor,
  withImage,
  withMask,
  withModel,
  withoutImage,
  withoutStart,
} from "./values";

const picture = { filename: "a.png", subfolder: "", type: "input" as const };

describe("withModel", () => {
  it("moves what was never touched", () => {
    const v = withModel(defaultValues("fresco-starter.safetensors"), "v1-5.safetensors");
    expect(v).toMatchObject({ width: 512, height: 512, cfg: 7, steps: 20, model: "v1-5.safetensors" });
  });

  it("keeps what was chosen, and the shape", () => {
    const v = withModel({ ...defaultValues("v1-5.safetensors"), cfg: 11, steps: 33, width: 512, height: 768 }, "fresco-starter.safetensors");
    expect(v).toMatchObject({ cfg: 11, steps: 33 });
    expect(v.height).toBeGreaterThan(v.width);
    expect(v.width * v.height).toBeLessThan(256 * 256 * 1.1);
  });

  it("leaves sizes alone between models of one kind", () => {
    expect(withModel({ ...defaultValues("a.safetensors"), width: 640, height: 448 }, "b.safetensors")).toMatchObject({ width: 640, height: 448 });
  });
});

describe("start pictures", () => {
  it("give the shape, and areas change more", () => {
    const v = withImage(defaultValues("v1-5.safetensors"), picture, { width: 1000, height: 500 });
    expect(modeOf(v)).toBe("image");
    expect(v.width / v.height).toBeCloseTo(2, 1);
    expect(v.denoise).toBe(CHANGE_PICTURE);
    const area = withMask(v, picture);
    expect([modeOf(area), area.denoise]).toEqual(["area", CHANGE_AREA]);
    expect(withMask(area, null).denoise).toBe(CHANGE_PICTURE);
    expect(withMask({ ...v, denoise: 0.3 }, picture).denoise).toBe(0.3);
    expect(withoutImage(area)).toMatchObject({ image: null, mask: null, width: 512, height: 512 });
  });
});

describe("seeds", () => {
  it("are within their limits and follow each other", () => {
    expect(rollSeed(() => 0)).toBe(0);
    expect(rollSeed(() => 0.9999999999)).toBeLessThanOrEqual(SEED_MAX);
    expect(seedsFor(5, 3)).toEqual([5, 6, 7]);
    expect(seedsFor(5, 1000)).toHaveLength(COUNT_MAX);
    expect(seedsFor(5, 0)).toEqual([5]);
  });
});

describe("cleaned", () => {
  it("survives anything", () => {
    for (const odd of [null, 3, "x", [], {}]) expect(cleaned(odd)).toEqual(defaultValues());
    expect(
      cleaned({ steps: "many", cfg: Number.NaN, count: 900, loras: [null, { name: "a", strength: 1 }, { name: 3 }], image: { filename: "" }, mask: picture }),
    ).toMatchObject({
      steps: 20,
      cfg: 7,
      count: COUNT_MAX,
      loras: [{ name: "a", strength: 1 }],
      image: null,
      mask: null,
    });
  });

  it("gives back what was stored", () => {
    const v = { ...withImage(defaultValues("m"), picture, { width: 64, height: 64 }), prompt: "x", loras: [{ name: "a", strength: -1 }] };
    expect(cleaned(JSON.parse(JSON.stringify(v)))).toEqual(v);
  });
});

it("gives back what the form was before a picture was taken to start from, and nothing else", () => {
  const before = { ...defaultValues("v1-5.safetensors"), prompt: "a fox" };
  const started = { ...withImage(before, picture, { width: 300, height: 200 }), denoise: CHANGE_AREA, prompt: "a hat", steps: 7 };
  expect(withoutStart(started, before)).toEqual({ ...before, steps: 7 });
});
