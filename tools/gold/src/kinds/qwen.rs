//! Qwen-Image: the transformer, with reference pictures.

use anyhow::{Context, Result};
use fresco_models::DiffusionNetwork;
use fresco_models::denoise::hooks::Hooks;
use fresco_models::qwen_image::{Inputs, QwenConfig, QwenNetwork, ReferenceMethod};
use fresco_tensor::{Device, Tensor};

use super::Kind;
use crate::golden::Golden;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[Kind {
    name: "Qwen-Image",
    is: |golden| {
        golden.has_key("txt_norm.weight")
            && golden.has_key("transformer_blocks.0.img_mod.1.weight")
            && golden.has_key("proj_out.weight")
            && golden.has("out")
    },
    run: network,
}];

/// The shapes say all but how a head is shared by the axes, and the method.
pub(super) fn config(golden: &Golden, mut found: QwenConfig) -> Result<QwenConfig> {
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
    let hooks = Hooks::default();
    let run = |references: &[Tensor], method: Option<ReferenceMethod>, kind: u32| {
        net.predict(&Inputs {
            x: &x,
            timesteps: &timesteps,
            context: &context,
            references,
            method,
            kind,
            control: None,
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
