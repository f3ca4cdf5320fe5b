// Changes of the document. Each returns a new document; what is not touched stays the same object.
import type { Definition, Doc, GGroup, GNode, Graph, InSlot, Link, NodeId, Scope } from "./format";
import { countIds, findNode, graphAt, highest, INPUT_NODE, OUTPUT_NODE, pair, rect, same, withGraph } from "./format";

export function updateNode(graph: Graph, id: NodeId, change: (node: GNode) => GNode): Graph {
  let touched = false;
  const nodes = graph.nodes.map((n) => {
    if (!same(n.id, id)) return n;
    const next = change(n);
    if (next !== n) touched = true;
    return next;
  });
  return touched ? { ...graph, nodes } : graph;
}

export function editGraph(doc: Doc, scope: Scope, change: (graph: Graph) => Graph): Doc {
  const graph = graphAt(doc, scope);
  const next = change(graph);
  return next === graph ? doc : withGraph(doc, scope, next);
}

export function editNode(doc: Doc, scope: Scope, id: NodeId, change: (node: GNode) => GNode): Doc {
  return editGraph(doc, scope, (g) => updateNode(g, id, change));
}

export function editNodes(doc: Doc, scope: Scope, ids: readonly NodeId[], change: (node: GNode) => GNode): Doc {
  const wanted = new Set(ids.map(String));
  return editGraph(doc, scope, (g) => {
    let touched = false;
    const nodes = g.nodes.map((n) => {
      if (!wanted.has(String(n.id))) return n;
      const next = change(n);
      touched ||= next !== n;
      return next;
    });
    return touched ? { ...g, nodes } : g;
  });
}

/** Adds a node made for the next free id. */
export function addNode(doc: Doc, scope: Scope, make: (id: number) => GNode): { doc: Doc; id: number } {
  const top = highest(doc);
  const id = top.node + 1;
  const added = editGraph(doc, scope, (g) => ({ ...g, nodes: [...g.nodes, { ...make(id), id, order: g.nodes.length }] }));
  return { doc: countIds(added, scope, id, top.link), id };
}

/** Takes links out of the list and out of every slot that names them. */
export function removeLinks(graph: Graph, ids: readonly NodeId[]): Graph {
  const gone = new Set(ids.map(String));
  if (gone.size === 0) return graph;
  const linkId = (raw: unknown): string => String(Array.isArray(raw) ? raw[0] : (raw as { id?: unknown } | null)?.id);
  const keep = (list: NodeId[] | null | undefined): NodeId[] | null | undefined =>
    list?.some((l) => gone.has(String(l))) ? list.filter((l) => !gone.has(String(l))) : list;
  const nodes = graph.nodes.map((node) => {
    let next = node;
    if (node.inputs?.some((i) => i.link != null && gone.has(String(i.link)))) {
      next = { ...next, inputs: node.inputs.map((i) => (i.link != null && gone.has(String(i.link)) ? { ...i, link: null } : i)) };
    }
    if (node.outputs?.some((o) => keep(o.links) !== o.links)) {
      next = { ...next, outputs: node.outputs.map((o) => (keep(o.links) === o.links ? o : { ...o, links: keep(o.links) ?? null })) };
    }
    return next;
  });
  const out: Graph = { ...graph, nodes, links: graph.links.filter((l) => !gone.has(linkId(l))) };
  for (const side of ["inputs", "outputs"] as const) {
    const ports = (graph as Definition)[side];
    if (Array.isArray(ports) && ports.some((p) => keep(p.linkIds) !== p.linkIds)) {
      (out as Definition)[side] = ports.map((p) => (keep(p.linkIds) === p.linkIds ? p : { ...p, linkIds: keep(p.linkIds) ?? [] }));
    }
  }
  return out;
}

/** Every link that touches one of the nodes. */
export function linksOf(graph: Graph, ids: readonly NodeId[]): NodeId[] {
  const wanted = new Set(ids.map(String));
  const found: NodeId[] = [];
  for (const raw of graph.links) {
    const object = (raw ?? {}) as Partial<Link>;
    const [id, from, to] = Array.isArray(raw) ? [raw[0], raw[1], raw[3]] : [object.id, object.origin_id, object.target_id];
    if (wanted.has(String(from)) || wanted.has(String(to))) found.push(id as NodeId);
  }
  return found;
}

export function removeNodes(doc: Doc, scope: Scope, ids: readonly NodeId[]): Doc {
  const gone = new Set(ids.filter((id) => !same(id, INPUT_NODE) && !same(id, OUTPUT_NODE)).map(String));
  if (gone.size === 0) return doc;
  return editGraph(doc, scope, (g) => {
    const cut = removeLinks(g, linksOf(g, [...gone]));
    return { ...cut, nodes: cut.nodes.filter((n) => !gone.has(String(n.id))) };
  });
}

export function disconnect(doc: Doc, scope: Scope, links: readonly NodeId[]): Doc {
  return links.length === 0 ? doc : editGraph(doc, scope, (g) => removeLinks(g, links));
}

export interface Move {
  id: NodeId;
  x: number;
  y: number;
}

/** Sets positions; a node that stays keeps its stored form of position. */
export function moveNodes(doc: Doc, scope: Scope, moves: readonly Move[]): Doc {
  const to = new Map(moves.map((m) => [String(m.id), m]));
  return editGraph(doc, scope, (g) => {
    let touched = false;
    const nodes = g.nodes.map((n) => {
      const m = to.get(String(n.id));
      if (!m) return n;
      const [x, y] = pair(n.pos, [0, 0]);
      if (x === m.x && y === m.y) return n;
      touched = true;
      return { ...n, pos: [m.x, m.y] };
    });
    let next: Graph = touched ? { ...g, nodes } : g;
    for (const [id, key] of [
      [INPUT_NODE, "inputNode"],
      [OUTPUT_NODE, "outputNode"],
    ] as const) {
      const m = to.get(String(id));
      const io = (g as Definition)[key];
      if (m && io) {
        const [, , w, h] = rect(io.bounding, [0, 0, 120, 60]);
        next = { ...next, [key]: { ...io, bounding: [m.x, m.y, w, h] } };
      }
    }
    return next;
  });
}

export function resizeNode(doc: Doc, scope: Scope, id: NodeId, pos: [number, number], size: [number, number]): Doc {
  return editNode(doc, scope, id, (n) => ({ ...n, pos, size }));
}

export function renameNode(doc: Doc, scope: Scope, id: NodeId, title: string): Doc {
  return editNode(doc, scope, id, (n) => {
    if (title === "") {
      const { title: _gone, ...rest } = n;
      return rest as GNode;
    }
    return n.title === title ? n : { ...n, title };
  });
}

/** Sets the mode, or back to normal where all have it already. */
export function toggleMode(doc: Doc, scope: Scope, ids: readonly NodeId[], mode: number): Doc {
  const graph = graphAt(doc, scope);
  const all = ids.every((id) => findNode(graph, id)?.mode === mode);
  return editNodes(doc, scope, ids, (n) => ({ ...n, mode: all ? 0 : mode }));
}

export function toggleCollapsed(doc: Doc, scope: Scope, ids: readonly NodeId[]): Doc {
  const graph = graphAt(doc, scope);
  const all = ids.every((id) => findNode(graph, id)?.flags?.collapsed);
  return editNodes(doc, scope, ids, (n) => ({ ...n, flags: { ...n.flags, collapsed: !all } }));
}

export function colourNodes(doc: Doc, scope: Scope, ids: readonly NodeId[], colour: { color: string; bgcolor: string } | null): Doc {
  return editNodes(doc, scope, ids, (n) => {
    if (colour) return { ...n, ...colour };
    const { color: _c, bgcolor: _b, ...rest } = n;
    return rest as GNode;
  });
}

/** The text of a note or a value of a node whose class is not known, by place. */
export function setStored(doc: Doc, scope: Scope, id: NodeId, index: number, value: unknown): Doc {
  return editNode(doc, scope, id, (n) => {
    const list = Array.isArray(n.widgets_values) ? [...(n.widgets_values as unknown[])] : [];
    while (list.length < index) list.push(null);
    list[index] = value;
    return { ...n, widgets_values: list };
  });
}

export function addGroup(doc: Doc, scope: Scope, bounding: [number, number, number, number], title = "Group"): Doc {
  return editGraph(doc, scope, (g) => {
    const groups = g.groups ?? [];
    const id = Math.max(0, ...groups.map((x) => Number(x.id) || 0)) + 1;
    return { ...g, groups: [...groups, { id, title, bounding, color: "#3f789e", font_size: 24, flags: {} }] };
  });
}

/** Groups are named by their place: files may lack ids. */
export function editGroup(doc: Doc, scope: Scope, at: number, change: (group: GGroup) => GGroup): Doc {
  return editGraph(doc, scope, (g) => {
    const groups = g.groups ?? [];
    const group = groups[at];
    if (!group) return g;
    const next = change(group);
    return next === group ? g : { ...g, groups: groups.map((x, i) => (i === at ? next : x)) };
  });
}

export function removeGroups(doc: Doc, scope: Scope, at: readonly number[]): Doc {
  if (at.length === 0) return doc;
  return editGraph(doc, scope, (g) => ({ ...g, groups: (g.groups ?? []).filter((_, i) => !at.includes(i)) }));
}

/** Makes the slot numbers in the links of a node agree with the order of its inputs. */
export function renumberTargets(graph: Graph, id: NodeId): Graph {
  const node = findNode(graph, id);
  if (!node) return graph;
  const at = new Map<string, number>();
  (node.inputs ?? []).forEach((slot: InSlot, i) => slot.link != null && at.set(String(slot.link), i));
  let touched = false;
  const links = graph.links.map((raw) => {
    const linkId = String(Array.isArray(raw) ? raw[0] : (raw as { id?: unknown } | null)?.id);
    const slot = at.get(linkId);
    if (slot === undefined) return raw;
    if (Array.isArray(raw)) {
      if (raw[4] === slot) return raw;
      touched = true;
      return raw.map((v, i) => (i === 4 ? slot : (v as unknown)));
    }
    if ((raw as { target_slot?: number }).target_slot === slot) return raw;
    touched = true;
    return { ...(raw as object), target_slot: slot };
  });
  return touched ? { ...graph, links } : graph;
}
