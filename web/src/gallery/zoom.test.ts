import { expect, test } from "vitest";
import { FIT, actualSize, fitted, kept, MOST, zoomed } from "./zoom";

const frame = { width: 400, height: 200 };
const picture = { width: 1000, height: 1000 };

test("a picture fits its frame", () => {
  expect(fitted(frame, picture)).toEqual({ width: 200, height: 200 });
  expect(fitted(frame, { width: 0, height: 0 })).toEqual({ width: 0, height: 0 });
  expect(actualSize(frame, picture)).toBe(5);
});

test("zooming keeps the point under the pointer", () => {
  const view = zoomed(FIT, 4, { x: 50, y: 20 }, frame, picture);
  expect(view.scale).toBe(4);
  // The picture's point at (50, 20) is still at (50, 20).
  expect(view.x + 4 * 50).toBe(50);
  expect(view.y + 4 * 20).toBe(20);
});

test("the picture cannot leave the frame or shrink below it", () => {
  expect(kept({ scale: 0.2, x: 90, y: 90 }, frame, picture)).toEqual(FIT);
  expect(kept({ scale: 2, x: 500, y: -500 }, frame, picture)).toEqual({ scale: 2, x: 0, y: -100 });
  expect(zoomed(FIT, 1000, { x: 0, y: 0 }, frame, picture).scale).toBe(MOST);
});
