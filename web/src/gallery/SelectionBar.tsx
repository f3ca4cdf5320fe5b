// What can be done with the selected results: compare, download, like, delete.
import { useEffect, useState, useSyncExternalStore } from "react";
import type { FileRef, Job } from "../api/types";
import { go } from "../state/handoff";
import { jobDetails } from "../state/live";
import { Button, IconButton, Menu, toast } from "../ui";
import { DeleteDialog } from "./DeleteDialog";
import { downloadEach, downloadOne, downloadZip } from "./download";
import { useFavourites } from "./favourites";
import { readOutputs } from "./outputs";
import { compareHash } from "./route";
import { useSession } from "./session";
import css from "./Results.module.css";

export async function filesOfJobs(ids: readonly string[]): Promise<FileRef[]> {
  const files: FileRef[] = [];
  for (const id of ids) files.push(...readOutputs((await jobDetails(id)).outputs).files.map((f) => f.file));
  return files;
}

/** Downloads several files; says what was missing. */
export async function downloadMany(files: readonly FileRef[], how: "zip" | "each", progress: (text: string | null) => void): Promise<void> {
  const only = files.length === 1 ? files[0] : undefined;
  if (files.length === 0) toast("There is no file to download.", "warn");
  else if (only) downloadOne(only);
  else if (how === "each") await downloadEach(files);
  else {
    progress(`0 of ${files.length}`);
    const missing = await downloadZip(files, (n) => progress(`${n} of ${files.length}`)).finally(() => progress(null));
    if (missing.length > 0) toast(`Not in the archive, because the file is gone: ${missing.join(", ")}`, "warn");
  }
}

const NARROW = "(max-width: 759px)";

/** Whether there is room for icons only. */
function useNarrow(): boolean {
  return useSyncExternalStore(
    (changed) => {
      const query = matchMedia(NARROW);
      query.addEventListener("change", changed);
      return () => query.removeEventListener("change", changed);
    },
    () => matchMedia(NARROW).matches,
  );
}

export function SelectionBar({ results }: { results: Job[] }) {
  const { selected, selecting, select, setSelecting } = useSession();
  const favourites = useFavourites((s) => s.ids);
  const narrow = useNarrow();
  const [deleting, setDeleting] = useState(false);
  const [progress, setProgress] = useState<string | null>(null);
  const shown = selecting || selected.length > 0;
  useEffect(() => {
    if (!shown) return;
    const keys = (e: KeyboardEvent) => {
      if (e.key === "Escape" && !e.defaultPrevented && !document.querySelector("dialog[open]")) setSelecting(false);
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  }, [shown, setSelecting]);
  if (!shown) return null;
  const n = selected.length;
  const all = n > 0 && selected.every((id) => favourites.has(id));
  const [a, b] = selected;
  const compare = () => {
    if (a && b) go(compareHash({ job: a, file: 0 }, { job: b, file: 0 }));
  };
  const download = (how: "zip" | "each") =>
    void filesOfJobs(selected)
      .then((files) => downloadMany(files, how, setProgress))
      .catch((e: Error) => toast(`The download failed: ${e.message}`, "bad"));
  return (
    <div className={css.selection} role="toolbar" aria-label="Selected results">
      <span className={css.chosen} role="status">
        {n === 0 ? "Choose results" : `${n} selected`}
      </span>
      {narrow ? (
        <IconButton variant="plain" icon="compare" label="Compare" disabled={n !== 2} onClick={compare} />
      ) : (
        <Button icon="compare" disabled={n !== 2} title={n === 2 ? undefined : "Select two to compare them"} onClick={compare}>
          Compare
        </Button>
      )}
      {progress ? (
        <Button busy>{progress}</Button>
      ) : (
        <Menu
          button={{ label: "Download", icon: "download", words: !narrow, variant: "plain" }}
          items={[
            { label: "As one zip file", icon: "folder", disabled: n === 0, onSelect: () => download("zip") },
            { label: "One by one", icon: "download", disabled: n === 0, onSelect: () => download("each") },
          ]}
        />
      )}
      <IconButton
        variant="plain"
        icon="star"
        disabled={n === 0}
        pressed={all}
        label={all ? "Remove from favourites" : "Add to favourites"}
        onClick={() =>
          useFavourites
            .getState()
            .set(selected, !all)
            .catch((e: Error) => toast(`Favourites could not be saved: ${e.message}`, "bad"))
        }
      />
      {narrow ? (
        <IconButton variant="danger" icon="trash" label="Delete" disabled={n === 0} onClick={() => setDeleting(true)} />
      ) : (
        <Button variant="danger" icon="trash" disabled={n === 0} onClick={() => setDeleting(true)}>
          Delete
        </Button>
      )}
      <Button variant="quiet" size="s" onClick={() => (n < results.length ? select(results.map((j) => j.id)) : select([]))}>
        {n < results.length ? "All" : "None"}
      </Button>
      <IconButton icon="close" label="Done selecting" onClick={() => setSelecting(false)} />
      <DeleteDialog
        ids={selected}
        open={deleting}
        onClose={() => setDeleting(false)}
        onDone={(gone) => {
          const left = selected.filter((id) => !gone.includes(id));
          if (left.length > 0) select(left);
          else setSelecting(false);
        }}
      />
    </div>
  );
}
