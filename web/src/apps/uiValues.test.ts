// The editor's file follows the form, or is given up.
import { describe, expect, it } from "vitest";
import { fieldsOf } from "./fields";
import { apiOf, info, uiOf } from "./samples";
import { widgetPlaces, withValues } from "./uiValues";

describe("the editor's file", () => {
  it("knows the extra place after a seed", () => {
    expect([...widgetPlaces(info, "KSampler")!]).toEqual([
      ["seed", 0],
      ["steps", 2],
      ["cfg", 3],
      ["sampler_name", 4],
      ["scheduler", 5],
      ["denoise", 6],
    ]);
    expect(widgetPlaces(info, "MagicSampler")).toBeNull();
  });

  const prompt = apiOf("hidream_i1_full");
  const workflow = uiOf("hidream_i1_full");
  const fields = fieldsOf(prompt, info);
  const text = fields.find((f) => f.group === "prompt")!;
  const steps = fields.find((f) => f.inputs[0] === "steps")!;

  it("gets the values at their places", () => {
    const next = withValues(workflow, prompt, { [text.key]: "a new sentence", [steps.key]: 11 }, info)!;
    const id = (key: string) => key.split("/")[0]!.split(":").at(-1);
    const all = (w: typeof workflow) => [w.nodes, ...(w.definitions?.subgraphs ?? []).map((g) => g.nodes)].flat();
    expect(all(next).find((n) => String(n.id) === id(text.key))!.widgets_values).toContain("a new sentence");
    expect((all(next).find((n) => String(n.id) === id(steps.key))!.widgets_values as unknown[])[2]).toBe(11);
    expect(JSON.stringify(workflow)).not.toContain("a new sentence");
  });

  it("is given up where an outer node holds the value of an inner one", () => {
    const inner = apiOf("flux1_krea_dev");
    const outer = uiOf("flux1_krea_dev");
    expect(withValues(outer, inner, { "53:45/text": "x" }, info)).toBeNull();
    expect(withValues(outer, inner, { "53:31/denoise": 0.5 }, info)).not.toBeNull();
  });

  it("is given up where a value has no certain place", () => {
    const other = structuredClone(workflow);
    for (const node of other.nodes) if (Array.isArray(node.widgets_values)) node.widgets_values.unshift("odd");
    for (const graph of other.definitions?.subgraphs ?? [])
      for (const node of graph.nodes) if (Array.isArray(node.widgets_values)) node.widgets_values.unshift("odd");
    expect(withValues(other, prompt, { [steps.key]: 11 }, info)).toBeNull();
    expect(withValues(other, prompt, { [steps.key]: prompt[steps.node]!.inputs.steps }, info)).toBe(other);
  });
});
