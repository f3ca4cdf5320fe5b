// From the values of the form to a prompt the server runs. Node numbers are fixed, so that unchanged parts stay cached.
import { annotated } from "../api/client";
import type { ApiNode, ApiPrompt, FileRef } from "../api/types";
import { madeForAreas, type Size } from "./family";
import { type Kit, WHOLE } from "./kit";
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
  encoders: "30",
  vae: "31",
  shift: "32",
  guidance: "33",
  reference: "34",
  looked: "35",
} as const;
const FIRST_LORA = 20;

export const PREFIX = "Fresco";
export const UPSCALE_DENOISE = 0.35;

/** One picture as the form asks for it. */
export function buildPrompt(v: CreateValues, kit: Kit = WHOLE): ApiPrompt {
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
  const { recipe } = kit;
  const loaded = putModel(put, v, kit);
  let { model, clip } = loaded;
  const vae = loaded.vae;
  v.loras
    .filter((lora) => lora.name && lora.strength !== 0)
    .forEach((lora, i) => {
      const id = String(FIRST_LORA + i);
      put(id, "LoraLoader", "LoRA", { model, clip, lora_name: lora.name, strength_model: lora.strength, strength_clip: lora.strength });
      model = [id, 0];
      clip = [id, 1];
    });
  if (recipe.shift) {
    const [node, shift] = recipe.shift;
    put(NODE.shift, node, "Noise levels", { model, shift });
    model = [NODE.shift, 0];
  }
  const edits = recipe.edits && modeOf(v) === "image" ? recipe.edits : null;
  const latent = putLatent(put, v, kit, vae, edits !== null);
  const words = putWords(put, v, kit, clip, vae, edits ? latent.pixels : undefined);
  put(NODE.sampler, "KSampler", "Sampler", {
    model,
    positive: words.positive,
    negative: words.negative,
    latent_image: latent.from,
    seed: v.seed,
    steps: v.steps,
    cfg: recipe.distilled ? 1 : v.cfg,
    sampler_name: v.sampler,
    scheduler: v.scheduler,
    denoise: modeOf(v) === "text" || edits ? 1 : v.denoise,
  });
  put(NODE.decode, "VAEDecode", "Decode", { samples: [NODE.sampler, 0], vae });
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

/** The model with its text encoders and its autoencoder, from one file or from several. */
function putModel(put: Put, v: CreateValues, kit: Kit): { model: Link; clip: Link; vae: Link } {
  const { recipe } = kit;
  if (kit.folder === "checkpoints") put(NODE.model, "CheckpointLoaderSimple", "Model", { ckpt_name: v.model });
  else put(NODE.model, "UNETLoader", "Model", { unet_name: v.model, weight_dtype: "default" });
  let clip: Link = [NODE.model, 1];
  let vae: Link = [NODE.model, 2];
  if (recipe.encoders && kit.encoders.length > 0) {
    const { node, type } = recipe.encoders;
    const names = kit.encoders.map((name, i): [string, string] => [node === "CLIPLoader" ? "clip_name" : `clip_name${i + 1}`, name]);
    put(NODE.encoders, node, "Text encoder", { ...Object.fromEntries(names), ...(type && { type }) });
    clip = [NODE.encoders, 0];
  }
  if (kit.vae !== null) {
    put(NODE.vae, "VAELoader", "Autoencoder", { vae_name: kit.vae });
    vae = [NODE.vae, 0];
  }
  return { model: [NODE.model, 0], clip, vae };
}

/** What to draw and what to avoid, with the picture that is changed where a model looks at it. */
function putWords(put: Put, v: CreateValues, kit: Kit, clip: Link, vae: Link, picture?: Link): { positive: Link; negative: Link } {
  const { recipe } = kit;
  if (picture && recipe.edits === "qwen") {
    put(NODE.positive, "TextEncodeQwenImageEditPlus", "What to draw", { prompt: v.prompt, clip, vae, image1: picture });
    put(NODE.negative, "TextEncodeQwenImageEditPlus", "What to avoid", { prompt: v.negative, clip, vae, image1: picture });
    return { positive: [NODE.positive, 0], negative: [NODE.negative, 0] };
  }
  put(NODE.positive, "CLIPTextEncode", "What to draw", { text: v.prompt, clip });
  let positive: Link = [NODE.positive, 0];
  if (picture) {
    put(NODE.looked, "VAEEncode", "Encode", { pixels: picture, vae });
    put(NODE.reference, "ReferenceLatent", "The picture to change", { conditioning: positive, latent: [NODE.looked, 0] });
    positive = [NODE.reference, 0];
  }
  if (!recipe.distilled) {
    put(NODE.negative, "CLIPTextEncode", "What to avoid", { text: v.negative, clip });
    return { positive, negative: [NODE.negative, 0] };
  }
  put(NODE.guidance, "FluxGuidance", "Guidance", { conditioning: positive, guidance: v.cfg });
  put(NODE.negative, "ConditioningZeroOut", "Nothing to avoid", { conditioning: [NODE.positive, 0] });
  return { positive: [NODE.guidance, 0], negative: [NODE.negative, 0] };
}

/** Where sampling starts, and for a changed area what lies around it. A model that edits starts from nothing and looks at
 *  the picture. */
function putLatent(put: Put, v: CreateValues, kit: Kit, vae: Link, edits: boolean): { from: Link; pixels?: Link; around?: { pixels: Link; mask: Link } } {
  if (!v.image || edits) put(NODE.latent, kit.recipe.latent, "Size", { width: v.width, height: v.height, batch_size: 1 });
  if (!v.image) return { from: [NODE.latent, 0] };
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
  if (edits) return { from: [NODE.latent, 0], pixels };
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
    case "UNETLoader":
    case "VAELoader":
      return "Loading the model";
    case "CLIPLoader":
    case "DualCLIPLoader":
    case "TripleCLIPLoader":
    case "QuadrupleCLIPLoader":
      return "Loading the text encoder";
    case "LoraLoader":
      return "Loading the LoRA";
    case "CLIPTextEncode":
    case "TextEncodeQwenImageEditPlus":
      return "Reading the prompt";
    case "LoadImage":
    case "ImageScale":
    case "VAEEncode":
    case "VAEEncodeForInpaint":
      return "Reading the start picture";
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
