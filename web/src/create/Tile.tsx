// What one job of a press shows: waiting, growing, its pictures, films and sounds, failed or cancelled.
import { type CSSProperties, useEffect, useRef, useState } from "react";
import { viewUrl } from "../api/client";
import type { FileRef, Job } from "../api/types";
import { setHeld, tell } from "../gallery/queue";
import { runOf, useLive } from "../state/live";
import { Button, Icon, Progress } from "../ui";
import { phaseOf } from "./build";
import { problemOfRun } from "./errors";
import { leftWords, steadied } from "./estimate";
import { placeInLine } from "./groups";
import { isSampler, leftOf, useWatched } from "./pace";
import { ProblemNote } from "./ProblemNote";
import { fileKey, kindOf } from "../gallery/outputs";
import { shownOf, useDetails, valuesOf } from "./results";
import css from "./Tile.module.css";

/** What a picture is called that was made from an empty prompt. */
export const UNTITLED = "Untitled";

export interface TileProps {
  job: Job;
  /** One of several: small words, no long texts. */
  small: boolean;
  /** One of very many: a packed copy does. */
  tiny: boolean;
  onOpen(file: FileRef): void;
  onCancel(): void;
  onRetry(): void;
}

export function Tile({ job, small, tiny, onOpen, onCancel, onRetry }: TileProps) {
  const details = useDetails(job);
  const values = valuesOf(details);
  const files = shownOf(details);
  const ratio = values ? values.width / values.height : 1;
  const alt = values?.prompt.trim() || UNTITLED;
  const running = job.status === "in_progress";
  const grown = useLastPreview(job.id);

  // Details from before the end are no answer yet.
  if (job.status === "completed" && details?.status === "completed" && files.length === 0) {
    return (
      <div className={css.frame} style={shape(ratio)}>
        <div className={css.middle}>
          <Icon name="info" size={28} />
          <p>This job finished without a picture.</p>
        </div>
      </div>
    );
  }
  if (job.status === "completed") {
    return (
      <>
        {files.length === 0 && (
          <div className={css.frame} style={shape(ratio)}>
            <Growing url={grown} />
          </div>
        )}
        {files.map((file) =>
          kindOf(file.filename) === "picture" ? (
            <Finished key={fileKey(file)} file={file} under={grown} ratio={ratio} alt={alt} tiny={tiny} onOpen={() => onOpen(file)} />
          ) : (
            <Played key={fileKey(file)} file={file} alt={alt} />
          ),
        )}
      </>
    );
  }
  if (job.status === "failed") {
    return (
      <div className={css.failed}>
        <ProblemNote problem={problemOfRun(job.execution_error ?? details?.execution_error)} onRetry={onRetry} />
      </div>
    );
  }
  if (job.status === "cancelled") {
    return (
      <div className={css.frame} style={shape(ratio)}>
        <div className={css.middle}>
          <Icon name="close" size={28} />
          <p>Cancelled</p>
          <Button size="s" icon="refresh" onClick={onRetry}>
            Try again
          </Button>
        </div>
      </div>
    );
  }
  if (!running)
    return (
      <div className={css.frame} style={shape(ratio)}>
        <Waiting job={job} onCancel={onCancel} />
      </div>
    );
  const words = <Running job={job} small={small} onCancel={onCancel} />;
  return (
    <>
      <div className={css.frame} style={shape(ratio)}>
        <Growing url={grown} alt={`Growing: ${alt}`} />
        {small && <div className={css.overlay}>{words}</div>}
      </div>
      {!small && <div className={css.below}>{words}</div>}
    </>
  );
}

/** A frame has the shape of its picture and never grows out of sight. */
function shape(ratio: number): CSSProperties {
  return { aspectRatio: ratio, "--ratio": ratio } as CSSProperties;
}

/** The last preview of a job stays until its picture is there. */
function useLastPreview(id: string): string | null {
  const url = useLive((s) => s.previews[id]?.url ?? null);
  const last = useRef<string | null>(null);
  if (url) last.current = url;
  return last.current;
}

function Growing({ url, alt }: { url: string | null; alt?: string }) {
  const [shown, setShown] = useState<string | null>(null);
  // The next preview is decoded before it takes the place of the last one; otherwise the frame is empty in between.
  useEffect(() => {
    if (!url) return;
    let gone = false;
    const next = new Image();
    next.src = url;
    next.decode().then(
      () => !gone && setShown(url),
      () => undefined,
    );
    return () => {
      gone = true;
    };
  }, [url]);
  if (!shown) return <div className={css.shimmer} />;
  return <img className={css.image} src={shown} alt={alt ?? ""} />;
}

/** A film or a sound, with the browser's own player. */
function Played({ file, alt }: { file: FileRef; alt: string }) {
  const [gone, setGone] = useState(false);
  const url = viewUrl(file);
  if (gone)
    return (
      <div className={css.frame} style={shape(16 / 9)}>
        <span className={css.middle}>
          <Icon name="imageOff" size={28} />
          The file is gone
        </span>
      </div>
    );
  if (kindOf(file.filename) === "audio")
    return (
      <div className={css.sound}>
        <Icon name="sound" size={40} />
        <audio src={url} controls aria-label={alt} onError={() => setGone(true)} />
      </div>
    );
  return <video className={css.film} src={url} controls loop playsInline preload="metadata" aria-label={alt} onError={() => setGone(true)} />;
}

/** Comes in over what was there before, once it is loaded. */
function Finished({
  file,
  under,
  ratio,
  alt,
  tiny,
  onOpen,
}: {
  file: FileRef;
  under: string | null;
  ratio: number;
  alt: string;
  tiny: boolean;
  onOpen(): void;
}) {
  const [state, setState] = useState<"loading" | "loaded" | "gone">("loading");
  // Graphs of others do not always say how large their pictures are.
  const [own, setOwn] = useState(ratio);
  if (state === "gone") {
    return (
      <div className={css.frame} style={shape(ratio)}>
        <span className={css.middle} role="img" aria-label={`${alt} (the file is gone)`}>
          <Icon name="image" size={28} />
          The file is gone
        </span>
      </div>
    );
  }
  return (
    <button type="button" className={css.frame} style={shape(own)} onClick={onOpen} title="View larger">
      {under && state === "loading" && <img className={css.image} src={under} alt="" />}
      <img
        className={`${css.image} ${under ? css.over : ""}`}
        src={viewUrl(file, tiny ? { preview: "webp", quality: 85 } : undefined)}
        alt={alt}
        loading={tiny ? "lazy" : undefined}
        decoding="async"
        onError={() => setState("gone")}
        onLoad={(e) => {
          setState("loaded");
          setOwn(e.currentTarget.naturalWidth / e.currentTarget.naturalHeight);
        }}
      />
    </button>
  );
}

/** Renders again every half second, for what counts down. */
function useTick(): number {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, []);
  return now;
}

function Running({ job, small, onCancel }: { job: Job; small: boolean; onCancel(): void }) {
  const running = useLive((s) => runOf(s, job.id));
  const watched = useWatched((s) => (s.job?.id === job.id ? s.job : null));
  const connected = useLive((s) => s.connected);
  const now = useTick();
  const kind = running?.node ? watched?.prompt?.[running.node]?.class_type : undefined;
  const drawing = isSampler(kind) && (running?.max ?? 0) > 1;
  const track = watched?.track;
  const done = !drawing && track && track.max > 0;
  // What is shown goes on from what was shown; another run of the same job starts afresh.
  const shown = useRef<{ run: number; left: number | null }>({ run: 0, left: null });
  if (watched && shown.current.run !== watched.track.startedAt) shown.current = { run: watched.track.startedAt, left: null };
  if (watched) shown.current.left = steadied(shown.current.left, leftOf(watched, Math.max(now, watched.track.lastAt)));
  const mostly = track !== undefined && track.max > 0 && track.value * 2 >= track.max;
  const left = watched && connected ? leftWords(shown.current.left, mostly) : "";
  // Its end is told a moment before its picture is there.
  const idle = !connected ? "Waiting for Fresco" : mostly && track.value >= track.max ? "Finishing" : "Starting";
  const what = drawing ? `Step ${running?.value ?? 0} of ${running?.max ?? 0}` : running?.node ? phaseOf(kind) : idle;
  return (
    <>
      <div className={css.words}>
        <span className={css.what}>{what}</span>
        {left && (!small || !drawing) && <span className={css.left}>{left}</span>}
        <Button size="s" variant="plain" icon="stop" onClick={onCancel}>
          Cancel
        </Button>
      </div>
      <Progress label="Progress of the picture" value={drawing ? (running?.value ?? 0) : done ? 1 : 0} max={drawing ? (running?.max ?? 0) : done ? 1 : 0} />
    </>
  );
}

function Waiting({ job, onCancel }: { job: Job; onCancel(): void }) {
  const before = useLive((s) => placeInLine(job, s.jobs));
  const paused = useLive((s) => s.queue.paused);
  const words = job.held ? "On hold" : paused ? "The queue is paused" : before ? `Waiting, ${before} ahead of this one` : "Next in line";
  return (
    <div className={css.middle}>
      <Icon name="clock" size={28} />
      <p>{words}</p>
      {job.held_reason && <p className={css.reason}>{job.held_reason}</p>}
      {job.held && (
        <Button size="s" icon="play" onClick={() => tell(setHeld(job.id, false), "Could not be released")}>
          Release
        </Button>
      )}
      <Button size="s" variant="quiet" icon="close" onClick={onCancel}>
        Cancel
      </Button>
    </div>
  );
}
