// The grid with its search, filters and the bar for what is selected.
import { useCallback, useEffect, useMemo, useState } from "react";
import { go } from "../state/handoff";
import { useLive } from "../state/live";
import { Button, EmptyState } from "../ui";
import { useFavourites } from "./favourites";
import { active, filtered, needsPrompts } from "./filter";
import { FilterBar } from "./FilterBar";
import { Grid } from "./Grid";
import { readAll, useKnown } from "./known";
import { SelectionBar } from "./SelectionBar";
import { useSession } from "./session";
import css from "./Results.module.css";

/** Finished jobs that pass the filters, newest first. */
export function useResults() {
  const jobs = useLive((s) => s.jobs);
  const filters = useSession((s) => s.filters);
  const known = useKnown((s) => s.byId);
  const version = useKnown((s) => s.version);
  const favourites = useFavourites((s) => s.ids);
  // Without a look into the prompts, new knowledge changes nothing.
  const seen = needsPrompts(filters) ? version : 0;
  return useMemo(
    () =>
      filtered(
        jobs,
        filters,
        (id) => known.get(id),
        (id) => favourites.has(id),
        new Date(),
      ),
    [jobs, filters, known, seen, favourites],
  );
}

export function Results() {
  const loaded = useLive((s) => s.loaded);
  const hasMore = useLive((s) => s.hasMore);
  const loadMore = useLive((s) => s.loadMore);
  const jobs = useLive((s) => s.jobs);
  const connected = useLive((s) => s.connected);
  const { filters, clearFilters, selected, select } = useSession();
  const reading = useKnown((s) => s.reading);
  const readError = useKnown((s) => s.error);
  const [loading, setLoading] = useState(false);
  const results = useResults();
  const deep = needsPrompts(filters);
  const any = active(filters);
  const finished = useMemo(() => jobs.filter((j) => j.status !== "pending" && j.status !== "in_progress").length, [jobs]);

  const more = useCallback(() => {
    if (loading || !useLive.getState().hasMore) return;
    setLoading(true);
    void loadMore()
      .catch(() => undefined)
      .finally(() => setLoading(false));
  }, [loading, loadMore]);

  // A filter looks at everything, so everything is fetched, page by page.
  useEffect(() => {
    if (any && hasMore && connected) more();
  }, [any, hasMore, connected, more, finished]);
  useEffect(() => {
    if (deep) void readAll();
  }, [deep, finished]);
  // What was deleted elsewhere cannot stay selected.
  useEffect(() => {
    if (!loaded || hasMore || selected.length === 0) return;
    const there = new Set(jobs.map((j) => j.id));
    const left = selected.filter((id) => there.has(id));
    if (left.length !== selected.length) select(left);
  }, [jobs, loaded, hasMore, selected, select]);

  return (
    <div className={css.results}>
      {(finished > 0 || any) && <FilterBar count={results.length} />}
      {reading && (
        <p className={css.note} role="status">
          Looking through {reading.total} results… {Math.round((100 * reading.done) / Math.max(1, reading.total))} %
        </p>
      )}
      {readError && deep && (
        <p className={css.note} role="alert">
          Not all results could be searched: {readError}
        </p>
      )}
      {results.length > 0 && <Grid jobs={results} more={hasMore} onEnd={more} />}
      {results.length === 0 &&
        loaded &&
        !reading &&
        !loading &&
        (any && finished > 0 ? (
          <EmptyState icon="search" title="Nothing matches" action={<Button onClick={clearFilters}>Show everything</Button>}>
            No result fits this search. Try fewer words or another day.
          </EmptyState>
        ) : (
          <EmptyState
            icon="gallery"
            title="No pictures yet"
            action={
              <Button variant="primary" icon="create" onClick={() => go("#/create")}>
                Make a picture
              </Button>
            }
          >
            Everything you create appears here, with its prompt and settings.
          </EmptyState>
        ))}
      {loading && (
        <p className={css.note} role="status">
          Loading more…
        </p>
      )}
      <SelectionBar results={results} />
    </div>
  );
}
