// Hash routes: which view is open and what follows its name.
import { useSyncExternalStore } from "react";
import type { IconName } from "./ui";

export const VIEWS = ["create", "apps", "graph", "gallery", "memory"] as const;
export type ViewName = (typeof VIEWS)[number];

export const VIEW_INFO: Record<ViewName, { label: string; icon: IconName; key: string }> = {
  create: { label: "Create", icon: "create", key: "c" },
  apps: { label: "Apps", icon: "apps", key: "a" },
  graph: { label: "Graph", icon: "graph", key: "g" },
  gallery: { label: "Gallery", icon: "gallery", key: "l" },
  memory: { label: "Memory", icon: "memory", key: "m" },
};

export interface Route {
  view: ViewName;
  /** `NAME` of `#/apps/NAME`, `JOBID` of `#/gallery/JOBID`. */
  arg?: string;
}

/** Unknown addresses lead to Create. */
export function parseRoute(hash: string): Route {
  const [name = "", ...rest] = hash.replace(/^#\/?/, "").split("/");
  const view = VIEWS.find((v) => v === name) ?? "create";
  const text = rest.join("/");
  if (view !== name || !text) return { view };
  try {
    return { view, arg: decodeURIComponent(text) };
  } catch {
    return { view, arg: text };
  }
}

function subscribe(fn: () => void) {
  addEventListener("hashchange", fn);
  return () => removeEventListener("hashchange", fn);
}

export function useRoute(): Route {
  return parseRoute(useSyncExternalStore(subscribe, () => location.hash));
}
