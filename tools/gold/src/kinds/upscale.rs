//! Networks that enlarge pictures.

use std::sync::Arc;

use anyhow::{Context, Result};
use fresco_models::ModelError;
use fresco_models::upscale::{UpscaleStore, Upscaler};
use fresco_tensor::{Device, Stored, Tensor, WeightFile, tiled_scale};

use super::Kind;
use crate::golden::{Golden, GoldenFile};
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[Kind::own(
    "upscale model",
    |golden| {
        let named = golden
            .about
            .get("architecture")
            .or(golden.about.get("arch"));
        named.is_some() && golden.about["scale"].is_u64() && golden.has("x") && golden.has("out")
    },
    upscale,
)];

/// The weights as a trainer writes them: with what follows from the network's shape and the goldens do not list.
fn file(golden: &Golden) -> Result<Arc<dyn WeightFile>> {
    let mut weights = golden.weights()?;
    for (name, value) in &mut weights {
        if name.ends_with(".running_var") {
            let spread = value.to_f32()?.mul_scalar(10.0).add_scalar(1.0);
            *value = Stored::from(&spread);
        }
    }
    let listed = golden.about["structural_buffers"].as_array();
    let listed = listed
        .into_iter()
        .flatten()
        .filter_map(|name| name.as_str());
    for name in listed {
        if name == "no_norm" {
            weights.insert(name.to_owned(), Stored::from(&Tensor::zeros([1])?));
        } else if name == "rpe_biases" {
            let split = golden.numbers("split_size").context("split_size")?;
            let largest = [split[0] as f32 - 1.0, split[1] as f32 - 1.0];
            let table = Tensor::from_vec([1, 2], largest.to_vec())?;
            let key = format!("layers.0.blocks.0.attn.attns.0.{name}");
            weights.insert(key, Stored::from(&table));
        }
    }
    Ok(Arc::new(GoldenFile {
        name: golden.name.clone(),
        weights,
    }))
}

fn upscale(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let found = UpscaleStore::find(&file(golden)?)?.on(device.clone());
    let scale = golden.about["scale"].as_u64().map(|n| n as usize);
    report.equal("scale", &Some(found.facts().scale), &scale);
    if let Some(minimum) = golden.about["size_requirements"]["minimum"].as_u64() {
        let minimum = (minimum as usize).max(1);
        report.equal("smallest size", &found.facts().minimum, &minimum);
    }
    let net: Upscaler = found.build()?;
    let x = golden.tensor("x")?;
    // With colours times 255 the signs inside of a SPAN hang by rounding: the same formulas in f64 are 1.6e-4 off, too, and
    // what is left after the range is cut to 0..1 is more.
    let rough =
        found.facts().kind == "SPAN" && !file(golden)?.names().iter().any(|n| n == "no_norm");
    let tolerance = if rough { 5e-3 } else { 1e-4 };
    report.check_within("out", &net.enlarge(&x)?, tolerance)?;
    for raw in ["raw", "raw_model_out"] {
        if golden.has(raw) {
            report.check_within(raw, &net.raw(&x)?, tolerance)?;
        }
    }
    let Some(x) = golden.maybe("x_tiled")? else {
        return Ok(());
    };
    for name in golden.tensors() {
        if name.starts_with("out_untiled") {
            report.check(&name, &net.enlarge(&x)?)?;
        } else if let Some(tiles) = name.strip_prefix("out_tiled_") {
            // `32x24_ov8`: width, height, overlap.
            let numbers: Vec<usize> = tiles
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|part| part.parse().ok())
                .collect();
            let &[width, height, overlap] = numbers.as_slice() else {
                continue;
            };
            let scale = found.facts().scale as f64;
            let one = |part: &Tensor| net.enlarge(part);
            let out = tiled_scale::<ModelError>(&x, [height, width], overlap, scale, one)?;
            report.check(&name, &out)?;
        }
    }
    Ok(())
}
