//! The autoencoder of videos.

use anyhow::{Context, Result};
use fresco_models::ModelError;
use fresco_models::vae::{
    Autoencoder, CausalConfig, CausalVae, Tiles, TimeTiles, Vae, VaeConfig, names,
};
use fresco_tensor::{Axes, Device, Tensor};
use serde_json::Value;

use super::Kind;
use crate::golden::{self, Golden, sizes};
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::autoencoder(
        VaeConfig::is::<CausalConfig>,
        "autoencoder of pictures with opacity",
        still,
    )
    .with(|golden| golden.has("out.decoded")),
    Kind::autoencoder(
        VaeConfig::is::<CausalConfig>,
        "autoencoder of videos",
        causal,
    ),
];

/// With the names of diffusers.
fn still(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let weights = golden.weights()?;
    let keys: Vec<&str> = weights.keys().map(String::as_str).collect();
    let renamed = names::renamed(&keys).into_iter();
    let renamed = renamed.filter_map(|(ours, theirs)| Some((ours, weights.get(theirs)?.clone())));
    let store = golden::store(&golden.name, renamed.collect(), device);
    let config = VaeConfig::detect(&store)?;
    config.verify(&store)?;
    let net = CausalVae::new(&store)?;
    report.check("out.mean", &net.encode(&golden.tensor("img")?, &go)?)?;
    let decoded = net.decode(&golden.tensor("z")?, &go)?;
    report.check("out.decoded_unclamped", &decoded)?;
    report.check("out.decoded", &decoded.clamp(-1.0, 1.0))
}

fn go() -> Result<(), ModelError> {
    Ok(())
}

fn number(value: &Value, name: &str) -> Result<usize> {
    let found = value[name].as_u64();
    Ok(found.with_context(|| format!("no {name}"))? as usize)
}

/// Tiles as a golden says them.
fn tiles(value: &Value) -> Result<Tiles> {
    Ok(Tiles {
        x: number(value, "tile_x")?,
        y: number(value, "tile_y")?,
        overlap: number(value, "overlap")?,
        time: Some(TimeTiles {
            frames: number(value, "tile_t")?,
            overlap: number(value, "overlap_t")?,
        }),
    })
}

/// What `VAEDecodeTiled` makes of its numbers.
fn node_tiles(value: &Value, vae: &Vae) -> Result<Tiles> {
    let (tile, overlap) = (number(value, "tile_size")?, number(value, "overlap")?);
    let frames = number(value, "temporal_size")?;
    let shared = number(value, "temporal_overlap")?;
    Ok(Tiles::for_decoding(
        (tile, overlap),
        (frames, shared),
        vae.ratio(),
        vae.temporal_ratio(),
    ))
}

/// Every second row and column of (.., h, w, c).
fn halved(images: &Tensor) -> Result<Tensor> {
    let rank = images.rank();
    let every = |n: usize| -> Vec<usize> { (0..n).step_by(2).collect() };
    let rows = images.index_select(rank - 3, &every(images.dim(rank - 3)?))?;
    Ok(rows.index_select(rank - 2, &every(images.dim(rank - 2)?))?)
}

/// The frames (1, t, h, w, c) of a video, or of a batch of pictures, as a video.
fn as_video(images: Tensor) -> Result<Tensor> {
    Ok(if images.rank() == 4 {
        images.unsqueeze(0)?
    } else {
        images
    })
}

fn causal(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = VaeConfig::detect(&store)?;
    config.verify(&store)?;
    let vae = config.build(&store)?;
    let about = golden.config();
    if let Some(z) = golden.maybe("z")? {
        let decoded = as_video(vae.decode(&z, &go)?)?;
        if golden.has("decoded") {
            report.check("decoded", &decoded)?;
        }
        if golden.has("decoded_half") {
            report.check("decoded_half", &halved(&decoded)?)?;
        }
        if golden.has("decoded_mean_per_frame") {
            let means = decoded.mean(&[2, 3], Axes::Drop)?;
            report.check("decoded_mean_per_frame", &means)?;
        }
        if golden.has("decoded_tiled") {
            let made = vae.decode_tiled(&z, tiles(&about["decode_tiled"])?, &go)?;
            report.check("decoded_tiled", &halved(&as_video(made)?)?)?;
        }
        if golden.has("node_tiled_half") {
            let tiles = node_tiles(&about["node_VAEDecodeTiled"], &vae)?;
            let made = halved(&as_video(vae.decode_tiled(&z, tiles, &go)?)?)?;
            report.check("node_tiled_half", &made.squeeze(0)?)?;
        }
    }
    if golden.has("encoded") {
        let pixels = if let Some(pixels) = golden.maybe("pixels")? {
            pixels
        } else {
            let shape = sizes(&about["pixels_shape"]).context("no pixels_shape")?;
            golden.stream("pixels", Some(&shape))?
        };
        report.check("encoded", &vae.encode(&pixels, &go)?)?;
        if golden.has("encoded_tiled") {
            let made = vae.encode_tiled(&pixels, tiles(&about["encode_tiled"])?, &go)?;
            report.check("encoded_tiled", &made)?;
        }
    }
    Ok(())
}
