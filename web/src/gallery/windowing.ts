// Which tiles of a long, day-grouped grid are near enough to the window to be drawn.

export interface GridSizes {
  /** Width of the grid. */
  width: number;
  /** No tile is narrower than this. */
  tile: number;
  gap: number;
  /** Height of a tile's caption. */
  caption: number;
  /** Height of a day's heading. */
  heading: number;
}

export interface DayBox {
  top: number;
  height: number;
  count: number;
}

export interface GridLayout {
  columns: number;
  /** Width of a tile; its picture is square. */
  size: number;
  row: number;
  height: number;
  days: DayBox[];
}

export function layOut(counts: readonly number[], sizes: GridSizes): GridLayout {
  const columns = Math.max(1, Math.floor((sizes.width + sizes.gap) / (sizes.tile + sizes.gap)));
  const size = Math.max(1, (sizes.width - sizes.gap * (columns - 1)) / columns);
  const row = size + sizes.caption + sizes.gap;
  const days: DayBox[] = [];
  let top = 0;
  for (const count of counts) {
    const height = sizes.heading + Math.ceil(count / columns) * row;
    days.push({ top, height, count });
    top += height;
  }
  return { columns, size, row, height: top, days };
}

export interface Visible {
  day: number;
  from: number;
  to: number;
}

/** For each day in sight the range of its tiles, whole rows, between `top` and `bottom` of the grid. */
export function visible(layout: GridLayout, heading: number, top: number, bottom: number): Visible[] {
  const out: Visible[] = [];
  layout.days.forEach((box, day) => {
    if (box.top + box.height < top || box.top > bottom) return;
    const start = box.top + heading;
    const first = Math.max(0, Math.floor((top - start) / layout.row));
    const last = Math.max(0, Math.ceil((bottom - start) / layout.row));
    out.push({ day, from: Math.min(box.count, first * layout.columns), to: Math.min(box.count, last * layout.columns) });
  });
  return out;
}

/** Where a tile lies within its day. */
export function place(layout: GridLayout, index: number, gap: number): { left: number; top: number } {
  return { left: (index % layout.columns) * (layout.size + gap), top: Math.floor(index / layout.columns) * layout.row };
}

/** The tile that an arrow key leads to, counted over all days; rows end where a day ends. */
export function neighbour(layout: GridLayout, index: number, key: string): number {
  const total = layout.days.reduce((n, d) => n + d.count, 0);
  const keep = (n: number) => Math.max(0, Math.min(total - 1, n));
  if (key === "ArrowLeft") return keep(index - 1);
  if (key === "ArrowRight") return keep(index + 1);
  if (key === "Home") return 0;
  if (key === "End") return keep(total - 1);
  let start = 0;
  let day = 0;
  while (day < layout.days.length - 1 && index >= start + (layout.days[day] as DayBox).count) start += (layout.days[day++] as DayBox).count;
  const count = layout.days[day]?.count ?? 0;
  const within = index - start;
  const column = within % layout.columns;
  if (key === "ArrowDown") {
    if (within + layout.columns < count) return index + layout.columns;
    // The last row may be short; then the day's last tile is below.
    if (Math.floor(within / layout.columns) < Math.floor((count - 1) / layout.columns)) return start + count - 1;
    const next = layout.days[day + 1]?.count ?? 0;
    return next > 0 ? start + count + Math.min(column, next - 1) : index;
  }
  if (key === "ArrowUp") {
    if (within >= layout.columns) return index - layout.columns;
    const before = layout.days[day - 1]?.count ?? 0;
    if (before === 0) return index;
    const lastRow = Math.floor((before - 1) / layout.columns) * layout.columns;
    return start - before + Math.min(lastRow + column, before - 1);
  }
  return index;
}
