import { beforeEach, describe, expect, it } from "vitest";
import { COMMANDS, keysOf } from "./commands";
import { cleanName, defaultDoc } from "./files";
import { emptyDoc, findNode, type Doc } from "./format";
import { goldInfo, goldUi } from "./gold";
import { stepped, takeNumber } from "./numbers";
import { fileFrom, resultFiles, resultText } from "./pictures";
import { plainSpec } from "./rows";
import { problemsOf } from "./run";
import { flatId, isDirty, nodeAt, selection, theDoc, useGraph } from "./store";
import { renameNode, setStored } from "./edits";

const spec = (kind: "int" | "float", options: Record<string, unknown>) => ({ ...plainSpec("x", kind), options });

describe("numbers", () => {
  it("are kept in range and rounded as the class asks", () => {
    expect(takeNumber(spec("int", { min: 1, max: 10 }), "3.6")).toBe(4);
    expect(takeNumber(spec("int", { min: 1, max: 10 }), "99")).toBe(10);
    expect(takeNumber(spec("float", { round: 0.01 }), "1.23456")).toBe(1.23);
    expect(takeNumber(spec("float", {}), "0,5")).toBe(0.5);
    expect(takeNumber(spec("float", {}), "abc")).toBeUndefined();
    expect(takeNumber(spec("int", {}), " ")).toBeUndefined();
  });

  it("go by steps without rubbish behind the point", () => {
    expect(stepped(spec("float", { step: 0.1 }), 0.2, 1)).toBe(0.3);
    expect(stepped(spec("int", { step: 8, max: 64 }), 60, 1)).toBe(64);
    expect(stepped(spec("float", { step: 0.01, min: 0 }), 0, -1)).toBe(0);
  });
});

describe("pictures", () => {
  it("are found from how nodes name them", () => {
    expect(fileFrom("a.png")).toEqual({ filename: "a.png", subfolder: "", type: "input" });
    expect(fileFrom("sub/dir/a b.png [output]")).toEqual({ filename: "a b.png", subfolder: "sub/dir", type: "output" });
    expect(fileFrom("")).toBeNull();
    expect(fileFrom(3)).toBeNull();
  });

  it("are found among results, and words too", () => {
    expect(resultFiles({ images: [{ filename: "a.png", subfolder: "", type: "temp" }, 5] })).toHaveLength(1);
    expect(resultFiles(undefined)).toEqual([]);
    expect(resultText({ text: ["a", 1] })).toBe("a\n1");
  });
});

describe("names and keys", () => {
  it("make safe file names", () => {
    expect(cleanName("my flow.json")).toBe("my flow");
    expect(cleanName("../a//b:c")).toBe("a/bc");
    expect(cleanName("...")).toBe("");
  });

  it("are those the commands are written with", () => {
    const key = (k: string, mods: Partial<KeyboardEvent> = {}) => keysOf({ key: k, ctrlKey: false, metaKey: false, shiftKey: false, altKey: false, ...mods });
    expect(key("z", { ctrlKey: true })).toBe("Ctrl+Z");
    expect(key("Z", { metaKey: true, shiftKey: true })).toBe("Ctrl+Shift+Z");
    expect(key("Backspace")).toBe("Delete");
    expect(key("/")).toBe("Tab");
    expect(key("Enter", { ctrlKey: true })).toBe("Ctrl+Enter");
    expect(new Set(COMMANDS.map((c) => c.id)).size).toBe(COMMANDS.length);
    const keys = COMMANDS.flatMap((c) => c.keys ?? []);
    expect(new Set(keys).size).toBe(keys.length);
  });
});

describe("the first document", () => {
  it("draws words with the first model", () => {
    const doc = defaultDoc(goldInfo);
    expect(doc.nodes.map((n) => n.type)).toContain("KSampler");
    expect(doc.links).toHaveLength(9);
    expect(defaultDoc({})).toMatchObject({ nodes: [] });
  });
});

describe("the editor's state", () => {
  beforeEach(() => useGraph.getState().open(goldUi("01_get_started_text_to_image"), "a", true));

  it("tells saved from changed, also after undo", () => {
    expect(isDirty(useGraph.getState())).toBe(false);
    useGraph.getState().edit((d) => renameNode(d, null, 60, "X"));
    expect(isDirty(useGraph.getState())).toBe(true);
    useGraph.getState().undo();
    expect(isDirty(useGraph.getState())).toBe(false);
    useGraph.getState().redo();
    expect(findNode(theDoc(), 60)?.title).toBe("X");
  });

  it("goes into sub-graphs and out again when they are gone", () => {
    const def = theDoc().definitions?.subgraphs?.[0]?.id ?? "";
    useGraph.getState().enter({ def, node: 83 });
    expect(flatId(useGraph.getState().path, 30)).toBe("83:30");
    expect(nodeAt(theDoc(), "83:30")?.type).toBe("CLIPLoader");
    useGraph.getState().select(["30", "g0"]);
    expect(selection()).toEqual({ ids: [30], groups: [0], links: [] });
    useGraph.getState().edit((d: Doc) => ({ ...d, nodes: d.nodes.filter((n) => n.id !== 83) }));
    expect(useGraph.getState().path).toEqual([]);
  });

  it("lets go of selected nodes that are gone", () => {
    useGraph.getState().edit((d: Doc) => ({ ...d, nodes: [...d.nodes, { ...d.nodes[0]!, id: 900 }] }));
    useGraph.getState().select(["900", "60", "g0"]);
    useGraph.getState().undo();
    expect(useGraph.getState().selected).toEqual(["60", "g0"]);
  });

  it("forgets a problem once its node was changed, and only then", () => {
    const problem = { message: "bad", inputs: {} };
    useGraph.setState({ errors: { "60": problem, "83:30": problem } });
    useGraph.getState().edit((d) => renameNode(d, null, 60, "X"));
    expect(Object.keys(useGraph.getState().errors)).toEqual(["60", "83:30"]);
    useGraph.getState().edit((d) => setStored(d, null, 60, 0, "y"));
    expect(Object.keys(useGraph.getState().errors)).toEqual(["83:30"]);
    const def = theDoc().definitions?.subgraphs?.[0]?.id ?? null;
    useGraph.getState().edit((d) => setStored(d, def, 30, 0, "y"));
    expect(useGraph.getState().errors).toEqual({});
  });

  it("reads the server's answer about nodes", () => {
    const found = problemsOf({
      "3": {
        class_type: "A",
        dependent_outputs: [],
        errors: [{ type: "t", message: "Value too small", details: "steps", extra_info: { input_name: "steps" } }],
      },
      "4": { class_type: "A", dependent_outputs: [], errors: [] },
    });
    expect(found["3"]).toEqual({ message: "Value too small: steps", inputs: { steps: "Value too small: steps" } });
    expect(found["4"]?.message).toBe("This node cannot run.");
  });

  it("starts again with a new document", () => {
    useGraph.getState().open(emptyDoc(), null, false);
    expect(useGraph.getState().history.past).toEqual([]);
    expect(isDirty(useGraph.getState())).toBe(true);
  });
});
