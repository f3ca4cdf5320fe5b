// Gathering nodes into a new sub-graph, and taking an instance apart again.
import type { ObjectInfo } from "../api/types";
import { copyNodes, pasteClip } from "./clipboard";
import { connect } from "./connect";
import { addNode, removeNodes } from "./edits";
import type { Definition, Doc, GNode, InSlot, Link, NodeId, OutSlot, Port, Scope } from "./format";
import { countIds, definition, definitions, findNode, graphAt, highest, INPUT_NODE, linkIndex, newId, OUTPUT_NODE, pair, withGraph, writeLink } from "./format";
import { boxOf } from "./metrics";
import { classSpec } from "./schema";
import { inputsOf } from "./slots";
import { promotedWidgets } from "./subgraph";
import { setWidget } from "./widgets";

const unique = (taken: Set<string>, wanted: string): string => {
  const base = wanted || "value";
  let name = base;
  for (let n = 1; taken.has(name); n++) name = `${base}_${n}`;
  taken.add(name);
  return name;
};

/** Moves nodes into a new definition; links that cross its edge become ports. */
export function gather(doc: Doc, scope: Scope, ids: readonly NodeId[], info: ObjectInfo | null): { doc: Doc; id: NodeId | null } {
  const graph = graphAt(doc, scope);
  const wanted = new Set(ids.map(String));
  const nodes = graph.nodes.filter((n) => wanted.has(String(n.id)));
  if (nodes.length === 0) return { doc, id: null };
  const all = [...linkIndex(graph).values()];
  const inside = (id: NodeId) => wanted.has(String(id));
  const inner = all.filter((l) => inside(l.origin_id) && inside(l.target_id));
  const entering = all.filter((l) => !inside(l.origin_id) && inside(l.target_id));
  const leaving = all.filter((l) => inside(l.origin_id) && !inside(l.target_id));

  let next = highest(doc).link;
  const links: Link[] = [...inner];
  const inputs: Port[] = [];
  const outputs: Port[] = [];
  const inNames = new Set<string>();
  const outNames = new Set<string>();
  const relink = new Map<string, NodeId>(); // old link id on an inner input -> new inner link id
  const ins = new Map<string, { at: number; link: Link }>(); // one port for each outer source
  for (const l of entering) {
    const target = findNode(graph, l.target_id);
    const slot = target?.inputs?.find((i) => String(i.link) === String(l.id));
    const key = `${l.origin_id}/${l.origin_slot}`;
    let port = ins.get(key);
    if (!port) {
      port = { at: inputs.length, link: l };
      ins.set(key, port);
      inputs.push({ id: newId(), name: unique(inNames, slot?.name ?? "input"), type: l.type, linkIds: [] });
    }
    const id = ++next;
    relink.set(String(l.id), id);
    inputs[port.at]?.linkIds?.push(id);
    links.push({ id, origin_id: INPUT_NODE, origin_slot: port.at, target_id: l.target_id, target_slot: l.target_slot, type: l.type });
  }
  const outs = new Map<string, number>();
  const newOut = new Map<string, NodeId[]>(); // inner output -> links to the definition's outputs
  for (const l of leaving) {
    const key = `${l.origin_id}/${l.origin_slot}`;
    if (outs.has(key)) continue;
    const origin = findNode(graph, l.origin_id);
    const id = ++next;
    outs.set(key, outputs.length);
    links.push({ id, origin_id: l.origin_id, origin_slot: l.origin_slot, target_id: OUTPUT_NODE, target_slot: outputs.length, type: l.type });
    outputs.push({ id: newId(), name: unique(outNames, origin?.outputs?.[l.origin_slot]?.name ?? "output"), type: l.type, linkIds: [id] });
    newOut.set(key, [id]);
  }
  const kept = new Set(inner.map((l) => String(l.id)));
  const moved = nodes.map(
    (n): GNode => ({
      ...n,
      inputs: (n.inputs ?? []).map((i) => (i.link == null ? i : { ...i, link: relink.get(String(i.link)) ?? (kept.has(String(i.link)) ? i.link : null) })),
      outputs: (n.outputs ?? []).map((o, at) => ({
        ...o,
        links: [...(o.links ?? []).filter((l) => kept.has(String(l))), ...(newOut.get(`${n.id}/${at}`) ?? [])],
      })),
    }),
  );
  const boxes = nodes.map((n) => boxOf(n, classSpec(info, n.type)));
  const left = Math.min(...boxes.map((b) => b.x));
  const top = Math.min(...boxes.map((b) => b.y));
  const right = Math.max(...boxes.map((b) => b.x + b.width));
  const def = {
    id: newId(),
    version: 1,
    state: { lastGroupId: 0, lastNodeId: highest(doc).node, lastLinkId: next, lastRerouteId: 0 },
    revision: 0,
    config: {},
    name: "New sub-graph",
    inputNode: { id: INPUT_NODE, bounding: [left - 220, top, 120, 60] },
    outputNode: { id: OUTPUT_NODE, bounding: [right + 100, top, 120, 60] },
    inputs,
    outputs,
    widgets: [],
    nodes: moved,
    groups: [],
    links: links.map((l) => writeLink(l, "inner")),
    extra: {},
  } as unknown as Definition;

  let out = removeNodes(
    doc,
    scope,
    nodes.map((n) => n.id),
  );
  out = { ...out, definitions: { ...out.definitions, subgraphs: [...definitions(out), def] } };
  const slots: InSlot[] = inputs.map((p) => ({ name: p.name, type: p.type, link: null }));
  const ends: OutSlot[] = outputs.map((p) => ({ name: p.name, type: p.type, links: [] }));
  const at: [number, number] = [Math.round(left), Math.round(top + 30)];
  const added = addNode(countIds(out, scope, 0, next), scope, (id) => ({
    id,
    type: def.id,
    pos: at,
    size: [240, Math.max(slots.length, ends.length) * 20 + 20],
    flags: {},
    order: 0,
    mode: 0,
    inputs: slots,
    outputs: ends,
    properties: {},
    widgets_values: [],
  }));
  out = added.doc;
  for (const { at: slot, link } of ins.values()) {
    out = connect(out, scope, { node: link.origin_id, slot: link.origin_slot }, { node: added.id, key: inputs[slot]?.name ?? "" }, info);
  }
  for (const l of leaving) {
    const slot = outs.get(`${l.origin_id}/${l.origin_slot}`) ?? 0;
    out = reconnectTarget(out, scope, graph, l, { node: added.id, slot }, info);
  }
  return { doc: out, id: added.id };
}

/** Feeds the input an old link fed from another output. */
function reconnectTarget(doc: Doc, scope: Scope, before: { nodes: GNode[] }, link: Link, from: { node: NodeId; slot: number }, info: ObjectInfo | null): Doc {
  if (String(link.target_id) === String(OUTPUT_NODE)) return connect(doc, scope, from, { node: OUTPUT_NODE, key: String(link.target_slot) }, info);
  const target = before.nodes.find((n) => String(n.id) === String(link.target_id));
  const view = target && inputsOf(target, classSpec(info, target.type), definition(doc, target.type)).find((i) => String(i.link) === String(link.id));
  return view ? connect(doc, scope, from, { node: link.target_id, key: view.key }, info) : doc;
}

/** Puts what an instance holds in its place; the values it shows go to the nodes they belong to. */
export function unpack(doc: Doc, scope: Scope, id: NodeId, info: ObjectInfo | null): { doc: Doc; ids: NodeId[] } {
  const node = findNode(graphAt(doc, scope), id);
  const def = definition(doc, node?.type);
  if (!node || !def) return { doc, ids: [] };
  const graph = graphAt(doc, scope);
  const outer = linkIndex(graph);
  const clip = copyNodes(
    doc,
    def.id,
    def.nodes.map((n) => n.id),
    (def.groups ?? []).map((_, i) => i),
  );
  const pasted = pasteClip(doc, scope, clip, pair(node.pos, [0, 0]));
  const renamed = new Map(clip.nodes.map((n, i) => [String(n.id), pasted.ids[i] as NodeId]));
  let out = pasted.doc;
  const inner = linkIndex(def);
  const own = promotedWidgets(doc, node, info);
  def.inputs.forEach((port) => {
    const slot = node.inputs?.find((i) => i.name === port.name);
    const source = slot?.link == null ? undefined : outer.get(String(slot.link));
    for (const linkId of port.linkIds ?? []) {
      const l = inner.get(String(linkId));
      const target = l && findNode(def, l.target_id);
      const view = target && inputsOf(target, classSpec(info, target.type), definition(doc, target.type)).find((i) => String(i.link) === String(linkId));
      const to = l && renamed.get(String(l.target_id));
      if (!view || to === undefined || !target) continue;
      if (source) out = connect(out, scope, { node: source.origin_id, slot: source.origin_slot }, { node: to, key: view.key }, info);
      else {
        const shown = own.find((p) => p.input === port.name && "own" in p.place);
        const spec = classSpec(info, target.type);
        if (shown && spec && view.widget) {
          const widget = view.widget;
          out = withGraph(out, scope, {
            ...graphAt(out, scope),
            nodes: graphAt(out, scope).nodes.map((n) => (n.id === to ? setWidget(n, spec, widget, shown.value) : n)),
          });
        }
      }
    }
  });
  def.outputs.forEach((port, at) => {
    const l = inner.get(String(port.linkIds?.[0]));
    if (!l) return;
    let from: { node: NodeId; slot: number } | null = null;
    if (String(l.origin_id) === String(INPUT_NODE)) {
      const slot = node.inputs?.find((i) => i.name === def.inputs[l.origin_slot]?.name);
      const source = slot?.link == null ? undefined : outer.get(String(slot.link));
      if (source) from = { node: source.origin_id, slot: source.origin_slot };
    } else {
      const to = renamed.get(String(l.origin_id));
      if (to !== undefined) from = { node: to, slot: l.origin_slot };
    }
    if (!from) return;
    for (const linkId of node.outputs?.[at]?.links ?? []) {
      const old = outer.get(String(linkId));
      if (old) out = reconnectTarget(out, scope, graph, old, from, info);
    }
  });
  out = removeNodes(out, scope, [id]);
  return { doc: out, ids: pasted.ids };
}
