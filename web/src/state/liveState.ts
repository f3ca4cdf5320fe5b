// All that the page knows of the server at one moment, and what each thing that happens makes of it. Pure.
import type { ServerEvent } from "../api/events";
import type { Job, JobPage } from "../api/types";
import { orderJobs } from "./jobs";
import { reduceEvent, type Running, startRunning } from "./progress";

/** Finished jobs asked for at once. */
const PAGE = 200;

export interface Preview {
  jobId: string;
  node: string;
  url: string;
}

export interface LiveState {
  connected: boolean;
  /** False until the first answer of the server, so that nothing is called empty too early. */
  loaded: boolean;
  clientId: string;
  jobs: Job[];
  /** Finished jobs the server has in all. */
  total: number;
  hasMore: boolean;
  /** Finished jobs to ask for. */
  wanted: number;
  running: Running | null;
  preview: Preview | null;
  queue: { paused: boolean };
  /** Jobs whose end was seen; a late progress event must not revive them. */
  ended: ReadonlySet<string>;
  /** Jobs that speak to this tab over the socket. */
  heard: ReadonlySet<string>;
  /** Jobs whose start is known. */
  begun: ReadonlySet<string>;
}

export type Action =
  | { type: "connected" }
  | { type: "disconnected" }
  | { type: "renamed"; clientId: string }
  | { type: "more wanted" }
  /** What the server answered; `before` ran when it was asked. */
  | { type: "listed"; active: Job[]; finished: JobPage; queue: { paused: boolean; order: string[] } | null; before: string | null; now: number }
  | { type: "told"; event: ServerEvent; by: "socket" | "stream"; now: number }
  | { type: "preview"; preview: Preview };

/** Events that tell how far a job is; a job has them on its own stream too. */
export const JOB_EVENTS = [
  "execution_start",
  "execution_cached",
  "executing",
  "progress_state",
  "progress",
  "executed",
  "execution_success",
  "execution_error",
  "execution_interrupted",
] as const satisfies ServerEvent["type"][];

/** Events after which the list of jobs is another one. */
const LIST_EVENTS: ServerEvent["type"][] = ["status", "execution_start", "execution_success", "execution_error", "execution_interrupted", "fresco_queue"];

const NOBODY: ReadonlySet<string> = new Set();

export function emptyState(clientId: string): LiveState {
  return {
    connected: false,
    loaded: false,
    clientId,
    jobs: [],
    total: 0,
    hasMore: false,
    wanted: PAGE,
    running: null,
    preview: null,
    queue: { paused: false },
    ended: NOBODY,
    heard: NOBODY,
    begun: NOBODY,
  };
}

export function reduceLive<S extends LiveState>(state: S, action: Action): S {
  switch (action.type) {
    case "connected":
      return { ...state, connected: true };
    case "disconnected":
      // Who comes back may be another process, with other sockets. What ran may be started again before we are back; its
      // events then say how far it is, and since when.
      return { ...state, connected: false, running: null, ended: NOBODY, heard: NOBODY, begun: NOBODY };
    case "renamed":
      return { ...state, clientId: action.clientId };
    case "more wanted":
      return { ...state, wanted: state.wanted + PAGE };
    case "listed":
      return listed(state, action);
    case "told":
      return told(state, action);
    case "preview":
      return { ...state, preview: action.preview };
  }
}

function listed<S extends LiveState>(state: S, { active, finished, queue, before, now }: Extract<Action, { type: "listed" }>): S {
  const jobs = orderJobs(active, finished.jobs, queue?.order ?? []);
  const first = jobs.find((j) => j.status === "in_progress");
  // What ran before the question was asked and is not listed as running any more has ended, whether or not we were told.
  const gone = before !== first?.id ? before : null;
  const ended = gone && !active.some((j) => j.id === gone) ? plus(state.ended, gone) : state.ended;
  const goesOn = state.running && state.running.id !== gone ? state.running : null;
  return {
    ...state,
    jobs,
    loaded: true,
    total: finished.pagination.total,
    hasMore: finished.pagination.has_more,
    queue: { paused: queue?.paused ?? false },
    ended,
    running: goesOn ?? (first && !ended.has(first.id) ? startRunning(first.id, now) : null),
  };
}

function told<S extends LiveState>(state: S, { event, by, now }: Extract<Action, { type: "told" }>): S {
  if (event.type === "fresco_queue") return event.paused === undefined ? state : { ...state, queue: { paused: event.paused } };
  const job = "job" in event ? event.job : undefined;
  const heard = job && by === "socket" ? plus(state.heard, job) : state.heard;
  const late = job !== undefined && state.ended.has(job) && event.type !== "executed";
  if (late) return heard === state.heard ? state : { ...state, heard };
  const begun = job && event.type === "execution_start" ? plus(state.begun, job) : state.begun;
  const running = reduceEvent(state.running, event, now);
  const ended = state.running && !running ? plus(state.ended, state.running.id) : state.ended;
  const same = running === state.running && heard === state.heard && begun === state.begun;
  return same ? state : { ...state, running, heard, begun, ended };
}

function plus(set: ReadonlySet<string>, id: string): ReadonlySet<string> {
  return set.has(id) ? set : new Set(set).add(id);
}

/** Whether the list of jobs must be asked for again. */
export function changesList(event: ServerEvent): boolean {
  return LIST_EVENTS.includes(event.type);
}

/** Whether what a job's own stream tells is news: not where the socket tells the same, but for the start, which it may have missed. */
export function isNews(state: LiveState, event: ServerEvent): boolean {
  const job = "job" in event ? event.job : undefined;
  return event.type === "execution_start" || job === undefined || !state.heard.has(job);
}
