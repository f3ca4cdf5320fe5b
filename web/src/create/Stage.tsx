// The pictures of the press that is looked at: one large, several in columns, with what can be done next always in reach.
import { type CSSProperties, memo, useState } from "react";
import type { FileRef, Job, JobDetails } from "../api/types";
import { warningsOf } from "../api/warnings";
import { kindOf } from "../gallery/outputs";
import { jobDetails } from "../state/live";
import { remember, remembered } from "../state/settings";
import { Button, Icon, toast, Warnings } from "../ui";
import { Actions, MediaActions } from "./Actions";
import { countOf, type Group, isActive } from "./groups";
import { cancelJobs, shownOf, useDetails, valuesOf } from "./results";
import { useCreate } from "./store";
import { Tile } from "./Tile";
import { Viewer } from "./Viewer";
import css from "./Stage.module.css";

export interface Opened {
  job: Job;
  file: FileRef;
}

/** Up to so many pictures stand in two columns as large as there is room; more get a slider. */
const FEW = 4;
const COLUMNS = { first: 2, most: 6 };
const KEY = "create.columns";

/** Typing in the form must not draw it again. */
export const Stage = memo(function Stage({ group }: { group: Group }) {
  const [opened, setOpened] = useState<Opened | null>(null);
  const [chosen, setChosen] = useState<Opened | null>(null);
  const [columns, setColumns] = useColumns();
  const count = countOf(group);
  const several = count > 1;
  const many = count > FEW;
  const active = group.jobs.filter(isActive);
  const cancel = (jobs: Job[]) => void cancelJobs(jobs).catch(() => toast("It could not be cancelled. Is Fresco still running?", "bad"));
  const open = (at: Opened) => {
    setChosen(at);
    setOpened(at);
  };
  return (
    <div className={css.stage}>
      <div
        className={several ? css.grid : css.single}
        data-many={many || undefined}
        style={many ? ({ "--columns": columns } as CSSProperties) : undefined}
        // What scrolls can be scrolled with keys.
        tabIndex={many ? 0 : undefined}
        role={several ? "group" : undefined}
        aria-label={several ? `${count} pictures` : undefined}
      >
        {group.jobs.map((job) => (
          <Tile
            key={job.id}
            job={job}
            small={several}
            tiny={many}
            onOpen={(file) => open({ job, file })}
            onCancel={() => cancel([job])}
            onRetry={() => void again(job)}
          />
        ))}
      </div>
      <div className={css.foot} data-many={many || undefined}>
        {many && <PictureSize columns={columns} onChange={setColumns} />}
        {active.length > 1 && (
          <Button icon="close" onClick={() => cancel(group.jobs)}>
            Cancel all {active.length}
          </Button>
        )}
        <NextActions group={group} chosen={chosen} several={several} />
      </div>
      <GroupWarnings jobs={group.jobs} />
      {opened && (
        <Viewer
          group={group}
          at={opened}
          onMove={(at) => {
            setChosen(at);
            setOpened(at);
          }}
          onClose={() => setOpened(null)}
        />
      )}
    </div>
  );
});

/** How many columns many pictures stand in; remembered, because it is a matter of taste. */
function useColumns(): [number, (columns: number) => void] {
  const [columns, setColumns] = useState(() => {
    const kept = remembered<unknown>(KEY, COLUMNS.first);
    return typeof kept === "number" && kept >= 1 && kept <= COLUMNS.most ? Math.round(kept) : COLUMNS.first;
  });
  return [
    columns,
    (next) => {
      setColumns(next);
      remember(KEY, next);
    },
  ];
}

function PictureSize({ columns, onChange }: { columns: number; onChange(columns: number): void }) {
  return (
    <label className={css.size}>
      <Icon name="image" size={16} />
      <input
        type="range"
        aria-label="Picture size"
        aria-valuetext={columns === 1 ? "1 column" : `${columns} columns`}
        min={1}
        max={COLUMNS.most}
        step={1}
        // To the right they grow, so there are fewer columns.
        value={COLUMNS.most + 1 - columns}
        onChange={(e) => onChange(COLUMNS.most + 1 - Number(e.target.value))}
      />
      <Icon name="image" size={24} />
    </label>
  );
}

/** Asks for a failed or cancelled picture once more, as it was. */
async function again(job: Job): Promise<void> {
  const values = valuesOf(await jobDetails(job.id));
  if (values) await useCreate.getState().queue({ ...values, count: 1 });
  else toast("This job was not made on Create. Run it again from Gallery.", "info");
}

/** What the jobs of a press warn of; those of one press mostly warn of the same. */
function GroupWarnings({ jobs }: { jobs: Job[] }) {
  const last = jobs.filter((j) => j.status === "completed").at(-1);
  const details = useDetails(last);
  return <Warnings list={warningsOf(details?.outputs)} />;
}

/** What can be done with the picture that was looked at last, or else with the first. */
function NextActions({ group, chosen, several }: { group: Group; chosen: Opened | null; several: boolean }) {
  const job = group.jobs.find((j) => j.id === chosen?.job.id) ?? group.jobs.find((j) => j.status === "completed");
  const details = useDetails(job);
  const files = shownOf(details);
  const file = (job?.id === chosen?.job.id && chosen?.file) || files[0];
  if (job?.status !== "completed" || !details || !file) return null;
  return (
    <>
      {several && <p className={css.which}>{whichWords(group, job, details, file)}</p>}
      {kindOf(file.filename) === "picture" ? <Actions details={details} file={file} /> : <MediaActions details={details} file={file} />}
    </>
  );
}

function whichWords(group: Group, job: Job, details: JobDetails, file: FileRef): string {
  const before = group.jobs.slice(0, group.jobs.indexOf(job)).reduce((sum, j) => sum + countOf({ ...group, jobs: [j] }), 0);
  const at = shownOf(details).findIndex((f) => f.filename === file.filename && f.subfolder === file.subfolder && f.type === file.type);
  return `Picture ${before + Math.max(0, at) + 1}`;
}
