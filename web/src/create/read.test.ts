// Values out of graphs that others made.
import { describe, expect, it } from "vitest";
import type { ApiPrompt } from "../api/types";
import { valuesFrom } from "./read";

const n = (class_type: string, inputs: Record<string, unknown>) => ({ class_type, inputs });

describe("valuesFrom", () => {
  it("reads the graph everyone starts with, whatever its ids", () => {
    const prompt: ApiPrompt = {
      "3": n("KSampler", {
        seed: 156680208700286,
        steps: 20,
        cfg: 8,
        sampler_name: "euler",
        scheduler: "normal",
        denoise: 1,
        model: ["4", 0],
        positive: ["6", 0],
        negative: ["7", 0],
        latent_image: ["5", 0],
      }),
      "4": n("CheckpointLoaderSimple", { ckpt_name: "sd15.ckpt" }),
      "5": n("EmptyLatentImage", { width: 512, height: 768, batch_size: 2 }),
      "6": n("CLIPTextEncode", { text: "a bottle", clip: ["4", 1] }),
      "7": n("CLIPTextEncode", { text: "text, watermark", clip: ["4", 1] }),
      "8": n("VAEDecode", { samples: ["3", 0], vae: ["4", 2] }),
      "9": n("SaveImage", { filename_prefix: "ComfyUI", images: ["8", 0] }),
    };
    expect(valuesFrom(prompt)).toEqual({
      prompt: "a bottle",
      negative: "text, watermark",
      model: "sd15.ckpt",
      seed: 156680208700286,
      steps: 20,
      cfg: 8,
      sampler: "euler",
      scheduler: "normal",
      denoise: 1,
      width: 512,
      height: 768,
      count: 2,
      loras: [],
      image: null,
      mask: null,
    });
  });

  it("takes the first of two samplers, and words through a control net", () => {
    const prompt: ApiPrompt = {
      ck: n("CheckpointLoaderSimple", { ckpt_name: "m.safetensors" }),
      lora: n("LoraLoaderModelOnly", { model: ["ck", 0], lora_name: "l.safetensors", strength_model: 0.7 }),
      p: n("CLIPTextEncode", { text: ["words", 0], clip: ["ck", 1] }),
      words: n("PrimitiveStringMultiline", { value: "a castle" }),
      neg: n("ConditioningZeroOut", { conditioning: ["p", 0] }),
      cn: n("ControlNetApplyAdvanced", { positive: ["p", 0], negative: ["neg", 0], control_net: ["cnl", 0], image: ["img", 0], strength: 1 }),
      cnl: n("ControlNetLoader", { control_net_name: "c.safetensors" }),
      img: n("LoadImage", { image: "edge.png" }),
      size: n("EmptySD3LatentImage", { width: ["w", 0], height: 640, batch_size: 1 }),
      w: n("PrimitiveInt", { value: 960 }),
      first: n("KSamplerAdvanced", {
        noise_seed: 5,
        steps: 30,
        cfg: 5,
        sampler_name: "dpmpp_2m",
        scheduler: "karras",
        model: ["lora", 0],
        positive: ["cn", 0],
        negative: ["cn", 1],
        latent_image: ["size", 0],
      }),
      up: n("LatentUpscaleBy", { samples: ["first", 0], upscale_method: "bislerp", scale_by: 2 }),
      second: n("KSampler", {
        seed: 6,
        steps: 10,
        cfg: 5,
        sampler_name: "euler",
        scheduler: "normal",
        denoise: 0.4,
        model: ["lora", 0],
        positive: ["p", 0],
        negative: ["neg", 0],
        latent_image: ["up", 0],
      }),
      dec: n("VAEDecode", { samples: ["second", 0], vae: ["ck", 2] }),
      out: n("PreviewImage", { images: ["dec", 0] }),
    };
    expect(valuesFrom(prompt)).toMatchObject({
      prompt: "a castle",
      seed: 5,
      steps: 30,
      sampler: "dpmpp_2m",
      width: 960,
      height: 640,
      model: "m.safetensors",
      loras: [{ name: "l.safetensors", strength: 0.7 }],
      image: null,
    });
  });

  it("reads samplers made of parts", () => {
    const prompt: ApiPrompt = {
      "1": n("UNETLoader", { unet_name: "flux.safetensors" }),
      "2": n("CLIPTextEncodeFlux", { clip: ["9", 0], clip_l: "", t5xxl: "a fox", guidance: 3.5 }),
      "3": n("FluxGuidance", { conditioning: ["2", 0], guidance: 3.5 }),
      "4": n("BasicGuider", { model: ["1", 0], conditioning: ["3", 0] }),
      "5": n("RandomNoise", { noise_seed: 77 }),
      "6": n("KSamplerSelect", { sampler_name: "euler" }),
      "7": n("BasicScheduler", { model: ["1", 0], scheduler: "simple", steps: 8, denoise: 1 }),
      "8": n("EmptyLatentImage", { width: 1024, height: 1024, batch_size: 1 }),
      "9": n("DualCLIPLoader", {}),
      "10": n("SamplerCustomAdvanced", { noise: ["5", 0], guider: ["4", 0], sampler: ["6", 0], sigmas: ["7", 0], latent_image: ["8", 0] }),
      "11": n("VAEDecode", { samples: ["10", 0] }),
      "12": n("SaveImage", { images: ["11", 0] }),
    };
    const values = valuesFrom(prompt);
    expect(values).toMatchObject({ prompt: "a fox", seed: 77, steps: 8, sampler: "euler", scheduler: "simple", width: 1024 });
    expect(values?.model).toBe("flux.safetensors");
  });

  it("says null for graphs that draw nothing, and survives broken ones", () => {
    expect(valuesFrom({})).toBeNull();
    expect(valuesFrom({ a: n("LoadImage", { image: "x.png" }), b: n("SaveImage", { images: ["a", 0] }) })).toBeNull();
    const loop: ApiPrompt = {
      a: n("KSampler", { seed: 1, positive: ["b", 0], negative: ["gone", 0], model: ["a", 0], latent_image: ["a", 0] }),
      b: n("ConditioningCombine", { conditioning_1: ["b", 0], conditioning_2: ["a", 0] }),
    };
    expect(valuesFrom(loop)).toMatchObject({ seed: 1, loras: [] });
  });
});
