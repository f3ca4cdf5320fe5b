import { expect, it } from "vitest";
import { accepted } from "./DropZone";
import { usedNumber } from "./Field";
import { matching, named } from "./Select";
import { keyMeaning } from "./useCombobox";
import { onStep, sliderRange } from "./Slider";

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

it("uses the number that a field shows once it is left", () => {
  const eights = { min: 64, max: 2048, step: 8, fit: (n: number) => Math.round(n / 8) * 8 };
  expect(["4096", "300", "1", "304", "1e3"].map((text) => usedNumber(text, eights))).toEqual([2048, 304, 64, 304, 1000]);
  expect(usedNumber("10.5", { min: 1, max: 60, step: 1 })).toBe(11);
  expect(usedNumber("0.25", { min: 0, step: 0.05 })).toBe(0.25);
  expect(["", " ", "abc", "-"].map((text) => usedNumber(text, {}))).toEqual([null, null, null, null]);
});

it("lets a slider stand at every value that is used", () => {
  expect(sliderRange(3, 1, 15, 0.1)).toEqual({ min: 1, max: 15, step: 0.1 });
  expect(sliderRange(0.5, 1, 15, 0.1)).toEqual({ min: 0.5, max: 15, step: 0.1 });
  expect(sliderRange(30, 1, 15, 0.1).max).toBe(30);
  expect(sliderRange(0.33, 0.05, 1, 0.05).step).toBe("any");
  expect(onStep(0.4378, 0.05, 0.05)).toBe(0.45);
});

it("walks a list by keys and leaves the others to the field", () => {
  const keys = ["ArrowDown", "ArrowUp", "Enter", "Escape", "Tab", "a"];
  expect(keys.map((key) => keyMeaning(key, { open: true, over: false }))).toEqual([1, -1, "take", "close", null, null]);
  expect(keys.map((key) => keyMeaning(key, { open: false, over: false }))).toEqual(["show", -1, null, null, null, null]);
  expect(keys.map((key) => keyMeaning(key, { open: true, over: true }))).toEqual([1, -1, "take", "close", "close", null]);
});

it("takes a choice that was typed in full", () => {
  expect(
    named(
      [
        { value: "a.safetensors", label: "a" },
        { value: "b", label: "B" },
      ],
      " A ",
    )?.value,
  ).toBe("a.safetensors");
  expect(named(["euler", "euler_a"], "eul")).toBeUndefined();
});
