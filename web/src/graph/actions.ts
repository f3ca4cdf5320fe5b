// What the editor does with the selection and the document, for the keyboard, the menus and the toolbar alike.
import { useInfo } from "../state/info";
import { toast } from "../ui";
import { besideOf, copyNodes, pasteClip, readClip } from "./clipboard";
import { firstInput, firstOutput } from "./compat";
import { connect, inType, outType, refusal, type InEnd, type OutEnd } from "./connect";
import { addGroup, addNode, colourNodes, disconnect, editGroup, moveNodes, removeGroups, removeNodes, toggleCollapsed, toggleMode } from "./edits";
import { boundsOf } from "./flow";
import { definition, findNode, graphAt, linkIndex, MODE, type Doc, type NodeId } from "./format";
import { layered } from "./layout";
import { makeNode } from "./make";
import { boxOf, freePlace, TITLE } from "./metrics";
import { classSpec } from "./schema";
import { inputsOf, outputsOf } from "./slots";
import { flatId, selection, theDoc, theScope, useGraph, type SearchRequest } from "./store";
import { addPort } from "./subgraph";
import { gather, unpack } from "./gather";

const info = () => useInfo.getState().info;
const edit = (change: (doc: Doc) => Doc, tag?: string) => useGraph.getState().edit(change, tag);

/** Adds a node where the search was opened, and connects it where a link was dropped. */
export function addFromSearch(type: string, request: SearchRequest): void {
  const scope = theScope();
  const spec = classSpec(info(), type);
  let added: number | null = null;
  edit((doc) => {
    const made = addNode(doc, scope, (id) => {
      const fresh = makeNode(type, id, [Math.round(request.flow.x), Math.round(request.flow.y)], spec);
      const others = graphAt(doc, scope).nodes.map((n) => boxOf(n, classSpec(info(), n.type)));
      const { x, y } = freePlace(boxOf(fresh, spec), others);
      return { ...fresh, pos: [x, y + TITLE] };
    });
    added = made.id;
    let out = made.doc;
    const node = findNode(graphAt(out, scope), made.id);
    if (!node) return out;
    if (request.from) {
      const wanted = outType(out, scope, request.from, info());
      const name = type === "Reroute" ? "" : spec ? firstInput(spec, wanted) : null;
      const view = inputsOf(node, spec).find((i) => i.name === name);
      if (view && !refusal(out, scope, request.from, { node: made.id, key: view.key }, info()))
        out = connect(out, scope, request.from, { node: made.id, key: view.key }, info());
    } else if (request.to) {
      const wanted = inType(out, scope, request.to, info());
      const slot = spec ? firstOutput(spec, wanted) : 0;
      if (slot >= 0 && !refusal(out, scope, { node: made.id, slot }, request.to, info()))
        out = connect(out, scope, { node: made.id, slot }, request.to, info());
    }
    return out;
  });
  if (added !== null) useGraph.getState().select([String(added)]);
}

/** Connects two ends, or says why not. */
export function join(from: OutEnd, to: InEnd, replacing?: NodeId): void {
  const scope = theScope();
  const start = replacing === undefined ? theDoc() : disconnect(theDoc(), scope, [replacing]);
  const why = refusal(start, scope, from, to, info());
  if (why) {
    toast(why, "warn", { duration: 3000 });
    return;
  }
  edit(() => connect(start, scope, from, to, info()));
}

/** Connects an output to the first input of a node that takes it, or the other way round. */
export function joinNode(end: { from: OutEnd } | { to: InEnd }, id: NodeId): boolean {
  const scope = theScope();
  const doc = theDoc();
  const node = findNode(graphAt(doc, scope), id);
  if (!node) return false;
  const spec = classSpec(info(), node.type);
  const def = definition(doc, node.type);
  if ("from" in end) {
    const views = inputsOf(node, spec, def).filter((v) => !refusal(doc, scope, end.from, { node: id, key: v.key }, info()));
    const type = outType(doc, scope, end.from, info());
    const best = views.find((v) => v.link == null && v.type === type) ?? views.find((v) => v.link == null && !v.widget) ?? views[0];
    if (best) join(end.from, { node: id, key: best.key });
    return best !== undefined;
  }
  const slot = outputsOf(node, spec, def).find((o) => !refusal(doc, scope, { node: id, slot: o.at }, end.to, info()));
  if (slot) join({ node: id, slot: slot.at }, end.to);
  return slot !== undefined;
}

/** Makes a new port of the open sub-graph and connects it. */
export function joinNewPort(end: { from: OutEnd } | { to: InEnd }): void {
  const scope = theScope();
  if (scope === null) return;
  edit((doc) => {
    if ("from" in end) {
      const node = findNode(graphAt(doc, scope), end.from.node);
      const name = node ? (outputsOf(node, classSpec(info(), node.type), definition(doc, node.type))[end.from.slot]?.label ?? "output") : "output";
      const added = addPort(doc, scope, "outputs", name, outType(doc, scope, end.from, info()));
      return connect(added.doc, scope, end.from, { node: -20, key: String(added.at) }, info());
    }
    const node = findNode(graphAt(doc, scope), end.to.node);
    const view = node && inputsOf(node, classSpec(info(), node.type), definition(doc, node.type)).find((i) => i.key === end.to.key);
    const added = addPort(doc, scope, "inputs", view?.name ?? "input", inType(doc, scope, end.to, info()), Boolean(view?.widget));
    return connect(added.doc, scope, { node: -10, slot: added.at }, end.to, info());
  });
}

export function removeSelected(): void {
  const { ids, groups, links } = selection();
  const scope = theScope();
  edit((doc) => removeGroups(removeNodes(disconnect(doc, scope, links), scope, ids), scope, groups));
  useGraph.getState().select([]);
}

export function copySelected(): string | null {
  const { ids, groups } = selection();
  if (ids.length === 0 && groups.length === 0) return null;
  const text = JSON.stringify(copyNodes(theDoc(), theScope(), ids, groups));
  kept = text;
  return text;
}

/** The last copy, for browsers that keep the clipboard from the page. */
let kept: string | null = null;

export function pasteText(text: string | null, at: [number, number] | null): boolean {
  const clip = readClip(text ?? "") ?? (text ? null : readClip(kept ?? ""));
  if (!clip) return false;
  let ids: number[] = [];
  edit((doc) => {
    const first = clip.nodes[0];
    const where =
      at ??
      (first
        ? besideOf(
            { ...doc, nodes: clip.nodes },
            null,
            clip.nodes.map((n) => n.id),
          )
        : [0, 0]);
    const pasted = pasteClip(doc, theScope(), clip, where);
    ids = pasted.ids;
    return pasted.doc;
  });
  if (ids.length > 0) useGraph.getState().select(ids.map(String));
  return true;
}

export function duplicateSelected(): void {
  const { ids, groups } = selection();
  if (ids.length === 0) return;
  const scope = theScope();
  let made: number[] = [];
  edit((doc) => {
    const pasted = pasteClip(doc, scope, copyNodes(doc, scope, ids, groups), besideOf(doc, scope, ids));
    made = pasted.ids;
    return pasted.doc;
  });
  useGraph.getState().select(made.map(String));
}

export const muteSelected = (): void => edit((doc) => toggleMode(doc, theScope(), selection().ids, MODE.mute));
export const bypassSelected = (): void => edit((doc) => toggleMode(doc, theScope(), selection().ids, MODE.bypass));
export const foldSelected = (): void => edit((doc) => toggleCollapsed(doc, theScope(), selection().ids));

export function colourSelected(colour: { color: string; bgcolor: string } | null): void {
  const { ids, groups } = selection();
  const scope = theScope();
  edit((doc) => {
    let out = colourNodes(doc, scope, ids, colour);
    for (const at of groups) out = editGroup(out, scope, at, (g) => ({ ...g, color: colour?.bgcolor ?? "#3f789e" }));
    return out;
  });
}

export function selectAll(): void {
  const graph = graphAt(theDoc(), theScope());
  useGraph.getState().select([...graph.nodes.map((n) => String(n.id)), ...(graph.groups ?? []).map((_, i) => `g${i}`)]);
}

export function groupSelected(): void {
  const { ids } = selection();
  const scope = theScope();
  const box = ids.length > 0 ? boundsOf(theDoc(), scope, info(), ids.map(String)) : null;
  if (!box) return;
  edit((doc) => addGroup(doc, scope, [box.x - 20, box.y - 50, box.width + 40, box.height + 70]));
}

/** Lays out the selection, or everything, from left to right. */
export function arrange(): void {
  const scope = theScope();
  const { ids } = selection();
  edit((doc) => {
    const graph = graphAt(doc, scope);
    const wanted = new Set((ids.length > 1 ? ids : graph.nodes.map((n) => n.id)).map(String));
    const nodes = graph.nodes.filter((n) => wanted.has(String(n.id)));
    const notes = nodes.filter((n) => n.type === "Note" || n.type === "MarkdownNote");
    const boxes = nodes.filter((n) => !notes.includes(n)).map((n) => ({ id: String(n.id), ...boxOf(n, classSpec(info(), n.type)) }));
    if (boxes.length === 0) return doc;
    const arcs = [...linkIndex(graph).values()].map((l) => ({ from: String(l.origin_id), to: String(l.target_id) }));
    const places = layered(
      boxes.map(({ id, width, height }) => ({ id, width, height })),
      arcs,
    );
    const left = Math.min(...boxes.map((b) => b.x));
    const top = Math.min(...boxes.map((b) => b.y));
    let out = moveNodes(
      doc,
      scope,
      boxes.map((b) => {
        const at = places.get(b.id) ?? { x: 0, y: 0 };
        return { id: b.id, x: left + at.x, y: top + at.y + TITLE };
      }),
    );
    // Notes have no links to follow: they go in a row above.
    let x = left;
    const moves = notes.map((n) => {
      const box = boxOf(n, undefined);
      const move = { id: n.id, x, y: top - box.height + TITLE - 40 };
      x += box.width + 40;
      return move;
    });
    out = moveNodes(out, scope, moves);
    const def = definition(out, scope);
    if (def && ids.length < 2) {
      const all = boundsOf(
        { ...out, groups: [] } as Doc,
        scope,
        info(),
        nodes.map((n) => String(n.id)),
      );
      if (all)
        out = moveNodes(out, scope, [
          { id: -10, x: all.x - 220, y: all.y },
          { id: -20, x: all.x + all.width + 80, y: all.y },
        ]);
    }
    return out;
  });
}

/** Puts the selected nodes on one line. */
export function align(side: "left" | "top"): void {
  const { ids } = selection();
  const scope = theScope();
  const graph = graphAt(theDoc(), scope);
  const boxes = ids.flatMap((id) => {
    const n = findNode(graph, id);
    return n ? [{ id, ...boxOf(n, classSpec(info(), n.type)) }] : [];
  });
  if (boxes.length < 2) return;
  const x = Math.min(...boxes.map((b) => b.x));
  const y = Math.min(...boxes.map((b) => b.y));
  edit((doc) =>
    moveNodes(
      doc,
      scope,
      boxes.map((b) => ({ id: b.id, x: side === "left" ? x : b.x, y: (side === "top" ? y : b.y) + TITLE })),
    ),
  );
}

export function nudge(dx: number, dy: number): void {
  const { ids } = selection();
  const scope = theScope();
  const graph = graphAt(theDoc(), scope);
  const moves = ids.flatMap((id) => {
    const n = findNode(graph, id);
    if (!n) return [];
    const box = boxOf(n, undefined);
    return [{ id, x: box.x + dx, y: box.y + TITLE + dy }];
  });
  edit((doc) => moveNodes(doc, scope, moves), "nudge");
}

export function gatherSelected(): void {
  const { ids } = selection();
  if (ids.length === 0) return;
  const scope = theScope();
  let made: NodeId | null = null;
  edit((doc) => {
    const done = gather(doc, scope, ids, info());
    made = done.id;
    return done.doc;
  });
  if (made !== null) useGraph.getState().select([String(made)]);
}

export function unpackSelected(): void {
  const { ids } = selection();
  const scope = theScope();
  const made: NodeId[] = [];
  edit((doc) => {
    let out = doc;
    for (const id of ids) {
      const done = unpack(out, scope, id, info());
      out = done.doc;
      made.push(...done.ids);
    }
    return out;
  });
  if (made.length > 0) useGraph.getState().select(made.map(String));
}

/** Goes into the selected sub-graph. */
export function enterSelected(): void {
  const doc = theDoc();
  const node = selection()
    .ids.map((id) => findNode(graphAt(doc, theScope()), id))
    .find((n) => n && definition(doc, n.type));
  if (node) useGraph.getState().enter({ def: node.type, node: node.id });
}

/** Selects the first node the server complained about, going into its sub-graph where needed. */
export function showProblem(): string | null {
  const { errors, path } = useGraph.getState();
  const graph = graphAt(theDoc(), theScope());
  for (const n of graph.nodes) {
    const flat = flatId(path, n.id);
    if (Object.keys(errors).some((e) => e === flat || e.startsWith(`${flat}:`))) {
      useGraph.getState().select([String(n.id)]);
      return String(n.id);
    }
  }
  return null;
}
