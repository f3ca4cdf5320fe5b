// The queue: what runs now, what waits and in which order; pausing, holding, moving and cancelling.
import { useEffect, useState } from "react";
import type { Job } from "../api/types";
import { runOf, useLive } from "../state/live";
import { Button, Dialog, Icon, Progress } from "../ui";
import { QueueList } from "./QueueList";
import { cancel, setPaused, tell, waiting } from "./queue";
import { useQueueTitle } from "./queueTitles";
import { detailHash } from "./route";
import { duration } from "./settings";
import css from "./Queue.module.css";

/** Time since a moment, counted on while it is shown. */
function useElapsed(since: number): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return Math.max(0, now - since);
}

export function RunningCard({ job }: { job: Job }) {
  const running = useLive((s) => runOf(s, job.id));
  const preview = useLive((s) => s.previews[job.id] ?? null);
  const title = useQueueTitle(job.id);
  const elapsed = useElapsed(running?.startedAt ?? 0);
  const connected = useLive((s) => s.connected);
  const [stopping, setStopping] = useState(false);
  const step = !connected ? "Waiting for Fresco" : running && running.max > 1 ? `Step ${running.value} of ${running.max}` : "Working";
  // Before the server has told when this run began, any time would be a guess.
  const words = running?.begun ? `${step} · ${duration(elapsed)}` : step;
  return (
    <article className={css.running} aria-label={`Running: ${title}`}>
      <div className={css.preview}>{preview ? <img src={preview.url} alt="The picture so far" /> : <Icon name="wand" size={28} />}</div>
      <div className={css.words}>
        <a className={css.title} href={detailHash(job.id)}>
          {title}
        </a>
        <Progress thin value={running?.value ?? 0} max={running?.max ?? 0} label={`Progress of ${title}`} text={words} />
        <Button
          size="s"
          icon="stop"
          busy={stopping}
          onClick={() => {
            setStopping(true);
            tell(
              cancel([job.id]).finally(() => setStopping(false)),
              "Could not be cancelled",
            );
          }}
        >
          Cancel
        </Button>
      </div>
    </article>
  );
}

export function QueuePanel() {
  const jobs = useLive((s) => s.jobs);
  const loaded = useLive((s) => s.loaded);
  const paused = useLive((s) => s.queue.paused);
  const [clearing, setClearing] = useState(false);
  const active = jobs.filter((j) => j.status === "in_progress");
  const pending = waiting(jobs);
  const empty = loaded && active.length === 0 && pending.length === 0;
  return (
    <section className={css.panel} aria-label="Queue" data-empty={(empty && !paused) || undefined}>
      <div className={css.head}>
        <h2>Queue</h2>
        {empty && <p className={css.empty}>The queue is empty.</p>}
        <Button size="s" icon={paused ? "play" : "pause"} onClick={() => tell(setPaused(!paused), paused ? "Could not resume" : "Could not pause")}>
          {paused ? "Resume" : "Pause"}
        </Button>
        {pending.length > 0 && (
          <Button size="s" variant="danger" icon="trash" onClick={() => setClearing(true)}>
            Clear
          </Button>
        )}
      </div>
      {paused && (
        <p className={css.paused} role="status">
          <Icon name="pause" size={18} /> Paused. {active.length > 0 ? "The running job goes on; nothing new starts." : "Nothing starts until you resume."}
        </p>
      )}
      {active.map((job) => (
        <RunningCard key={job.id} job={job} />
      ))}
      {pending.length > 0 && <QueueList jobs={pending} />}
      <Dialog
        open={clearing}
        onClose={() => setClearing(false)}
        title="Clear the queue?"
        actions={
          <>
            <Button onClick={() => setClearing(false)}>{pending.length === 1 ? "Keep it" : "Keep them"}</Button>
            <Button
              variant="danger"
              icon="trash"
              onClick={() => {
                setClearing(false);
                tell(cancel(pending.map((j) => j.id)), "The queue could not be cleared");
              }}
            >
              Cancel {pending.length === 1 ? "1 job" : `${pending.length} jobs`}
            </Button>
          </>
        }
      >
        <p>
          {pending.length === 1 ? "The waiting job" : `All ${pending.length} waiting jobs`} will be cancelled.{" "}
          {active.length > 0 ? "The running one goes on." : ""} You can find {pending.length === 1 ? "it" : "them"} in Gallery with the filter “Cancelled” and
          run {pending.length === 1 ? "it" : "them"} again.
        </p>
      </Dialog>
    </section>
  );
}
