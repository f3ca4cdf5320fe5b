//! Names of these networks in diffusers' layout, translated to the original's. There queries, keys and values are tensors
//! of their own.

use std::collections::BTreeMap;

use crate::detect::FileKeys;
use crate::store::Origin;

/// Our name of a layer, and those of theirs under each other.
type Row = (&'static str, &'static [&'static str]);

/// Layers of a block with weights of their own for picture and prompt.
const DOUBLE: &[Row] = &[
    ("img_attn.qkv", &["attn.to_q", "attn.to_k", "attn.to_v"]),
    (
        "txt_attn.qkv",
        &["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
    ),
    ("img_attn.proj", &["attn.to_out.0"]),
    ("txt_attn.proj", &["attn.to_add_out"]),
    ("img_mod.lin", &["norm1.linear"]),
    ("txt_mod.lin", &["norm1_context.linear"]),
    ("img_mlp.0", &["ff.net.0.proj"]),
    ("img_mlp.2", &["ff.net.2"]),
    ("txt_mlp.0", &["ff_context.net.0.proj"]),
    ("txt_mlp.2", &["ff_context.net.2"]),
    ("img_mlp.0", &["ff.linear_in"]),
    ("img_mlp.2", &["ff.linear_out"]),
    ("txt_mlp.0", &["ff_context.linear_in"]),
    ("txt_mlp.2", &["ff_context.linear_out"]),
];

const DOUBLE_NORMS: &[(&str, &str)] = &[
    ("img_attn.norm.query_norm.scale", "attn.norm_q.weight"),
    ("img_attn.norm.key_norm.scale", "attn.norm_k.weight"),
    ("txt_attn.norm.query_norm.scale", "attn.norm_added_q.weight"),
    ("txt_attn.norm.key_norm.scale", "attn.norm_added_k.weight"),
];

/// Of a block with one set of weights.
const SINGLE: &[Row] = &[
    (
        "linear1",
        &["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"],
    ),
    ("linear1", &["attn.to_qkv_mlp_proj"]),
    ("linear2", &["proj_out"]),
    ("linear2", &["attn.to_out"]),
    ("modulation.lin", &["norm.linear"]),
];

const SINGLE_NORMS: &[(&str, &str)] = &[
    ("norm.query_norm.scale", "attn.norm_q.weight"),
    ("norm.key_norm.scale", "attn.norm_k.weight"),
];

/// Everything outside of blocks.
const OUTSIDE: &[(&str, &str)] = &[
    ("img_in", "x_embedder"),
    ("txt_in", "context_embedder"),
    (
        "time_in.in_layer",
        "time_text_embed.timestep_embedder.linear_1",
    ),
    (
        "time_in.out_layer",
        "time_text_embed.timestep_embedder.linear_2",
    ),
    (
        "vector_in.in_layer",
        "time_text_embed.text_embedder.linear_1",
    ),
    (
        "vector_in.out_layer",
        "time_text_embed.text_embedder.linear_2",
    ),
    (
        "guidance_in.in_layer",
        "time_text_embed.guidance_embedder.linear_1",
    ),
    (
        "guidance_in.out_layer",
        "time_text_embed.guidance_embedder.linear_2",
    ),
    (
        "time_in.in_layer",
        "time_guidance_embed.timestep_embedder.linear_1",
    ),
    (
        "time_in.out_layer",
        "time_guidance_embed.timestep_embedder.linear_2",
    ),
    (
        "guidance_in.in_layer",
        "time_guidance_embed.guidance_embedder.linear_1",
    ),
    (
        "guidance_in.out_layer",
        "time_guidance_embed.guidance_embedder.linear_2",
    ),
    (
        "double_stream_modulation_img.lin",
        "double_stream_modulation_img.linear",
    ),
    (
        "double_stream_modulation_txt.lin",
        "double_stream_modulation_txt.linear",
    ),
    (
        "single_stream_modulation.lin",
        "single_stream_modulation.linear",
    ),
    ("final_layer.linear", "proj_out"),
];

/// The last modulation, whose halves are the other way round.
const SWAPPED: (&str, &str) = ("final_layer.adaLN_modulation.1", "norm_out.linear");

/// Whether a file is of this layout.
pub(super) fn is(keys: &FileKeys<'_>) -> bool {
    keys.has("transformer_blocks.0.attn.norm_added_k.weight")
        && keys.any_inside("single_transformer_blocks.0.")
        && keys.has("x_embedder.weight")
}

/// Numbers of the blocks in a list.
fn blocks(keys: &FileKeys<'_>, list: &str) -> Vec<usize> {
    let numbers = keys.inside.iter().filter_map(|key| {
        let rest = key.strip_prefix(list)?.strip_prefix('.')?;
        rest.split('.').next()?.parse::<usize>().ok()
    });
    let mut numbers: Vec<usize> = numbers.collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Where our keys are.
pub(super) fn origins(keys: &FileKeys<'_>) -> BTreeMap<String, Origin> {
    let mut found = BTreeMap::new();
    let mut add = |ours: String, theirs: &[String]| {
        if !theirs.iter().all(|name| keys.has(name)) {
            return;
        }
        let mut parts: Vec<Origin> = theirs
            .iter()
            .map(|name| Origin::Whole(format!("{}{name}", keys.prefix)))
            .collect();
        let origin = match parts.len() {
            1 => parts.remove(0),
            _ => Origin::Joined(parts),
        };
        found.insert(ours, origin);
    };
    let lists = [
        ("double_blocks", "transformer_blocks", DOUBLE, DOUBLE_NORMS),
        (
            "single_blocks",
            "single_transformer_blocks",
            SINGLE,
            SINGLE_NORMS,
        ),
    ];
    for (ours, theirs, layers, norms) in lists {
        for n in blocks(keys, theirs) {
            for (layer, parts) in layers {
                for part in ["weight", "bias"] {
                    let names = parts.iter().map(|p| format!("{theirs}.{n}.{p}.{part}"));
                    let names: Vec<String> = names.collect();
                    add(format!("{ours}.{n}.{layer}.{part}"), &names);
                }
            }
            for (norm, name) in norms {
                let name = [format!("{theirs}.{n}.{name}")];
                add(format!("{ours}.{n}.{norm}"), &name);
            }
        }
    }
    for part in ["weight", "bias"] {
        for (ours, theirs) in OUTSIDE {
            add(format!("{ours}.{part}"), &[format!("{theirs}.{part}")]);
        }
    }
    for part in ["weight", "bias"] {
        let name = format!("{}{}.{part}", keys.prefix, SWAPPED.1);
        let Some(info) = keys.file.info(&name) else {
            continue;
        };
        let half = info.shape.first().copied().unwrap_or(0) / 2;
        let rows = |start: usize| Origin::Rows {
            name: name.clone(),
            start,
            count: half,
        };
        let swapped = Origin::Joined(vec![rows(half), rows(0)]);
        found.insert(format!("{}.{part}", SWAPPED.0), swapped);
    }
    found
}
