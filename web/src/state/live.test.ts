import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { Job } from "../api/types";

/** A server in a box: what it would answer, and the sockets and streams that were opened. */
const server = {
  active: [] as Job[],
  finished: [] as Job[],
  asked: [] as string[],
  down: false,
};
class FakeSocket {
  static all: FakeSocket[] = [];
  sent: string[] = [];
  binaryType = "";
  onopen?: () => void;
  onclose?: () => void;
  onmessage?: (e: { data: string | ArrayBuffer }) => void;
  constructor(public url: string) {
    FakeSocket.all.push(this);
  }
  send(text: string) {
    this.sent.push(text);
  }
  close() {
    this.onclose?.();
  }
  say(type: string, data: unknown) {
    this.onmessage?.({ data: JSON.stringify({ type, data }) });
  }
}
class FakeStream {
  static all: FakeStream[] = [];
  closed = false;
  on = new Map<string, (e: { data: string }) => void>();
  constructor(public url: string) {
    FakeStream.all.push(this);
  }
  addEventListener(type: string, fn: (e: { data: string }) => void) {
    this.on.set(type, fn);
  }
  close() {
    this.closed = true;
  }
  say(type: string, data: unknown) {
    this.on.get(type)?.({ data: JSON.stringify(data) });
  }
}
const page = (jobs: Job[]) => ({ jobs, pagination: { offset: 0, limit: 200, total: jobs.length, has_more: false } });
const job = (id: string, status: Job["status"]): Job => ({ id, status, create_time: 1 });

let live: typeof import("./live");
let stop = () => {};
const last = () => FakeSocket.all.at(-1)!;
const settle = () => vi.advanceTimersByTimeAsync(100);

beforeEach(async () => {
  vi.useFakeTimers();
  vi.resetModules();
  Object.assign(server, { active: [], finished: [], asked: [], down: false });
  FakeSocket.all = [];
  FakeStream.all = [];
  vi.stubGlobal("WebSocket", FakeSocket);
  vi.stubGlobal("EventSource", FakeStream);
  vi.stubGlobal("BroadcastChannel", undefined);
  vi.stubGlobal("location", { protocol: "http:", host: "here" });
  vi.stubGlobal("document", { visibilityState: "visible", addEventListener() {}, removeEventListener() {} });
  vi.stubGlobal("addEventListener", () => {});
  vi.stubGlobal("removeEventListener", () => {});
  vi.stubGlobal("fetch", (path: string) => {
    server.asked.push(path);
    if (server.down) return Promise.reject(new TypeError("no network"));
    const body = path.includes("in_progress") ? page(server.active) : path.includes("/api/jobs?") ? page(server.finished) : { paused: false, order: [] };
    return Promise.resolve(new Response(JSON.stringify(body)));
  });
  live = await import("./live");
  stop = live.startLive();
});
afterEach(() => {
  stop();
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

describe("live", () => {
  it("announces what it understands and asks for the jobs when connected", async () => {
    last().onopen?.();
    await settle();
    expect(JSON.parse(last().sent[0]!)).toEqual({
      type: "feature_flags",
      data: { supports_preview_metadata: true, supports_memory_events: true, supports_fresco_events: true, fresco_all_previews: true },
    });
    expect(live.useLive.getState()).toMatchObject({ connected: true, loaded: true, jobs: [] });
  });

  it("connects again under the same id and asks anew", async () => {
    last().onopen?.();
    await settle();
    const { url } = last();
    last().onclose?.();
    expect(live.useLive.getState().connected).toBe(false);
    await vi.advanceTimersByTimeAsync(400);
    expect(FakeSocket.all).toHaveLength(2);
    expect(last().url).toBe(url);
    server.finished = [job("a", "completed")];
    last().onopen?.();
    await settle();
    expect(live.useLive.getState().jobs.map((j) => j.id)).toEqual(["a"]);
  });

  it("answers a burst of events with few questions", async () => {
    last().onopen?.();
    await settle();
    server.asked = [];
    for (let i = 0; i < 20; i++) last().say("status", {});
    await settle();
    expect(server.asked.filter((p) => p.includes("in_progress")).length).toBeLessThanOrEqual(2);
  });

  it("finds the running job after a reload and follows it until the socket speaks", async () => {
    server.active = [job("a", "in_progress")];
    last().onopen?.();
    await settle();
    expect(live.useLive.getState().running).toMatchObject({ id: "a" });
    await vi.advanceTimersByTimeAsync(500);
    const stream = FakeStream.all[0]!;
    expect(stream.url).toBe("/api/jobs/a/events");
    stream.say("execution_start", { prompt_id: "a", timestamp: 42 });
    stream.say("progress", { prompt_id: "a", node: "5", value: 3, max: 20 });
    expect(live.useLive.getState().running).toMatchObject({ startedAt: 42, node: "5", value: 3 });
    last().say("progress", { prompt_id: "a", node: "5", value: 9, max: 20 });
    stream.say("progress", { prompt_id: "a", node: "5", value: 4, max: 20 });
    expect(live.useLive.getState().running?.value).toBe(9);
    expect(stream.closed).toBe(true);
  });

  it("does not follow a job that speaks to this tab", async () => {
    last().onopen?.();
    await settle();
    server.active = [job("a", "in_progress")];
    last().say("execution_start", { prompt_id: "a", timestamp: 1 });
    await vi.advanceTimersByTimeAsync(1000);
    expect(FakeStream.all).toHaveLength(0);
  });

  it("is not brought back to a job that has ended", async () => {
    server.active = [job("a", "in_progress")];
    last().onopen?.();
    await settle();
    last().say("execution_success", { prompt_id: "a" });
    last().say("progress", { prompt_id: "a", node: "5", value: 20, max: 20 });
    await settle();
    expect(live.useLive.getState().running).toBeNull();
  });

  it("notices an end it was not told of", async () => {
    server.active = [job("a", "in_progress")];
    last().onopen?.();
    await settle();
    server.active = [];
    server.finished = [job("a", "failed")];
    last().say("status", {});
    await settle();
    expect(live.useLive.getState().running).toBeNull();
  });

  it("lets a job that was interrupted by a restart run again", async () => {
    server.active = [job("a", "in_progress")];
    last().onopen?.();
    await settle();
    last().onclose?.();
    await vi.advanceTimersByTimeAsync(400);
    server.active = [job("a", "pending")];
    last().onopen?.();
    await settle();
    expect(live.useLive.getState().running).toBeNull();
    server.active = [job("a", "in_progress")];
    last().say("execution_start", { prompt_id: "a", timestamp: 7 });
    await settle();
    expect(live.useLive.getState().running).toMatchObject({ id: "a", startedAt: 7 });
  });

  it("keeps what it knows while the server cannot be reached", async () => {
    server.finished = [job("a", "completed")];
    last().onopen?.();
    await settle();
    server.down = true;
    await expect(live.useLive.getState().refresh()).rejects.toMatchObject({ status: 0 });
    expect(live.useLive.getState().jobs).toHaveLength(1);
  });

  it("passes events on until asked not to", () => {
    const seen: unknown[] = [];
    const off = live.onEvent("executed", ({ node }) => seen.push(node));
    last().say("executed", { prompt_id: "a", node: "1" });
    last().say("executing", { prompt_id: "a", node: "2" });
    off();
    last().say("executed", { prompt_id: "a", node: "3" });
    expect(seen).toEqual(["1"]);
  });
});
