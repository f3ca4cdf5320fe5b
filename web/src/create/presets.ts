// Named sets of values: three that come with the page, and the user's own, kept on the server.
import { userdata } from "../api/client";
import { familyOf } from "./family";
import type { CreateValues } from "./values";

export type PresetValues = Partial<Pick<CreateValues, "negative" | "model" | "width" | "height" | "steps" | "cfg" | "sampler" | "scheduler" | "loras">>;

export interface Preset {
  name: string;
  values: PresetValues;
}

export const PRESET_FILE = "fresco/presets.json";
const KEYS = ["negative", "model", "width", "height", "steps", "cfg", "sampler", "scheduler", "loras"] as const;
export const BUILT_IN = ["Quick", "Balanced", "Detailed"] as const;

/** What the built-in presets mean for a model: fewer or more steps than it is used to. */
export function builtIn(name: (typeof BUILT_IN)[number], model: string): PresetValues {
  const family = familyOf(model);
  const { sampler, scheduler, cfg } = family;
  // Distilled models draw in a handful of steps; more only spoil their pictures.
  const few = family.steps < 12;
  if (name === "Quick")
    return few
      ? { steps: Math.max(2, family.steps - 2), sampler, scheduler, cfg }
      : { steps: Math.round(family.steps / 2), sampler: "dpmpp_2m", scheduler: "karras", cfg };
  if (name === "Detailed")
    return few ? { steps: family.steps + 4, sampler, scheduler, cfg } : { steps: family.steps * 2, sampler: "dpmpp_2m", scheduler: "karras", cfg };
  return { steps: family.steps, sampler, scheduler, cfg };
}

export function presetFrom(name: string, v: CreateValues): Preset {
  const values: PresetValues = {};
  for (const key of KEYS) (values as Record<string, unknown>)[key] = v[key];
  return { name, values };
}

/** Whether the form stands as the preset says. */
export function matches(preset: PresetValues, v: CreateValues): boolean {
  return KEYS.every((key) => preset[key] === undefined || JSON.stringify(preset[key]) === JSON.stringify(v[key]));
}

/** Takes a preset in; a model that is no longer there leaves the current one. */
export function applied(v: CreateValues, preset: PresetValues, models: string[]): CreateValues {
  const next = { ...v, ...preset };
  if (!models.includes(next.model)) next.model = v.model;
  return next;
}

/** The user's list, without what is not readable. */
export function presetsIn(found: unknown): Preset[] {
  const list = (found as { presets?: unknown } | null)?.presets;
  if (!Array.isArray(list)) return [];
  return list.flatMap((p: unknown) => {
    const { name, values } = (p ?? {}) as { name?: unknown; values?: unknown };
    if (typeof name !== "string" || !name.trim() || typeof values !== "object" || values === null) return [];
    const kept: PresetValues = {};
    for (const key of KEYS) {
      const value = (values as Record<string, unknown>)[key];
      const fits =
        key === "loras"
          ? Array.isArray(value)
          : ["negative", "model", "sampler", "scheduler"].includes(key)
            ? typeof value === "string"
            : typeof value === "number" && Number.isFinite(value);
      if (fits) (kept as Record<string, unknown>)[key] = value;
    }
    return [{ name, values: kept }];
  });
}

/** One of that name is replaced, others keep their place. */
export function withPreset(list: Preset[], preset: Preset): Preset[] {
  return list.some((p) => p.name === preset.name) ? list.map((p) => (p.name === preset.name ? preset : p)) : [...list, preset];
}

export async function loadPresets(): Promise<Preset[]> {
  return presetsIn(await userdata.read(PRESET_FILE));
}

export async function savePresets(presets: Preset[]): Promise<void> {
  await userdata.write(PRESET_FILE, { version: 1, presets });
}
