// What is loaded beside a model, and the graphs that families get.
import { describe, expect, it } from "vitest";
import type { ApiPrompt, FileRef } from "../api/types";
import { buildPrompt, NODE } from "./build";
import { type Kit, kitFrom, NeedsFile } from "./kit";
import { guessed, recipeFor } from "./recipes";
import { type CreateValues, defaultValues, valuesFrom } from "./values";

const picture: FileRef = { filename: "a.png", subfolder: "", type: "input" };
const FILES: Record<string, string[]> = {
  text_encoders: [
    "clip_l.safetensors",
    "clip_g.safetensors",
    "t5xxl_fp16.safetensors",
    "qwen_3_4b.safetensors",
    "qwen_2.5_vl_7b.safetensors",
    "qwen3vl_8b_int8_convrot.safetensors",
    "qwen3vl_4b.safetensors",
    "qwen_3_06b_base.safetensors",
    "mistral_3_small_flux2_fp8.safetensors",
    "gemma_2_2b_fp16.safetensors",
    "ovis_2.5.safetensors",
    "llama_3.1_8b_instruct.safetensors",
    "gemma_3_4b_it_bf16.safetensors",
    "jina_clip_v2_bf16.safetensors",
    "qwen_2.5_vl_omnigen2_3b.safetensors",
    "byt5_small_glyphxl_fp16.safetensors",
    "pile_t5xl_fp16.safetensors",
  ],
  vae: [
    "ae.safetensors",
    "flux2-vae.safetensors",
    "qwen_image_vae.safetensors",
    "qwen_image_2.1_vae_bf16.safetensors",
    "pixel_space",
    "hunyuan_image_2.1_vae_fp16.safetensors",
    "sdxl_vae.safetensors",
    "vae-ft-mse-840000-ema-pruned.safetensors",
  ],
};
const models = (folder: string) => FILES[folder] ?? [];

function kit(family: string, name: string, parts: string[] = ["diffusion"]): Kit {
  return kitFrom("diffusion_models", recipeFor(family, name), parts, models);
}

function values(model: string, patch: Partial<CreateValues> = {}): CreateValues {
  return { ...defaultValues(model), prompt: "a red apple", negative: "blurry", seed: 7, ...patch };
}

/** Every link leads to a node that is there. */
function linksHold(prompt: ApiPrompt) {
  for (const node of Object.values(prompt)) {
    for (const value of Object.values(node.inputs))
      if (Array.isArray(value)) expect(prompt[String(value[0])], `${node.class_type} -> ${value[0]}`).toBeDefined();
  }
}

describe("recipes", () => {
  it("knows files by name before the server has said what they are", () => {
    expect(guessed("flux1-dev-kontext_fp8_scaled.safetensors")).toBe("Flux.1 dev");
    expect(guessed("z_image_turbo_bf16.safetensors")).toBe("Z-Image");
    expect(guessed("sub/qwen_image_2.1_int8_convrot.safetensors")).toBe("Qwen-Image 2.1");
    expect(guessed("v1-5-pruned-emaonly.safetensors")).toBe("SD1.x");
  });

  it("tells files of one family apart by their names", () => {
    expect(recipeFor("Z-Image", "z_image_turbo_bf16.safetensors")).toMatchObject({ steps: 8, cfg: 1 });
    expect(recipeFor("Z-Image", "z_image_bf16.safetensors")).toMatchObject({ steps: 25, cfg: 4 });
    expect(recipeFor("Flux.2 klein", "flux-2-klein-base-4b.safetensors").steps).toBe(20);
    expect(recipeFor("something new", "x.safetensors")).toMatchObject({ home: 512, latent: "EmptyLatentImage" });
  });
});

describe("kits", () => {
  it("finds what each family needs", () => {
    expect(kit("Flux.1 dev", "flux1-dev.safetensors")).toMatchObject({ encoders: ["clip_l.safetensors", "t5xxl_fp16.safetensors"], vae: "ae.safetensors" });
    expect(kit("SD3.5", "sd3.5_large.safetensors", ["diffusion", "vae"])).toMatchObject({ encoders: { length: 3 }, vae: null });
    expect(kit("Qwen-Image 2.1", "qwen_image_2.1.safetensors")).toMatchObject({
      encoders: ["qwen3vl_8b_int8_convrot.safetensors"],
      vae: "qwen_image_2.1_vae_bf16.safetensors",
    });
    expect(kit("SDXL", "sdxl.safetensors", ["diffusion", "text", "vae"])).toMatchObject({ encoders: [], vae: null });
    expect(kit("HunyuanDiT 1.2", "hunyuan_dit_1.2.safetensors", ["diffusion", "text", "vae"])).toMatchObject({ encoders: [], vae: null });
    expect(kit("PixArt Sigma", "pixart_sigma.safetensors")).toMatchObject({ encoders: ["t5xxl_fp16.safetensors"], vae: "sdxl_vae.safetensors" });
    expect(kit("HunyuanImage 2.1", "hunyuanimage2.1.safetensors")).toMatchObject({
      encoders: ["qwen_2.5_vl_7b.safetensors", "byt5_small_glyphxl_fp16.safetensors"],
    });
  });

  it("says which file is missing and where it goes", () => {
    const none = () => kitFrom("diffusion_models", recipeFor("Z-Image", "z_image.safetensors"), ["diffusion"], () => []);
    expect(none).toThrow(NeedsFile);
    expect(none).toThrow(/qwen_3_4b\.safetensors.*models\/text_encoders/);
  });

  it("makes a graph for every family whose links hold and that can be read back", () => {
    const families = [
      "Flux.1 dev",
      "Flux.1 schnell",
      "Flux.2",
      "Flux.2 klein",
      "FLUX.3 klein",
      "Chroma",
      "Chroma Radiance",
      "Z-Image",
      "Lumina 2",
      "Qwen-Image",
      "Qwen-Image 2.1",
      "Krea 2",
      "Anima",
      "Ovis-Image",
      "HiDream",
      "NewBie",
      "OmniGen 2",
      "Kandinsky 5",
      "HunyuanImage 2.1",
      "HunyuanImage 2.1 distilled",
      "AuraFlow",
      "PixArt Alpha",
      "PixArt Sigma",
      "SD3.5",
    ];
    for (const family of families) {
      const name = `${family}.safetensors`;
      const recipe = recipeFor(family, name);
      const v = values(name, { cfg: recipe.cfg, steps: recipe.steps });
      const prompt = buildPrompt(v, kit(family, name, family === "SD3.5" ? ["diffusion", "vae"] : undefined));
      linksHold(prompt);
      expect(prompt[NODE.model]?.class_type).toBe("UNETLoader");
      expect(prompt[NODE.latent]?.class_type).toBe(recipe.latent);
      expect(prompt[NODE.sampler]?.inputs.cfg).toBe(recipe.distilled ? 1 : recipe.cfg);
      expect(valuesFrom(prompt)).toMatchObject({ model: name, prompt: "a red apple", cfg: recipe.cfg, steps: recipe.steps });
    }
  });

  it("lets edit models look at the picture", () => {
    const image = { image: picture, imageSize: { width: 1024, height: 1024 }, width: 1024, height: 1024, denoise: 0.6 };
    const kontext = buildPrompt(values("flux1-kontext-dev.safetensors", image), kit("Flux.1 dev", "flux1-kontext-dev.safetensors"));
    linksHold(kontext);
    expect(kontext[NODE.reference]).toMatchObject({ class_type: "ReferenceLatent" });
    expect(kontext[NODE.latent]?.class_type).toBe("EmptySD3LatentImage");
    expect(kontext[NODE.sampler]?.inputs.denoise).toBe(1);
    const qwen = buildPrompt(values("qwen_image_edit_2511.safetensors", image), kit("Qwen-Image", "qwen_image_edit_2511.safetensors"));
    linksHold(qwen);
    expect(qwen[NODE.positive]).toMatchObject({ class_type: "TextEncodeQwenImageEditPlus", inputs: { image1: [NODE.picture, 0] } });
    const plain = buildPrompt(values("flux1-dev.safetensors", image), kit("Flux.1 dev", "flux1-dev.safetensors"));
    linksHold(plain);
    expect(plain[NODE.latent]?.class_type).toBe("VAEEncode");
    expect(plain[NODE.sampler]?.inputs.denoise).toBe(0.6);
  });
});
