import { expect, test } from "vitest";
import type { Job } from "../api/types";
import { active, dayRange, type Filters, filtered, matches, needsPrompts, NO_FILTERS, parseSearch, readFilters } from "./filter";

const now = new Date(2026, 10, 15, 12);
const at = (day: number) => new Date(2026, 10, day, 9).getTime();
const jobs = [
  { id: "wait", status: "pending", create_time: at(15) },
  { id: "cat", status: "completed", create_time: at(15) },
  { id: "dog", status: "failed", create_time: at(12) },
  { id: "old", status: "completed", create_time: at(1) },
  { id: "stopped", status: "cancelled", create_time: at(1) },
] as Job[];
const known = (id: string) => ({ cat: { haystack: "a sleepy red cat", model: "a.safetensors" }, dog: { haystack: "a red dog", model: "b.safetensors" } })[id];
const ids = (change: Partial<Filters>, favourite = (_: string) => false) =>
  filtered(jobs, { ...NO_FILTERS, ...change }, known, favourite, now).map((j) => j.id);

test("a search has words, phrases and words that must be absent", () => {
  expect(parseSearch('Red "sleepy cat" -dog -"big tree" - ')).toEqual({ wanted: ["red", "sleepy cat"], unwanted: ["dog", "big tree"] });
  expect(parseSearch('"open phrase')).toEqual({ wanted: ["open phrase"], unwanted: [] });
  expect(matches(parseSearch("cat red"), "a red cat")).toBe(true);
  expect(matches(parseSearch('"cat red"'), "a red cat")).toBe(false);
  expect(matches(parseSearch("red -cat"), "a red cat")).toBe(false);
});

test("without filters all finished jobs stay, cancelled ones only when asked for, waiting ones never", () => {
  expect(ids({})).toEqual(["cat", "dog", "old"]);
  expect(ids({ status: "all" })).toEqual(["cat", "dog", "old", "stopped"]);
  expect(ids({ status: "cancelled" })).toEqual(["stopped"]);
});

test("each filter narrows", () => {
  expect(ids({ text: "red" })).toEqual(["cat", "dog"]);
  expect(ids({ text: "red", status: "failed" })).toEqual(["dog"]);
  expect(ids({ model: "a.safetensors" })).toEqual(["cat"]);
  expect(ids({ when: "today" })).toEqual(["cat"]);
  expect(ids({ when: "week" })).toEqual(["cat", "dog"]);
  expect(ids({ when: "between", from: "2026-11-12", to: "2026-11-02" })).toEqual(["dog"]);
  expect(ids({ when: "between", to: "2026-11-01" })).toEqual(["old"]);
  expect(ids({ favourites: true }, (id) => id === "old")).toEqual(["old"]);
});

test("days count from midnight", () => {
  expect(dayRange({ ...NO_FILTERS, when: "week" }, now)).toEqual(["2026-11-09", ""]);
  expect(dayRange({ ...NO_FILTERS, when: "month" }, now)).toEqual(["2026-10-17", ""]);
});

test("only text and model need the prompts", () => {
  expect(needsPrompts({ ...NO_FILTERS, status: "failed" })).toBe(false);
  expect(needsPrompts({ ...NO_FILTERS, text: "  " })).toBe(false);
  expect(active({ ...NO_FILTERS, status: "failed" })).toBe(true);
  expect(active(NO_FILTERS)).toBe(false);
});

test("stored filters that make no sense are left out", () => {
  expect(readFilters({ text: "a", status: "odd", when: "week", favourites: 1 })).toEqual({ ...NO_FILTERS, text: "a", when: "week" });
  expect(readFilters(null)).toEqual(NO_FILTERS);
});
