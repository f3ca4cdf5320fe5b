// The open graph as React Flow draws it: nodes, groups, the two ends of a sub-graph, and links.
import type { Edge, Node } from "@xyflow/react";
import type { ObjectInfo } from "../api/types";
import { typeColour, typeName } from "./compat";
import type { Definition, Doc, GGroup, GNode, Graph, Port, Scope } from "./format";
import { definition, graphAt, INPUT_NODE, linkIndex, OUTPUT_NODE, pair, rect, typeText } from "./format";
import { boxOf, TITLE } from "./metrics";
import { titleOf } from "./rows";
import { classSpec } from "./schema";
import { inputsOf } from "./slots";

export type CardNode = Node<{ node: GNode; scope: Scope; title: string }, "card">;
export type GroupNode = Node<{ group: GGroup; at: number; scope: Scope }, "group">;
export type IoNode = Node<{ side: "inputs" | "outputs"; ports: Port[]; scope: string }, "io">;
export type FlowNode = CardNode | GroupNode | IoNode;

export const outHandle = (slot: number): string => `o${slot}`;
export const inHandle = (key: string): string => `i:${key}`;
export const slotFrom = (handle: string | null | undefined): number => Number((handle ?? "").slice(1));
export const keyFrom = (handle: string | null | undefined): string => (handle ?? "").slice(2);
/** The free place at a sub-graph's end that makes a new port. */
export const NEW_PORT = "new";

/** Keeps what React Flow measured and what is selected, and whole nodes where nothing changed. */
function keep<T extends FlowNode>(old: Map<string, FlowNode>, next: T, same: (a: T) => boolean): T {
  const before = old.get(next.id) as T | undefined;
  if (!before) return next;
  const still = before.position.x === next.position.x && before.position.y === next.position.y && before.width === next.width && before.height === next.height;
  if (still && same(before)) return before;
  return { ...next, measured: before.measured, selected: before.selected } as T;
}

export function flowNodes(doc: Doc, scope: Scope, info: ObjectInfo | null, previous: readonly FlowNode[]): FlowNode[] {
  const graph = graphAt(doc, scope);
  const old = new Map(previous.map((n) => [n.id, n]));
  const out: FlowNode[] = [];
  (graph.groups ?? []).forEach((group, at) => {
    const [x, y, width, height] = rect(group.bounding, [0, 0, 200, 200]);
    const node: GroupNode = {
      id: `g${at}`,
      type: "group",
      position: { x, y },
      width,
      height,
      zIndex: -1,
      dragHandle: ".group-title",
      data: { group, at, scope },
      ariaLabel: `Group ${group.title ?? ""}`,
    };
    out.push(keep(old, node, (b) => b.data.group === group && b.data.scope === scope));
  });
  for (const node of graph.nodes) {
    const box = boxOf(node, classSpec(info, node.type));
    const collapsed = Boolean(node.flags?.collapsed);
    const title = titleOf(doc, node, info);
    const flow: CardNode = {
      id: String(node.id),
      type: "card",
      position: { x: box.x, y: box.y },
      initialWidth: box.width,
      initialHeight: box.height,
      data: { node, scope, title },
      ...(collapsed ? {} : { width: box.width }),
      ariaLabel: `${title}, node ${node.id}`,
    };
    out.push(keep(old, flow, (b) => b.data.node === node && b.data.scope === scope && b.data.title === title));
  }
  const def = definition(doc, scope);
  if (def) {
    for (const [side, io, id] of [
      ["inputs", def.inputNode, INPUT_NODE],
      ["outputs", def.outputNode, OUTPUT_NODE],
    ] as const) {
      const [x, y] = rect(io?.bounding, side === "inputs" ? [-300, 0, 120, 60] : [900, 0, 120, 60]);
      const node: IoNode = {
        id: String(id),
        type: "io",
        position: { x, y },
        initialWidth: 140,
        initialHeight: 60 + def[side].length * 20,
        data: { side, ports: def[side], scope: def.id },
        ariaLabel: `Sub-graph ${side}`,
      };
      out.push(keep(old, node, (b) => b.data.ports === def[side]));
    }
  }
  return out;
}

export type Wire = Edge<{ type: string }>;

export function flowEdges(doc: Doc, scope: Scope, info: ObjectInfo | null, selected: ReadonlySet<string>): Wire[] {
  const graph: Graph = graphAt(doc, scope);
  const links = linkIndex(graph);
  const ids = new Set(graph.nodes.map((n) => String(n.id)));
  const edges: Wire[] = [];
  const add = (id: string, target: string, targetHandle: string) => {
    const link = links.get(id);
    if (!link) return;
    const source = String(link.origin_id);
    if (source !== String(INPUT_NODE) && !ids.has(source)) return;
    const type = typeText(link.type);
    const chosen = selected.has(id);
    edges.push({
      id,
      source,
      sourceHandle: outHandle(link.origin_slot),
      target,
      targetHandle,
      selected: chosen,
      data: { type },
      style: { stroke: typeColour(type) },
      ariaLabel: `Link of ${typeName(type)} from node ${source} to node ${target}`,
      ...(chosen ? { label: typeName(type), zIndex: 1000 } : {}),
    });
  };
  for (const node of graph.nodes) {
    if (!node.inputs?.some((i) => i.link != null)) continue;
    for (const view of inputsOf(node, classSpec(info, node.type), definition(doc, node.type))) {
      if (view.link != null) add(String(view.link), String(node.id), inHandle(view.key));
    }
  }
  (graph as Definition).outputs?.forEach?.((port, at) => (port.linkIds ?? []).forEach((id) => add(String(id), String(OUTPUT_NODE), inHandle(String(at)))));
  return edges;
}

/** Nodes and inner groups that lie in a group, which move with it. */
export function insideGroup(doc: Doc, scope: Scope, at: number, info: ObjectInfo | null): string[] {
  const graph = graphAt(doc, scope);
  const group = graph.groups?.[at];
  if (!group) return [];
  const [x, y, w, h] = rect(group.bounding, [0, 0, 0, 0]);
  const within = (cx: number, cy: number) => cx >= x && cx <= x + w && cy >= y && cy <= y + h;
  const nodes = graph.nodes.filter((n) => {
    const box = boxOf(n, classSpec(info, n.type));
    return within(box.x + box.width / 2, box.y + TITLE + (box.height - TITLE) / 2);
  });
  const groups = (graph.groups ?? []).flatMap((g, i) => {
    const [gx, gy, gw, gh] = rect(g.bounding, [0, 0, 0, 0]);
    return i !== at && gx >= x && gy >= y && gx + gw <= x + w && gy + gh <= y + h ? [`g${i}`] : [];
  });
  return [...nodes.map((n) => String(n.id)), ...groups];
}

/** The box around some nodes; the whole graph where none are named. */
export function boundsOf(
  doc: Doc,
  scope: Scope,
  info: ObjectInfo | null,
  ids?: readonly string[],
): { x: number; y: number; width: number; height: number } | null {
  const graph = graphAt(doc, scope);
  const wanted = ids && ids.length > 0 ? new Set(ids) : null;
  const boxes = graph.nodes.filter((n) => !wanted || wanted.has(String(n.id))).map((n) => boxOf(n, classSpec(info, n.type)));
  (graph.groups ?? []).forEach((g, i) => {
    if (wanted && !wanted.has(`g${i}`)) return;
    const [x, y, width, height] = rect(g.bounding, [0, 0, 0, 0]);
    boxes.push({ x, y, width, height });
  });
  const def = definition(doc, scope);
  if (def && !wanted) {
    for (const [io, ports] of [
      [def.inputNode, def.inputs],
      [def.outputNode, def.outputs],
    ] as const) {
      const [x, y, width] = rect(io?.bounding, [0, 0, 120, 60]);
      boxes.push({ x, y, width: Math.max(170, width), height: 40 + 22 * (ports.length + 1) });
    }
  }
  if (boxes.length === 0) return null;
  const x = Math.min(...boxes.map((b) => b.x));
  const y = Math.min(...boxes.map((b) => b.y));
  return { x, y, width: Math.max(...boxes.map((b) => b.x + b.width)) - x, height: Math.max(...boxes.map((b) => b.y + b.height)) - y };
}

export const cornerOf = (node: GNode): [number, number] => pair(node.pos, [0, 0]);
