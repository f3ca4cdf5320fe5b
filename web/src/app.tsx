// The shell: navigation, the open view, and what lies over all views.
import { lazy, Suspense, useEffect, useRef } from "react";
import { type ViewName, useRoute, VIEW_INFO } from "./routes";
import { startLive, useLive } from "./state/live";
import { Banner } from "./shell/Banner";
import { ErrorBoundary } from "./shell/ErrorBoundary";
import { Nav } from "./shell/Nav";
import { Shortcuts } from "./shell/Shortcuts";
import { SignIn } from "./shell/SignIn";
import { Toasts } from "./ui";
import Create from "./create";
import css from "./app.module.css";

// The first view comes with the page; the others when they are opened.
const Apps = lazy(() => import("./apps"));
const Graph = lazy(() => import("./graph"));
const Gallery = lazy(() => import("./gallery"));
const Memory = lazy(() => import("./memory"));
const PAGES: Record<ViewName, React.ComponentType> = { create: Create, apps: Apps, graph: Graph, gallery: Gallery, memory: Memory };

/** The tab's title says which view is open, and how far the running picture is. */
function useTitle(view: ViewName) {
  const percent = useLive((s) => (s.running && s.running.max > 1 ? Math.round((s.running.value / s.running.max) * 100) : null));
  useEffect(() => {
    document.title = `${percent === null ? "" : `${percent} % · `}${VIEW_INFO[view].label} · Fresco`;
  }, [view, percent]);
}

/** Moves the focus to the heading of a view that was opened after the first, so that screen readers tell it. */
function useHeadingFocus(view: ViewName, main: React.RefObject<HTMLElement | null>) {
  const last = useRef(view);
  useEffect(() => {
    if (last.current === view) return;
    last.current = view;
    scrollTo(0, 0);
    const focus = () => {
      const heading = main.current?.querySelector<HTMLElement>("h1");
      heading?.setAttribute("tabindex", "-1");
      heading?.focus({ preventScroll: true });
      return Boolean(heading);
    };
    if (focus() || !main.current) return;
    // A view that is still being loaded has no heading yet.
    const watch = new MutationObserver(() => focus() && watch.disconnect());
    watch.observe(main.current, { childList: true, subtree: true });
    return () => watch.disconnect();
  }, [view, main]);
}

/** A file dropped beside the places that take one would replace the page; it is left alone instead. */
function useSafeDrops() {
  useEffect(() => {
    const over = (e: DragEvent) => {
      if (e.defaultPrevented || !e.dataTransfer?.types.includes("Files")) return;
      e.preventDefault();
      e.dataTransfer.dropEffect = "none";
    };
    const drop = (e: DragEvent) => e.preventDefault();
    addEventListener("dragover", over);
    addEventListener("drop", drop);
    return () => {
      removeEventListener("dragover", over);
      removeEventListener("drop", drop);
    };
  }, []);
}

export function App() {
  const { view } = useRoute();
  const main = useRef<HTMLElement>(null);
  useEffect(() => startLive(), []);
  useTitle(view);
  useSafeDrops();
  useHeadingFocus(view, main);
  const Page = PAGES[view];
  return (
    <div className={css.shell}>
      <a
        className={css.skip}
        href="#main"
        onClick={(e) => {
          // The hash is the route, so the jump is made by hand.
          e.preventDefault();
          main.current?.focus();
        }}
      >
        Skip to content
      </a>
      <Nav view={view} />
      <div className={css.column}>
        <Banner />
        <main id="main" ref={main} tabIndex={-1} className={css.main} data-view={view}>
          <ErrorBoundary key={view}>
            <Suspense
              fallback={
                <p className={css.loading} role="status">
                  Opening {VIEW_INFO[view].label}…
                </p>
              }
            >
              <Page />
            </Suspense>
          </ErrorBoundary>
        </main>
      </div>
      <Toasts />
      <SignIn />
      <Shortcuts />
    </div>
  );
}
