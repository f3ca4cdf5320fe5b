import { describe, expect, it } from "vitest";
import type { ApiPrompt } from "../api/types";
import type { Doc, GNode } from "./format";
import { linkIndex, pair } from "./format";
import { uiFromApi } from "./fromApi";
import { goldApi, goldInfo, goldNames } from "./gold";
import { boxOf } from "./metrics";
import { classSpec } from "./schema";
import { inputsOf } from "./slots";
import { widgetsOf } from "./widgets";

const simple: ApiPrompt = {
  "4": { class_type: "CheckpointLoaderSimple", inputs: { ckpt_name: "a.safetensors" } },
  "5": { class_type: "EmptyLatentImage", inputs: { width: 256, height: 320, batch_size: 2 } },
  "6": { class_type: "CLIPTextEncode", inputs: { text: "a cat", clip: ["4", 1] }, _meta: { title: "What to draw" } },
  "7": { class_type: "CLIPTextEncode", inputs: { text: "", clip: ["4", 1] } },
  "3": {
    class_type: "KSampler",
    inputs: {
      seed: 42,
      steps: 20,
      cfg: 7,
      sampler_name: "euler",
      scheduler: "normal",
      denoise: 1,
      model: ["4", 0],
      positive: ["6", 0],
      negative: ["7", 0],
      latent_image: ["5", 0],
    },
  },
  "8": { class_type: "VAEDecode", inputs: { samples: ["3", 0], vae: ["4", 2] } },
  "9": { class_type: "SaveImage", inputs: { filename_prefix: "x", images: ["8", 0] } },
};

/** What a document would send: values by name and links resolved, without any virtual nodes. */
function flatten(doc: Doc): Record<string, { class_type: string; inputs: Record<string, unknown> }> {
  const links = linkIndex(doc);
  const out: Record<string, { class_type: string; inputs: Record<string, unknown> }> = {};
  for (const node of doc.nodes) {
    const spec = classSpec(goldInfo, node.type);
    const inputs: Record<string, unknown> = {};
    if (spec) for (const w of widgetsOf(node, spec)) inputs[w.name] = w.value;
    for (const slot of inputsOf(node, spec)) {
      const link = slot.link == null ? undefined : links.get(String(slot.link));
      if (link) inputs[slot.name] = [String(link.origin_id), link.origin_slot];
    }
    out[String(node.id)] = { class_type: node.type, inputs };
  }
  return out;
}

const byId = (doc: Doc, id: number): GNode => doc.nodes.find((n) => n.id === id) as GNode;

describe("uiFromApi", () => {
  it("writes seeds with what happens after a run, and slots with links", () => {
    const doc = uiFromApi(simple, goldInfo) as unknown as Doc;
    expect(byId(doc, 3).widgets_values).toEqual([42, "fixed", 20, 7, "euler", "normal", 1]);
    expect(byId(doc, 3).inputs?.map((i) => i.name)).toEqual([
      "model",
      "positive",
      "negative",
      "latent_image",
      "seed",
      "steps",
      "cfg",
      "sampler_name",
      "scheduler",
      "denoise",
    ]);
    expect(byId(doc, 3).inputs?.[4]).toMatchObject({ name: "seed", widget: { name: "seed" }, link: null });
    expect(byId(doc, 4).outputs?.[1]?.links).toHaveLength(2);
    expect(byId(doc, 6).title).toBe("What to draw");
    expect(byId(doc, 7).title).toBeUndefined();
    expect(doc.links).toHaveLength(9);
    expect(doc.last_node_id).toBe(9);
    expect(doc.last_link_id).toBe(9);
    expect(doc.version).toBe(0.4);
  });

  it("is the same for the same prompt", () => {
    expect(uiFromApi(simple, goldInfo)).toEqual(uiFromApi(simple, goldInfo));
  });

  it("says the same as the prompt it was made from", () => {
    const flat = flatten(uiFromApi(simple, goldInfo) as unknown as Doc);
    for (const [id, node] of Object.entries(simple)) {
      expect(flat[id]?.class_type).toBe(node.class_type);
      expect(flat[id]?.inputs).toEqual(node.inputs);
    }
  });

  it("lays nodes out left to right without overlap", () => {
    const doc = uiFromApi(simple, goldInfo) as unknown as Doc;
    const x = (id: number) => pair(byId(doc, id).pos, [0, 0])[0];
    expect(x(4)).toBeLessThan(x(6));
    expect(x(6)).toBeLessThan(x(3));
    expect(x(3)).toBeLessThan(x(8));
    expect(x(8)).toBeLessThan(x(9));
    const boxes = doc.nodes.map((n) => boxOf(n, classSpec(goldInfo, n.type)));
    boxes.forEach((a, i) =>
      boxes.slice(i + 1).forEach((b) => {
        const apart = a.x + a.width <= b.x || b.x + b.width <= a.x || a.y + a.height <= b.y || b.y + b.height <= a.y;
        expect(apart).toBe(true);
      }),
    );
  });

  it("keeps unknown classes, odd ids and wrapped lists", () => {
    const doc = uiFromApi(
      {
        "1": { class_type: "NotThere", inputs: { strength: 0.5, image: ["12:3", 1] } },
        "12:3": { class_type: "LoadImage", inputs: { image: "a.png" } },
        "2": { class_type: "NotThere", inputs: { list: { __value__: [1, 2] }, pair: ["gone", 0] } },
      },
      goldInfo,
    ) as unknown as Doc;
    const load = doc.nodes.find((n) => n.type === "LoadImage") as GNode;
    expect(load.id).toBe(3);
    expect(load.widgets_values).toEqual(["a.png", "image"]);
    expect(byId(doc, 1).widgets_values).toEqual([0.5]);
    expect(doc.links).toEqual([[1, 3, 1, 1, 0, "MASK"]]);
    expect(byId(doc, 2).widgets_values).toEqual([
      [1, 2],
      ["gone", 0],
    ]);
  });

  it.each(goldNames)("carries every value and link of %s", (name) => {
    const prompt = Object.fromEntries(Object.entries(goldApi(name)).filter(([, n]) => n.class_type && Object.hasOwn(goldInfo, n.class_type)));
    const doc = uiFromApi(prompt, goldInfo) as unknown as Doc;
    const flat = flatten(doc);
    const ids = new Map(Object.keys(prompt).map((id, i) => [id, String(doc.nodes[i]?.id)]));
    for (const [id, node] of Object.entries(prompt)) {
      const got = flat[ids.get(id) as string]?.inputs ?? {};
      const spec = classSpec(goldInfo, node.class_type);
      for (const [key, value] of Object.entries(node.inputs)) {
        const link = Array.isArray(value) && value.length === 2 && Object.hasOwn(prompt, String(value[0]));
        if (link) expect(got[key]).toEqual([ids.get(String((value as unknown[])[0])), (value as unknown[])[1]]);
        else if (spec && widgetsOf(doc.nodes.find((n) => String(n.id) === ids.get(id)) as GNode, spec).some((w) => w.name === key)) {
          const plain = value && typeof value === "object" && "__value__" in value ? (value as { __value__: unknown }).__value__ : value;
          expect(got[key]).toEqual(plain);
        }
      }
    }
  });
});
