// Sub-graphs: the widgets an instance shows, ports added and removed, nodes gathered into a sub-graph and taken out of one.
import type { ObjectInfo } from "../api/types";
import { editNode, removeLinks, renumberTargets, updateNode } from "./edits";
import type { Definition, Doc, GNode, Graph, NodeId, Port, Scope } from "./format";
import { definition, definitions, findNode, linkIndex, newId, same, withGraph } from "./format";
import type { InputSpec } from "./schema";
import { classSpec } from "./schema";
import type { Widget } from "./widgets";
import { setControl, setWidget, widgetsOf } from "./widgets";

export interface Promoted {
  key: string;
  label: string;
  spec: InputSpec;
  value: unknown;
  control: unknown;
  input: string | null; // the instance's input of the same name, which a link may feed
  place: { own: number } | { scope: string; node: NodeId; widget: string };
}

const MAX_DEPTH = 20;

/** `properties.proxyWidgets`, a list or the text of one. */
function proxies(node: GNode): [string, string][] | null {
  let raw = node.properties?.proxyWidgets;
  if (typeof raw === "string") {
    try {
      raw = JSON.parse(raw);
    } catch {
      return null;
    }
  }
  if (!Array.isArray(raw)) return null;
  return raw.filter(Array.isArray).map((e) => [String(e[0]), String(e[1])]);
}

interface Inner {
  spec: InputSpec;
  value: unknown;
  control: unknown;
  label: string;
}

/** A widget of a node inside a definition: its own, or one an inner instance shows. */
function innerWidget(doc: Doc, scope: string, id: NodeId, name: string, info: ObjectInfo | null, depth: number): Inner | null {
  const node = findNode(definition(doc, scope) ?? { nodes: [], links: [] }, id);
  if (!node || depth > MAX_DEPTH) return null;
  const spec = classSpec(info, node.type);
  if (spec) {
    const w = widgetsOf(node, spec).find((x: Widget) => x.name === name);
    return w ? { spec: w.spec, value: w.value, control: w.control, label: w.name } : null;
  }
  const shown = definition(doc, node.type) ? promotedWidgets(doc, node, info, depth + 1).find((p) => p.key === name || p.input === name) : undefined;
  return shown ? { spec: shown.spec, value: shown.value, control: shown.control, label: shown.label } : null;
}

/** The first widget inside that an input port of a definition feeds. */
function portWidget(doc: Doc, def: Definition, port: Port, info: ObjectInfo | null, depth: number): Inner | null {
  for (const id of port.linkIds ?? []) {
    const link = linkIndex(def).get(String(id));
    const target = link && findNode(def, link.target_id);
    const slot = target?.inputs?.find((i) => same(i.link, id));
    const found = target && slot ? innerWidget(doc, def.id, target.id, slot.widget?.name ?? slot.name, info, depth) : null;
    if (found) return found;
  }
  return null;
}

/** The widgets an instance of a sub-graph shows, and where each value is kept. */
export function promotedWidgets(doc: Doc, node: GNode, info: ObjectInfo | null, depth = 0): Promoted[] {
  const def = definition(doc, node.type);
  if (!def || depth > MAX_DEPTH) return [];
  const stored = Array.isArray(node.widgets_values) ? (node.widgets_values as unknown[]) : [];
  const out: Promoted[] = [];
  const own = (port: Port, at: number) => {
    const inner = portWidget(doc, def, port, info, depth);
    if (!inner) return;
    out.push({
      key: port.name,
      label: port.label ?? port.name,
      spec: inner.spec,
      value: stored[at] ?? inner.value,
      control: undefined,
      input: port.name,
      place: { own: at },
    });
  };
  const listed = proxies(node);
  if (!listed) {
    let at = 0;
    for (const port of def.inputs) if (portWidget(doc, def, port, info, depth)) own(port, at++);
    return out;
  }
  listed.forEach(([id, name], at) => {
    if (id === "-1") {
      const port = def.inputs.find((p) => p.name === name);
      if (port) own(port, at);
      return;
    }
    const inner = innerWidget(doc, def.id, id, name, info, depth);
    if (!inner) return;
    const title = def.nodes.find((n) => same(n.id, id))?.title;
    const twice = listed.filter((e) => e[1] === name).length > 1;
    out.push({
      key: `${id}.${name}`,
      label: twice && title ? `${title}: ${name}` : name,
      spec: inner.spec,
      value: inner.value,
      control: inner.control,
      input: null,
      place: { scope: def.id, node: id, widget: name },
    });
  });
  return out;
}

/** Sets a promoted widget where its value is kept: on the instance or inside the definition. */
export function setPromoted(doc: Doc, scope: Scope, id: NodeId, widget: Promoted, value: unknown, info: ObjectInfo | null, control = false): Doc {
  const { place } = widget;
  if ("own" in place) {
    return editNode(doc, scope, id, (n) => {
      const list = Array.isArray(n.widgets_values) ? [...(n.widgets_values as unknown[])] : [];
      while (list.length < place.own) list.push(null); // null keeps the value inside
      list[place.own] = value;
      return { ...n, widgets_values: list };
    });
  }
  const inner = findNode(definition(doc, place.scope) ?? { nodes: [], links: [] }, place.node);
  if (!inner) return doc;
  const spec = classSpec(info, inner.type);
  if (spec)
    return editNode(doc, place.scope, place.node, (n) =>
      control ? setControl(n, spec, place.widget, String(value)) : setWidget(n, spec, place.widget, value),
    );
  const nested = promotedWidgets(doc, inner, info).find((p) => p.key === place.widget || p.input === place.widget);
  return nested ? setPromoted(doc, place.scope, place.node, nested, value, info, control) : doc;
}

/** Changes every instance of a definition, wherever it lies. */
function editInstances(doc: Doc, id: string, change: (graph: Graph, node: GNode) => Graph): Doc {
  const scopes: Scope[] = [null, ...definitions(doc).map((d) => d.id)];
  let out = doc;
  for (const scope of scopes) {
    const graph = scope === null ? (out as Graph) : definition(out, scope);
    if (!graph) continue;
    let next = graph;
    for (const node of graph.nodes) if (node.type === id) next = change(next, node);
    if (next !== graph) out = withGraph(out, scope, next);
  }
  return out;
}

function freeName(ports: Port[], wanted: string): string {
  const base = wanted || "value";
  let name = base;
  for (let n = 1; ports.some((p) => p.name === name); n++) name = `${base}_${n}`;
  return name;
}

/** Adds a port to a definition and a slot to each of its instances. */
export function addPort(doc: Doc, scope: string, side: "inputs" | "outputs", name: string, type: string, widget = false): { doc: Doc; at: number } {
  const def = definition(doc, scope);
  if (!def) return { doc, at: -1 };
  const port: Port = { id: newId(), name: freeName(def[side], name), type, linkIds: [] };
  const at = def[side].length;
  const out = withGraph(doc, scope, { ...def, [side]: [...def[side], port] });
  const done = editInstances(out, scope, (graph, node) =>
    updateNode(graph, node.id, (n) =>
      side === "inputs"
        ? { ...n, inputs: [...(n.inputs ?? []), { name: port.name, type, link: null, ...(widget ? { widget: { name: port.name } } : {}) }] }
        : { ...n, outputs: [...(n.outputs ?? []), { name: port.name, type, links: [] }] },
    ),
  );
  return { doc: done, at };
}

/** Removes a port with its links, inside and at every instance. */
export function removePort(doc: Doc, scope: string, side: "inputs" | "outputs", at: number): Doc {
  const def = definition(doc, scope);
  const port = def?.[side][at];
  if (!def || !port) return doc;
  let graph = removeLinks(def, port.linkIds ?? []) as Definition;
  graph = { ...graph, [side]: graph[side].filter((_, i) => i !== at) };
  const [end, io] = side === "inputs" ? (["origin", -10] as const) : (["target", -20] as const);
  graph = {
    ...graph,
    links: graph.links.map((raw) => {
      const l = raw as Record<string, unknown>;
      return same(l[`${end}_id`], io) && Number(l[`${end}_slot`]) > at ? { ...l, [`${end}_slot`]: Number(l[`${end}_slot`]) - 1 } : raw;
    }),
  };
  return editInstances(withGraph(doc, scope, graph), scope, (outer, node) => {
    if (side === "inputs") {
      const slot = node.inputs?.find((i) => i.name === port.name);
      const cut = slot?.link != null ? removeLinks(outer, [slot.link]) : outer;
      return renumberTargets(
        updateNode(cut, node.id, (n) => ({ ...n, inputs: (n.inputs ?? []).filter((i) => i.name !== port.name) })),
        node.id,
      );
    }
    const cut = removeLinks(outer, node.outputs?.[at]?.links ?? []);
    const less = updateNode(cut, node.id, (n) => ({ ...n, outputs: (n.outputs ?? []).filter((_, i) => i !== at) }));
    return {
      ...less,
      links: less.links.map((raw) => {
        if (Array.isArray(raw)) return same(raw[1], node.id) && Number(raw[2]) > at ? raw.map((v, i) => (i === 2 ? Number(v) - 1 : (v as unknown))) : raw;
        const l = raw as { origin_id?: unknown; origin_slot?: number };
        return same(l.origin_id, node.id) && Number(l.origin_slot) > at ? { ...l, origin_slot: Number(l.origin_slot) - 1 } : raw;
      }),
    };
  });
}

/** Ports keep their name, by which instances find them, and change the label that is shown. */
export function renamePort(doc: Doc, scope: string, side: "inputs" | "outputs", at: number, label: string): Doc {
  const def = definition(doc, scope);
  const port = def?.[side][at];
  if (!def || !port || label === "") return doc;
  const out = withGraph(doc, scope, { ...def, [side]: def[side].map((p, i) => (i === at ? { ...p, label } : p)) });
  return editInstances(out, scope, (graph, node) =>
    updateNode(graph, node.id, (n) =>
      side === "inputs"
        ? { ...n, inputs: (n.inputs ?? []).map((i) => (i.name === port.name ? { ...i, label } : i)) }
        : { ...n, outputs: (n.outputs ?? []).map((o, i) => (i === at ? { ...o, label } : o)) },
    ),
  );
}

export function renameDefinition(doc: Doc, id: string, name: string): Doc {
  const def = definition(doc, id);
  return def && name ? withGraph(doc, id, { ...def, name }) : doc;
}
