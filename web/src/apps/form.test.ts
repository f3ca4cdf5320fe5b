// The form: what it starts with, how it is edited, and which seeds are drawn anew.
import { describe, expect, it } from "vitest";
import { fieldsOf, valuesOf } from "./fields";
import { defaultForm, drawSeeds, move, nodeAt, rename, resolve, setSeedMode, setShown, shownLimit } from "./form";
import { apiOf, hires, info, long, txt2img, uiOf } from "./samples";

const fields = fieldsOf(txt2img(), info);
const form = defaultForm(fields, null);
const keys = (f: typeof form) => f.shown.map((entry) => entry.key);

describe("a form", () => {
  it("starts with what people change most", () => {
    expect(keys(form)).toEqual(["6/text", "7/text", "5/width", "5/batch_size", "3/seed", "4/ckpt_name"]);
    expect(form.seeds).toEqual({ "3/seed": "random" });
  });

  it("stays short for a workflow with many main fields", () => {
    const prompt = long(10);
    for (let i = 0; i < 60; i += 1) {
      prompt[`9${i}`] = { class_type: "LoadImage", inputs: { image: "a.png" } };
      prompt[`8${i}`] = { class_type: "PreviewImage", inputs: { images: [`9${i}`, 0] } };
    }
    const many = fieldsOf(prompt, info);
    const short = defaultForm(many, null);
    expect(short.shown.length).toBe(shownLimit);
    expect(resolve(short, many).rest.length).toBe(many.length - shownLimit);
  });

  it("shows a field where the first order has it, and hides it", () => {
    const less = setShown(form, fields, "7/text", false);
    expect(keys(less)).not.toContain("7/text");
    expect(keys(setShown(less, fields, "7/text", true))).toEqual(keys(form));
    expect(keys(setShown(form, fields, "3/steps", true)).at(-1)).toBe("3/steps");
    expect(setShown(form, fields, "6/text", true)).toBe(form);
  });

  it("renames and moves within its bounds", () => {
    expect(resolve(rename(form, "6/text", "What to draw"), fields).shown[0]).toMatchObject({ label: "What to draw", ownLabel: true });
    expect(resolve(rename(rename(form, "6/text", "x"), "6/text", ""), fields).shown[0]!.label).toBe("Prompt");
    expect(keys(move(form, "6/text", 1)).slice(0, 2)).toEqual(["7/text", "6/text"]);
    expect(keys(move(form, "6/text", -1))).toEqual(keys(form));
    expect(keys(move(form, "4/ckpt_name", 5))).toEqual(keys(form));
  });

  it("leaves out fields that the workflow no longer has", () => {
    const old = { ...form, shown: [{ key: "99/gone" }, ...form.shown, { key: "6/text" }] };
    expect(resolve(old, fields).shown.map((f) => f.key)).toEqual(keys(form));
  });
});

describe("seeds", () => {
  it("are drawn within their limits unless they are fixed", () => {
    const two = fieldsOf(hires(), info);
    const both = defaultForm(two, null);
    const values = valuesOf(hires(), two);
    const drawn = drawSeeds(values, setSeedMode(both, "31/seed", "fixed"), two, () => 0.5);
    expect(drawn["3/seed"]).toBe(2 ** 49);
    expect(drawn["31/seed"]).toBe(43);
    expect(values["3/seed"]).toBe(42);
    expect(Number.isSafeInteger(drawSeeds(values, both, two, () => 0.9999999999999999)["3/seed"])).toBe(true);
  });

  it("follow what the editor's file says, also inside sub-graphs", () => {
    const workflow = uiOf("01_get_started_text_to_image");
    const found = nodeAt(workflow, "83:3");
    expect(found?.type).toBe("KSampler");
    const stored = found!.widgets_values as unknown[];
    stored[stored.findIndex((v) => v === "randomize" || v === "fixed")] = "fixed";
    const inner = fieldsOf(apiOf("01_get_started_text_to_image"), info);
    expect(defaultForm(inner, workflow).seeds).toEqual({ "83:3/seed": "fixed" });
    expect(nodeAt(workflow, "83:999")).toBeNull();
    expect(nodeAt(null, "1")).toBeNull();
  });
});
