// The pictures of the press that is looked at: one large, several as a grid, with what can be done next.
import { memo, useState } from "react";
import type { FileRef, Job } from "../api/types";
import { warningsOf } from "../api/warnings";
import { jobDetails } from "../state/live";
import { Button, toast, Warnings } from "../ui";
import { Actions } from "./Actions";
import { type Group, isActive } from "./groups";
import { cancelJobs, picturesOf, useDetails, valuesOf } from "./results";
import { useCreate } from "./store";
import { Tile } from "./Tile";
import { Viewer } from "./Viewer";
import css from "./Stage.module.css";

export interface Opened {
  job: Job;
  file: FileRef;
}

/** Typing in the form must not draw it again. */
export const Stage = memo(function Stage({ group }: { group: Group }) {
  const [opened, setOpened] = useState<Opened | null>(null);
  const many = group.jobs.length > 1;
  const active = group.jobs.filter(isActive);
  const cancel = (jobs: Job[]) => void cancelJobs(jobs).catch(() => toast("It could not be cancelled. Is Fresco still running?", "bad"));
  return (
    <div className={css.stage}>
      <div className={many ? css.grid : css.single} data-count={Math.min(group.jobs.length, 5)}>
        {group.jobs.map((job) => (
          <Tile
            key={job.id}
            job={job}
            small={many}
            onOpen={(file) => setOpened({ job, file })}
            onCancel={() => cancel([job])}
            onRetry={() => void again(job)}
          />
        ))}
      </div>
      {many && active.length > 1 && (
        <div className={css.bar}>
          <Button icon="close" onClick={() => cancel(group.jobs)}>
            Cancel all {active.length}
          </Button>
        </div>
      )}
      {!many && group.jobs[0] && <SingleActions job={group.jobs[0]} />}
      <GroupWarnings jobs={group.jobs} />
      {opened && <Viewer group={group} at={opened} onMove={setOpened} onClose={() => setOpened(null)} />}
    </div>
  );
});

/** Asks for a failed or cancelled picture once more, as it was. */
async function again(job: Job): Promise<void> {
  const values = valuesOf(await jobDetails(job.id));
  if (values) await useCreate.getState().queue({ ...values, count: 1 });
}

/** What the jobs of a press warn of; those of one press mostly warn of the same. */
function GroupWarnings({ jobs }: { jobs: Job[] }) {
  const last = jobs.filter((j) => j.status === "completed").at(-1);
  const details = useDetails(last);
  return <Warnings list={warningsOf(details?.outputs)} />;
}

function SingleActions({ job }: { job: Job }) {
  const details = useDetails(job);
  const file = picturesOf(details)[0];
  if (job.status !== "completed" || !details || !file) return null;
  return (
    <div className={css.bar}>
      <Actions details={details} file={file} />
    </div>
  );
}
