// Watches the running job and knows how long it will still take.
import { create } from "zustand";
import type { ApiPrompt } from "../api/types";
import { jobDetails, onEvent, useLive } from "../state/live";
import { remember, remembered } from "../state/settings";
import { learned, newTrack, type Pace, paceFor, paceKey, timeLeft, type Track, tracked } from "./estimate";
import { valuesFrom } from "./read";

const KEY = "create.pace";
const KEPT = 40;

interface Watched {
  id: string;
  prompt: ApiPrompt | null;
  track: Track;
  steps: number;
  /** Model and size, under which the pace is remembered. */
  kind: { model: string; width: number; height: number } | null;
}

export const useWatched = create<{ job: Watched | null }>()(() => ({ job: null }));

function known(): Record<string, Pace> {
  const found = remembered<unknown>(KEY, {});
  return typeof found === "object" && found !== null ? (found as Record<string, Pace>) : {};
}

export function isSampler(class_type: string | undefined): boolean {
  return /^(KSampler|SamplerCustom)/.test(class_type ?? "");
}

/** Milliseconds left of the watched job. */
export function leftOf(job: Watched, now: number): number | null {
  const pace = job.kind ? paceFor(known(), job.kind.model, job.kind.width, job.kind.height) : null;
  return timeLeft(job.track, job.steps, pace, now);
}

let users = 0;
let stop: (() => void)[] = [];

/** Starts watching while anybody looks. */
export function watchPace(): () => void {
  if (users++ === 0) {
    follow();
    stop = [useLive.subscribe(follow), onEvent("execution_success", ({ job }) => finish(job))];
  }
  return () => {
    if (--users > 0) return;
    stop.forEach((fn) => fn());
    stop = [];
  };
}

function follow() {
  const { running } = useLive.getState();
  const { job } = useWatched.getState();
  if (!running) return;
  if (job?.id === running.id && job.track.startedAt !== running.startedAt) {
    // The start was only guessed before, or the job was started again: what was measured of that run says nothing of this one.
    const again = running.value < job.track.value || running.startedAt > job.track.lastAt;
    useWatched.setState({ job: { ...job, track: again ? newTrack(running.startedAt) : { ...job.track, startedAt: running.startedAt } } });
    return;
  }
  if (job?.id !== running.id) {
    useWatched.setState({ job: { id: running.id, prompt: null, track: newTrack(running.startedAt), steps: 0, kind: null } });
    void jobDetails(running.id).then(
      (details) => learnKind(running.id, details.workflow.prompt),
      () => undefined,
    );
    return;
  }
  if (!job.prompt || !running.node || !isSampler(job.prompt[running.node]?.class_type)) return;
  const track = tracked(job.track, running.value, running.max, Date.now());
  if (track !== job.track) useWatched.setState({ job: { ...job, track } });
}

function learnKind(id: string, prompt: ApiPrompt) {
  const { job } = useWatched.getState();
  if (job?.id !== id) return;
  const v = valuesFrom(prompt);
  const kind = v?.model && v.width && v.height ? { model: v.model, width: v.width, height: v.height } : null;
  const steps = Math.max(1, v?.steps ?? 1);
  useWatched.setState({ job: { ...job, prompt, kind, steps } });
}

function finish(id: string | undefined) {
  const { job } = useWatched.getState();
  if (!job || job.id !== id || !job.kind) return;
  const all = known();
  const key = paceKey(job.kind.model, job.kind.width, job.kind.height);
  const pace = learned(all[key] ?? null, job.track, Date.now());
  if (!pace) return;
  const { [key]: _old, ...rest } = all;
  remember(KEY, Object.fromEntries([...Object.entries(rest).slice(1 - KEPT), [key, pace]]));
}
