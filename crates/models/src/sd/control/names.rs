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
        "control_add_embedding.linear_1.bias",
        "a union control net for SDXL",
    ),
    (
        "control_model.control_add_embedding.linear_1.bias",
        "a union control net for SDXL",
    ),
    (
        "controlnet_blocks.0.weight",
        "a control net for Flux, SD3 or Qwen-Image",
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
    let within = |prefix: &str| {
        let full = format!("{prefix}conv_in.weight");
        let block = format!("{prefix}body.0.block1.weight");
        names.contains(&full) && names.contains(&block)
    };
    let prefix = ["", "adapter."].into_iter().find(|p| within(p))?;
    Some(WeightStore::open(Arc::clone(file), prefix, device))
}
