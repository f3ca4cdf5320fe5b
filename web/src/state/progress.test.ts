import { describe, expect, it } from "vitest";
import { readEvent } from "../api/events";
import { reduceEvent, type Running, secondsLeft } from "./progress";

type Step = [type: string, data: unknown];
const run = (steps: Step[], from: Running | null = null) =>
  steps.reduce((r, [type, data]) => {
    const event = readEvent(type, data);
    return event ? reduceEvent(r, event, 1000) : r;
  }, from);
const p = "job";

describe("reduceEvent", () => {
  it("follows a run from start to end", () => {
    const started = run([
      ["status", { status: { exec_info: { queue_remaining: 1 } } }],
      ["execution_start", { prompt_id: p, timestamp: 500 }],
      ["execution_cached", { prompt_id: p, nodes: ["1"] }],
      ["progress_state", { prompt_id: p, nodes: { "2": { value: 0, max: 1, state: "running", node_id: "2", prompt_id: p, display_node_id: "2" } } }],
      ["executing", { prompt_id: p, node: "2", display_node: "2" }],
      ["progress", { prompt_id: p, node: "2", value: 3, max: 20 }],
    ]);
    expect(started).toEqual({
      id: p,
      node: "2",
      value: 3,
      max: 20,
      startedAt: 500,
      begun: 500,
      perNode: { "1": { value: 1, max: 1, state: "finished" }, "2": { value: 0, max: 1, state: "running" } },
    });
    expect(run([["execution_success", { prompt_id: p }]], started)).toBeNull();
  });
  it("comes back after a reload from the cumulative state alone", () => {
    const nodes = {
      "1": { value: 1, max: 1, state: "finished", node_id: "1", prompt_id: p, display_node_id: "1" },
      "5": { value: 7, max: 20, state: "running", node_id: "5", prompt_id: p, display_node_id: "5" },
    };
    expect(run([["progress_state", { prompt_id: p, nodes }]])).toMatchObject({ id: p, node: "5", value: 7, max: 20 });
  });
  it("takes `executing` without a job as the running job's", () => {
    expect(run([["executing", { node: "3" }]], { id: p, value: 0, max: 0, startedAt: 0, perNode: {} })).toMatchObject({ id: p, node: "3" });
    expect(run([["executing", { node: "3" }]])).toBeNull();
  });
  it("shows the outer node for nodes inside a sub-graph", () => {
    const nodes = { "2.0.0.1": { value: 4, max: 8, state: "running", node_id: "2.0.0.1", prompt_id: p, display_node_id: "2" } };
    expect(run([["progress_state", { prompt_id: p, nodes }]])).toMatchObject({ node: "2", value: 4, max: 8, perNode: { "2": { value: 4 } } });
  });
  it("ends by error, interrupt or the last message, but not by a blocked branch or another job", () => {
    const now = run([["execution_start", { prompt_id: p }]]);
    expect(run([["execution_error", { prompt_id: p, exception_type: "RuntimeError" }]], now)).toBeNull();
    expect(run([["execution_error", { prompt_id: p, exception_type: "ExecutionBlocked" }]], now)).toBe(now);
    expect(run([["execution_interrupted", { prompt_id: p }]], now)).toBeNull();
    expect(run([["executing", { prompt_id: p, node: null }]], now)).toBeNull();
    expect(
      run(
        [
          ["executing", { prompt_id: "other", node: null }],
          ["execution_success", { prompt_id: "other" }],
        ],
        now,
      ),
    ).toBe(now);
  });
  it("starts the clock and the counter anew when a job is started again", () => {
    const before = run([
      ["execution_start", { prompt_id: p, timestamp: 500 }],
      ["progress", { prompt_id: p, node: "2", value: 15, max: 20 }],
    ]);
    expect(run([["execution_start", { prompt_id: p, timestamp: 90_500 }]], before)).toEqual({
      id: p,
      value: 0,
      max: 0,
      startedAt: 90_500,
      begun: 90_500,
      perNode: {},
    });
    // The same start, told once more, changes nothing; a start that was only guessed is put right.
    expect(run([["execution_start", { prompt_id: p, timestamp: 500 }]], before)).toEqual(before);
    const joined = run([
      ["progress", { prompt_id: p, node: "2", value: 15, max: 20 }],
      ["execution_start", { prompt_id: p, timestamp: 500 }],
    ]);
    expect(joined).toMatchObject({ value: 15, startedAt: 500 });
  });
  it("lets a new job take over", () => {
    expect(
      run([
        ["execution_start", { prompt_id: "a" }],
        ["execution_start", { prompt_id: "b" }],
      ])?.id,
    ).toBe("b");
  });
});

describe("secondsLeft", () => {
  it("goes by the pace so far", () => {
    expect(
      secondsLeft(
        [
          { value: 1, at: 0 },
          { value: 5, at: 2000 },
        ],
        20,
      ),
    ).toBe(7.5);
    expect(secondsLeft([{ value: 1, at: 0 }], 20)).toBeNull();
    expect(secondsLeft([], 20)).toBeNull();
  });
});
