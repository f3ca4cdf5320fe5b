//! PixArt, AuraFlow, HunyuanDiT, Stable Cascade with its autoencoder.

use anyhow::{Context, Result};
use fresco_models::aura_flow::{AuraFlowConfig, AuraFlowNetwork};
use fresco_models::cascade::{CascadeConfig, CascadeLevel, CascadeNetwork};
use fresco_models::hunyuan_dit::{HunyuanDitConfig, HunyuanDitNetwork};
use fresco_models::pixart::{PixArtConfig, PixArtNetwork};
use fresco_models::vae::{Autoencoder, QuantisedConfig, QuantisedVae};
use fresco_tensor::{Device, Stored, Tensor};

use fresco_models::vae::VaeConfig;

use super::{Kind, pass};
use crate::golden::{self, Golden};
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::diffusion("PixArt", "PixArt", pixart),
    Kind::diffusion("AuraFlow", "AuraFlow", aura_flow),
    Kind::diffusion("HunyuanDiT", "HunyuanDiT", hunyuan_dit),
    Kind::diffusion("Stable Cascade", "Stable Cascade", cascade),
    Kind::autoencoder(
        VaeConfig::is::<QuantisedConfig>,
        "autoencoder of Stable Cascade",
        quantised,
    ),
];

/// The levels of all items.
fn levels(golden: &Golden, name: &str, x: &Tensor) -> Result<Vec<f32>> {
    let mut levels = golden.values(name)?;
    let last = levels.last().copied().context("there is no noise level")?;
    levels.resize(x.dim(0)?, last);
    Ok(levels)
}

fn pixart(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let config = PixArtConfig {
        heads: golden.need("num_heads")?,
        interpolation: golden.float("pe_interpolation"),
        ..PixArtConfig::detect(&*golden.store(device)?)?
    };
    let net: PixArtNetwork = pass::network(golden, device, &config)?;
    let x = golden.tensor("x")?;
    let t = levels(golden, "t", &x)?;
    for (out, sized) in [("out", true), ("out/default_size", false)] {
        if !golden.has(out) {
            continue;
        }
        let size = |name: &str| -> Result<Option<Tensor>> {
            let found = if sized { golden.maybe(name)? } else { None };
            Ok(found)
        };
        let conds = pass::conds([
            ("c_crossattn", Some(golden.tensor("context")?)),
            ("c_size", size("c_size")?),
            ("c_ar", size("c_ar")?),
        ]);
        report.check(out, &pass::forward(&net, &x, &t, &conds)?)?;
    }
    Ok(())
}

fn aura_flow(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let config = AuraFlowConfig {
        heads: golden.need("n_heads")?,
        ..AuraFlowConfig::detect(&*golden.store(device)?)?
    };
    let net: AuraFlowNetwork = pass::network(golden, device, &config)?;
    for (name, out) in [("x", "out"), ("xbig", "out/xbig")] {
        let Some(x) = golden.maybe(name)? else {
            continue;
        };
        let t = levels(golden, "t", &x)?;
        let context = golden.tensor("context")?;
        let context = pass::items(Some(context), x.dim(0)?)?;
        let conds = pass::conds([("c_crossattn", context)]);
        report.check(out, &pass::forward(&net, &x, &t, &conds)?)?;
    }
    Ok(())
}

fn hunyuan_dit(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let config = HunyuanDitConfig {
        heads: golden.need("num_heads")?,
        ..HunyuanDitConfig::detect(&*golden.store(device)?)?
    };
    let net: HunyuanDitNetwork = pass::network(golden, device, &config)?;
    let x = golden.tensor("x")?;
    let conds = pass::conds([
        ("c_crossattn", Some(golden.tensor("context")?)),
        ("attention_mask", golden.maybe("mask")?),
        ("conditioning_mt5xl", Some(golden.tensor("t5")?)),
        ("attention_mask_mt5xl", golden.maybe("mask_t5")?),
        ("image_meta_size", golden.maybe("image_meta_size")?),
    ]);
    let t = levels(golden, "t", &x)?;
    report.check("out", &pass::forward(&net, &x, &t, &conds)?)
}

fn cascade(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let mut config = CascadeConfig::detect(&*golden.store(device)?)?;
    // Levels without attention say -1.
    let heads = golden.config()["nhead"].as_array().context("nhead")?;
    let heads: Vec<Option<usize>> = heads
        .iter()
        .map(|n| n.as_u64().map(|n| n as usize))
        .collect();
    let set = |level: &mut CascadeLevel, heads: Option<&Option<usize>>| {
        if let Some(Some(heads)) = heads {
            level.heads = *heads;
        }
    };
    for (number, level) in config.down.iter_mut().enumerate() {
        set(level, heads.get(number));
    }
    for (number, level) in config.up.iter_mut().rev().enumerate() {
        set(level, heads.get(number));
    }
    let net: CascadeNetwork = pass::network(golden, device, &config)?;
    let x = golden.tensor("x")?;
    let conds = pass::conds([
        ("c_crossattn", golden.maybe("clip_text")?),
        ("clip_text_pooled", golden.maybe("clip_text_pooled")?),
        ("clip_img", golden.maybe("clip_img")?),
        ("clip", golden.maybe("clip")?),
        ("effnet", golden.maybe("effnet")?),
    ]);
    let r = levels(golden, "r", &x)?;
    report.check("out", &pass::forward(&net, &x, &r, &conds)?)
}

fn quantised(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let mut weights = golden.weights()?;
    for (key, weight) in &mut weights {
        // No variance is near zero, or below.
        if key.ends_with(".running_var") {
            let value = weight.to_f32()?.mul_scalar(10.0).add_scalar(1.0);
            *weight = Stored::from(&value);
        }
    }
    let store = golden::store(&golden.name, weights, device);
    let net = QuantisedVae::new(&store)?;
    let check = || Ok(());
    report.check("z", &net.encode(&golden.tensor("x")?, &check)?)?;
    report.check("dec", &net.decode(&golden.tensor("z_in")?, &check)?)
}
