// The runs of one app: what is known of each, from the live jobs while they go and from their details afterwards.
import { useEffect, useMemo, useState } from "react";
import { ApiError } from "../api/client";
import type { JobDetails, JobStatus, NodeOutput } from "../api/types";
import { jobDetails, onEvent, useLive } from "../state/live";
import { type Results, resultsOf } from "./results";
import { addRun, dropRun, runsOf } from "./work";

export interface Run {
  id: string;
  status: JobStatus;
  results: Results;
  details: JobDetails | null;
}

const ended = (status: JobStatus | undefined): boolean => status === "completed" || status === "failed" || status === "cancelled";

export interface Runs {
  runs: Run[];
  add(job: string): void;
  remove(job: string): void;
}

export function useRuns(app: string): Runs {
  const [ids, setIds] = useState<string[]>(() => runsOf(app));
  const [details, setDetails] = useState<Record<string, JobDetails>>({});
  const [partial, setPartial] = useState<Record<string, Record<string, NodeOutput>>>({});
  const jobs = useLive((s) => s.jobs);
  const loaded = useLive((s) => s.loaded);

  useEffect(() => setIds(runsOf(app)), [app]);

  // Results show as their nodes finish, before the whole run has.
  useEffect(
    () =>
      onEvent("executed", ({ job, node, output }) => {
        if (!job || !output) return;
        setPartial((old) => ({ ...old, [job]: { ...old[job], [node]: output } }));
      }),
    [],
  );

  useEffect(() => {
    if (!loaded) return;
    let live = true;
    for (const id of ids) {
      const job = jobs.find((j) => j.id === id);
      if (details[id] && ended(details[id].status)) continue;
      if (job && !ended(job.status)) continue;
      jobDetails(id).then(
        (found) => {
          if (live) setDetails((old) => (old[id]?.status === found.status ? old : { ...old, [id]: found }));
        },
        (e: unknown) => {
          // A run that was deleted from the history is no longer this app's.
          if (live && e instanceof ApiError && e.status === 404) setIds(dropRun(app, id));
        },
      );
    }
    return () => {
      live = false;
    };
  }, [ids, jobs, loaded, details, app]);

  const runs = useMemo(
    () =>
      ids.map((id): Run => {
        const job = jobs.find((j) => j.id === id);
        const known = details[id] ?? null;
        const status = known && ended(known.status) ? known.status : (job?.status ?? known?.status ?? "pending");
        return { id, status, results: resultsOf(known?.outputs ?? partial[id]), details: known };
      }),
    [ids, jobs, details, partial],
  );

  return { runs, add: (job) => setIds(addRun(app, job)), remove: (job) => setIds(dropRun(app, job)) };
}
