import { describe, expect, it } from "vitest";
import { connect } from "./connect";
import { advance } from "./controls";
import { addNode, setStored } from "./edits";
import { flowEdges, flowNodes, inHandle, insideGroup, outHandle } from "./flow";
import type { Definition, Doc, GNode } from "./format";
import { definition, definitions, emptyDoc, findNode, linkIndex } from "./format";
import { gather, unpack } from "./gather";
import { goldInfo, goldNames, goldUi } from "./gold";
import { makeNode } from "./make";
import { rowsOf, sortOf, titleOf } from "./rows";
import { classSpec } from "./schema";
import { inputsOf, outputsOf } from "./slots";
import { widgetsOf } from "./widgets";

const spec = (name: string) => classSpec(goldInfo, name);

/** Loader, two prompts, sampler: 1 feeds 2 and 3, those feed 4. */
function small(): Doc {
  let doc = emptyDoc();
  ["CheckpointLoaderSimple", "CLIPTextEncode", "CLIPTextEncode", "KSampler"].forEach((type, i) => {
    doc = addNode(doc, null, (id) => makeNode(type, id, [i * 300, 0], spec(type))).doc;
  });
  for (const [from, slot, to, key] of [
    [1, 1, 2, "clip"],
    [1, 1, 3, "clip"],
    [2, 0, 4, "positive"],
    [3, 0, 4, "negative"],
    [1, 0, 4, "model"],
  ] as const) {
    doc = connect(doc, null, { node: from, slot }, { node: to, key }, goldInfo);
  }
  return doc;
}

/** Who feeds whom, by class and slot name, without ids. */
function shape(doc: Doc): string[] {
  const links = linkIndex(doc);
  return doc.nodes
    .flatMap((n) =>
      inputsOf(n, spec(n.type)).flatMap((view) => {
        const link = view.link == null ? undefined : links.get(String(view.link));
        const from = link && findNode(doc, link.origin_id);
        return from && link ? [`${from.type}.${link.origin_slot} > ${n.type}.${view.name}`] : [];
      }),
    )
    .sort();
}

describe("gathering", () => {
  it("turns crossing links into ports, one for each source", () => {
    const done = gather(small(), null, [2, 3], goldInfo);
    const def = definitions(done.doc)[0] as Definition;
    expect(def.inputs.map((p) => [p.name, p.linkIds?.length])).toEqual([["clip", 2]]);
    expect(def.outputs.map((p) => p.name)).toEqual(["CONDITIONING", "CONDITIONING_1"]);
    const instance = findNode(done.doc, done.id as number) as GNode;
    expect(instance.type).toBe(def.id);
    expect(done.doc.nodes.map((n) => n.type)).toEqual(["CheckpointLoaderSimple", "KSampler", def.id]);
    expect(instance.inputs?.[0]?.link).not.toBeNull();
    expect(instance.outputs?.map((o) => o.links?.length)).toEqual([1, 1]);
    expect(def.links.every((l) => !Array.isArray(l))).toBe(true);
  });

  it("comes apart into what it was made of", () => {
    const before = small();
    const done = gather(before, null, [2, 3], goldInfo);
    const apart = unpack(done.doc, null, done.id as number, goldInfo);
    expect(apart.ids).toHaveLength(2);
    expect(apart.doc.nodes).toHaveLength(4);
    expect(shape(apart.doc)).toEqual(shape(before));
  });

  it("takes every instance of the golden files apart", () => {
    let count = 0;
    for (const name of goldNames) {
      const doc = goldUi(name);
      for (const node of doc.nodes) {
        const def = definition(doc, node.type);
        if (!def) continue;
        count += 1;
        const apart = unpack(doc, null, node.id, goldInfo);
        expect(apart.ids).toHaveLength(def.nodes.length);
        expect(findNode(apart.doc, node.id)).toBeUndefined();
      }
    }
    expect(count).toBeGreaterThan(10);
  });
});

describe("the canvas", () => {
  it.each(goldNames)("draws every link of %s between sockets that are shown", (name) => {
    const doc = goldUi(name);
    for (const scope of [null, ...definitions(doc).map((d) => d.id)]) {
      const nodes = flowNodes(doc, scope, goldInfo, []);
      const handles = new Set<string>();
      for (const n of nodes) {
        if (n.type === "card") {
          const known = spec(n.data.node.type);
          const def = definition(doc, n.data.node.type);
          for (const i of inputsOf(n.data.node, known, def)) handles.add(`${n.id} ${inHandle(i.key)}`);
          for (const o of outputsOf(n.data.node, known, def)) handles.add(`${n.id} ${outHandle(o.at)}`);
        } else if (n.type === "io") {
          n.data.ports.forEach((_, at) => handles.add(`${n.id} ${n.data.side === "inputs" ? outHandle(at) : inHandle(String(at))}`));
        }
      }
      for (const e of flowEdges(doc, scope, goldInfo, new Set())) {
        expect(handles).toContain(`${e.source} ${e.sourceHandle}`);
        expect(handles).toContain(`${e.target} ${e.targetHandle}`);
      }
    }
  });

  it("keeps the same objects for what did not change", () => {
    const doc = small();
    const first = flowNodes(doc, null, goldInfo, []);
    const second = flowNodes({ ...doc, nodes: doc.nodes.map((n) => (n.id === 2 ? { ...n, title: "Mine" } : n)) }, null, goldInfo, first);
    expect(second.map((n, i) => n === first[i])).toEqual([true, false, true, true]);
  });

  it("knows what lies in a group", () => {
    const doc = { ...small(), groups: [{ title: "A", bounding: [-50, -60, 600, 400] }] } as unknown as Doc;
    expect(insideGroup(doc, null, 0, goldInfo)).toEqual(["1", "2"]);
  });
});

describe("rows", () => {
  it("name what a node is and show its values", () => {
    const doc = goldUi("01_get_started_text_to_image");
    const instance = findNode(doc, 83) as GNode;
    expect(sortOf(doc, instance, goldInfo)).toBe("instance");
    expect(titleOf(doc, instance, goldInfo)).toBe("Z-Image-Turbo Text to Image");
    expect(rowsOf(doc, null, instance, goldInfo).map((r) => r.label)).toEqual(["text", "height", "width", "seed"]);
    const note = findNode(doc, 84) as GNode;
    expect(sortOf(doc, note, goldInfo)).toBe("note");
    const unknown = { ...note, type: "Gone", widgets_values: [1, "a\nb", true, { x: 1 }] };
    expect(rowsOf(doc, null, unknown, goldInfo).map((r) => r.spec.kind)).toEqual(["float", "multiline", "bool", "other"]);
  });

  it("set values of every kind where they are kept", () => {
    let doc = small();
    const steps = rowsOf(doc, null, findNode(doc, 4) as GNode, goldInfo).find((r) => r.key === "steps");
    doc = steps?.set(doc, 7) ?? doc;
    expect(findNode(doc, 4)?.widgets_values).toHaveProperty("2", 7);
    const seed = rowsOf(doc, null, findNode(doc, 4) as GNode, goldInfo).find((r) => r.key === "seed");
    doc = seed?.setControl(doc, "increment") ?? doc;
    expect(findNode(doc, 4)?.widgets_values).toHaveProperty("1", "increment");
  });
});

describe("after a run", () => {
  it("seeds and primitives go on, switched-off and linked ones stay", () => {
    let doc = small();
    const known = spec("KSampler");
    if (!known) throw new Error("KSampler is missing");
    const seed = (d: Doc) => widgetsOf(findNode(d, 4) as GNode, known)[0]?.value;
    expect(seed(advance(doc, goldInfo, () => 0.5))).not.toBe(0);
    const off = { ...doc, nodes: doc.nodes.map((n) => (n.id === 4 ? { ...n, mode: 2 } : n)) };
    expect(advance(off, goldInfo, () => 0.5)).toBe(off);
    doc = addNode(doc, null, (id) => makeNode("PrimitiveNode", id, [0, 0], undefined)).doc;
    doc = connect(doc, null, { node: 5, slot: 0 }, { node: 4, key: "seed" }, goldInfo);
    doc = setStored(setStored(doc, null, 5, 0, 10), null, 5, 1, "increment");
    const next = advance(doc, goldInfo, () => 0.5);
    expect(seed(next)).toBe(0);
    expect(findNode(next, 5)?.widgets_values).toEqual([11, "increment"]);
  });
});
