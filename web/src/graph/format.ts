// The document: a ComfyUI UI-format workflow kept as the JSON it came as, with readers and writers that keep unknown fields.

export type NodeId = number | string;
export type Scope = string | null; // id of a sub-graph definition; null is the outermost graph

export interface InSlot {
  name: string;
  type: unknown;
  link?: NodeId | null;
  widget?: { name: string } | null;
  label?: string;
  localized_name?: string;
  [key: string]: unknown;
}

export interface OutSlot {
  name: string;
  type: unknown;
  links?: NodeId[] | null;
  label?: string;
  localized_name?: string;
  [key: string]: unknown;
}

export interface GNode {
  id: NodeId;
  type: string;
  pos: unknown;
  size?: unknown;
  flags?: Record<string, unknown>;
  order?: number;
  mode?: number;
  inputs?: InSlot[] | null;
  outputs?: OutSlot[] | null;
  title?: string;
  properties?: Record<string, unknown>;
  widgets_values?: unknown;
  widgets_values_named?: Record<string, unknown>;
  color?: string;
  bgcolor?: string;
  [key: string]: unknown;
}

export interface GGroup {
  id?: NodeId;
  title?: string;
  bounding: unknown;
  color?: string;
  [key: string]: unknown;
}

export interface Port {
  id?: string;
  name: string;
  type: unknown;
  linkIds?: NodeId[] | null;
  label?: string;
  localized_name?: string;
  [key: string]: unknown;
}

export interface Graph {
  nodes: GNode[];
  links: unknown[];
  groups?: GGroup[] | null;
  [key: string]: unknown;
}

export interface Definition extends Graph {
  id: string;
  name: string;
  inputs: Port[];
  outputs: Port[];
  inputNode?: { id: NodeId; bounding?: unknown; [key: string]: unknown };
  outputNode?: { id: NodeId; bounding?: unknown; [key: string]: unknown };
}

export interface Doc extends Graph {
  version: number;
  last_node_id?: number;
  last_link_id?: number;
  definitions?: { subgraphs?: Definition[]; [key: string]: unknown };
  extra?: Record<string, unknown>;
}

export interface Link {
  id: NodeId;
  origin_id: NodeId;
  origin_slot: number;
  target_id: NodeId;
  target_slot: number;
  type: unknown;
}

export const INPUT_NODE = -10;
export const OUTPUT_NODE = -20;
export const MODE = { normal: 0, mute: 2, bypass: 4 } as const;

export const same = (a: unknown, b: unknown): boolean => String(a) === String(b);

/** Reads a pair that files write as an array or as an object with keys 0 and 1. */
export function pair(raw: unknown, fallback: [number, number]): [number, number] {
  if (raw && typeof raw === "object") {
    const r = raw as Record<string, unknown>;
    const [x, y] = [Number(r["0"]), Number(r["1"])];
    return [Number.isFinite(x) ? x : fallback[0], Number.isFinite(y) ? y : fallback[1]];
  }
  return fallback;
}

/** Reads a rectangle written as four numbers. */
export function rect(raw: unknown, fallback: [number, number, number, number]): [number, number, number, number] {
  if (!raw || typeof raw !== "object") return fallback;
  const r = raw as Record<string, unknown>;
  return [0, 1, 2, 3].map((i) => (Number.isFinite(Number(r[i])) ? Number(r[i]) : (fallback[i] ?? 0))) as [number, number, number, number];
}

/** A type as text: lists of choices are COMBO, anything unreadable matches all. */
export function typeText(raw: unknown): string {
  if (Array.isArray(raw)) return "COMBO";
  if (typeof raw === "string") return raw;
  return raw === 0 || raw === null || raw === undefined ? "*" : String(raw);
}

export function readLink(raw: unknown): Link | null {
  if (Array.isArray(raw) && raw.length >= 5) {
    const [id, origin_id, origin_slot, target_id, target_slot, type] = raw as [NodeId, NodeId, number, NodeId, number, unknown];
    return { id, origin_id, origin_slot: Number(origin_slot), target_id, target_slot: Number(target_slot), type };
  }
  if (raw && typeof raw === "object" && "origin_id" in raw) {
    const r = raw as Link;
    return { ...r, origin_slot: Number(r.origin_slot), target_slot: Number(r.target_slot) };
  }
  return null;
}

/** Outermost links are arrays, those inside a definition are objects. */
export function writeLink(link: Link, scope: Scope): unknown {
  const { id, origin_id, origin_slot, target_id, target_slot, type } = link;
  return scope === null ? [id, origin_id, origin_slot, target_id, target_slot, type] : { id, origin_id, origin_slot, target_id, target_slot, type };
}

const indexes = new WeakMap<readonly unknown[], Map<string, Link>>();

/** Links by id; made once per list. */
export function linkIndex(graph: Graph): Map<string, Link> {
  const list = graph.links ?? [];
  let map = indexes.get(list);
  if (!map) {
    map = new Map();
    for (const raw of list) {
      const link = readLink(raw);
      if (link) map.set(String(link.id), link);
    }
    indexes.set(list, map);
  }
  return map;
}

export function definitions(doc: Doc): Definition[] {
  const list = doc.definitions?.subgraphs;
  return Array.isArray(list) ? list : [];
}

export function definition(doc: Doc, id: string | null | undefined): Definition | undefined {
  return id == null ? undefined : definitions(doc).find((d) => d.id === id);
}

export function graphAt(doc: Doc, scope: Scope): Graph {
  return scope === null ? doc : (definition(doc, scope) ?? { nodes: [], links: [] });
}

/** Puts a changed graph back into its place in the document. */
export function withGraph(doc: Doc, scope: Scope, graph: Graph): Doc {
  if (scope === null) return graph as Doc;
  return {
    ...doc,
    definitions: { ...doc.definitions, subgraphs: definitions(doc).map((d) => (d.id === scope ? (graph as Definition) : d)) },
  };
}

export function findNode(graph: Graph, id: NodeId): GNode | undefined {
  return graph.nodes.find((n) => same(n.id, id));
}

/** The highest node id and link id used anywhere, so that new ones never collide in either front-end. */
export function highest(doc: Doc): { node: number; link: number } {
  let node = Number(doc.last_node_id) || 0;
  let link = Number(doc.last_link_id) || 0;
  for (const graph of [doc as Graph, ...definitions(doc)]) {
    const state = graph.state as { lastNodeId?: number; lastLinkId?: number } | undefined;
    node = Math.max(node, Number(state?.lastNodeId) || 0);
    link = Math.max(link, Number(state?.lastLinkId) || 0);
    for (const n of graph.nodes) if (Number(n.id) > node) node = Number(n.id);
    for (const l of linkIndex(graph).values()) if (Number(l.id) > link) link = Number(l.id);
  }
  return { node, link };
}

/** Notes the highest ids in the fields both front-ends read them from. */
export function countIds(doc: Doc, scope: Scope, node: number, link: number): Doc {
  let out = doc;
  if ((Number(doc.last_node_id) || 0) < node || (Number(doc.last_link_id) || 0) < link) {
    out = { ...out, last_node_id: Math.max(Number(doc.last_node_id) || 0, node), last_link_id: Math.max(Number(doc.last_link_id) || 0, link) };
  }
  const def = definition(out, scope);
  if (def) {
    const state = (def.state ?? {}) as Record<string, number>;
    const next = { ...state, lastNodeId: Math.max(Number(state.lastNodeId) || 0, node), lastLinkId: Math.max(Number(state.lastLinkId) || 0, link) };
    out = withGraph(out, scope, { ...def, state: next });
  }
  return out;
}

export function emptyDoc(): Doc {
  return { id: newId(), revision: 0, last_node_id: 0, last_link_id: 0, nodes: [], links: [], groups: [], config: {}, extra: {}, version: 0.4 } as Doc;
}

/** A random UUID; `crypto.randomUUID` is missing where the page is not served from this machine or over TLS. */
export function newId(): string {
  const bytes = new Uint8Array(16);
  crypto.getRandomValues(bytes);
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x40;
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  const hex = [...bytes].map((b) => b.toString(16).padStart(2, "0")).join("");
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}

/** Takes any JSON for a document; null when it is not one. */
export function asDoc(raw: unknown): Doc | null {
  if (!raw || typeof raw !== "object" || Array.isArray(raw)) return null;
  const r = raw as Record<string, unknown>;
  if (!Array.isArray(r.nodes)) return null;
  const nodes = r.nodes.filter(isNode);
  // A list without a single node of an editor is a list of something else.
  if (nodes.length === 0 && r.nodes.length > 0) return null;
  return { ...r, nodes: nodes.length === r.nodes.length ? r.nodes : nodes, links: Array.isArray(r.links) ? r.links : [] } as unknown as Doc;
}

function isNode(raw: unknown): boolean {
  const node = (raw ?? {}) as Record<string, unknown>;
  return typeof node === "object" && (typeof node.id === "number" || typeof node.id === "string") && typeof node.type === "string" && node.type !== "";
}
