import { describe, expect, it } from "vitest";
import type { ServerEvent } from "../api/events";
import type { Job, JobPage } from "../api/types";
import { type Action, changesList, emptyState, isNews, type LiveState, reduceLive, runOf } from "./liveState";

const job = (id: string, status: Job["status"]): Job => ({ id, status, create_time: 1 });
const page = (jobs: Job[]): JobPage => ({ jobs, pagination: { offset: 0, limit: 200, total: jobs.length, has_more: false } });
const listed = (active: Job[], finished: Job[] = [], before: string | null = null): Action => ({
  type: "listed",
  active,
  finished: page(finished),
  queue: null,
  before,
  now: 5,
});
const told = (event: ServerEvent, by: "socket" | "stream" = "socket"): Action => ({ type: "told", event, by, now: 9 });
const reduced = (actions: Action[], from: LiveState = emptyState("me")) => actions.reduce(reduceLive, from);
const start: ServerEvent = { type: "execution_start", job: "a", timestamp: 3 };

describe("reduceLive", () => {
  it("takes the first listed job in progress for the running one", () => {
    expect(reduced([listed([job("a", "in_progress")])])).toMatchObject({ loaded: true, running: { id: "a", startedAt: 5 } });
    expect(reduced([listed([job("a", "pending")])]).running).toBeNull();
  });
  it("keeps what it knows of a job that goes on, and forgets one that is not listed any more", () => {
    const running = reduced([told(start), told({ type: "progress", job: "a", node: "5", value: 2, max: 4 })]);
    expect(reduced([listed([job("a", "in_progress")], [], "a")], running).running).toMatchObject({ value: 2, startedAt: 3 });
    const gone = reduced([listed([], [job("a", "failed")], "a")], running);
    expect(gone.running).toBeNull();
    expect(gone.ended.has("a")).toBe(true);
    // It started after the question was asked.
    expect(reduced([listed([], [], null)], running).running).toMatchObject({ id: "a" });
  });
  it("does not let late events revive a job", () => {
    const ended = reduced([told(start), told({ type: "execution_success", job: "a" })]);
    expect(reduced([told({ type: "progress", job: "a", value: 1, max: 2 })], ended)).toBe(ended);
    expect(reduced([listed([job("a", "in_progress")])], ended).running).toBeNull();
    expect(reduced([{ type: "disconnected" }, { type: "connected" }, told(start)], ended)).toMatchObject({ connected: true, running: { id: "a" } });
  });
  it("remembers who spoke over the socket", () => {
    const progress: ServerEvent = { type: "progress", job: "a", value: 1, max: 2 };
    const byStream = reduced([told(progress, "stream")]);
    expect(isNews(byStream, progress)).toBe(true);
    const bySocket = reduced([told(progress)], byStream);
    expect(isNews(bySocket, progress)).toBe(false);
    expect(isNews(bySocket, start)).toBe(true);
    expect(bySocket.begun.has("a")).toBe(false);
    expect(reduced([told(start, "stream")], bySocket).begun.has("a")).toBe(true);
  });
  it("changes nothing, not even its identity, where nothing changed", () => {
    const state = reduced([told(start)]);
    for (const event of [
      { type: "status" },
      { type: "memory_event" },
      { type: "fresco_queue" },
      { type: "executed", job: "a", node: "1", output: {} },
    ] as ServerEvent[]) {
      expect(reduced([told(event)], state)).toBe(state);
    }
    expect(reduced([told({ type: "fresco_queue", paused: true })], state).queue).toEqual({ paused: true });
  });
  it("knows how far each of several running jobs is", () => {
    const other: ServerEvent = { type: "execution_start", job: "b", timestamp: 4 };
    const both = reduced([
      told(start),
      told(other),
      told({ type: "progress", job: "a", node: "5", value: 2, max: 4 }),
      told({ type: "progress", job: "b", node: "6", value: 1, max: 3 }),
    ]);
    expect(both.running).toMatchObject({ id: "b", value: 1 });
    expect(runOf(both, "a")).toMatchObject({ id: "a", value: 2, max: 4, startedAt: 3 });
    expect(runOf(both, "c")).toBeNull();
    // The end of one leaves the other.
    const one = reduced([told({ type: "execution_success", job: "b" })], both);
    expect(one.running).toMatchObject({ id: "a", value: 2 });
    expect(one.beside).toEqual({});
    expect(one.ended.has("b")).toBe(true);
    const aside = reduced([told({ type: "execution_interrupted", job: "a" })], both);
    expect(aside.running).toMatchObject({ id: "b" });
    expect(aside.beside).toEqual({});
    expect(aside.ended.has("a")).toBe(true);
  });
  it("keeps several listed jobs apart", () => {
    const listing = { ...listed([job("a", "in_progress"), job("b", "in_progress")]), beside: [] } as Action;
    const both = reduced([listing]);
    expect(both.running?.id).toBe("a");
    expect(Object.keys(both.beside)).toEqual(["b"]);
    const gone = reduced([{ ...listed([job("b", "in_progress")], [job("a", "completed")], "a"), beside: ["b"] } as Action], both);
    expect(gone.running?.id).toBe("b");
    expect(gone.beside).toEqual({});
    expect(gone.ended.has("a")).toBe(true);
    const none = reduced([{ ...listed([], [job("b", "completed")], "a"), beside: ["b"] } as Action], both);
    expect(none.running).toBeNull();
    expect(none.beside).toEqual({});
  });
  it("keeps a picture of each running job", () => {
    const both = reduced([told(start), told({ type: "execution_start", job: "b", timestamp: 4 })]);
    const shown = (jobId: string, url: string): Action => ({ type: "preview", preview: { jobId, node: "1", url } });
    const pictures = reduced([shown("a", "1"), shown("b", "2"), shown("a", "3")], both);
    expect(pictures.previews).toMatchObject({ a: { url: "3" }, b: { url: "2" } });
    const later = reduced([told({ type: "execution_success", job: "b" }), shown("a", "4")], pictures);
    expect(Object.keys(later.previews)).toEqual(["a"]);
  });
  it("asks for more, by pages", () => {
    expect(reduced([{ type: "more wanted" }]).wanted).toBe(2 * emptyState("me").wanted);
  });
  it("knows which events change the list", () => {
    expect(changesList({ type: "status" })).toBe(true);
    expect(changesList({ type: "fresco_queue" })).toBe(true);
    expect(changesList({ type: "progress", value: 1, max: 2 })).toBe(false);
  });
});
