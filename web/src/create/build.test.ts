// The prompts the form makes, checked against what the nodes take, and read back.
import { describe, expect, it } from "vitest";
import type { ApiPrompt, FileRef } from "../api/types";
import { buildPrompt, NODE, UPSCALE_DENOISE, upscaleValues, variationValues } from "./build";
import { cleaned, type CreateValues, defaultValues, valuesFrom } from "./values";

const picture: FileRef = { filename: "a.png", subfolder: "", type: "input" };
const cut: FileRef = { filename: "a-area.png", subfolder: "fresco", type: "input" };
const base: CreateValues = {
  ...defaultValues("fresco-starter.safetensors"),
  prompt: "a red apple",
  negative: "blurry",
  seed: 42,
  sampler: "dpmpp_2m",
  scheduler: "karras",
  steps: 12,
};

/** Every link leads to a node that is there. */
function linksHold(prompt: ApiPrompt) {
  for (const node of Object.values(prompt)) {
    for (const value of Object.values(node.inputs))
      if (Array.isArray(value)) expect(prompt[String(value[0])], `${node.class_type} -> ${value[0]}`).toBeDefined();
  }
}

const classes = (prompt: ApiPrompt) =>
  Object.values(prompt)
    .map((n) => n.class_type)
    .sort();
const through = (v: CreateValues) => ({ ...base, ...valuesFrom(buildPrompt(v)), seedLocked: v.seedLocked, imageSize: v.imageSize, count: v.count });

describe("buildPrompt", () => {
  it("draws from words", () => {
    const prompt = buildPrompt(base);
    linksHold(prompt);
    expect(classes(prompt)).toEqual(["CLIPTextEncode", "CLIPTextEncode", "CheckpointLoaderSimple", "EmptyLatentImage", "KSampler", "SaveImage", "VAEDecode"]);
    expect(prompt[NODE.sampler]?.inputs).toMatchObject({ seed: 42, steps: 12, cfg: 3, sampler_name: "dpmpp_2m", scheduler: "karras", denoise: 1 });
    expect(prompt[NODE.latent]?.inputs).toEqual({ width: 256, height: 256, batch_size: 1 });
    expect(through(base)).toEqual({ ...base, denoise: 1 });
  });

  it("starts from a picture, scaled to the size asked for", () => {
    const v: CreateValues = { ...base, image: picture, imageSize: { width: 300, height: 300 }, denoise: 0.5 };
    const prompt = buildPrompt(v);
    linksHold(prompt);
    expect(prompt[NODE.picture]?.inputs.image).toBe("a.png");
    expect(prompt[NODE.scale]?.inputs).toMatchObject({ width: 256, height: 256, crop: "center" });
    expect(prompt[NODE.latent]).toMatchObject({ class_type: "VAEEncode", inputs: { pixels: [NODE.scale, 0] } });
    expect(prompt[NODE.sampler]?.inputs.denoise).toBe(0.5);
    expect(through(v)).toEqual(v);
  });

  it("does not scale a picture that fits", () => {
    const prompt = buildPrompt({ ...base, image: { ...picture, type: "output", subfolder: "x" }, imageSize: { width: 256, height: 256 } });
    expect(classes(prompt)).not.toContain("ImageScale");
    expect(prompt[NODE.picture]?.inputs.image).toBe("x/a.png [output]");
  });

  it("changes only an area and puts the rest back", () => {
    const v: CreateValues = { ...base, image: picture, mask: cut, imageSize: { width: 256, height: 256 }, denoise: 0.9 };
    const prompt = buildPrompt(v);
    linksHold(prompt);
    expect(prompt[NODE.picture]?.inputs.image).toBe("fresco/a-area.png");
    expect(prompt[NODE.area]).toMatchObject({ class_type: "SetLatentNoiseMask", inputs: { mask: [NODE.picture, 1] } });
    expect(prompt[NODE.sampler]?.inputs.latent_image).toEqual([NODE.area, 0]);
    expect(prompt[NODE.together]?.inputs).toMatchObject({ destination: [NODE.picture, 0], source: [NODE.decode, 0], mask: [NODE.picture, 1] });
    expect(prompt[NODE.save]?.inputs.images).toEqual([NODE.together, 0]);
    expect(valuesFrom(prompt)).toMatchObject({ mask: cut, denoise: 0.9 });
  });

  it("scales the area exactly like the picture", () => {
    const prompt = buildPrompt({ ...base, image: picture, mask: cut, imageSize: { width: 640, height: 480 } });
    linksHold(prompt);
    const { image: _a, upscale_method: _b, ...scale } = prompt[NODE.scale]!.inputs;
    expect(prompt[NODE.maskScale]?.inputs).toMatchObject(scale);
    expect(prompt[NODE.area]?.inputs.mask).toEqual([NODE.mask, 0]);
    expect(prompt[NODE.together]?.inputs.mask).toEqual([NODE.mask, 0]);
    expect(valuesFrom(prompt)).toMatchObject({ width: 256, height: 256, mask: cut });
  });

  it("encodes for models that are made for areas", () => {
    const prompt = buildPrompt({ ...base, model: "sd15-inpainting.safetensors", image: picture, mask: cut, imageSize: { width: 256, height: 256 } });
    linksHold(prompt);
    expect(prompt[NODE.latent]?.class_type).toBe("VAEEncodeForInpaint");
    expect(prompt[NODE.sampler]?.inputs.latent_image).toEqual([NODE.latent, 0]);
    expect(valuesFrom(prompt)).toMatchObject({ mask: cut });
  });

  it("stacks LoRAs in the order given and leaves out those of no strength", () => {
    const loras = [
      { name: "one.safetensors", strength: 0.8 },
      { name: "off.safetensors", strength: 0 },
      { name: "two.safetensors", strength: -0.5 },
    ];
    const prompt = buildPrompt({ ...base, loras });
    linksHold(prompt);
    expect(prompt["20"]?.inputs).toMatchObject({ model: [NODE.model, 0], lora_name: "one.safetensors", strength_model: 0.8, strength_clip: 0.8 });
    expect(prompt["21"]?.inputs).toMatchObject({ model: ["20", 0], clip: ["20", 1], lora_name: "two.safetensors" });
    expect(prompt[NODE.sampler]?.inputs.model).toEqual(["21", 0]);
    expect(prompt[NODE.positive]?.inputs.clip).toEqual(["21", 1]);
    expect(valuesFrom(prompt)?.loras).toEqual([loras[0], loras[2]]);
  });

  it("enlarges a result by drawing lightly over it with the same seed", () => {
    const result: FileRef = { filename: "Fresco_00001_.png", subfolder: "", type: "output" };
    const prompt = buildPrompt(upscaleValues({ ...base, count: 4 }, result, { width: 256, height: 256 }, { width: 512, height: 512 }));
    linksHold(prompt);
    expect(prompt[NODE.picture]?.inputs.image).toBe("Fresco_00001_.png [output]");
    expect(prompt[NODE.scale]?.inputs).toMatchObject({ width: 512, height: 512 });
    expect(prompt[NODE.sampler]?.inputs).toMatchObject({ seed: 42, denoise: UPSCALE_DENOISE, steps: 7 });
  });

  it("enlarges a picture with a changed area as it is: the words are not about all of it", () => {
    const result: FileRef = { filename: "Fresco_00002_.png", subfolder: "", type: "output" };
    const edited: CreateValues = { ...base, prompt: "a blue hat", image: picture, mask: cut, imageSize: { width: 256, height: 256 } };
    const large = upscaleValues(edited, result, { width: 256, height: 256 }, { width: 512, height: 512 });
    const prompt = buildPrompt(large);
    linksHold(prompt);
    expect(classes(prompt)).toEqual(["ImageScale", "LoadImage", "SaveImage"]);
    expect(prompt[NODE.picture]?.inputs.image).toBe("Fresco_00002_.png [output]");
    expect(prompt[NODE.scale]?.inputs).toMatchObject({ width: 512, height: 512 });
    // And the enlarged one again.
    const larger = upscaleValues(cleaned(JSON.parse(JSON.stringify(large))), result, { width: 512, height: 512 }, { width: 1024, height: 1024 });
    expect(classes(buildPrompt(larger))).toEqual(["ImageScale", "LoadImage", "SaveImage"]);
    // What is drawn all over keeps being drawn over with its own words.
    expect(
      buildPrompt(upscaleValues({ ...edited, mask: null }, result, { width: 256, height: 256 }, { width: 512, height: 512 }))[NODE.positive]?.inputs.text,
    ).toBe("a blue hat");
  });

  it("varies a result closely or freely", () => {
    const free = variationValues(base, picture, { width: 256, height: 256 }, false, 7);
    expect(free).toMatchObject({ count: 4, seed: 7, image: null });
    const close = variationValues(base, picture, { width: 320, height: 256 }, true, 7);
    expect(buildPrompt(close)[NODE.sampler]?.inputs).toMatchObject({ seed: 7, denoise: 0.6 });
    expect(close).toMatchObject({ image: picture, width: 320, height: 256 });
  });
});
