//! The UNet of Stable Diffusion and its control nets.

use anyhow::{Context, Result, anyhow};
use fresco_models::denoise::hooks::{BlockKind, ControlFeatures};
use fresco_models::sd::control::{ControlNet, LightAdapter, T2iAdapter};
use fresco_models::sd::unet::{First, Heads, Stage, UNet, UNetConfig};
use fresco_tensor::{Device, Tensor};

use fresco_models::detect::Claim;

use super::Kind;
use crate::golden::{self, Golden};
use crate::hooks;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::of(
        Claim::ControlNet,
        "control net for many kinds of hints",
        union,
    )
    .with(|golden| golden.has_key("spatial_ch_projs.weight")),
    Kind::of(Claim::ControlNet, "light T2I adapter", adapter)
        .with(|golden| golden.has_key("body.0.body.0.block1.weight")),
    Kind::of(Claim::ControlNet, "T2I adapter", adapter)
        .with(|golden| golden.has_key("body.0.block1.weight")),
    Kind::of(Claim::ControlNet, "control net of a UNet", control)
        .with(|golden| golden.has_key("zero_convs.0.0.weight")),
    Kind::diffusion("SD1.x", "UNet", unet).with(|golden| golden.has("out")),
];

/// The shapes say all but how wide heads are.
fn heads(golden: &Golden) -> Result<Heads> {
    match golden.config()["num_head_channels"].as_i64() {
        Some(width) if width > 0 => Ok(Heads::Width(width as usize)),
        _ => Ok(Heads::Count(golden.need("num_heads")?)),
    }
}

/// The noise levels for a batch: those of the golden, the last one again where they do not suffice.
fn levels(golden: &Golden, count: usize) -> Result<Vec<f32>> {
    let mut t = golden.values("t")?;
    let last = t.last().copied().context("t is empty")?;
    t.resize(count, last);
    Ok(t)
}

/// The network of a golden.
pub(super) fn network(golden: &Golden, device: &Device) -> Result<UNet> {
    let store = golden.store(device)?;
    let config = UNetConfig {
        heads: heads(golden)?,
        ..UNetConfig::detect(&store)?
    };
    Ok(UNet::new(&store, &config)?)
}

fn unet(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let net = network(golden, device)?;
    let context = golden.maybe("context")?;
    let y = golden.maybe("y")?;
    for (x, t, out) in [("x", "t", "out"), ("x_odd", "t_odd", "out_odd")] {
        let Some(input) = golden.maybe(x)? else {
            continue;
        };
        let count = input.dim(0)?;
        let t = match golden.maybe(t)? {
            Some(t) => t.into_vec(),
            // Odd sizes were made at one level.
            None if x == "x_odd" => vec![37.0; count],
            None => levels(golden, count)?,
        };
        let part = |all: &Option<Tensor>| -> Result<Option<Tensor>> {
            let cut = all.as_ref().map(|all| all.narrow(0, 0, count));
            Ok(cut.transpose()?)
        };
        let (context, y) = (part(&context)?, part(&y)?);
        let hooks = hooks::of::<UNet>();
        let found = net.forward(&input, &t, context.as_ref(), y.as_ref(), None, &hooks)?;
        report.check(out, &found)?;
    }
    Ok(())
}

fn control(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = UNetConfig {
        heads: heads(golden)?,
        ..UNetConfig::encoder(&store)?
    };
    let net = ControlNet::with(&store, config.clone())?;
    let seen = net.see(&golden.tensor("hint")?)?;
    let (x, t) = (golden.tensor("x")?, golden.values("t")?);
    let (context, y) = (golden.maybe("context")?, golden.maybe("y")?);
    let found = net.forward(&x, &seen, &t, context.as_ref(), y.as_ref())?;
    let lists = [(BlockKind::OUTPUT, "output"), (BlockKind::MIDDLE, "middle")];
    for (kind, name) in lists {
        for (n, features) in found.of(kind).iter().enumerate() {
            let features = features.as_ref().ok_or_else(|| anyhow!("no {name} {n}"))?;
            report.check(&format!("{name}/{n}"), features)?;
        }
    }
    let config = unet_below(&config, golden)?;
    let weights = golden::weights(&config.weights()?)?;
    let unet = UNet::new(&golden::store(&golden.name, weights, device), &config)?;
    let run = |control: Option<&ControlFeatures>| {
        let hooks = hooks::of::<UNet>();
        unet.forward(&x, &t, context.as_ref(), y.as_ref(), control, &hooks)
    };
    for name in golden.tensors() {
        if name == "unet_out_without" {
            report.check(&name, &run(None)?)?;
        } else if let Some(strength) = name.strip_prefix("unet_out_with_control_x") {
            let control = found.clone().scaled(strength.parse()?, false)?;
            report.check(&name, &run(Some(&control))?)?;
        }
    }
    Ok(())
}

/// A net that is told the kind of its hint: number 3, or none.
fn union(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = UNetConfig {
        heads: heads(golden)?,
        ..UNetConfig::encoder(&store)?
    };
    let net = ControlNet::with(&store, config)?;
    let hint = net.see(&golden.tensor("hint")?)?;
    let (x, t) = (golden.tensor("x")?, golden.values("t")?);
    let (context, y) = (golden.maybe("context")?, golden.maybe("y")?);
    for (types, output) in [(&[3][..], "out"), (&[], "auto")] {
        let seen = net.with_types(&hint, types)?;
        let found = net.forward_as(&x, &seen, &t, context.as_ref(), y.as_ref(), types)?;
        let middle = if output == "out" {
            "middle"
        } else {
            "auto_middle"
        };
        for (kind, name) in [(BlockKind::OUTPUT, output), (BlockKind::MIDDLE, middle)] {
            check_list(golden, report, &found, (kind, name))?;
        }
    }
    Ok(())
}

/// Compares the features of a kind with what the golden has of them.
fn check_list(
    golden: &Golden,
    report: &mut Report<'_>,
    found: &ControlFeatures,
    (kind, name): (BlockKind, &str),
) -> Result<()> {
    for (n, features) in found.of(kind).iter().enumerate() {
        let name = format!("{name}/{n}");
        match features {
            Some(features) if golden.has(&name) => report.check(&name, features)?,
            None if golden.has(&name) => report.fail(format!("there is no {name}")),
            _ => {}
        }
    }
    Ok(())
}

fn adapter(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let hint = golden.tensor("x")?;
    let found = if golden.has_key("body.0.body.0.block1.weight") {
        LightAdapter::new(&store)?.forward(&hint)?
    } else {
        T2iAdapter::new(&store)?.forward(&hint)?
    };
    for part in [(BlockKind::INPUT, "input"), (BlockKind::MIDDLE, "middle")] {
        check_list(golden, report, &found, part)?;
    }
    Ok(())
}

/// The whole UNet that a control net's encoder is of.
fn unet_below(config: &UNetConfig, golden: &Golden) -> Result<UNetConfig> {
    let residuals = golden.numbers("num_res_blocks").context("num_res_blocks")?;
    let mult = golden.numbers("channel_mult").context("channel_mult")?;
    let depths = golden.numbers("transformer_depth").context("depths")?;
    let mut depths = depths.as_slice();
    let mut levels = Vec::new();
    for (&count, &m) in residuals.iter().zip(&mult) {
        let (own, rest) = depths.split_at(count.min(depths.len()));
        levels.push((
            count,
            config.model_channels * m,
            own.last().copied().unwrap_or(0),
        ));
        depths = rest;
    }
    let mut output = Vec::new();
    for (level, &(count, channels, depth)) in levels.iter().enumerate().rev() {
        for n in 0..=count {
            output.push(Stage {
                first: First::Residual,
                channels,
                depth,
                up: level > 0 && n == count,
            });
        }
    }
    Ok(UNetConfig {
        output,
        out_channels: 4,
        ..config.clone()
    })
}
