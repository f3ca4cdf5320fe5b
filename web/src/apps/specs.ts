// Reads what /object_info says about one input: its type, its choices and its limits.
import type { ApiPrompt, ObjectInfo } from "../api/types";

export interface Spec {
  type: string;
  /** Of a list to choose from; null for other types. */
  choices: string[] | null;
  options: Record<string, unknown>;
}

type RawSpec = readonly [unknown, Record<string, unknown>?];
interface RawInputs {
  required?: Record<string, RawSpec>;
  optional?: Record<string, RawSpec>;
}

function pick(inputs: RawInputs | undefined, name: string): RawSpec | undefined {
  return inputs?.required?.[name] ?? inputs?.optional?.[name];
}

function texts(values: unknown): string[] {
  return Array.isArray(values) ? values.filter((v) => typeof v === "string" || typeof v === "number").map(String) : [];
}

function read(raw: RawSpec): Spec {
  const [type, options = {}] = raw;
  if (Array.isArray(type)) return { type: "COMBO", choices: texts(type), options };
  const name = String(type);
  if (name === "COMBO") return { type: "COMBO", choices: texts(options.options), options };
  if (name === "COMFY_DYNAMICCOMBO_V3") {
    const keys = (Array.isArray(options.options) ? options.options : []) as { key?: unknown }[];
    return { type: "COMBO", choices: keys.map((o) => String(o.key)), options: { ...options, dynamic: true } };
  }
  return { type: name, choices: null, options };
}

/** What is known of an input of a class, or null. `values` are the node's inputs: they decide what a changing list adds. */
export function specOf(info: ObjectInfo, classType: string, input: string, values: Record<string, unknown> = {}): Spec | null {
  const node = info[classType];
  if (!node) return null;
  const inputs = node.input as RawInputs | undefined;
  const direct = pick(inputs, input);
  if (direct) return read(direct);
  const dot = input.lastIndexOf(".");
  if (dot < 0) return null;
  // "parent.child": the child belongs to the option of the parent that is chosen now.
  const parent = input.slice(0, dot);
  const raw = pick(inputs, parent);
  const options = (raw?.[1]?.options ?? []) as { key?: unknown; inputs?: RawInputs }[];
  if (!Array.isArray(options)) return null;
  const child = pick(options.find((o) => String(o?.key) === String(values[parent]))?.inputs, input.slice(dot + 1));
  return child ? read(child) : null;
}

const modelFile = /\.(safetensors|sft|ckpt|pt|pth|bin|gguf|onnx)$/i;
const modelInput =
  /^(ckpt|unet|lora|vae|clip|control_?net|model|style_model|clip_vision|gligen|hypernetwork|upscale_model|audio_encoder|embedding)(_?name)?_?\d*$/i;

/** Whether a list chooses a model file. */
export function choosesModel(input: string, spec: Spec | null, value: unknown): boolean {
  if (spec && spec.type !== "COMBO") return false;
  if (spec && (uploadOf(spec) || spec.options.dynamic)) return false;
  if (typeof value === "string" && modelFile.test(value)) return true;
  if (!spec) return false;
  if (spec.choices?.some((choice) => modelFile.test(choice))) return true;
  return modelInput.test(input) && (/name/i.test(input) || !spec.choices?.length);
}

/** What kind of file the input takes from the user, if any. */
export function uploadOf(spec: Spec | null): "image" | "video" | "audio" | "file" | null {
  const o = spec?.options;
  if (!o) return null;
  if (o.image_upload || o.animated_image_upload) return "image";
  if (o.video_upload) return "video";
  if (o.audio_upload) return "audio";
  return o.file_upload ? "file" : null;
}

const words: Record<string, string> = {
  ckpt_name: "Model",
  unet_name: "Model",
  lora_name: "LoRA",
  vae_name: "VAE",
  clip_name: "Text encoder",
  clip_name1: "Text encoder 1",
  clip_name2: "Text encoder 2",
  clip_name3: "Text encoder 3",
  clip_name4: "Text encoder 4",
  control_net_name: "ControlNet",
  style_model_name: "Style model",
  model_name: "Model",
  strength_model: "LoRA strength",
  strength_clip: "LoRA strength on the prompt",
  cfg: "Guidance",
  cfg1: "Guidance 1",
  cfg2: "Guidance 2",
  cfg_conds: "Guidance",
  guidance: "Guidance",
  sampler_name: "Sampler",
  scheduler: "Scheduler",
  denoise: "How much to change",
  seed: "Seed",
  noise_seed: "Seed",
  batch_size: "How many at once",
  length: "Frames",
  fps: "Frames per second",
  frame_rate: "Frames per second",
  filename_prefix: "File name",
  megapixels: "Megapixels",
  upscale_method: "Scaling method",
  scale_by: "Scale factor",
  weight_dtype: "Number format",
  start_at_step: "First step",
  end_at_step: "Last step",
  aspect_ratio: "Shape",
  text: "Text",
  steps: "Steps",
  width: "Width",
  height: "Height",
  image: "Picture",
  string: "Text",
  value: "Value",
};

/** Plain words for an input's name. */
export function wordsFor(input: string): string {
  const name = input.slice(input.lastIndexOf(".") + 1);
  const known = words[name];
  if (known) return known;
  const spaced = name
    .replace(/[_-]+/g, " ")
    .replace(/([a-z])([A-Z])/g, "$1 $2")
    .trim();
  return spaced ? spaced[0]!.toUpperCase() + spaced.slice(1) : input;
}

/** The inputs of a node's class in the order they are meant to be seen; those unknown to it last. */
export function inputOrder(info: ObjectInfo, prompt: ApiPrompt, id: string): string[] {
  const node = prompt[id];
  if (!node) return [];
  const names = Object.keys(node.inputs);
  const raw = info[node.class_type]?.input as RawInputs | undefined;
  if (!raw) return names;
  const known = [...Object.keys(raw.required ?? {}), ...Object.keys(raw.optional ?? {})];
  const place = (name: string) => {
    const at = known.indexOf(name.split(".")[0]!);
    return at < 0 ? known.length : at;
  };
  return names
    .map((name, index) => ({ name, index }))
    .sort((a, b) => place(a.name) - place(b.name) || a.index - b.index)
    .map((x) => x.name);
}
