// Sizes of a node's parts, the same as ComfyUI's canvas uses, so that a document lies alike in both front-ends.
import type { GNode } from "./format";
import { pair } from "./format";
import type { ClassSpec } from "./schema";
import { isWidget } from "./schema";
import { widgetsOf } from "./widgets";

export const TITLE = 30; // the title bar lies above the node's position
export const ROW = 20; // one line of sockets
export const WIDGET = 24; // one single-line widget with its gap
export const TEXT = 90; // the least height of a text area
export const PICTURE = 180; // room for a picture on a node
export const WIDTH = 240;

/** Lines of sockets above the widgets. */
function socketRows(node: GNode): number {
  const inputs = (node.inputs ?? []).filter((i) => !i.widget).length;
  return Math.max(inputs, node.outputs?.length ?? 0);
}

/** The least size of a node's body (without its title). */
export function leastSize(node: GNode, spec: ClassSpec | undefined): [number, number] {
  if (node.type === "Reroute") return [75, 26];
  let height = socketRows(node) * ROW + 10;
  let width = WIDTH;
  if (spec) {
    for (const w of widgetsOf(node, spec)) {
      height += w.spec.kind === "multiline" ? TEXT : WIDGET;
      if (w.spec.controls > 0) height += WIDGET;
      if (w.spec.kind === "multiline") width = 320;
    }
    const pictures = spec.inputs.some((i) => isWidget(i) && i.options.image_upload) || ["PreviewImage", "SaveImage"].includes(node.type);
    if (pictures) height += PICTURE;
  } else if (Array.isArray(node.widgets_values)) {
    height += node.widgets_values.length * WIDGET;
  }
  return [width, height];
}

/** The box a node takes on the canvas, with its title. */
export function boxOf(node: GNode, spec: ClassSpec | undefined): { x: number; y: number; width: number; height: number } {
  const [x, y] = pair(node.pos, [0, 0]);
  if (node.flags?.collapsed) return { x, y: y - TITLE, width: 160, height: TITLE };
  const [minWidth, minHeight] = leastSize(node, spec);
  const [width, height] = pair(node.size, [minWidth, minHeight]);
  return { x, y: y - TITLE, width: Math.max(width, 60), height: Math.max(height, minHeight) + TITLE };
}

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** Room between a new node and its neighbours. */
const GAP = 20;

/** Where a box can lie without covering others: as wished, or else to the right or below, whichever is nearer. */
export function freePlace(box: Box, others: readonly Box[]): { x: number; y: number } {
  const covers = (at: Box) =>
    others.find((o) => at.x < o.x + o.width + GAP && o.x < at.x + at.width + GAP && at.y < o.y + o.height + GAP && o.y < at.y + at.height + GAP);
  const moved = (past: (o: Box) => Partial<Box>) => {
    let at = box;
    // Each step passes one box for good, so there are never more steps than boxes.
    for (let o = covers(at); o; o = covers(at)) at = { ...at, ...past(o) };
    return at;
  };
  const right = moved((o) => ({ x: o.x + o.width + GAP }));
  const below = moved((o) => ({ y: o.y + o.height + GAP }));
  return right.x - box.x <= below.y - box.y ? { x: right.x, y: right.y } : { x: below.x, y: below.y };
}
