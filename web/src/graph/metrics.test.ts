// Where new nodes are put.
import { expect, it } from "vitest";
import { freePlace } from "./metrics";

const box = (x: number, y: number) => ({ x, y, width: 240, height: 100 });

it("puts a node where it was wished if nothing lies there", () => {
  expect(freePlace(box(0, 0), [box(400, 0)])).toEqual({ x: 0, y: 0 });
});

it("never puts one node on another, however many there are", () => {
  const laid = [box(0, 0)];
  for (let i = 0; i < 20; i += 1) {
    const at = freePlace(box(0, 0), laid);
    for (const o of laid) expect(at.x >= o.x + o.width || at.y >= o.y + o.height || o.x >= at.x + 240 || o.y >= at.y + 100).toBe(true);
    laid.push(box(at.x, at.y));
  }
});
