//! Mochi.

use anyhow::Result;
use fresco_models::DiffusionNetwork;
use fresco_models::denoise::CondValue;
use fresco_models::mochi::{MochiConfig, MochiNetwork, flattened};
use fresco_tensor::Device;

use super::{Kind, pass};
use crate::golden::{self, Golden};
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[Kind::diffusion("Mochi", "Mochi", run)];

fn run(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let mut weights = golden.weights()?;
    for (key, stored) in &mut weights {
        if let Some(shape) = flattened(key, stored.shape()) {
            *stored = stored.reshape(shape)?;
        }
    }
    let store = golden::store(&golden.name, weights, device);
    let config = MochiConfig::detect(&store)?;
    let net = store.build(MochiNetwork::WHAT, |weights| {
        MochiNetwork::new(weights, &config)
    })?;
    let mask = golden.tensor("mask")?;
    let count: f32 = mask.data().iter().sum();
    let mut conds = pass::conds([
        ("c_crossattn", Some(golden.tensor("context")?)),
        ("attention_mask", Some(mask)),
    ]);
    conds
        .0
        .insert("num_tokens", CondValue::Constant(f64::from(count)));
    let (x, levels) = (golden.tensor("x")?, golden.values("t")?);
    report.check("out", &pass::forward(&net, &x, &levels, &conds)?)
}
