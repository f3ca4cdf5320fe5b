//! MiniMax H3: its transformer and its autoencoders.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use fresco_models::minimax::sound::{SoundConfig, SoundVae};
use fresco_models::minimax::{MiniMaxConfig, MiniMaxNetwork, Segment, Sequence, Tokens};
use fresco_models::vae::pieces::LevelConfig;
use fresco_models::vae::{AutoencoderConfig, PieceConfig, PieceVae, names};
use fresco_models::waves::kaiser_filter;
use fresco_models::{DiffusionNetwork, ModelError};
use fresco_tensor::{Device, Tensor};

use fresco_models::vae::VaeConfig;

use super::Kind;
use crate::golden::{Golden, keys, sizes, store, weights};
use crate::hooks;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::diffusion("MiniMax H3", "MiniMax H3", network),
    Kind::autoencoder(
        VaeConfig::is::<PieceConfig>,
        "autoencoder of MiniMax H3",
        vae,
    ),
    Kind::own(
        "autoencoder of MiniMax H3's sound",
        |golden| golden.has_key("pre_block.attn.q_bias"),
        sound,
    ),
];

fn go() -> Result<(), ModelError> {
    Ok(())
}

/// What the rows of the sequence are, from their kinds: words first, then as they come.
fn segments(words: usize, tags: &[usize]) -> Vec<Segment> {
    let mut found = vec![Segment {
        of: Tokens::Words,
        count: words,
    }];
    for tag in &tags[words..] {
        let of = match tag {
            2 => Tokens::Sound,
            _ => Tokens::Pictures,
        };
        match found.last_mut() {
            Some(last) if last.of == of => last.count += 1,
            _ => found.push(Segment { of, count: 1 }),
        }
    }
    found
}

fn network(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let plain = golden.keys()?;
    let mut pruned: BTreeMap<String, Vec<usize>> = plain.iter().cloned().collect();
    pruned.retain(|key, _| !key.starts_with("time_embedder."));
    pruned.extend(keys(&golden.about["keys_pruned"])?);
    let pruned: Vec<_> = pruned.into_iter().collect();
    let tensors = golden.tensors();
    for (form, list) in [("full", &plain), ("pruned", &pruned)] {
        let store = store(&golden.name, weights(list)?, device);
        let mut config = MiniMaxConfig::detect(&store)?;
        config.axis = golden.need("rope_freq_dim")?;
        let net = store.build(MiniMaxNetwork::WHAT, |weights| {
            MiniMaxNetwork::new(weights, &config)
        })?;
        let cases = tensors
            .iter()
            .filter_map(|name| name.strip_suffix(".position_ids"));
        for case in cases {
            let of = |name: &str| golden.tensor(&format!("{case}.{name}"));
            let whole = |name: &str| -> Result<Vec<usize>> {
                Ok(of(name)?.data().iter().map(|v| *v as usize).collect())
            };
            let (words, tags) = (of("text")?, whole("token_tags")?);
            let places = of("position_ids")?;
            let (times, labels) = (of("timestep")?, whole("timestep_indices")?);
            let sequence = Sequence {
                words: &words,
                pictures: &of("video")?,
                sound: &of("audio")?,
                segments: &segments(words.dim(1)?, &tags),
                places: places.data(),
                tags: &tags,
                times: times.data(),
                labels: &labels,
            };
            let (video, audio) = net.pass(&sequence, &hooks::of::<MiniMaxNetwork>())?;
            report.check(&format!("out.{form}.{case}.video"), &video)?;
            report.check(&format!("out.{form}.{case}.audio"), &audio)?;
        }
    }
    Ok(())
}

/// The autoencoder with colours and latents as the network has them.
fn vae(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let all = golden.keys()?;
    let own: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    let pairs = names::renamed(&own);
    let made = weights(&all)?;
    let made = pairs
        .into_iter()
        .filter_map(|(ours, theirs)| Some((ours, made.get(theirs)?.clone())));
    let store = store(&golden.name, made.collect(), device);
    let found = PieceConfig::detect(&store)?;
    let space = golden
        .numbers("spatial_downsample_factors")
        .context("space")?;
    let time = golden
        .numbers("temporal_downsample_factors")
        .context("time")?;
    let levels = found
        .levels
        .iter()
        .enumerate()
        .map(|(at, level)| LevelConfig {
            steps: level.steps.map(|_| (time[at], space[at])),
            ..*level
        });
    let config = PieceConfig {
        levels: levels.collect(),
        groups: golden.need("norm_num_groups")?,
        heads: golden.need("decoder_num_attention_heads")?,
        piece: golden.need("clip_length")?,
        dropped: golden.need("token_drop")?,
        measured: false,
        ..found
    };
    config.verify(&store)?;
    let net = PieceVae::with(&store, &config)?;
    for name in ["img", "clip"] {
        let mean = net.encode_plain(&golden.tensor(name)?, &go)?;
        report.check(&format!("out.{name}.mean"), &mean)?;
    }
    let clip = net.decode_piece(&golden.tensor("z_one_clip")?, &go)?;
    report.check("out.one_clip", &clip)?;
    let decoded = net.decode_plain(&golden.tensor("z")?, &go)?;
    report.check("out.decoded", &decoded)
}

fn sound(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let mut config = SoundConfig::detect(&store)?;
    config.heads = golden.need("num_attention_heads")?;
    config.steps = golden.numbers("encoder_rates").context("encoder_rates")?;
    let (rates, taps) = (
        golden.numbers("decoder_rates").context("decoder_rates")?,
        golden.numbers("decoder_kernel_sizes").context("kernels")?,
    );
    config.generator.steps = rates.into_iter().zip(taps).collect();
    let apart = golden.config()["resblock_dilation_sizes"].as_array();
    let apart: Option<Vec<_>> = apart.context("dilations")?.iter().map(sizes).collect();
    let taps = golden.numbers("resblock_kernel_sizes").context("kernels")?;
    config.generator.blocks = taps.into_iter().zip(apart.context("dilations")?).collect();
    let net = SoundVae::with(&store, &config)?;
    let mean = net.encode_plain(&golden.tensor("wave")?, &go)?;
    report.check("out.mean", &mean)?;
    let wave = net.decode_plain(&golden.tensor("z")?, &go)?;
    report.check("out.wave_unclamped", &wave)?;
    report.check("out.wave", &wave.clamp(-1.0, 1.0))?;
    let filter = kaiser_filter(0.25, 0.3, 12);
    report.check("filter", &Tensor::from_vec([1, 1, filter.len()], filter)?)
}
