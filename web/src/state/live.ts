// The live picture of the server: one socket, the jobs, and what runs now.
import { create } from "zustand";
import { ApiError, getJson } from "../api/client";
import { clientId, renewClientId } from "../api/identity";
import { openSocket, type Socket } from "../api/socket";
import type { Job, JobDetails, JobPage } from "../api/types";
import { orderJobs } from "./jobs";
import { reduceEvent, type Running, startRunning } from "./progress";

export { filesOf } from "../api/files";
export type { Running } from "./progress";

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
  running: Running | null;
  preview: Preview | null;
  queue: { paused: boolean };
  refresh(): Promise<void>;
  loadMore(): Promise<void>;
}

let wanted = PAGE;
let inFlight: Promise<void> | null = null;
let again = false;

async function fetchJobs(): Promise<void> {
  const before = useLive.getState().running;
  // Active ones first: a job that ends between the two requests is then in both, never in neither.
  const active = await getJson<JobPage>("/api/jobs?status=pending,in_progress&limit=1000");
  const [finished, queue] = await Promise.all([
    getJson<JobPage>(`/api/jobs?status=completed,failed,cancelled&limit=${wanted}`),
    getJson<{ paused: boolean; order: string[] }>("/fresco/queue").catch((e: unknown) => {
      if (e instanceof ApiError && e.status !== 0) return null;
      throw e;
    }),
  ]);
  const jobs = orderJobs(active.jobs, finished.jobs, queue?.order ?? []);
  const now = jobs.find((j) => j.status === "in_progress");
  // What ran before the question was asked and is not listed as running any more has ended, whether or not we were told.
  const gone = before && before.id !== now?.id ? before.id : null;
  if (gone && !active.jobs.some((j) => j.id === gone)) endedHere.add(gone);
  useLive.setState((s) => ({
    jobs,
    loaded: true,
    total: finished.pagination.total,
    hasMore: finished.pagination.has_more,
    queue: { paused: queue?.paused ?? false },
    running: s.running && s.running.id !== gone ? s.running : now && !endedHere.has(now.id) ? startRunning(now.id, Date.now()) : null,
  }));
  follow(useLive.getState().running?.id ?? null);
}

export const useLive = create<LiveState>()(() => ({
  connected: false,
  loaded: false,
  clientId: clientId(),
  jobs: [],
  total: 0,
  hasMore: false,
  running: null,
  preview: null,
  queue: { paused: false },
  // Many events ask at once; one request answers them all, and one more those that came meanwhile.
  refresh() {
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
  },
  async loadMore() {
    wanted += PAGE;
    await useLive.getState().refresh();
  },
}));

// ---- events

type Listener = (data: any) => void;
const listeners = new Map<string, Set<Listener>>();

/** Calls `fn` with the data of each event of this type. Returns what ends that. */
export function onEvent(type: string, fn: Listener): () => void {
  const set = listeners.get(type) ?? new Set();
  listeners.set(type, set.add(fn));
  return () => set.delete(fn);
}

function tell(type: string, data: unknown) {
  listeners.get(type)?.forEach((fn) => {
    try {
      fn(data);
    } catch (e) {
      console.error(e);
    }
  });
}

let refreshTimer: ReturnType<typeof setTimeout> | undefined;
function refreshSoon(wait = 60) {
  refreshTimer ??= setTimeout(() => {
    refreshTimer = undefined;
    void useLive.getState().refresh().catch(() => undefined);
  }, wait);
}

function handle(type: string, data: unknown) {
  const id = (data as { prompt_id?: string } | null)?.prompt_id;
  if (id && endedHere.has(id) && type !== "executed") {
    tell(type, data);
    return;
  }
  if (id && type === "execution_start") begun.add(id);
  const before = useLive.getState().running;
  const running = reduceEvent(before, type, data, Date.now());
  if (running !== before) useLive.setState({ running });
  if (before && !running) endedHere.add(before.id);
  if (type === "status" || type === "execution_success" || type === "execution_error" || type === "execution_interrupted" || type === "execution_start") refreshSoon();
  if (type === "fresco_queue") {
    const paused = (data as { paused?: unknown } | null)?.paused;
    if (typeof paused === "boolean") useLive.setState({ queue: { paused } });
    refreshSoon();
  }
  tell(type, data);
}

/** Jobs whose end was seen; a late progress event must not revive them. */
const endedHere = new Set<string>();

function showPreview(jobId: string, node: string, bytes: Uint8Array<ArrayBuffer>, mime: string) {
  const old = useLive.getState().preview;
  useLive.setState({ preview: { jobId, node, url: URL.createObjectURL(new Blob([bytes], { type: mime })) } });
  // The old picture may still be on screen until the next one is drawn.
  if (old) setTimeout(() => URL.revokeObjectURL(old.url), 2000);
}

// ---- a running job whose events are not addressed to this tab, or whose start it has not seen, is followed by its own stream

let followed: { id: string; source: EventSource } | null = null;
let followTimer: ReturnType<typeof setTimeout> | undefined;
/** Jobs that speak to this tab over the socket. */
const heard = new Set<string>();
/** Jobs whose start is known. */
const begun = new Set<string>();
const FOLLOWED = ["execution_start", "execution_cached", "executing", "progress_state", "progress", "executed",
  "execution_success", "execution_error", "execution_interrupted"];

function follow(id: string | null) {
  if (followed && followed.id !== id) {
    followed.source.close();
    followed = null;
  }
  clearTimeout(followTimer);
  if (!id || followed || begun.has(id)) return;
  // A job of this tab tells its start over the socket within moments; only the others need the stream.
  followTimer = setTimeout(() => {
    if (begun.has(id) || useLive.getState().running?.id !== id) return;
    const source = new EventSource(`/api/jobs/${encodeURIComponent(id)}/events`);
    followed = { id, source };
    for (const type of FOLLOWED) {
      source.addEventListener(type, (e) => {
        if (followed?.source !== source) return;
        if (!heard.has(id) || type === "execution_start") handle(type, JSON.parse((e as MessageEvent<string>).data));
        if (heard.has(id) || endedHere.has(id)) {
          source.close();
          followed = null;
        }
      });
    }
  }, 400);
}

// ---- start

let socket: Socket | null = null;

/** Connects; called once by the shell. */
export function startLive(): () => void {
  if (socket) return () => undefined;
  const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("fresco-tabs");
  const own = openSocket({
    open() {
      useLive.setState({ connected: true });
      void useLive.getState().refresh().catch(() => undefined);
      tell("connected", null);
    },
    close() {
      // Who comes back may be another process, with other sockets.
      heard.clear();
      begun.clear();
      endedHere.clear();
      // What ran may be started again before we are back; its events then say how far it is, and since when.
      useLive.setState({ connected: false, running: null });
    },
    event(type, data) {
      const id = (data as { prompt_id?: unknown } | null)?.prompt_id;
      if (typeof id === "string" && FOLLOWED.includes(type)) heard.add(id);
      handle(type, data);
    },
    frame(frame) {
      const running = useLive.getState().running;
      if (frame.kind === "text") {
        tell("progress_text", { node: frame.nodeId, text: frame.text });
        return;
      }
      const jobId = frame.promptId ?? running?.id;
      if (jobId && !endedHere.has(jobId)) showPreview(jobId, frame.nodeId ?? running?.node ?? "", frame.bytes, frame.mime);
    },
  });
  socket = own;
  // A duplicated tab starts with a copy of this tab's id, and the server speaks to the newer of the two only.
  const tab = Math.random();
  channel?.addEventListener("message", ({ data }: MessageEvent<{ ask?: string; taken?: string; tab: number }>) => {
    if (data.tab === tab) return;
    if (data.ask === clientId()) {
      channel.postMessage({ taken: data.ask, tab });
      own.restart();
    } else if (data.taken === clientId() && !settled) {
      useLive.setState({ clientId: renewClientId() });
      own.restart();
    }
  });
  let settled = false;
  setTimeout(() => (settled = true), 1500);
  channel?.postMessage({ ask: clientId(), tab });
  const nudge = () => {
    if (document.visibilityState === "visible") own.nudge();
  };
  addEventListener("online", nudge);
  document.addEventListener("visibilitychange", nudge);
  return () => {
    removeEventListener("online", nudge);
    document.removeEventListener("visibilitychange", nudge);
    channel?.close();
    own.stop();
    socket = null;
  };
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
