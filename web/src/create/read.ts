// Reads the values of the form back out of a prompt, ours or any other text-to-image graph.
import { fromAnnotated } from "../api/files";
import type { ApiNode, ApiPrompt } from "../api/types";
import type { Size } from "./family";
import type { CreateValues, LoraUse } from "./values";

const SAMPLERS = new Set(["KSampler", "KSamplerAdvanced", "SamplerCustom", "SamplerCustomAdvanced"]);
const DEPTH = 64;

/** null where the graph draws nothing from words. */
export function valuesFrom(prompt: ApiPrompt): Partial<CreateValues> | null {
  const sampler = findSampler(prompt);
  if (!sampler) return null;
  const settings = samplerSettings(prompt, sampler);
  const out: Partial<CreateValues> = { ...settings.values };

  const text = textOf(prompt, settings.positive);
  const negative = textOf(prompt, settings.negative);
  if (text !== undefined) out.prompt = text;
  if (negative !== undefined) out.negative = negative;
  if (text === undefined && out.seed === undefined) return null;

  // Models with guidance of their own are sampled without any other.
  const guidance = out.cfg === 1 ? guidanceOf(prompt, settings.positive) : undefined;
  if (guidance !== undefined) out.cfg = guidance;

  const { model, loras } = modelOf(prompt, settings.model);
  if (model) out.model = model;
  out.loras = loras;
  Object.assign(out, latentOf(prompt, settings.latent));
  return out;
}

function linked(prompt: ApiPrompt, value: unknown): ApiNode | undefined {
  return Array.isArray(value) && value.length === 2 ? prompt[String(value[0])] : undefined;
}

/** Nodes above one, nearest first; `enter` says which inputs to follow. */
function* above(prompt: ApiPrompt, start: unknown, enter: (node: ApiNode, input: string) => boolean = () => true): Generator<ApiNode> {
  const seen = new Set<ApiNode>();
  let level = [linked(prompt, start)];
  for (let depth = 0; depth < DEPTH && level.length > 0; depth++) {
    const next: (ApiNode | undefined)[] = [];
    for (const node of level) {
      if (!node || seen.has(node)) continue;
      seen.add(node);
      yield node;
      for (const [name, value] of Object.entries(node.inputs)) if (enter(node, name)) next.push(linked(prompt, value));
    }
    level = next;
  }
}

/** The sampler that makes the picture from nothing: of several in a row the first one, later ones only refine. */
function findSampler(prompt: ApiPrompt): ApiNode | undefined {
  const all = Object.values(prompt);
  const outputs = all.filter((n) => /^(Save|Preview).*Image/.test(n.class_type));
  const start: ApiNode = { class_type: "", inputs: Object.fromEntries(outputs.map((n, i) => [String(i), n.inputs.images ?? n.inputs.image])) };
  let found: ApiNode | undefined;
  for (const value of Object.values(start.inputs)) {
    for (const node of above(prompt, value)) if (SAMPLERS.has(node.class_type)) found ??= node;
    if (found) break;
  }
  found ??= all.find((n) => SAMPLERS.has(n.class_type));
  for (let hops = 0; found && hops < 8; hops++) {
    const here: ApiNode = found;
    let earlier: ApiNode | undefined;
    for (const node of above(prompt, here.inputs.latent_image)) {
      if (SAMPLERS.has(node.class_type) && node !== here) {
        earlier = node;
        break;
      }
    }
    if (!earlier) break;
    found = earlier;
  }
  return found;
}

interface SamplerSettings {
  values: Partial<CreateValues>;
  positive?: unknown;
  negative?: unknown;
  model?: unknown;
  latent?: unknown;
}

function samplerSettings(prompt: ApiPrompt, node: ApiNode): SamplerSettings {
  const i = node.inputs;
  const values: Partial<CreateValues> = {};
  const number = (key: "seed" | "steps" | "cfg" | "denoise", value: unknown) => {
    const x = literal(prompt, value);
    if (typeof x === "number") values[key] = x;
  };
  const word = (key: "sampler" | "scheduler", value: unknown) => {
    const x = literal(prompt, value);
    if (typeof x === "string") values[key] = x;
  };
  if (node.class_type === "KSampler" || node.class_type === "KSamplerAdvanced") {
    number("seed", i.seed ?? i.noise_seed);
    number("steps", i.steps);
    number("cfg", i.cfg);
    number("denoise", i.denoise);
    word("sampler", i.sampler_name);
    word("scheduler", i.scheduler);
    return { values, positive: i.positive, negative: i.negative, model: i.model, latent: i.latent_image };
  }
  const guider = linked(prompt, i.guider)?.inputs;
  const sigmas = linked(prompt, i.sigmas)?.inputs;
  number("seed", i.noise_seed ?? linked(prompt, i.noise)?.inputs.noise_seed);
  number("cfg", i.cfg ?? guider?.cfg);
  number("steps", sigmas?.steps);
  number("denoise", sigmas?.denoise);
  word("scheduler", sigmas?.scheduler);
  word("sampler", linked(prompt, i.sampler)?.inputs.sampler_name);
  return {
    values,
    positive: i.positive ?? guider?.positive ?? guider?.conditioning,
    negative: i.negative ?? guider?.negative,
    model: i.model ?? guider?.model ?? sigmas?.model,
    latent: i.latent_image,
  };
}

/** A value given directly, or by a small node that only holds one. */
function literal(prompt: ApiPrompt, value: unknown): unknown {
  let here = value;
  for (let hops = 0; hops < 8; hops++) {
    const node = linked(prompt, here);
    if (!node) return Array.isArray(here) ? undefined : here;
    const i = node.inputs;
    here = i.value ?? i.seed ?? i.noise_seed ?? i.int ?? i.float ?? i.number ?? i.text ?? i.string ?? i.string_a ?? i.Text;
    if (here === undefined) return undefined;
  }
  return undefined;
}

const TEXTS = ["text", "text_g", "t5xxl", "clip_l", "text_l", "prompt", "bert", "tags"];

/** The words behind a conditioning, through control nets, areas and the like. */
function textOf(prompt: ApiPrompt, start: unknown): string | undefined {
  for (const node of above(prompt, start, (n, input) => !/^(clip|model|vae|image|control_net|mask|latent|pixels)$/.test(input) && !isText(n))) {
    if (node.class_type === "ConditioningZeroOut") return "";
    if (!isText(node)) continue;
    for (const key of TEXTS) {
      const text = literal(prompt, node.inputs[key]);
      if (typeof text === "string" && text.trim()) return text;
    }
    return "";
  }
  return undefined;
}

/** The guidance that is written into a conditioning. */
function guidanceOf(prompt: ApiPrompt, start: unknown): number | undefined {
  for (const node of above(prompt, start, (n, input) => input === "conditioning" && !isText(n))) {
    const guidance = literal(prompt, node.inputs.guidance);
    if (typeof guidance === "number") return guidance;
  }
  return undefined;
}

function isText(node: ApiNode): boolean {
  return /TextEncode/i.test(node.class_type) || ("clip" in node.inputs && TEXTS.some((key) => key in node.inputs));
}

function modelOf(prompt: ApiPrompt, start: unknown): { model?: string; loras: LoraUse[] } {
  const loras: LoraUse[] = [];
  for (const node of above(prompt, start, (_, input) => input === "model" || input === "model1")) {
    const i = node.inputs;
    if (typeof i.lora_name === "string") {
      const strength = literal(prompt, i.strength_model ?? i.strength ?? 1);
      // The one nearest to the sampler is met first, but was added last.
      loras.unshift({ name: i.lora_name, strength: typeof strength === "number" ? strength : 1 });
    }
    const name = i.ckpt_name ?? i.unet_name;
    if (typeof name === "string") return { model: name, loras };
  }
  return { loras };
}

function latentOf(prompt: ApiPrompt, start: unknown): Partial<CreateValues> {
  const out: Partial<CreateValues> = {};
  let masked = false;
  for (const node of above(prompt, start, (n, input) => !SAMPLERS.has(n.class_type) && !/^(vae|mask|model|clip)$/.test(input))) {
    const i = node.inputs;
    if (node.class_type === "SetLatentNoiseMask" || node.class_type === "VAEEncodeForInpaint") masked = true;
    const size = sizeOf(prompt, i);
    // The size nearest to the sampler counts; a picture further up may have another.
    if (size && out.width === undefined && /Latent|ImageScale/i.test(node.class_type)) Object.assign(out, size);
    const count = literal(prompt, i.batch_size);
    if (/^Empty.*Latent/.test(node.class_type) && typeof count === "number") out.count = count;
    if (/^LoadImage/.test(node.class_type) && typeof i.image === "string") {
      out.image = fromAnnotated(i.image);
      // Only the size of what we scale ourselves is known from here.
      out.imageSize = null;
      if (masked) out.mask = out.image;
      break;
    }
  }
  if (!out.image) {
    out.image = null;
    out.mask = null;
  }
  return out;
}

function sizeOf(prompt: ApiPrompt, inputs: ApiNode["inputs"]): Size | null {
  const width = literal(prompt, inputs.width);
  const height = literal(prompt, inputs.height);
  return typeof width === "number" && typeof height === "number" ? { width, height } : null;
}
