// The results as a grid grouped by day; only what is near the window is drawn, so that thousands stay quick.
import { type KeyboardEvent, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { Job } from "../api/types";
import { toast } from "../ui";
import { groupByDay } from "./days";
import { useFavourites } from "./favourites";
import { useKnown } from "./known";
import { useSession, wasAt } from "./session";
import { Tile } from "./Tile";
import { type GridLayout, type GridSizes, layOut, neighbour, place, visible } from "./windowing";
import css from "./Grid.module.css";

const CAPTION = 78;
const HEADING = 44;
const GAP = 14;
/** Drawn beyond the edges of the window. */
const BEYOND = 600;

function sizesFor(width: number): GridSizes {
  return { width, tile: width < 520 ? 140 : 190, gap: GAP, caption: CAPTION, heading: HEADING };
}

/** The part of the element that is in the window, followed while anything scrolls. */
function useWindow(element: React.RefObject<HTMLDivElement | null>) {
  const [seen, setSeen] = useState({ width: 0, top: 0, bottom: 900 });
  useLayoutEffect(() => {
    let frame = 0;
    const measure = () => {
      frame = 0;
      const box = element.current?.getBoundingClientRect();
      if (!box) return;
      wasAt.scroll = scrollY;
      // In steps, so that not every pixel of scrolling draws anew.
      const top = Math.floor(-box.top / 100) * 100;
      const bottom = top + Math.ceil(innerHeight / 100) * 100 + 100;
      setSeen((old) => (old.width === box.width && old.top === top && old.bottom === bottom ? old : { width: box.width, top, bottom }));
    };
    const soon = () => {
      frame ||= requestAnimationFrame(measure);
    };
    // The first look must not overwrite where the grid was.
    const before = wasAt.scroll;
    measure();
    wasAt.scroll = before;
    const observer = new ResizeObserver(soon);
    if (element.current) observer.observe(element.current);
    document.addEventListener("scroll", soon, { capture: true, passive: true });
    addEventListener("resize", soon);
    return () => {
      cancelAnimationFrame(frame);
      observer.disconnect();
      document.removeEventListener("scroll", soon, { capture: true });
      removeEventListener("resize", soon);
    };
  }, [element]);
  return seen;
}

/** `more`: there are older results that were not fetched yet, so the last day's number is not its whole. */
export function Grid({ jobs, more, onEnd }: { jobs: Job[]; more: boolean; onEnd(): void }) {
  const root = useRef<HTMLDivElement>(null);
  const { width, top, bottom } = useWindow(root);
  const { selected, selecting, toggle, select } = useSession();
  const known = useKnown((s) => s.byId);
  useKnown((s) => s.version);
  const favourites = useFavourites((s) => s.ids);
  const days = useMemo(() => groupByDay(jobs, new Date()), [jobs]);
  const layout: GridLayout = useMemo(
    () =>
      layOut(
        days.map((d) => d.jobs.length),
        sizesFor(width),
      ),
    [days, width],
  );
  const flat = useMemo(() => days.flatMap((d) => d.jobs), [days]);
  const chosen = useMemo(() => new Set(selected), [selected]);
  const shown = width > 0 ? visible(layout, HEADING, top - BEYOND, bottom + BEYOND) : [];

  useEffect(() => {
    if (width > 0 && bottom + 2 * BEYOND > layout.height) onEnd();
  }, [bottom, layout.height, width, onEnd]);

  const last = useRef<string | null>(null);
  const flatNow = useRef(flat);
  flatNow.current = flat;
  const onToggle = useCallback(
    (id: string, range: boolean) => {
      const all = flatNow.current.map((j) => j.id);
      const [from, to] = [last.current ? all.indexOf(last.current) : -1, all.indexOf(id)];
      last.current = id;
      if (range && from >= 0 && to >= 0) {
        const between = all.slice(Math.min(from, to), Math.max(from, to) + 1);
        select([...new Set([...useSession.getState().selected, ...between])]);
      } else toggle(id);
    },
    [select, toggle],
  );
  const onFavourite = useCallback((id: string, on: boolean) => {
    useFavourites
      .getState()
      .set([id], on)
      .catch((e: Error) => toast(`Favourites could not be saved: ${e.message}`, "bad"));
  }, []);

  /** Brings a tile into sight, which draws it, then gives it the focus. */
  const focus = (index: number) => {
    let [start, day] = [0, 0];
    while (day < days.length - 1 && index >= start + (days[day]?.jobs.length ?? 0)) start += days[day++]?.jobs.length ?? 0;
    const y = (layout.days[day]?.top ?? 0) + HEADING + place(layout, index - start, GAP).top;
    const box = root.current?.getBoundingClientRect();
    if (box && (box.top + y < 80 || box.top + y + layout.row > innerHeight - 80)) {
      const marker = root.current?.ownerDocument.createElement("div");
      if (marker && root.current) {
        marker.style.cssText = `position:absolute;top:${y}px;height:${layout.row}px;width:1px`;
        root.current.append(marker);
        marker.scrollIntoView({ block: "center" });
        marker.remove();
      }
    }
    let tries = 10;
    const give = () => {
      const link = root.current?.querySelector<HTMLElement>(`a[data-index="${index}"]`);
      if (link) link.focus({ preventScroll: true });
      else if (tries-- > 0) requestAnimationFrame(give);
    };
    give();
  };
  const back = useRef(false);
  useLayoutEffect(() => {
    if (back.current || width === 0) return;
    back.current = true;
    const opened = wasAt.opened;
    wasAt.opened = null;
    if (opened === null) return;
    scrollTo(0, wasAt.scroll);
    const index = flat.findIndex((j) => j.id === opened);
    if (index >= 0) focus(index);
  });
  const keys = (e: KeyboardEvent) => {
    const target = e.target as HTMLElement;
    const index = target.dataset.index === undefined ? NaN : Number(target.dataset.index);
    if (Number.isNaN(index) || e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === " " || e.key === "x") {
      e.preventDefault();
      const job = flat[index];
      if (job) onToggle(job.id, e.shiftKey);
      return;
    }
    if (!/^(Arrow|Home$|End$)/.test(e.key)) return;
    e.preventDefault();
    const next = neighbour(layout, index, e.key);
    if (next !== index) focus(next);
  };

  let before = 0;
  const starts = days.map((d) => {
    const start = before;
    before += d.jobs.length;
    return start;
  });
  return (
    <div ref={root} className={css.grid} style={{ height: layout.height }} onKeyDown={keys}>
      {shown.map(({ day, from, to }) => {
        const { key, label, jobs: list } = days[day] as (typeof days)[number];
        const box = layout.days[day] as GridLayout["days"][number];
        return (
          <section key={key} className={css.day} style={{ top: box.top, height: box.height }} aria-label={label}>
            <h2 className={css.label}>
              {label} <span className={css.number}>{more && day === days.length - 1 ? `${list.length}+` : list.length}</span>
            </h2>
            <div role="list" className={css.tiles}>
              {list.slice(from, to).map((job, i) => {
                const at = place(layout, from + i, GAP);
                return (
                  <div
                    key={job.id}
                    role="listitem"
                    aria-setsize={list.length}
                    aria-posinset={from + i + 1}
                    className={css.cell}
                    style={{ left: at.left, top: at.top, width: layout.size, height: layout.size + CAPTION }}
                  >
                    <Tile
                      job={job}
                      summary={known.get(job.id)}
                      selected={chosen.has(job.id)}
                      selecting={selecting}
                      favourite={favourites.has(job.id)}
                      index={(starts[day] ?? 0) + from + i}
                      onToggle={onToggle}
                      onFavourite={onFavourite}
                    />
                  </div>
                );
              })}
            </div>
          </section>
        );
      })}
    </div>
  );
}
