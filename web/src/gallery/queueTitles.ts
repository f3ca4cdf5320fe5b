// What waiting and running jobs are called: their prompts do not change, so each is asked for once.
import { useEffect } from "react";
import { create } from "zustand";
import { jobDetails } from "../state/live";
import { summarise } from "./settings";

const useTitles = create<{ byId: Record<string, string> }>()(() => ({ byId: {} }));
const asked = new Set<string>();

export function useQueueTitle(id: string): string {
  const title = useTitles((s) => s.byId[id]);
  useEffect(() => {
    if (asked.has(id)) return;
    asked.add(id);
    jobDetails(id).then(
      (details) => useTitles.setState((s) => ({ byId: { ...s.byId, [id]: summarise(details).title } })),
      () => asked.delete(id),
    );
  }, [id]);
  return title ?? "Job";
}
