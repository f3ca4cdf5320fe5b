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
  /** The newest jobs that were asked for on Create, however many others came after them. */
  created: Job[];
  /** Finished jobs the server has in all. */
  total: number;
  hasMore: boolean;
  /** Finished jobs to ask for. */
  wanted: number;
  /** The one that is shown where there is room for one: the newest. */
  running: Running | null;
  /** What other workers run beside it, by job. */
  beside: Readonly<Record<string, Running>>;
  /** The newest picture of each job that runs, and the last one of all. */
  previews: Readonly<Record<string, Preview>>;
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
  /** What the server answered; `before` ran when it was asked, and `beside` beside it. */
  | {
      type: "listed";
      active: Job[];
      finished: JobPage;
      created?: Job[];
      queue: { paused: boolean; order: string[] } | null;
      before: string | null;
      beside?: readonly string[];
      now: number;
    }
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
const NOTHING: Readonly<Record<string, Running>> = {};

/** How far a job is that runs now. */
export function runOf(state: Pick<LiveState, "running" | "beside">, id: string): Running | null {
  return state.running?.id === id ? state.running : (state.beside[id] ?? null);
}

export function emptyState(clientId: string): LiveState {
  return {
    connected: false,
    loaded: false,
    clientId,
    jobs: [],
    created: [],
    total: 0,
    hasMore: false,
    wanted: PAGE,
    running: null,
    beside: NOTHING,
    previews: {},
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
      return { ...state, connected: false, running: null, beside: NOTHING, ended: NOBODY, heard: NOBODY, begun: NOBODY };
    case "renamed":
      return { ...state, clientId: action.clientId };
    case "more wanted":
      return { ...state, wanted: state.wanted + PAGE };
    case "listed":
      return listed(state, action);
    case "told":
      return applyEvent(state, action);
    case "preview":
      return { ...state, previews: withPreview(state, action.preview) };
  }
}

function listed<S extends LiveState>(state: S, action: Extract<Action, { type: "listed" }>): S {
  const { active, finished, queue, before, beside: asked = [], now } = action;
  const jobs = orderJobs(active, finished.jobs, queue?.order ?? []);
  const inProgress = jobs.filter((j) => j.status === "in_progress").map((j) => j.id);
  // What ran before the question was asked and is not listed as running any more has ended, whether or not we were told.
  const gone = [before, ...asked].filter((id): id is string => id !== null && !inProgress.includes(id));
  let ended = state.ended;
  for (const id of gone) if (!active.some((j) => j.id === id)) ended = plus(ended, id);
  const runs: Record<string, Running> = {};
  for (const id of Object.keys(state.beside)) {
    const run = state.beside[id];
    if (run && !gone.includes(id)) runs[id] = run;
  }
  for (const id of inProgress) if (id !== state.running?.id && !ended.has(id)) runs[id] ??= startRunning(id, now);
  const goesOn = state.running && !gone.includes(state.running.id) ? state.running : null;
  const next = inProgress.find((id) => id in runs);
  const running = goesOn ?? (next === undefined ? null : (runs[next] ?? null));
  const listed = new Map(jobs.map((j) => [j.id, j]));
  return {
    ...state,
    jobs,
    created: action.created?.map((j) => listed.get(j.id) ?? j) ?? state.created,
    loaded: true,
    total: finished.pagination.total,
    hasMore: finished.pagination.has_more,
    queue: { paused: queue?.paused ?? false },
    ended,
    running,
    beside: without(runs, running?.id),
  };
}

function applyEvent<S extends LiveState>(state: S, { event, by, now }: Extract<Action, { type: "told" }>): S {
  if (event.type === "fresco_queue") return event.paused === undefined ? state : { ...state, queue: { paused: event.paused } };
  const job = "job" in event ? event.job : undefined;
  const heard = job && by === "socket" ? plus(state.heard, job) : state.heard;
  const late = job !== undefined && state.ended.has(job) && event.type !== "executed";
  if (late) return heard === state.heard ? state : { ...state, heard };
  const begun = job && event.type === "execution_start" ? plus(state.begun, job) : state.begun;
  const { running, beside, over } = runsAfter(state, event, job, now);
  const ended = over === null ? state.ended : plus(state.ended, over);
  const same = running === state.running && beside === state.beside && heard === state.heard && begun === state.begun;
  return same ? state : { ...state, running, beside, heard, begun, ended };
}

/** What runs after an event, and what it ended. The job that started last is shown where there is room for one. */
function runsAfter(state: LiveState, event: ServerEvent, job: string | undefined, now: number) {
  const { running, beside } = state;
  if (!running || job === undefined || job === running.id) {
    const next = reduceEvent(running, event, now);
    if (next || !running) return { running: next, beside: without(beside, next?.id), over: null };
    const [first] = Object.keys(beside);
    return { running: (first !== undefined && beside[first]) || null, beside: without(beside, first), over: running.id };
  }
  const known = beside[job] ?? null;
  const next = reduceEvent(known, event, now);
  if (next === known) return { running, beside, over: null };
  if (!next) return { running, beside: without(beside, job), over: job };
  if (event.type === "execution_start" && !known) return { running: next, beside: { ...beside, [running.id]: running }, over: null };
  return { running, beside: { ...beside, [job]: next }, over: null };
}

function without(runs: Readonly<Record<string, Running>>, id: string | undefined): Readonly<Record<string, Running>> {
  if (id === undefined || !(id in runs)) return Object.keys(runs).length === 0 ? NOTHING : runs;
  const { [id]: _, ...rest } = runs;
  return Object.keys(rest).length === 0 ? NOTHING : rest;
}

function withPreview(state: LiveState, preview: Preview): Readonly<Record<string, Preview>> {
  const previews: Record<string, Preview> = {};
  for (const old of Object.values(state.previews)) if (runOf(state, old.jobId)) previews[old.jobId] = old;
  previews[preview.jobId] = preview;
  return previews;
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
