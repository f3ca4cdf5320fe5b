//! Names under which autoencoders are stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::{Device, WeightFile};

use super::causal;
use super::pixel_norm;
use super::sound;
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
    let keys = renamed(&inside).into_iter();
    let keys: BTreeMap<String, Origin> = keys
        .map(|(key, name)| {
            let name = format!("{prefix}{name}");
            let shape = file.info(&name).and_then(|info| flattened(&info.shape));
            let origin = match shape {
                Some(shape) => Origin::Shaped {
                    name,
                    shape: shape.to_vec(),
                },
                None => Origin::Whole(name),
            };
            (key, origin)
        })
        .collect();
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

/// Whether these are the names of diffusers.
fn foreign(names: &[&str]) -> bool {
    names
        .iter()
        .any(|n| n.starts_with("decoder.up_blocks.") || n.starts_with("encoder.down_blocks."))
}

/// Pairs of our name and the file's.
pub fn renamed<'a>(names: &[&'a str]) -> Vec<(String, &'a str)> {
    if pixel_norm::is_named(names) {
        let own = names.iter().copied();
        return own.map(|name| (name.to_owned(), name)).collect();
    }
    if pixel_norm::is_foreign(names) {
        return pixel_norm::native_names(names);
    }
    if causal::is_foreign(names) {
        return causal::native_names(names);
    }
    let convert = foreign(names);
    let levels = names
        .iter()
        .filter_map(|n| {
            n.strip_prefix("decoder.up_blocks.")?
                .split('.')
                .next()?
                .parse()
                .ok()
        })
        .max()
        .map_or(0, |last: usize| last.saturating_add(1));
    let convert_one = |name: &'a str| {
        let ours = if convert {
            from_diffusers(name, levels)
        } else {
            name.to_owned()
        };
        // Some files keep the two small convolutions inside the halves.
        let ours = ours
            .strip_prefix("decoder.post_")
            .map_or(ours.clone(), |r| format!("post_{r}"));
        let ours = ours
            .strip_prefix("encoder.quant_")
            .map_or(ours.clone(), |r| format!("quant_{r}"));
        (ours, name)
    };
    names.iter().copied().map(convert_one).collect()
}

/// The original's name of a diffusers name; names that are not known stay.
fn from_diffusers(name: &str, levels: usize) -> String {
    let Some((half, rest)) = name.split_once('.') else {
        return name.to_owned();
    };
    if half != "encoder" && half != "decoder" {
        return name.to_owned();
    }
    let parts: Vec<&str> = rest.split('.').collect();
    let level = |n: &str| n.parse::<usize>().ok();
    let inside = match parts.as_slice() {
        ["down_blocks", i, "resnets", j, tail @ ..] => {
            Some(format!("down.{i}.block.{j}.{}", residual(tail)))
        }
        ["down_blocks", i, "downsamplers", _, tail @ ..] => {
            Some(format!("down.{i}.downsample.{}", tail.join(".")))
        }
        ["up_blocks", i, "resnets", j, tail @ ..] => level(i)
            .and_then(|i| levels.checked_sub(i + 1))
            .map(|i| format!("up.{i}.block.{j}.{}", residual(tail))),
        ["up_blocks", i, "upsamplers", _, tail @ ..] => level(i)
            .and_then(|i| levels.checked_sub(i + 1))
            .map(|i| format!("up.{i}.upsample.{}", tail.join("."))),
        ["mid_block", "resnets", i, tail @ ..] => {
            level(i).map(|i| format!("mid.block_{}.{}", i + 1, residual(tail)))
        }
        ["mid_block", "attentions", _, tail @ ..] => {
            let (part, last) = match tail {
                ["to_out", "0", last] => ("proj_out", last),
                [part, last] => {
                    let part = match *part {
                        "group_norm" => "norm",
                        "to_q" | "query" => "q",
                        "to_k" | "key" => "k",
                        "to_v" | "value" => "v",
                        "proj_attn" => "proj_out",
                        other => other,
                    };
                    (part, last)
                }
                _ => return name.to_owned(),
            };
            Some(format!("mid.attn_1.{part}.{last}"))
        }
        ["conv_norm_out", tail @ ..] => Some(format!("norm_out.{}", tail.join("."))),
        _ => None,
    };
    inside.map_or_else(|| name.to_owned(), |inside| format!("{half}.{inside}"))
}

fn residual(tail: &[&str]) -> String {
    match tail {
        ["conv_shortcut", last @ ..] => format!("nin_shortcut.{}", last.join(".")),
        _ => tail.join("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diffusers_names_become_ours() {
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
        ] {
            assert_eq!(from_diffusers(theirs, 4), ours);
        }
        let moved = renamed(&[
            "decoder.post_quant_conv.bias",
            "encoder.quant_conv.weight",
            "decoder.x",
        ]);
        let ours: Vec<&str> = moved.iter().map(|(ours, _)| ours.as_str()).collect();
        assert_eq!(
            ours,
            ["post_quant_conv.bias", "quant_conv.weight", "decoder.x"]
        );
    }
}
