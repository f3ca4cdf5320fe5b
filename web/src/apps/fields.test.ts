// What becomes a field, in which group, order and words.
import { readdirSync } from "node:fs";
import { describe, expect, it } from "vitest";
import type { ApiPrompt } from "../api/types";
import { byNode, type Field, fieldsOf, keyOf, partsOf, valuesOf } from "./fields";
import { linkOf } from "./graph";
import { apiOf, controlNet, custom, hires, img2img, info, inpaint, long, lora, txt2img, unknown } from "./samples";

const shown = (prompt: ApiPrompt) => fieldsOf(prompt, info).filter((f) => f.group !== "rest");
const brief = (fields: Field[]) => fields.map((f) => `${f.group}: ${f.label} = ${f.key}`);

describe("the short form", () => {
  it("of words to picture", () => {
    expect(brief(shown(txt2img()))).toEqual([
      "prompt: Prompt = 6/text",
      "prompt: Avoid = 7/text",
      "size: Size = 5/width",
      "size: How many at once = 5/batch_size",
      "seed: Seed = 3/seed",
      "model: Model = 4/ckpt_name",
    ]);
  });

  it("follows the links, not the order of the nodes, to tell the two prompts apart", () => {
    expect(brief(shown(img2img()))).toEqual([
      "prompt: Prompt = 7/text",
      "prompt: Avoid = 6/text",
      "image: Picture = 10/image",
      "seed: Seed = 3/seed",
      "model: Model = 4/ckpt_name",
    ]);
  });

  it("keeps the sides apart through a node that has both", () => {
    const fields = shown(inpaint());
    expect(brief(fields).slice(0, 4)).toEqual(["prompt: Prompt = 6/text", "prompt: Avoid = 7/text", "image: Picture = 10/image", "image: Mask = 13/image"]);
    const crossed = inpaint();
    crossed["3"]!.inputs.positive = ["12", 1];
    crossed["3"]!.inputs.negative = ["12", 0];
    expect(brief(shown(crossed)).slice(0, 2)).toEqual(["prompt: Prompt = 7/text", "prompt: Avoid = 6/text"]);
  });

  it("goes through a ControlNet", () => {
    expect(brief(shown(controlNet()))).toEqual([
      "prompt: Prompt = 6/text",
      "prompt: Avoid = 7/text",
      "image: Picture = 40/image",
      "size: Size = 5/width",
      "size: How many at once = 5/batch_size",
      "seed: Seed = 3/seed",
      "model: Model = 4/ckpt_name",
      "model: ControlNet = 41/control_net_name",
    ]);
  });

  it("names several LoRAs and keeps each strength with its file", () => {
    expect(brief(shown(lora())).slice(-5)).toEqual([
      "model: Model = 4/ckpt_name",
      "model: LoRA = 20/lora_name",
      "model: LoRA strength = 20/strength_model",
      "model: LoRA 2 = 21/lora_name",
      "model: LoRA strength 2 = 21/strength_model",
    ]);
  });

  it("of separate noise, guider and schedule, with values held by nodes of their own", () => {
    const fields = shown(custom());
    expect(brief(fields)).toEqual([
      "prompt: Prompt = 4/value",
      "size: Width = 11/value",
      "size: Height = 12/height",
      "size: How many at once = 12/batch_size",
      "seed: Seed = 8/noise_seed",
      "model: Model = 1/unet_name",
      "model: Text encoder 1 = 2/clip_name1",
      "model: Text encoder 2 = 2/clip_name2",
      "model: VAE = 3/vae_name",
    ]);
    const width = fields.find((f) => f.label === "Width")!;
    expect([width.kind, width.min, width.step]).toEqual(["number", 16, 16]);
  });

  it("of two samplers has both seeds and both sizes", () => {
    expect(brief(shown(hires()))).toEqual([
      "prompt: Prompt = 6/text",
      "prompt: Avoid = 7/text",
      "size: Size = 5/width",
      "size: Size 2 = 30/width",
      "size: How many at once = 5/batch_size",
      "seed: Seed = 3/seed",
      "seed: Seed 2 = 31/seed",
      "model: Model = 4/ckpt_name",
    ]);
  });

  it("tells equal fields apart by the titles somebody gave their nodes", () => {
    const prompt = hires();
    prompt["3"]!._meta = { title: "First pass" };
    prompt["31"]!._meta = { title: "Second pass" };
    expect(
      shown(prompt)
        .filter((f) => f.group === "seed")
        .map((f) => f.label),
    ).toEqual(["Seed (First pass)", "Seed (Second pass)"]);
  });

  it("of nodes it does not know guesses from names and values", () => {
    const fields = fieldsOf(unknown(), info);
    expect(brief(fields.filter((f) => f.group !== "rest")).slice(0, 5)).toEqual([
      "prompt: Prompt = 6/text",
      "prompt: Avoid = 7/text",
      "size: Size = 5/width",
      "size: How many at once = 5/batch_size",
      "seed: Seed = 50/seed",
    ]);
    expect(fields.filter((f) => f.node === "50" && f.group === "rest").map((f) => `${f.label} ${f.kind}`)).toEqual([
      "Strength number",
      "Fast switch",
      "Mode line",
    ]);
  });

  it("does not take a zeroed prompt for a negative one", () => {
    const prompts = fieldsOf(apiOf("01_get_started_text_to_image"), info).filter((f) => f.group === "prompt");
    expect(prompts.map((f) => [f.key, f.role, f.label])).toEqual([["83:27/text", "positive", "Prompt"]]);
  });

  it("takes a text that asks for nothing as one of the rest", () => {
    const prompt = txt2img();
    prompt["70"] = { class_type: "StringConcatenate", inputs: { string_a: "a", string_b: "b", delimiter: " " } };
    prompt["71"] = { class_type: "PreviewAny", inputs: { source: ["70", 0] } };
    expect(
      fieldsOf(prompt, info)
        .filter((f) => f.node === "70")
        .map((f) => f.group),
    ).toEqual(["rest", "rest", "rest"]);
    // The same text in front of a text encoder is a prompt.
    prompt["6"]!.inputs.text = ["70", 0];
    expect(
      shown(prompt)
        .slice(0, 3)
        .map((f) => f.label),
    ).toEqual(["Prompt: string a", "Prompt: string b", "Avoid"]);
  });

  it("leaves out what no output needs, and a seed nobody reads", () => {
    const prompt = txt2img();
    prompt["60"] = { class_type: "LoadImage", inputs: { image: "unused.png" } };
    prompt["3"] = { class_type: "KSamplerAdvanced", inputs: { ...prompt["3"]!.inputs, add_noise: "disable", noise_seed: 1 } };
    delete prompt["3"]!.inputs.seed;
    const fields = fieldsOf(prompt, info);
    expect(fields.some((f) => f.node === "60")).toBe(false);
    expect(fields.find((f) => f.key === "3/noise_seed")!.group).toBe("rest");
  });
});

describe("every field", () => {
  const names = readdirSync(new URL("../../../tests/gold/ui2api/", import.meta.url))
    .filter((n) => n.endsWith(".api.json"))
    .map((n) => n.slice(0, -9));

  it.each(names)("of %s is a plain value of a node, once", (name) => {
    const prompt = apiOf(name);
    for (const node of Object.values(prompt)) node.inputs ??= {};
    const fields = fieldsOf(prompt, info);
    const keys = fields.flatMap((f) => f.inputs.map((input) => keyOf(f.node, input)));
    expect(new Set(keys).size).toBe(keys.length);
    for (const key of keys) {
      const { node, input } = partsOf(key);
      expect(input in prompt[node]!.inputs && !linkOf(prompt[node]!.inputs[input])).toBe(true);
    }
    const labels = fields.filter((f) => f.group !== "rest").map((f) => f.label);
    expect(new Set(labels).size).toBe(labels.length);
  });

  it("of a workflow with a size in one node is one field for both sides", () => {
    const field = fieldsOf(txt2img(), info).find((f) => f.kind === "size")!;
    expect(field.inputs).toEqual(["width", "height"]);
    expect([field.min, field.max, field.step]).toEqual([16, 16384, 8]);
    expect(valuesOf(txt2img(), [field])).toEqual({ "5/width": 512, "5/height": 768 });
  });
});

describe("the rest", () => {
  it("is folded by node, the sampler first and saving last", () => {
    const rest = fieldsOf(hires(), info).filter((f) => f.group === "rest");
    expect(byNode(rest, info).map((n) => `${n.title}: ${n.fields.map((f) => f.label).join(", ")}`)).toEqual([
      "KSampler: Steps, Guidance, Sampler, Scheduler, How much to change",
      "KSampler 2: Steps, Guidance, Sampler, Scheduler, How much to change",
      "Upscale Latent: Scaling method, Crop",
      "Save Image: File name",
    ]);
  });

  it("of 500 nodes is found without recursion", () => {
    const fields = fieldsOf(long(500), info);
    expect(
      byNode(
        fields.filter((f) => f.group === "rest"),
        info,
      ).length,
    ).toBeGreaterThan(490);
  });
});

describe("two-sided guiders", () => {
  it("take words that are also the negative ones as negative", () => {
    const prompts = fieldsOf(apiOf("image_omnigen2_image_edit"), info).filter((f) => f.group === "prompt");
    expect(prompts.map((f) => f.label)).toEqual(["Prompt", "Avoid"]);
  });
});
