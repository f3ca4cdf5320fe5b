// Lays nodes out left to right: each after what it depends on, columns ordered so that links cross little.

export interface Box {
  id: string;
  width: number;
  height: number;
}

export interface Arc {
  from: string;
  to: string;
}

const GAP_X = 70;
const GAP_Y = 40;

/** Column of every box: as far right as its consumers allow, so that a loader lies beside what uses it. */
function columns(boxes: Box[], arcs: Arc[]): Map<string, number> {
  const ids = new Set(boxes.map((b) => b.id));
  const inputs = new Map<string, string[]>();
  const outputs = new Map<string, string[]>();
  for (const { from, to } of arcs) {
    if (!ids.has(from) || !ids.has(to) || from === to) continue;
    inputs.set(to, [...(inputs.get(to) ?? []), from]);
    outputs.set(from, [...(outputs.get(from) ?? []), to]);
  }
  const left = new Map<string, number>();
  const open = new Set<string>();
  const reach = (id: string): number => {
    const known = left.get(id);
    if (known !== undefined) return known;
    if (open.has(id)) return 0; // a circle: cut here
    open.add(id);
    const depth = Math.max(0, ...(inputs.get(id) ?? []).map((i) => reach(i) + 1));
    open.delete(id);
    left.set(id, depth);
    return depth;
  };
  for (const b of boxes) reach(b.id);
  // A second pass pulls boxes without inputs towards their first consumer.
  const column = new Map(left);
  for (const b of boxes) {
    const consumers = outputs.get(b.id) ?? [];
    if ((inputs.get(b.id) ?? []).length === 0 && consumers.length > 0) {
      column.set(b.id, Math.max(0, Math.min(...consumers.map((c) => left.get(c) ?? 0)) - 1));
    }
  }
  return column;
}

/** Top left corner of every box, the first column at x 0. */
export function layered(boxes: Box[], arcs: Arc[]): Map<string, { x: number; y: number }> {
  const column = columns(boxes, arcs);
  const lanes: Box[][] = [];
  for (const b of boxes) {
    const at = column.get(b.id) ?? 0;
    const lane = lanes[at] ?? [];
    lane.push(b);
    lanes[at] = lane;
  }
  const neighbours = new Map<string, string[]>();
  for (const { from, to } of arcs) {
    neighbours.set(from, [...(neighbours.get(from) ?? []), to]);
    neighbours.set(to, [...(neighbours.get(to) ?? []), from]);
  }
  const rank = new Map<string, number>();
  const number = (lane: Box[]) => lane.forEach((b, i) => rank.set(b.id, i));
  for (const lane of lanes) if (lane) number(lane);
  for (let sweep = 0; sweep < 4; sweep++) {
    const order = sweep % 2 === 0 ? lanes.keys() : [...lanes.keys()].reverse();
    for (const at of order) {
      const lane = lanes[at];
      if (!lane) continue;
      const side = (id: string) => {
        const near = (neighbours.get(id) ?? []).filter((n) => (sweep % 2 === 0 ? (column.get(n) ?? 0) < at : (column.get(n) ?? 0) > at));
        return near.length ? near.reduce((s, n) => s + (rank.get(n) ?? 0), 0) / near.length : (rank.get(id) ?? 0);
      };
      const weights = new Map(lane.map((b) => [b.id, side(b.id)]));
      lane.sort((a, b) => (weights.get(a.id) ?? 0) - (weights.get(b.id) ?? 0));
      number(lane);
    }
  }
  const place = new Map<string, { x: number; y: number }>();
  let x = 0;
  for (const lane of lanes) {
    if (!lane) continue;
    let y = 0;
    for (const b of lane) {
      place.set(b.id, { x, y });
      y += b.height + GAP_Y;
    }
    x += Math.max(...lane.map((b) => b.width)) + GAP_X;
  }
  return place;
}
