// From the values of the form to a prompt the server runs. Node numbers are fixed, so that unchanged parts stay cached.
import { annotated } from "../api/client";
import type { ApiNode, ApiPrompt, FileRef } from "../api/types";
import { madeForAreas, type Size } from "./family";
import { type CreateValues, modeOf } from "./values";

type Link = [string, number];

export const NODE = {
  model: "1",
  positive: "2",
  negative: "3",
  latent: "4",
  sampler: "5",
  decode: "6",
  save: "7",
  picture: "10",
  scale: "11",
  maskPicture: "12",
  maskScale: "13",
  mask: "14",
  area: "15",
  together: "16",
} as const;
const FIRST_LORA = 20;

export const PREFIX = "Fresco";
export const UPSCALE_DENOISE = 0.35;

/** One picture as the form asks for it. */
export function buildPrompt(v: CreateValues): ApiPrompt {
  const prompt: ApiPrompt = {};
  const put = (id: string, class_type: string, title: string, inputs: ApiNode["inputs"]) => {
    prompt[id] = { class_type, inputs, _meta: { title } };
  };
  if (v.image && !v.redraw) {
    put(NODE.picture, "LoadImage", "Picture", { image: annotated(v.image) });
    put(NODE.scale, "ImageScale", "Upscale", { image: [NODE.picture, 0], upscale_method: "lanczos", width: v.width, height: v.height, crop: "disabled" });
    put(NODE.save, "SaveImage", "Save", { images: [NODE.scale, 0], filename_prefix: PREFIX });
    return prompt;
  }
  put(NODE.model, "CheckpointLoaderSimple", "Model", { ckpt_name: v.model });
  let model: Link = [NODE.model, 0];
  let clip: Link = [NODE.model, 1];
  v.loras
    .filter((lora) => lora.name && lora.strength !== 0)
    .forEach((lora, i) => {
      const id = String(FIRST_LORA + i);
      put(id, "LoraLoader", "LoRA", { model, clip, lora_name: lora.name, strength_model: lora.strength, strength_clip: lora.strength });
      model = [id, 0];
      clip = [id, 1];
    });
  put(NODE.positive, "CLIPTextEncode", "What to draw", { text: v.prompt, clip });
  put(NODE.negative, "CLIPTextEncode", "What to avoid", { text: v.negative, clip });

  const latent = putLatent(put, v);
  put(NODE.sampler, "KSampler", "Sampler", {
    model,
    positive: [NODE.positive, 0],
    negative: [NODE.negative, 0],
    latent_image: latent.from,
    seed: v.seed,
    steps: v.steps,
    cfg: v.cfg,
    sampler_name: v.sampler,
    scheduler: v.scheduler,
    denoise: modeOf(v) === "text" ? 1 : v.denoise,
  });
  put(NODE.decode, "VAEDecode", "Decode", { samples: [NODE.sampler, 0], vae: [NODE.model, 2] });
  let images: Link = [NODE.decode, 0];
  if (latent.around) {
    // Outside the area the old pixels come back untouched: a trip through the autoencoder blurs them.
    put(NODE.together, "ImageCompositeMasked", "Put the area back", {
      destination: latent.around.pixels,
      source: images,
      x: 0,
      y: 0,
      resize_source: false,
      mask: latent.around.mask,
    });
    images = [NODE.together, 0];
  }
  put(NODE.save, "SaveImage", "Save", { images, filename_prefix: PREFIX });
  return prompt;
}

type Put = (id: string, class_type: string, title: string, inputs: ApiNode["inputs"]) => void;

/** Where sampling starts, and for a changed area what lies around it. */
function putLatent(put: Put, v: CreateValues): { from: Link; around?: { pixels: Link; mask: Link } } {
  if (!v.image) {
    put(NODE.latent, "EmptyLatentImage", "Size", { width: v.width, height: v.height, batch_size: 1 });
    return { from: [NODE.latent, 0] };
  }
  const mask = modeOf(v) === "area";
  put(NODE.picture, "LoadImage", "Start picture", { image: annotated(v.mask ?? v.image) });
  let pixels: Link = [NODE.picture, 0];
  let area: Link = [NODE.picture, 1];
  const fits = v.imageSize?.width === v.width && v.imageSize.height === v.height;
  const scaling = { upscale_method: "lanczos", width: v.width, height: v.height, crop: "center" };
  if (!fits) {
    put(NODE.scale, "ImageScale", "Fit the picture", { image: pixels, ...scaling });
    pixels = [NODE.scale, 0];
    if (mask) {
      // Masks cannot be scaled as such; as grey pictures they are cut exactly like the picture.
      put(NODE.maskPicture, "MaskToImage", "Area as picture", { mask: area });
      put(NODE.maskScale, "ImageScale", "Fit the area", { image: [NODE.maskPicture, 0], ...scaling, upscale_method: "bilinear" });
      put(NODE.mask, "ImageToMask", "Area", { image: [NODE.maskScale, 0], channel: "red" });
      area = [NODE.mask, 0];
    }
  }
  const vae: Link = [NODE.model, 2];
  if (!mask) {
    put(NODE.latent, "VAEEncode", "Encode", { pixels, vae });
    return { from: [NODE.latent, 0] };
  }
  if (madeForAreas(v.model)) {
    put(NODE.latent, "VAEEncodeForInpaint", "Encode around the area", { pixels, vae, mask: area, grow_mask_by: 6 });
    return { from: [NODE.latent, 0], around: { pixels, mask: area } };
  }
  put(NODE.latent, "VAEEncode", "Encode", { pixels, vae });
  put(NODE.area, "SetLatentNoiseMask", "Change only the area", { samples: [NODE.latent, 0], mask: area });
  return { from: [NODE.area, 0], around: { pixels, mask: area } };
}

/** Whether the words of a picture are about all of it. Those of a changed area are not: drawing over the whole picture with
 *  them would spread the change, so such a picture is enlarged as it is. */
export function wordsFitAll(v: CreateValues): boolean {
  return modeOf(v) !== "area" && v.redraw;
}

/** The values that make a larger version of a finished picture: scaled first, then drawn over lightly where its words allow. */
export function upscaleValues(v: CreateValues, picture: FileRef, from: Size, to: Size): CreateValues {
  if (!wordsFitAll(v))
    return { ...v, image: picture, imageSize: from, mask: null, width: to.width, height: to.height, loras: [], count: 1, seedLocked: true, redraw: false };
  return {
    ...v,
    image: picture,
    imageSize: from,
    mask: null,
    width: to.width,
    height: to.height,
    denoise: UPSCALE_DENOISE,
    // A light second pass needs fewer steps, and each of them costs four times as much.
    steps: Math.min(v.steps, Math.max(6, Math.round(v.steps * 0.6))),
    count: 1,
    seedLocked: true,
  };
}

/** The values of four more pictures like a finished one: close ones start from it, new ones only share the words. */
export function variationValues(v: CreateValues, picture: FileRef, size: Size, close: boolean, seed: number): CreateValues {
  const base = { ...v, count: 4, seed, seedLocked: false };
  if (!close) return base;
  return { ...base, image: picture, imageSize: size, mask: null, width: size.width, height: size.height, denoise: 0.6 };
}

/** What the server does at a node, in words for people. */
export function phaseOf(class_type: string | undefined): string {
  switch (class_type) {
    case "CheckpointLoaderSimple":
      return "Loading the model";
    case "LoraLoader":
      return "Loading the LoRA";
    case "CLIPTextEncode":
      return "Reading the prompt";
    case "LoadImage":
    case "ImageScale":
    case "VAEEncode":
    case "VAEEncodeForInpaint":
      return "Looking at the start picture";
    case "KSampler":
    case "KSamplerAdvanced":
    case "SamplerCustom":
    case "SamplerCustomAdvanced":
      return "Drawing";
    case "VAEDecode":
    case "ImageCompositeMasked":
    case "SaveImage":
    case "PreviewImage":
      return "Finishing";
    default:
      return "Working";
  }
}
