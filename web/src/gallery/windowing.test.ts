import { expect, test } from "vitest";
import { layOut, neighbour, place, visible } from "./windowing";

const sizes = { width: 320, tile: 100, gap: 10, caption: 40, heading: 30 };

test("columns fill the width", () => {
  const layout = layOut([4, 1], sizes);
  expect(layout.columns).toBe(3);
  expect(layout.size).toBe(100);
  expect(layout.row).toBe(150);
  expect(layout.days.map((d) => [d.top, d.height])).toEqual([
    [0, 330],
    [330, 180],
  ]);
  expect(layout.height).toBe(510);
  expect(layOut([1], { ...sizes, width: 50 }).columns).toBe(1);
});

test("only rows near the window are drawn", () => {
  const layout = layOut([3000, 3000], sizes);
  const seen = visible(layout, 30, 30 + 150 * 10, 30 + 150 * 12);
  expect(seen).toEqual([{ day: 0, from: 30, to: 36 }]);
  const edge = visible(layout, 30, 150_030 - 10, 150_030 + 100);
  expect(edge).toEqual([
    { day: 0, from: 2997, to: 3000 },
    { day: 1, from: 0, to: 3 },
  ]);
});

test("tiles lie in rows", () => {
  const layout = layOut([9], sizes);
  expect(place(layout, 4, 10)).toEqual({ left: 110, top: 150 });
});

test("arrow keys move by column and cross days", () => {
  const layout = layOut([5, 2], sizes);
  expect(neighbour(layout, 0, "ArrowRight")).toBe(1);
  expect(neighbour(layout, 0, "ArrowLeft")).toBe(0);
  expect(neighbour(layout, 1, "ArrowDown")).toBe(4);
  expect(neighbour(layout, 2, "ArrowDown")).toBe(4);
  expect(neighbour(layout, 4, "ArrowDown")).toBe(6);
  expect(neighbour(layout, 6, "ArrowUp")).toBe(4);
  expect(neighbour(layout, 5, "ArrowUp")).toBe(3);
  expect(neighbour(layout, 6, "ArrowDown")).toBe(6);
  expect(neighbour(layout, 3, "End")).toBe(6);
  expect(neighbour(layout, 3, "Home")).toBe(0);
});
