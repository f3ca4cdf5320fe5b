// One-shot hand-over between views: one view leaves something, the next takes it once.
import type { ApiPrompt, FileRef, Job, UiWorkflow } from "../api/types";
import type { CreateValues } from "../create/values";

export type Handoff =
  | { to: "create"; values?: Partial<CreateValues>; image?: FileRef; job?: Job; mode?: "text" | "image" | "inpaint" | "upscale" }
  | { to: "graph"; workflow?: UiWorkflow; prompt?: ApiPrompt; name?: string }
  | { to: "apps"; workflow?: UiWorkflow; prompt?: ApiPrompt; file?: File; name?: string };

type For<T extends Handoff["to"]> = Extract<Handoff, { to: T }>;

let waiting: Handoff | null = null;
const listeners = new Set<() => void>();

export function setHandoff(handoff: Handoff): void {
  waiting = handoff;
  listeners.forEach((fn) => fn());
}

/** What was left for this view, if anything; it is gone afterwards. */
export function takeHandoff<T extends Handoff["to"]>(to: T): For<T> | null {
  if (waiting?.to !== to) return null;
  const taken = waiting as For<T>;
  waiting = null;
  return taken;
}

/** Calls `fn` when something is left while the view is already open. */
export function onHandoff(fn: () => void): () => void {
  listeners.add(fn);
  return () => listeners.delete(fn);
}

/** Goes to a view, like `go("#/gallery")`. */
export function go(hash: string): void {
  location.hash = hash.startsWith("#") ? hash : `#${hash}`;
}
