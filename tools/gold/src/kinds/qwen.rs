//! Qwen-Image: the transformer with reference pictures, and what steers it.

use anyhow::{Context, Result};
use fresco_models::DiffusionNetwork;
use fresco_models::denoise::hooks::{BlockKind, Hooks};
use fresco_models::qwen_image::control::{ControlInputs, QwenControl, QwenControlConfig};
use fresco_models::qwen_image::fun_control::{FunControl, FunControlConfig, FunInputs};
use fresco_models::qwen_image::patch::{BlockPatch, PatchConfig};
use fresco_models::qwen_image::{Inputs, QwenConfig, QwenNetwork, ReferenceMethod};
use fresco_tensor::{Device, Tensor};

use fresco_models::detect::Claim;

use super::Kind;
use crate::golden::Golden;
use crate::hooks;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::of(Claim::ModelPatch, "model patch of Qwen-Image", patch)
        .with(|golden| golden.has_key("controlnet_blocks.0.y_rms.weight")),
    Kind::of(
        Claim::ControlNet,
        "control net that goes along with Qwen-Image",
        along,
    )
    .with(|golden| golden.has_key("control_img_in.weight")),
    Kind::of(Claim::ControlNet, "control net of Qwen-Image", control)
        .with(|golden| golden.has_key("transformer_blocks.0.img_mlp.net.0.proj.weight")),
    Kind::diffusion("Qwen-Image", "Qwen-Image", network).with(|golden| golden.has("out")),
];

/// The shapes say all but how a head is shared by the axes, and the method.
fn config(golden: &Golden, mut found: QwenConfig) -> Result<QwenConfig> {
    if let Some(axes) = golden.numbers("axes_dims_rope") {
        found.axes = <[usize; 3]>::try_from(axes)
            .ok()
            .context("axes_dims_rope has three numbers")?;
    }
    if let Some(method) = golden.config()["default_ref_method"].as_str() {
        found.method = ReferenceMethod::by_name(method);
    }
    Ok(found)
}

/// Inputs of a name with a number at its end.
fn numbered(golden: &Golden, name: &str) -> Result<Vec<Tensor>> {
    let mut found = Vec::new();
    while let Some(one) = golden.maybe(&format!("{name}{}", found.len()))? {
        found.push(one);
    }
    Ok(found)
}

fn network(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = config(golden, QwenConfig::detect(&store)?)?;
    let build = |weights: &fresco_models::Walk<'_>| QwenNetwork::new(weights, &config);
    let net = store.build("the transformer", build)?;
    let (x, context) = (golden.tensor("x")?, golden.tensor("context")?);
    let timesteps = golden.values("t")?;
    let references = numbered(golden, "ref")?;
    let hooks = hooks::of::<QwenNetwork>();
    let run = |references: &[Tensor], method: Option<ReferenceMethod>, kind: u32| {
        net.predict(&Inputs {
            x: &x,
            timesteps: &timesteps,
            context: &context,
            references,
            method,
            kind,
            control: hooks::control().as_ref(),
            hooks: &hooks,
        })
    };
    for name in golden.tensors() {
        if name == "out" {
            report.check(&name, &run(&[], None, 0)?)?;
        } else if let Some(kind) = name.strip_prefix("out/additional_t_") {
            // Made with the references.
            report.check(&name, &run(&references, None, kind.parse()?)?)?;
        } else if let Some(method) = name.strip_prefix("out/refs_") {
            let method = (method != "default").then(|| ReferenceMethod::by_name(method));
            report.check(&name, &run(&references, method, 0)?)?;
        }
    }
    Ok(())
}

fn control(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let found = QwenControlConfig::detect(&store)?;
    let found = QwenControlConfig {
        trunk: config(golden, found.trunk.clone())?,
        ..found
    };
    QwenControl::verify(&store, &found)?;
    let net = store.build("the control net", |weights| {
        QwenControl::new(weights, &found)
    })?;
    let made = net.forward(&ControlInputs {
        x: &golden.tensor("x")?,
        hint: &golden.tensor("hint")?,
        timesteps: &golden.values("t")?,
        context: &golden.tensor("context")?,
    })?;
    let list = made.of(BlockKind::DOUBLE);
    if let Some(count) = golden.about["n_out"].as_u64() {
        report.equal("n_out", &list.len(), &(count as usize));
    }
    for name in golden.tensors() {
        let Some(place) = name.strip_prefix("out/") else {
            continue;
        };
        let place = match place {
            "last" => list.len().saturating_sub(1),
            number => number.parse()?,
        };
        let one = list.get(place).and_then(Option::as_ref);
        report.check(&name, one.with_context(|| format!("no output {place}"))?)?;
    }
    Ok(())
}

/// The control net's blocks, and the prediction of the network that it steers.
fn along(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = config(golden, QwenConfig::detect(&store)?)?;
    let found = FunControlConfig::detect(&store)?;
    FunControl::verify(&store, &found)?;
    let control = store.build("the control net", |weights| {
        FunControl::new(weights, &found)
    })?;
    let (x, context) = (golden.tensor("x")?, golden.tensor("context")?);
    let timesteps = golden.values("t")?;
    let input = FunInputs {
        x: &x,
        hint: &golden.tensor("hint")?,
        timesteps: &timesteps,
        context: &context,
    };
    let made = control.forward(&input, &store)?;
    let list = made.of(BlockKind::DOUBLE);
    report.equal("blocks", &list.len(), &config.layers);
    let said = list.iter().filter(|one| one.is_some()).count();
    report.equal("blocks that are steered", &said, &found.layers);
    for name in golden.tensors() {
        let Some(place) = name.strip_prefix("hint/") else {
            continue;
        };
        let one = list.get(place.parse::<usize>()?).and_then(Option::as_ref);
        report.check(&name, one.with_context(|| format!("nothing for {name}"))?)?;
    }
    let net = store.build("the transformer", |weights| {
        QwenNetwork::new(weights, &config)
    })?;
    let strength = golden.float("strength").unwrap_or(1.0);
    let control = made.scaled(strength as f32, false)?;
    let out = net.predict(&Inputs {
        x: &x,
        timesteps: &timesteps,
        context: &context,
        references: &[],
        method: None,
        kind: 0,
        control: Some(&control),
        hooks: &Hooks::default(),
    })?;
    report.check("out", &out)
}

fn patch(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = PatchConfig::detect(&store)?;
    let net = store.build("the model patch", |weights| {
        BlockPatch::new(weights, &config)
    })?;
    let seen = net.see(&golden.tensor("latent")?)?;
    report.check("encoded", &seen)?;
    let img = golden.tensor("img")?.to(device)?;
    for name in golden.tensors() {
        if let Some(number) = name.strip_prefix("out/block") {
            let added = net.block(number.parse()?, &img, &seen)?;
            report.check(&name, &added.context("there is no such block")?)?;
        }
    }
    Ok(())
}
