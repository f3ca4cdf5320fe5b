// What this tab remembers of the gallery over a reload: filters, selection, which part is open on a phone. Where the grid was
// scrolled to is remembered until the page is left.
import { create } from "zustand";
import { type Filters, NO_FILTERS, readFilters } from "./filter";

interface SessionState {
  filters: Filters;
  selected: string[];
  selecting: boolean;
  tab: "results" | "queue";
  /** Which file of a result to open first: arrow keys going back open the last. */
  openAt: "first" | "last";
  setFilters(change: Partial<Filters>): void;
  clearFilters(): void;
  toggle(id: string): void;
  select(ids: string[]): void;
  setSelecting(on: boolean): void;
  setTab(tab: SessionState["tab"]): void;
}

/** Where to be again after looking at one result: the height of the grid, and the result that was open. */
export const wasAt = { scroll: 0, opened: null as string | null };

const KEY = "fresco.gallery";

function stored(): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(sessionStorage.getItem(KEY) ?? "{}");
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}

const first = stored();
const firstSelected = Array.isArray(first.selected) ? first.selected.filter((id): id is string => typeof id === "string") : [];

export const useSession = create<SessionState>()((set) => ({
  filters: readFilters(first.filters),
  selected: firstSelected,
  selecting: firstSelected.length > 0,
  tab: first.tab === "queue" ? "queue" : "results",
  openAt: "first",
  setFilters: (change) => set((s) => ({ filters: { ...s.filters, ...change } })),
  clearFilters: () => set({ filters: NO_FILTERS }),
  toggle: (id) => set((s) => ({ selecting: true, selected: s.selected.includes(id) ? s.selected.filter((x) => x !== id) : [...s.selected, id] })),
  select: (ids) => set({ selected: ids, selecting: ids.length > 0 }),
  setSelecting: (on) => set((s) => ({ selecting: on, selected: on ? s.selected : [] })),
  setTab: (tab) => set({ tab }),
}));

useSession.subscribe(({ filters, selected, tab }) => {
  try {
    sessionStorage.setItem(KEY, JSON.stringify({ filters, selected, tab }));
  } catch {
    // Storage may be full or forbidden; the gallery works without it.
  }
});
