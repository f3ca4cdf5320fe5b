// Workflows and node classes the tests of this folder share.
import { readFileSync } from "node:fs";
import type { ApiPrompt, ObjectInfo, UiWorkflow } from "../api/types";

const gold = (path: string): string => readFileSync(new URL(`../../../tests/gold/${path}`, import.meta.url), "utf8");

/** /object_info of the reference; model lists are empty there. */
export const info = JSON.parse(gold("object_info.json")) as ObjectInfo;

export const apiOf = (name: string): ApiPrompt => JSON.parse(gold(`ui2api/${name}.api.json`)) as ApiPrompt;
export const uiOf = (name: string): UiWorkflow => JSON.parse(gold(`ui2api/${name}.ui.json`)) as UiWorkflow;

type Inputs = Record<string, unknown>;
const node = (class_type: string, inputs: Inputs, title?: string) => (title ? { class_type, inputs, _meta: { title } } : { class_type, inputs });

export function txt2img(): ApiPrompt {
  return {
    "3": node("KSampler", {
      seed: 42,
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
    "4": node("CheckpointLoaderSimple", { ckpt_name: "v1-5.safetensors" }),
    "5": node("EmptyLatentImage", { width: 512, height: 768, batch_size: 1 }),
    "6": node("CLIPTextEncode", { text: "a castle", clip: ["4", 1] }),
    "7": node("CLIPTextEncode", { text: "blurry", clip: ["4", 1] }),
    "8": node("VAEDecode", { samples: ["3", 0], vae: ["4", 2] }),
    "9": node("SaveImage", { filename_prefix: "ComfyUI", images: ["8", 0] }),
  };
}

export function img2img(): ApiPrompt {
  const prompt = txt2img();
  delete prompt["5"];
  prompt["10"] = node("LoadImage", { image: "photo.png" });
  prompt["11"] = node("VAEEncode", { pixels: ["10", 0], vae: ["4", 2] });
  prompt["3"]!.inputs.latent_image = ["11", 0];
  prompt["3"]!.inputs.denoise = 0.6;
  // Swapped against the ids.
  prompt["3"]!.inputs.positive = ["7", 0];
  prompt["3"]!.inputs.negative = ["6", 0];
  return prompt;
}

export function inpaint(): ApiPrompt {
  const prompt = img2img();
  prompt["3"]!.inputs.positive = ["12", 0];
  prompt["3"]!.inputs.negative = ["12", 1];
  prompt["3"]!.inputs.latent_image = ["12", 2];
  delete prompt["11"];
  prompt["12"] = node("InpaintModelConditioning", {
    positive: ["6", 0],
    negative: ["7", 0],
    vae: ["4", 2],
    pixels: ["10", 0],
    mask: ["13", 0],
    noise_mask: true,
  });
  prompt["13"] = node("LoadImageMask", { image: "mask.png", channel: "alpha" });
  return prompt;
}

export function lora(): ApiPrompt {
  const prompt = txt2img();
  prompt["20"] = node("LoraLoader", { lora_name: "ink.safetensors", strength_model: 0.8, strength_clip: 1, model: ["4", 0], clip: ["4", 1] });
  prompt["21"] = node("LoraLoader", { lora_name: "glow.safetensors", strength_model: 0.5, strength_clip: 1, model: ["20", 0], clip: ["20", 1] });
  prompt["3"]!.inputs.model = ["21", 0];
  prompt["6"]!.inputs.clip = ["21", 1];
  prompt["7"]!.inputs.clip = ["21", 1];
  return prompt;
}

/** Noise, guider, sampler and schedule in nodes of their own; the text comes from a node that only holds it. */
export function custom(): ApiPrompt {
  return {
    "1": node("UNETLoader", { unet_name: "flux1-dev.safetensors", weight_dtype: "default" }),
    "2": node("DualCLIPLoader", { clip_name1: "t5xxl.safetensors", clip_name2: "clip_l.safetensors", type: "flux", device: "default" }),
    "3": node("VAELoader", { vae_name: "ae.safetensors" }),
    "4": node("PrimitiveStringMultiline", { value: "a lighthouse at dusk" }, "Scene"),
    "5": node("CLIPTextEncode", { text: ["4", 0], clip: ["2", 0] }),
    "6": node("FluxGuidance", { guidance: 3.5, conditioning: ["5", 0] }),
    "7": node("BasicGuider", { model: ["1", 0], conditioning: ["6", 0] }),
    "8": node("RandomNoise", { noise_seed: 7 }),
    "9": node("KSamplerSelect", { sampler_name: "euler" }),
    "10": node("BasicScheduler", { scheduler: "simple", steps: 20, denoise: 1, model: ["1", 0] }),
    "11": node("PrimitiveInt", { value: 1024 }),
    "12": node("EmptySD3LatentImage", { width: ["11", 0], height: 1024, batch_size: 1 }),
    "13": node("SamplerCustomAdvanced", { noise: ["8", 0], guider: ["7", 0], sampler: ["9", 0], sigmas: ["10", 0], latent_image: ["12", 0] }),
    "14": node("VAEDecode", { samples: ["13", 0], vae: ["3", 0] }),
    "15": node("SaveImage", { filename_prefix: "flux", images: ["14", 0] }),
  };
}

export function hires(): ApiPrompt {
  const prompt = txt2img();
  prompt["30"] = node("LatentUpscale", { upscale_method: "nearest-exact", width: 1024, height: 1536, crop: "disabled", samples: ["3", 0] });
  prompt["31"] = node("KSampler", { ...prompt["3"]!.inputs, seed: 43, denoise: 0.5, latent_image: ["30", 0] });
  prompt["8"]!.inputs.samples = ["31", 0];
  return prompt;
}

export function controlNet(): ApiPrompt {
  const prompt = txt2img();
  prompt["40"] = node("LoadImage", { image: "pose.png" });
  prompt["41"] = node("ControlNetLoader", { control_net_name: "pose.safetensors" });
  prompt["42"] = node("ControlNetApplyAdvanced", {
    positive: ["6", 0],
    negative: ["7", 0],
    control_net: ["41", 0],
    image: ["40", 0],
    strength: 0.9,
    start_percent: 0,
    end_percent: 1,
  });
  prompt["3"]!.inputs.positive = ["42", 0];
  prompt["3"]!.inputs.negative = ["42", 1];
  return prompt;
}

export function unknown(): ApiPrompt {
  const prompt = txt2img();
  prompt["50"] = node(
    "MagicSampler",
    { positive: ["6", 0], negative: ["7", 0], seed: 5, strength: 0.5, fast: true, mode: "wild", latent: ["5", 0], model: ["4", 0] },
    "Magic",
  );
  prompt["8"]!.inputs.samples = ["50", 0];
  delete prompt["3"];
  return prompt;
}

/** A workflow of `count` nodes in one long chain, with a text in each. */
export function long(count: number): ApiPrompt {
  const prompt = txt2img();
  let last: [string, number] = ["8", 0];
  for (let i = 0; i < count - 7; i += 1) {
    const id = String(100 + i);
    prompt[id] = node("ImageScaleBy", { image: last, upscale_method: "area", scale_by: 1 });
    last = [id, 0];
  }
  prompt["9"]!.inputs.images = last;
  return prompt;
}
