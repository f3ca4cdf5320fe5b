//! What the files that templates ask for stand for: one table, by folder and a part of the name.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::{Map, json};

use super::films;
use super::networks::{
    Decoder, Network, TEXT, clip_g, gemma3, gemma4, open_clip_g, picture_vae, pieces, qwen3_vl,
    qwen25_vl, qwen35, single_bytes, vision, with_pieces,
};
use crate::{server, tiny};

/// A network in the place of another, and how that is said.
pub type StandIn = (fn() -> Network, &'static str);

/// A kind of file.
pub struct FileKind {
    pub folder: &'static str,
    /// In the name of the file, in small letters; all of it if it has an ending.
    pub part: &'static str,
    /// The family whose model it is, as counts are kept; empty for what several use.
    pub family: &'static str,
    /// What is put in its place where it is of a kind that is not run yet, and how that is said.
    pub stand_in: Option<StandIn>,
    make: fn() -> Network,
}

impl FileKind {
    /// The weights of such a file.
    pub fn network(&self) -> Network {
        (self.make)()
    }
}

const fn kind(
    folder: &'static str,
    part: &'static str,
    family: &'static str,
    make: fn() -> Network,
) -> FileKind {
    FileKind {
        folder,
        part,
        family,
        stand_in: None,
        make,
    }
}

const CHECKPOINT: &str = "checkpoints";
const DIFFUSION: &str = "diffusion_models";
const WORDS: &str = "text_encoders";
const VAE: &str = "vae";
const LORA: &str = "loras";
const CONTROL: &str = "controlnet";
const PATCH: &str = "model_patches";
const LARGER: &str = "latent_upscale_models";

/// In this order; the first that fits is it.
pub static FILES: &[FileKind] = &[
    kind(CHECKPOINT, "sd_xl_refiner", "SDXL", refiner_file),
    kind(CHECKPOINT, "sd_xl", "SDXL", sdxl_file),
    kind(CHECKPOINT, "sd3.5", "SD3.5", sd35_file),
    kind(CHECKPOINT, "schnell", "Flux.1", || {
        flux_file(flux().without("guidance_in"))
    }),
    kind(CHECKPOINT, "flux1", "Flux.1", || flux_file(flux())),
    kind(CHECKPOINT, "netayume", "Lumina 2", lumina_file),
    kind(CHECKPOINT, "ace_step_v1", "ACE-Step", ace_file),
    kind(CHECKPOINT, "ace_step_1.5", "ACE-Step 1.5", ace15_file),
    kind(
        CHECKPOINT,
        "stable-audio-open",
        "Stable Audio",
        stable_audio_file,
    ),
    kind(CHECKPOINT, "ltx-2.3", "LTX-2.3", films::ltx23_file),
    kind(CHECKPOINT, "ltx-2-", "LTX-2", films::ltx2_file),
    kind(CHECKPOINT, "ltx-video", "LTX-Video", films::ltxv_file),
    kind(CHECKPOINT, "svd", "SVD", films::svd_file),
    kind(
        CHECKPOINT,
        "hunyuan_3d_v2.1",
        "Hunyuan3D",
        films::hunyuan3d21_file,
    ),
    kind(
        CHECKPOINT,
        "hunyuan3d-dit-v2",
        "Hunyuan3D",
        films::hunyuan3d_file,
    ),
    kind(CHECKPOINT, "", "SD1.5", || {
        tiny::Tiny::default().checkpoint().into()
    }),
    kind(DIFFUSION, "z_image", "Z-Image", z_image),
    kind(DIFFUSION, "fill-dev", "Flux.1", flux_fill),
    kind(DIFFUSION, "flux1-canny", "Flux.1", || {
        flux().inputs("img_in.weight", 128)
    }),
    kind(DIFFUSION, "schnell", "Flux.1", || {
        flux().without("guidance_in")
    }),
    kind(DIFFUSION, "flux1", "Flux.1", flux),
    kind(DIFFUSION, "flux2", "Flux.2", flux2),
    kind(DIFFUSION, "flux-2-klein", "Flux.2", || {
        flux2().without("guidance_in")
    }),
    kind(DIFFUSION, "flux3", "Flux.3 klein", flux3),
    kind(DIFFUSION, "qwen_image_2.1", "Qwen-Image 2.1", qwen_image21),
    kind(DIFFUSION, "qwen_image_layered", "Qwen-Image", || {
        qwen_image_of("qwen_layered_small")
    }),
    kind(DIFFUSION, "qwen_image", "Qwen-Image", qwen_image),
    kind(DIFFUSION, "firered", "Qwen-Image", qwen_image),
    kind(DIFFUSION, "krea2", "Krea 2", krea2),
    kind(DIFFUSION, "anima", "Anima", anima),
    kind(DIFFUSION, "chroma-radiance", "Chroma", || {
        Network::golden("chroma_radiance_small").inputs("txt_in.weight", TEXT)
    }),
    kind(DIFFUSION, "chroma", "Chroma", || {
        Network::golden("chroma_small").inputs("txt_in.weight", TEXT)
    }),
    kind(DIFFUSION, "omnigen2", "OmniGen 2", omnigen2),
    kind(
        DIFFUSION,
        "kandinsky5lite_t2v",
        "Kandinsky 5",
        films::kandinsky5_film,
    ),
    kind(
        DIFFUSION,
        "kandinsky5lite_i2v",
        "Kandinsky 5",
        films::kandinsky5_film,
    ),
    kind(DIFFUSION, "kandinsky5", "Kandinsky 5", kandinsky5),
    kind(DIFFUSION, "hidream", "HiDream", hidream),
    kind(DIFFUSION, "newbie", "NewBie", newbie),
    kind(DIFFUSION, "ovis", "Ovis-Image", ovis),
    kind(DIFFUSION, "lotus", "", sd2_depth),
    kind(
        DIFFUSION,
        "hunyuanvideo1.5_1080p_sr",
        "Hunyuan Video 1.5",
        || films::hunyuan15(98),
    ),
    kind(DIFFUSION, "hunyuanvideo1.5", "Hunyuan Video 1.5", || {
        films::hunyuan15(65)
    }),
    kind(
        DIFFUSION,
        "hunyuan_video_t2v",
        "Hunyuan Video",
        films::hunyuan,
    ),
    kind(DIFFUSION, "minimax_h3", "MiniMax H3", films::minimax_h3),
    kind(DIFFUSION, "fasth3", "MiniMax H3", films::minimax_h3),
    kind(DIFFUSION, "wan2.2_s2v", "Wan", films::wan_s2v),
    kind(DIFFUSION, "humo", "Wan", films::wan_humo),
    kind(DIFFUSION, "animate", "Wan", films::wan_animate),
    kind(DIFFUSION, "wan2.2_fun_camera", "Wan", || {
        wan_camera()
            .without("img_emb.")
            .without_pictures()
            .wan_inputs(36)
    }),
    kind(DIFFUSION, "fun_camera", "Wan", wan_camera),
    kind(DIFFUSION, "wan2.2_fun_control_5b", "Wan", || wan_5b(148)),
    kind(DIFFUSION, "wan2.2_fun_inpaint_5b", "Wan", || wan_5b(100)),
    kind(DIFFUSION, "wan2.2_ti2v_5b", "Wan", || wan_5b(48)),
    kind(DIFFUSION, "wan2.2_fun_control", "Wan", || {
        wan_text("wan_t2v_extras_small").wan_inputs(52)
    }),
    kind(DIFFUSION, "wan2.2_fun_inpaint", "Wan", || {
        wan().wan_inputs(36)
    }),
    kind(DIFFUSION, "wan2.2_i2v", "Wan", || wan().wan_inputs(36)),
    kind(DIFFUSION, "wan2.2_t2v", "Wan", wan),
    kind(DIFFUSION, "wan2.1_t2v", "Wan", wan),
    kind(DIFFUSION, "wan2.1_vace", "Wan", || {
        wan_text("wan_vace_small")
    }),
    kind(DIFFUSION, "wan2.1_fun_control", "Wan", || {
        wan_picture().wan_inputs(48)
    }),
    kind(DIFFUSION, "wan2.1_fun_inp", "Wan", wan_picture),
    kind(DIFFUSION, "wan2.1_flf2v", "Wan", || {
        wan_seeing("wan_flf2v_small").with("img_emb.emb_pos", &[1, 34, TEXT])
    }),
    kind(DIFFUSION, "wan2.1_i2v", "Wan", wan_picture),
    kind(DIFFUSION, "wan2_1-i2v", "Wan", wan_picture),
    kind(DIFFUSION, "wan21-wanmove", "Wan", wan_picture),
    kind(DIFFUSION, "chrono_edit", "Wan", wan_picture),
    kind(DIFFUSION, "ltx-2.5", "LTX-2.5", films::ltx25),
    kind(DIFFUSION, "acestep_v1.5", "ACE-Step 1.5", ace15),
    kind(WORDS, "umt5", "", umt5),
    kind(WORDS, "t5-base", "", || Network::golden("t5_small")),
    kind(WORDS, "qwen_0.6b_ace15", "", ace15_reader),
    kind(WORDS, "b_ace15", "", ace15_writer),
    kind(WORDS, "t5xxl", "", || Network::golden("t5_small")),
    kind(WORDS, "clip_l", "", || Network::golden("clip_l_small")),
    kind(WORDS, "clip_g", "", clip_g),
    kind(WORDS, "llama", "", || Network {
        tokenizer: Some(single_bytes()),
        ..Decoder::LLAMA.network()
    }),
    kind(WORDS, "byt5", "", || Network::golden("byt5_small")),
    kind(WORDS, "qwen3vl_32b_minimax", "", films::minimax_words),
    kind(WORDS, "qwen3vl", "", qwen3_vl),
    // It writes prompts; some templates have it behind a switch that is off.
    kind(WORDS, "qwen3.5", "", qwen35),
    kind(WORDS, "qwen_2.5_vl", "", qwen25_vl),
    // Where the loader's type says nothing this one is known by its width.
    kind(WORDS, "qwen_3_06b", "", || {
        Decoder {
            hidden: 1024,
            layers: 3,
            ..Decoder::QWEN3
        }
        .network()
    }),
    kind(WORDS, "qwen_3", "", || Decoder::QWEN3.network()),
    kind(WORDS, "ovis", "", || Decoder::QWEN3.network()),
    kind(WORDS, "gemma_3", "", gemma3),
    kind(WORDS, "gemma4-12b-with-proj", "", films::ltx25_words),
    kind(WORDS, "gemma4", "", gemma4),
    kind(WORDS, "jina", "", jina),
    kind(WORDS, "mistral", "", mistral),
    kind(VAE, "ae.safetensors", "", || picture_vae(16)),
    kind(VAE, "vae-ft-mse", "", || picture_vae(4)),
    kind(VAE, "flux2", "", flux2_vae),
    kind(VAE, "full_encoder_small_decoder", "", flux2_vae),
    kind(VAE, "qwen_image_2.1", "", qwen_image21_vae),
    kind(VAE, "qwen_image_layered", "", layered_vae),
    kind(VAE, "qwen_image", "", || {
        Network::golden("wan_vae_tiled_small")
    }),
    kind(VAE, "wan2.2", "", wan22_vae),
    kind(VAE, "wan_2.1", "", || {
        Network::golden("wan_vae_tiled_small")
    }),
    kind(VAE, "wan2_1", "", || Network::golden("wan_vae_tiled_small")),
    kind(VAE, "wan_alpha", "", || {
        Network::golden("wan_vae_tiled_small")
    }),
    kind(VAE, "marigold", "", || {
        Network::golden("wan_vae_tiled_small")
    }),
    kind(VAE, "ace_1.5", "", || oobleck(8)),
    kind("audio_encoders", "wav2vec2_large", "", || {
        Network::golden("wav2vec2_large_small")
    }),
    kind("audio_encoders", "wav2vec2-chinese-base", "", || {
        Network::golden("wav2vec2_base_small")
    }),
    kind("audio_encoders", "whisper", "", films::whisper),
    kind(VAE, "ltx-2.5-video", "", films::ltx25_vae),
    kind(VAE, "ltx-2.5-audio", "", films::ltx25_sound),
    kind(VAE, "minimax_h3_video", "", films::minimax_video_vae),
    kind(VAE, "minimax_h3_audio", "", films::minimax_audio_vae),
    kind(VAE, "hunyuan_video", "", films::hunyuan_vae),
    kind(VAE, "hunyuanvideo15", "", films::hunyuan15_vae),
    kind(LARGER, "ltx-2", "", films::ltx2_upsampler),
    kind(LARGER, "hunyuanvideo15", "", films::hunyuan15_upsampler),
    kind("embeddings", "marigold", "", || {
        Network::default().with("conditioning", &[1, 8, TEXT])
    }),
    kind("clip_vision", "sigclip", "", || vision(None)),
    kind("clip_vision", "clip_vision_h", "", || vision(Some(TEXT))),
    // Its vector and as many waves stand for a pooled prompt.
    kind("clip_vision", "clip_vision_g", "", || {
        vision(Some(TEXT / 2))
    }),
    kind("style_models", "redux", "", redux),
    kind("upscale_models", "realesrgan_x4", "", || {
        Network::golden("esrgan_x4_small")
    }),
    kind(CONTROL, "instantx-controlnet-inpainting", "", || {
        qwen_control(68)
    }),
    kind(CONTROL, "instantx-controlnet-union", "", || {
        qwen_control(64)
    }),
    kind(
        CONTROL,
        "qwen-image-2512-fun-controlnet",
        "",
        qwen_fun_control,
    ),
    kind(CONTROL, "sd3.5", "", sd35_control),
    kind(PATCH, "z-image-turbo-fun-controlnet-union", "", || {
        Network::golden("z_image_control6_small")
    }),
    kind(PATCH, "qwen_image_canny_diffsynth", "", || {
        Network::golden("qwen_diffsynth_small").sizes("", &[(48, 96), (68, 64)])
    }),
    kind(PATCH, "infinitetalk", "", films::wan_talk),
    kind(PATCH, "anima-lllite-inpainting", "", anima_lite),
    kind(PATCH, "anima-lllite", "", || {
        anima_lite().inputs_at("lllite_conditioning1.conv1.weight", 1, 3)
    }),
    // Only loaded: the node that uses it is passed by in the template.
    kind(PATCH, "uso", "", uso),
    kind(LORA, "flux1-depth", "", flux_control_lora),
    kind(LORA, "flux2", "", || flux2().lora()),
    kind(LORA, "flux_2", "", || flux2().lora()),
    kind(LORA, "flux1", "", || flux().lora()),
    kind(LORA, "removal_timestep", "", || flux().lora()),
    kind(LORA, "z_image", "", || z_image().lora()),
    kind(LORA, "krea2", "", || krea2().lora()),
    kind(LORA, "anima", "", anima_lora),
    kind(LORA, "ltx-2-19b", "", || films::ltx2().lora()),
    kind(LORA, "ltx2-", "", || films::ltx2().lora()),
    kind(LORA, "ltx", "", || films::ltx23().lora()),
    kind(LORA, "minimax_h3", "", || films::minimax_h3().lora()),
    // Of the text encoder.
    kind(LORA, "gemma-3", "", || Decoder::GEMMA3.network().lora()),
    kind(LORA, "wan", "", || wan().lora()),
    kind(LORA, "lightx2v", "", || wan().lora()),
    kind(LORA, "chronoedit", "", || wan().lora()),
    kind(LORA, "qwen", "", || qwen_image().lora()),
    kind(LORA, "firered", "", || qwen_image().lora()),
    kind(LORA, "marigold", "", || qwen_image().lora()),
];

/// What a file of this name stands for.
pub fn find(folder: &str, name: &str) -> Option<&'static FileKind> {
    let name = name.to_lowercase();
    let fits = |kind: &&FileKind| {
        let whole = kind.part.ends_with(".safetensors");
        kind.folder == folder && (name == kind.part || !whole && name.contains(kind.part))
    };
    FILES.iter().find(fits)
}

/// A network of Wan that reads prompts of the usual width.
fn wan_text(golden: &str) -> Network {
    Network::golden(golden).inputs("text_embedding.0.weight", TEXT)
}

fn wan() -> Network {
    wan_text("wan_t2v_extras_small").without("ref_conv.")
}

/// One that also looks at what a vision network saw.
fn wan_seeing(golden: &str) -> Network {
    wan_text(golden).sizes("img_emb.", &[(1280, TEXT)])
}

fn wan_picture() -> Network {
    wan_seeing("wan_i2v_small")
}

fn wan_camera() -> Network {
    wan_seeing("wan_camera_small").inputs_at("control_adapter.conv.weight", 1, 24 * 64)
}

fn wan_5b(channels: usize) -> Network {
    let network = wan_text("wan22_5b_cond_small").wan_inputs(channels);
    if channels == 148 {
        return network
            .with("ref_conv.weight", &[64, 48, 2, 2])
            .with("ref_conv.bias", &[64]);
    }
    network
}

impl Network {
    /// Channels that go into a network of Wan.
    fn wan_inputs(self, channels: usize) -> Self {
        self.inputs_at("patch_embedding.weight", 1, channels)
    }

    /// Without what looks at pictures apart from the prompt.
    fn without_pictures(mut self) -> Self {
        self.keys.retain(|key, _| !key.contains("_img."));
        self
    }
}

/// The autoencoder of the 5B, an eighth and less as wide.
fn wan22_vae() -> Network {
    let list = include_str!("../../../tools/synth/lists/wan22_vae.txt");
    let narrower = [
        (160, 8),
        (320, 16),
        (640, 32),
        (1920, 96),
        (1024, 32),
        (2048, 64),
        (3072, 96),
        (512, 16),
        (256, 8),
    ];
    Network::listed(list).sizes("", &narrower)
}

/// UMT5, whose table of words is known by its length.
fn umt5() -> Network {
    let mut network = Network::golden("t5_small").outputs("shared", 256_384);
    let name = |block: usize| {
        format!("encoder.block.{block}.layer.0.SelfAttention.relative_attention_bias.weight")
    };
    if let Some(shape) = network.keys.get(&name(0)).cloned() {
        let blocks = network
            .keys
            .keys()
            .filter(|key| key.ends_with("SelfAttention.q.weight"));
        for block in 1..blocks.count() {
            network = network.with(&name(block), &shape);
        }
    }
    network
}

/// The autoencoder of waveforms, for latents of so many channels.
fn oobleck(latent: usize) -> Network {
    let network = Network::golden("oobleck_vae_small");
    let kernel = "parametrizations.weight.original";
    network
        .with(&format!("decoder.layers.0.{kernel}1"), &[32, latent, 7])
        .with(&format!("encoder.layers.5.{kernel}0"), &[2 * latent, 1, 1])
        .with(&format!("encoder.layers.5.{kernel}1"), &[2 * latent, 32, 3])
        .with("encoder.layers.5.bias", &[2 * latent])
}

fn stable_audio_file() -> Network {
    let mut network = Network::golden("stable_audio_dit_small")
        .inputs("to_cond_embed.0.weight", TEXT)
        .inputs("to_global_embed.0.weight", 2 * TEXT)
        .under("model.model.")
        .and(oobleck(8).under("pretransform.model."));
    for which in ["seconds_start", "seconds_total"] {
        let at = format!("conditioner.conditioners.{which}.embedder.embedding");
        network = network
            .with(&format!("{at}.0.weights"), &[16])
            .with(&format!("{at}.1.weight"), &[TEXT, 33])
            .with(&format!("{at}.1.bias"), &[TEXT]);
    }
    network
}

fn ace_file() -> Network {
    let network = Network::golden("ace_step_small")
        .inputs("genre_embedder.weight", TEXT)
        // Its lyrics begin with a number of the published vocabulary.
        .outputs("lyric_embs", 6693)
        .under("model.diffusion_model.");
    network
        .and(Network::golden("ace_vae_small").under("vae."))
        .and(umt5().under("text_encoders.umt5base.transformer."))
}

/// What reads tags for ACE-Step 1.5, which is known by its width.
fn ace15_reader() -> Network {
    Decoder {
        hidden: 1024,
        layers: 3,
        ..Decoder::QWEN3
    }
    .network()
}

/// What writes audio codes for ACE-Step 1.5, which is known by its vocabulary.
fn ace15_writer() -> Network {
    Decoder {
        layers: 3,
        vocabulary: 217_204,
        ..Decoder::QWEN3
    }
    .network()
}

/// ACE-Step 1.5 with what makes tokens of tags, lyrics and a voice, and latents of audio codes.
fn ace15() -> Network {
    let mut network = Network::golden("ace_step15_small")
        .inputs("condition_embedder.weight", 48)
        .under("decoder.");
    let layer = Network::golden("ace_step15_small");
    let parts = [
        ("self_attn.", "self_attn."),
        ("mlp.", "mlp."),
        ("self_attn_norm.", "input_layernorm."),
        ("mlp_norm.", "post_attention_layernorm."),
    ];
    for (at, width) in [
        ("encoder.lyric_encoder", 1024),
        ("encoder.timbre_encoder", 8),
        ("detokenizer", 48),
    ] {
        network = network
            .with(&format!("{at}.embed_tokens.weight"), &[48, width])
            .with(&format!("{at}.embed_tokens.bias"), &[48])
            .with(&format!("{at}.norm.weight"), &[48]);
        for (theirs, ours) in parts {
            let start = format!("layers.0.{theirs}");
            for (key, shape) in &layer.keys {
                if let Some(rest) = key.strip_prefix(&start) {
                    for number in 0..2 {
                        let key = format!("{at}.layers.{number}.{ours}{rest}");
                        network = network.with(&key, shape);
                    }
                }
            }
        }
    }
    network
        .with("encoder.text_projector.weight", &[48, 1024])
        .with("silence_latent", &[1, 20, 8])
        .with("null_condition_emb", &[1, 1, 48])
        .with("tokenizer.quantizer.project_out.weight", &[48, 6])
        .with("tokenizer.quantizer.project_out.bias", &[48])
        .with("detokenizer.special_tokens", &[1, 5, 48])
        .with("detokenizer.proj_out.weight", &[8, 48])
        .with("detokenizer.proj_out.bias", &[8])
}

fn ace15_file() -> Network {
    ace15()
        .under("model.diffusion_model.")
        .and(oobleck(8).under("vae."))
        .and(ace15_reader().under("text_encoders.qwen3_06b.transformer."))
        .and(ace15_writer().under("text_encoders.qwen3_2b.transformer."))
}

fn z_image() -> Network {
    Network::golden("z_image_small")
        .inputs("cap_embedder.0.weight", TEXT)
        .inputs("cap_embedder.1.weight", TEXT)
        .blocks("layers", 6)
}

fn flux() -> Network {
    Network::golden("flux_small")
        .inputs("vector_in.in_layer.weight", TEXT)
        .inputs("txt_in.weight", TEXT)
}

fn flux_fill() -> Network {
    Network::golden("flux_fill_small")
        .inputs("vector_in.in_layer.weight", TEXT)
        .inputs("txt_in.weight", TEXT)
}

/// A LoRA that makes room for a control picture, in the names of its authors.
fn flux_control_lora() -> Network {
    let layers = flux().inputs("img_in.weight", 128).lora().keys;
    let bare = |key: String| key.replacen("diffusion_model.", "", 1);
    let mut lora: Network = layers
        .into_iter()
        .map(|(key, shape)| (bare(key), shape))
        .collect::<tiny::Keys>()
        .into();
    lora = lora.with("img_in.lora_A.weight", &[4, 128]);
    lora.with("img_in.lora_B.weight", &[128, 4])
}

fn flux2() -> Network {
    Network::golden("flux2_small").inputs("txt_in.weight", 3 * TEXT)
}

fn flux3() -> Network {
    Network::golden("flux3_small")
        .inputs("emb_in.image.weight", 128)
        .inputs("emb_in.image_cond.weight", 128)
        .inputs("txt_in.weight", 8 * TEXT)
        .outputs("final_layer.image.linear", 128)
}

fn qwen_image_of(golden: &str) -> Network {
    Network::golden(golden)
        .inputs("txt_norm.weight", TEXT)
        .inputs("txt_in.weight", TEXT)
}

fn qwen_image() -> Network {
    qwen_image_of("qwen_edit_small")
}

fn qwen_control(channels: usize) -> Network {
    qwen_image_of("qwen_controlnet_small").inputs("controlnet_x_embedder.weight", channels)
}

/// The golden has the network that is steered, too.
fn qwen_fun_control() -> Network {
    let mut network = Network::golden("qwen_fun_control_small");
    network.keys.retain(|key, _| key.starts_with("control_"));
    network
}

fn qwen_image21() -> Network {
    Network::golden("qwen_image21_small")
        .inputs("img_in.weight", 64)
        .outputs("proj_out", 64)
        .inputs("txt_in.text_norm.weight", TEXT)
        .inputs("txt_in.in_layer.weight", TEXT)
}

fn qwen_image21_vae() -> Network {
    Network::golden("qwen_image21_vae_small")
        .outputs("encoder.conv_out", 128)
        .sizes("quant_conv", &[(12, 128)])
        .sizes("post_quant_conv", &[(6, 64)])
        .inputs_at("decoder.conv_in.weight", 1, 64)
}

fn layered_vae() -> Network {
    Network::golden("wan_vae_tiled_small")
        .inputs_at("encoder.conv1.weight", 1, 4)
        .outputs("decoder.head.2", 4)
}

fn krea2() -> Network {
    Network::golden("krea2_small")
        .inputs("first.weight", 64)
        .outputs("last.linear", 64)
        .sizes("txtfusion.", &[(24, TEXT)])
        .inputs("txtfusion.projector.weight", 12)
        .inputs("txtmlp.0.scale", TEXT)
        .inputs("txtmlp.1.weight", TEXT)
}

fn anima() -> Network {
    let network = Network::golden("anima_small")
        .inputs("net.x_embedder.proj.1.weight", 68)
        .outputs("net.final_layer.linear", 64);
    let network = network.inputs_at("net.llm_adapter.embed.weight", 0, 32128);
    let crossed: Vec<String> = network.keys.keys().cloned().collect();
    let crossed = crossed.iter().filter(|key| {
        key.starts_with("net.llm_adapter.")
            && (key.ends_with("cross_attn.k_proj.weight")
                || key.ends_with("cross_attn.v_proj.weight"))
    });
    crossed.fold(network, |network, key| network.inputs(key, 1024))
}

/// A control net in its layers.
fn anima_lite() -> Network {
    Network::golden("anima_lite_small")
}

fn anima_lora() -> Network {
    let keys = anima().without("net.llm_adapter.").keys.into_iter();
    let keys = keys.map(|(key, shape)| (key.replacen("net.", "", 1), shape));
    Network::from(keys.collect::<tiny::Keys>()).lora()
}

fn omnigen2() -> Network {
    Network::golden("omnigen2_small")
        .inputs("time_caption_embed.caption_embedder.0.weight", TEXT)
        .inputs("time_caption_embed.caption_embedder.1.weight", TEXT)
}

fn kandinsky5() -> Network {
    Network::golden("kandinsky5_image_small")
        .inputs("text_embeddings.in_layer.weight", TEXT)
        .inputs("pooled_text_embeddings.in_layer.weight", TEXT)
}

fn hidream() -> Network {
    // One head of the usual width, which weights do not say.
    let wider = [(64, 128), (128, 256), (384, 768), (768, 1536)];
    Network::golden("hidream_small")
        .sizes("", &wider)
        .inputs("x_embedder.proj.weight", 64)
        .outputs("final_layer.linear", 64)
        .inputs("p_embedder.pooled_embedder.linear_1.weight", 2 * TEXT)
        .sizes("caption_projection.", &[(40, TEXT), (48, TEXT)])
}

fn newbie() -> Network {
    Network::golden("newbie_small")
        .inputs("cap_embedder.0.weight", TEXT)
        .inputs("cap_embedder.1.weight", TEXT)
        .sizes("clip_text_pooled_proj.", &[(24, TEXT)])
        .inputs("time_text_embed.1.weight", 96 + TEXT)
}

fn ovis() -> Network {
    Network::golden("ovis_small")
        .inputs("txt_in.weight", TEXT)
        .inputs("txt_norm.scale", TEXT)
}

fn jina() -> Network {
    Network {
        tokenizer: Some(pieces()),
        ..Network::golden("jina_clip2_small")
    }
}

fn mistral() -> Network {
    let words = Path::new(env!("CARGO_MANIFEST_DIR")).join("gold/mini_tekken.json");
    let words = fs::read(words).expect("the small vocabulary is a golden");
    let mut network = Decoder::MISTRAL.network();
    network.bytes.insert("tekken_model".to_owned(), words);
    network
}

fn flux2_vae() -> Network {
    picture_vae(32)
        .with("bn.running_mean", &[128])
        .with("bn.running_var", &[128])
}

/// The network of SD2 that sees depths; nodes bring its text.
fn sd2_depth() -> Network {
    text_width(Network::golden("unet_sd1_small"), 1024)
}

/// Another width of text for a network of convolutions.
fn text_width(mut network: Network, width: usize) -> Network {
    for (key, shape) in &mut network.keys {
        if key.ends_with("attn2.to_k.weight") || key.ends_with("attn2.to_v.weight") {
            shape[1] = width;
        }
    }
    network
}

/// The refiner is known by the width of its text, which is that of the published one.
fn refiner_file() -> Network {
    const WIDTH: usize = 1280;
    let unet = text_width(Network::golden("unet_sdxl_small"), WIDTH);
    unet.inputs("label_emb.0.0.weight", 5 * 256 + WIDTH)
        .under("model.diffusion_model.")
        .and(open_clip_g(WIDTH, 2).under("conditioner.embedders.0.model."))
        .and(picture_vae(4).under("first_stage_model."))
}

fn sdxl_file() -> Network {
    let unet = text_width(Network::golden("unet_sdxl_small"), 2 * TEXT);
    let small = Network::golden("clip_l_small");
    unet.inputs("label_emb.0.0.weight", 6 * 256 + TEXT)
        .under("model.diffusion_model.")
        .and(small.under("conditioner.embedders.0.transformer."))
        .and(open_clip_g(TEXT, 32).under("conditioner.embedders.1.model."))
        .and(picture_vae(4).under("first_stage_model."))
}

fn sd35() -> Network {
    Network::golden("mmdit_sd35_small")
        .inputs("y_embedder.mlp.0.weight", 2 * TEXT)
        .inputs("context_embedder.weight", 2 * TEXT)
}

fn sd35_file() -> Network {
    let words = Network::golden("t5_small").sizes("", &[(64, 2 * TEXT)]);
    sd35()
        .under("model.diffusion_model.")
        .and(picture_vae(16).under("first_stage_model."))
        .and(Network::golden("clip_l_small").under("text_encoders.clip_l.transformer."))
        .and(clip_g().under("text_encoders.clip_g.transformer."))
        .and(words.under("text_encoders.t5xxl.transformer."))
}

fn sd35_control() -> Network {
    Network::golden("sd35_controlnet_small")
        .sizes("", &[(96, 128), (288, 384), (384, 512), (576, 768)])
        .inputs("orig_y_embedder.mlp.0.weight", 2 * TEXT)
}

fn flux_file(network: Network) -> Network {
    network
        .under("model.diffusion_model.")
        .and(picture_vae(16).under("vae."))
        .and(Network::golden("clip_l_small").under("text_encoders.clip_l.transformer."))
        .and(Network::golden("t5_small").under("text_encoders.t5xxl.transformer."))
}

fn lumina_file() -> Network {
    let network = newbie()
        .without("clip_text_pooled_proj.")
        .without("time_text_embed.");
    network
        .under("model.diffusion_model.")
        .and(picture_vae(16).under("vae."))
        .and(with_pieces(Decoder::GEMMA2).under("text_encoders.gemma2_2b.transformer."))
}

/// What puts a style before the words of Flux.1.
fn uso() -> Network {
    let parts = ["low", "mid", "high"].into_iter();
    parts.fold(Network::default(), |network, part| {
        let name = |rest: &str| format!("feature_embedder.{part}_{rest}");
        network
            .with(&name("embedding_linear.0.weight"), &[4, 16])
            .with(&name("embedding_linear.0.bias"), &[4])
            .with(&name("layer_norm.weight"), &[TEXT])
            .with(&name("layer_norm.bias"), &[TEXT])
            .with(&name("projection.weight"), &[128, TEXT])
            .with(&name("projection.bias"), &[128])
    })
}

fn redux() -> Network {
    Network::golden("redux_small")
        .inputs("redux_up.weight", TEXT)
        .outputs("redux_down", TEXT)
}

/// How the name of a file says its numbers are stored, as `fresco quantize` calls it.
const FORMATS: &[(&str, &str)] = &[
    ("int8", "int8_convrot"),
    ("fp8", "fp8_e4m3"),
    ("nvfp4", "nvfp4"),
    ("w4a8", "w4a8"),
];

/// Writes what a file of this name stands for below a folder of models, in the format its name says. Nothing is done if it
/// is there.
pub fn write(models: &Path, folder: &str, name: &str) -> Result<Option<&'static FileKind>> {
    let Some(kind) = find(folder, name) else {
        return Ok(None);
    };
    if !models.join(folder).join(name).exists() {
        write_network(models, folder, name, &kind.network())?;
    }
    Ok(Some(kind))
}

/// Writes a network under this name, in the format that the name says.
pub fn write_network(models: &Path, folder: &str, name: &str, network: &Network) -> Result<()> {
    let path = models.join(folder).join(name);
    fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
    if let Some(words) = &network.tokenizer {
        fs::write(path.with_extension("tokenizer.json"), words)?;
    }
    let small = name.to_lowercase();
    if small.contains("ace_step_v1") {
        // Its lyrics have a vocabulary of their own, which lies beside the model under this name.
        fs::write(path.with_file_name("ace_lyrics_vocab.json"), single_bytes())?;
    }
    let format = FORMATS.iter().find(|(part, _)| small.contains(part));
    let plain = path.with_extension("plain.safetensors");
    write_plain(&plain, network)?;
    // A new file each time: the program may have the old one open.
    let _ = fs::remove_file(&path);
    match format {
        Some((_, format)) if folder != LORA && quantize(&plain, &path, format)? => {
            fs::remove_file(&plain)?;
        }
        _ => fs::rename(&plain, &path)?,
    }
    Ok(())
}

/// Writes a file in another format; not where all of its matrices are too narrow for it.
fn quantize(from: &Path, to: &Path, format: &str) -> Result<bool> {
    let output = Command::new(server::program())
        .arg("quantize")
        .args([from, to])
        .args(["--format", format])
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && !said.contains("has no matrix") {
        bail!("{} as {format}: {said}", from.display());
    }
    Ok(output.status.success())
}

/// More values than this are repeated: tables of words are most of a file, and making each value takes a while.
const DISTINCT: usize = 1 << 18;

/// Matrices in bf16, the rest in f32.
fn write_plain(path: &Path, network: &Network) -> Result<()> {
    let mut header = Map::new();
    let mut at = 0;
    let mut entry = |key: &str, dtype: &str, shape: &[usize], size: usize| {
        let bytes = shape.iter().product::<usize>() * size;
        let about = json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes]});
        header.insert(key.to_owned(), about);
        at += bytes;
    };
    for (key, shape) in &network.keys {
        let (dtype, size) = if shape.len() > 1 {
            ("BF16", 2)
        } else {
            ("F32", 4)
        };
        entry(key, dtype, shape, size);
    }
    for (key, bytes) in &network.bytes {
        entry(key, "U8", &[bytes.len()], 1);
    }
    let header = serde_json::to_vec(&header)?;
    let mut out = std::io::BufWriter::new(fs::File::create(path)?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for (key, shape) in &network.keys {
        let total: usize = shape.iter().product();
        // A variance is positive.
        let offset = if key.ends_with("running_var") {
            1.0
        } else {
            0.0
        };
        let values = tiny::synthetic(key, shape)
            .take(DISTINCT)
            .map(|v| v + offset);
        let block: Vec<u8> = if shape.len() > 1 {
            values
                .flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes())
                .collect()
        } else {
            values.flat_map(f32::to_le_bytes).collect()
        };
        let size = if shape.len() > 1 { 2 } else { 4 };
        let mut left = total * size;
        while left > 0 {
            let part = left.min(block.len());
            out.write_all(&block[..part])?;
            left -= part;
        }
    }
    for bytes in network.bytes.values() {
        out.write_all(bytes)?;
    }
    out.flush()?;
    Ok(())
}
