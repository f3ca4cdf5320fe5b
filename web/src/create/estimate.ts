// How long a picture will still take: from the steps done so far, and before the first one from what earlier pictures took.

export interface Pace {
  /** Milliseconds of one step. */
  step: number;
  /** Milliseconds before the first step (model, words) and after the last one (decoding, saving). */
  before: number;
  after: number;
}

/** What is known of a running job, fed with every progress event. */
export interface Track {
  startedAt: number;
  /** When sampling reached its first known step, and which that was. */
  firstAt: number;
  first: number;
  lastAt: number;
  value: number;
  max: number;
  /** The first known step was under way already, so that its time says nothing. */
  late?: boolean;
}

export function newTrack(startedAt: number): Track {
  return { startedAt, firstAt: 0, first: 0, lastAt: 0, value: 0, max: 0 };
}

/** Milliseconds between two steps that happened one after the other. */
const AT_ONCE = 15;

/** Takes in a step counter. A counter that starts over belongs to a second sampler: measured anew. */
export function tracked(track: Track, value: number, max: number, now: number): Track {
  if (max <= 1) return track;
  const from = { ...track, firstAt: now, first: value, lastAt: now, value, max };
  if (max !== track.max || value < track.value) return { ...from, late: value > 1 };
  if (value === track.value) return track;
  // Steps that come all at once were told late, e.g. to a page that was just opened: they say nothing of the pace.
  if (now - track.lastAt < AT_ONCE) return { ...from, late: true };
  if (track.late) return { ...from, late: false };
  return { ...track, lastAt: now, value };
}

/** Milliseconds of one step as seen in this run, or null before two steps were seen. */
function seenStep(track: Track): number | null {
  const steps = track.value - track.first;
  return track.max > 0 && steps > 0 ? (track.lastAt - track.firstAt) / steps : null;
}

/** Milliseconds left, or null while nothing is known. `steps` is what the job will take in all. */
export function timeLeft(track: Track, steps: number, pace: Pace | null, now: number): number | null {
  const step = seenStep(track) ?? pace?.step ?? null;
  if (step === null) return null;
  const after = pace?.after ?? step;
  if (track.max === 0) {
    const before = pace?.before ?? 0;
    const waited = now - track.startedAt;
    return Math.max(0, before - waited) + steps * step + after;
  }
  const sinceStep = now - track.lastAt;
  // Past the time of its step the estimate stands still instead of running into the next one.
  return Math.max(0, (track.max - track.value) * step - Math.min(step, sinceStep)) + after;
}

/** The pace of a finished run, mixed with what was known so that one odd run does not spoil it. */
export function learned(old: Pace | null, track: Track, endedAt: number): Pace | null {
  const step = seenStep(track);
  if (step === null) return old;
  const fresh: Pace = {
    step,
    before: Math.max(0, track.firstAt - track.startedAt - step * track.first),
    after: Math.max(0, endedAt - track.lastAt),
  };
  if (!old) return fresh;
  const mix = (a: number, b: number) => a * 0.4 + b * 0.6;
  return { step: mix(old.step, fresh.step), before: mix(old.before, fresh.before), after: mix(old.after, fresh.after) };
}

/** Runs of the same model and size take about the same time. */
export function paceKey(model: string, width: number, height: number): string {
  return `${model}|${width}x${height}`;
}

/** A known pace of the model, at this size or carried over by the number of pixels. */
export function paceFor(known: Record<string, Pace>, model: string, width: number, height: number): Pace | null {
  const exact = known[paceKey(model, width, height)];
  if (exact) return exact;
  const pixels = width * height;
  let best: { pace: Pace; ratio: number } | null = null;
  for (const [key, pace] of Object.entries(known)) {
    const match = /^(.*)\|(\d+)x(\d+)$/.exec(key);
    if (!match || match[1] !== model) continue;
    const ratio = pixels / (Number(match[2]) * Number(match[3]));
    if (!best || Math.abs(Math.log(ratio)) < Math.abs(Math.log(best.ratio))) best = { pace, ratio };
  }
  if (!best) return null;
  const { pace, ratio } = best;
  return { step: pace.step * ratio, before: pace.before, after: pace.after * ratio };
}

/** How much longer an estimate must be than the one shown before it is shown: less is only the measure swinging. */
const LONGER = 1.3;
const LONGER_BY = 3000;

/** The estimate to show after `shown` was: it goes down as it comes, and up only when the time left really grew. */
export function steadied(shown: number | null, estimate: number | null): number | null {
  if (shown === null || estimate === null) return estimate ?? shown;
  return estimate > shown * LONGER + LONGER_BY ? estimate : Math.min(shown, estimate);
}

const SOON = 1500;

/** "about 12 s left". Rounded, because an estimate that counts every second looks like a promise. `begun`: most of it is
 *  done; a picture that takes no longer than a moment is not "almost done" from its start on. */
export function leftWords(ms: number | null, begun: boolean): string {
  if (ms === null) return "";
  const s = ms / 1000;
  if (ms < SOON) return begun ? "almost done" : "";
  if (s < 10) return `about ${Math.round(s)} s left`;
  if (s < 55) return `about ${Math.round(s / 5) * 5} s left`;
  if (s < 90) return "about a minute left";
  if (s < 3600) return `about ${Math.round(s / 60)} min left`;
  return `about ${Math.round(s / 360) / 10} h left`;
}
