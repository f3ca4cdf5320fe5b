// Jobs of one press stay together.
import { describe, expect, it } from "vitest";
import type { Job, JobStatus } from "../api/types";
import { CREATE_WORKFLOWS } from "../api/identity";
import { countOf, followed, groupJobs, isComing, kindOfJob, ownJobs, placeInLine } from "./groups";

const job = (id: string, create_time: number, workflow_id?: string, status: JobStatus = "completed", priority = 0): Job => ({
  id,
  create_time,
  workflow_id,
  status,
  priority,
});

describe("groupJobs", () => {
  it("puts the newest press first and its jobs in order", () => {
    const groups = groupJobs([job("b", 2, "w", "pending"), job("a", 1, "w", "in_progress"), job("old", 0)]);
    expect(groups.map((g) => [g.id, g.jobs.map((j) => j.id)])).toEqual([
      ["w", ["a", "b"]],
      ["old", ["old"]],
    ]);
    expect(groups.map((g) => g.jobs.some(isComing))).toEqual([true, false]);
  });

  it("does not mix runs of one workflow that lie apart", () => {
    const groups = groupJobs([job("a", 0, "w"), job("b", 100_000, "w")]);
    expect(groups.map((g) => g.id)).toEqual(["b", "w"]);
  });
});

describe("followed", () => {
  const picture = { ...job("p", 1), preview_output: { filename: "a.png", subfolder: "", type: "output" as const } };
  const ids = (jobs: Job[], justCame: boolean) => followed(groupJobs(jobs), justCame)?.id;
  it("shows what runs, then what waits, then the newest", () => {
    expect(ids([picture, job("w", 5, undefined, "pending"), job("r", 3, undefined, "in_progress")], false)).toBe("r");
    expect(ids([picture, job("w", 5, undefined, "pending")], false)).toBe("w");
    expect(ids([picture, job("c", 5, undefined, "cancelled")], false)).toBe("c");
    expect(ids([picture, job("c", 5, undefined, "cancelled")], true)).toBe("p");
    expect(ids([job("c", 5, undefined, "cancelled")], true)).toBeUndefined();
  });
  it("never shows a job on hold in place of another", () => {
    const held = { ...job("h", 9, undefined, "pending"), held: true };
    for (const justCame of [true, false]) {
      expect(ids([picture, held], justCame)).toBe("p");
      expect(ids([picture, held, job("w", 5, undefined, "pending")], justCame)).toBe("w");
      expect(ids([picture, { ...held, create_time: 0 }], justCame)).toBe("p");
      expect(ids([held], justCame)).toBe("h");
    }
  });
});

it("counts who is before in the line", () => {
  const jobs = [
    job("r", 0, undefined, "in_progress"),
    job("a", 1, undefined, "pending", 1),
    { ...job("h", 1, undefined, "pending", 1), held: true },
    job("b", 2, undefined, "pending", 2),
  ];
  expect(jobs.map((j) => placeInLine(j, jobs))).toEqual([null, 1, 2, 2]);
});

it("shows what was asked for here or opened here, as the list has it now", () => {
  const own = job("own", 1, `${CREATE_WORKFLOWS}1`, "pending");
  const opened = job("opened", 2, "w");
  const listed = [...Array(300).keys()].map((i) => job(`api${i}`, 10 + i));
  const now = { ...own, status: "in_progress" as const };
  expect(ownJobs([own, job("foreign", 3, "other")], [opened, own], [...listed, now])).toEqual([now, opened]);
});

it("knows a film and a sound by the file that stands for them, and counts pictures of one job", () => {
  const file = (filename: string) => ({ filename, subfolder: "", type: "output" as const });
  const kinds = ["a.mp4", "a.flac", "a.png"].map((name) => kindOfJob({ ...job("j", 1), preview_output: file(name) }));
  expect(kinds).toEqual(["video", "audio", "picture"]);
  expect(countOf({ id: "g", time: 1, jobs: [{ ...job("a", 1), outputs_count: 30 }, job("b", 2, "w", "pending")] })).toBe(31);
});
