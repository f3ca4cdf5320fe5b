import { expect, test } from "vitest";
import type { Job } from "../api/types";
import { dayKey, dayLabel, groupByDay } from "./days";

const now = new Date(2026, 10, 15, 0, 30);
const job = (id: string, time: number): Job => ({ id, status: "completed", create_time: time }) as Job;

test("a day is the reader's day, not 24 hours", () => {
  const late = new Date(2026, 10, 14, 23, 59).getTime();
  expect(dayKey(late)).toBe("2026-11-14");
  expect(dayLabel(dayKey(late), now)).toBe("Yesterday");
  expect(dayLabel(dayKey(now.getTime()), now)).toBe("Today");
});

test("older days get a weekday, then a date, then a year", () => {
  expect(dayLabel("2026-11-10", now)).toBe("Tuesday");
  expect(dayLabel("2026-11-08", now)).toBe("November 8");
  expect(dayLabel("2025-11-15", now)).toBe("November 15, 2025");
  expect(dayLabel("2026-11-16", now)).toBe("November 16");
});

test("days are newest first, jobs keep their order, jobs without a time come last", () => {
  const jobs = [job("a", now.getTime()), job("x", 0), job("b", now.getTime() - 3_600_000), job("c", now.getTime() - 1)];
  const days = groupByDay(jobs, now);
  expect(days.map((d) => [d.label, d.jobs.map((j) => j.id)])).toEqual([
    ["Today", ["a", "c"]],
    ["Yesterday", ["b"]],
    ["Date unknown", ["x"]],
  ]);
});
