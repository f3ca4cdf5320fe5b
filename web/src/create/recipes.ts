// How each family of models is used: what is loaded beside it, where sampling starts, and the values it is at home with.
// One row a family; the server says which family a file is of.

/** Files that are loaded beside a diffusion model. */
export interface CompanionFiles {
  /** The loader, its `type`, and for each of its files a pattern of usual names. */
  node: "CLIPLoader" | "DualCLIPLoader" | "TripleCLIPLoader" | "QuadrupleCLIPLoader";
  type?: string;
  files: [pattern: RegExp, example: string][];
}

export interface Recipe {
  /** Side of the square pictures it was trained on. */
  home: number;
  steps: number;
  cfg: number;
  sampler: string;
  scheduler: string;
  /** The node that makes an empty latent. */
  latent: string;
  encoders?: CompanionFiles;
  vae?: [pattern: RegExp, example: string];
  /** Guidance goes into the model itself; there is no prompt to avoid. */
  distilled?: boolean;
  /** A node that shifts the noise levels. */
  shift?: [node: string, shift: number];
  /** Changes a picture by looking at it: the start picture goes beside the prompt. */
  edits?: "reference" | "qwen";
}

export const ORDINARY: Recipe = { home: 512, steps: 20, cfg: 7, sampler: "euler", scheduler: "normal", latent: "EmptyLatentImage" };

const XL: Partial<Recipe> = { home: 1024, cfg: 6.5 };
const FLOW: Partial<Recipe> = { home: 1024, scheduler: "simple", latent: "EmptySD3LatentImage" };
const T5: [RegExp, string] = [/t5.?xxl|t5_xxl|flan/i, "t5xxl_fp8_e4m3fn_scaled.safetensors"];
const CLIP_L: [RegExp, string] = [/clip.?l/i, "clip_l.safetensors"];
const CLIP_G: [RegExp, string] = [/clip.?g/i, "clip_g.safetensors"];
const AE: [RegExp, string] = [/(^|\/)(ae|flux.?vae|flux1.?vae)\b/i, "ae.safetensors"];
const FLUX2_VAE: [RegExp, string] = [/flux2.*vae/i, "flux2-vae.safetensors"];
const QWEN_VAE: [RegExp, string] = [/qwen_?image.*vae|wan.*2.?1.*vae/i, "qwen_image_vae.safetensors"];
const FLUX: Partial<Recipe> = { ...FLOW, cfg: 3.5, distilled: true, encoders: { node: "DualCLIPLoader", type: "flux", files: [CLIP_L, T5] }, vae: AE };
const ONE = (type: string, pattern: RegExp, example: string): CompanionFiles => ({ node: "CLIPLoader", type, files: [[pattern, example]] });
const QWEN3_4B: [RegExp, string] = [/qwen.?3.?4b/i, "qwen_3_4b.safetensors"];
const QWEN_VL: [RegExp, string] = [/qwen.?2.?5.?vl/i, "qwen_2.5_vl_7b_fp8_scaled.safetensors"];

const SD1_VAE: [RegExp, string] = [/sd.?1|ft-mse|vae-ft|kl-f8/i, "vae-ft-mse-840000-ema-pruned.safetensors"];
const SDXL_VAE: [RegExp, string] = [/sdxl.*vae|xl.?vae/i, "sdxl_vae.safetensors"];
const HUNYUAN_IMAGE: Partial<Recipe> = {
  home: 2048,
  latent: "EmptyHunyuanImageLatent",
  encoders: { node: "DualCLIPLoader", type: "hunyuan_image", files: [QWEN_VL, [/byt5/i, "byt5_small_glyphxl_fp16.safetensors"]] },
  vae: [/hunyuan.?image.*vae/i, "hunyuan_image_2.1_vae_fp16.safetensors"],
};

/** By the family the server names and, where files of one family want different values, by the file's name. The first row
 *  that fits counts. */
const ROWS: [family: RegExp, name: RegExp | null, recipe: Partial<Recipe>][] = [
  [/^SDXL/, /turbo|lightning|hyper|lcm/i, { ...XL, cfg: 1.5, steps: 6, scheduler: "sgm_uniform" }],
  [/^SDXL/, null, XL],
  [/^SD2/, null, { home: 768 }],
  [/^SD1/, /starter/i, { home: 256, cfg: 3 }],
  [/^SD1/, /turbo|lightning|hyper|lcm/i, { cfg: 1.5, steps: 6, scheduler: "sgm_uniform" }],
  [/^SD3/, /turbo/i, { ...FLOW, cfg: 1, steps: 4, encoders: { node: "TripleCLIPLoader", files: [CLIP_L, CLIP_G, T5] } }],
  [/^SD3/, null, { ...FLOW, cfg: 4.5, steps: 28, encoders: { node: "TripleCLIPLoader", files: [CLIP_L, CLIP_G, T5] } }],
  [/^Flux\.1 schnell/, null, { ...FLUX, cfg: 1, steps: 4 }],
  [/^Flux\.1/, /kontext/i, { ...FLUX, cfg: 2.5, edits: "reference" }],
  [/^Flux\.1/, null, FLUX],
  [
    /^Flux\.2 klein/,
    /base/i,
    {
      ...FLOW,
      cfg: 5,
      latent: "EmptyFlux2LatentImage",
      encoders: ONE("flux2", /qwen.?3.?(4|8)b/i, QWEN3_4B[1]),
      vae: FLUX2_VAE,
      edits: "reference",
    },
  ],
  [
    /^Flux\.2 klein/,
    null,
    {
      ...FLOW,
      cfg: 1,
      steps: 4,
      latent: "EmptyFlux2LatentImage",
      encoders: ONE("flux2", /qwen.?3.?(4|8)b/i, QWEN3_4B[1]),
      vae: FLUX2_VAE,
      edits: "reference",
    },
  ],
  [
    /^Flux\.2/,
    null,
    {
      ...FLOW,
      cfg: 4,
      distilled: true,
      latent: "EmptyFlux2LatentImage",
      encoders: ONE("flux2", /mistral/i, "mistral_3_small_flux2_fp8.safetensors"),
      vae: FLUX2_VAE,
      edits: "reference",
    },
  ],
  [
    /^FLUX\.3/,
    null,
    {
      ...FLOW,
      cfg: 3.5,
      latent: "EmptyFlux2LatentImage",
      encoders: ONE("flux3", /qwen.?3.?vl.?4b/i, "qwen3vl_4b_int8_convrot.safetensors"),
      vae: FLUX2_VAE,
      edits: "reference",
    },
  ],
  [
    /^Chroma Radiance/,
    null,
    { ...FLOW, cfg: 3, latent: "EmptyChromaRadianceLatentImage", encoders: ONE("chroma", ...T5), vae: [/pixel_space/, "pixel_space"] },
  ],
  [/^Chroma/, null, { ...FLOW, cfg: 3.5, steps: 26, encoders: ONE("chroma", ...T5), vae: AE }],
  [
    /^Z-Image/,
    /turbo/i,
    { ...FLOW, cfg: 1, steps: 8, sampler: "res_multistep", encoders: ONE("lumina2", ...QWEN3_4B), vae: AE, shift: ["ModelSamplingAuraFlow", 3] },
  ],
  [
    /^Z-Image/,
    null,
    { ...FLOW, cfg: 4, steps: 25, sampler: "res_multistep", encoders: ONE("lumina2", ...QWEN3_4B), vae: AE, shift: ["ModelSamplingAuraFlow", 3] },
  ],
  [
    /^Lumina/,
    null,
    {
      ...FLOW,
      cfg: 4,
      steps: 25,
      sampler: "res_multistep",
      encoders: ONE("lumina2", /gemma.?2/i, "gemma_2_2b_fp16.safetensors"),
      vae: AE,
      shift: ["ModelSamplingAuraFlow", 6],
    },
  ],
  [
    /^Qwen-Image 2/,
    /turbo/i,
    {
      ...FLOW,
      cfg: 1,
      steps: 8,
      encoders: ONE("qwen_image", /qwen.?3.?vl.?8b/i, "qwen3vl_8b_int8_convrot.safetensors"),
      vae: [/qwen_?image.?2.*vae/i, "qwen_image_2.1_vae_bf16.safetensors"],
    },
  ],
  [
    /^Qwen-Image 2/,
    null,
    {
      ...FLOW,
      cfg: 4,
      steps: 40,
      encoders: ONE("qwen_image", /qwen.?3.?vl.?8b/i, "qwen3vl_8b_int8_convrot.safetensors"),
      vae: [/qwen_?image.?2.*vae/i, "qwen_image_2.1_vae_bf16.safetensors"],
    },
  ],
  [/^Qwen-Image/, /edit/i, { ...FLOW, cfg: 2.5, encoders: ONE("qwen_image", ...QWEN_VL), vae: QWEN_VAE, shift: ["ModelSamplingAuraFlow", 3], edits: "qwen" }],
  [/^Qwen-Image/, null, { ...FLOW, cfg: 2.5, encoders: ONE("qwen_image", ...QWEN_VL), vae: QWEN_VAE, shift: ["ModelSamplingAuraFlow", 3.1] }],
  [/^Krea 2/, /turbo/i, { ...FLOW, cfg: 1, steps: 8, encoders: ONE("krea2", /qwen.?3.?vl.?4b/i, "qwen3vl_4b_int8_convrot.safetensors"), vae: QWEN_VAE }],
  [/^Krea 2/, null, { ...FLOW, cfg: 4.5, steps: 28, encoders: ONE("krea2", /qwen.?3.?vl.?4b/i, "qwen3vl_4b_int8_convrot.safetensors"), vae: QWEN_VAE }],
  [
    /^Anima/,
    null,
    { ...FLOW, cfg: 4, steps: 30, encoders: ONE("stable_diffusion", /qwen.?3.?0?6b|qwen_3_06b/i, "qwen_3_06b_base.safetensors"), vae: QWEN_VAE },
  ],
  [
    /^NewBie/,
    null,
    {
      ...FLOW,
      cfg: 4.5,
      steps: 28,
      sampler: "res_multistep",
      encoders: {
        node: "DualCLIPLoader",
        type: "newbie",
        files: [
          [/gemma.?3/i, "gemma_3_4b_it_bf16.safetensors"],
          [/jina/i, "jina_clip_v2_bf16.safetensors"],
        ],
      },
      vae: AE,
      shift: ["ModelSamplingAuraFlow", 6],
    },
  ],
  [
    /^OmniGen/,
    null,
    { ...FLOW, cfg: 5, encoders: ONE("omnigen2", /qwen.?2.?5.?vl.*omnigen|qwen.?2.?5.*3b/i, "qwen_2.5_vl_fp16.safetensors"), vae: AE, edits: "reference" },
  ],
  [/^Kandinsky 5/, null, { ...FLOW, cfg: 3.5, steps: 50, encoders: { node: "DualCLIPLoader", type: "kandinsky5_image", files: [QWEN_VL, CLIP_L] }, vae: AE }],
  [/^HunyuanImage 2\.1 distilled/, null, { ...FLOW, ...HUNYUAN_IMAGE, cfg: 1, steps: 8, shift: ["ModelSamplingSD3", 4] }],
  [/^HunyuanImage/, null, { ...FLOW, ...HUNYUAN_IMAGE, cfg: 3.5, steps: 50 }],
  [/^HunyuanDiT/, null, { ...XL, cfg: 6, steps: 25 }],
  [
    /^AuraFlow/,
    null,
    { ...XL, cfg: 3.5, steps: 25, sampler: "uni_pc", encoders: ONE("stable_diffusion", /pile.?t5|aura/i, "pile_t5xl_fp16.safetensors"), vae: SDXL_VAE },
  ],
  [/^PixArt Alpha/, null, { ...XL, cfg: 4.5, encoders: ONE("pixart", ...T5), vae: SD1_VAE }],
  [/^PixArt/, null, { ...XL, cfg: 4.5, encoders: ONE("pixart", ...T5), vae: SDXL_VAE }],
  [/^Stable unCLIP/, null, { home: 768 }],
  [/^Ovis/, null, { ...FLOW, cfg: 5, steps: 50, encoders: ONE("ovis", /ovis/i, "ovis_2.5.safetensors"), vae: AE }],
  [
    /^HiDream/,
    null,
    {
      ...FLOW,
      cfg: 1,
      steps: 28,
      encoders: { node: "QuadrupleCLIPLoader", files: [CLIP_L, CLIP_G, T5, [/llama/i, "llama_3.1_8b_instruct_fp8_scaled.safetensors"]] },
      vae: AE,
      shift: ["ModelSamplingSD3", 3],
    },
  ],
];

/** Names that say what a file is before the server has looked into it. The first that fits counts. */
const NAMES: [RegExp, string][] = [
  [/flux.?3/i, "FLUX.3 klein"],
  [/flux.?2.?klein|klein/i, "Flux.2 klein"],
  [/flux.?2/i, "Flux.2"],
  [/radiance/i, "Chroma Radiance"],
  [/chroma/i, "Chroma"],
  [/schnell/i, "Flux.1 schnell"],
  [/flux|kontext/i, "Flux.1 dev"],
  [/z.?image/i, "Z-Image"],
  [/lumina/i, "Lumina 2"],
  [/qwen.?image.?2/i, "Qwen-Image 2.1"],
  [/qwen.?image/i, "Qwen-Image"],
  [/krea.?2/i, "Krea 2"],
  [/anima/i, "Anima"],
  [/hidream/i, "HiDream"],
  [/newbie/i, "NewBie"],
  [/omnigen/i, "OmniGen 2"],
  [/kandinsky.?5/i, "Kandinsky 5"],
  [/hunyuan.?image.*distilled/i, "HunyuanImage 2.1 distilled"],
  [/hunyuan.?image/i, "HunyuanImage 2.1"],
  [/hunyuan.?dit/i, "HunyuanDiT 1.2"],
  [/aura.?flow/i, "AuraFlow"],
  [/pixart.*alpha/i, "PixArt Alpha"],
  [/pixart/i, "PixArt Sigma"],
  [/ovis/i, "Ovis-Image"],
  [/sd3|sd_3|stable.?diffusion.?3/i, "SD3"],
  [/xl|pony|illustrious|noobai/i, "SDXL"],
  [/768/i, "SD2.x"],
];

/** A family by a file's name alone. */
export function guessed(model: string): string {
  const name = model.split(/[\\/]/).pop() ?? model;
  return NAMES.find(([pattern]) => pattern.test(name))?.[1] ?? "SD1.x";
}

/** What a family does with a file of this name. */
export function recipeFor(family: string, model: string): Recipe {
  const name = model.split(/[\\/]/).pop() ?? model;
  const row = ROWS.find(([of, named]) => of.test(family) && (!named || named.test(name)));
  return { ...ORDINARY, ...row?.[2] };
}
