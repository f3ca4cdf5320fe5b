//! Flux, Chroma and their relatives in LoRA files: diffusers' names, and files that follow rules of their own.

use fresco_tensor::{Dtype, Stored, WeightFile};

use crate::lora::Part::{Rows, Swapped, Whole};
use crate::lora::convert::{LoraTensors, renamed};
use crate::lora::file::LoraTensor;
use crate::lora::{LayerTable, NameMap, NetworkKeys, Row, Spelling};

const SPELLINGS: [Spelling; 3] = [
    Spelling::dots("transformer."),
    Spelling::underscores("lycoris_"),
    Spelling::underscores("lora_transformer_"),
];

const DOUBLE: [Row; 18] = [
    ("attn.to_q", "img_attn.qkv", Rows(0, 1)),
    ("attn.to_k", "img_attn.qkv", Rows(1, 1)),
    ("attn.to_v", "img_attn.qkv", Rows(2, 1)),
    ("attn.add_q_proj", "txt_attn.qkv", Rows(0, 1)),
    ("attn.add_k_proj", "txt_attn.qkv", Rows(1, 1)),
    ("attn.add_v_proj", "txt_attn.qkv", Rows(2, 1)),
    ("attn.to_out.0", "img_attn.proj", Whole),
    ("norm1.linear", "img_mod.lin", Whole),
    ("norm1_context.linear", "txt_mod.lin", Whole),
    ("attn.to_add_out", "txt_attn.proj", Whole),
    ("ff.net.0.proj", "img_mlp.0", Whole),
    ("ff.net.2", "img_mlp.2", Whole),
    ("ff_context.net.0.proj", "txt_mlp.0", Whole),
    ("ff_context.net.2", "txt_mlp.2", Whole),
    ("attn.norm_q", "img_attn.norm.query_norm.scale", Whole),
    ("attn.norm_k", "img_attn.norm.key_norm.scale", Whole),
    ("attn.norm_added_q", "txt_attn.norm.query_norm.scale", Whole),
    ("attn.norm_added_k", "txt_attn.norm.key_norm.scale", Whole),
];

const SINGLE: [Row; 8] = [
    ("attn.to_q", "linear1", Rows(0, 1)),
    ("attn.to_k", "linear1", Rows(1, 1)),
    ("attn.to_v", "linear1", Rows(2, 1)),
    ("proj_mlp", "linear1", Rows(3, 4)),
    ("norm.linear", "modulation.lin", Whole),
    ("proj_out", "linear2", Whole),
    ("attn.norm_q", "norm.query_norm.scale", Whole),
    ("attn.norm_k", "norm.key_norm.scale", Whole),
];

const BASE: [Row; 11] = [
    (
        "time_text_embed.text_embedder.linear_1",
        "vector_in.in_layer",
        Whole,
    ),
    (
        "time_text_embed.text_embedder.linear_2",
        "vector_in.out_layer",
        Whole,
    ),
    (
        "time_text_embed.timestep_embedder.linear_1",
        "time_in.in_layer",
        Whole,
    ),
    (
        "time_text_embed.timestep_embedder.linear_2",
        "time_in.out_layer",
        Whole,
    ),
    (
        "time_text_embed.guidance_embedder.linear_1",
        "guidance_in.in_layer",
        Whole,
    ),
    (
        "time_text_embed.guidance_embedder.linear_2",
        "guidance_in.out_layer",
        Whole,
    ),
    ("context_embedder", "txt_in", Whole),
    ("proj_out", "final_layer.linear", Whole),
    ("controlnet_x_embedder", "pos_embed_input", Whole),
    ("norm_out.linear", "final_layer.adaLN_modulation.1", Swapped),
    ("x_embedder", "img_in", Whole),
];

fn width(keys: &NetworkKeys<'_>) -> usize {
    keys.outputs("img_in.weight")
        .or_else(|| keys.outputs("double_blocks.0.img_attn.proj.weight"))
        .unwrap_or(3072)
}

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    if !keys.has("double_blocks.0.img_attn.qkv.weight") {
        return false;
    }
    let mut table = LayerTable::new(width(keys));
    for i in 0..keys.count("double_blocks.") {
        let theirs = format!("transformer_blocks.{i}.");
        table.add_block(&theirs, &format!("double_blocks.{i}."), &DOUBLE);
    }
    for i in 0..keys.count("single_blocks.") {
        let theirs = format!("single_transformer_blocks.{i}.");
        table.add_block(&theirs, &format!("single_blocks.{i}."), &SINGLE);
    }
    table.add_block("", "", &BASE);
    map.add_table(&table, &SPELLINGS);
    // Queries, keys and values in one matrix, which the model has together with the feed-forward part.
    let mut joint = LayerTable::new(width(keys));
    for path in keys.layers() {
        if let Some(block) = path.strip_suffix(".linear1") {
            joint.add(format!("{block}.linear1_qkv"), path, Rows(0, 3));
        }
    }
    map.add_table(&joint, &[Spelling::dots("diffusion_model.")]);
    true
}

/// The control LoRAs of Black Forest Labs: native names, norms that replace, and a first layer that takes more channels.
pub(crate) fn control(tensors: &LoraTensors, file: &dyn WeightFile) -> Option<LoraTensors> {
    let has = |name: &str| tensors.contains_key(name);
    if !has("img_in.lora_A.weight") || !has("single_blocks.0.norm.key_norm.scale") {
        return None;
    }
    let mut out = renamed(tensors, |name| {
        let name = name.replace(".lora_B.bias", ".diff_b");
        let name = match name.strip_suffix("_norm.scale") {
            Some(norm) => format!("{norm}_norm.scale.set_weight"),
            None => name,
        };
        format!("diffusion_model.{name}")
    });
    let size = |name: &str, dim: usize| file.info(name).and_then(|i| i.shape.get(dim).copied());
    let wanted = (
        size("img_in.lora_B.weight", 0),
        size("img_in.lora_A.weight", 1),
    );
    if let (Some(rows), Some(columns)) = wanted {
        let sizes = [rows as f32, columns as f32];
        let bytes = sizes.iter().flat_map(|v| v.to_le_bytes()).collect();
        if let Ok(value) = Stored::new(Dtype::F32, [2], bytes) {
            out.insert(
                "diffusion_model.img_in.reshape_weight".to_owned(),
                LoraTensor::Made(value),
            );
        }
    }
    Some(out)
}

/// USO's names.
pub(crate) fn subject(tensors: &LoraTensors, _: &dyn WeightFile) -> Option<LoraTensors> {
    const PARTS: [(&str, &str); 9] = [
        (".down.weight", ".lora_down.weight"),
        (".up.weight", ".lora_up.weight"),
        ("qkv_lora2", "txt_attn.qkv"),
        ("qkv_lora1", "img_attn.qkv"),
        ("proj_lora1", "img_attn.proj"),
        ("proj_lora2", "txt_attn.proj"),
        ("qkv_lora", "linear1_qkv"),
        ("proj_lora", "linear2"),
        (".processor.", "."),
    ];
    let has = |name: &str| tensors.contains_key(name);
    let known = has("single_blocks.37.processor.qkv_lora.up.weight")
        && has("double_blocks.18.processor.qkv_lora2.up.weight");
    known.then(|| {
        renamed(tensors, |name| {
            let parts = PARTS.into_iter();
            let name = parts.fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
            format!("diffusion_model.{name}")
        })
    })
}
