// The queue's wishes to the server: shown at once, taken back where the server refuses.
import { sendJson } from "../api/client";
import type { Job } from "../api/types";
import { type LiveState, useLive } from "../state/live";
import { toast } from "../ui";
import { inOrder } from "./order";

/** How many jobs run or wait; for the badge in the navigation. */
export function queueCount(state: Pick<LiveState, "jobs">): number {
  return state.jobs.reduce((n, job) => n + (job.status === "pending" || job.status === "in_progress" ? 1 : 0), 0);
}

export function waiting(jobs: readonly Job[]): Job[] {
  return jobs.filter((job) => job.status === "pending");
}

/** Pending jobs in the new order, all others where they were. */
export function reordered(jobs: readonly Job[], order: readonly string[]): Job[] {
  const next = inOrder(waiting(jobs), order, (job) => job.id);
  let at = 0;
  return jobs.map((job) => (job.status === "pending" ? (next[at++] as Job) : job));
}

/** Makes the change on the page, sends it, and puts the old state back if that fails. */
export async function optimistic(change: Partial<Pick<LiveState, "jobs" | "queue">>, send: () => Promise<unknown>): Promise<void> {
  const { jobs, queue, refresh } = useLive.getState();
  useLive.setState(change);
  try {
    await send();
  } catch (e) {
    useLive.setState({ jobs, queue });
    void refresh().catch(() => undefined);
    throw e;
  }
  await refresh().catch(() => undefined);
}

export function setOrder(order: readonly string[]): Promise<void> {
  const { jobs } = useLive.getState();
  return optimistic({ jobs: reordered(jobs, order) }, () => sendJson("POST", "/fresco/queue", { order }));
}

export function setPaused(paused: boolean): Promise<void> {
  return optimistic({ queue: { paused } }, () => sendJson("POST", "/fresco/queue", { paused }));
}

export function setHeld(id: string, held: boolean): Promise<void> {
  const jobs = useLive.getState().jobs.map((job) => (job.id === id ? { ...job, held } : job));
  return optimistic({ jobs }, () => sendJson("POST", "/fresco/queue", held ? { hold: [id] } : { release: [id] }));
}

/** A waiting job goes at once; a running one stops at its next step. */
export function cancel(ids: readonly string[]): Promise<void> {
  const gone = new Set(ids);
  const jobs = useLive.getState().jobs.filter((job) => job.status !== "pending" || !gone.has(job.id));
  return optimistic({ jobs }, () =>
    ids.length === 1 ? sendJson("POST", `/api/jobs/${encodeURIComponent(ids[0] as string)}/cancel`) : sendJson("POST", "/api/jobs/cancel", { job_ids: ids }),
  );
}

/** Runs a wish and says where it failed; the page has taken it back by then. */
export function tell(wish: Promise<unknown>, what: string): void {
  wish.catch((e: Error) => toast(`${what}: ${e.message}`, "bad"));
}
