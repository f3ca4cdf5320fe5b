//! Lumina 2, Z-Image and NewBie, and control nets of Z-Image.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use fresco_models::denoise::hooks::Hooks;
use fresco_models::denoise::{CallConds, CondValue, NetworkInput};
use fresco_models::lumina::control::{ControlConfig, FunControl, FunControlNet, Refiners, WHAT};
use fresco_models::lumina::{LuminaConfig, NextDit};
use fresco_models::model_patch::PatchNetwork;
use fresco_models::store::{Layout, WeightStore};
use fresco_models::{DiffusionNetwork, Lazy};
use fresco_tensor::Device;
use serde_json::Value;

use fresco_models::detect::Claim;

use super::Kind;
use crate::golden::{self, Golden, sizes};
use crate::hooks;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::of(Claim::ModelPatch, "control net of Z-Image", control)
        .with(|golden| golden.any_key("control_all_x_embedder.")),
    Kind::diffusion("Lumina 2", "Lumina 2, Z-Image or NewBie", network),
];

/// Adds what shapes do not say, from the config of the golden.
fn complete_config(config: LuminaConfig, about: &Value) -> Result<LuminaConfig> {
    let number = |name: &str| about[name].as_u64().map(|n| n as usize);
    Ok(LuminaConfig {
        axes: sizes(&about["axes_dims"]).context("axes_dims")?,
        theta: about["rope_theta"].as_f64().context("rope_theta")?,
        time_scale: about["time_scale"].as_f64().unwrap_or(1.0),
        pad: number("pad_tokens_multiple"),
        ..config
    })
}

fn build(store: &Arc<WeightStore>, config: &LuminaConfig) -> Result<NextDit> {
    Ok(store.build(NextDit::WHAT, |weights| NextDit::new(weights, config))?)
}

fn run(
    net: &NextDit,
    golden: &Golden,
    pooled: bool,
    hooks: &Hooks,
) -> Result<fresco_tensor::Tensor> {
    let mut conds = CallConds::default();
    let mut add = |name, tensor| conds.0.insert(name, CondValue::Regular(tensor));
    add("c_crossattn", golden.tensor("context")?);
    if let Some(mask) = golden.maybe("attention_mask")? {
        add("attention_mask", mask);
    }
    if let Some(vector) = golden.maybe("clip_text_pooled")?.filter(|_| pooled) {
        add("clip_text_pooled", vector);
    }
    let x = golden.tensor("x")?;
    let mut timesteps = golden.values("t")?;
    let last = timesteps.last().copied().context("t is empty")?;
    timesteps.resize(x.dim(0)?, last);
    Ok(net.forward(&NetworkInput {
        x: &x,
        timesteps: &timesteps,
        conds: &conds,
        control: hooks::control().as_ref(),
        hooks,
    })?)
}

fn network(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = complete_config(LuminaConfig::detect(&store)?, golden.config())?;
    let net = build(&store, &config)?;
    let hooks = hooks::of::<NextDit>();
    report.check("out", &run(&net, golden, true, &hooks)?)?;
    if golden.has("out/no_pooled") {
        report.check("out/no_pooled", &run(&net, golden, false, &hooks)?)?;
    }
    Ok(())
}

/// The network that a control net acts on: it has as many keys as its config says, all made up from their names.
fn controlled_network(
    golden: &Golden,
    control: &ControlConfig,
    device: &Device,
) -> Result<NextDit> {
    let base = &golden.config()["base"];
    let number = |name: &str| {
        let found = base[name].as_u64().map(|n| n as usize);
        found.ok_or_else(|| anyhow!("the config's base has no {name}"))
    };
    let config = LuminaConfig {
        channels: number("in_channels")?,
        block: control.block,
        layers: number("n_layers")?,
        noise_refiners: number("n_refiner_layers")?,
        context_refiners: number("n_refiner_layers")?,
        caption: number("cap_feat_dim")?,
        time: number("dim")?.min(1024),
        time_scale: 1000.0,
        axes: Vec::new(),
        theta: 0.0,
        pad: Some(number("pad_tokens_multiple")?),
        pooled: None,
    };
    let config = complete_config(config, base)?;
    let layout = Layout::of(|weights| NextDit::new(weights, &config))?;
    let weights = golden::weights(layout.items())?;
    build(&golden::store(&golden.name, weights, device), &config)
}

fn control(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let found = ControlConfig::detect(&store)?;
    let broken = golden.config()["broken"].as_bool().unwrap_or(false);
    let config = ControlConfig {
        rule_layers: golden.number("index_rule_layers").unwrap_or(found.layers),
        refiners: if broken {
            Refiners::Untrained
        } else {
            found.refiners
        },
        ..found
    };
    let net = controlled_network(golden, &config, device)?;
    if golden.has("out/plain") {
        report.check(
            "out/plain",
            &run(&net, golden, true, &hooks::of::<NextDit>())?,
        )?;
    }
    let own = Arc::clone(&store);
    let make = move || {
        let network = own.build(WHAT, |weights| FunControlNet::new(weights, &config))?;
        Ok(PatchNetwork::new(network))
    };
    let network = Arc::new(Lazy::new(vec![store], Box::new(make)));
    let mut hooks = hooks::of::<NextDit>();
    hooks.beside.push(Arc::new(FunControl {
        network,
        latent: golden.tensor("control_latent")?,
        strength: golden.float("strength").unwrap_or(0.8) as f32,
    }));
    report.check("out", &run(&net, golden, true, &hooks)?)
}
