// The shell: navigation, the open view, and what lies over all views.
import { Suspense, useEffect, useRef } from "react";
import { type ViewName, useRoute, VIEW_INFO } from "./routes";
import { startLive, useLive } from "./state/live";
import { Banner } from "./shell/Banner";
import { useDrops } from "./shell/drops";
import { ErrorBoundary } from "./shell/ErrorBoundary";
import { Nav } from "./shell/Nav";
import { Shortcuts } from "./shell/Shortcuts";
import { SignIn } from "./shell/SignIn";
import { fetchViews, PAGES } from "./shell/views";
import { Toasts } from "./ui";
import css from "./app.module.css";

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

export function App() {
  const { view } = useRoute();
  const main = useRef<HTMLElement>(null);
  useEffect(() => startLive(), []);
  useEffect(() => fetchViews(), []);
  useTitle(view);
  useDrops();
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
