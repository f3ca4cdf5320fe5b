// Jobs of one press stay together.
import { describe, expect, it } from "vitest";
import type { Job, JobStatus } from "../api/types";
import { groupJobs, isGroupActive, placeInLine } from "./groups";

const job = (id: string, create_time: number, workflow_id?: string, status: JobStatus = "completed", priority = 0): Job => ({ id, create_time, workflow_id, status, priority });

describe("groupJobs", () => {
  it("puts the newest press first and its jobs in order", () => {
    const groups = groupJobs([job("b", 2, "w", "pending"), job("a", 1, "w", "in_progress"), job("old", 0)]);
    expect(groups.map((g) => [g.id, g.jobs.map((j) => j.id)])).toEqual([["w", ["a", "b"]], ["old", ["old"]]]);
    expect(groups.map(isGroupActive)).toEqual([true, false]);
  });

  it("does not mix runs of one workflow that lie apart", () => {
    const groups = groupJobs([job("a", 0, "w"), job("b", 100_000, "w")]);
    expect(groups.map((g) => g.id)).toEqual(["b", "w"]);
  });
});

it("counts who is before in the line", () => {
  const jobs = [job("r", 0, undefined, "in_progress"), job("a", 1, undefined, "pending", 1), { ...job("h", 1, undefined, "pending", 1), held: true }, job("b", 2, undefined, "pending", 2)];
  expect(jobs.map((j) => placeInLine(j, jobs))).toEqual([null, 1, 2, 2]);
});
