// What a model is at home with: sizes, steps, guidance.
import { recipeOf } from "./detected";
import type { Recipe } from "./recipes";

export type Family = Pick<Recipe, "home" | "steps" | "cfg" | "sampler" | "scheduler">;

export interface Size {
  width: number;
  height: number;
}

export interface SizePreset extends Size {
  id: "square" | "portrait" | "landscape";
  label: string;
}

/** By what the server said of the file, or by its name as long as it has not. */
export function familyOf(model: string): Family {
  return recipeOf(model);
}

/** Checkpoints made for inpainting see the picture without the area and want another encoder node. */
export function madeForAreas(model: string): boolean {
  return /inpaint/i.test(model);
}

export const SIDE_MIN = 64;
export const SIDE_MAX = 2048;
/** Most pixels a picture may have after enlarging. */
export const PIXELS_MAX = 2048 * 2048;

/** The nearest side a latent can have: a multiple of eight within the limits. */
export function snap(side: number, multiple = 8): number {
  if (!Number.isFinite(side)) return 512;
  const snapped = Math.round(side / multiple) * multiple;
  return Math.min(SIDE_MAX, Math.max(Math.max(SIDE_MIN, multiple), snapped));
}

/** Tall and wide shapes a model of that home size still draws well. */
export function sizePresets(home: number): SizePreset[] {
  const [short, long] = home >= 1024 ? [832, 1216] : home >= 768 ? [640, 960] : home >= 512 ? [512, 768] : [home, snap(home * 1.25, 32)];
  return [
    { id: "square", label: "Square", width: home, height: home },
    { id: "portrait", label: "Portrait", width: short, height: long },
    { id: "landscape", label: "Landscape", width: long, height: short },
  ];
}

export function presetOf(size: Size, home: number): SizePreset["id"] | null {
  return sizePresets(home).find((p) => p.width === size.width && p.height === size.height)?.id ?? null;
}

/** The size for reworking a picture: its shape, about as many pixels as the model is used to, never a needless loss. */
export function fitSize(picture: Size, home: number): Size {
  if (picture.width < 1 || picture.height < 1) return { width: home, height: home };
  const pixels = picture.width * picture.height;
  const budget = home * home * 1.5;
  const small = home * home * 0.6;
  let scale = 1;
  if (pixels > budget) scale = Math.sqrt((home * home) / pixels);
  else if (pixels < small) scale = Math.sqrt((home * home) / pixels);
  // The longest side stays within twice the home size: very long strips repeat themselves.
  const longest = Math.max(picture.width, picture.height) * scale;
  if (longest > home * 2) scale *= (home * 2) / longest;
  return { width: snap(picture.width * scale), height: snap(picture.height * scale) };
}

/** The size after enlarging, or null where it would hardly grow. */
export function enlarged(size: Size, factor = 2): Size | null {
  const most = Math.min(SIDE_MAX / Math.max(size.width, size.height), Math.sqrt(PIXELS_MAX / (size.width * size.height)));
  const used = Math.min(factor, most);
  if (!(used >= 1.2)) return null;
  return { width: snap(size.width * used), height: snap(size.height * used) };
}
