import { expect, it } from "vitest";
import type { Job } from "../api/types";
import { orderJobs } from "./jobs";

const job = (id: string, status: Job["status"], create_time: number, more: Partial<Job> = {}): Job => ({ id, status, create_time, ...more });

it("lists the running job, the waiting ones as they will run, then the newest", () => {
  const active = [job("c", "pending", 3, { priority: 3 }), job("b", "pending", 2, { priority: 2 }), job("a", "in_progress", 1)];
  const done = [job("x", "completed", 5, { execution_end_time: 6 }), job("y", "failed", 4, { execution_end_time: 9 }), job("z", "cancelled", 7)];
  expect(orderJobs(active, done, []).map((j) => j.id)).toEqual(["a", "b", "c", "y", "z", "x"]);
  expect(orderJobs(active, done, ["c", "b"]).map((j) => j.id)).toEqual(["a", "c", "b", "y", "z", "x"]);
});

it("shows a job that ended between the two requests once, as ended", () => {
  const jobs = orderJobs([job("a", "in_progress", 1)], [job("a", "completed", 1)], []);
  expect(jobs.map((j) => [j.id, j.status])).toEqual([["a", "completed"]]);
});
