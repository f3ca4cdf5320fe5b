// Apps survive saving and loading, and bad files are refused with a sentence.
import { describe, expect, it } from "vitest";
import { type AppFile, AppFileError, cleanName, freeName, isAppFile, nameFromFile, proposedName, readApp, UNTITLED_APP } from "./appFile";
import { fieldsOf, valuesOf } from "./fields";
import { defaultForm, rename } from "./form";
import { apiOf, info, txt2img, uiOf } from "./samples";
import { firstCheckpoint, starterApp, starters } from "./starters";

function sample(): AppFile {
  const prompt = apiOf("01_get_started_text_to_image");
  const workflow = uiOf("01_get_started_text_to_image");
  const fields = fieldsOf(prompt, info);
  return {
    kind: "fresco-app",
    version: 1,
    name: "Billboards",
    about: "",
    prompt,
    workflow,
    form: rename(defaultForm(fields, workflow), "83:27/text", "Words"),
    values: valuesOf(prompt, fields),
    thumbnail: { filename: "a_00001_.png", subfolder: "", type: "output" },
  };
}

describe("an app's file", () => {
  it("is the same after a round trip", () => {
    expect(readApp(JSON.parse(JSON.stringify(sample())))).toEqual(sample());
    expect(isAppFile(JSON.parse(JSON.stringify(sample())))).toBe(true);
    expect(isAppFile(txt2img())).toBe(false);
  });

  it("is refused with a sentence where it cannot run", () => {
    expect(() => readApp({})).toThrow(AppFileError);
    expect(() => readApp([1])).toThrow("not a Fresco app");
    expect(() => readApp({ ...sample(), version: 2 })).toThrow("newer Fresco");
    expect(() => readApp({ ...sample(), prompt: { 1: {} } })).toThrow("no workflow");
  });

  it("loses only what is damaged in its form", () => {
    const damaged = {
      ...sample(),
      name: "../../x",
      form: { shown: [1, { key: 5 }, { key: "83:27/text" }], seeds: { a: "sometimes" } },
      thumbnail: { filename: "x", type: "etc" },
      values: [],
    };
    expect(readApp(damaged)).toMatchObject({ name: "x", form: { shown: [{ key: "83:27/text" }], seeds: {}, more: true }, thumbnail: null, values: {} });
  });
});

describe("names", () => {
  it("hold nothing a path could be made of", () => {
    expect(cleanName("../a/b\\c:d*e?.json")).toBe("a b c d e .json");
    expect(cleanName("  ~draft  ")).toBe("draft");
    expect(cleanName("\u0007\n")).toBe("");
    expect(cleanName("Ünïcode 日本 🎨")).toBe("Ünïcode 日本 🎨");
    expect(cleanName("x".repeat(200))).toHaveLength(60);
  });

  it("are never taken twice, whatever their case", () => {
    expect(freeName("Cats", [])).toBe("Cats");
    expect(freeName("Cats", ["cats", "Cats 2"])).toBe("Cats 3");
    expect(freeName("Cats 2", ["Cats 2"])).toBe("Cats 3");
    expect(freeName("", [])).toBe("App");
  });

  it("come from files without the counter of the saving node", () => {
    expect(nameFromFile("ComfyUI_00012_.png")).toBe("ComfyUI");
    expect(nameFromFile("Cats.fresco-app.json")).toBe("Cats");
    expect(nameFromFile("my_great_flow.json")).toBe("my great flow");
  });
});

describe("starters", () => {
  const here = structuredClone(info);
  here.CheckpointLoaderSimple!.input.required!.ckpt_name = [["big.safetensors", "fresco-starter.safetensors"], {}];

  it("prefer Fresco's own model", () => {
    expect(firstCheckpoint(here)).toBe("fresco-starter.safetensors");
    expect(starterApp("words", info)).toBeNull();
    expect(starterApp("nothing", here)).toBeNull();
  });

  it.each(starters.map((s) => s.id))("%s is a sound app of known nodes and fields", (id) => {
    const app = starterApp(id, here)!;
    expect(readApp(JSON.parse(JSON.stringify(app)))).toEqual(app);
    const keys = new Set(fieldsOf(app.prompt, here).map((f) => f.key));
    for (const { key } of app.form.shown) expect(keys).toContain(key);
    for (const node of Object.values(app.prompt)) expect(here[node.class_type]).toBeDefined();
  });
});

it("proposes a name: the app's own, or how its prompt begins", () => {
  const prompt = {
    "1": { class_type: "CLIPTextEncode", inputs: { text: "a red apple, on a wooden table at night", clip: ["4", 1] } },
    "2": { class_type: "KSampler", inputs: { positive: ["1", 0], seed: 1, model: ["4", 0] } },
  };
  expect(proposedName({ name: "Cups", prompt })).toBe("Cups");
  expect(proposedName({ name: UNTITLED_APP, prompt })).toBe("A red apple, on a");
  expect(proposedName({ name: UNTITLED_APP, prompt: {} })).toBe("");
});
