// Whether the painter is open; anything on the page may open it.
import { create } from "zustand";
import type { CreateValues } from "./values";

interface PainterState {
  open: boolean;
  /** The form as it was before the painter was opened for another picture; cancelling brings that back. */
  before: CreateValues | null;
  start(before?: CreateValues): void;
  stop(): void;
}

export const usePainter = create<PainterState>()((set) => ({
  open: false,
  before: null,
  start: (before) => set({ open: true, before: before ?? null }),
  stop: () => set({ open: false, before: null }),
}));
