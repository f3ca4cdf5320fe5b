// The editor's state: the open document with its history, where in it we are, and what the server said about its nodes.
import { create } from "zustand";
import type { NodeOutput } from "../api/types";
import type { InEnd, OutEnd } from "./connect";
import type { Doc, GNode, NodeId, Scope } from "./format";
import { definition, emptyDoc, findNode, graphAt } from "./format";
import type { History } from "./history";
import { pushed, redone, started, undone } from "./history";
import type { Wanted } from "./search";

export interface Step {
  def: string;
  node: NodeId;
}

export interface Problem {
  message: string;
  inputs: Record<string, string>;
  /** Where what is missing can be had. */
  link?: string;
  /** Values that plausibly take the place of what is missing, by input. */
  instead?: Record<string, string>;
}

export interface SearchRequest {
  screen: { x: number; y: number };
  flow: { x: number; y: number };
  wanted: Wanted;
  from?: OutEnd;
  to?: InEnd;
}

export interface MenuRequest {
  screen: { x: number; y: number };
  flow: { x: number; y: number };
}

/** All that belongs to an open document. */
export type Opened = Pick<GraphState, "history" | "path" | "name" | "saved" | "suggested" | "results" | "jobs">;

export type Sheet = "files" | "saveAs" | "commands" | "rename" | "find" | null;

interface GraphState {
  history: History<Doc>;
  path: Step[];
  name: string | null; // file in the user's workflows; null where it was never saved
  saved: Doc | null; // the document as it lies in that file
  suggested: string | null; // what to call it where it was never saved
  opened: number; // counts documents opened, so that the canvas fits each once
  previous: Opened | null; // the document that was open before; undoing past the first change leads back to it
  selected: string[]; // ids of nodes as text, groups as "g0"
  selectedLinks: string[];
  errors: Record<string, Problem>;
  lacks: Record<string, Problem>; // what nodes need that is not here, told before anything is run
  results: Record<string, NodeOutput>;
  jobs: string[]; // prompts queued from this editor
  dragging: { side: "out" | "in"; type: string } | null;
  search: SearchRequest | null;
  menu: MenuRequest | null;
  sheet: Sheet;
  inspector: boolean;
  edit(change: (doc: Doc) => Doc, tag?: string): void;
  undo(): void;
  redo(): void;
  open(doc: Doc, name: string | null, saved: boolean): void;
  goBack(): void;
  markSaved(doc: Doc, name: string): void;
  enter(step: Step): void;
  leave(depth: number): void;
  select(ids: string[], links?: string[]): void;
}

const DRAFT = "fresco.graph";

interface Draft {
  doc: Doc;
  name: string | null;
  dirty: boolean;
  suggested?: string | null;
  results?: Record<string, NodeOutput>;
}

export function readDraft(): Draft | null {
  try {
    const text = localStorage.getItem(DRAFT);
    const draft = text ? (JSON.parse(text) as Draft) : null;
    return draft && Array.isArray(draft.doc?.nodes) ? draft : null;
  } catch {
    return null;
  }
}

function writeDraft(draft: Draft): void {
  try {
    localStorage.setItem(DRAFT, JSON.stringify(draft));
  } catch {
    // A document too large for the browser's store is only kept in files.
  }
}

/** Steps that still lead somewhere in this document. */
function validPath(doc: Doc, path: Step[]): Step[] {
  const out: Step[] = [];
  let scope: Scope = null;
  for (const step of path) {
    const there = graphAt(doc, scope).nodes.some((n) => String(n.id) === String(step.node) && n.type === step.def);
    if (!there || !definition(doc, step.def)) break;
    out.push(step);
    scope = step.def;
  }
  return out;
}

/** The node that runs under an id, found by the instances on its path. */
export function nodeAt(doc: Doc, flat: string): GNode | undefined {
  let scope: Scope = null;
  let node: GNode | undefined;
  for (const id of flat.split(":")) {
    node = findNode(graphAt(doc, scope), id);
    if (!node) return undefined;
    scope = node.type;
  }
  return node;
}

/** Selected things without the nodes that are gone, e.g. because their paste was undone. */
function stillThere(doc: Doc, scope: Scope, selected: string[]): string[] {
  if (selected.length === 0) return selected;
  const ids = new Set(graphAt(doc, scope).nodes.map((n) => String(n.id)));
  // Groups and the ends of a sub-graph have names of their own.
  const left = selected.filter((id) => /^(g|-)/.test(id) || ids.has(id));
  return left.length === selected.length ? selected : left;
}

const sameNode = (a: GNode | undefined, b: GNode | undefined): boolean =>
  a === b || (a?.inputs === b?.inputs && a?.widgets_values === b?.widgets_values && a?.mode === b?.mode);

export const useGraph = create<GraphState>()((set, get) => {
  const go = (history: History<Doc>) => {
    if (history === get().history) return;
    const path = validPath(history.present, get().path);
    const selected = stillThere(history.present, scopeOf(path), get().selected);
    set({ history, selected, ...(path.length === get().path.length ? {} : { path, selected: [], selectedLinks: [] }) });
  };
  /** A node that was changed is no longer what the server complained about. */
  const settle = (before: Doc) => {
    const { errors, history } = get();
    const kept = Object.entries(errors).filter(([id]) => sameNode(nodeAt(before, id), nodeAt(history.present, id)));
    if (kept.length < Object.keys(errors).length) set({ errors: Object.fromEntries(kept) });
    const lacks = Object.entries(get().lacks).filter(([id]) => sameNode(nodeAt(before, id), nodeAt(history.present, id)));
    if (lacks.length < Object.keys(get().lacks).length) set({ lacks: Object.fromEntries(lacks) });
  };
  /** The open document, or nothing where none is worth going back to. */
  const now = (): Opened | null => {
    const { opened, history, path, name, saved, suggested, results, jobs } = get();
    return opened > 0 && history.present.nodes.length > 0 ? { history, path, name, saved, suggested, results, jobs } : null;
  };
  const none = { selected: [], selectedLinks: [], errors: {}, lacks: {}, search: null, menu: null };
  return {
    history: started(emptyDoc()),
    path: [],
    name: null,
    saved: null,
    suggested: null,
    opened: 0,
    previous: null,
    selected: [],
    selectedLinks: [],
    errors: {},
    lacks: {},
    results: {},
    jobs: [],
    dragging: null,
    search: null,
    menu: null,
    sheet: null,
    inspector: false,
    edit: (change, tag) => {
      const before = get().history.present;
      go(pushed(get().history, change(before), tag));
      if (tag !== "after-run") settle(before);
    },
    undo: () => {
      if (get().history.past.length === 0) {
        get().goBack();
        return;
      }
      const before = get().history.present;
      go(undone(get().history));
      settle(before);
    },
    redo: () => {
      const before = get().history.present;
      go(redone(get().history));
      settle(before);
    },
    open: (doc, name, saved) =>
      set((s) => ({
        ...none,
        history: started(doc),
        path: [],
        name,
        saved: saved ? doc : null,
        suggested: null,
        results: {},
        jobs: [],
        opened: s.opened + 1,
        previous: now() ?? s.previous,
      })),
    goBack: () => {
      const { previous } = get();
      // The way there is kept as the way back.
      if (previous) set((s) => ({ ...none, ...previous, opened: s.opened + 1, previous: now() }));
    },
    markSaved: (doc, name) => set({ saved: doc, name }),
    enter: (step) => set((s) => ({ path: [...s.path, step], selected: [], selectedLinks: [], search: null, menu: null })),
    leave: (depth) => set((s) => ({ path: s.path.slice(0, depth), selected: [], selectedLinks: [], search: null, menu: null })),
    select: (ids, links = []) => set({ selected: ids, selectedLinks: links }),
  };
});

export const theDoc = (): Doc => useGraph.getState().history.present;
export const scopeOf = (path: Step[]): Scope => path.at(-1)?.def ?? null;
export const theScope = (): Scope => scopeOf(useGraph.getState().path);

/** The id a node runs under: those of the instances around it and its own. */
export const flatId = (path: Step[], id: NodeId): string => [...path.map((s) => s.node), id].join(":");

export const isDirty = (s: Pick<GraphState, "history" | "saved">): boolean => s.history.present !== s.saved;

let timer: ReturnType<typeof setTimeout> | undefined;

/** Keeps the open document in the browser, so that a reload loses nothing. */
export function startDrafts(): () => void {
  const save = () => {
    const s = useGraph.getState();
    if (s.opened > 0) writeDraft({ doc: s.history.present, name: s.name, dirty: isDirty(s), suggested: s.suggested, results: s.results });
  };
  const stop = useGraph.subscribe((now, before) => {
    if (now.history.present === before.history.present && now.saved === before.saved && now.name === before.name && now.results === before.results) return;
    clearTimeout(timer);
    timer = setTimeout(save, 400);
  });
  addEventListener("pagehide", save);
  return () => {
    clearTimeout(timer);
    save();
    stop();
    removeEventListener("pagehide", save);
  };
}

/** Selected node ids that exist in the open graph, and places of selected groups. */
export function selection(): { ids: NodeId[]; groups: number[]; links: NodeId[] } {
  const { selected, selectedLinks } = useGraph.getState();
  const graph = graphAt(theDoc(), theScope());
  const wanted = new Set(selected);
  return {
    ids: graph.nodes.filter((n) => wanted.has(String(n.id))).map((n) => n.id),
    groups: selected.filter((s) => /^g\d+$/.test(s)).map((s) => Number(s.slice(1))),
    links: selectedLinks,
  };
}
