// The Gallery view: results with what made them, and the queue beside them (on phones behind a tab).
import { useEffect, useSyncExternalStore } from "react";
import { onEvent, useLive } from "../state/live";
import { Button, toast, View } from "../ui";
import { Compare } from "./Compare";
import { Detail } from "./Detail";
import { useFavourites } from "./favourites";
import { queueCount } from "./queue";
import { QueuePanel } from "./QueuePanel";
import { Results } from "./Results";
import { parseRoute } from "./route";
import { useSession } from "./session";
import css from "./Gallery.module.css";

export { queueCount } from "./queue";

function useHash(): string {
  return useSyncExternalStore(
    (changed) => {
      addEventListener("hashchange", changed);
      return () => removeEventListener("hashchange", changed);
    },
    () => location.hash,
  );
}

export default function Gallery() {
  const route = parseRoute(useHash());
  useEffect(() => {
    const load = () =>
      void useFavourites
        .getState()
        .load()
        .catch((e: Error) => toast(`Favourites could not be read: ${e.message}`, "warn"));
    load();
    return onEvent("connected", load);
  }, []);
  if (route.page === "detail") return <Detail id={route.job} />;
  if (route.page === "compare") return <Compare a={route.a} b={route.b} />;
  return <Overview />;
}

function Overview() {
  const { tab, setTab } = useSession();
  const count = useLive(queueCount);
  const paused = useLive((s) => s.queue.paused);
  const loaded = useLive((s) => s.loaded);
  // An empty queue takes no column of its own; where it was paused, that has to be seen.
  const folded = loaded && count === 0 && !paused;
  return (
    <View title="Gallery" full>
      <div className={css.tabs} role="group" aria-label="Part of the gallery">
        <Button variant="quiet" aria-pressed={tab === "results"} onClick={() => setTab("results")}>
          Results
        </Button>
        <Button variant="quiet" aria-pressed={tab === "queue"} onClick={() => setTab("queue")}>
          Queue{count > 0 ? ` (${count})` : ""}
        </Button>
      </div>
      <div className={css.parts} data-tab={tab} data-folded={folded || undefined}>
        <div className={css.results}>
          <Results />
        </div>
        <div className={css.queue}>
          <QueuePanel />
        </div>
      </div>
    </View>
  );
}
