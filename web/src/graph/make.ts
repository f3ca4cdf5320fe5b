// Makes new nodes in the form the ComfyUI editor saves them.
import type { GNode, InSlot, NodeId, OutSlot } from "./format";
import { leastSize } from "./metrics";
import type { ClassSpec } from "./schema";
import { autogrow, isWidget } from "./schema";
import { valueList, widgetsOf } from "./widgets";

/** Slots of a class: sockets first, then widgets, each in the order of the definition. */
export function inputSlots(spec: ClassSpec, node?: GNode): InSlot[] {
  const sockets: InSlot[] = [];
  for (const input of spec.inputs) {
    if (input.role === "socket" || input.role === "forced") {
      sockets.push({ name: input.name, type: input.type, link: null, ...(input.optional ? { shape: 7 } : {}) });
    } else if (input.role === "autogrow") {
      const grow = autogrow(input);
      for (const name of grow.names.slice(0, Math.max(1, grow.min))) sockets.push({ name: `${input.name}.${name}`, type: grow.spec.type, link: null });
    }
  }
  const widgets: InSlot[] = node
    ? widgetsOf(node, spec).map((w) => ({ name: w.name, type: w.spec.type, widget: { name: w.name }, link: null }))
    : spec.inputs.filter(isWidget).map((i) => ({ name: i.name, type: i.type, widget: { name: i.name }, link: null }));
  return [...sockets, ...widgets.filter((w) => !spec.inputs.find((i) => i.name === w.name)?.options.socketless)];
}

export function outputSlots(spec: ClassSpec): OutSlot[] {
  return spec.outputs.map((o) => ({ name: o.name, type: o.type, ...(o.list ? { shape: 6 } : {}), links: [] }));
}

const NOTE_COLOURS = { color: "#432", bgcolor: "#653" };

/** A new node of a class with its defaults, or with the given values by widget name. */
export function makeNode(
  type: string,
  id: NodeId,
  pos: [number, number],
  spec: ClassSpec | undefined,
  values: Record<string, unknown> = {},
  controls: Record<string, unknown> = {},
): GNode {
  const base: GNode = { id, type, pos, size: [240, 60], flags: {}, order: 0, mode: 0, inputs: [], outputs: [], properties: {}, widgets_values: [] };
  if (type === "Note" || type === "MarkdownNote") {
    return { ...base, size: [280, 140], properties: { text: "" }, widgets_values: [""], ...NOTE_COLOURS };
  }
  if (type === "Reroute") {
    const { widgets_values: _none, ...rest } = base;
    return {
      ...rest,
      size: [75, 26],
      inputs: [{ name: "", type: "*", link: null }],
      outputs: [{ name: "", type: "*", links: [] }],
      properties: { showOutputText: false, horizontal: false },
    };
  }
  if (type === "PrimitiveNode") {
    return {
      ...base,
      size: [210, 82],
      outputs: [{ name: "connect to widget input", type: "*", links: [] }],
      properties: { "Run widget replace on values": false },
    };
  }
  if (!spec) return base;
  const node: GNode = { ...base, properties: { "Node name for S&R": type }, widgets_values: valueList(spec, values, controls) };
  node.inputs = inputSlots(spec, node);
  node.outputs = outputSlots(spec);
  node.size = leastSize(node, spec);
  return node;
}
