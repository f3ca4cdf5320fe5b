// What runs now: progress in words and as a bar, the picture as it grows, and a way to stop it.
import { useEffect, useRef, useState } from "react";
import { sendJson } from "../api/client";
import type { ApiPrompt, ObjectInfo } from "../api/types";
import { runOf, useLive } from "../state/live";
import { secondsLeft } from "../state/progress";
import { Button, Icon, Progress, toast } from "../ui";
import { titleOf } from "./graph";
import { sentenceOf } from "./open";
import type { Run } from "./useRuns";
import css from "./RunPanel.module.css";

export async function cancelRun(id: string): Promise<void> {
  await sendJson("POST", `/api/jobs/${encodeURIComponent(id)}/cancel`);
}

export function RunPanel({ run, waiting, prompt, info }: { run: Run; waiting: number; prompt: ApiPrompt; info: ObjectInfo }) {
  const running = useLive((s) => runOf(s, run.id));
  const preview = useLive((s) => s.previews[run.id]?.url ?? null);
  const ahead = useLive((s) => {
    const active = s.jobs.filter((job) => (job.status === "pending" && !job.held) || job.status === "in_progress");
    return Math.max(
      0,
      active.findIndex((job) => job.id === run.id),
    );
  });
  const paused = useLive((s) => s.queue.paused);
  const held = useLive((s) => Boolean(s.jobs.find((job) => job.id === run.id)?.held));
  const reason = useLive((s) => s.jobs.find((job) => job.id === run.id)?.held_reason ?? "");
  const [stopping, setStopping] = useState(false);
  const left = useTimeLeft(running?.node, running?.value ?? 0, running?.max ?? 0);

  const stop = async () => {
    setStopping(true);
    try {
      await cancelRun(run.id);
    } catch (e) {
      toast(sentenceOf(e), "bad");
      setStopping(false);
    }
  };

  const step = running?.node && prompt[running.node] ? titleOf(prompt, info, running.node) : "";
  const counted = running && running.max > 1;
  const words =
    run.status === "pending" && !running
      ? held
        ? `On hold. ${reason ? `${reason.replace(/[.\s]+$/, "")}. ` : ""}Release it in Gallery.`
        : paused
          ? "The queue is paused."
          : ahead > 0
            ? `Waiting, ${ahead} ahead of this one`
            : "Starting…"
      : counted
        ? `${step ? `${step}: step` : "Step"} ${running.value} of ${running.max}${left === null ? "" : `, about ${timeWords(left)} left`}`
        : step || "Working…";
  // Read out at the start and after each quarter; every step would be too much.
  const quarters = counted ? Math.floor((running.value / running.max) * 4) * 25 : 0;
  return (
    <section className={css.panel} aria-label="Running">
      <p className="hidden-visually" role="status">
        {quarters > 0 ? `${quarters} percent` : run.status === "pending" ? "Waiting" : "Running"}
      </p>
      <div className={css.stage}>
        {preview ? (
          <img src={preview} alt="The picture so far" className={css.preview} />
        ) : (
          <span className={css.empty}>
            <Icon name="image" size={36} />
          </span>
        )}
      </div>
      <Progress value={counted ? running.value : 0} max={counted ? running.max : 0} label="Progress of this run" text={words} />
      <div className={css.foot}>
        <span>{waiting > 0 && `${waiting} more waiting`}</span>
        <Button icon="stop" busy={stopping} onClick={() => void stop()}>
          Cancel
        </Button>
      </div>
    </section>
  );
}

/** Seconds left of the present step, from its pace so far. */
function useTimeLeft(node: string | undefined, value: number, max: number): number | null {
  const marks = useRef<{ node: string | undefined; list: { value: number; at: number }[] }>({ node: undefined, list: [] });
  const [left, setLeft] = useState<number | null>(null);
  useEffect(() => {
    if (marks.current.node !== node) marks.current = { node, list: [] };
    if (max > 1) marks.current.list.push({ value, at: Date.now() });
    setLeft(secondsLeft(marks.current.list, max));
  }, [node, value, max]);
  return left;
}

function timeWords(seconds: number): string {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  return `${Math.round(seconds / 60)} min`;
}
