//! OmniGen 2, Kandinsky 5, HiDream.

use anyhow::{Context, Result};
use fresco_models::denoise::CondValue;
use fresco_models::hidream::{HiDreamConfig, HiDreamNetwork};
use fresco_models::kandinsky::{KandinskyConfig, KandinskyNetwork};
use fresco_models::omnigen2::{OmniGenConfig, OmniGenNetwork};
use fresco_tensor::Device;

use super::{Kind, pass};
use crate::golden::Golden;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::diffusion("OmniGen 2", "OmniGen 2", omnigen),
    Kind::diffusion("Kandinsky 5", "Kandinsky 5", kandinsky),
    Kind::diffusion("HiDream", "HiDream", hidream),
];

/// The noise levels of all items.
fn levels(golden: &Golden) -> Result<Vec<f32>> {
    let mut levels = golden.values("t")?;
    let last = levels.last().copied().context("t is empty")?;
    levels.resize(golden.tensor("x")?.dim(0)?, last);
    Ok(levels)
}

fn omnigen(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let config = OmniGenConfig {
        axes: golden.numbers("axes_dim_rope").context("axes_dim_rope")?,
        ..OmniGenConfig::detect(&*golden.store(device)?)?
    };
    let net: OmniGenNetwork = pass::network(golden, device, &config)?;
    let x = golden.tensor("x")?;
    let mut conds = pass::conds([("c_crossattn", Some(golden.tensor("context")?))]);
    report.check("out", &pass::forward(&net, &x, &levels(golden)?, &conds)?)?;
    let mut references = Vec::new();
    while let Some(reference) = golden.maybe(&format!("ref{}", references.len()))? {
        references.push(reference);
    }
    if !references.is_empty() {
        conds.0.insert("ref_latents", CondValue::List(references));
        let out = pass::forward(&net, &x, &levels(golden)?, &conds)?;
        report.check("out/refs", &out)?;
    }
    Ok(())
}

fn kandinsky(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let scale = golden.config()["rope_scale_factor"].as_array();
    let apart = scale.and_then(|list| list.get(1)?.as_f64());
    let config = KandinskyConfig {
        axes: golden.numbers("axes_dims").context("axes_dims")?,
        apart: apart.context("rope_scale_factor")?,
        ..KandinskyConfig::detect(&*golden.store(device)?)?
    };
    let net: KandinskyNetwork = pass::network(golden, device, &config)?;
    let conds = pass::conds([
        ("c_crossattn", Some(golden.tensor("context")?)),
        ("y", Some(golden.tensor("y")?)),
    ]);
    let x = golden.tensor("x")?;
    report.check("out", &pass::forward(&net, &x, &levels(golden)?, &conds)?)?;
    if golden.has("out_replace") {
        let mut conds = conds;
        let given = CondValue::Regular(golden.tensor("time_dim_replace")?);
        conds.0.insert("time_dim_replace", given);
        let found = pass::forward(&net, &x, &levels(golden)?, &conds)?;
        report.check("out_replace", &found)?;
    }
    Ok(())
}

fn hidream(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let config = HiDreamConfig {
        axes: golden.numbers("axes_dims_rope").context("axes_dims_rope")?,
        heads: golden.need("num_attention_heads")?,
        asked: golden.need("num_activated_experts")?,
        ..HiDreamConfig::detect(&*golden.store(device)?)?
    };
    let net: HiDreamNetwork = pass::network(golden, device, &config)?;
    let x = golden.tensor("x")?;
    for (picture, out) in [(None, "out"), (Some("image_cond"), "out/image_cond")] {
        if !golden.has(out) {
            continue;
        }
        let picture = picture.map(|name| golden.tensor(name)).transpose()?;
        let conds = pass::conds([
            ("c_crossattn", Some(golden.tensor("context")?)),
            ("conditioning_llama3", Some(golden.tensor("llama")?)),
            ("y", Some(golden.tensor("y")?)),
            ("image_cond", picture),
        ]);
        report.check(out, &pass::forward(&net, &x, &levels(golden)?, &conds)?)?;
    }
    Ok(())
}
