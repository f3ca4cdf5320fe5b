// Keeps the view of memory fresh: by events where the server sends them, by asking now and then in any case.
import { useCallback, useEffect, useRef, useState } from "react";
import { getJson } from "../api/client";
import { onEvent, useLive } from "../state/live";
import type { Overview } from "./types";

/** After an event, so that a burst of them is one question. */
const SETTLE = 150;
/** Free memory changes without events too. */
const POLL = 5000;

export interface MemoryState {
  overview: Overview | null;
  error: string | null;
  refresh(): Promise<void>;
}

export function useMemory(): MemoryState {
  const [overview, setOverview] = useState<Overview | null>(null);
  const [error, setError] = useState<string | null>(null);
  const connected = useLive((s) => s.connected);
  const newest = useRef(0);

  const refresh = useCallback(async () => {
    const own = ++newest.current;
    try {
      const answer = await getJson<Overview>("/api/memory");
      if (own !== newest.current) return;
      setOverview(answer);
      setError(null);
    } catch (e) {
      if (own === newest.current) setError(e instanceof Error ? e.message : String(e));
    }
  }, []);

  useEffect(() => {
    let soon: ReturnType<typeof setTimeout> | undefined;
    const later = () => {
      soon ??= setTimeout(() => {
        soon = undefined;
        void refresh();
      }, SETTLE);
    };
    void refresh();
    const off = [onEvent("memory_event", later), onEvent("status", later)];
    const poll = setInterval(() => {
      if (document.visibilityState === "visible") void refresh();
    }, POLL);
    return () => {
      off.forEach((fn) => fn());
      clearTimeout(soon);
      clearInterval(poll);
    };
  }, [refresh, connected]);

  return { overview, error, refresh };
}
