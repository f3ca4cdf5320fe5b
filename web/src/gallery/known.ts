// What is known about finished jobs beyond the list: fetched for tiles in sight, and for all when a search needs it.
import { create } from "zustand";
import { getJson } from "../api/client";
import type { ApiPrompt, JobDetails, JobPage } from "../api/types";
import { jobDetails } from "../state/live";
import { type Summary, summarise } from "./settings";

interface KnownState {
  /** Grows in place; `version` tells when. */
  byId: Map<string, Summary>;
  version: number;
  /** Present while all jobs are being read for a search. */
  reading: { done: number; total: number } | null;
  error: string | null;
}

export const useKnown = create<KnownState>()(() => ({ byId: new Map(), version: 0, reading: null, error: null }));

let telling = false;

/** Many summaries arrive together; the page is told once per frame. */
function learn(summary: Summary) {
  useKnown.getState().byId.set(summary.id, summary);
  if (telling) return;
  telling = true;
  setTimeout(() => {
    telling = false;
    useKnown.setState((s) => ({ version: s.version + 1 }));
  }, 16);
}

const AT_ONCE = 4;
const wanted: string[] = [];
const tried = new Set<string>();
let busy = 0;

/** Asks for a job's prompt; the latest wish is served first, because that tile is on screen now. */
export function want(id: string): void {
  if (tried.has(id) || useKnown.getState().byId.has(id)) return;
  const at = wanted.indexOf(id);
  if (at >= 0) wanted.splice(at, 1);
  wanted.push(id);
  pump();
}

function pump() {
  while (busy < AT_ONCE && wanted.length > 0) {
    const id = wanted.pop() as string;
    tried.add(id);
    busy += 1;
    jobDetails(id)
      .then((details) => learn(summarise(details)))
      // The server may be away; the next time the tile is drawn it is asked again.
      .catch(() => tried.delete(id))
      .finally(() => {
        busy -= 1;
        pump();
      });
  }
}

/** Keeps what a view fetched anyway. */
export function learnFrom(details: JobDetails): void {
  if (details.status !== "pending" && details.status !== "in_progress") learn(summarise(details));
}

interface HistoryEntry {
  prompt: [number, string, ApiPrompt, JobDetails["workflow"]["extra_data"], string[]];
  outputs: JobDetails["outputs"];
}

const PAGE = 50;
let walk: Promise<void> | null = null;
/** Finished jobs at the oldest end that have been read; the history is ordered oldest first, so these places stay. */
let complete = 0;

/** Reads every finished job, newest first, in pages. Repeated calls read only what is new. */
export function readAll(): Promise<void> {
  walk ??= (async () => {
    const { byId } = useKnown.getState();
    const { pagination } = await getJson<JobPage>("/api/jobs?status=completed,failed,cancelled&limit=1");
    const { total } = pagination;
    if (complete > total) complete = 0;
    if (total <= complete) return;
    const all = total - complete;
    useKnown.setState({ reading: { done: 0, total: all }, error: null });
    for (let end = total; end > complete; end -= PAGE) {
      const from = Math.max(complete, end - PAGE);
      const page = await getJson<Record<string, HistoryEntry>>(`/api/history?offset=${from}&max_items=${end - from}`);
      for (const [id, entry] of Object.entries(page)) {
        if (!byId.has(id)) learn(summarise({ id, outputs: entry.outputs, workflow: { prompt: entry.prompt[2], extra_data: entry.prompt[3] } }));
      }
      useKnown.setState({ reading: { done: total - from, total: all } });
    }
    complete = total;
  })()
    .catch((e: unknown) => useKnown.setState({ error: e instanceof Error ? e.message : String(e) }))
    .finally(() => {
      walk = null;
      useKnown.setState({ reading: null });
    });
  return walk;
}

/** Forgets deleted jobs. */
export function forget(ids: readonly string[]): void {
  const { byId } = useKnown.getState();
  for (const id of ids) {
    byId.delete(id);
    tried.delete(id);
  }
  complete = Math.max(0, complete - ids.length);
  useKnown.setState((s) => ({ version: s.version + 1 }));
}
