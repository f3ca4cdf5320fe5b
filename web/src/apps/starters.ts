// The apps Fresco comes with, made for the models that are here.
import type { ApiPrompt, ObjectInfo } from "../api/types";
import { familyOf } from "../create/family";
import type { AppFile } from "./appFile";
import { defaultForm, type FormDef } from "./form";
import { fieldsOf, valuesOf } from "./fields";
import { specOf } from "./specs";

export interface Starter {
  /** Its address, `#/apps/~ID`. */
  id: string;
  name: string;
  about: string;
}

export const starters: readonly Starter[] = [
  { id: "words", name: "Text to picture", about: "Say what you want to see." },
  { id: "change", name: "Change a picture", about: "Drop a picture and say what it should become." },
  { id: "bigger", name: "Upscale a picture", about: "Make a picture larger and let the model add detail." },
];

/** The checkpoint starters use: our own small one where it is, else the first there is. */
export function firstCheckpoint(info: ObjectInfo): string | null {
  const choices = specOf(info, "CheckpointLoaderSimple", "ckpt_name")?.choices ?? [];
  return choices.find((name) => /fresco-starter/i.test(name)) ?? choices[0] ?? null;
}

function loader(model: string): ApiPrompt {
  return { 1: { class_type: "CheckpointLoaderSimple", inputs: { ckpt_name: model }, _meta: { title: "Load Checkpoint" } } };
}

function words(id: string, text: string): ApiPrompt {
  return { [id]: { class_type: "CLIPTextEncode", inputs: { text, clip: ["1", 1] }, _meta: { title: "CLIP Text Encode (Prompt)" } } };
}

function finish(latent: [string, number], prefix: string): ApiPrompt {
  return {
    8: { class_type: "VAEDecode", inputs: { samples: latent, vae: ["1", 2] }, _meta: { title: "VAE Decode" } },
    9: { class_type: "SaveImage", inputs: { images: ["8", 0], filename_prefix: prefix }, _meta: { title: "Save Image" } },
  };
}

function sampler(latent: [string, number], model: string, denoise: number): ApiPrompt {
  const { steps, cfg, sampler: sampler_name, scheduler } = familyOf(model);
  return {
    5: {
      class_type: "KSampler",
      inputs: {
        model: ["1", 0],
        positive: ["2", 0],
        negative: ["3", 0],
        latent_image: latent,
        seed: 1,
        steps,
        cfg,
        sampler_name,
        scheduler,
        denoise,
      },
      _meta: { title: "KSampler" },
    },
  };
}

function promptOf(id: string, model: string): ApiPrompt {
  const side = familyOf(model).home;
  switch (id) {
    case "change":
      return {
        ...loader(model),
        ...words("2", "a red apple"),
        ...words("3", ""),
        4: { class_type: "LoadImage", inputs: { image: "" }, _meta: { title: "Load Image" } },
        10: {
          class_type: "ImageScale",
          inputs: { image: ["4", 0], upscale_method: "lanczos", width: side, height: side, crop: "center" },
          _meta: { title: "Size" },
        },
        6: { class_type: "VAEEncode", inputs: { pixels: ["10", 0], vae: ["1", 2] }, _meta: { title: "VAE Encode" } },
        ...sampler(["6", 0], model, 0.6),
        ...finish(["5", 0], "changed"),
      };
    case "bigger":
      return {
        ...loader(model),
        ...words("2", ""),
        ...words("3", ""),
        4: { class_type: "LoadImage", inputs: { image: "" }, _meta: { title: "Load Image" } },
        10: { class_type: "ImageScaleBy", inputs: { image: ["4", 0], upscale_method: "lanczos", scale_by: 2 }, _meta: { title: "Upscale" } },
        6: { class_type: "VAEEncode", inputs: { pixels: ["10", 0], vae: ["1", 2] }, _meta: { title: "VAE Encode" } },
        ...sampler(["6", 0], model, 0.25),
        ...finish(["5", 0], "bigger"),
      };
    default:
      return {
        ...loader(model),
        ...words("2", "a red apple"),
        ...words("3", ""),
        4: { class_type: "EmptyLatentImage", inputs: { width: side, height: side, batch_size: 1 }, _meta: { title: "Empty Latent Image" } },
        ...sampler(["4", 0], model, 1),
        ...finish(["5", 0], "words"),
      };
  }
}

/** A starter as an app, or null where there is no such one or no checkpoint. */
export function starterApp(id: string, info: ObjectInfo): AppFile | null {
  const starter = starters.find((s) => s.id === id);
  const model = firstCheckpoint(info);
  if (!starter || !model) return null;
  const prompt = promptOf(id, model);
  const fields = fieldsOf(prompt, info);
  return {
    kind: "fresco-app",
    version: 1,
    name: starter.name,
    about: starter.about,
    prompt,
    workflow: null,
    form: starterForm(id, defaultForm(fields, null)),
    values: valuesOf(prompt, fields),
    thumbnail: null,
  };
}

function starterForm(id: string, form: FormDef): FormDef {
  const labels: Record<string, string> = {
    "5/denoise": "How much to change",
    "10/scale_by": "Scale factor",
    "2/text": id === "words" ? "What do you want to see?" : id === "change" ? "What should it become?" : "What is in the picture?",
  };
  const wanted =
    id === "words"
      ? ["2/text", "4/width", "5/seed"]
      : id === "change"
        ? ["4/image", "2/text", "5/denoise", "5/seed"]
        : ["4/image", "10/scale_by", "2/text", "5/denoise", "5/seed"];
  return { ...form, shown: wanted.map((key) => (labels[key] ? { key, label: labels[key] } : { key })) };
}
