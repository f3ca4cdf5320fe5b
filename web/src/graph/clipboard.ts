// Copying nodes out of a document and into another: new ids, links between the copied nodes kept, definitions brought along.
import type { Definition, Doc, GGroup, GNode, Link, NodeId, Scope } from "./format";
import { countIds, definition, definitions, graphAt, highest, linkIndex, pair, rect, same, withGraph, writeLink } from "./format";

export interface Clip {
  kind: "fresco-nodes";
  nodes: GNode[];
  links: Link[];
  groups: GGroup[];
  subgraphs: Definition[];
}

/** Every definition the nodes use, also those inside others. */
function usedDefinitions(doc: Doc, nodes: GNode[]): Definition[] {
  const found = new Map<string, Definition>();
  const visit = (list: GNode[]) => {
    for (const node of list) {
      const def = found.has(node.type) ? undefined : definition(doc, node.type);
      if (def) {
        found.set(def.id, def);
        visit(def.nodes);
      }
    }
  };
  visit(nodes);
  return [...found.values()];
}

export function copyNodes(doc: Doc, scope: Scope, ids: readonly NodeId[], groups: readonly number[] = []): Clip {
  const graph = graphAt(doc, scope);
  const wanted = new Set(ids.map(String));
  const nodes = graph.nodes.filter((n) => wanted.has(String(n.id)));
  const links = [...linkIndex(graph).values()].filter((l) => wanted.has(String(l.origin_id)) && wanted.has(String(l.target_id)));
  return { kind: "fresco-nodes", nodes, links, groups: (graph.groups ?? []).filter((_, i) => groups.includes(i)), subgraphs: usedDefinitions(doc, nodes) };
}

/** Whether a definition is, or holds somewhere, another one. */
export function holds(all: readonly Definition[], outer: string, inner: string): boolean {
  const seen = new Set<string>();
  const stack = [outer];
  while (stack.length > 0) {
    const id = stack.pop() as string;
    if (id === inner) return true;
    if (seen.has(id)) continue;
    seen.add(id);
    const def = all.find((d) => d.id === id);
    for (const n of def?.nodes ?? []) if (all.some((d) => d.id === n.type)) stack.push(n.type);
  }
  return false;
}

/** Reads a clip from pasted text; null where it is something else. */
export function readClip(text: string): Clip | null {
  if (!text.trimStart().startsWith("{")) return null;
  try {
    const raw = JSON.parse(text) as Partial<Clip>;
    if (raw.kind !== "fresco-nodes" || !Array.isArray(raw.nodes)) return null;
    return { kind: "fresco-nodes", nodes: raw.nodes, links: raw.links ?? [], groups: raw.groups ?? [], subgraphs: raw.subgraphs ?? [] };
  } catch {
    return null;
  }
}

/** Adds the clip with its top left corner at a point; answers the new ids. Nodes that would put a sub-graph into itself are left out. */
export function pasteClip(doc: Doc, scope: Scope, clip: Clip, at: [number, number]): { doc: Doc; ids: number[] } {
  const known = definitions(doc);
  const brought = clip.subgraphs.filter((d) => !known.some((k) => k.id === d.id));
  const all = [...known, ...brought];
  const nodes = clip.nodes.filter((n) => scope === null || !all.some((d) => d.id === n.type) || !holds(all, n.type, scope));
  if (nodes.length === 0 && clip.groups.length === 0) return { doc, ids: [] };
  const corners = [...nodes.map((n) => pair(n.pos, [0, 0])), ...clip.groups.map((g) => rect(g.bounding, [0, 0, 100, 100]).slice(0, 2))];
  const dx = at[0] - Math.min(...corners.map((c) => c[0] ?? 0));
  const dy = at[1] - Math.min(...corners.map((c) => c[1] ?? 0));
  // Definitions that come along count too: their inner ids must not be given away again.
  const top = highest(brought.length > 0 ? { ...doc, definitions: { ...doc.definitions, subgraphs: all } } : doc);
  let nextNode = top.node;
  let nextLink = top.link;
  const ids = new Map(nodes.map((n) => [String(n.id), ++nextNode]));
  const links = clip.links.filter((l) => ids.has(String(l.origin_id)) && ids.has(String(l.target_id)));
  const linkIds = new Map(links.map((l) => [String(l.id), ++nextLink]));
  const graph = graphAt(doc, scope);
  const pasted = nodes.map((node, i): GNode => {
    const [x, y] = pair(node.pos, [0, 0]);
    return {
      ...node,
      id: ids.get(String(node.id)) as number,
      pos: [x + dx, y + dy],
      order: graph.nodes.length + i,
      inputs: node.inputs?.map((s) => ({ ...s, link: s.link == null ? (s.link ?? null) : (linkIds.get(String(s.link)) ?? null) })) ?? [],
      outputs: node.outputs?.map((s) => ({ ...s, links: (s.links ?? []).flatMap((l) => linkIds.get(String(l)) ?? []) })) ?? [],
    };
  });
  const made = links.map((l) =>
    writeLink(
      { ...l, id: linkIds.get(String(l.id)) as number, origin_id: ids.get(String(l.origin_id)) as number, target_id: ids.get(String(l.target_id)) as number },
      scope,
    ),
  );
  const lastGroup = Math.max(0, ...(graph.groups ?? []).map((g) => Number(g.id) || 0));
  const groups = clip.groups.map((g, i) => {
    const [x, y, w, h] = rect(g.bounding, [0, 0, 100, 100]);
    return { ...g, id: lastGroup + i + 1, bounding: [x + dx, y + dy, w, h] };
  });
  let out = withGraph(doc, scope, {
    ...graph,
    nodes: [...graph.nodes, ...pasted],
    links: [...graph.links, ...made],
    ...(groups.length > 0 ? { groups: [...(graph.groups ?? []), ...groups] } : {}),
  });
  if (brought.length > 0) out = { ...out, definitions: { ...out.definitions, subgraphs: [...definitions(out), ...brought] } };
  return { doc: countIds(out, scope, nextNode, nextLink), ids: [...ids.values()] };
}

/** Where a copy of these nodes goes: a little below and to the right. */
export function besideOf(doc: Doc, scope: Scope, ids: readonly NodeId[]): [number, number] {
  const spots = graphAt(doc, scope)
    .nodes.filter((n) => ids.some((id) => same(id, n.id)))
    .map((n) => pair(n.pos, [0, 0]));
  if (spots.length === 0) return [0, 0];
  return [Math.min(...spots.map((s) => s[0])) + 40, Math.min(...spots.map((s) => s[1])) + 40];
}
