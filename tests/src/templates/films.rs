//! Networks of films, of their sound and of things in space, narrow enough for a test.

use super::networks::{Decoder, Network, TEXT, gemma4_large, picture_vae, qwen3_vl};

/// Channels of latents that nodes fix.
const LTX: usize = 128;
/// Numbers of all states of the reduced Gemma for a word: four layers, and what comes before them.
const STATES: usize = 5 * TEXT;
/// Values of a slice of the reduced sound's latent.
const SOUND: usize = 16;

/// LTX-2.3 in one file: the network and its connectors, both autoencoders, the vocoder and what narrows the prompt.
pub fn ltx23_file() -> Network {
    ltx_file(
        ltx23(),
        "ltx2_vae_small",
        ltx23_vocoder(),
        ltx23_projection(),
    )
}

/// What narrows the states of a prompt, for pictures and for sound.
fn ltx23_projection() -> Network {
    Network::default()
        .with("video_aggregate_embed.weight", &[48, STATES])
        .with("video_aggregate_embed.bias", &[48])
        .with("audio_aggregate_embed.weight", &[24, STATES])
        .with("audio_aggregate_embed.bias", &[24])
}

fn ltx23_vocoder() -> Network {
    Network::golden("ltx2_vocoder_small").inputs_at("vocoder.conv_in.weight", 1, 32)
}

/// The network of LTX-2.3 with its connectors.
pub fn ltx23() -> Network {
    ltx_ends(Network::golden("ltx2_small")).and(ltx23_connectors())
}

/// The same of LTX-2.5, which comes in several files.
pub fn ltx25() -> Network {
    ltx_ends(Network::golden("ltx25_small")).and(ltx23_connectors())
}

/// What reads prompts of LTX-2.5, with what narrows its states.
pub fn ltx25_words() -> Network {
    gemma4_large().and(ltx23_projection().under("text_embedding_projection."))
}

/// The autoencoder of LTX-2.5's pictures.
pub fn ltx25_vae() -> Network {
    ltx_pictures("ltx2_vae_small")
}

/// The autoencoder of LTX-2.5's sound, and its vocoder.
pub fn ltx25_sound() -> Network {
    let vocoder = ltx23_vocoder().under("vocoder.");
    ltx_sound().under("audio_vae.").and(vocoder)
}

fn ltx23_connectors() -> Network {
    Network::golden("ltx2_connectors_small")
        .without("video_text_proj_in.")
        .without("audio_text_proj_in.")
        .sizes("video_connector.", &[(16, 48), (64, 192)])
        .sizes("audio_connector.", &[(8, 24), (32, 96)])
}

/// The same of LTX-2.
pub fn ltx2_file() -> Network {
    let projection = Network::default().with("aggregate_embed.weight", &[20, STATES]);
    let vocoder = Network::golden_part("ltx2_vocoder_small", "/keys_v20");
    let vocoder = vocoder.inputs_at("conv_in.weight", 1, 32);
    ltx_file(ltx2(), "ltx2_vae_v20_small", vocoder, projection)
}

pub fn ltx2() -> Network {
    let connectors = Network::golden_part("ltx2_connectors_small", "/keys_v20")
        .without("text_proj_in.")
        .sizes("", &[(12, 20), (48, 80)]);
    let mut network = Network::golden("ltx2_small");
    let newer = |key: &str| {
        key.contains("to_gate_logits")
            || key.contains("prompt_adaln")
            || key.contains("prompt_scale")
    };
    network.keys.retain(|key, _| !newer(key));
    let network = network.and(Network::golden_part("ltx2_small", "/keys_other/v20"));
    ltx_ends(network).and(connectors)
}

fn ltx_ends(network: Network) -> Network {
    network
        .inputs("proj_in.weight", LTX)
        .outputs("proj_out", LTX)
        .inputs("audio_proj_in.weight", SOUND)
        .outputs("audio_proj_out", SOUND)
}

fn ltx_sound() -> Network {
    Network::golden("ltx2_audio_vae_small")
        .with("latents_mean", &[SOUND])
        .with("latents_std", &[SOUND])
}

fn ltx_pictures(vae: &str) -> Network {
    Network::golden(vae)
        .inputs_at("encoder.conv_in.conv.weight", 1, 48)
        .outputs("encoder.conv_out.conv", LTX + 1)
        .inputs_at("decoder.conv_in.conv.weight", 1, LTX)
        .outputs("decoder.conv_out.conv", 48)
        .with("latents_mean", &[LTX])
        .with("latents_std", &[LTX])
}

fn ltx_file(network: Network, vae: &str, vocoder: Network, projection: Network) -> Network {
    network
        .under("model.diffusion_model.")
        .and(ltx_pictures(vae).under("vae."))
        .and(ltx_sound().under("audio_vae."))
        .and(vocoder.under("vocoder."))
        .and(projection.under("text_embedding_projection."))
}

/// What makes latents of LTX-2 larger.
pub fn ltx2_upsampler() -> Network {
    Network::golden("ltx2_upsampler_small")
        .inputs_at("initial_conv.weight", 1, LTX)
        .outputs("final_conv", LTX)
}

/// LTX-Video 0.9 with its autoencoder.
pub fn ltxv_file() -> Network {
    let network = Network::golden("ltxv_small")
        .inputs("caption_projection.linear_1.weight", TEXT)
        .inputs("patchify_proj.weight", LTX)
        .outputs("proj_out", LTX);
    let vae = Network::golden("ltxv_vae_v0_small")
        .inputs_at("encoder.conv_in.conv.weight", 1, 48)
        .outputs("encoder.conv_out.conv", LTX + 1)
        .inputs_at("decoder.conv_in.conv.weight", 1, LTX)
        .outputs("decoder.conv_out.conv", 48)
        .with("per_channel_statistics.mean-of-means", &[LTX])
        .with("per_channel_statistics.std-of-means", &[LTX]);
    let network = network.under("model.diffusion_model.");
    network.and(vae.under("vae."))
}

/// MiniMax H3 in the pruned form.
pub fn minimax_h3() -> Network {
    Network::golden("minimax_h3_small")
        .without("time_embedder.")
        .and(Network::golden_part("minimax_h3_small", "/keys_pruned"))
        .inputs("video_patch_proj.weight", 24 * 4)
        .outputs("final_layer.video_out", 24 * 4)
        .inputs("audio_patch_proj.weight", 32)
        .outputs("final_layer.audio_out", 32)
        .inputs("condition_proj.weight", TEXT)
}

/// Its autoencoder of pictures, sixteen times smaller as the published one.
pub fn minimax_video_vae() -> Network {
    let smaller = |level: usize| format!("encoder.down_blocks.{level}.downsamplers.0.conv");
    Network::golden("minimax_h3_vae_small")
        .with(&format!("{}.weight", smaller(2)), &[16, 16, 3, 3, 3])
        .with(&format!("{}.bias", smaller(2)), &[16])
        .with(&format!("{}.weight", smaller(3)), &[32, 32, 3, 3, 3])
        .with(&format!("{}.bias", smaller(3)), &[32])
        .outputs("encoder.conv_out", 48)
        .sizes("quant_conv", &[(8, 48)])
        .sizes("post_quant_conv", &[(4, 24)])
        .inputs("decoder.proj_in.weight", 24)
        .outputs("decoder.proj_out", 3 * 4 * 16 * 16)
}

/// Its autoencoder of sound.
pub fn minimax_audio_vae() -> Network {
    Network::golden("minimax_h3_audio_vae_small")
        .sizes("pre_block.", &[(8, 32)])
        .sizes("mean_proj", &[(8, 32)])
        .sizes("logs_proj", &[(8, 32)])
        .inputs_at("dec_in_proj.weight", 1, 32)
}

/// What reads its prompts, fifty layers deep.
pub fn minimax_words() -> Network {
    let words = Decoder {
        layers: 50,
        ..Decoder::QWEN3
    };
    words.network().and(qwen3_vl().without("model."))
}

fn wan(golden: &str) -> Network {
    Network::golden(golden).inputs("text_embedding.0.weight", TEXT)
}

/// Wan that follows a sound, as the reduced audio encoder hears it: two layers of width 64, and what comes before them.
pub fn wan_s2v() -> Network {
    let at = "casual_audio_encoder";
    wan("wan_s2v_small")
        .with(&format!("{at}.weights"), &[1, 3, 1, 1])
        .inputs_at(&format!("{at}.encoder.conv1_local.conv.weight"), 1, 64)
        .inputs_at(&format!("{at}.encoder.conv1_global.conv.weight"), 1, 64)
}

/// Wan of people who speak, as the reduced Whisper hears them.
pub fn wan_humo() -> Network {
    wan("wan_humo_small").inputs("audio_proj.audio_proj_glob_1.layer.weight", 8 * 5 * 32)
}

/// Whisper, whose number of layers counts.
pub fn whisper() -> Network {
    let network = Network::golden("whisper_small").blocks("encoder.layers", 32);
    network.under("model.")
}

/// Wan of people and what they do.
pub fn wan_animate() -> Network {
    wan("wan_animate_small").sizes("img_emb.", &[(1280, TEXT)])
}

/// What lets people in Wan speak, as the smaller reduced audio encoder hears them: two layers of width 64.
pub fn wan_talk() -> Network {
    const DIM: usize = 64;
    const VALUES: usize = 2 * 64;
    const WIDTH: usize = 24;
    const TOKENS: usize = 4;
    let linear = |network: Network, name: &str, out: usize, input: usize| {
        let network = network.with(&format!("{name}.weight"), &[out, input]);
        network.with(&format!("{name}.bias"), &[out])
    };
    let mut network = Network::default();
    for (name, out, input) in [
        ("audio_proj.proj1", 32, 5 * VALUES),
        ("audio_proj.proj1_vf", 32, 8 * VALUES),
        ("audio_proj.proj2", 32, 32),
        ("audio_proj.proj3", TOKENS * WIDTH, 32),
    ] {
        network = linear(network, name, out, input);
    }
    network = network
        .with("audio_proj.norm.weight", &[WIDTH])
        .with("audio_proj.norm.bias", &[WIDTH]);
    for block in 0..2 {
        let name = |rest: &str| format!("blocks.{block}.{rest}");
        network = linear(network, &name("audio_cross_attn.q_linear"), DIM, DIM);
        network = linear(network, &name("audio_cross_attn.kv_linear"), 2 * DIM, WIDTH);
        network = linear(network, &name("audio_cross_attn.proj"), DIM, DIM);
        network = network
            .with(&name("norm_x.weight"), &[DIM])
            .with(&name("norm_x.bias"), &[DIM]);
    }
    network
}

/// Stable Video Diffusion with what sees its picture.
pub fn svd_file() -> Network {
    let mut unet = Network::golden("svd_unet_small").inputs("label_emb.0.0.weight", 3 * 256);
    for (key, shape) in &mut unet.keys {
        if key.ends_with("attn2.to_k.weight") || key.ends_with("attn2.to_v.weight") {
            shape[1] = TEXT;
        }
    }
    unet.under("model.diffusion_model.")
        .and(picture_vae(4).under("first_stage_model."))
        .and(open_clip_eyes().under("conditioner.embedders.0.open_clip.model.visual."))
}

/// A vision network of CLIP in the names of OpenCLIP.
fn open_clip_eyes() -> Network {
    const PATCH: usize = 14;
    const SIDE: usize = 4;
    let mut network = Network::default()
        .with("class_embedding", &[TEXT])
        .with("positional_embedding", &[SIDE * SIDE + 1, TEXT])
        .with("proj", &[TEXT, TEXT])
        .with("conv1.weight", &[TEXT, 3, PATCH, PATCH]);
    let mut norms = vec!["ln_pre".to_owned(), "ln_post".to_owned()];
    for layer in 0..3 {
        let name = |rest: &str| format!("transformer.resblocks.{layer}.{rest}");
        network = network
            .with(&name("attn.in_proj_weight"), &[3 * TEXT, TEXT])
            .with(&name("attn.in_proj_bias"), &[3 * TEXT])
            .with(&name("attn.out_proj.weight"), &[TEXT, TEXT])
            .with(&name("attn.out_proj.bias"), &[TEXT])
            .with(&name("mlp.c_fc.weight"), &[2 * TEXT, TEXT])
            .with(&name("mlp.c_fc.bias"), &[2 * TEXT])
            .with(&name("mlp.c_proj.weight"), &[TEXT, 2 * TEXT])
            .with(&name("mlp.c_proj.bias"), &[TEXT]);
        norms.extend(["ln_1", "ln_2"].map(name));
    }
    norms.iter().fold(network, |network, norm| {
        let network = network.with(&format!("{norm}.weight"), &[TEXT]);
        network.with(&format!("{norm}.bias"), &[TEXT])
    })
}

/// Kandinsky 5 for films.
pub fn kandinsky5_film() -> Network {
    Network::golden("kandinsky5_small")
        .inputs("text_embeddings.in_layer.weight", TEXT)
        .inputs("pooled_text_embeddings.in_layer.weight", TEXT)
}

/// Hunyuan Video 1.
pub fn hunyuan() -> Network {
    Network::golden("hunyuan_video_small")
        .inputs("txt_in.input_embedder.weight", TEXT)
        .inputs("txt_in.c_embedder.in_layer.weight", TEXT)
        .inputs("vector_in.in_layer.weight", TEXT)
}

/// Its autoencoder, which Kandinsky has too.
pub fn hunyuan_vae() -> Network {
    Network::golden("hunyuan_video_vae_small")
        .outputs("encoder.conv_out.conv", 32)
        .sizes("quant_conv", &[(8, 32)])
        .sizes("post_quant_conv", &[(4, 16)])
        .inputs_at("decoder.conv_in.conv.weight", 1, 16)
}

/// Hunyuan Video 1.5, with so many channels that go in.
pub fn hunyuan15(channels: usize) -> Network {
    Network::golden("hunyuan_video15_small")
        .inputs_at("img_in.proj.weight", 1, channels)
        .outputs("final_layer.linear", 32)
        .inputs("txt_in.input_embedder.weight", TEXT)
        .inputs("txt_in.c_embedder.in_layer.weight", TEXT)
        .sizes("byt5_in.", &[(1472, TEXT), (2048, 128)])
        .sizes("vision_in.", &[(48, TEXT)])
}

pub fn hunyuan15_vae() -> Network {
    Network::golden("hunyuan_video15_vae_small")
        .outputs("encoder.conv_out.conv", 64)
        .inputs_at("decoder.conv_in.conv.weight", 1, 32)
}

/// What makes latents of Hunyuan Video 1.5 larger.
pub fn hunyuan15_upsampler() -> Network {
    Network::golden("hunyuan_sr1080_small")
        .inputs_at("conv_in.conv.weight", 1, 32)
        .outputs("conv_out.conv", 32)
        // What goes in is added to the first layer, repeated.
        .sizes("", &[(16, 64)])
}

/// Sixteen heads, as all published sizes have.
const HEADS: &[(usize, usize)] = &[(16, 4)];

/// Hunyuan3D 2 with what sees pictures and the autoencoder of shapes.
pub fn hunyuan3d_file() -> Network {
    let network = Network::golden("hunyuan3d2_small")
        .inputs("latent_in.weight", 64)
        .outputs("final_layer.linear", 64)
        .inputs("cond_in.weight", TEXT)
        .without("guidance_in.")
        .sizes("", HEADS);
    shape_file(network)
}

pub fn hunyuan3d21_file() -> Network {
    let mut network = Network::golden("hunyuan3d21_small")
        .inputs("x_embedder.weight", 64)
        .outputs("final_layer.linear", 64)
        .sizes("", HEADS);
    for (key, shape) in &mut network.keys {
        if key.ends_with("attn2.to_k.weight") || key.ends_with("attn2.to_v.weight") {
            shape[1] = TEXT;
        }
    }
    shape_file(network)
}

fn shape_file(network: Network) -> Network {
    let vae = Network::golden("hunyuan3d_vae_small").inputs("post_kl.weight", 64);
    network
        .under("model.")
        .and(vae.under("vae."))
        .and(dino().under("conditioner.main_image_encoder.model."))
}

/// DINOv2 in the names of transformers.
fn dino() -> Network {
    const PATCH: usize = 14;
    const SIDE: usize = 4;
    let mut network = Network::default()
        .with("embeddings.cls_token", &[1, 1, TEXT])
        .with("embeddings.mask_token", &[1, TEXT])
        .with(
            "embeddings.position_embeddings",
            &[1, SIDE * SIDE + 1, TEXT],
        )
        .with(
            "embeddings.patch_embeddings.projection.weight",
            &[TEXT, 3, PATCH, PATCH],
        )
        .with("embeddings.patch_embeddings.projection.bias", &[TEXT])
        .with("layernorm.weight", &[TEXT])
        .with("layernorm.bias", &[TEXT]);
    for layer in 0..2 {
        let name = |rest: &str| format!("encoder.layer.{layer}.{rest}");
        for part in [
            "attention.query",
            "attention.key",
            "attention.value",
            "output.dense",
        ] {
            network = network
                .with(&name(&format!("attention.{part}.weight")), &[TEXT, TEXT])
                .with(&name(&format!("attention.{part}.bias")), &[TEXT]);
        }
        network = network
            .with(&name("mlp.fc1.weight"), &[2 * TEXT, TEXT])
            .with(&name("mlp.fc1.bias"), &[2 * TEXT])
            .with(&name("mlp.fc2.weight"), &[TEXT, 2 * TEXT])
            .with(&name("mlp.fc2.bias"), &[TEXT])
            .with(&name("layer_scale1.lambda1"), &[TEXT])
            .with(&name("layer_scale2.lambda1"), &[TEXT]);
        for norm in ["norm1", "norm2"] {
            network = network
                .with(&name(&format!("{norm}.weight")), &[TEXT])
                .with(&name(&format!("{norm}.bias")), &[TEXT]);
        }
    }
    network
}
