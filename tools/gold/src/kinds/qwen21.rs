//! Qwen-Image 2.1: the transformer.

use anyhow::{Context, Result, bail};
use fresco_models::DiffusionNetwork;
use fresco_models::denoise::hooks::Hooks;
use fresco_models::qwen_image21::{Inputs, PrefixCache, Qwen21Config, Qwen21Network};
use fresco_tensor::{Device, Tensor};
use serde_json::Value;

use super::Kind;
use crate::golden::{Golden, sizes};
use crate::hooks;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[Kind::diffusion("Qwen-Image 2.1", "Qwen-Image 2.1", network)];

/// One part of a golden's sequence.
enum Part {
    Text(usize),
    Picture(usize),
}

fn parts(case: &Value) -> Result<Vec<Part>> {
    let list = case["slots"].as_array().context("slots")?;
    list.iter()
        .map(|part| {
            let number = part[1].as_u64().context("a number")? as usize;
            Ok(match part[0].as_str() {
                Some("t") => Part::Text(number),
                Some("i") => Part::Picture(number),
                other => bail!("{other:?} is no part of a sequence"),
            })
        })
        .collect()
}

/// Tokens (1, h * w, c) as a latent (1, c, h, w).
fn latent(tokens: &Tensor, (h, w): (usize, usize)) -> Result<Tensor> {
    let [_, _, c] = tokens.dims3()?;
    Ok(tokens.reshape([1, h, w, c])?.nhwc_to_nchw()?)
}

fn network(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let mut config = Qwen21Config::detect(&store)?;
    if let Some(axes) = golden.numbers("axes_dims_rope") {
        let axes = <[usize; 3]>::try_from(axes).ok();
        config.axes = axes.context("axes_dims_rope has three numbers")?;
    }
    let net = store.build(Qwen21Network::WHAT, |weights| {
        Qwen21Network::new(weights, &config)
    })?;
    let cases = golden.about["cases"].as_array().context("cases")?;
    for (number, case) in cases.iter().enumerate() {
        let shapes = case["img_shapes"].as_array().context("img_shapes")?;
        let shapes: Vec<(usize, usize)> = shapes
            .iter()
            .map(|shape| match sizes(shape).as_deref() {
                Some(&[_, h, w]) => Ok((h, w)),
                _ => bail!("{shape} is not a size of a picture"),
            })
            .collect::<Result<_>>()?;
        let x = golden.tensor(&format!("{number}.x"))?;
        let (mut pictures, mut at) = (Vec::new(), 0);
        for &(h, w) in &shapes {
            pictures.push(latent(&x.narrow(1, at, h * w)?, (h, w))?);
            at += h * w;
        }
        let target = pictures.pop().context("there is no picture to make")?;
        let rows = golden.tensor(&format!("{number}.txt"))?;
        // Which rows are of pictures is said by the parts, too.
        golden.tensor(&format!("{number}.img_mask"))?;
        let (mut kept, mut slots, mut row) = (Vec::new(), vec![0; pictures.len()], 0);
        for part in parts(case)? {
            match part {
                Part::Text(count) => {
                    kept.extend(row..row + count);
                    row += count;
                }
                Part::Picture(picture) => {
                    let (h, w) = *shapes.get(picture).context("no such picture")?;
                    *slots.get_mut(picture).context("no such picture")? = kept.len();
                    row += h * w / 4;
                }
            }
        }
        let context = rows.index_select(1, &kept)?;
        let timesteps = golden.values(&format!("{number}.timestep"))?;
        let run = |hooks: &Hooks| -> Result<Tensor> {
            let made = net.predict(&Inputs {
                x: &target,
                timesteps: &timesteps,
                context: &context,
                references: &pictures,
                slots: &slots,
                hooks,
            })?;
            let [_, c, h, w] = made.dims4()?;
            Ok(made.nchw_to_nhwc()?.reshape([1, h * w, c])?)
        };
        let name = format!("out.{number}");
        report.check(&name, &run(&hooks::of::<Qwen21Network>())?)?;
        // What is kept for the steps that follow changes nothing.
        let mut hooks = hooks::of::<Qwen21Network>();
        hooks
            .beside
            .push(std::sync::Arc::new(PrefixCache::default()));
        for _ in 0..2 {
            report.check(&name, &run(&hooks)?)?;
        }
    }
    Ok(())
}
