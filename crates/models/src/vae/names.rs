//! Names under which autoencoders are stored.

use std::sync::Arc;

use fresco_tensor::{Device, WeightFile};

use super::causal;
use super::pixel_norm;
use super::sound;
use crate::name_table::{NameTable, Place, Rule, blocks, layer, place, starting, tree};
use crate::store::{Origin, UnitOrder, WeightStore};

/// The order of the parts of an autoencoder.
pub static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "encoder",
        "decoder",
        "conv_in",
        "down",
        "mid",
        "up",
        "norm_out",
        "conv_out",
        "quant_conv",
        "downsamples",
        "middle",
        "upsamples",
        "head",
        "down_blocks",
        "up_blocks",
        "last_time_embedder",
        "per_channel_statistics",
        "layers",
        "blocks",
        "output_norm",
        "output_proj",
    ],
    blocks: &[],
    values: &[
        "running_mean",
        "running_var",
        "gammas",
        "gamma",
        "scale_shift_table",
        "last_scale_shift_table",
        "timestep_scale_multiplier",
        "per_channel_scale1",
        "per_channel_scale2",
        "mean-of-means",
        "std-of-means",
        "latent_mean",
        "latent_std",
        "mix_factor",
    ],
};

/// Prefixes under which files keep an autoencoder; the first that fits counts.
const PREFIXES: [&str; 4] = [
    "first_stage_model.",
    "vae.",
    "model.",
    "pretransform.model.",
];

/// What an autoencoder's names begin with.
const HALVES: [&str; 4] = ["decoder.", "encoder.", "dcae.", "geo_decoder."];

/// The autoencoder of a file under the names of the original, whatever names the file has. An empty prefix finds the
/// usual ones.
pub fn store(file: &Arc<dyn WeightFile>, prefix: &str, device: Device) -> Arc<WeightStore> {
    let names = file.names();
    let mut prefix = prefix;
    if prefix.is_empty() {
        let holds = |p: &&str| {
            let inside = |name: &String| {
                name.strip_prefix(*p)
                    .is_some_and(|r| HALVES.iter().any(|half| r.starts_with(half)))
            };
            names.iter().any(inside)
        };
        prefix = PREFIXES.iter().copied().find(holds).unwrap_or_default();
    }
    let inside: Vec<&str> = names
        .iter()
        .filter_map(|n| n.strip_prefix(prefix))
        .collect();
    if sound::is_named(&inside) {
        return sound::store(file, prefix, device);
    }
    let mut keys = table(&inside).origins(&**file, prefix, &inside);
    for origin in keys.values_mut() {
        let Origin::Whole(name) = origin else {
            continue;
        };
        let shape = file.info(name).and_then(|info| flattened(&info.shape));
        if let Some(shape) = shape {
            let (name, shape) = (name.clone(), shape.to_vec());
            *origin = Origin::Shaped { name, shape };
        }
    }
    WeightStore::mapped(Arc::clone(file), keys, device)
        .shortened()
        .with_units(&UNITS)
}

/// The shape of the matrix that a convolution over frames is whose cells do not overlap: those with an even side.
pub fn flattened(shape: &[usize]) -> Option<[usize; 2]> {
    match *shape {
        [out, input, time, rows, columns] if columns > 0 && columns % 2 == 0 => {
            Some([out, input * time * rows * columns])
        }
        _ => None,
    }
}

/// Pairs of our name and the file's.
pub fn renamed<'a>(names: &[&'a str]) -> Vec<(String, &'a str)> {
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    table(&sorted).keys(&sorted)
}

/// The layout of a file of these sorted names.
fn table(names: &[&str]) -> NameTable {
    if pixel_norm::is_named(names) {
        return NameTable::OWN;
    }
    if pixel_norm::is_foreign(names) {
        return pixel_norm::diffusers(names);
    }
    if causal::is_foreign(names) {
        return causal::diffusers(names);
    }
    let foreign = ["decoder.up_blocks.", "encoder.down_blocks."];
    let foreign = foreign.iter().any(|list| !starting(names, list).is_empty());
    let places = if foreign {
        diffusers(names)
    } else {
        Vec::new()
    };
    NameTable::new(HALVES_WITH_CONVS)
        .keeping_others()
        .with(places)
}

/// Some files keep the two small convolutions inside the halves.
const HALVES_WITH_CONVS: &[Place] = &[
    place(
        "decoder.",
        "",
        &[layer("post_quant_conv", "post_quant_conv")],
    ),
    place("encoder.", "", &[layer("quant_conv", "quant_conv")]),
];

const RESIDUAL: &[Rule] = &[
    tree("norm1", "norm1"),
    tree("conv1", "conv1"),
    tree("norm2", "norm2"),
    tree("conv2", "conv2"),
    tree("conv_shortcut", "nin_shortcut"),
];

const NORM: &[Rule] = &[tree("conv_norm_out", "norm_out")];
const SMALLER: &[Rule] = &[tree("downsamplers.0", "downsample")];
const LARGER: &[Rule] = &[tree("upsamplers.0", "upsample")];

const ATTENTION: &[Rule] = &[
    layer("group_norm", "norm"),
    layer("to_q", "q"),
    layer("to_k", "k"),
    layer("to_v", "v"),
    layer("to_out.0", "proj_out"),
];

/// The same in old files.
const OLD_ATTENTION: &[Rule] = &[
    layer("group_norm", "norm"),
    layer("query", "q"),
    layer("key", "k"),
    layer("value", "v"),
    layer("proj_attn", "proj_out"),
];

/// The names that diffusers has, which counts the levels of a decoder from the other end.
fn diffusers(names: &[&str]) -> Vec<Place<String>> {
    let mut places = Vec::new();
    for half in ["encoder.", "decoder."] {
        let mut add = |theirs: &str, ours: &str, rules| {
            places.push(Place::at(
                format!("{half}{theirs}"),
                format!("{half}{ours}"),
                rules,
            ));
        };
        let old = !starting(names, &format!("{half}mid_block.attentions.0.query")).is_empty();
        add("mid_block.resnets.0.", "mid.block_1.", RESIDUAL);
        let attention = if old { OLD_ATTENTION } else { ATTENTION };
        add("mid_block.attentions.0.", "mid.attn_1.", attention);
        add("mid_block.resnets.1.", "mid.block_2.", RESIDUAL);
        add("", "", NORM);
        add(
            "down_blocks.{i}.resnets.{j}.",
            "down.{i}.block.{j}.",
            RESIDUAL,
        );
        add("down_blocks.{i}.", "down.{i}.", SMALLER);
        let levels = blocks(names, &format!("{half}up_blocks."));
        for level in 0..levels {
            let (theirs, ours) = (format!("up_blocks.{level}"), levels - 1 - level);
            add(
                &format!("{theirs}.resnets.{{j}}."),
                &format!("up.{ours}.block.{{j}}."),
                RESIDUAL,
            );
            add(&format!("{theirs}."), &format!("up.{ours}."), LARGER);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name_table::tests::key_of;

    #[test]
    fn diffusers_names_become_ours() {
        let table = |names: &[&str]| {
            NameTable::new(HALVES_WITH_CONVS)
                .keeping_others()
                .with(diffusers(names))
        };
        for (theirs, ours) in [
            (
                "encoder.down_blocks.1.resnets.0.conv_shortcut.weight",
                "encoder.down.1.block.0.nin_shortcut.weight",
            ),
            (
                "encoder.down_blocks.2.downsamplers.0.conv.bias",
                "encoder.down.2.downsample.conv.bias",
            ),
            (
                "decoder.up_blocks.0.resnets.2.norm1.weight",
                "decoder.up.3.block.2.norm1.weight",
            ),
            (
                "decoder.up_blocks.2.upsamplers.0.conv.weight",
                "decoder.up.1.upsample.conv.weight",
            ),
            (
                "decoder.mid_block.resnets.1.conv2.bias",
                "decoder.mid.block_2.conv2.bias",
            ),
            (
                "decoder.mid_block.attentions.0.to_out.0.weight",
                "decoder.mid.attn_1.proj_out.weight",
            ),
            (
                "decoder.mid_block.attentions.0.query.bias",
                "decoder.mid.attn_1.q.bias",
            ),
            (
                "decoder.mid_block.attentions.0.group_norm.bias",
                "decoder.mid.attn_1.norm.bias",
            ),
            ("decoder.conv_norm_out.weight", "decoder.norm_out.weight"),
            ("decoder.conv_in.weight", "decoder.conv_in.weight"),
            ("quant_conv.weight", "quant_conv.weight"),
            (
                "decoder.up_blocks.3.resnets.0.norm1.weight",
                "decoder.up.0.block.0.norm1.weight",
            ),
        ] {
            assert_eq!(key_of(table, theirs), ours);
        }
    }
}
