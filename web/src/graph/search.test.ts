import { describe, expect, it } from "vitest";
import { firstInput, firstOutput, fits, typeColour, typeName } from "./compat";
import { goldInfo } from "./gold";
import { classSpec } from "./schema";
import { searchNodes } from "./search";
import { nextNumber, widgetsOf } from "./widgets";
import { makeNode } from "./make";

describe("types", () => {
  it("fit by name, union and any", () => {
    expect(fits("IMAGE", "IMAGE")).toBe(true);
    expect(fits("image", "IMAGE")).toBe(true);
    expect(fits("IMAGE", "MASK")).toBe(false);
    expect(fits("*", "MASK")).toBe(true);
    expect(fits("MASK", "*")).toBe(true);
    expect(fits("MASK", "IMAGE,MASK")).toBe(true);
    expect(fits("A,B", "B,C")).toBe(true);
    expect(fits("A,B", "C")).toBe(false);
    expect(fits("COMBO", "COMBO")).toBe(true);
    expect(fits("COMFY_MATCHTYPE_V3", "IMAGE")).toBe(true);
  });

  it("have a name and a colour", () => {
    expect(typeName("CLIP_VISION,MASK")).toBe("clip vision or mask");
    expect(typeName("*")).toBe("any");
    expect(typeColour("MODEL")).not.toBe(typeColour("CLIP"));
    expect(typeColour("SOMETHING_NEW")).toMatch(/^hsl/);
  });

  it("choose the first slot that fits", () => {
    const sampler = classSpec(goldInfo, "KSampler");
    const loader = classSpec(goldInfo, "CheckpointLoaderSimple");
    if (!sampler || !loader) throw new Error("classes are missing");
    expect(firstInput(sampler, "CONDITIONING")).toBe("positive");
    expect(firstInput(sampler, "INT")).toBe("seed");
    expect(firstInput(sampler, "VAE")).toBeNull();
    expect(firstOutput(loader, "VAE")).toBe(2);
    expect(firstOutput(loader, "IMAGE")).toBe(-1);
  });
});

describe("search", () => {
  const names = (query: string, wanted = {}) => searchNodes(goldInfo, query, wanted).map((f) => f.name);

  it("ranks exact and leading matches first", () => {
    expect(names("ksampler")[0]).toBe("KSampler");
    expect(names("load image")[0]).toBe("LoadImage");
    expect(names("LoadImage")[0]).toBe("LoadImage");
    expect(names("clip text")[0]).toBe("CLIPTextEncode");
    expect(names("note")[0]).toBe("Note");
  });

  it("finds by category and by words anywhere", () => {
    expect(names("decode vae")).toContain("VAEDecode");
    expect(searchNodes(goldInfo, "latent/inpaint").length).toBeGreaterThan(0);
    expect(names("zzzzqqq")).toEqual([]);
  });

  it("offers only what fits a link", () => {
    const found = names("", { from: "LATENT" });
    expect(found).toContain("VAEDecode");
    expect(found).not.toContain("CLIPTextEncode");
    expect(names("", { to: "VAE" })).toContain("VAELoader");
    expect(names("", { to: "VAE" })).not.toContain("KSampler");
    expect(names("", { to: "INT" })).toContain("PrimitiveInt");
  });
});

describe("after a run", () => {
  const spec = classSpec(goldInfo, "KSampler");
  const seed = spec && widgetsOf(makeNode("KSampler", 1, [0, 0], spec), spec)[0]?.spec;
  if (!seed) throw new Error("no seed");

  it("a seed goes on by its mode and stays in its range", () => {
    expect(nextNumber(seed, 5, "fixed", () => 0.5)).toBe(5);
    expect(nextNumber(seed, 5, "increment", () => 0.5)).toBe(6);
    expect(nextNumber(seed, 0, "decrement", () => 0.5)).toBe(0);
    const drawn = nextNumber(seed, 5, "randomize", () => 0.999999);
    expect(Number.isSafeInteger(drawn)).toBe(true);
    expect(nextNumber(seed, 5, "randomize", () => 0)).toBe(0);
  });
});
