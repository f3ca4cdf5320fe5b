import { describe, expect, it } from "vitest";
import { readEvent, readEventText } from "./events";

describe("readEvent", () => {
  it("names the node that the graph shows", () => {
    expect(readEvent("executing", { prompt_id: "a", node: "2.0.1", display_node: "2" })).toEqual({ type: "executing", job: "a", node: "2" });
    expect(readEvent("executing", { prompt_id: "a", node: null })).toEqual({ type: "executing", job: "a", node: null });
    expect(readEvent("executing", { prompt_id: "a" })).toBeNull();
    expect(readEvent("executed", { prompt_id: "a", node: 3, output: { text: ["b"] } })).toEqual({
      type: "executed",
      job: "a",
      node: "3",
      output: { text: ["b"] },
    });
  });
  it("has a message for every failure", () => {
    expect(readEvent("execution_error", { prompt_id: "a", node_id: "4", exception_message: " no memory\n", exception_type: "OOM" })).toEqual({
      type: "execution_error",
      job: "a",
      node: "4",
      message: "no memory",
      kind: "OOM",
    });
    expect(readEvent("execution_error", null)).toMatchObject({ message: "The node failed." });
  });
  it("takes broken data for none", () => {
    for (const raw of [null, undefined, 7, "x", [1]]) {
      expect(readEvent("progress", raw)).toEqual({ type: "progress", job: undefined, node: undefined, value: 0, max: 0 });
      expect(readEvent("progress_state", raw)).toMatchObject({ nodes: [] });
      expect(readEvent("execution_cached", raw)).toMatchObject({ nodes: [] });
    }
    expect(readEvent("fresco_queue", { paused: "yes" })).toEqual({ type: "fresco_queue", paused: undefined });
    expect(readEventText("status", "{")).toBeNull();
    expect(readEvent("of another program", {})).toBeNull();
  });
});
