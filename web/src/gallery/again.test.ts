import { expect, test } from "vitest";
import type { JobDetails, UiWorkflow } from "../api/types";
import { again, randomId } from "./again";

const workflow = {
  id: "old",
  nodes: [{ id: 2, type: "Blend", pos: [0, 0], widgets_values: [0.3, true, 7, "x"] }],
  links: [],
  version: 0.4,
  last_node_id: 2,
  last_link_id: 0,
} as UiWorkflow;
const details: Pick<JobDetails, "workflow"> = {
  workflow: {
    prompt: {
      "2": { class_type: "Blend", inputs: { seed: 7 } },
      "3": { class_type: "RandomNoise", inputs: { noise_seed: 7 } },
      "4": { class_type: "Other", inputs: { seed: 9 } },
      "5": { class_type: "Other", inputs: { seed: ["3", 0] } },
    },
    extra_data: { client_id: "c", create_time: 5, fresco_create: { prompt: "a cat", seed: 7 }, extra_pnginfo: { workflow, note: "kept" } },
  },
};

test("the same again keeps the graph and what was stored beside it, but not whose and when it was", () => {
  const next = again(details, "new");
  expect(next.prompt).toEqual(details.workflow.prompt);
  expect(next.workflow).toEqual({ ...workflow, id: "new" });
  expect(next.extra).toEqual({ fresco_create: { prompt: "a cat", seed: 7 }, extra_pnginfo: { note: "kept" } });
});

test("new seeds go to every literal seed, equal ones stay equal, the saved graph and the form follow, links stay", () => {
  let n = 100;
  const next = again(details, "new", () => n++);
  expect(Object.values(next.prompt).map((node) => node.inputs.seed ?? node.inputs.noise_seed)).toEqual([100, 100, 101, ["3", 0]]);
  expect(next.workflow?.nodes[0]?.widgets_values).toEqual([0.3, true, 100, "x"]);
  expect(next.extra.fresco_create).toEqual({ prompt: "a cat", seed: 100 });
  expect(details.workflow.prompt["2"]?.inputs.seed).toBe(7);
  expect(workflow.nodes[0]?.widgets_values).toEqual([0.3, true, 7, "x"]);
});

test("a job without a saved graph has none again", () => {
  const next = again({ workflow: { prompt: {}, extra_data: {} } }, "new", () => 1);
  expect(next).toEqual({ prompt: {}, workflow: undefined, extra: {} });
});

test("ids look like UUIDs", () => {
  expect(randomId(() => 0.99)).toBe("ffffffff-ffff-4fff-afff-ffffffffffff");
});
