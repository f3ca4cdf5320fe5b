// Numbers as a widget takes them: in range, rounded as the class asks.
import type { InputSpec } from "./schema";

const num = (v: unknown): number | undefined => (typeof v === "number" && Number.isFinite(v) ? v : undefined);

/** Digits after the point that a step needs. */
function digits(step: number): number {
  const text = String(step);
  if (text.includes("e-")) return Number(text.split("e-")[1]);
  return text.split(".")[1]?.length ?? 0;
}

/** How far one press of an arrow goes. */
export function stepOf(spec: InputSpec): number {
  const step = num(spec.options.step);
  if (spec.kind === "int") return Math.max(1, Math.round(step ?? 1));
  return step && step > 0 ? step : 0.1;
}

/** The nearest number the widget takes; undefined where the text is none. */
export function takeNumber(spec: InputSpec, text: string): number | undefined {
  const trimmed = text.trim().replace(",", ".");
  if (trimmed === "") return undefined;
  let n = Number(trimmed);
  if (!Number.isFinite(n)) return undefined;
  if (spec.kind === "int") {
    // Where a class counts in steps (sizes in eights), what lies between would run as something else than is shown.
    const step = stepOf(spec);
    const start = (num(spec.options.min) ?? 0) % step;
    n = Math.round((n - start) / step) * step + start;
  } else {
    const round = num(spec.options.round);
    if (round && round > 0) n = Number((Math.round(n / round) * round).toFixed(digits(round)));
  }
  const [low, high] = [num(spec.options.min), num(spec.options.max)];
  if (low !== undefined) n = Math.max(low, n);
  if (high !== undefined) n = Math.min(high, n);
  return n;
}

/** The number some steps further. */
export function stepped(spec: InputSpec, value: unknown, steps: number): number {
  const step = stepOf(spec);
  const next = (Number(value) || 0) + steps * step;
  return takeNumber(spec, spec.kind === "int" ? String(next) : next.toFixed(Math.min(12, Math.max(digits(step), digits(Number(value) || 0))))) ?? 0;
}
