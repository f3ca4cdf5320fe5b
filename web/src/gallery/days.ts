// Groups results by the day on which they were finished, newest day first.
import type { Job } from "../api/types";

export interface Day {
  /** `2026-11-15`, in the reader's time zone; `unknown` where a job has no time. */
  key: string;
  label: string;
  jobs: Job[];
}

function pad(n: number): string {
  return n < 10 ? `0${n}` : String(n);
}

export function dayKey(time: number | undefined): string {
  if (!time) return "unknown";
  const d = new Date(time);
  return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())}`;
}

/** "Today", "Yesterday", a weekday within the last week, else the date. */
export function dayLabel(key: string, now: Date): string {
  if (key === "unknown") return "Date unknown";
  const [y, m, d] = key.split("-").map(Number) as [number, number, number];
  const day = new Date(y, m - 1, d);
  const today = new Date(now.getFullYear(), now.getMonth(), now.getDate());
  // Rounded, because a day is 23 or 25 hours long when the clocks change.
  const ago = Math.round((today.getTime() - day.getTime()) / 86_400_000);
  if (ago === 0) return "Today";
  if (ago === 1) return "Yesterday";
  if (ago > 1 && ago < 7) return day.toLocaleDateString("en", { weekday: "long" });
  const withYear = y !== now.getFullYear();
  return day.toLocaleDateString("en", { day: "numeric", month: "long", ...(withYear ? { year: "numeric" } : {}) });
}

/** When a result was there: the end of its run, or when it was asked for. */
export function timeOf(job: Job): number {
  return job.execution_end_time ?? job.create_time;
}

/** Days newest first; within a day the order of the list is kept. */
export function groupByDay(jobs: readonly Job[], now: Date): Day[] {
  const days = new Map<string, Day>();
  for (const job of jobs) {
    const key = dayKey(timeOf(job));
    let day = days.get(key);
    if (!day) {
      day = { key, label: dayLabel(key, now), jobs: [] };
      days.set(key, day);
    }
    day.jobs.push(job);
  }
  const time = (day: Day) => (day.key === "unknown" ? "" : day.key);
  return [...days.values()].sort((a, b) => (time(a) < time(b) ? 1 : time(a) > time(b) ? -1 : 0));
}
