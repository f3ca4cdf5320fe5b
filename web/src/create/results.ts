// A job as something to look at and to go on from: its pictures, its values, and what can be done with them.
import { useEffect, useState } from "react";
import { sendJson } from "../api/client";
import { isPicture } from "../api/files";
import { kindOf } from "../gallery/outputs";
import type { FileRef, Job, JobDetails } from "../api/types";
import { filesOf, jobDetails, useLive } from "../state/live";
import { cleaned, type CreateValues, defaultValues, valuesFrom } from "./values";

/** Details of a job, asked again when its state changes. The old ones stay until the new ones are there. */
export function useDetails(job: Job | undefined): JobDetails | null {
  const [details, setDetails] = useState<JobDetails | null>(null);
  const id = job?.id;
  const status = job?.status;
  useEffect(() => {
    if (!id) return;
    let gone = false;
    jobDetails(id).then(
      (d) => !gone && setDetails(d),
      () => undefined,
    );
    return () => {
      gone = true;
    };
  }, [id, status]);
  return details?.id === id ? details : null;
}

/** Its pictures; those a graph only shows on the way are left out where it keeps some. */
export function picturesOf(details: JobDetails | null): FileRef[] {
  const all = details ? filesOf(details).filter(isPicture) : [];
  const kept = all.filter((file) => file.type === "output");
  return kept.length > 0 ? kept : all;
}

/** Pictures, films and sounds of a job, as `picturesOf` chooses them. */
export function shownOf(details: JobDetails | null): FileRef[] {
  const all = details ? filesOf(details).filter((file) => ["picture", "video", "audio"].includes(kindOf(file.filename))) : [];
  const kept = all.filter((file) => file.type === "output");
  return kept.length > 0 ? kept : all;
}

/** All values of a job: those it was asked for with on this page, or else what its graph says. */
export function valuesOf(details: JobDetails | null): CreateValues | null {
  const own = details?.workflow.extra_data.fresco_create;
  if (own) return cleaned(own);
  const found = details && valuesFrom(details.workflow.prompt);
  if (!found) return null;
  return cleaned({ ...defaultValues(found.model ?? ""), ...found });
}

export async function cancelJobs(jobs: Job[]): Promise<void> {
  const ids = jobs.filter((j) => j.status === "pending" || j.status === "in_progress").map((j) => j.id);
  // The waiting ones first, so that none of them starts when the running one ends.
  const order = [...ids].sort(
    (a, b) => Number(jobs.find((j) => j.id === a)?.status === "in_progress") - Number(jobs.find((j) => j.id === b)?.status === "in_progress"),
  );
  if (order.length > 0) await sendJson("POST", "/api/jobs/cancel", { job_ids: order });
  await useLive.getState().refresh();
}

/** Saves a stored picture under its own name. */
export function download(url: string, name: string): void {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
}
