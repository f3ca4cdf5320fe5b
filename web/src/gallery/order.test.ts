import { expect, test } from "vitest";
import { dropPlace, inOrder, moved, movedTo } from "./order";

const abcd = ["a", "b", "c", "d"];

test("up, down, top and bottom move one job", () => {
  expect(moved(abcd, "c", "up")).toEqual(["a", "c", "b", "d"]);
  expect(moved(abcd, "b", "down")).toEqual(["a", "c", "b", "d"]);
  expect(moved(abcd, "d", "top")).toEqual(["d", "a", "b", "c"]);
  expect(moved(abcd, "a", "bottom")).toEqual(["b", "c", "d", "a"]);
});

test("a move that changes nothing returns the same list", () => {
  expect(moved(abcd, "a", "up")).toBe(abcd);
  expect(moved(abcd, "a", "top")).toBe(abcd);
  expect(moved(abcd, "d", "down")).toBe(abcd);
  expect(moved(abcd, "gone", "up")).toBe(abcd);
});

test("a place counts in the finished list and is kept within it", () => {
  expect(movedTo(abcd, "a", 2)).toEqual(["b", "c", "a", "d"]);
  expect(movedTo(abcd, "d", -4)).toEqual(["d", "a", "b", "c"]);
  expect(movedTo(abcd, "a", 99)).toEqual(["b", "c", "d", "a"]);
});

test("jobs the order does not name follow in their own order", () => {
  expect(inOrder(["x", "a", "y", "b"], ["b", "gone", "a"], (s) => s)).toEqual(["b", "a", "x", "y"]);
});

test("a drop lands above the first row whose middle is below the pointer", () => {
  expect(dropPlace([10, 30, 50], 5)).toBe(0);
  expect(dropPlace([10, 30, 50], 31)).toBe(2);
  expect(dropPlace([10, 30, 50], 90)).toBe(3);
});
