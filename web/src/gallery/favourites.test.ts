import { expect, test } from "vitest";
import { changed, readFavourites } from "./favourites";

test("a stored file gives its ids once, an odd one none", () => {
  expect(readFavourites({ version: 1, jobs: ["a", "b", "a", 3] })).toEqual(["a", "b"]);
  for (const odd of [null, [], "x", { jobs: "a" }]) expect(readFavourites(odd)).toEqual([]);
});

test("ids are added and removed once", () => {
  expect(changed(["a", "b"], ["b", "c", "c"], true)).toEqual(["a", "b", "c"]);
  expect(changed(["a", "b"], ["b", "z"], false)).toEqual(["a"]);
});
