// Whether the painter is open; anything on the page may open it.
import { create } from "zustand";

export const usePainter = create<{ open: boolean; start(): void; stop(): void }>()((set) => ({
  open: false,
  start: () => set({ open: true }),
  stop: () => set({ open: false }),
}));
