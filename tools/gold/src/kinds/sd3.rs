//! The transformer of Stable Diffusion 3 and 3.5, and its control nets.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use fresco_models::control::{ControlInput, ControlNetwork};
use fresco_models::denoise::hooks::BlockKind;
use fresco_models::denoise::{CallConds, CondValue, NetworkInput};
use fresco_models::sd3::control::{JointNet, JointNetConfig, PictureNet, PictureNetConfig};
use fresco_models::sd3::{Mmdit, Sd3Config};
use fresco_models::{DiffusionNetwork, WeightStore};
use fresco_tensor::{Device, Tensor};

use fresco_models::detect::Claim;

use super::Kind;
use crate::golden::{self, Golden};
use crate::hooks;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::of(Claim::ControlNet, "control net of SD3", joint_net)
        .with(|golden| golden.any_key("joint_blocks.")),
    Kind::of(Claim::ControlNet, "control net of SD3.5", picture_net)
        .with(|golden| golden.has_key("pos_embed_input.proj.weight")),
    Kind::diffusion("SD3", "transformer of SD3", mmdit),
];

fn joint_net(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = JointNetConfig::detect(&store)?;
    let net = JointNet::new(&store, config)?;
    features(golden, &net, None, report)
}

fn picture_net(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let mut own = golden.weights()?;
    // What the net takes from the model it steers.
    let steered = golden.weights()?.into_iter().filter_map(|(key, value)| {
        let key = match key.strip_prefix("orig_") {
            Some(key) => key.to_owned(),
            None if key.starts_with("x_embedder.") => key,
            None if key.starts_with("y_embedder.") && !golden.any_key("orig_y_embedder.") => key,
            None => return None,
        };
        Some((key, value))
    });
    let steered = golden::store("steered", steered.collect(), device);
    own.retain(|key, _| !key.starts_with("orig_"));
    let store = golden::store(&golden.name, own, device);
    let config = PictureNetConfig {
        heads: golden.need("num_attention_heads")?,
        depth: golden.need("main_model_double")?,
        ..PictureNetConfig::detect(&store)?
    };
    let net = PictureNet::new(&store, config)?;
    features(golden, &net, Some(&steered), report)
}

fn features(
    golden: &Golden,
    net: &dyn ControlNetwork,
    steered: Option<&Arc<WeightStore>>,
    report: &mut Report<'_>,
) -> Result<()> {
    let mut conds = CallConds::default();
    for (name, tensor) in [("c_crossattn", "context"), ("y", "y")] {
        if let Some(tensor) = golden.maybe(tensor)? {
            conds.0.insert(name, CondValue::Regular(tensor));
        }
    }
    let found = net.features(&ControlInput {
        x: &golden.tensor("x")?,
        seen: &net.see(&golden.tensor("hint")?, &[])?,
        types: &[],
        steered,
        timesteps: &golden.values("t")?,
        conds: &conds,
    })?;
    let list = found.of(BlockKind::OUTPUT);
    let count = golden.about["n_out"].as_u64().map(|n| n as usize);
    report.equal("the number of outputs", &Some(list.len()), &count);
    let [Some(first), .., Some(last)] = list else {
        bail!("there are too few outputs");
    };
    report.check("out/0", first)?;
    report.check("out/last", last)
}

fn mmdit(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = Sd3Config::detect(&store)?;
    let net = store.build(Mmdit::WHAT, |weights| {
        <Mmdit as DiffusionNetwork>::new(weights, &config)
    })?;
    let (context, y) = (golden.tensor("context")?, golden.tensor("y")?);
    let times = golden.values("t")?;
    for (x, out) in [("x", "out"), ("x_odd", "out_odd")] {
        let Some(x) = golden.maybe(x)? else {
            continue;
        };
        let count = x.dim(0)?;
        let cut = |all: &Tensor| all.narrow(0, 0, count);
        let control = hooks::control();
        let input = NetworkInput {
            x: &x,
            timesteps: times.get(..count).context("too few levels")?,
            conds: &CallConds::default(),
            control: control.as_ref(),
            hooks: &hooks::of::<Mmdit>(),
        };
        report.check(out, &net.forward(&input, &cut(&context)?, &cut(&y)?)?)?;
    }
    Ok(())
}
