// Recent presses as small pictures, newest first; what runs and waits is among them.
import { memo, useState } from "react";
import { viewUrl } from "../api/client";
import { Icon } from "../ui";
import { countOf, type Group, hasPicture, isActive, isComing, kindOfJob } from "./groups";
import { UNTITLED } from "./Tile";
import { useDetails, valuesOf } from "./results";
import css from "./Strip.module.css";

export interface StripProps {
  groups: Group[];
  shown: string | null;
  onShow(id: string): void;
}

const SHOWN = 24;

export const Strip = memo(function Strip({ groups, shown, onShow }: StripProps) {
  // What was cancelled is only shown while it is looked at.
  const listed = groups.filter((g) => g.id === shown || g.jobs.some((j) => j.status !== "cancelled"));
  return (
    <nav className={css.strip} aria-label="Recent pictures">
      <ul>
        {listed.slice(0, SHOWN).map((g) => (
          <li key={g.id}>
            <Thumb group={g} current={g.id === shown} onShow={() => onShow(g.id)} />
          </li>
        ))}
      </ul>
      <a className={css.all} href="#/gallery">
        All pictures
      </a>
    </nav>
  );
});

function Thumb({ group, current, onShow }: { group: Group; current: boolean; onShow(): void }) {
  const done = group.jobs.find(hasPicture);
  const [gone, setGone] = useState(false);
  const words = valuesOf(useDetails(group.jobs[0]))?.prompt.trim() || UNTITLED;
  const active = group.jobs.some(isActive);
  const running = group.jobs.some((j) => j.status === "in_progress");
  const held = active && !group.jobs.some(isComing);
  // A job that ended well was not cancelled, whatever it made.
  const ended = group.jobs.find((j) => j.status === "completed");
  const kind = ended && kindOfJob(ended);
  const count = countOf(group);
  const state = running
    ? "being drawn"
    : held
      ? "on hold"
      : active
        ? "waiting"
        : !ended
          ? group.jobs.some((j) => j.status === "failed")
            ? "failed"
            : "cancelled"
          : "";
  return (
    <button
      type="button"
      className={css.thumb}
      aria-current={current || undefined}
      title={words}
      onClick={onShow}
      aria-label={[words, count > 1 && `${count} pictures`, kind === "video" ? "video" : kind === "audio" && "sound", state].filter(Boolean).join(", ")}
    >
      {done?.preview_output && !gone ? (
        <img src={viewUrl(done.preview_output, { preview: "webp", quality: 75 })} alt="" loading="lazy" decoding="async" onError={() => setGone(true)} />
      ) : (
        <Icon
          name={
            ended && !active
              ? gone
                ? "imageOff"
                : kind === "video"
                  ? "film"
                  : kind === "audio"
                    ? "sound"
                    : "file"
              : running
                ? "create"
                : held
                  ? "pause"
                  : active
                    ? "clock"
                    : state === "failed"
                      ? "warning"
                      : "close"
          }
        />
      )}
      {running && <span className={css.dot} />}
      {count > 1 && <span className={css.many}>{count}</span>}
    </button>
  );
}
