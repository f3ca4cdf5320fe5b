// Jobs as the page shows them: the pictures of one press belong together.
import { isPicture } from "../api/files";
import { CREATE_WORKFLOWS } from "../api/identity";
import type { Job } from "../api/types";
import { kindOf, type OutputKind } from "../gallery/outputs";

export interface Group {
  /** The workflow's id, or the job's where it has none. */
  id: string;
  /** In the order they were asked for. */
  jobs: Job[];
  time: number;
}

/** What Create shows: jobs that were asked for here, and those that the user opened here; never what others do meanwhile. */
export function ownJobs(created: Job[], opened: Job[], listed: Job[]): Job[] {
  const now = new Map(listed.map((j) => [j.id, j]));
  const own = created.filter((j) => j.workflow_id?.startsWith(CREATE_WORKFLOWS));
  const ids = new Set(own.map((j) => j.id));
  return [...own, ...opened.filter((j) => !ids.has(j.id))].map((j) => now.get(j.id) ?? j);
}

/** A press queues its jobs one after another; runs of one workflow further apart than this are separate presses. */
const GAP = 20_000;

/** Newest first. */
export function groupJobs(jobs: Job[]): Group[] {
  const byTime = [...jobs].sort((a, b) => a.create_time - b.create_time || (a.priority ?? 0) - (b.priority ?? 0));
  const groups: Group[] = [];
  const open = new Map<string, { group: Group; last: number }>();
  for (const job of byTime) {
    const key = job.workflow_id;
    const found = key ? open.get(key) : undefined;
    if (key && found && job.create_time - found.last < GAP) {
      found.group.jobs.push(job);
      found.last = job.create_time;
      continue;
    }
    const group: Group = { id: key && !found ? key : job.id, jobs: [job], time: job.create_time };
    groups.push(group);
    if (key) open.set(key, { group, last: job.create_time });
  }
  return groups.reverse();
}

export function isActive(job: Job): boolean {
  return job.status === "pending" || job.status === "in_progress";
}

/** Runs or will run by itself; what is on hold does neither. */
export function isComing(job: Job): boolean {
  return isActive(job) && !job.held;
}

export function hasPicture(job: Job): boolean {
  return job.preview_output !== undefined && isPicture(job.preview_output);
}

/** What kind of file stands for a finished job. */
export function kindOfJob(job: Job): OutputKind | null {
  const file = job.preview_output;
  return file ? kindOf(file.filename, file.mediaType) : null;
}

/** How many pictures a press shows: a job may make several at once. */
export function countOf(group: Group): number {
  return group.jobs.reduce((sum, job) => sum + (job.status === "completed" ? Math.max(1, job.outputs_count ?? 1) : 1), 0);
}

/** What the page shows unless a press was chosen: what is drawn now, what waits, or the newest. Someone who has just come
 *  does not want to see yesterday's cancelled job, and nobody a job on hold in place of a picture. */
export function followed(groups: Group[], justCame: boolean): Group | undefined {
  const ended = (g: Group) => g.jobs.some((j) => !isActive(j));
  return (
    groups.find((g) => g.jobs.some((j) => j.status === "in_progress")) ??
    groups.find((g) => g.jobs.some(isComing)) ??
    groups.find((g) => (justCame ? g.jobs.some((j) => j.status === "completed") : ended(g))) ??
    groups.find((g) => g.jobs.some(isActive))
  );
}

/** How many jobs run or wait ahead of this one, in a list that is in the order of running; null where it does not wait. */
export function placeInLine(job: Job, jobs: Job[]): number | null {
  if (job.status !== "pending") return null;
  const before = jobs.slice(
    0,
    Math.max(
      0,
      jobs.findIndex((j) => j.id === job.id),
    ),
  );
  return before.filter(isComing).length;
}
