// Search and filters over results: which jobs stay in the grid.
import type { Job } from "../api/types";
import { dayKey, timeOf } from "./days";

export interface Filters {
  text: string;
  /** "results" is all but the cancelled, which left nothing to look at. */
  status: "results" | "all" | "completed" | "failed" | "cancelled";
  /** A model's name, or "" for any. */
  model: string;
  when: "any" | "today" | "week" | "month" | "between";
  /** First and last day as `2026-11-15`, used with "between"; "" leaves that end open. */
  from: string;
  to: string;
  favourites: boolean;
}

export const NO_FILTERS: Filters = { text: "", status: "results", model: "", when: "any", from: "", to: "", favourites: false };

/** What is known about a job beyond the list: read from its prompt. */
export interface Known {
  haystack: string;
  model: string;
}

export interface Search {
  wanted: string[];
  unwanted: string[];
}

/** Words, "whole phrases" and -words; all must match, in any order, whatever the case. */
export function parseSearch(text: string): Search {
  const search: Search = { wanted: [], unwanted: [] };
  for (const [, minus, phrase, word] of text.toLowerCase().matchAll(/(-?)(?:"([^"]*)"?|(\S+))/g)) {
    const part = (phrase ?? word ?? "").trim();
    if (part !== "" && part !== "-") (minus ? search.unwanted : search.wanted).push(part);
  }
  return search;
}

export function matches(search: Search, haystack: string): boolean {
  return search.wanted.every((w) => haystack.includes(w)) && !search.unwanted.some((w) => haystack.includes(w));
}

/** Whether deciding needs more than the list of jobs. */
export function needsPrompts(filters: Filters): boolean {
  return filters.text.trim() !== "" || filters.model !== "";
}

export function active(filters: Filters): boolean {
  return needsPrompts(filters) || filters.status !== NO_FILTERS.status || filters.when !== "any" || filters.favourites;
}

function daysAgo(now: Date, days: number): string {
  return dayKey(new Date(now.getFullYear(), now.getMonth(), now.getDate() - days).getTime());
}

/** First and last day that are let through. */
export function dayRange(filters: Filters, now: Date): [string, string] {
  switch (filters.when) {
    case "today":
      return [daysAgo(now, 0), ""];
    case "week":
      return [daysAgo(now, 6), ""];
    case "month":
      return [daysAgo(now, 29), ""];
    case "between":
      return filters.from && filters.to && filters.from > filters.to ? [filters.to, filters.from] : [filters.from, filters.to];
    default:
      return ["", ""];
  }
}

/** Finished jobs that pass. A job whose prompt is not known yet does not pass where the prompt matters. */
export function filtered(
  jobs: readonly Job[],
  filters: Filters,
  known: (id: string) => Known | undefined,
  favourite: (id: string) => boolean,
  now: Date,
): Job[] {
  const search = parseSearch(filters.text);
  const deep = needsPrompts(filters);
  const [from, to] = dayRange(filters, now);
  return jobs.filter((job) => {
    if (job.status === "pending" || job.status === "in_progress") return false;
    if (filters.status === "results" ? job.status === "cancelled" : filters.status !== "all" && job.status !== filters.status) return false;
    if (filters.favourites && !favourite(job.id)) return false;
    if (from || to) {
      const day = dayKey(timeOf(job));
      if (day === "unknown" || (from && day < from) || (to && day > to)) return false;
    }
    if (!deep) return true;
    const about = known(job.id);
    return about !== undefined && (filters.model === "" || about.model === filters.model) && matches(search, about.haystack);
  });
}

const CHOICES: { [K in "status" | "when"]: readonly Filters[K][] } = {
  status: ["results", "all", "completed", "failed", "cancelled"],
  when: ["any", "today", "week", "month", "between"],
};

/** Filters out of storage; whatever is odd is left out. */
export function readFilters(stored: unknown): Filters {
  const from = (typeof stored === "object" && stored !== null ? stored : {}) as Record<string, unknown>;
  const text = (key: string) => (typeof from[key] === "string" ? (from[key] as string) : "");
  const choice = <K extends "status" | "when">(key: K): Filters[K] =>
    (CHOICES[key] as readonly string[]).includes(text(key)) ? (text(key) as Filters[K]) : NO_FILTERS[key];
  return {
    text: text("text"),
    status: choice("status"),
    model: text("model"),
    when: choice("when"),
    from: text("from"),
    to: text("to"),
    favourites: from.favourites === true,
  };
}
