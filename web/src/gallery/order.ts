// The order of waiting jobs: moving one, and merging the server's order with the jobs the page knows.

export type Move = "up" | "down" | "top" | "bottom";

/** The new order after a move; the same array where nothing changes. */
export function moved(order: readonly string[], id: string, move: Move): readonly string[] {
  const from = order.indexOf(id);
  if (from < 0) return order;
  const to = { up: from - 1, down: from + 1, top: 0, bottom: order.length - 1 }[move];
  return movedTo(order, id, to);
}

/** The new order with one job at the given place, places counted in the finished list. */
export function movedTo(order: readonly string[], id: string, to: number): readonly string[] {
  const from = order.indexOf(id);
  const place = Math.max(0, Math.min(order.length - 1, to));
  if (from < 0 || from === place) return order;
  const rest = order.filter((other) => other !== id);
  rest.splice(place, 0, id);
  return rest;
}

/** Items in the wanted order; those it does not name follow in their own order. */
export function inOrder<T>(items: readonly T[], order: readonly string[], id: (item: T) => string): T[] {
  const place = new Map(order.map((name, i) => [name, i]));
  const at = (item: T) => place.get(id(item)) ?? order.length;
  return items
    .map((item, i) => ({ item, i }))
    .sort((a, b) => at(a.item) - at(b.item) || a.i - b.i)
    .map((x) => x.item);
}

/** Where a dragged row lands: the pointer's height against the middles of the other rows, top to bottom. */
export function dropPlace(middles: readonly number[], y: number): number {
  let place = 0;
  while (place < middles.length && y > (middles[place] as number)) place += 1;
  return place;
}
