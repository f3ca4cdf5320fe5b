// What the Create page asks for: the values of the form, their defaults, and how they follow a change of model.
import type { FileRef } from "../api/types";
import { familyOf, fitSize, type Size } from "./family";

export { valuesFrom } from "./read";

export interface LoraUse {
  name: string;
  strength: number;
}

export interface CreateValues {
  prompt: string;
  negative: string;
  model: string;
  width: number;
  height: number;
  steps: number;
  cfg: number;
  seed: number;
  /** A locked seed is kept; otherwise every press draws a new one. */
  seedLocked: boolean;
  sampler: string;
  scheduler: string;
  loras: LoraUse[];
  /** How many pictures one press makes. */
  count: number;
  /** The picture to start from, if any, and its size. */
  image: FileRef | null;
  imageSize: Size | null;
  /** The start picture with the area to change cut out (transparent). */
  mask: FileRef | null;
  /** How much of the start picture may change, 0 to 1. */
  denoise: number;
  /** False where the start picture is only brought to the size, without a model and its words. */
  redraw: boolean;
}

export type Mode = "text" | "image" | "area";

export const COUNT_MAX = 16;
export const STEPS_MAX = 150;
/** Seeds people can read to each other; the sampler would take 64 bits. */
export const SEED_MAX = 4_294_967_295;
export const CHANGE_PICTURE = 0.6;
export const CHANGE_AREA = 0.9;

export function modeOf(v: Pick<CreateValues, "image" | "mask">): Mode {
  if (!v.image) return "text";
  return v.mask ? "area" : "image";
}

export function defaultValues(model = ""): CreateValues {
  const family = familyOf(model);
  return {
    prompt: "",
    negative: "",
    model,
    width: family.home,
    height: family.home,
    steps: family.steps,
    cfg: family.cfg,
    seed: 0,
    seedLocked: false,
    sampler: family.sampler,
    scheduler: family.scheduler,
    loras: [],
    count: 1,
    image: null,
    imageSize: null,
    mask: null,
    denoise: CHANGE_PICTURE,
    redraw: true,
  };
}

/** Another model: what the user never touched moves to the new model's habits, what was chosen stays. Sizes always move
 *  between models of different home sizes, because the old ones draw badly there. */
export function withModel(v: CreateValues, model: string): CreateValues {
  if (model === v.model) return v;
  const before = familyOf(v.model);
  const after = familyOf(model);
  const next = { ...v, model };
  if (before.home !== after.home || !v.model) {
    const size = v.imageSize ? fitSize(v.imageSize, after.home) : scaledSize(v, before.home, after.home);
    next.width = size.width;
    next.height = size.height;
  }
  if (v.cfg === before.cfg) next.cfg = after.cfg;
  if (v.steps === before.steps) next.steps = after.steps;
  if (v.sampler === before.sampler) next.sampler = after.sampler;
  if (v.scheduler === before.scheduler) next.scheduler = after.scheduler;
  return next;
}

function scaledSize(v: Size, before: number, after: number): Size {
  if (v.width === before && v.height === before) return { width: after, height: after };
  return fitSize(v, after);
}

/** A start picture: the result takes its shape. */
export function withImage(v: CreateValues, image: FileRef, size: Size): CreateValues {
  return { ...v, image, imageSize: size, mask: null, denoise: v.image ? v.denoise : CHANGE_PICTURE, ...fitSize(size, familyOf(v.model).home) };
}

export function withoutImage(v: CreateValues): CreateValues {
  const home = familyOf(v.model).home;
  return { ...v, image: null, imageSize: null, mask: null, width: home, height: home };
}

/** The form as it was before a picture was taken to start from; what else was changed since stays. */
export function withoutStart(v: CreateValues, before: CreateValues): CreateValues {
  const { prompt, image, imageSize, mask, denoise, width, height } = before;
  return { ...v, prompt, image, imageSize, mask, denoise, width, height };
}

export function withMask(v: CreateValues, mask: FileRef | null): CreateValues {
  const before = v.mask ? CHANGE_AREA : CHANGE_PICTURE;
  const after = mask ? CHANGE_AREA : CHANGE_PICTURE;
  return { ...v, mask, denoise: v.denoise === before ? after : v.denoise };
}

export function rollSeed(random: () => number = Math.random): number {
  return Math.floor(random() * (SEED_MAX + 1));
}

/** The seeds of one press: the given one and its followers, each picture its own. */
export function seedsFor(first: number, count: number): number[] {
  return Array.from({ length: Math.min(COUNT_MAX, Math.max(1, Math.floor(count))) }, (_, i) => first + i);
}

/** Values from storage or from another page, brought to something the form can show. */
export function cleaned(found: unknown): CreateValues {
  const base = defaultValues();
  if (typeof found !== "object" || found === null) return base;
  const f = found as Record<string, unknown>;
  const number = (key: keyof CreateValues, min: number, max: number) => {
    const x = f[key];
    return typeof x === "number" && Number.isFinite(x) ? Math.min(max, Math.max(min, x)) : (base[key] as number);
  };
  const text = (key: keyof CreateValues) => (typeof f[key] === "string" ? (f[key] as string) : (base[key] as string));
  const image = file(f.image);
  return {
    prompt: text("prompt"),
    negative: text("negative"),
    model: text("model"),
    width: number("width", 16, 16384),
    height: number("height", 16, 16384),
    steps: Math.round(number("steps", 1, 10000)),
    cfg: number("cfg", 0, 100),
    seed: Math.round(number("seed", 0, Number.MAX_SAFE_INTEGER)),
    seedLocked: f.seedLocked === true,
    sampler: text("sampler"),
    scheduler: text("scheduler"),
    loras: loras(f.loras),
    count: Math.round(number("count", 1, COUNT_MAX)),
    image,
    imageSize: image ? size(f.imageSize) : null,
    mask: image ? file(f.mask) : null,
    denoise: number("denoise", 0, 1),
    redraw: !image || f.redraw !== false,
  };
}

function file(x: unknown): FileRef | null {
  if (typeof x !== "object" || x === null) return null;
  const f = x as Partial<FileRef>;
  if (typeof f.filename !== "string" || !f.filename) return null;
  const type = f.type === "output" || f.type === "temp" ? f.type : "input";
  return { filename: f.filename, subfolder: typeof f.subfolder === "string" ? f.subfolder : "", type };
}

function size(x: unknown): Size | null {
  if (typeof x !== "object" || x === null) return null;
  const s = x as Partial<Size>;
  return typeof s.width === "number" && typeof s.height === "number" ? { width: s.width, height: s.height } : null;
}

function loras(x: unknown): LoraUse[] {
  if (!Array.isArray(x)) return [];
  return x.flatMap((l: unknown) => {
    const use = l as Partial<LoraUse> | null;
    return use && typeof use.name === "string" && typeof use.strength === "number" ? [{ name: use.name, strength: use.strength }] : [];
  });
}
