import { describe, expect, it } from "vitest";
import type { ObjectInfo } from "../api/types";
import { copyNodes, pasteClip, readClip } from "./clipboard";
import { connect, refusal } from "./connect";
import { addNode, disconnect, moveNodes, removeNodes, renameNode, toggleCollapsed, toggleMode } from "./edits";
import type { Definition, Doc, GNode } from "./format";
import { asDoc, definitions, emptyDoc, findNode, linkIndex, MODE } from "./format";
import { goldInfo, goldNames, goldUi } from "./gold";
import { pushed, redone, started, undone } from "./history";
import { makeNode } from "./make";
import { classSpec } from "./schema";
import { addPort, promotedWidgets, removePort, setPromoted } from "./subgraph";
import { setControl, setWidget, widgetsOf } from "./widgets";

const spec = (name: string) => classSpec(goldInfo, name);

function docWith(...types: string[]): Doc {
  let doc = emptyDoc();
  types.forEach((type, i) => {
    doc = addNode(doc, null, (id) => makeNode(type, id, [i * 300, 0], spec(type))).doc;
  });
  return doc;
}
const node = (doc: Doc, id: number): GNode => findNode(doc, id) as GNode;

/** Slots that name a link which is not there or which names another place. */
function dangling(doc: Doc): string[] {
  const found: string[] = [];
  for (const graph of [doc, ...definitions(doc)]) {
    const links = linkIndex(graph);
    for (const n of graph.nodes) {
      n.inputs?.forEach((slot) => {
        if (slot.link != null && String(links.get(String(slot.link))?.target_id) !== String(n.id)) found.push(`in ${n.id} ${slot.name}`);
      });
      n.outputs?.forEach((slot, at) =>
        (slot.links ?? []).forEach((l) => {
          const link = links.get(String(l));
          if (String(link?.origin_id) !== String(n.id) || link?.origin_slot !== at) found.push(`out ${n.id} ${at} ${l}`);
        }),
      );
    }
  }
  return found;
}
const checkLinks = (doc: Doc): void => expect(dangling(doc)).toEqual([]);

describe("the document", () => {
  it.each(goldNames)("is kept as it came: %s", (name) => {
    const raw = goldUi(name);
    const text = JSON.stringify(raw);
    const doc = asDoc(JSON.parse(text)) as Doc;
    expect(JSON.stringify(doc)).toBe(text);
    for (const graph of [doc, ...definitions(doc)]) for (const n of graph.nodes) promotedWidgets(doc, n, goldInfo);
    expect(JSON.stringify(doc)).toBe(text);
  });

  it.each(goldNames)("changes only what an edit names: %s", (name) => {
    const doc = goldUi(name);
    const first = doc.nodes[0] as GNode;
    const moved = moveNodes(doc, null, [{ id: first.id, x: 7, y: 9 }]);
    expect({ ...moved, nodes: [] }).toEqual({ ...doc, nodes: [] });
    expect(moved.nodes.slice(1)).toEqual(doc.nodes.slice(1));
    expect(moved.nodes[0]).toEqual({ ...first, pos: [7, 9] });
  });

  it.each(goldNames)("sets every widget back to what it was without a change: %s", (name) => {
    const doc = goldUi(name);
    for (const graph of [doc, ...definitions(doc)]) {
      for (const n of graph.nodes) {
        const known = spec(n.type);
        if (!known || !Array.isArray(n.widgets_values)) continue;
        for (const w of widgetsOf(n, known)) {
          if (w.index >= n.widgets_values.length || w.spec.role === "dynamic") continue;
          expect(setWidget(n, known, w.name, w.value)).toEqual(n);
        }
      }
    }
  });

  it("refuses what is not a document", () => {
    expect(asDoc([])).toBeNull();
    expect(asDoc({ "1": { class_type: "A" } })).toBeNull();
    expect(asDoc({ nodes: [] })).toMatchObject({ links: [] });
  });
});

describe("widgets", () => {
  it("sets values and controls in their places", () => {
    const known = spec("KSampler");
    if (!known) throw new Error("KSampler is missing");
    let n = makeNode("KSampler", 1, [0, 0], known);
    expect(n.widgets_values).toEqual([0, "randomize", 20, 8, "euler", "simple", 1]);
    n = setWidget(n, known, "steps", 5);
    n = setControl(n, known, "seed", "increment");
    expect(n.widgets_values).toEqual([0, "increment", 5, 8, "euler", "simple", 1]);
  });

  it("fills a list that was cut short", () => {
    const known = spec("KSampler");
    if (!known) throw new Error("KSampler is missing");
    const n = { ...makeNode("KSampler", 1, [0, 0], known), widgets_values: [9] };
    expect(setWidget(n, known, "cfg", 3).widgets_values).toEqual([9, "randomize", 20, 3]);
  });

  it("reads by name where the file names its widgets, as the server does", () => {
    const input = {
      required: { name: [["x", "y"]], seed: ["INT", {}] },
      optional: {
        gb: ["FLOAT", { default: 4 }],
        eject_models: ["BOOLEAN", { default: true }],
        retention: [["auto", "keep"], { default: "auto" }],
        keep_loaded: ["BOOLEAN", { forceInput: true }],
      },
    };
    const known = classSpec({ Spread: { name: "Spread", input, output: ["MODEL"] } } as unknown as ObjectInfo, "Spread");
    if (!known) throw new Error("Spread is missing");
    const stored = (values: unknown, slots: string[], named?: Record<string, unknown>): GNode => ({
      id: 1,
      type: "Spread",
      pos: [0, 0],
      widgets_values: values,
      ...(named ? { widgets_values_named: named } : {}),
      inputs: slots.map((name) => ({ name, type: "*", link: null, widget: { name } })),
    });
    const shown = (node: GNode) => Object.fromEntries(widgetsOf(node, known).map((w) => [w.name, w.value]));
    const old = { name: "y", seed: 7, gb: 2.5, eject_models: true, retention: "auto", keep_loaded: false };
    const before = stored(["y", 7, "fixed", 2.5, false], ["name", "seed", "gb", "keep_loaded"]);
    expect(shown(before)).toEqual(old);
    expect(widgetsOf(before, known).find((w) => w.name === "seed")?.control).toBe("fixed");
    // In another order, and by values with names of their own.
    expect(shown(stored([false, 7, "fixed", "y", 2.5], ["keep_loaded", "seed", "name", "gb"]))).toEqual(old);
    expect(shown(stored(["y", 7, "fixed", 2.5, false], [], { name: "y", seed: 7, gb: 2.5, keep_loaded: false }))).toEqual(old);
    // Names that say what the positions say, and none at all.
    const now = { name: "y", seed: 7, gb: 2.5, eject_models: false, retention: "keep" };
    for (const slots of [["name", "seed", "gb", "eject_models", "retention"], ["seed"], []]) {
      expect(shown(stored(["y", 7, "fixed", 2.5, false, "keep"], slots))).toEqual(now);
    }
    // What the file has is changed in its place, what it lacks is added with its name.
    const kept = setWidget(before, known, "keep_loaded", true);
    expect(kept.widgets_values).toEqual(["y", 7, "fixed", 2.5, true]);
    const edited = setWidget(setWidget(kept, known, "gb", 3), known, "retention", "keep");
    expect(edited.widgets_values).toEqual(["y", 7, "fixed", 3, true, "keep"]);
    expect(shown(edited)).toEqual({ ...old, gb: 3, retention: "keep", keep_loaded: true });
  });

  it("lays the list out anew when a dynamic choice changes", () => {
    const known = spec("ResizeImageMaskNode");
    if (!known) throw new Error("ResizeImageMaskNode is missing");
    const n = setWidget(makeNode("ResizeImageMaskNode", 1, [0, 0], known), known, "resize_type", "scale dimensions");
    expect(widgetsOf(n, known).map((w) => w.name)).toEqual(["resize_type", "resize_type.width", "resize_type.height", "resize_type.crop", "scale_method"]);
    expect(n.widgets_values).toEqual(["scale dimensions", 512, 512, "center", "area"]);
  });
});

describe("links", () => {
  it("connects, replaces and disconnects", () => {
    let doc = docWith("CheckpointLoaderSimple", "CheckpointLoaderSimple", "KSampler");
    doc = connect(doc, null, { node: 1, slot: 0 }, { node: 3, key: "model" }, goldInfo);
    checkLinks(doc);
    expect(doc.links).toEqual([[1, 1, 0, 3, 0, "MODEL"]]);
    doc = connect(doc, null, { node: 2, slot: 0 }, { node: 3, key: "model" }, goldInfo);
    checkLinks(doc);
    expect(doc.links).toEqual([[2, 2, 0, 3, 0, "MODEL"]]);
    expect(node(doc, 1).outputs?.[0]?.links).toEqual([]);
    doc = disconnect(doc, null, [2]);
    expect(doc.links).toEqual([]);
    expect(node(doc, 3).inputs?.[0]?.link).toBeNull();
  });

  it("refuses wrong types, itself and circles", () => {
    let doc = docWith("CheckpointLoaderSimple", "KSampler", "LatentUpscale");
    expect(refusal(doc, null, { node: 1, slot: 1 }, { node: 2, key: "model" }, goldInfo)).toMatch(/does not fit/);
    expect(refusal(doc, null, { node: 1, slot: 0 }, { node: 2, key: "model" }, goldInfo)).toBeNull();
    expect(refusal(doc, null, { node: 2, slot: 0 }, { node: 2, key: "latent_image" }, goldInfo)).toMatch(/itself/);
    doc = connect(doc, null, { node: 2, slot: 0 }, { node: 3, key: "samples" }, goldInfo);
    expect(refusal(doc, null, { node: 3, slot: 0 }, { node: 2, key: "latent_image" }, goldInfo)).toMatch(/loop/);
  });

  it("turns a widget into an input by connecting, in files that store no slot for it", () => {
    let doc = docWith("PrimitiveInt", "KSampler");
    doc = { ...doc, nodes: doc.nodes.map((n) => (n.id === 2 ? { ...n, inputs: (n.inputs ?? []).filter((i) => !i.widget) } : n)) };
    doc = connect(doc, null, { node: 1, slot: 0 }, { node: 2, key: "steps" }, goldInfo);
    checkLinks(doc);
    expect(node(doc, 2).inputs?.at(-1)).toEqual({ name: "steps", type: "INT", widget: { name: "steps" }, link: 1 });
    expect(node(doc, 2).widgets_values).toEqual([0, "randomize", 20, 8, "euler", "simple", 1]);
  });

  it("lets a primitive take over the value it feeds", () => {
    let doc = docWith("PrimitiveNode", "KSampler");
    expect(refusal(doc, null, { node: 1, slot: 0 }, { node: 2, key: "model" }, goldInfo)).toMatch(/primitive/);
    doc = connect(doc, null, { node: 1, slot: 0 }, { node: 2, key: "steps" }, goldInfo);
    expect(node(doc, 1)).toMatchObject({ title: "steps", widgets_values: [20, "fixed"], outputs: [{ type: "INT", widget: { name: "steps" }, links: [1] }] });
  });

  it("carries types through reroutes", () => {
    let doc = docWith("CheckpointLoaderSimple", "Reroute", "Reroute", "KSampler");
    doc = connect(doc, null, { node: 2, slot: 0 }, { node: 3, key: "" }, goldInfo);
    doc = connect(doc, null, { node: 1, slot: 1 }, { node: 2, key: "" }, goldInfo);
    expect(node(doc, 3).outputs?.[0]?.type).toBe("CLIP");
    expect(refusal(doc, null, { node: 3, slot: 0 }, { node: 4, key: "model" }, goldInfo)).toMatch(/does not fit/);
  });

  it("grows inputs that take any number", () => {
    let doc = docWith("LoadImage", "LoadImage", "BatchImagesNode");
    expect(node(doc, 3).inputs?.map((i) => i.name)).toEqual(["images.image0", "images.image1"]);
    doc = connect(doc, null, { node: 1, slot: 0 }, { node: 3, key: "images.image0" }, goldInfo);
    doc = connect(doc, null, { node: 2, slot: 0 }, { node: 3, key: "images.image1" }, goldInfo);
    expect(node(doc, 3).inputs?.map((i) => i.name)).toEqual(["images.image0", "images.image1", "images.image2"]);
  });
});

describe("nodes", () => {
  it("removes nodes with their links, in every golden file", () => {
    for (const name of goldNames) {
      const doc = goldUi(name);
      // A few files come with slots that name lost links; removing must not add any.
      const before = new Set(dangling(doc));
      for (const n of doc.nodes.slice(0, 6)) expect(dangling(removeNodes(doc, null, [n.id])).filter((d) => !before.has(d))).toEqual([]);
    }
  });

  it("mutes, bypasses, collapses and renames, and back", () => {
    let doc = docWith("KSampler");
    doc = toggleMode(doc, null, [1], MODE.bypass);
    expect(node(doc, 1).mode).toBe(4);
    doc = toggleMode(doc, null, [1], MODE.bypass);
    expect(node(doc, 1).mode).toBe(0);
    expect(node(toggleCollapsed(doc, null, [1]), 1).flags).toEqual({ collapsed: true });
    doc = renameNode(doc, null, 1, "Mine");
    expect(node(doc, 1).title).toBe("Mine");
    expect(node(renameNode(doc, null, 1, ""), 1)).not.toHaveProperty("title");
  });
});

describe("copy and paste", () => {
  it("gives new ids and keeps the links inside the selection", () => {
    let doc = docWith("CheckpointLoaderSimple", "CLIPTextEncode", "KSampler");
    doc = connect(doc, null, { node: 1, slot: 1 }, { node: 2, key: "clip" }, goldInfo);
    doc = connect(doc, null, { node: 2, slot: 0 }, { node: 3, key: "positive" }, goldInfo);
    const clip = readClip(JSON.stringify(copyNodes(doc, null, [2, 3])));
    if (!clip) throw new Error("the clip is unreadable");
    const pasted = pasteClip(doc, null, clip, [1000, 500]);
    checkLinks(pasted.doc);
    expect(pasted.ids).toEqual([4, 5]);
    expect(node(pasted.doc, 4)).toMatchObject({ pos: [1000, 500], inputs: [{ name: "clip", link: null }, { name: "text" }], outputs: [{ links: [3] }] });
    expect(pasted.doc.last_node_id).toBe(5);
    expect(pasted.doc.links).toHaveLength(3);
  });

  it("takes text that is no clip for none", () => {
    expect(readClip("hello")).toBeNull();
    expect(readClip('{"nodes": []}')).toBeNull();
    expect(readClip("{broken")).toBeNull();
  });

  it("pastes a sub-graph into another document, but never into itself", () => {
    const name = "01_get_started_text_to_image";
    const doc = goldUi(name);
    const def = definitions(doc)[0] as Definition;
    const clip = copyNodes(doc, null, [83]);
    const into = pasteClip(emptyDoc(), null, clip, [0, 0]);
    expect(definitions(into.doc)).toEqual([def]);
    expect(into.doc.last_node_id).toBeGreaterThan(34);
    expect(pasteClip(doc, def.id, clip, [0, 0]).doc).toBe(doc);
  });
});

describe("sub-graphs", () => {
  const doc = goldUi("01_get_started_text_to_image");
  const def = definitions(doc)[0] as Definition;

  it("shows inner widgets on the instance and writes them inside", () => {
    const widgets = promotedWidgets(doc, node(doc, 83), goldInfo);
    expect(widgets.map((w) => w.key)).toEqual(["27.text", "13.height", "13.width", "3.seed"]);
    const height = widgets[1];
    if (!height) throw new Error("no height");
    const changed = setPromoted(doc, null, 83, height, 512, goldInfo);
    expect(findNode(definitions(changed)[0] as Definition, 13)?.widgets_values).toEqual([1024, 512, 1]);
    expect(node(changed, 83)).toBe(node(doc, 83));
  });

  it("adds a port, connects it, and takes it away again", () => {
    const added = addPort(doc, def.id, "inputs", "steps", "INT", true);
    expect(added.at).toBe(0);
    expect(node(added.doc, 83).inputs).toEqual([{ name: "steps", type: "INT", link: null, widget: { name: "steps" } }]);
    const linked = connect(added.doc, def.id, { node: -10, slot: 0 }, { node: 3, key: "steps" }, goldInfo);
    const port = (definitions(linked)[0] as Definition).inputs[0];
    expect(port?.linkIds).toHaveLength(1);
    const gone = removePort(linked, def.id, "inputs", 0);
    expect((definitions(gone)[0] as Definition).inputs).toEqual([]);
    expect(node(gone, 83).inputs).toEqual([]);
    checkLinks(gone);
  });

  it("finds the values of every instance in the golden files", () => {
    let instances = 0;
    for (const name of goldNames) {
      const d = goldUi(name);
      for (const graph of [d, ...definitions(d)]) {
        for (const n of graph.nodes) if (definitions(d).some((x) => x.id === n.type)) instances += promotedWidgets(d, n, goldInfo).length;
      }
    }
    expect(instances).toBeGreaterThan(50);
  });
});

describe("undo", () => {
  it("goes back and forth, joins typing, and forgets the future on a new edit", () => {
    let h = started("a");
    h = pushed(h, "b");
    h = pushed(h, "bc", "typing");
    h = pushed(h, "bcd", "typing");
    expect(undone(h).present).toBe("b");
    expect(redone(undone(h)).present).toBe("bcd");
    expect(undone(undone(undone(h))).present).toBe("a");
    const other = pushed(undone(h), "x");
    expect(redone(other).present).toBe("x");
    for (let i = 0; i < 500; i++) h = pushed(h, String(i));
    expect(h.past.length).toBe(200);
  });
});
