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
