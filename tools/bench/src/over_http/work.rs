//! What is measured: the files of a family, and its prompt.

use fresco_synth::full::Numbers;
use fresco_tensor::Dtype;
use serde_json::{Map, Value, json};

const BF16: Numbers = Numbers::Plain(Dtype::Bf16);
const F16: Numbers = Numbers::Plain(Dtype::F16);
const FP8: Numbers = Numbers::ScaledFp8;

const TEXTS: [&str; 3] = [
    "a photograph of a lighthouse on a cliff at dusk, waves below, warm light in the window, film grain",
    "a watercolour of a harbour town in the morning, boats at the quay, cold light on the roofs, paper texture",
    "an etching of an old bridge over a river in winter, bare trees at the banks, snow on the road, thin lines",
];
const NEGATIVE: &str = "blurry, low quality";

pub(super) struct ModelFile {
    pub(super) folder: &'static str,
    pub(super) name: &'static str,
    /// The list of `tools/synth` that it is made of.
    pub(super) list: &'static str,
    pub(super) numbers: Numbers,
}

const fn diffusion(name: &'static str, list: &'static str, numbers: Numbers) -> ModelFile {
    in_folder("diffusion_models", name, list, numbers)
}

const fn text(name: &'static str, list: &'static str, numbers: Numbers) -> ModelFile {
    in_folder("text_encoders", name, list, numbers)
}

const fn vae(name: &'static str, list: &'static str, numbers: Numbers) -> ModelFile {
    in_folder("vae", name, list, numbers)
}

const fn checkpoint(name: &'static str) -> ModelFile {
    in_folder("checkpoints", name, name, F16)
}

const fn in_folder(
    folder: &'static str,
    name: &'static str,
    list: &'static str,
    numbers: Numbers,
) -> ModelFile {
    ModelFile {
        folder,
        name,
        list,
        numbers,
    }
}

const QWEN25: ModelFile = text("qwen25_7b", "qwen25_7b", FP8);
const T5: ModelFile = text("t5xxl", "t5xxl", F16);
const CLIP_L: ModelFile = text("clip_l", "clip_l", F16);
const FLUX_VAE: ModelFile = vae("ae", "ae", BF16);
const WAN_VAE: ModelFile = vae("wan_vae", "wan_vae", BF16);

/// Where the network's latents come from, and their size.
#[derive(Clone, Copy)]
struct Latent {
    class: &'static str,
    size: [u32; 2],
    frames: Option<u32>,
}

/// How the files are opened.
#[derive(Clone, Copy)]
enum Loading {
    Checkpoint,
    /// A network, one or two text encoders of a type, and an autoencoder.
    Parts {
        kind: &'static str,
        clips: &'static [&'static str],
        vae: &'static str,
    },
}

pub(super) struct Work {
    pub(super) title: &'static str,
    /// The first of them is the diffusion model.
    pub(super) files: &'static [ModelFile],
    pub(super) steps: u32,
    /// Seconds of the reference's cold prompt.
    pub(super) reference: Option<f64>,
    /// GiB of the card that the reference takes at its most.
    pub(super) reference_card: Option<f64>,
    loading: Loading,
    latent: Latent,
    cfg: f64,
    scheduler: &'static str,
    shift: Option<(&'static str, f64)>,
    guidance: Option<f64>,
    /// A LoRA of this rank goes on top of the model.
    pub(super) lora: bool,
    /// GiB of the model that stay in main memory.
    pub(super) in_memory: Option<f64>,
    /// The format of GGUF that the network's file is converted to before it is measured.
    pub(super) blocks: Option<&'static str>,
    /// Arguments of the program for this work alone.
    pub(super) arguments: &'static [&'static str],
}

const PICTURE: Latent = Latent {
    class: "EmptySD3LatentImage",
    size: [1024, 1024],
    frames: None,
};

const STANDARD: Work = Work {
    title: "",
    files: &[],
    steps: 20,
    reference: None,
    reference_card: None,
    loading: Loading::Checkpoint,
    latent: PICTURE,
    cfg: 1.0,
    scheduler: "simple",
    shift: None,
    guidance: None,
    lora: false,
    in_memory: None,
    blocks: None,
    arguments: &[],
};

pub(super) const SD15: Work = Work {
    title: "SD1.5 f16, 20 steps",
    files: &[checkpoint("sd15")],
    reference: Some(5.0),
    latent: Latent {
        class: "EmptyLatentImage",
        size: [512, 512],
        frames: None,
    },
    cfg: 7.0,
    scheduler: "normal",
    ..STANDARD
};

pub(super) const SDXL: Work = Work {
    title: "SDXL f16, 20 steps",
    files: &[checkpoint("sdxl")],
    reference: Some(3.9),
    latent: Latent {
        class: "EmptyLatentImage",
        ..PICTURE
    },
    cfg: 7.0,
    scheduler: "normal",
    ..STANDARD
};

pub(super) const Z_IMAGE: Work = Work {
    title: "Z-Image bf16, 8 steps",
    files: &[
        diffusion("z_image", "z_image", BF16),
        text("qwen3_4b", "qwen3_4b", BF16),
        FLUX_VAE,
    ],
    steps: 8,
    reference: Some(7.9),
    loading: Loading::Parts {
        kind: "lumina2",
        clips: &["qwen3_4b"],
        vae: "ae",
    },
    shift: Some(("ModelSamplingAuraFlow", 3.0)),
    ..STANDARD
};

/// A small picture, since loading is what the processor is measured for.
const SMALL: [u32; 2] = [256, 256];
const ON_PROCESSOR: &[&str] = &["--cpu"];

pub(super) const SD15_CPU: Work = Work {
    title: "SD1.5 f16 on the processor, 256x256, 2 steps",
    steps: 2,
    reference: None,
    latent: Latent {
        size: SMALL,
        ..SD15.latent
    },
    arguments: ON_PROCESSOR,
    ..SD15
};

pub(super) const Z_IMAGE_CPU: Work = Work {
    title: "Z-Image bf16 on the processor, 256x256, 2 steps",
    steps: 2,
    reference: None,
    latent: Latent {
        size: SMALL,
        ..PICTURE
    },
    arguments: ON_PROCESSOR,
    ..Z_IMAGE
};

pub(super) const Z_IMAGE_GGUF_CPU: Work = Work {
    title: "Z-Image in GGUF (Q4_0) on the processor, 256x256, 2 steps",
    blocks: Some("Q4_0"),
    ..Z_IMAGE_CPU
};

const FLUX_LOADING: Loading = Loading::Parts {
    kind: "flux",
    clips: &["clip_l", "t5xxl"],
    vae: "ae",
};

pub(super) const FLUX_BF16: Work = Work {
    title: "Flux.1 bf16, 10 steps",
    files: &[diffusion("flux_bf16", "flux1", BF16), T5, CLIP_L, FLUX_VAE],
    steps: 10,
    reference: Some(9.5),
    loading: FLUX_LOADING,
    guidance: Some(3.5),
    ..STANDARD
};

pub(super) const FLUX_LORA: Work = Work {
    title: "Flux.1 bf16 with a LoRA, 10 steps",
    reference: None,
    lora: true,
    ..FLUX_BF16
};

pub(super) const FLUX_HALF: Work = Work {
    title: "Flux.1 bf16, half of it in main memory, 10 steps",
    reference: None,
    in_memory: Some(11.0),
    ..FLUX_BF16
};

pub(super) const FLUX_FP8: Work = Work {
    title: "Flux.1 scaled fp8, 10 steps",
    files: &[diffusion("flux_fp8", "flux1", FP8), T5, CLIP_L, FLUX_VAE],
    reference: Some(6.8),
    ..FLUX_BF16
};

pub(super) const HUNYUAN15: Work = Work {
    title: "Hunyuan Video 1.5 bf16, 3 steps",
    files: &[
        diffusion("hunyuan15", "hunyuan15", BF16),
        QWEN25,
        text("byt5", "byt5", F16),
        vae("hunyuan15_vae", "hunyuan15_vae", F16),
    ],
    steps: 3,
    reference: Some(29.8),
    reference_card: Some(37.4),
    loading: Loading::Parts {
        kind: "hunyuan_video_15",
        clips: &["qwen25_7b", "byt5"],
        vae: "hunyuan15_vae",
    },
    latent: Latent {
        class: "EmptyHunyuanVideo15Latent",
        size: [848, 480],
        frames: Some(121),
    },
    cfg: 6.0,
    shift: Some(("ModelSamplingSD3", 7.0)),
    ..STANDARD
};

pub(super) const QWEN_FP8: Work = Work {
    title: "Qwen-Image scaled fp8, 10 steps",
    files: &[diffusion("qwen_fp8", "qwen_image", FP8), QWEN25, WAN_VAE],
    steps: 10,
    reference: Some(11.3),
    loading: Loading::Parts {
        kind: "qwen_image",
        clips: &["qwen25_7b"],
        vae: "wan_vae",
    },
    cfg: 2.5,
    shift: Some(("ModelSamplingAuraFlow", 3.1)),
    ..STANDARD
};

pub(super) const WAN_FP8: Work = Work {
    title: "Wan 2.2 14B scaled fp8, 3 steps",
    files: &[
        diffusion("wan_fp8", "wan22_14b", FP8),
        text("umt5_xxl", "umt5_xxl", FP8),
        WAN_VAE,
    ],
    steps: 3,
    reference: Some(23.7),
    reference_card: Some(28.5),
    loading: Loading::Parts {
        kind: "wan",
        clips: &["umt5_xxl"],
        vae: "wan_vae",
    },
    latent: Latent {
        class: "EmptyHunyuanLatentVideo",
        size: [832, 480],
        frames: Some(81),
    },
    cfg: 3.5,
    shift: Some(("ModelSamplingSD3", 8.0)),
    ..STANDARD
};

pub(super) const FLUX2_FP8: Work = Work {
    title: "Flux.2 scaled fp8, 5 steps",
    files: &[
        diffusion("flux2_fp8", "flux2", FP8),
        text("mistral_30", "mistral_30", FP8),
        vae("flux2_vae", "flux2_vae", BF16),
    ],
    steps: 5,
    reference: Some(14.5),
    loading: Loading::Parts {
        kind: "flux2",
        clips: &["mistral_30"],
        vae: "flux2_vae",
    },
    latent: Latent {
        class: "EmptyFlux2LatentImage",
        ..PICTURE
    },
    guidance: Some(4.0),
    ..STANDARD
};

/// The ids of the nodes whose times are told apart.
pub(super) struct Ids {
    pub(super) texts: Vec<String>,
    pub(super) sampler: String,
    pub(super) decode: String,
    pub(super) save: String,
}

#[derive(Default)]
struct Prompt(Map<String, Value>);

impl Prompt {
    fn add(&mut self, class: &str, inputs: Value) -> String {
        let id = (self.0.len() + 1).to_string();
        let node = json!({"class_type": class, "inputs": inputs});
        self.0.insert(id.clone(), node);
        id
    }
}

/// An output of a node, as an input of another.
fn output(id: &str, number: u32) -> Value {
    json!([id, number])
}

fn file(name: &str) -> String {
    format!("{name}.safetensors")
}

impl Work {
    /// The prompt of a turn; each has another text and seed, so that nothing of it is remembered but the models.
    pub(super) fn prompt(&self, turn: usize) -> (Value, Ids) {
        let mut prompt = Prompt::default();
        let [mut model, clip, vae] = self.models(&mut prompt);
        if self.lora {
            let inputs = json!({"model": model, "lora_name": file("lora"), "strength_model": 0.8});
            model = output(&prompt.add("LoraLoaderModelOnly", inputs), 0);
        }
        if let Some((class, shift)) = self.shift {
            let inputs = json!({"model": model, "shift": shift});
            model = output(&prompt.add(class, inputs), 0);
        }
        let mut encode =
            |text: &str| prompt.add("CLIPTextEncode", json!({"clip": clip, "text": text}));
        let mut texts = vec![encode(TEXTS[turn % TEXTS.len()])];
        if self.cfg != 1.0 {
            texts.push(encode(NEGATIVE));
        }
        let mut positive = output(&texts[0], 0);
        if let Some(guidance) = self.guidance {
            let inputs = json!({"conditioning": positive, "guidance": guidance});
            positive = output(&prompt.add("FluxGuidance", inputs), 0);
        }
        let negative = if let Some(id) = texts.get(1) {
            output(id, 0)
        } else {
            let zeroed = prompt.add("ConditioningZeroOut", json!({"conditioning": positive}));
            output(&zeroed, 0)
        };
        let [width, height] = self.latent.size;
        let mut size = json!({"width": width, "height": height, "batch_size": 1});
        if let Some(frames) = self.latent.frames {
            size["length"] = json!(frames);
        }
        let latent = prompt.add(self.latent.class, size);
        let sampler = prompt.add(
            "KSampler",
            json!({
                "model": model, "positive": positive, "negative": negative, "latent_image": output(&latent, 0),
                "seed": turn, "steps": self.steps, "cfg": self.cfg, "sampler_name": "euler",
                "scheduler": self.scheduler, "denoise": 1.0,
            }),
        );
        let inputs = json!({"samples": output(&sampler, 0), "vae": vae});
        let decode = prompt.add("VAEDecode", inputs);
        let mut images = output(&decode, 0);
        if let Some(frames) = self.latent.frames {
            let inputs = json!({"image": images, "batch_index": frames / 2, "length": 1});
            images = output(&prompt.add("ImageFromBatch", inputs), 0);
        }
        let inputs = json!({"images": images, "filename_prefix": "bench"});
        let save = prompt.add("SaveImage", inputs);
        let ids = Ids {
            texts,
            sampler,
            decode,
            save,
        };
        (Value::Object(prompt.0), ids)
    }

    /// The outputs that are the model, the text encoder and the autoencoder.
    fn models(&self, prompt: &mut Prompt) -> [Value; 3] {
        let first = file(self.files[0].name);
        let (kind, clips, vae) = match self.loading {
            Loading::Checkpoint => {
                let id = prompt.add("CheckpointLoaderSimple", json!({"ckpt_name": first}));
                return [0, 1, 2].map(|number| output(&id, number));
            }
            Loading::Parts { kind, clips, vae } => (kind, clips, vae),
        };
        let mut inputs = json!({"unet_name": first, "weight_dtype": "default"});
        let model = match self.in_memory {
            None if self.blocks.is_some() => {
                let name = format!("{}.gguf", self.files[0].name);
                prompt.add("UnetLoaderGGUF", json!({"unet_name": name}))
            }
            None => prompt.add("UNETLoader", inputs),
            Some(size) => {
                inputs["compute_device"] = json!("cuda:0");
                inputs["virtual_vram_gb"] = json!(size);
                inputs["donor_device"] = json!("cpu");
                prompt.add("UNETLoaderDisTorch2MultiGPU", inputs)
            }
        };
        let clip = match clips {
            [one] => {
                let inputs = json!({"clip_name": file(one), "type": kind});
                prompt.add("CLIPLoader", inputs)
            }
            names => {
                let names: Vec<String> = names.iter().map(|name| file(name)).collect();
                let inputs = json!({"clip_name1": names[0], "clip_name2": names[1], "type": kind});
                prompt.add("DualCLIPLoader", inputs)
            }
        };
        let vae = prompt.add("VAELoader", json!({"vae_name": file(vae)}));
        [model, clip, vae].map(|id| output(&id, 0))
    }
}
