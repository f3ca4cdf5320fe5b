//! One pass of a diffusion network by itself.

use anyhow::Result;
use fresco_models::DiffusionNetwork;
use fresco_models::denoise::{CallConds, CondValue, NetworkInput};
use fresco_tensor::{Device, Tensor};

use crate::golden::Golden;
use crate::hooks;

/// The network with the weights that follow from the golden's keys.
pub(super) fn network<N: DiffusionNetwork>(
    golden: &Golden,
    device: &Device,
    config: &N::Config,
) -> Result<N> {
    let store = golden.store(device)?;
    Ok(store.build(N::WHAT, |weights| N::new(weights, config))?)
}

/// Inputs by name, those that there are.
pub(super) fn conds<const COUNT: usize>(
    list: [(&'static str, Option<Tensor>); COUNT],
) -> CallConds {
    let mut conds = CallConds::default();
    for (name, value) in list {
        if let Some(value) = value {
            conds.0.insert(name, CondValue::Regular(value));
        }
    }
    conds
}

/// The first items of a tensor, repeated where they do not suffice.
pub(super) fn items(x: Option<Tensor>, count: usize) -> Result<Option<Tensor>> {
    let fitted = x.map(|x| fresco_tensor::resize_to_batch(&x, count));
    Ok(fitted.transpose()?)
}

pub(super) fn forward<N: DiffusionNetwork>(
    net: &N,
    x: &Tensor,
    timesteps: &[f32],
    conds: &CallConds,
) -> Result<Tensor> {
    Ok(net.forward(&NetworkInput {
        x,
        timesteps,
        conds,
        control: hooks::control().as_ref(),
        hooks: &hooks::of::<N>(),
    })?)
}
