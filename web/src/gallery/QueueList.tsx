// Waiting jobs in the order they will run; moved by dragging their handle or with keys and buttons.
import { type KeyboardEvent, type PointerEvent, useRef, useState } from "react";
import type { Job } from "../api/types";
import { Icon, IconButton, Menu } from "../ui";
import { dropPlace, type Move, moved, movedTo } from "./order";
import { cancel, setHeld, setOrder, tell } from "./queue";
import { useQueueTitle } from "./queueTitles";
import { detailHash } from "./route";
import css from "./Queue.module.css";

interface Drag {
  id: string;
  y: number;
  startY: number;
  place: number;
}

interface RowProps {
  job: Job;
  place: number;
  count: number;
  shift: number;
  dragged: boolean;
  onMove(id: string, move: Move): void;
  onGrab(e: PointerEvent, id: string): void;
}

function Row({ job, place, count, shift, dragged, onMove, onGrab }: RowProps) {
  const title = useQueueTitle(job.id);
  const held = job.held === true;
  const keys = (e: KeyboardEvent) => {
    const move = ({ ArrowUp: "up", ArrowDown: "down", Home: "top", End: "bottom" } as const)[e.key];
    if (!move) return;
    e.preventDefault();
    onMove(job.id, move);
  };
  const name = title.slice(0, 60);
  return (
    <li
      className={[css.row, dragged && css.dragged, held && css.held].filter(Boolean).join(" ")}
      style={shift ? { transform: `translateY(${shift}px)` } : undefined}
      data-id={job.id}
    >
      <button
        type="button"
        className={css.handle}
        aria-label={`Move ${name}: place ${place + 1} of ${count}. Arrow keys move it.`}
        onKeyDown={keys}
        onPointerDown={(e) => onGrab(e, job.id)}
      >
        <Icon name="drag" />
      </button>
      <a className={css.rowTitle} href={detailHash(job.id)}>
        <span className={css.title}>{title}</span>
        <span className={css.state}>{held ? (job.held_reason ? `On hold: ${job.held_reason}` : "On hold") : place === 0 ? "Next" : `Place ${place + 1}`}</span>
      </a>
      <IconButton
        size="s"
        icon={held ? "play" : "pause"}
        label={`${held ? "Release" : "Hold"} ${name}`}
        pressed={held}
        onClick={() => tell(setHeld(job.id, !held), held ? "Could not be released" : "Could not be put on hold")}
      />
      <Menu
        button={{ label: `More for ${name}`, icon: "more", size: "s" }}
        items={[
          { label: "Move to the top", icon: "up", disabled: place === 0, onSelect: () => onMove(job.id, "top") },
          { label: "Move up", icon: "up", disabled: place === 0, onSelect: () => onMove(job.id, "up") },
          { label: "Move down", icon: "down", disabled: place === count - 1, onSelect: () => onMove(job.id, "down") },
        ]}
      />
      <IconButton size="s" icon="close" label={`Cancel ${name}`} onClick={() => tell(cancel([job.id]), "Could not be cancelled")} />
    </li>
  );
}

export function QueueList({ jobs }: { jobs: Job[] }) {
  const list = useRef<HTMLOListElement>(null);
  const [drag, setDrag] = useState<Drag | null>(null);
  const [said, setSaid] = useState("");
  const order = jobs.map((j) => j.id);

  const send = (next: readonly string[], id: string) => {
    if (next === order) return;
    setSaid(`Now at place ${next.indexOf(id) + 1} of ${next.length}`);
    tell(setOrder(next), "The order could not be changed");
    // The row moves in the page; its handle keeps the focus for the next key.
    requestAnimationFrame(() => list.current?.querySelector<HTMLElement>(`[data-id="${CSS.escape(id)}"] button`)?.focus());
  };
  const onMove = (id: string, move: Move) => send(moved(order, id, move), id);

  const onGrab = (e: PointerEvent, id: string) => {
    if (e.button !== 0) return;
    const handle = e.currentTarget as HTMLElement;
    handle.setPointerCapture(e.pointerId);
    const rows = [...(list.current?.children ?? [])] as HTMLElement[];
    // Middles as they were when the drag began: rows that make room must not change where the pointer is.
    const middles = rows.filter((r) => r.dataset.id !== id).map((r) => r.getBoundingClientRect().top + scrollY + r.offsetHeight / 2);
    const start = e.clientY + scrollY;
    let now: Drag = { id, y: start, startY: start, place: order.indexOf(id) };
    setDrag(now);
    const move = (m: globalThis.PointerEvent) => {
      now = { ...now, y: m.clientY + scrollY, place: dropPlace(middles, m.clientY + scrollY) };
      setDrag(now);
    };
    const end = (m: globalThis.PointerEvent) => {
      handle.removeEventListener("pointermove", move);
      handle.removeEventListener("pointerup", end);
      handle.removeEventListener("pointercancel", end);
      setDrag(null);
      if (m.type === "pointerup" && Math.abs(now.y - now.startY) > 4) send(movedTo(order, id, now.place), id);
    };
    handle.addEventListener("pointermove", move);
    handle.addEventListener("pointerup", end);
    handle.addEventListener("pointercancel", end);
  };

  const from = drag ? order.indexOf(drag.id) : -1;
  const height = (list.current?.children[Math.max(0, from)] as HTMLElement | undefined)?.offsetHeight ?? 0;
  const shift = (i: number): number => {
    if (!drag || from < 0) return 0;
    if (i === from) return drag.y - drag.startY;
    if (i > from && i <= drag.place) return -height - 8;
    if (i < from && i >= drag.place) return height + 8;
    return 0;
  };
  return (
    <>
      <ol ref={list} className={css.list}>
        {jobs.map((job, i) => (
          <Row key={job.id} job={job} place={i} count={jobs.length} shift={shift(i)} dragged={drag?.id === job.id} onMove={onMove} onGrab={onGrab} />
        ))}
      </ol>
      <p className="hidden-visually" role="status">
        {said}
      </p>
    </>
  );
}
