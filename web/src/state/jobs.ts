// The order in which jobs are listed.
import type { Job } from "../api/types";

/** In progress, then waiting in the order they will run, then finished with the newest first; each once. */
export function orderJobs(active: Job[], finished: Job[], order: string[]): Job[] {
  const ended = new Set(finished.map((j) => j.id));
  const rank = new Map(order.map((id, i) => [id, i]));
  const left = active.filter((j) => !ended.has(j.id));
  const place = (j: Job) => rank.get(j.id) ?? Number.MAX_SAFE_INTEGER;
  const waiting = left
    .filter((j) => j.status === "pending")
    .sort((a, b) => place(a) - place(b) || (a.priority ?? 0) - (b.priority ?? 0) || a.create_time - b.create_time);
  const when = (j: Job) => j.execution_end_time ?? j.create_time;
  return [...left.filter((j) => j.status === "in_progress"), ...waiting, ...[...finished].sort((a, b) => when(b) - when(a))];
}
