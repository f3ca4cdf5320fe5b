import { expect, it } from "vitest";
import { accepted } from "./DropZone";
import { matching } from "./Select";

it("takes files by ending, kind and family", () => {
  const file = (name: string, type: string) => ({ name, type });
  expect(accepted(file("a.PNG", "image/png"), "image/*")).toBe(true);
  expect(accepted(file("a.json", ""), ".json,image/png")).toBe(true);
  expect(accepted(file("a.txt", "text/plain"), ".json,image/png")).toBe(false);
});

it("finds choices by all the words typed, in any order", () => {
  const options = ["sd15-pruned.safetensors", "sdxl-base.safetensors"];
  expect(matching(options, "base sd").map((o) => o.value)).toEqual(["sdxl-base.safetensors"]);
  expect(matching([{ value: "a", label: "Alpha" }], "").length).toBe(1);
  expect(matching(options, "flux")).toEqual([]);
});
