//! LTX-2: its transformer, connectors, autoencoders, vocoders and latent upsamplers.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use fresco_models::ltx2::sound::{self, SpectrogramConfig, SpectrogramVae, Vocoder, VocoderConfig};
use fresco_models::ltx2::text::{Projection, ProjectionConfig};
use fresco_models::ltx2::upsampler::{Growth, Upsampler, UpsamplerConfig};
use fresco_models::ltx2::{
    Connector, ConnectorConfig, DIFFUSERS, Ltx2Config, Ltx2Network, Ltx2Tokens,
};
use fresco_models::transformer::Shapes;
use fresco_models::vae::{Autoencoder, AutoencoderConfig, PixelNormConfig, PixelNormVae, names};
use fresco_models::waves::{GeneratorConfig, hann_filter, kaiser_filter};
use fresco_models::{DiffusionNetwork, ModelError, WeightStore};
use fresco_tensor::{Device, Stored, Tensor};
use serde_json::Value;

use fresco_models::vae::VaeConfig;

use fresco_models::detect::Claim;

use super::Kind;
use crate::golden::{Golden, keys, sizes, store, weights};
use crate::hooks;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::diffusion("LTX-2", "LTX-2", network),
    Kind::own(
        "connectors of LTX-2",
        |golden| golden.has_key("video_connector.learnable_registers"),
        connectors,
    ),
    Kind::own(
        "vocoders of LTX-2",
        |golden| golden.has_key("vocoder.conv_in.weight"),
        vocoders,
    ),
    Kind::own(
        "autoencoder of LTX-2's sound",
        |golden| golden.has_key("decoder.up.0.block.0.conv1.conv.weight") && golden.has("mel"),
        spectrograms,
    ),
    Kind::autoencoder(
        VaeConfig::is::<PixelNormConfig>,
        "autoencoder of LTX-2",
        vae,
    )
    .with(|golden| golden.has("video")),
    Kind::of(
        Claim::LatentUpscaler,
        "latent upsamplers of LTX-2",
        upsamplers,
    )
    .with(|golden| golden.has_key("post_upsample_res_blocks.0.conv2.bias")),
];

fn go() -> Result<(), ModelError> {
    Ok(())
}

/// Weights made from the names of diffusers, under ours.
fn with_diffusers(
    golden: &Golden,
    list: &[(String, Vec<usize>)],
    device: &Device,
) -> Result<Arc<WeightStore>> {
    let mut names: Vec<&str> = list.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    let keys: BTreeMap<&str, String> = DIFFUSERS
        .keys(&names)
        .into_iter()
        .map(|(ours, theirs)| (theirs, ours))
        .collect();
    renamed(golden, list, device, |name| {
        keys.get(name).cloned().unwrap_or_default()
    })
}

/// Weights made from the golden's names, under ours.
fn renamed(
    golden: &Golden,
    list: &[(String, Vec<usize>)],
    device: &Device,
    key: impl Fn(&str) -> String,
) -> Result<Arc<WeightStore>> {
    let made: BTreeMap<String, Stored> = weights(list)?
        .into_iter()
        .map(|(name, value)| (key(&name), value))
        .collect();
    Ok(store(&golden.name, made, device))
}

fn number(config: &Value, name: &str) -> Result<usize> {
    let found = config[name].as_u64().map(|n| n as usize);
    found.with_context(|| format!("the config has no {name}"))
}

fn network(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let configs = golden.about["configs"].as_object().context("configs")?;
    let geometry = &golden.about["geometry"];
    let grid = ["frames", "height", "width"].map(|name| number(geometry, name));
    let [frames, rows, columns] = grid;
    let grid = [frames?, rows?, columns?];
    let rate = golden.number_in_words(&["fps", "frame_rate"])? as f32;
    for (version, said) in configs {
        let mut list: BTreeMap<String, Vec<usize>> = golden.keys()?.into_iter().collect();
        if let Some(missing) = golden.about["keys_missing"][version].as_array() {
            for name in missing.iter().filter_map(Value::as_str) {
                list.remove(name);
            }
        }
        let other = &golden.about["keys_other"][version];
        if other.is_object() {
            list.extend(keys(other)?);
        }
        let list: Vec<_> = list.into_iter().collect();
        let store = with_diffusers(golden, &list, device)?;
        let mut config = Ltx2Config::detect(&store)?;
        config.video.heads = number(said, "num_attention_heads")?;
        config.sound.heads = number(said, "audio_num_attention_heads")?;
        config.split = said["rope_type"] == "split";
        let net = store.build(Ltx2Network::WHAT, |weights| {
            Ltx2Network::new(weights, &config)
        })?;
        let of = |name: &str| golden.tensor(&format!("{version}.{name}"));
        let (video, audio) = (of("x")?, of("audio")?);
        let (text, text_audio) = (of("text")?, of("text_audio")?);
        let (levels, audio_levels) = (of("timestep")?, of("audio_timestep")?);
        // As the golden says in words: the sound is noisy everywhere, so its level is that of all.
        let items = video.dim(0)?;
        let alone: Vec<f32> = audio_levels
            .data()
            .chunks((audio_levels.len() / items.max(1)).max(1))
            .filter_map(|item| item.first().copied())
            .collect();
        let tokens = video.dim(1)?;
        let marks = Tensor::from_fn([tokens], |i| f32::from(u8::from(i < grid[1] * grid[2])))?;
        let pass = Ltx2Tokens {
            video: &video,
            grid,
            sound: Some(&audio),
            text: [&text, &text_audio],
            mask: None,
            levels: levels.data(),
            sound_levels: audio_levels.data(),
            alone: &alone,
            rate,
            keyframes: None,
            marks: config.marked.then_some(&marks),
            earlier: 0,
            kept: None,
        };
        let (out, sound) = net.pass(&pass, &hooks::of::<Ltx2Network>())?;
        report.check(&format!("out.{version}.video"), &out)?;
        let sound = sound.context("no sound came out")?;
        report.check(&format!("out.{version}.audio"), &sound)?;
    }
    Ok(())
}

fn connectors(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let configs = golden.about["configs"].as_object().context("configs")?;
    for (version, said) in configs {
        let own = &golden.about[format!("keys_{version}")];
        let list = if own.is_object() {
            keys(own)?
        } else {
            golden.keys()?
        };
        let store = with_diffusers(golden, &list, device)?;
        let hidden = golden.tensor(&format!("{version}.hidden"))?;
        let mask = golden.tensor(&format!("{version}.mask"))?;
        let layers = number(said, "text_proj_in_factor")?;
        let [items, length, width] = hidden.dims3()?;
        if items != 1 {
            bail!(
                "texts of different lengths are projected one by one, and this golden has {items}"
            );
        }
        let states = hidden.reshape([items, length, width / layers, layers])?;
        let words = mask.data().iter().enumerate().filter(|(_, v)| **v != 0.0);
        let words: Vec<usize> = words.map(|(at, _)| at).collect();
        let states = states.permute(&[0, 3, 1, 2])?.index_select(2, &words)?;
        let projection = ProjectionConfig::detect(&store)?;
        let projection = store.build("the projection", |weights| {
            Projection::new(weights, &projection)
        })?;
        let made = projection.forward(&states)?;
        let mut first = 0;
        for (part, name) in [
            ("video", "video_embeddings_connector"),
            ("audio", "audio_embeddings_connector"),
        ] {
            let config = ConnectorConfig::detect(Shapes(&store), name)?;
            let config = config.context("no connector")?;
            let config = ConnectorConfig {
                heads: number(said, &format!("{part}_connector_num_attention_heads"))?,
                reach: number(said, "connector_rope_base_seq_len")? as f32,
                split: said["rope_type"] == "split",
                ..config
            };
            let net = store.build("the connector", |weights| {
                Connector::new(&weights.at(name), &config)
            })?;
            let own = if made.dim(2)? == config.dim {
                made.clone()
            } else {
                let own = made.narrow(2, first, config.dim)?;
                first += config.dim;
                own
            };
            let out = net.forward(&own, length)?;
            report.check(&format!("out.{version}.{part}"), &out)?;
        }
    }
    Ok(())
}

/// Steps and blocks as the golden's config has them.
fn generator(mut config: GeneratorConfig, said: &Value, before: &str) -> Result<GeneratorConfig> {
    let list = |name: &str| {
        sizes(&said[format!("{before}{name}")]).with_context(|| format!("no {before}{name}"))
    };
    let (factors, taps) = (list("upsample_factors")?, list("upsample_kernel_sizes")?);
    config.steps = factors.into_iter().zip(taps).collect();
    let apart = said[format!("{before}resnet_dilations")].as_array();
    let apart = apart.context("dilations")?.iter().map(sizes);
    let apart: Option<Vec<Vec<usize>>> = apart.collect();
    let taps = list("resnet_kernel_sizes")?;
    config.blocks = taps.into_iter().zip(apart.context("dilations")?).collect();
    Ok(config)
}

fn vocoders(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let mel = golden.tensor("mel")?;
    let key = |name: &str| sound::native(&format!("vocoder.{name}"));
    let build = |version: &str, list: &[(String, Vec<usize>)]| -> Result<Vocoder> {
        let said = &golden.about["configs"][version];
        let store = renamed(golden, list, device, key)?;
        let config = VocoderConfig::detect(&store, "vocoder.")?;
        let mut config = config.context("no vocoder")?;
        config.generator = generator(config.generator, said, "")?;
        if let Some(wide) = &mut config.widen {
            wide.generator = generator(wide.generator.clone(), said, "bwe_")?;
            wide.hop = number(said, "hop_length")?;
        }
        Ok(store.build("the vocoder", |weights| {
            Vocoder::new(&weights.at("vocoder"), &config)
        })?)
    };
    let old = build("v20", &keys(&golden.about["keys_v20"])?)?;
    report.check("out.v20", &old.forward(&mel, &go)?.wave)?;
    let made = build("v23", &golden.keys()?)?.forward(&mel, &go)?;
    report.check("out.v23_core", &made.first)?;
    report.check("out.v23_logmel", &made.bands.context("bands")?)?;
    report.check("out.v23_residual", &made.added.context("added")?)?;
    report.check("out.v23_upsampled", &made.longer.context("longer")?)?;
    report.check("out.v23_bwe", &made.wave)?;
    let line = |values: Vec<f32>| Tensor::from_vec([1, 1, values.len()], values);
    report.check("filter_kaiser", &line(kaiser_filter(0.25, 0.3, 12))?)?;
    report.check("filter_hann", &line(hann_filter(3))?)
}

fn spectrograms(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = SpectrogramConfig {
        measured: None,
        ..SpectrogramConfig::detect(&store, "")?
    };
    let net = store.build("the autoencoder", |weights| {
        SpectrogramVae::new(weights, &config)
    })?;
    let mean = net.encode_plain(&golden.tensor("mel")?, &go)?;
    report.check("out.mean", &mean)?;
    let mel = net.decode_plain(&golden.tensor("z")?, &go)?;
    report.check("out.mel", &mel)
}

/// The autoencoder, without what is measured.
fn vae(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let all = golden.keys()?;
    let own: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    let pairs: BTreeMap<String, String> = names::renamed(&own)
        .into_iter()
        .map(|(ours, theirs)| (theirs.to_owned(), ours))
        .collect();
    let store = renamed(golden, &all, device, |name| {
        pairs.get(name).cloned().unwrap_or_default()
    })?;
    let said = golden.config();
    let residual = said["upsample_residual"].as_array();
    let repeated = residual.is_some_and(|list| list.iter().any(|v| v == true));
    let config = PixelNormConfig {
        measured: false,
        mirrored: said["decoder_spatial_padding_mode"] == "reflect",
        repeated,
        ..PixelNormConfig::detect(&store)?
    };
    config.verify(&store)?;
    let net = PixelNormVae::with(&store, &config)?;
    let tensors = golden.tensors();
    let named = |end: &str| {
        let found = tensors
            .iter()
            .find(|name| name.starts_with("out.") && name.ends_with(end));
        found.cloned().with_context(|| format!("no {end}"))
    };
    let mean = net.encode(&golden.tensor("video")?, &go)?;
    report.check(&named(".mean")?, &mean)?;
    let decoded = net.decode_plain(&golden.tensor("z")?, None, &go)?;
    report.check(&named(".decoded")?, &decoded)
}

fn upsamplers(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let x = golden.tensor("x")?;
    let configs = golden.about["configs"].as_object().context("configs")?;
    for (version, said) in configs {
        let own = &golden.about[format!("keys_{version}")];
        let mut list = if own.is_object() {
            keys(own)?
        } else {
            golden.keys()?
        };
        let scale = said["rational_spatial_scale"].as_f64().unwrap_or(2.0);
        let known = [(0.75, (3, 4)), (1.5, (3, 2)), (2.0, (2, 1)), (4.0, (4, 1))];
        let found = known.iter().find(|(at, _)| *at == scale);
        let (times, kept) = found.context("an unknown scale")?.1;
        let mid = number(said, "mid_channels")?;
        for (name, shape) in &mut list {
            // The list is that of one scale.
            if name.starts_with("upsampler.conv.") {
                shape[0] = times * times * mid;
            }
        }
        let store = renamed(golden, &list, device, ToOwned::to_owned)?;
        let mut config = UpsamplerConfig::detect(&store)?;
        if let Growth::Space { kept: found, .. } = &mut config.growth {
            *found = if config.named { kept } else { 1 };
        }
        let net = Upsampler::with(&store, &config)?;
        report.check(&format!("out.{version}"), &net.forward(&x, &go)?)?;
    }
    Ok(())
}
