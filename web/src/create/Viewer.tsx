// A picture as large as the screen allows, with its facts and what can be done with it; arrow keys walk through the press.
import { useRef } from "react";
import { viewUrl } from "../api/client";
import type { FileRef, Job, JobDetails } from "../api/types";
import { jobDetails } from "../state/live";
import { IconButton } from "../ui";
import { Actions } from "./Actions";
import { fileKey } from "../gallery/outputs";
import { countOf, type Group } from "./groups";
import { UNTITLED } from "./Tile";
import { modelLabel } from "./modelLabel";
import { picturesOf, useDetails, valuesOf } from "./results";
import type { CreateValues } from "./values";
import { useModal } from "./useModal";
import css from "./Viewer.module.css";

export interface ViewerProps {
  group: Group;
  at: { job: Job; file: FileRef };
  onMove(at: { job: Job; file: FileRef }): void;
  onClose(): void;
}

export function Viewer({ group, at, onMove, onClose }: ViewerProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const details = useDetails(at.job);
  const values = valuesOf(details);
  const done = group.jobs.filter((j) => j.status === "completed");
  const index = done.findIndex((j) => j.id === at.job.id);
  const files = picturesOf(details);
  const place = files.findIndex((f) => fileKey(f) === fileKey(at.file));
  const several = countOf({ ...group, jobs: done }) > 1;
  useModal(dialog);
  /** The next picture of this job, then those of the next job. */
  const move = async (by: 1 | -1) => {
    const next = place < 0 ? undefined : files[place + by];
    if (next) return onMove({ job: at.job, file: next });
    const job = done[(index + by + done.length) % done.length];
    if (!job) return;
    const file = picturesOf(await jobDetails(job.id)).at(by > 0 ? 0 : -1);
    if (file) onMove({ job, file });
  };
  return (
    <dialog
      ref={dialog}
      className={css.viewer}
      aria-label="Larger view"
      onCancel={(e) => {
        if (e.target !== e.currentTarget) return;
        e.preventDefault();
        onClose();
      }}
      onKeyDown={(e) => {
        if ((e.target as HTMLElement).closest("[role=menu]")) return;
        if (e.key === "ArrowRight") void move(1);
        if (e.key === "ArrowLeft") void move(-1);
      }}
    >
      <div className={css.picture} onClick={(e) => e.target === e.currentTarget && onClose()}>
        <img src={viewUrl(at.file)} alt={values?.prompt || UNTITLED} />
        {several && (
          <>
            <IconButton className={css.previous} variant="plain" label="Previous picture" icon="left" onClick={() => void move(-1)} />
            <IconButton className={css.next} variant="plain" label="Next picture" icon="right" onClick={() => void move(1)} />
          </>
        )}
      </div>
      <IconButton className={css.close} variant="plain" label="Close" icon="close" onClick={onClose} />
      <div className={css.foot}>
        {details && <Facts details={details} values={values} file={at.file} />}
        {details && <Actions details={details} file={at.file} onLeave={onClose} />}
      </div>
    </dialog>
  );
}

function Facts({ details, values, file }: { details: JobDetails; values: CreateValues | null; file: FileRef }) {
  const took = details.execution_end_time && details.execution_start_time ? (details.execution_end_time - details.execution_start_time) / 1000 : null;
  return (
    <div className={css.facts}>
      {values?.prompt && <p className={css.prompt}>{values.prompt}</p>}
      <p className={css.small}>
        {values
          ? [
              values.redraw && `seed ${values.seed}`,
              `${values.width} × ${values.height}`,
              values.redraw ? `${values.steps} steps` : "only upscaled",
              values.redraw && modelLabel(values.model),
              took !== null && `${took < 10 ? took.toFixed(1) : Math.round(took)} s`,
            ]
              .filter(Boolean)
              .join(" · ")
          : file.filename}
      </p>
    </div>
  );
}
