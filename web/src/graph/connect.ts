// Making links: what may be connected, replacing what was there, and what reroutes, primitives and growing inputs do then.
import type { ObjectInfo } from "../api/types";
import { fits } from "./compat";
import { editGraph, removeLinks, updateNode } from "./edits";
import type { Definition, Doc, GNode, Graph, Link, NodeId, Scope } from "./format";
import { countIds, definition, findNode, graphAt, highest, INPUT_NODE, linkIndex, OUTPUT_NODE, same, typeText, writeLink } from "./format";
import type { ClassSpec } from "./schema";
import { autogrow, classSpec } from "./schema";
import { inputsOf, outputsOf } from "./slots";
import { widgetsOf } from "./widgets";

export interface OutEnd {
  node: NodeId;
  slot: number;
}

export interface InEnd {
  node: NodeId;
  key: string; // key of the input as shown, or the place of a sub-graph output
}

/** Type of an output, followed through reroutes. */
export function outType(doc: Doc, scope: Scope, end: OutEnd, info: ObjectInfo | null): string {
  const graph = graphAt(doc, scope);
  const seen = new Set<string>();
  let { node: id, slot } = end;
  for (;;) {
    if (same(id, INPUT_NODE)) return typeText((graph as Definition).inputs?.[slot]?.type);
    const node = findNode(graph, id);
    if (!node || seen.has(String(id))) return "*";
    seen.add(String(id));
    if (node.type !== "Reroute") return outputsOf(node, classSpec(info, node.type), definition(doc, node.type))[slot]?.type ?? "*";
    const link = node.inputs?.[0]?.link;
    const up = link == null ? undefined : linkIndex(graph).get(String(link));
    if (!up) return "*";
    id = up.origin_id;
    slot = up.origin_slot;
  }
}

export function inType(doc: Doc, scope: Scope, end: InEnd, info: ObjectInfo | null): string {
  const graph = graphAt(doc, scope);
  if (same(end.node, OUTPUT_NODE)) return typeText((graph as Definition).outputs?.[Number(end.key)]?.type);
  const node = findNode(graph, end.node);
  if (!node) return "*";
  return inputsOf(node, classSpec(info, node.type), definition(doc, node.type)).find((i) => i.key === end.key)?.type ?? "*";
}

/** Whether data from `from` already depends on `to`. */
function depends(graph: Graph, from: NodeId, to: NodeId): boolean {
  const links = linkIndex(graph);
  const seen = new Set<string>();
  const stack = [String(from)];
  while (stack.length > 0) {
    const id = stack.pop() as string;
    if (id === String(to)) return true;
    if (seen.has(id)) continue;
    seen.add(id);
    for (const input of findNode(graph, id)?.inputs ?? []) {
      const link = input.link == null ? undefined : links.get(String(input.link));
      if (link) stack.push(String(link.origin_id));
    }
  }
  return false;
}

/** Why two ends cannot be connected; null where they can. */
export function refusal(doc: Doc, scope: Scope, from: OutEnd, to: InEnd, info: ObjectInfo | null): string | null {
  if (same(from.node, to.node)) return "A node cannot be connected to itself.";
  const graph = graphAt(doc, scope);
  const origin = findNode(graph, from.node);
  const out = outType(doc, scope, from, info);
  const into = inType(doc, scope, to, info);
  if (origin?.type === "PrimitiveNode") {
    const target = findNode(graph, to.node);
    const view = target && inputsOf(target, classSpec(info, target.type), definition(doc, target.type)).find((i) => i.key === to.key);
    if (!view?.widget && target?.type !== "Reroute") return "A primitive can only be connected to a value.";
  }
  if (!fits(out, into)) return `${out} does not fit ${into}.`;
  if (depends(graph, from.node, to.node)) return "That would make a loop.";
  return null;
}

/** Adds slots the file does not store yet, so that a link has a place to point at. */
function ensureInput(node: GNode, key: string, spec: ClassSpec | undefined, def: Definition | undefined): { node: GNode; at: number } {
  const view = inputsOf(node, spec, def).find((i) => i.key === key);
  if (!view) return { node, at: -1 };
  if (view.at >= 0) return { node, at: view.at };
  const slot = { name: view.name, type: view.type, ...(view.widget ? { widget: { name: view.widget } } : {}), link: null };
  return { node: { ...node, inputs: [...(node.inputs ?? []), slot] }, at: node.inputs?.length ?? 0 };
}

function ensureOutput(node: GNode, slot: number, spec: ClassSpec | undefined, def: Definition | undefined): GNode {
  const stored = node.outputs ?? [];
  if (slot < stored.length) return node;
  const more = outputsOf(node, spec, def)
    .slice(stored.length, slot + 1)
    .map((o) => ({ name: o.label, type: o.type, links: [] }));
  return { ...node, outputs: [...stored, ...more] };
}

/** An autogrow input offers one free slot after its last linked one. */
function grow(node: GNode, spec: ClassSpec | undefined): GNode {
  let next = node;
  for (const input of spec?.inputs ?? []) {
    if (input.role !== "autogrow") continue;
    const { names, spec: child } = autogrow(input);
    const stored = (next.inputs ?? []).filter((i) => i.name.startsWith(`${input.name}.`));
    if (stored.length > 0 && stored.every((i) => i.link != null) && stored.length < names.length) {
      next = { ...next, inputs: [...(next.inputs ?? []), { name: `${input.name}.${names[stored.length]}`, type: child.type, link: null }] };
    }
  }
  return next;
}

/** A primitive takes over the widget it is connected to: its type, its name and, at first, its value. */
function adopt(primitive: GNode, target: GNode, widget: string, spec: ClassSpec | undefined): GNode {
  const found = spec && widgetsOf(target, spec).find((w) => w.name === widget);
  if (!found) return primitive;
  const out = primitive.outputs?.[0];
  const had = Array.isArray(primitive.widgets_values) && primitive.widgets_values.length > 0;
  const numeric = found.spec.kind === "int" || found.spec.kind === "float" || found.spec.kind === "combo";
  return {
    ...primitive,
    title: primitive.title ?? widget,
    outputs: [{ ...out, name: found.spec.type, type: found.spec.type, widget: { name: widget }, links: out?.links ?? [] }],
    widgets_values: had ? primitive.widgets_values : numeric ? [found.value, "fixed"] : [found.value],
  };
}

/** Types of reroutes downstream of a node follow what is fed into them. */
function retype(graph: Graph, id: NodeId, type: string, depth = 0): Graph {
  const node = findNode(graph, id);
  if (node?.type !== "Reroute" || depth > 100) return graph;
  let next = updateNode(graph, id, (n) => ({ ...n, outputs: (n.outputs ?? []).map((o, i) => (i === 0 ? { ...o, type } : o)) }));
  for (const link of node.outputs?.[0]?.links ?? []) {
    const l = linkIndex(next).get(String(link));
    if (l) next = retype(next, l.target_id, type, depth + 1);
  }
  return next;
}

/** Connects an output to an input, replacing the link that was there. Check `refusal` first. */
export function connect(doc: Doc, scope: Scope, from: OutEnd, to: InEnd, info: ObjectInfo | null): Doc {
  const top = highest(doc);
  const id = top.link + 1;
  const type = outType(doc, scope, from, info);
  const wanted = inType(doc, scope, to, info);
  let done = false;
  const next = editGraph(doc, scope, (start) => {
    let graph = start;
    const intoOutput = same(to.node, OUTPUT_NODE);
    let slot = Number(to.key);
    let target: GNode | undefined;
    if (intoOutput) {
      graph = removeLinks(graph, (graph as Definition).outputs?.[slot]?.linkIds ?? []);
    } else {
      target = findNode(graph, to.node);
      if (!target) return start;
      const ready = ensureInput(target, to.key, classSpec(info, target.type), definition(doc, target.type));
      if (ready.at < 0) return start;
      slot = ready.at;
      graph = updateNode(graph, to.node, () => ready.node);
      const old = ready.node.inputs?.[slot]?.link;
      if (old != null) graph = removeLinks(graph, [old]);
    }
    const link: Link = {
      id,
      origin_id: from.node,
      origin_slot: from.slot,
      target_id: to.node,
      target_slot: slot,
      type: type === "*" || type === "" ? wanted : type,
    };
    graph = { ...graph, links: [...graph.links, writeLink(link, scope)] };
    const addTo = (list: NodeId[] | null | undefined): NodeId[] => [...(list ?? []), id];
    if (same(from.node, INPUT_NODE)) {
      const ports = (graph as Definition).inputs.map((p, i) => (i === from.slot ? { ...p, linkIds: addTo(p.linkIds) } : p));
      graph = { ...graph, inputs: ports };
    } else {
      graph = updateNode(graph, from.node, (n) => {
        const ready = ensureOutput(n, from.slot, classSpec(info, n.type), definition(doc, n.type));
        const linked = { ...ready, outputs: (ready.outputs ?? []).map((o, i) => (i === from.slot ? { ...o, links: addTo(o.links) } : o)) };
        const widget = target && slot >= 0 ? findNode(graph, to.node)?.inputs?.[slot]?.widget?.name : undefined;
        return n.type === "PrimitiveNode" && target && widget ? adopt(linked, target, widget, classSpec(info, target.type)) : linked;
      });
    }
    if (intoOutput) {
      const ports = (graph as Definition).outputs.map((p, i) => (i === slot ? { ...p, linkIds: addTo(p.linkIds) } : p));
      graph = { ...graph, outputs: ports };
    } else {
      graph = updateNode(graph, to.node, (n) =>
        grow({ ...n, inputs: (n.inputs ?? []).map((s, i) => (i === slot ? { ...s, link: id } : s)) }, classSpec(info, n.type)),
      );
      graph = retype(graph, to.node, type);
    }
    done = true;
    return graph;
  });
  return done ? countIds(next, scope, top.node, id) : doc;
}
