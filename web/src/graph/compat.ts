// Which types connect, and the colour of each type's links.
import type { ClassSpec, InputSpec } from "./schema";
import { autogrow, slotType } from "./schema";

const any = (type: string): boolean => type === "*" || type === "" || type.startsWith("COMFY_MATCHTYPE") || type === "COMFY_AUTOGROW_V3";

/** Whether an output of type `from` may feed an input of type `to`. Both may be unions written with commas. */
export function fits(from: string, to: string): boolean {
  if (any(from) || any(to)) return true;
  const wanted = new Set(
    to
      .toLowerCase()
      .split(",")
      .map((t) => t.trim()),
  );
  return (
    from
      .toLowerCase()
      .split(",")
      .some((t) => any(t.trim()) || wanted.has(t.trim())) || wanted.has("*")
  );
}

/** The first input of a class that an output of this type can feed; sockets before widgets. */
export function firstInput(spec: ClassSpec, from: string): string | null {
  const named = (i: InputSpec): string => (i.role === "autogrow" ? `${i.name}.${autogrow(i).names[0] ?? ""}` : i.name);
  const typed = (i: InputSpec): string => (i.role === "autogrow" ? autogrow(i).spec.type : slotType(i));
  const can = spec.inputs.filter((i) => i.role !== "button" && i.role !== "display" && !i.options.socketless && fits(from, typed(i)));
  const exact = can.filter((i) => typed(i).toLowerCase() === from.toLowerCase());
  const best = [...exact, ...can];
  const socket = best.find((i) => i.role === "socket" || i.role === "forced" || i.role === "autogrow");
  const chosen = socket ?? best[0];
  return chosen ? named(chosen) : null;
}

/** The first output of a class that can feed an input of this type. */
export function firstOutput(spec: ClassSpec, to: string): number {
  const exact = spec.outputs.findIndex((o) => o.type.toLowerCase() === to.toLowerCase());
  return exact >= 0 ? exact : spec.outputs.findIndex((o) => fits(o.type, to));
}

/** Hues chosen to be told apart; unlisted types get one from their name. */
const HUES: Record<string, number> = {
  MODEL: 262,
  CLIP: 48,
  VAE: 352,
  CONDITIONING: 28,
  LATENT: 312,
  IMAGE: 208,
  MASK: 130,
  CONTROL_NET: 165,
  INT: 190,
  FLOAT: 90,
  STRING: 230,
  BOOLEAN: 8,
  COMBO: 75,
  SIGMAS: 150,
  SAMPLER: 285,
  NOISE: 20,
  GUIDER: 200,
  VIDEO: 240,
  AUDIO: 340,
  UPSCALE_MODEL: 180,
  CLIP_VISION: 60,
  STYLE_MODEL: 110,
  CLIP_VISION_OUTPUT: 40,
};

export function typeHue(type: string): number | null {
  const first = type.split(",")[0]?.trim().toUpperCase() ?? "";
  if (any(first)) return null;
  const known = HUES[first];
  if (known !== undefined) return known;
  let hash = 0;
  for (const c of first) hash = (hash * 31 + (c.codePointAt(0) ?? 0)) % 360;
  return hash;
}

/** A colour that is readable on the light and the dark canvas. */
export function typeColour(type: string): string {
  const hue = typeHue(type);
  return hue === null ? "hsl(0 0% 55%)" : `hsl(${hue} 62% 52%)`;
}

/** How a type is named on the page. */
export function typeName(type: string): string {
  if (any(type)) return "any";
  return type
    .split(",")
    .map((t) => t.trim().toLowerCase().replaceAll("_", " "))
    .join(" or ");
}
