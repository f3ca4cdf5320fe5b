// The views, each in a file of its own: the first comes with the page, the others are fetched when the page has nothing else to
// do, so that a view opens at once and also while the server is away.
import { type ComponentType, lazy } from "react";
import Create from "../create";
import type { ViewName } from "../routes";
import { NotFetched } from "./NotFetched";

type Loader = () => Promise<{ default: ComponentType }>;

const LOADERS: Record<Exclude<ViewName, "create">, Loader> = {
  apps: () => import("../apps"),
  graph: () => import("../graph"),
  gallery: () => import("../gallery"),
  memory: () => import("../memory"),
};

/** A view whose files cannot be fetched says so in its place, instead of failing. */
const later = (load: Loader) => lazy(() => load().catch(() => ({ default: NotFetched })));

export const PAGES: Record<ViewName, ComponentType> = {
  create: Create,
  apps: later(LOADERS.apps),
  graph: later(LOADERS.graph),
  gallery: later(LOADERS.gallery),
  memory: later(LOADERS.memory),
};

/** Fetches the files of all views, one after another. */
export function fetchViews(): void {
  const idle = typeof requestIdleCallback === "function" ? requestIdleCallback : (work: () => void) => setTimeout(work, 500);
  idle(async () => {
    for (const load of Object.values(LOADERS)) {
      try {
        await load();
      } catch {
        // The server is away; the view is asked for again when it is opened.
        return;
      }
    }
  });
}
