// One result in the grid: its picture, what it was asked for, and the marks for selecting and liking it.
import { memo, type MouseEvent, useEffect } from "react";
import type { Job } from "../api/types";
import { Icon, IconButton } from "../ui";
import { want } from "./known";
import { fileRef } from "./outputs";
import { detailHash } from "./route";
import { duration, modelName, type Summary } from "./settings";
import { Stand, Thumb } from "./Thumb";
import thumb from "./Thumb.module.css";
import css from "./Tile.module.css";

export interface TileProps {
  job: Job;
  summary: Summary | undefined;
  selected: boolean;
  selecting: boolean;
  favourite: boolean;
  index: number;
  onToggle(id: string, range: boolean): void;
  onFavourite(id: string, on: boolean): void;
}

/** Time it took to make, in milliseconds. */
export function tookMs(job: Job): number | undefined {
  return job.execution_start_time && job.execution_end_time ? job.execution_end_time - job.execution_start_time : undefined;
}

function Face({ job, summary }: { job: Job; summary: Summary | undefined }) {
  if (job.status === "failed") {
    return (
      <div className={`${thumb.stand} ${thumb.bad}`}>
        <Icon name="warning" size={28} />
        <span className={css.reason}>{job.execution_error?.exception_message || "It failed"}</span>
      </div>
    );
  }
  const file = fileRef(job.preview_output) ?? summary?.outputs.files[0]?.file;
  if (file) return <Thumb file={file} alt="" />;
  if (job.status === "cancelled")
    return (
      <div className={thumb.stand}>
        <Icon name="stop" size={28} />
        <span>Cancelled</span>
      </div>
    );
  const text = summary?.outputs.texts[0]?.text;
  if (text) return <div className={thumb.words}>{text.slice(0, 400)}</div>;
  return summary ? <Stand kind="file" name="Nothing to show" /> : <div className={css.wait} />;
}

const STATUS: Partial<Record<Job["status"], string>> = { failed: "Failed" };

export const Tile = memo(function Tile({ job, summary, selected, selecting, favourite, index, onToggle, onFavourite }: TileProps) {
  useEffect(() => {
    if (!summary) want(job.id);
  }, [job.id, summary]);
  const title = summary?.title ?? "…";
  const count = job.outputs_count ?? 0;
  const facts = [summary?.size, duration(tookMs(job)), summary?.seed && `seed ${summary.seed}`].filter(Boolean).join(" · ");
  const made = summary?.model ? modelName(summary.model) : summary?.workflow;

  const open = (e: MouseEvent) => {
    if (!selecting && !e.ctrlKey && !e.metaKey && !e.shiftKey) return;
    e.preventDefault();
    onToggle(job.id, e.shiftKey);
  };
  return (
    <article className={selected ? `${css.tile} ${css.selected}` : css.tile}>
      <a className={css.link} href={detailHash(job.id)} data-index={index} onClick={open}>
        <div className={css.face}>
          <Face job={job} summary={summary} />
        </div>
        <div className={css.caption}>
          <div className={css.title}>
            {STATUS[job.status] && <span className="hidden-visually">{STATUS[job.status]}: </span>}
            {title}
          </div>
          <div className={css.facts}>{facts || " "}</div>
          <div className={css.facts}>{made ?? " "}</div>
        </div>
      </a>
      {count > 1 && (
        <span className={css.count}>
          <Icon name="layers" size={14} /> {count}
          <span className="hidden-visually"> files</span>
        </span>
      )}
      <label className={selecting || selected ? `${css.pick} ${css.shown}` : css.pick}>
        <input
          type="checkbox"
          checked={selected}
          aria-label={`Select ${title.slice(0, 60)}`}
          onChange={(e) => onToggle(job.id, (e.nativeEvent as unknown as { shiftKey?: boolean }).shiftKey === true)}
        />
      </label>
      <span className={favourite ? `${css.star} ${css.shown}` : css.star}>
        <IconButton
          size="s"
          label={favourite ? "Remove from favourites" : "Add to favourites"}
          icon="star"
          pressed={favourite}
          onClick={() => onFavourite(job.id, !favourite)}
        />
      </span>
    </article>
  );
});
