// Values go back into the workflow, and missing models are exchanged everywhere at once.
import { describe, expect, it } from "vitest";
import type { ObjectInfo } from "../api/types";
import { applyValues, lacks, likeliest, missingGroups, substitute, plausible } from "./apply";
import { info, img2img, lora, txt2img, unknown } from "./samples";

/** The classes with some files in their lists. */
function withFiles(files: Record<string, string[]>, base: ObjectInfo = info): ObjectInfo {
  const next = structuredClone(base);
  for (const node of Object.values(next)) {
    for (const specs of [node.input.required, node.input.optional]) {
      for (const [name, spec] of Object.entries(specs ?? {})) {
        const list = files[name];
        if (list && Array.isArray(spec[0])) spec[0] = list;
        else if (list && spec[0] === "COMBO") spec[1] = { ...spec[1], options: list };
      }
    }
  }
  return next;
}

describe("values", () => {
  it("go to their nodes and leave the original alone", () => {
    const prompt = txt2img();
    const next = applyValues(prompt, { "6/text": "a harbour", "5/width": 640, "3/seed": 7 });
    expect(next["6"]!.inputs.text).toBe("a harbour");
    expect(next["5"]!.inputs).toEqual({ width: 640, height: 768, batch_size: 1 });
    expect(next["3"]!.inputs.seed).toBe(7);
    expect(next["3"]!.inputs.positive).toEqual(["6", 0]);
    expect(prompt).toEqual(txt2img());
  });

  it("never replace links, and never add nodes or inputs", () => {
    const prompt = txt2img();
    expect(applyValues(prompt, { "3/model": "x", "99/text": "x", "3/new": 1, "6/text": undefined, "5/width": 512 })).toEqual(prompt);
  });
});

describe("what is missing", () => {
  const here = withFiles({ ckpt_name: ["anime.safetensors", "v1-5-pruned.ckpt"], lora_name: ["ink-v2.safetensors"], image: ["here.png"] });

  it("is named with what would do, likeliest first", () => {
    const missing = lacks(lora(), here);
    expect(missing.models.map((m) => [m.node_id, m.wanted, m.choices])).toEqual([
      ["4", "v1-5.safetensors", ["v1-5-pruned.ckpt", "anime.safetensors"]],
      ["20", "ink.safetensors", ["ink-v2.safetensors"]],
      ["21", "glow.safetensors", ["ink-v2.safetensors"]],
    ]);
    expect(missing.nodes).toEqual([]);
  });

  it("counts pictures as files, but not those in other folders", () => {
    expect(lacks(img2img(), here).files).toEqual([{ node_id: "10", input: "image", wanted: "photo.png" }]);
    const other = img2img();
    other["10"]!.inputs.image = "made.png [output]";
    expect(lacks(other, here).files).toEqual([]);
    other["10"]!.inputs.image = "here.png";
    expect(lacks(other, here).files).toEqual([]);
  });

  it("names unknown nodes by class and title", () => {
    expect(lacks(unknown(), here).nodes).toEqual([{ id: "50", class_type: "MagicSampler", title: "Magic" }]);
  });

  it("is asked once for every node that wants the same file", () => {
    const prompt = lora();
    prompt["21"]!.inputs.lora_name = "ink.safetensors";
    const groups = missingGroups(lacks(prompt, here).models, prompt, here);
    expect(groups.map((g) => [g.wanted, g.keys])).toEqual([
      ["v1-5.safetensors", ["4/ckpt_name"]],
      ["ink.safetensors", ["20/lora_name", "21/lora_name"]],
    ]);
    expect(groups.map((g) => g.folder)).toEqual(["checkpoints", "loras"]);
    const next = applyValues(prompt, { ...substitute(groups[0]!, "anime.safetensors"), ...substitute(groups[1]!, "ink-v2.safetensors") });
    expect(lacks(next, here).models).toEqual([]);
    expect(next["21"]!.inputs.lora_name).toBe("ink-v2.safetensors");
  });
});

describe("likeliest", () => {
  it("compares the words of names, whatever their folder and ending", () => {
    expect(likeliest("SD1.5/realistic_v5.safetensors", ["abc.ckpt", "realistic-v6.gguf", "other_v5.pt"])[0]).toBe("realistic-v6.gguf");
    expect(likeliest("x", ["b", "a"])).toEqual(["b", "a"]);
  });
});

it("calls only names that are alike the closest", () => {
  expect(plausible("flux1-dev.safetensors", "fresco-starter.safetensors")).toBe(false);
  expect(plausible("flux1-dev.safetensors", "FLUX/flux1-dev-fp8.safetensors")).toBe(true);
  expect(plausible("sd_xl_base_1.0.safetensors", "sd_xl_refiner_1.0.safetensors")).toBe(false);
  expect(plausible("a.ckpt", "b.ckpt")).toBe(false);
});
