// One result in full: large picture, its settings, and everything that can be done with it.
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { ApiError } from "../api/client";
import type { JobDetails } from "../api/types";
import { warningsOf } from "../api/warnings";
import { go } from "../state/handoff";
import { jobDetails, useLive } from "../state/live";
import { Button, EmptyState, IconButton, Menu, type MenuItem, toast, Warnings } from "../ui";
import { DeleteDialog } from "./DeleteDialog";
import { downloadOne } from "./download";
import { Failure } from "./Failure";
import { Facts, Texts } from "./Facts";
import { useFavourites } from "./favourites";
import { learnFrom } from "./known";
import { Media } from "./Media";
import { fileKey } from "./outputs";
import { RunningCard } from "./QueuePanel";
import { deleteFiles, stillThere } from "./remove";
import { useResults } from "./Results";
import { fitsCreate, hasSeed, openAsApp, openInGraph, runAgain, sendToCreate, startFrom } from "./reuse";
import { compareHash, detailHash } from "./route";
import { downloadMany } from "./SelectionBar";
import { useSession, wasAt } from "./session";
import { summarise } from "./settings";
import { Thumb } from "./Thumb";
import type { Size } from "./zoom";
import css from "./Detail.module.css";

/** The job with its prompt; asked again when it goes on or ends, or when the server is back. */
function useDetails(id: string) {
  const status = useLive((s) => s.jobs.find((j) => j.id === id)?.status);
  const connected = useLive((s) => s.connected);
  const [state, setState] = useState<{ id: string; details?: JobDetails; error?: Error }>({ id });
  useEffect(() => {
    let current = true;
    jobDetails(id).then(
      (details) => current && setState({ id, details }),
      (error: Error) =>
        current && setState((old) => (old.id === id && old.details && !(error instanceof ApiError && error.status === 404) ? old : { id, error })),
    );
    return () => {
      current = false;
    };
  }, [id, status, connected]);
  return state.id === id ? state : { id };
}

export function Detail({ id }: { id: string }) {
  const { details, error } = useDetails(id);
  const results = useResults();
  const at = results.findIndex((j) => j.id === id);
  const heading = useRef<HTMLHeadingElement>(null);
  const [file, setFile] = useState(0);
  const [size, setSize] = useState<Size | null>(null);
  const [deleting, setDeleting] = useState(false);
  const [busy, setBusy] = useState(false);
  const [, setProgress] = useState<string | null>(null);
  const favourite = useFavourites((s) => s.ids.has(id));

  const summary = useMemo(() => details && summarise(details), [details]);
  useEffect(() => {
    if (details) learnFrom(details);
  }, [details]);
  const files = summary?.outputs.files ?? [];
  const shown = files[Math.min(file, files.length - 1)];
  const ready = details !== undefined;
  useEffect(() => {
    setFile(useSession.getState().openAt === "last" ? Math.max(0, files.length - 1) : 0);
    if (ready) useSession.setState({ openAt: "first" });
    setSize(null);
    // Only another result starts afresh.
  }, [id, ready]);
  useEffect(() => {
    scrollTo(0, 0);
    heading.current?.focus({ preventScroll: true });
  }, []);
  useEffect(() => {
    wasAt.opened = id;
  }, [id]);

  // The neighbours may be on a page of the list that was not fetched yet.
  const loaded = useLive((s) => s.loaded);
  const hasMore = useLive((s) => s.hasMore);
  const loadMore = useLive((s) => s.loadMore);
  const ended = ready && details.status !== "pending" && details.status !== "in_progress";
  const atEdge = ended && loaded && hasMore && (at < 0 || at >= results.length - 3);
  useEffect(() => {
    if (atEdge) void loadMore().catch(() => undefined);
  }, [atEdge, results.length, loadMore]);

  /** The next file of this result, then the next result. */
  const canGo = (by: 1 | -1) => (file + by >= 0 && file + by < files.length) || (at >= 0 && results[at + by] !== undefined);
  const step = useCallback(
    (by: 1 | -1) => {
      if (file + by >= 0 && file + by < files.length) {
        setFile(file + by);
        return;
      }
      const next = at >= 0 ? results[at + by] : undefined;
      if (!next) return;
      useSession.setState({ openAt: by < 0 ? "last" : "first" });
      history.replaceState(null, "", detailHash(next.id));
      dispatchEvent(new HashChangeEvent("hashchange"));
    },
    [file, files.length, at, results],
  );
  useEffect(() => {
    const keys = (e: KeyboardEvent) => {
      if (e.defaultPrevented || e.ctrlKey || e.metaKey || e.altKey || e.shiftKey) return;
      const target = e.target as HTMLElement;
      if (target.closest("input, textarea, select, dialog[open], audio, video, [role=menu]")) return;
      if (e.key === "ArrowRight") step(1);
      else if (e.key === "ArrowLeft") step(-1);
      else if (e.key === "Escape") go("#/gallery");
      else return;
      e.preventDefault();
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  }, [step]);

  const again = (newSeed: boolean) => {
    if (!details) return;
    setBusy(true);
    runAgain(details, newSeed)
      .then((note) =>
        toast(note ? `Added to the queue. ${note}` : "Added to the queue", note ? "warn" : "good", {
          action: {
            label: "Show",
            onSelect: () => {
              useSession.getState().setTab("queue");
              go("#/gallery");
            },
          },
        }),
      )
      .catch((e: Error) => toast(`It could not be queued: ${e.message}${e instanceof ApiError && e.details ? `. ${e.details}` : ""}`, "bad"))
      .finally(() => setBusy(false));
  };
  const removeFile = async () => {
    if (!shown) return;
    try {
      const failed = stillThere((await deleteFiles([shown.file])).failed);
      toast(failed[0] ? `Could not be deleted: ${failed[0].reason}` : `${shown.file.filename} deleted`, failed[0] ? "bad" : "good");
      setFile(0);
    } catch (e) {
      toast(`Could not be deleted: ${(e as Error).message}`, "bad");
    }
  };

  const running = details && (details.status === "pending" || details.status === "in_progress");
  const title = summary?.title ?? "Result";
  const picture = shown?.kind === "picture" ? shown.file : null;
  const more: MenuItem[] = !details
    ? []
    : [
        { label: "Open in Graph", icon: "graph", onSelect: () => openInGraph(details) },
        { label: "Use as an app", icon: "apps", onSelect: () => openAsApp(details) },
        {
          label: "Compare with…",
          icon: "compare",
          onSelect: () => {
            useSession.getState().select([id]);
            go("#/gallery");
            toast("Choose a second result, then press Compare.");
          },
        },
        ...(files.length > 1
          ? [
              {
                label: "Compare two of these",
                icon: "compare" as const,
                onSelect: () => go(compareHash({ job: id, file: Math.min(file, files.length - 2) }, { job: id, file: Math.min(file, files.length - 2) + 1 })),
              },
              {
                label: "Download all as zip",
                icon: "folder" as const,
                onSelect: () =>
                  void downloadMany(
                    files.map((f) => f.file),
                    "zip",
                    setProgress,
                  ),
              },
              { label: "Delete only this file", icon: "trash" as const, danger: true, onSelect: () => void removeFile() },
            ]
          : []),
      ];

  return (
    <div className={css.detail}>
      <header className={css.head}>
        <a className={css.back} href="#/gallery">
          ‹ All results
        </a>
        <h1 ref={heading} tabIndex={-1} className={css.title}>
          {title}
        </h1>
        <div className={css.steps}>
          <IconButton variant="plain" icon="left" label="Previous" disabled={!canGo(-1)} onClick={() => step(-1)} />
          <IconButton variant="plain" icon="right" label="Next" disabled={!canGo(1)} onClick={() => step(1)} />
        </div>
      </header>
      {error && !details ? (
        <EmptyState
          icon="imageOff"
          title={error instanceof ApiError && error.status === 404 ? "This result no longer exists" : "This result could not be loaded"}
          action={<Button onClick={() => go("#/gallery")}>All results</Button>}
        >
          {error instanceof ApiError && error.status === 404 ? "It may have been deleted." : error.message}
        </EmptyState>
      ) : !details || !summary ? (
        <p role="status" className={css.wait}>
          Loading…
        </p>
      ) : (
        <div className={css.parts}>
          <div className={css.stage}>
            {shown && (
              <div className={css.picture}>
                <Media key={fileKey(shown.file)} output={shown} alt={title} onSwipe={step} onSize={setSize} />
              </div>
            )}
            {files.length > 1 && (
              <div className={css.strip} role="group" aria-label="Files of this result">
                {files.map((f, i) => (
                  <button
                    key={fileKey(f.file)}
                    type="button"
                    aria-pressed={f === shown}
                    aria-label={`File ${i + 1} of ${files.length}`}
                    onClick={() => setFile(i)}
                  >
                    <Thumb file={f.file} alt="" />
                  </button>
                ))}
              </div>
            )}
            <Warnings list={warningsOf(details.outputs)} />
            <Texts summary={summary} />
            {details.status === "failed" && <Failure details={details} />}
            {details.status === "cancelled" && <p className={css.note}>This was cancelled before it was finished.</p>}
            {details.status === "pending" && (
              <p className={css.note} role="status">
                This is waiting in the queue.
              </p>
            )}
            {details.status === "in_progress" && <RunningCard job={details} />}
            {!shown && details.status === "completed" && summary.outputs.texts.length === 0 && <p className={css.note}>This run produced no files.</p>}
          </div>
          <aside className={css.side} aria-label="Settings and actions">
            <div className={css.actions}>
              {!running && (
                <Button variant={details.status === "completed" ? "plain" : "primary"} icon="refresh" busy={busy} onClick={() => again(false)}>
                  Run again
                </Button>
              )}
              {!running && hasSeed(details) && (
                <Button icon="dice" disabled={busy} onClick={() => again(true)}>
                  New seed
                </Button>
              )}
              {fitsCreate(details) && (
                <Button icon="create" onClick={() => sendToCreate(details)}>
                  Use in Create
                </Button>
              )}
              {picture && (
                <Button icon="image" onClick={() => startFrom(details, picture)}>
                  Start from this
                </Button>
              )}
              {shown && (
                <Button icon="download" onClick={() => downloadOne(shown.file)}>
                  Download
                </Button>
              )}
              <span className={favourite ? css.liked : undefined}>
                <IconButton
                  variant="plain"
                  icon="star"
                  pressed={favourite}
                  label={favourite ? "Remove from favourites" : "Add to favourites"}
                  onClick={() =>
                    useFavourites
                      .getState()
                      .set([id], !favourite)
                      .catch((e: Error) => toast(`Favourites could not be saved: ${e.message}`, "bad"))
                  }
                />
              </span>
              {!running && <IconButton variant="danger" icon="trash" label="Delete" onClick={() => setDeleting(true)} />}
              <Menu button={{ label: "More", icon: "more", variant: "plain" }} items={more} />
            </div>
            <Facts details={details} summary={summary} size={picture ? size : null} />
          </aside>
        </div>
      )}
      <DeleteDialog
        ids={[id]}
        open={deleting}
        onClose={() => setDeleting(false)}
        onDone={(gone) => {
          if (!gone.includes(id)) return;
          const next = results[at + 1] ?? results[at - 1];
          go(next ? detailHash(next.id) : "#/gallery");
        }}
      />
    </div>
  );
}
