//! Names under which control nets are stored.

use std::sync::Arc;

use fresco_tensor::{Device, WeightFile};

use crate::detect::FileKeys;
use crate::error::{ModelError, Result};
use crate::name_table::{NameTable, Place, Rule, blocks, layer, place, value, within};
use crate::sd::names::{CLASS, Levels};
use crate::store::WeightStore;

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
        let keys = FileKeys::whole(file, names);
        let mut origins = keys.origins_by(&Levels::of_diffusers(&keys.inside).table());
        origins.append(&mut keys.origins_by(&CLASS));
        origins.append(&mut keys.origins_by(&diffusers(&keys.inside)));
        return Ok(Some(WeightStore::mapped(Arc::clone(file), origins, device)));
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

const UNION: &[Rule] = &[
    layer("attn.in_proj_", "attn.in_proj"),
    layer("attn.out_proj", "attn.out_proj"),
    layer("ln_1", "ln_1"),
    layer("ln_2", "ln_2"),
    layer("mlp.c_fc", "mlp.c_fc"),
    layer("mlp.c_proj", "mlp.c_proj"),
];

const LAYER: &[Rule] = &[layer("", "")];

/// What nets have besides a UNet, with the names of diffusers.
const NET: &[Place] = &[
    place("controlnet_down_blocks.{i}", "zero_convs.{i}.0", LAYER),
    place("controlnet_mid_block", "middle_block_out.0", LAYER),
    within("transformer_layes.{i}.", UNION),
    within("spatial_ch_projs", LAYER),
    within("control_add_embedding.linear_1", LAYER),
    within("control_add_embedding.linear_2", LAYER),
    within("", &[value("task_embedding", "task_embedding")]),
];

/// What nets with the names of diffusers have besides a UNet's. The convolutions over the hint stand at even places of one
/// sequence.
fn diffusers(inside: &[&str]) -> NameTable {
    let hints = blocks(inside, "controlnet_cond_embedding.blocks.");
    let hint = |theirs: &str, place: usize| {
        let theirs = format!("controlnet_cond_embedding.{theirs}");
        Place::at(theirs, format!("input_hint_block.{place}"), LAYER)
    };
    let mut places = vec![hint("conv_in", 0), hint("conv_out", 2 * (hints + 1))];
    places.extend((0..hints).map(|n| hint(&format!("blocks.{n}"), 2 * (n + 1))));
    NameTable::new(NET).with(places)
}

/// The weights of a T2I adapter, or none.
pub(super) fn adapter_store(
    file: &Arc<dyn WeightFile>,
    names: &[String],
    device: Device,
) -> Option<Arc<WeightStore>> {
    let has = |name: &str| names.iter().any(|n| n == name);
    if has("adapter.body.0.resnets.0.block1.weight") {
        let keys = FileKeys::whole(file, names);
        let keys = keys.origins_by(&adapter(&keys.inside));
        return Some(WeightStore::mapped(Arc::clone(file), keys, device));
    }
    let holds = |prefix: &&str| {
        let full = has(&format!("{prefix}conv_in.weight"))
            && has(&format!("{prefix}body.0.block1.weight"));
        full || has(&format!("{prefix}body.0.body.0.block1.weight"))
    };
    let prefix = ["", "adapter."].into_iter().find(holds)?;
    Some(WeightStore::open(Arc::clone(file), prefix, device))
}

/// The names of diffusers, which counts the two blocks of a stage by themselves.
fn adapter(inside: &[&str]) -> NameTable {
    const FIRST: &[Place] = &[within("", &[layer("adapter.conv_in", "conv_in")])];
    const BLOCK: &[Rule] = &[
        layer("in_conv", "in_conv"),
        layer("block1", "block1"),
        layer("block2", "block2"),
    ];
    let mut places = Vec::new();
    for stage in 0..blocks(inside, "adapter.body.") {
        let theirs = format!("adapter.body.{stage}.");
        let first = format!("body.{}.", 2 * stage);
        places.push(Place::at(theirs.clone(), first, BLOCK));
        for block in 0..blocks(inside, &format!("{theirs}resnets.")) {
            let ours = format!("body.{}.", 2 * stage + block);
            places.push(Place::at(format!("{theirs}resnets.{block}."), ours, BLOCK));
        }
    }
    NameTable::new(FIRST).with(places)
}
