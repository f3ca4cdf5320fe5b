//! Flux 1 and 2, Chroma, Ovis-Image.

use anyhow::{Context, Result};
use fresco_models::control::{ControlInput, ControlNetwork};
use fresco_models::denoise::hooks::{BlockKind, ControlFeatures};
use fresco_models::denoise::{CallConds, Cond, CondValue, EncodeArgs};
use fresco_models::flux::control::{FluxControl, FluxControlConfig};
use fresco_models::flux::{FluxConfig, FluxNetwork};
use fresco_models::{DiffusionNetwork, LatentFormat};
use fresco_tensor::{Device, Tensor};

use fresco_models::detect::Claim;

use super::Kind;
use super::pass::{conds, forward, items, network};
use crate::golden::Golden;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::of(Claim::ControlNet, "control net of Flux", control)
        .with(|golden| golden.any_key("double_blocks.")),
    Kind::diffusion("Flux.1", "Flux", run),
];

pub(super) fn config(golden: &Golden) -> Result<FluxConfig> {
    let mut config = FluxConfig::detect(&*golden.store(&Device::cpu())?)?;
    set(golden, &mut config)?;
    Ok(config)
}

/// What shapes do not say.
fn set(golden: &Golden, config: &mut FluxConfig) -> Result<()> {
    config.heads = golden.need("num_heads")?;
    config.axes = golden.numbers("axes_dim").context("axes_dim")?;
    config.theta = golden.float("theta").context("theta")?;
    if let (Some(pixels), Some(clean)) = (&mut config.pixels, golden.config()["use_x0"].as_bool()) {
        pixels.clean = clean;
    }
    config.reference_step = golden
        .float("ref_index_scale")
        .unwrap_or(config.reference_step);
    Ok(())
}

/// The golden's inputs for a batch.
fn inputs(golden: &Golden, count: usize, guided: bool) -> Result<CallConds> {
    Ok(conds([
        ("c_crossattn", items(golden.maybe("context")?, count)?),
        ("y", items(golden.maybe("y")?, count)?),
        (
            "guidance",
            if guided {
                items(golden.maybe("guidance")?, count)?
            } else {
                None
            },
        ),
    ]))
}

fn levels(golden: &Golden, count: usize) -> Result<Vec<f32>> {
    let mut t = golden.values("t")?;
    t.truncate(count);
    Ok(t)
}

fn run(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let config = config(golden)?;
    let net: FluxNetwork = network(golden, device, &config)?;
    let mut x = golden.tensor("x")?;
    let count = x.dim(0)?;
    if golden.has("c_concat") {
        let beside = beside(golden, &config, report)?;
        x = Tensor::cat(&[&x, &beside], 1)?;
    }
    let t = levels(golden, count)?;
    let plain = inputs(golden, count, true)?;
    report.check("out", &forward(&net, &x, &t, &plain)?)?;
    if let Some(odd) = golden.maybe("x_odd")? {
        let count = odd.dim(0)?;
        let conds = inputs(golden, count, true)?;
        let found = forward(&net, &odd, &levels(golden, count)?, &conds)?;
        report.check("out_odd", &found)?;
    }
    for name in ["out_no_guidance", "out/no_guidance"] {
        if let Some(expected) = golden.maybe(name)? {
            let count = expected.dim(0)?;
            let conds = inputs(golden, count, false)?;
            let x = x.narrow(0, 0, count)?;
            let found = forward(&net, &x, &levels(golden, count)?, &conds)?;
            report.check(name, &found)?;
        }
    }
    references(golden, &net, &x, report)
}

/// Runs with pictures beside: the method is in the result's name.
fn references(
    golden: &Golden,
    net: &FluxNetwork,
    x: &Tensor,
    report: &mut Report<'_>,
) -> Result<()> {
    let all = golden.tensors();
    let mut names: Vec<&String> = all.iter().filter(|name| is_reference(name)).collect();
    names.sort();
    let list: Vec<Tensor> = names
        .into_iter()
        .map(|name| golden.tensor(name))
        .collect::<Result<_>>()?;
    if list.is_empty() {
        return Ok(());
    }
    for name in &all {
        let Some((start, method)) = name
            .rsplit_once('_')
            .filter(|(start, _)| start.starts_with("out_ref") || start.starts_with("out/ref"))
        else {
            continue;
        };
        let _ = start;
        let count = golden.tensor(name)?.dim(0)?;
        let mut conds = inputs(golden, count, true)?;
        conds.0.insert("ref_latents", CondValue::List(list.clone()));
        conds
            .0
            .insert("ref_latents_method", CondValue::Word(method.into()));
        let x = x.narrow(0, 0, count)?;
        let found = forward(net, &x, &levels(golden, count)?, &conds)?;
        report.check(name, &found)?;
    }
    Ok(())
}

/// `ref`, `ref0`, `ref1` ...
fn is_reference(name: &str) -> bool {
    name.strip_prefix("ref")
        .is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
}

/// What a model that fills gets beside its latent.
fn beside(golden: &Golden, config: &FluxConfig, report: &mut Report<'_>) -> Result<Tensor> {
    let noise = golden.tensor("noise")?;
    let mut cond = Cond {
        tokens: golden.maybe("context")?,
        pooled: golden.maybe("y")?,
        ..Cond::default()
    };
    let encoded = |cond: &Cond| -> Result<Tensor> {
        let args = EncodeArgs {
            cond,
            noise: &noise,
            latent: None,
            denoise_mask: None,
            width: 0.0,
            height: 0.0,
            prompt_type: "positive",
        };
        let made = FluxNetwork::encode(config, &golden.name, &args)?;
        let made = made.get("c_concat").and_then(CondValue::tensor);
        Ok(made.context("no c_concat")?.clone())
    };
    if golden.has("c_concat_none_lastch") {
        let none = encoded(&cond)?;
        let last = none.narrow(1, none.dim(1)? - 1, 1)?;
        report.check("c_concat_none_lastch", &last)?;
        let format = LatentFormat::by_name("Flux").context("the format")?;
        let grey = format.process_in(&Tensor::zeros([1])?)?.item()?;
        report.equal("an absent picture", &none.data()[0], &grey);
    }
    for (key, name) in [
        ("concat_latent_image", "concat_latent_image"),
        ("concat_mask", "mask"),
    ] {
        if let Some(tensor) = golden.maybe(name)? {
            cond.tensors.insert(key.into(), tensor);
        }
    }
    let found = encoded(&cond)?;
    report.check("c_concat", &found)?;
    Ok(found)
}

/// A control net: what it makes for some of the model's blocks.
fn control(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let mut config = FluxControlConfig::detect(&store)?;
    set(golden, &mut config.trunk)?;
    let net = FluxControl::new(&store, config)?;
    let types = golden.numbers("control_type").unwrap_or_default();
    let count = golden.tensor("x")?.dim(0)?;
    let run = |types: &[usize]| -> Result<ControlFeatures> {
        Ok(net.features(&ControlInput {
            x: &golden.tensor("x")?,
            seen: &net.see(&golden.tensor("hint")?, types)?,
            types,
            steered: None,
            timesteps: &levels(golden, count)?,
            conds: &inputs(golden, count, true)?,
        })?)
    };
    let (found, plain) = (run(&types)?, run(&[])?);
    for name in golden.tensors() {
        let Some(rest) = name.strip_prefix("out/") else {
            continue;
        };
        let (features, rest) = match rest.strip_prefix("no_type_") {
            Some(rest) => (&plain, rest),
            None => (&found, rest),
        };
        let (kind, number) = match rest.strip_prefix("input") {
            Some(number) => (BlockKind::DOUBLE, number),
            None => (BlockKind::SINGLE, rest.trim_start_matches("output")),
        };
        let list = features.of(kind);
        let one = list.get(number.parse::<usize>()?).and_then(Option::as_ref);
        report.check(&name, one.context("no such output")?)?;
    }
    for (kind, name) in [
        (BlockKind::DOUBLE, "n_input"),
        (BlockKind::SINGLE, "n_output"),
    ] {
        if let Some(count) = golden.about[name].as_u64() {
            report.equal(name, &found.of(kind).len(), &(count as usize));
        }
    }
    Ok(())
}
