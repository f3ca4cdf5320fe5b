//! The UNet in LoRA files: diffusers' names for its layers, in the spellings of several trainers.

use crate::lora::Part::Whole;
use crate::lora::{LayerTable, NameMap, NetworkKeys, Row, Spelling};

const SPELLINGS: [Spelling; 2] = [
    Spelling::underscores("lora_unet_"),
    Spelling::underscores("lycoris_"),
];

/// Names that stand in files as they are.
const BARE: [&str; 2] = ["", "unet."];

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

const BASE: [Row; 9] = [
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

fn attention(table: &mut LayerTable, theirs: &str, ours: &str, depth: usize) {
    for part in ATTENTION {
        table.add(format!("{theirs}.{part}"), &format!("{ours}.{part}"), Whole);
    }
    for block in 0..depth {
        for part in TRANSFORMER {
            let inner = format!("transformer_blocks.{block}.{part}");
            let ours = format!("{ours}.{inner}");
            table.add(format!("{theirs}.{inner}"), &ours, Whole);
        }
    }
}

/// How deep the transformer after each residual block is, level by level.
fn levels(keys: &NetworkKeys<'_>) -> Vec<Vec<usize>> {
    let mut levels: Vec<Vec<usize>> = vec![Vec::new()];
    for n in 1..keys.count("input_blocks.") {
        let block = format!("input_blocks.{n}");
        if keys.has(&format!("{block}.0.op.weight")) {
            levels.push(Vec::new());
        } else if let Some(level) = levels.last_mut() {
            level.push(depth_of(keys, &block));
        }
    }
    levels
}

fn depth_of(keys: &NetworkKeys<'_>, block: &str) -> usize {
    keys.count(&format!("{block}.1.transformer_blocks."))
}

/// diffusers' names for the layers of a UNet of SD1, SD2 or SDXL.
fn table(keys: &NetworkKeys<'_>) -> LayerTable {
    let levels = levels(keys);
    let mut table = LayerTable::new(0);
    let mut n = 1;
    for (x, level) in levels.iter().enumerate() {
        for (i, depth) in level.iter().enumerate() {
            let (theirs, ours) = (format!("down_blocks.{x}."), format!("input_blocks.{n}"));
            let resnet = format!("{theirs}resnets.{i}.");
            table.add_block(&resnet, &format!("{ours}.0."), &RESNET);
            if *depth > 0 {
                let attentions = format!("{theirs}attentions.{i}");
                attention(&mut table, &attentions, &format!("{ours}.1"), *depth);
            }
            n += 1;
        }
        let theirs = format!("down_blocks.{x}.downsamplers.0.conv");
        table.add(theirs, &format!("input_blocks.{n}.0.op"), Whole);
        n += 1;
    }
    let middle = keys.count("middle_block.1.transformer_blocks.");
    attention(
        &mut table,
        "mid_block.attentions.0",
        "middle_block.1",
        middle,
    );
    for (i, n) in [0, 2].into_iter().enumerate() {
        let theirs = format!("mid_block.resnets.{i}.");
        table.add_block(&theirs, &format!("middle_block.{n}."), &RESNET);
    }
    let mut n = 0;
    for (x, level) in levels.iter().rev().enumerate() {
        for i in 0..=level.len() {
            let (theirs, ours) = (format!("up_blocks.{x}."), format!("output_blocks.{n}"));
            let resnet = format!("{theirs}resnets.{i}.");
            table.add_block(&resnet, &format!("{ours}.0."), &RESNET);
            let depth = depth_of(keys, &ours);
            if depth > 0 {
                let attentions = format!("{theirs}attentions.{i}");
                attention(&mut table, &attentions, &format!("{ours}.1"), depth);
            }
            if i == level.len() {
                let at = 1 + usize::from(depth > 0);
                let upsampler = format!("{theirs}upsamplers.0.conv");
                table.add(upsampler, &format!("{ours}.{at}.conv"), Whole);
            }
            n += 1;
        }
    }
    table.add_block("", "", &BASE);
    table
}

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    if !keys.has("input_blocks.0.0.weight") {
        return false;
    }
    let table = table(keys);
    for (name, target) in table.rows() {
        map.add_spellings(name, target, &SPELLINGS);
        let old = name.replace(".to_", ".processor.to_");
        let old = match old.strip_suffix(".to_out.0") {
            Some(layer) => format!("{layer}.to_out"),
            None => old,
        };
        map.add_spellings(&old, target, &BARE.map(Spelling::dots));
    }
    // Newer diffusers and peft write the names as they are. The older spellings come first where they are the same.
    for (name, target) in table.rows() {
        for prefix in BARE {
            map.add_if_new(format!("{prefix}{name}"), target);
        }
    }
    true
}
