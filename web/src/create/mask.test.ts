// The painted area, without a browser.
import { describe, expect, it } from "vitest";
import { alphaFromPaint, applyOp, brushFor, brushMax, covered, type MaskContext, type MaskOp, replayed } from "./mask";

const size = { width: 8, height: 8 };

/** Writes down what is drawn. */
function recorder() {
  const log: string[] = [];
  const cx = {
    globalCompositeOperation: "source-over",
    lineCap: "butt",
    lineJoin: "miter",
    lineWidth: 1,
    strokeStyle: "",
    fillStyle: "",
    beginPath: () => undefined,
    moveTo: () => undefined,
    lineTo: (x: number, y: number) => log.push(`line ${x},${y}`),
    stroke() {
      log.push(`${this.globalCompositeOperation} w${this.lineWidth}`);
    },
    arc: (x: number, y: number, r: number) => log.push(`dot ${x},${y} r${r}`),
    fill() {
      log.push(String(this.globalCompositeOperation));
    },
    fillRect() {
      log.push(`rect ${this.globalCompositeOperation}`);
    },
    clearRect: () => log.push("clear"),
  };
  return { cx: cx as unknown as MaskContext, log };
}

describe("strokes", () => {
  it("begin with a dot and go on as lines, erasing cuts out", () => {
    const { cx, log } = recorder();
    const points = [
      { x: 1, y: 1, p: 1 },
      { x: 3, y: 1, p: 0.5 },
    ];
    applyOp(cx, { kind: "stroke", erase: false, size: 4, points }, size);
    applyOp(cx, { kind: "stroke", erase: true, size: 4, points: points.slice(0, 1) }, size);
    applyOp(cx, { kind: "invert" }, size);
    expect(log).toEqual(["dot 1,1 r2", "source-over", "line 3,1", "source-over w2", "dot 1,1 r2", "destination-out", "rect xor"]);
    expect(cx.globalCompositeOperation).toBe("source-over");
  });
});

describe("replayed", () => {
  const stroke: MaskOp = { kind: "stroke", erase: false, size: 1, points: [] };
  it("starts at the last step that covers everything", () => {
    expect(replayed([stroke, { kind: "clear" }, stroke])).toEqual({ ops: [{ kind: "clear" }, stroke], fromStart: false });
    expect(replayed([stroke, { kind: "invert" }])).toEqual({ ops: [stroke, { kind: "invert" }], fromStart: true });
    expect(replayed([])).toEqual({ ops: [], fromStart: true });
  });
});

describe("alphaFromPaint", () => {
  const painted = new Uint8ClampedArray(64 * 4);
  for (let y = 0; y < 8; y++) for (let x = 4; x < 8; x++) painted[(y * 8 + x) * 4 + 3] = 255;

  it("makes painted transparent", () => {
    const alpha = alphaFromPaint(painted, size, 0);
    expect([alpha[3], alpha[7 * 4 + 3]]).toEqual([255, 0]);
    expect(covered(painted)).toBe(0.5);
    expect(covered(new Uint8ClampedArray(0))).toBe(0);
  });

  it("softens the edge only", () => {
    const alpha = alphaFromPaint(painted, size, 1);
    const row = Array.from({ length: 8 }, (_, x) => alpha[(3 * 8 + x) * 4 + 3]!);
    expect(row[0]).toBe(255);
    expect(row[7]).toBe(0);
    expect([...row].sort((a, b) => b - a)).toEqual(row);
    expect(row[3]).toBeGreaterThan(row[4]!);
    expect(row[3]).toBeLessThan(255);
  });
});

it("offers brushes that fit the picture", () => {
  expect(brushFor({ width: 512, height: 256 })).toBe(26);
  expect(brushMax({ width: 512, height: 256 })).toBe(128);
  expect(brushFor({ width: 8, height: 8 })).toBe(4);
});
