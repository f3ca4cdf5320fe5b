//! Names under which control nets are stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::{Device, WeightFile};

use crate::error::{ModelError, Result};
use crate::sd::diffusers::unet_keys;
use crate::store::{Origin, WeightStore};

/// Signatures of kinds that are recognised but not run, in the order the reference looks for them.
const OTHERS: &[(&str, &str)] = &[
    ("lora_controlnet", "a Control-LoRA"),
    (
        "controlnet_blocks.0.weight",
        "a control net for a transformer of another kind",
    ),
    (
        "controlnet_blocks.0.linear.weight",
        "a Mistoline control net for Flux",
    ),
];

/// The weights of a control net for UNets under the names of the original, or none if the file holds something else.
pub(super) fn net_store(
    file: &Arc<dyn WeightFile>,
    names: &[String],
    device: Device,
) -> Result<Option<Arc<WeightStore>>> {
    let has = |name: &str| names.iter().any(|n| n == name);
    let refuse = |what: &str| {
        let path = file.path().display().to_string();
        let reason = format!(
            "this is {what}; this version runs control nets and T2I adapters of SD1.x, SD2.x and SDXL"
        );
        Err(ModelError::unsupported(path, reason))
    };
    if let Some((_, what)) = OTHERS.iter().find(|(key, _)| has(key)) {
        return refuse(what);
    }
    if has("controlnet_cond_embedding.conv_in.weight") {
        return Ok(Some(WeightStore::mapped(
            Arc::clone(file),
            from_diffusers(names),
            device,
        )));
    }
    let start = |prefix: &str| has(&format!("{prefix}zero_convs.0.0.weight"));
    let prefix = match (start("control_model."), start("")) {
        (true, _) => "control_model.",
        (false, true) => "",
        (false, false) => return Ok(None),
    };
    if has("difference") {
        return refuse("a control net of differences to its base model");
    }
    Ok(Some(WeightStore::open(Arc::clone(file), prefix, device)))
}

fn from_diffusers(names: &[String]) -> BTreeMap<String, Origin> {
    let inside: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut keys: BTreeMap<String, Origin> = unet_keys(&inside)
        .into_iter()
        .map(|(key, name)| (key, Origin::Whole(name.to_owned())))
        .collect();
    // The convolutions over the hint stand at even places of one sequence.
    let blocks = inside
        .iter()
        .filter_map(|n| {
            let rest = n.strip_prefix("controlnet_cond_embedding.blocks.")?;
            rest.split('.').next()?.parse::<usize>().ok()
        })
        .max()
        .map_or(0, |n| n.saturating_add(1).min(100));
    for name in inside {
        let parts: Vec<&str> = name.split('.').collect();
        let key = match parts.as_slice() {
            ["controlnet_down_blocks", n, last] => format!("zero_convs.{n}.0.{last}"),
            // A library's way to say in_proj.weight.
            ["transformer_layes", n, "attn", "in_proj_weight"] => {
                format!("transformer_layes.{n}.attn.in_proj.weight")
            }
            ["transformer_layes", n, "attn", "in_proj_bias"] => {
                format!("transformer_layes.{n}.attn.in_proj.bias")
            }
            ["task_embedding"]
            | [
                "transformer_layes" | "spatial_ch_projs" | "control_add_embedding",
                ..,
            ] => name.to_owned(),
            ["controlnet_mid_block", last] => format!("middle_block_out.0.{last}"),
            ["controlnet_cond_embedding", "conv_in", last] => {
                format!("input_hint_block.0.{last}")
            }
            ["controlnet_cond_embedding", "conv_out", last] => {
                format!("input_hint_block.{}.{last}", 2 * (blocks + 1))
            }
            ["controlnet_cond_embedding", "blocks", n, last] => match n.parse::<usize>() {
                Ok(n) if n < 100 => format!("input_hint_block.{}.{last}", 2 * (n + 1)),
                _ => continue,
            },
            _ => continue,
        };
        keys.insert(key, Origin::Whole(name.to_owned()));
    }
    keys
}

/// The weights of a T2I adapter, or none.
pub(super) fn adapter_store(
    file: &Arc<dyn WeightFile>,
    names: &[String],
    device: Device,
) -> Option<Arc<WeightStore>> {
    let has = |name: &str| names.iter().any(|n| n == name);
    if has("adapter.body.0.resnets.0.block1.weight") {
        let pairs = names.iter().filter_map(|name| {
            let key = adapter_key(name.strip_prefix("adapter.")?);
            Some((key, Origin::Whole(name.clone())))
        });
        let keys = pairs.collect();
        return Some(WeightStore::mapped(Arc::clone(file), keys, device));
    }
    let within = |prefix: &&str| {
        let full = has(&format!("{prefix}conv_in.weight"))
            && has(&format!("{prefix}body.0.block1.weight"));
        full || has(&format!("{prefix}body.0.body.0.block1.weight"))
    };
    let prefix = ["", "adapter."].into_iter().find(within)?;
    Some(WeightStore::open(Arc::clone(file), prefix, device))
}

/// The original's key for a name of diffusers, which counts the two blocks of a stage by themselves.
fn adapter_key(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    let number = |text: &str| text.parse::<usize>().ok().filter(|n| *n < 100);
    let place = match parts.as_slice() {
        ["body", i, "resnets", j, rest @ ..] => {
            number(i).zip(number(j)).map(|(i, j)| (2 * i + j, rest))
        }
        ["body", i, rest @ ..] => number(i).map(|i| (2 * i, rest)),
        _ => None,
    };
    match place {
        Some((place, rest)) => format!("body.{place}.{}", rest.join(".")),
        None => name.to_owned(),
    }
}
