//! The names that diffusers gives to the weights of a network, made from the network's own keys.
//!
//! Tables say which layer of ours a layer of theirs is; some of theirs are rows of one of ours.

use crate::patch::{Reorder, Slice, Target};

type Keys<'a> = [(&'a str, &'a [usize])];
type Table = Vec<(String, Target)>;

/// One row of a block's table: their name, ours, and which of the equal parts of ours (width and number of the first
/// row in those widths) it is.
type Row = (&'static str, &'static str, Part);

#[derive(Clone, Copy)]
enum Part {
    Whole,
    /// Start and length, counted in the width of the model.
    Rows(usize, usize),
    Swapped,
}

use Part::{Rows, Swapped, Whole};

fn shape<'a>(keys: &Keys<'a>, key: &str) -> Option<&'a [usize]> {
    keys.iter().find(|(k, _)| *k == key).map(|(_, s)| *s)
}

fn target(key: String, part: Part, width: usize) -> Target {
    let key = format!("diffusion_model.{key}");
    match part {
        Whole => Target::whole(key),
        Swapped => Target {
            reorder: Some(Reorder::SwapHalves),
            ..Target::whole(key)
        },
        Rows(start, len) => Target {
            slice: Some(Slice {
                dim: 0,
                start: start * width,
                len: len * width,
            }),
            ..Target::whole(key)
        },
    }
}

/// Their name, and our key. Ours is a layer's weight unless it names a norm's scale.
fn add(table: &mut Table, theirs: String, ours: String, part: Part, width: usize) {
    let last = ours.rsplit('.').next();
    let key = if matches!(last, Some("scale" | "pos_embed")) {
        ours
    } else {
        format!("{ours}.weight")
    };
    table.push((theirs, target(key, part, width)));
}

fn add_rows(table: &mut Table, theirs: &str, ours: &str, rows: &[Row], width: usize) {
    for (their, our, part) in rows {
        let name = format!("{theirs}{their}");
        add(table, name, format!("{ours}{our}"), *part, width);
    }
}

/// Number of blocks `prefix0. prefix1. ...`.
fn count(keys: &Keys<'_>, prefix: &str) -> usize {
    let there = |i: &usize| {
        let start = format!("{prefix}{i}.");
        keys.iter().any(|(k, _)| k.starts_with(&start))
    };
    // There cannot be more blocks than keys.
    (0..keys.len()).take_while(there).count()
}

/// Width of a Flux model.
pub(super) fn hidden(keys: &Keys<'_>) -> usize {
    shape(keys, "img_in.weight")
        .or_else(|| shape(keys, "double_blocks.0.img_attn.proj.weight"))
        .and_then(|s| s.first().copied())
        .unwrap_or(3072)
}

const RESNET: [Row; 6] = [
    ("conv1", "in_layers.2", Whole),
    ("time_emb_proj", "emb_layers.1", Whole),
    ("conv2", "out_layers.3", Whole),
    ("conv_shortcut", "skip_connection", Whole),
    ("norm1", "in_layers.0", Whole),
    ("norm2", "out_layers.0", Whole),
];

const ATTENTION: [&str; 3] = ["proj_in", "proj_out", "norm"];

const TRANSFORMER: [&str; 13] = [
    "norm1",
    "norm2",
    "norm3",
    "attn1.to_q",
    "attn1.to_k",
    "attn1.to_v",
    "attn1.to_out.0",
    "attn2.to_q",
    "attn2.to_k",
    "attn2.to_v",
    "attn2.to_out.0",
    "ff.net.0.proj",
    "ff.net.2",
];

const UNET_BASE: [Row; 9] = [
    ("class_embedding.linear_1", "label_emb.0.0", Whole),
    ("class_embedding.linear_2", "label_emb.0.2", Whole),
    ("add_embedding.linear_1", "label_emb.0.0", Whole),
    ("add_embedding.linear_2", "label_emb.0.2", Whole),
    ("conv_in", "input_blocks.0.0", Whole),
    ("conv_norm_out", "out.0", Whole),
    ("conv_out", "out.2", Whole),
    ("time_embedding.linear_1", "time_embed.0", Whole),
    ("time_embedding.linear_2", "time_embed.2", Whole),
];

fn attention(table: &mut Table, theirs: &str, ours: &str, depth: usize) {
    for part in ATTENTION {
        add(
            table,
            format!("{theirs}.{part}"),
            format!("{ours}.{part}"),
            Whole,
            0,
        );
    }
    for block in 0..depth {
        for part in TRANSFORMER {
            let inner = format!("transformer_blocks.{block}.{part}");
            add(
                table,
                format!("{theirs}.{inner}"),
                format!("{ours}.{inner}"),
                Whole,
                0,
            );
        }
    }
}

/// The UNets of SD1, SD2 and SDXL.
pub(super) fn unet(keys: &Keys<'_>) -> Table {
    let depth_of = |block: &str| count(keys, &format!("{block}.1.transformer_blocks."));
    // How deep the transformer after each residual block is, level by level.
    let mut levels: Vec<Vec<usize>> = vec![Vec::new()];
    for n in 1..count(keys, "input_blocks.") {
        let block = format!("input_blocks.{n}");
        if shape(keys, &format!("{block}.0.op.weight")).is_some() {
            levels.push(Vec::new());
        } else if let Some(level) = levels.last_mut() {
            level.push(depth_of(&block));
        }
    }
    let mut table = Table::new();
    let mut n = 1;
    for (x, level) in levels.iter().enumerate() {
        for (i, depth) in level.iter().enumerate() {
            let (theirs, ours) = (format!("down_blocks.{x}."), format!("input_blocks.{n}"));
            let resnet = format!("{theirs}resnets.{i}.");
            add_rows(&mut table, &resnet, &format!("{ours}.0."), &RESNET, 0);
            if *depth > 0 {
                let attentions = format!("{theirs}attentions.{i}");
                attention(&mut table, &attentions, &format!("{ours}.1"), *depth);
            }
            n += 1;
        }
        let (theirs, ours) = (
            format!("down_blocks.{x}.downsamplers.0.conv"),
            format!("input_blocks.{n}.0.op"),
        );
        add(&mut table, theirs, ours, Whole, 0);
        n += 1;
    }
    let middle = count(keys, "middle_block.1.transformer_blocks.");
    attention(
        &mut table,
        "mid_block.attentions.0",
        "middle_block.1",
        middle,
    );
    for (i, n) in [0, 2].into_iter().enumerate() {
        let theirs = format!("mid_block.resnets.{i}.");
        add_rows(
            &mut table,
            &theirs,
            &format!("middle_block.{n}."),
            &RESNET,
            0,
        );
    }
    let mut n = 0;
    for (x, level) in levels.iter().rev().enumerate() {
        for i in 0..=level.len() {
            let (theirs, ours) = (format!("up_blocks.{x}."), format!("output_blocks.{n}"));
            let resnet = format!("{theirs}resnets.{i}.");
            add_rows(&mut table, &resnet, &format!("{ours}.0."), &RESNET, 0);
            let depth = depth_of(&ours);
            if depth > 0 {
                let attentions = format!("{theirs}attentions.{i}");
                attention(&mut table, &attentions, &format!("{ours}.1"), depth);
            }
            if i == level.len() {
                let at = 1 + usize::from(depth > 0);
                let upsampler = format!("{theirs}upsamplers.0.conv");
                add(&mut table, upsampler, format!("{ours}.{at}.conv"), Whole, 0);
            }
            n += 1;
        }
    }
    add_rows(&mut table, "", "", &UNET_BASE, 0);
    table
}

const FLUX_DOUBLE: [Row; 18] = [
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

const FLUX_SINGLE: [Row; 8] = [
    ("attn.to_q", "linear1", Rows(0, 1)),
    ("attn.to_k", "linear1", Rows(1, 1)),
    ("attn.to_v", "linear1", Rows(2, 1)),
    ("proj_mlp", "linear1", Rows(3, 4)),
    ("norm.linear", "modulation.lin", Whole),
    ("proj_out", "linear2", Whole),
    ("attn.norm_q", "norm.query_norm.scale", Whole),
    ("attn.norm_k", "norm.key_norm.scale", Whole),
];

const FLUX_BASE: [Row; 11] = [
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

pub(super) fn flux(keys: &Keys<'_>) -> Table {
    let width = hidden(keys);
    let mut table = Table::new();
    for i in 0..count(keys, "double_blocks.") {
        let (theirs, ours) = (
            format!("transformer_blocks.{i}."),
            format!("double_blocks.{i}."),
        );
        add_rows(&mut table, &theirs, &ours, &FLUX_DOUBLE, width);
    }
    for i in 0..count(keys, "single_blocks.") {
        let theirs = format!("single_transformer_blocks.{i}.");
        add_rows(
            &mut table,
            &theirs,
            &format!("single_blocks.{i}."),
            &FLUX_SINGLE,
            width,
        );
    }
    add_rows(&mut table, "", "", &FLUX_BASE, width);
    table
}

const SD3_BLOCK: [Row; 25] = [
    ("attn.to_q", "x_block.attn.qkv", Rows(0, 1)),
    ("attn.to_k", "x_block.attn.qkv", Rows(1, 1)),
    ("attn.to_v", "x_block.attn.qkv", Rows(2, 1)),
    ("attn.add_q_proj", "context_block.attn.qkv", Rows(0, 1)),
    ("attn.add_k_proj", "context_block.attn.qkv", Rows(1, 1)),
    ("attn.add_v_proj", "context_block.attn.qkv", Rows(2, 1)),
    ("attn2.to_q", "x_block.attn2.qkv", Rows(0, 1)),
    ("attn2.to_k", "x_block.attn2.qkv", Rows(1, 1)),
    ("attn2.to_v", "x_block.attn2.qkv", Rows(2, 1)),
    ("attn2.to_out.0", "x_block.attn2.proj", Whole),
    ("attn2.norm_q", "x_block.attn2.ln_q", Whole),
    ("attn2.norm_k", "x_block.attn2.ln_k", Whole),
    ("attn.to_out.0", "x_block.attn.proj", Whole),
    ("attn.to_add_out", "context_block.attn.proj", Whole),
    ("attn.norm_q", "x_block.attn.ln_q", Whole),
    ("attn.norm_k", "x_block.attn.ln_k", Whole),
    ("attn.norm_added_q", "context_block.attn.ln_q", Whole),
    ("attn.norm_added_k", "context_block.attn.ln_k", Whole),
    ("ff.net.0.proj", "x_block.mlp.fc1", Whole),
    ("ff.net.2", "x_block.mlp.fc2", Whole),
    ("ff_context.net.0.proj", "context_block.mlp.fc1", Whole),
    ("ff_context.net.2", "context_block.mlp.fc2", Whole),
    ("norm1.linear", "x_block.adaLN_modulation.1", Whole),
    (
        "norm1_context.linear",
        "context_block.adaLN_modulation.1",
        Whole,
    ),
    (
        "norm1_context.linear",
        "context_block.adaLN_modulation.1",
        Swapped,
    ),
];

const SD3_BASE: [Row; 9] = [
    (
        "time_text_embed.timestep_embedder.linear_1",
        "t_embedder.mlp.0",
        Whole,
    ),
    (
        "time_text_embed.timestep_embedder.linear_2",
        "t_embedder.mlp.2",
        Whole,
    ),
    (
        "time_text_embed.text_embedder.linear_1",
        "y_embedder.mlp.0",
        Whole,
    ),
    (
        "time_text_embed.text_embedder.linear_2",
        "y_embedder.mlp.2",
        Whole,
    ),
    ("context_embedder", "context_embedder", Whole),
    ("pos_embed.proj", "x_embedder.proj", Whole),
    ("pos_embed.pos_embed", "pos_embed", Whole),
    ("norm_out.linear", "final_layer.adaLN_modulation.1", Swapped),
    ("proj_out", "final_layer.linear", Whole),
];

pub(super) fn sd3(keys: &Keys<'_>) -> Table {
    let blocks = count(keys, "joint_blocks.");
    let width = shape(keys, "joint_blocks.0.x_block.attn.proj.weight")
        .and_then(|s| s.first().copied())
        .unwrap_or(64 * blocks);
    let (plain, last) = (&SD3_BLOCK[..24], &SD3_BLOCK[24]);
    let mut table = Table::new();
    for i in 0..blocks {
        let (theirs, ours) = (
            format!("transformer_blocks.{i}."),
            format!("joint_blocks.{i}."),
        );
        if i + 1 == blocks {
            // The last block's context has no gate, and its two halves are the other way round.
            add_rows(&mut table, &theirs, &ours, &plain[..23], width);
            add_rows(
                &mut table,
                &theirs,
                &ours,
                std::slice::from_ref(last),
                width,
            );
        } else {
            add_rows(&mut table, &theirs, &ours, plain, width);
        }
    }
    add_rows(&mut table, "", "", &SD3_BASE, width);
    table
}

const Z_IMAGE_ATTENTION: [Row; 6] = [
    ("attention.to_q", "attention.qkv", Rows(0, 1)),
    ("attention.to_k", "attention.qkv", Rows(1, 1)),
    ("attention.to_v", "attention.qkv", Rows(2, 1)),
    ("attention.to_out.0", "attention.out", Whole),
    ("attention.norm_q", "attention.q_norm", Whole),
    ("attention.norm_k", "attention.k_norm", Whole),
];

pub(super) fn z_image(keys: &Keys<'_>) -> Table {
    let width = shape(keys, "cap_embedder.1.weight")
        .and_then(|s| s.first().copied())
        .unwrap_or(3840);
    let mut table = Table::new();
    for stack in ["layers", "context_refiner", "noise_refiner"] {
        for i in 0..count(keys, &format!("{stack}.")) {
            let block = format!("{stack}.{i}.");
            add_rows(&mut table, &block, &block, &Z_IMAGE_ATTENTION, width);
        }
    }
    // Everything else has the same name, but for the two ends.
    for (key, _) in keys {
        let Some(path) = key.strip_suffix(".weight") else {
            continue;
        };
        let attention = path.contains(".attention.");
        if attention {
            continue;
        }
        let theirs = match path.split_once('.').unwrap_or((path, "")) {
            ("final_layer", rest) => format!("all_final_layer.2-1.{rest}"),
            ("x_embedder", _) => "all_x_embedder.2-1".to_owned(),
            _ => path.to_owned(),
        };
        add(&mut table, theirs, path.to_owned(), Whole, width);
    }
    table
}

const PIXART_BLOCK: [Row; 10] = [
    ("attn1.to_q", "attn.qkv", Rows(0, 1)),
    ("attn1.to_k", "attn.qkv", Rows(1, 1)),
    ("attn1.to_v", "attn.qkv", Rows(2, 1)),
    ("attn1.to_out.0", "attn.proj", Whole),
    ("attn2.to_q", "cross_attn.q_linear", Whole),
    ("attn2.to_k", "cross_attn.kv_linear", Rows(0, 1)),
    ("attn2.to_v", "cross_attn.kv_linear", Rows(1, 1)),
    ("attn2.to_out.0", "cross_attn.proj", Whole),
    ("ff.net.0.proj", "mlp.fc1", Whole),
    ("ff.net.2", "mlp.fc2", Whole),
];

pub(super) fn pixart(keys: &Keys<'_>) -> Table {
    let width = shape(keys, "blocks.0.attn.proj.weight")
        .and_then(|s| s.first().copied())
        .unwrap_or(1152);
    let mut table = Table::new();
    for i in 0..count(keys, "blocks.") {
        let theirs = format!("transformer_blocks.{i}.");
        add_rows(
            &mut table,
            &theirs,
            &format!("blocks.{i}."),
            &PIXART_BLOCK,
            width,
        );
    }
    table
}

const AURA_DOUBLE: [Row; 16] = [
    ("attn.to_q", "attn.w2q", Whole),
    ("attn.to_k", "attn.w2k", Whole),
    ("attn.to_v", "attn.w2v", Whole),
    ("attn.to_out.0", "attn.w2o", Whole),
    ("attn.add_q_proj", "attn.w1q", Whole),
    ("attn.add_k_proj", "attn.w1k", Whole),
    ("attn.add_v_proj", "attn.w1v", Whole),
    ("attn.to_add_out", "attn.w1o", Whole),
    ("ff.linear_1", "mlpX.c_fc1", Whole),
    ("ff.linear_2", "mlpX.c_fc2", Whole),
    ("ff.out_projection", "mlpX.c_proj", Whole),
    ("ff_context.linear_1", "mlpC.c_fc1", Whole),
    ("ff_context.linear_2", "mlpC.c_fc2", Whole),
    ("ff_context.out_projection", "mlpC.c_proj", Whole),
    ("norm1.linear", "modX.1", Whole),
    ("norm1_context.linear", "modC.1", Whole),
];

const AURA_SINGLE: [Row; 8] = [
    ("attn.to_q", "attn.w1q", Whole),
    ("attn.to_k", "attn.w1k", Whole),
    ("attn.to_v", "attn.w1v", Whole),
    ("attn.to_out.0", "attn.w1o", Whole),
    ("ff.linear_1", "mlp.c_fc1", Whole),
    ("ff.linear_2", "mlp.c_fc2", Whole),
    ("ff.out_projection", "mlp.c_proj", Whole),
    ("norm1.linear", "modCX.1", Whole),
];

pub(super) fn aura_flow(keys: &Keys<'_>) -> Table {
    let mut table = Table::new();
    for i in 0..count(keys, "double_layers.") {
        let theirs = format!("joint_transformer_blocks.{i}.");
        add_rows(
            &mut table,
            &theirs,
            &format!("double_layers.{i}."),
            &AURA_DOUBLE,
            0,
        );
    }
    for i in 0..count(keys, "single_layers.") {
        let theirs = format!("single_transformer_blocks.{i}.");
        add_rows(
            &mut table,
            &theirs,
            &format!("single_layers.{i}."),
            &AURA_SINGLE,
            0,
        );
    }
    table
}
