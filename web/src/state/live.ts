// The live picture of the server: one socket, the jobs, and what runs now. State changes only through `dispatch`; what is
// here besides are connections and timers.
import { create } from "zustand";
import { ApiError, getJson } from "../api/client";
import { readEventText, type ServerEvent } from "../api/events";
import type { Frame } from "../api/frames";
import { clientId, CREATE_WORKFLOWS, renewClientId } from "../api/identity";
import { openSocket, type Socket } from "../api/socket";
import type { JobDetails, JobPage } from "../api/types";
import { type Action, changesList, emptyState, isNews, JOB_EVENTS, type LiveState, reduceLive, runOf } from "./liveState";

export { filesOf } from "../api/files";
export { runOf } from "./liveState";
export type { LiveState, Preview } from "./liveState";
export type { Running } from "./progress";

export interface Live extends LiveState {
  refresh(): Promise<void>;
  loadMore(): Promise<void>;
}

export const useLive = create<Live>()(() => ({
  ...emptyState(clientId()),
  refresh,
  loadMore() {
    dispatch({ type: "more wanted" });
    return refresh();
  },
}));

function dispatch(action: Action): void {
  useLive.setState((state) => reduceLive(state, action));
}

// ---- asking

let inFlight: Promise<void> | null = null;
let again = false;

/** Many events ask at once; one request answers them all, and one more those that came meanwhile. */
function refresh(): Promise<void> {
  if (inFlight) {
    again = true;
    return inFlight;
  }
  inFlight = (async () => {
    do {
      again = false;
      await fetchJobs();
    } while (again);
  })().finally(() => {
    inFlight = null;
  });
  return inFlight;
}

/** More of its own jobs than Create shows. */
const CREATED = 200;

async function fetchJobs(): Promise<void> {
  const { running, beside, wanted } = useLive.getState();
  // Active ones first: a job that ends between the two requests is then in both, never in neither.
  const active = await getJson<JobPage>("/api/jobs?status=pending,in_progress&limit=1000");
  const [finished, created, queue] = await Promise.all([
    getJson<JobPage>(`/api/jobs?status=completed,failed,cancelled&limit=${wanted}`),
    getJson<JobPage>(`/api/jobs?workflow_prefix=${CREATE_WORKFLOWS}&limit=${CREATED}`),
    getJson<{ paused: boolean; order: string[] }>("/fresco/queue").catch((e: unknown) => {
      if (e instanceof ApiError && e.status !== 0) return null;
      throw e;
    }),
  ]);
  const before = running?.id ?? null;
  dispatch({ type: "listed", active: active.jobs, finished, created: created.jobs, queue, before, beside: Object.keys(beside), now: Date.now() });
  follow();
}

const refreshQuietly = () => void refresh().catch(() => undefined);

let refreshTimer: ReturnType<typeof setTimeout> | undefined;
function refreshSoon() {
  if (refreshTimer !== undefined) return;
  refreshTimer = setTimeout(() => {
    refreshTimer = undefined;
    refreshQuietly();
  }, 60);
}

// ---- events

/** What the server tells, and that the socket to it is open (again). */
type LiveEvent = ServerEvent | { type: "connected" };
type EventOf<T extends LiveEvent["type"]> = Extract<LiveEvent, { type: T }>;
type Listener = (event: LiveEvent) => void;
const listeners = new Map<string, Set<Listener>>();

/** Calls `fn` with each event of this type. Returns what ends that. */
export function onEvent<T extends LiveEvent["type"]>(type: T, fn: (event: EventOf<T>) => void): () => void {
  const set = listeners.get(type) ?? new Set();
  // Only events of this type are told to it.
  const listener = fn as Listener;
  listeners.set(type, set.add(listener));
  return () => set.delete(listener);
}

function tell(event: LiveEvent) {
  for (const listener of listeners.get(event.type) ?? []) {
    try {
      listener(event);
    } catch (e) {
      console.error(e);
    }
  }
}

function handle(event: ServerEvent, by: "socket" | "stream") {
  dispatch({ type: "told", event, by, now: Date.now() });
  if (changesList(event)) refreshSoon();
  tell(event);
}

function showPreview(frame: Frame) {
  if (frame.kind !== "preview") return;
  const state = useLive.getState();
  const jobId = frame.promptId ?? state.running?.id;
  if (!jobId || state.ended.has(jobId)) return;
  const dropped = Object.values(state.previews).filter((old) => old.jobId === jobId || !runOf(state, old.jobId));
  const url = URL.createObjectURL(new Blob([frame.bytes], { type: frame.mime }));
  dispatch({ type: "preview", preview: { jobId, node: frame.nodeId ?? runOf(state, jobId)?.node ?? "", url } });
  // The old picture may still be on screen until the next one is drawn.
  for (const old of dropped) setTimeout(() => URL.revokeObjectURL(old.url), 2000);
}

// ---- a running job whose events are not addressed to this tab, or whose start it has not seen, is followed by its own stream

/** More would take the connections that a browser has for one server. */
const FOLLOWED = 3;
const followed = new Map<string, { source: EventSource | null; timer: ReturnType<typeof setTimeout> }>();

function follow() {
  const { running, beside, begun } = useLive.getState();
  const ids = [...(running ? [running.id] : []), ...Object.keys(beside)];
  for (const id of [...followed.keys()]) if (!ids.includes(id)) stopFollowing(id);
  for (const id of ids) {
    if (begun.has(id) || followed.has(id) || followed.size >= FOLLOWED) continue;
    // A job of this tab tells its start over the socket within moments; only the others need the stream.
    followed.set(id, { source: null, timer: setTimeout(() => openStream(id), 400) });
  }
}

function openStream(id: string) {
  const entry = followed.get(id);
  if (!entry) return;
  const state = useLive.getState();
  if (state.begun.has(id) || !runOf(state, id)) return stopFollowing(id);
  const source = new EventSource(`/api/jobs/${encodeURIComponent(id)}/events`);
  entry.source = source;
  for (const type of JOB_EVENTS) {
    source.addEventListener(type, (message) => {
      if (followed.get(id)?.source !== source) return;
      const event = readEventText(type, (message as MessageEvent<string>).data);
      if (event && isNews(useLive.getState(), event)) handle(event, "stream");
      const { heard, ended } = useLive.getState();
      if (heard.has(id) || ended.has(id)) stopFollowing(id);
    });
  }
}

function stopFollowing(id: string) {
  const entry = followed.get(id);
  clearTimeout(entry?.timer);
  entry?.source?.close();
  followed.delete(id);
}

// ---- start

let socket: Socket | null = null;

/** Connects; called once by the shell. */
export function startLive(): () => void {
  if (socket) return () => undefined;
  const own = openSocket({
    open() {
      dispatch({ type: "connected" });
      refreshQuietly();
      tell({ type: "connected" });
    },
    close: () => dispatch({ type: "disconnected" }),
    event: (event) => handle(event, "socket"),
    frame: showPreview,
  });
  socket = own;
  const leaveTabs = tellTabsApart(own);
  const nudge = () => {
    if (document.visibilityState === "visible") own.nudge();
  };
  addEventListener("online", nudge);
  document.addEventListener("visibilitychange", nudge);
  return () => {
    removeEventListener("online", nudge);
    document.removeEventListener("visibilitychange", nudge);
    leaveTabs();
    own.stop();
    socket = null;
  };
}

/** A duplicated tab starts with a copy of this tab's id, and the server speaks to the newer of the two only. */
function tellTabsApart(own: Socket): () => void {
  if (typeof BroadcastChannel === "undefined") return () => undefined;
  const channel = new BroadcastChannel("fresco-tabs");
  const tab = Math.random();
  let settled = false;
  channel.addEventListener("message", ({ data }: MessageEvent<{ ask?: string; taken?: string; tab: number }>) => {
    if (data.tab === tab) return;
    if (data.ask === clientId()) {
      channel.postMessage({ taken: data.ask, tab });
      own.restart();
    } else if (data.taken === clientId() && !settled) {
      dispatch({ type: "renamed", clientId: renewClientId() });
      own.restart();
    }
  });
  setTimeout(() => {
    settled = true;
  }, 1500);
  channel.postMessage({ ask: clientId(), tab });
  return () => channel.close();
}

// ---- details

const details = new Map<string, Promise<JobDetails>>();
const DETAILS_KEPT = 300;

/** A job with its prompt and outputs; asked once for a finished one. */
export function jobDetails(id: string): Promise<JobDetails> {
  const known = details.get(id);
  if (known) return known;
  const asked = getJson<JobDetails>(`/api/jobs/${encodeURIComponent(id)}`);
  details.set(id, asked);
  asked.then(
    (job) => {
      if (job.status === "pending" || job.status === "in_progress") details.delete(id);
    },
    () => details.delete(id),
  );
  if (details.size > DETAILS_KEPT) {
    const oldest = details.keys().next().value;
    if (oldest !== undefined) details.delete(oldest);
  }
  return asked;
}
