// Deleting results: their files first, then their entries; whatever could not be deleted stays and is named.
import { ApiError, sendJson } from "../api/client";
import type { FileRef, Job } from "../api/types";
import { useCreate } from "../create/store";
import { jobDetails, useLive } from "../state/live";
import { useFavourites } from "./favourites";
import { forget, useKnown } from "./known";
import { fileKey, fileRef, readOutputs } from "./outputs";

export interface Deleted {
  deleted: FileRef[];
  failed: { file: FileRef; reason: string }[];
}

export interface Removal {
  /** Results that are gone. */
  gone: string[];
  /** Files that could not be deleted; their results stay. */
  failed: Deleted["failed"];
  /** Files that other results show too, and that were therefore left. */
  kept: FileRef[];
}

/** Which files may go: never those of the input folder, nor those another result shows. */
export function removable(own: ReadonlyMap<string, readonly FileRef[]>, others: readonly FileRef[]): { files: FileRef[]; kept: FileRef[] } {
  const used = new Set(others.map(fileKey));
  const files = new Map<string, FileRef>();
  const kept = new Map<string, FileRef>();
  for (const list of own.values()) {
    for (const file of list) if (file.type !== "input") (used.has(fileKey(file)) ? kept : files).set(fileKey(file), file);
  }
  return { files: [...files.values()], kept: [...kept.values()] };
}

/** Results all of whose files are gone, in the given order. */
export function finished(own: ReadonlyMap<string, readonly FileRef[]>, failed: Deleted["failed"]): string[] {
  const left = new Set(failed.map((f) => fileKey(f.file)));
  return [...own].filter(([, files]) => !files.some((file) => left.has(fileKey(file)))).map(([id]) => id);
}

/** A file that is not there any more need not be deleted. */
export function stillThere(failed: Deleted["failed"]): Deleted["failed"] {
  return failed.filter((f) => !/not found|no such file|does not exist|is not there|missing/i.test(f.reason));
}

/** Files of other results, as far as the page knows them: those in the list by their preview, the rest by their outputs. */
function filesOfOthers(jobs: readonly Job[], ids: ReadonlySet<string>): FileRef[] {
  const { byId } = useKnown.getState();
  const previews = jobs.filter((job) => !ids.has(job.id)).flatMap((job) => fileRef(job.preview_output) ?? []);
  const known = [...byId.values()].filter((s) => !ids.has(s.id)).flatMap((s) => s.outputs.files.map((f) => f.file));
  return [...previews, ...known];
}

/** The server refuses very long lists. */
const AT_ONCE = 1000;

export async function deleteFiles(files: readonly FileRef[]): Promise<Deleted> {
  const all: Deleted = { deleted: [], failed: [] };
  for (let at = 0; at < files.length; at += AT_ONCE) {
    const { deleted, failed } = await sendJson<Deleted>("POST", "/fresco/outputs/delete", { files: files.slice(at, at + AT_ONCE) });
    all.deleted.push(...deleted);
    all.failed.push(...failed);
  }
  return all;
}

/** The files of a result; none if it is gone already, deleted in another window perhaps. */
async function filesOf(id: string): Promise<FileRef[]> {
  try {
    return readOutputs((await jobDetails(id)).outputs).files.map((f) => f.file);
  } catch (e) {
    if (e instanceof ApiError && e.status === 404) return [];
    throw e;
  }
}

/** Deletes results with their files. The tiles vanish at once and come back where that fails. */
export async function removeJobs(ids: readonly string[]): Promise<Removal> {
  const { jobs: before, created } = useLive.getState();
  const asked = new Set(ids);
  const left = (jobs: readonly Job[]) => jobs.filter((job) => !asked.has(job.id));
  useLive.setState({ jobs: left(before), created: left(created) });
  try {
    const own = new Map<string, FileRef[]>();
    for (const id of ids) own.set(id, await filesOf(id));
    const { files, kept } = removable(own, filesOfOthers([...before, ...created], asked));
    const failed = stillThere((await deleteFiles(files)).failed);
    const gone = finished(own, failed);
    if (gone.length > 0) await sendJson("POST", "/api/history", { delete: gone });
    forget(gone);
    useCreate.getState().dropped(gone);
    const starred = gone.filter((id) => useFavourites.getState().ids.has(id));
    if (starred.length > 0)
      await useFavourites
        .getState()
        .set(starred, false)
        .catch(() => undefined);
    return { gone, failed, kept };
  } catch (e) {
    useLive.setState({ jobs: before, created });
    throw e;
  } finally {
    await useLive
      .getState()
      .refresh()
      .catch(() => undefined);
  }
}
