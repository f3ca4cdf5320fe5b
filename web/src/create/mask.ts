// The painted area as a list of what was done, so that every step can be taken back, and its way into a picture's alpha.
import type { Size } from "./family";

export interface Point {
  x: number;
  y: number;
  /** Pen pressure, 1 for everything else. */
  p: number;
}

export type MaskOp = { kind: "stroke"; erase: boolean; size: number; points: Point[] } | { kind: "clear" } | { kind: "fill" } | { kind: "invert" };

/** What painting needs of a canvas; a test gives it less than a browser does. */
export type MaskContext = Pick<
  CanvasRenderingContext2D,
  | "globalCompositeOperation"
  | "lineCap"
  | "lineJoin"
  | "lineWidth"
  | "strokeStyle"
  | "fillStyle"
  | "beginPath"
  | "moveTo"
  | "lineTo"
  | "stroke"
  | "arc"
  | "fill"
  | "fillRect"
  | "clearRect"
>;

const PAINT = "#000";

/** Does one thing to the mask; painted is opaque. */
export function applyOp(cx: MaskContext, op: MaskOp, size: Size): void {
  cx.fillStyle = PAINT;
  cx.strokeStyle = PAINT;
  switch (op.kind) {
    case "clear":
      cx.clearRect(0, 0, size.width, size.height);
      return;
    case "fill":
      cx.globalCompositeOperation = "source-over";
      cx.fillRect(0, 0, size.width, size.height);
      return;
    case "invert":
      // Painted over what is there with "xor", only the rest stays.
      cx.globalCompositeOperation = "xor";
      cx.fillRect(0, 0, size.width, size.height);
      cx.globalCompositeOperation = "source-over";
      return;
    case "stroke":
      cx.globalCompositeOperation = op.erase ? "destination-out" : "source-over";
      drawStroke(cx, op.points, op.size);
      cx.globalCompositeOperation = "source-over";
  }
}

/** The pieces of a stroke from `from` on, so that a growing one is drawn only once. */
export function drawStroke(cx: MaskContext, points: Point[], size: number, from = 0): void {
  cx.lineCap = "round";
  cx.lineJoin = "round";
  for (let i = from; i < points.length; i++) {
    const here = points[i];
    const last = points[i - 1];
    if (!here) continue;
    if (!last) {
      cx.beginPath();
      cx.arc(here.x, here.y, Math.max(0.5, (size * here.p) / 2), 0, Math.PI * 2);
      cx.fill();
      continue;
    }
    cx.beginPath();
    cx.lineWidth = Math.max(1, size * here.p);
    cx.moveTo(last.x, last.y);
    cx.lineTo(here.x, here.y);
    cx.stroke();
  }
}

/** What must be replayed: nothing before the last step that covers everything. Clearing starts from nothing. */
export function replayed(ops: MaskOp[]): { ops: MaskOp[]; fromStart: boolean } {
  for (let i = ops.length - 1; i >= 0; i--) {
    const kind = ops[i]?.kind;
    if (kind === "clear" || kind === "fill") return { ops: ops.slice(i), fromStart: false };
  }
  return { ops, fromStart: true };
}

/** A sensible brush for a picture: about a tenth of its shorter side. */
export function brushFor(size: Size): number {
  return Math.max(4, Math.round(Math.min(size.width, size.height) / 10));
}

export const BRUSH_MIN = 2;
export function brushMax(size: Size): number {
  return Math.max(16, Math.round(Math.min(size.width, size.height) / 2));
}

/** Share of the picture that is painted, 0 to 1, from the alpha of RGBA pixels. */
export function covered(rgba: Uint8ClampedArray): number {
  let painted = 0;
  for (let i = 3; i < rgba.length; i += 4) if ((rgba[i] ?? 0) > 127) painted++;
  return rgba.length === 0 ? 0 : painted / (rgba.length / 4);
}

/** Turns "painted is opaque" into the alpha a start picture carries: painted is transparent, with a soft edge so that no
 *  seam shows. A box blur twice over is close enough to a round one. */
export function alphaFromPaint(rgba: Uint8ClampedArray, size: Size, soft: number): Uint8ClampedArray<ArrayBuffer> {
  const { width, height } = size;
  let plane = new Float32Array(width * height);
  for (let i = 0; i < plane.length; i++) plane[i] = 255 - (rgba[i * 4 + 3] ?? 0);
  for (let pass = 0; pass < 2 && soft >= 1; pass++) {
    plane = blurred(plane, width, height, 1, width, Math.round(soft));
    plane = blurred(plane, height, width, width, 1, Math.round(soft));
  }
  const out = new Uint8ClampedArray(width * height * 4);
  for (let i = 0; i < plane.length; i++) out[i * 4 + 3] = plane[i] ?? 0;
  return out;
}

/** The mean over `radius` neighbours on both sides along one direction; edges repeat. */
function blurred(plane: Float32Array, length: number, lines: number, step: number, lineStep: number, radius: number): Float32Array<ArrayBuffer> {
  const out = new Float32Array(plane.length);
  const n = radius * 2 + 1;
  for (let line = 0; line < lines; line++) {
    const start = line * lineStep;
    const at = (i: number) => plane[start + Math.min(length - 1, Math.max(0, i)) * step] ?? 0;
    let sum = 0;
    for (let i = -radius; i <= radius; i++) sum += at(i);
    for (let i = 0; i < length; i++) {
      out[start + i * step] = sum / n;
      sum += at(i + radius + 1) - at(i - radius);
    }
  }
  return out;
}

/** The edge's softness for a picture of that size, in pixels. */
export function softFor(size: Size): number {
  return Math.max(1, Math.round(Math.min(size.width, size.height) / 128));
}
