import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { Job } from "../api/types";
import { useLive } from "../state/live";
import { cancel, queueCount, reordered, setHeld, setPaused } from "./queue";

const job = (id: string, status: Job["status"]): Job => ({ id, status, create_time: 1 });
const jobs = [job("r", "in_progress"), job("a", "pending"), job("b", "pending"), job("c", "pending"), job("z", "completed")];
const ids = () => useLive.getState().jobs.map((j) => j.id);

beforeEach(() => useLive.setState({ jobs, queue: { paused: false }, refresh: async () => undefined }));
afterEach(() => vi.unstubAllGlobals());

test("the badge counts what runs and what waits", () => {
  expect(queueCount({ jobs })).toBe(4);
});

test("only waiting jobs change places", () => {
  expect(reordered(jobs, ["c", "a"]).map((j) => j.id)).toEqual(["r", "c", "a", "b", "z"]);
});

test("a wish is shown at once and sent", async () => {
  const fetch = vi.fn(async (_path: string, _init: RequestInit) => new Response("{}"));
  vi.stubGlobal("fetch", fetch);
  const done = setHeld("b", true);
  expect(useLive.getState().jobs.find((j) => j.id === "b")?.held).toBe(true);
  await done;
  expect(fetch.mock.calls[0]?.[0]).toBe("/fresco/queue");
  expect(fetch.mock.calls[0]?.[1].body).toBe('{"hold":["b"]}');
});

test("a refused wish is taken back", async () => {
  vi.stubGlobal("fetch", async () => new Response('{"error":"no"}', { status: 500 }));
  const cancelled = cancel(["a", "b"]);
  expect(ids()).toEqual(["r", "c", "z"]);
  await expect(cancelled).rejects.toThrow("no");
  expect(ids()).toEqual(["r", "a", "b", "c", "z"]);
  const paused = setPaused(true);
  expect(useLive.getState().queue.paused).toBe(true);
  await expect(paused).rejects.toThrow();
  expect(useLive.getState().queue.paused).toBe(false);
});
