//! Other people's names for the weights of UNets. Which block of ours one of theirs is depends on how many there are, so a
//! table is made for a network.

use crate::lora::{LoraLayout, LoraNames, NetworkKeys, Spelling};
use crate::name_table::{NameTable, Place, Rule, blocks, layer, place, starting};

const RESNET: &[Rule] = &[
    layer("norm1", "in_layers.0"),
    layer("conv1", "in_layers.2"),
    layer("time_emb_proj", "emb_layers.1"),
    layer("norm2", "out_layers.0"),
    layer("conv2", "out_layers.3"),
    layer("conv_shortcut", "skip_connection"),
];

/// A transformer after a residual block, whose layers have the same names.
const ATTENTION: &[Rule] = &[
    layer("norm", "norm"),
    layer("proj_in", "proj_in"),
    layer("proj_out", "proj_out"),
    layer(
        "transformer_blocks.{j}.norm1",
        "transformer_blocks.{j}.norm1",
    ),
    layer(
        "transformer_blocks.{j}.norm2",
        "transformer_blocks.{j}.norm2",
    ),
    layer(
        "transformer_blocks.{j}.norm3",
        "transformer_blocks.{j}.norm3",
    ),
    layer(
        "transformer_blocks.{j}.attn1.to_q",
        "transformer_blocks.{j}.attn1.to_q",
    ),
    layer(
        "transformer_blocks.{j}.attn1.to_k",
        "transformer_blocks.{j}.attn1.to_k",
    ),
    layer(
        "transformer_blocks.{j}.attn1.to_v",
        "transformer_blocks.{j}.attn1.to_v",
    ),
    layer(
        "transformer_blocks.{j}.attn1.to_out.0",
        "transformer_blocks.{j}.attn1.to_out.0",
    ),
    layer(
        "transformer_blocks.{j}.attn2.to_q",
        "transformer_blocks.{j}.attn2.to_q",
    ),
    layer(
        "transformer_blocks.{j}.attn2.to_k",
        "transformer_blocks.{j}.attn2.to_k",
    ),
    layer(
        "transformer_blocks.{j}.attn2.to_v",
        "transformer_blocks.{j}.attn2.to_v",
    ),
    layer(
        "transformer_blocks.{j}.attn2.to_out.0",
        "transformer_blocks.{j}.attn2.to_out.0",
    ),
    layer(
        "transformer_blocks.{j}.ff.net.0.proj",
        "transformer_blocks.{j}.ff.net.0.proj",
    ),
    layer(
        "transformer_blocks.{j}.ff.net.2",
        "transformer_blocks.{j}.ff.net.2",
    ),
];

const OUTSIDE: &[Rule] = &[
    layer("conv_in", "input_blocks.0.0"),
    layer("conv_norm_out", "out.0"),
    layer("conv_out", "out.2"),
    layer("time_embedding.linear_1", "time_embed.0"),
    layer("time_embedding.linear_2", "time_embed.2"),
    layer("add_embedding.linear_1", "label_emb.0.0"),
    layer("add_embedding.linear_2", "label_emb.0.2"),
];

/// What has the same place in every network.
const AROUND: &[Place] = &[
    place("", "", OUTSIDE),
    place("mid_block.resnets.0.", "middle_block.0.", RESNET),
    place("mid_block.attentions.0.", "middle_block.1.", ATTENTION),
    place("mid_block.resnets.1.", "middle_block.2.", RESNET),
];

const SMALLER: &[Rule] = &[layer("conv", "op")];
const LARGER: &[Rule] = &[layer("conv", "conv")];

/// What networks that are led by pictures call the embedding.
pub(crate) static CLASS: NameTable = NameTable::new(&[place(
    "class_embedding.",
    "label_emb.0.",
    &[layer("linear_1", "0"), layer("linear_2", "2")],
)]);

/// The residual blocks of each level, and whether a transformer follows them.
pub(crate) struct Levels {
    down: Vec<Vec<bool>>,
    up: Vec<Vec<bool>>,
}

impl Levels {
    /// Of a network with the names of diffusers, sorted.
    pub(crate) fn of_diffusers(names: &[&str]) -> Self {
        let levels = |list: &str| -> Vec<Vec<bool>> {
            let level = |level: usize| -> Vec<bool> {
                let count = blocks(names, &format!("{list}.{level}.resnets."));
                let attended = |n: usize| {
                    !starting(names, &format!("{list}.{level}.attentions.{n}.")).is_empty()
                };
                (0..count).map(attended).collect()
            };
            (0..blocks(names, &format!("{list}."))).map(level).collect()
        };
        Self {
            down: levels("down_blocks"),
            up: levels("up_blocks"),
        }
    }

    /// Of a network of ours.
    fn of(keys: &NetworkKeys<'_>) -> Self {
        let attended = |block: &str| keys.count(&format!("{block}.1.transformer_blocks.")) > 0;
        let mut down: Vec<Vec<bool>> = vec![Vec::new()];
        for n in 1..keys.count("input_blocks.") {
            let block = format!("input_blocks.{n}");
            if keys.has(&format!("{block}.0.op.weight")) {
                down.push(Vec::new());
            } else if let Some(level) = down.last_mut() {
                level.push(attended(&block));
            }
        }
        let mut blocks = (0..).map(|n| attended(&format!("output_blocks.{n}")));
        let up = down.iter().rev();
        let up = up.map(|level| blocks.by_ref().take(level.len() + 1).collect());
        Self {
            up: up.collect(),
            down,
        }
    }

    /// The names that diffusers has for a network like this.
    pub(crate) fn table(&self) -> NameTable {
        let mut places = Vec::new();
        let mut add = |theirs: String, ours: String, rules| {
            places.push(Place::at(theirs, ours, rules));
        };
        let mut n = 1;
        for (level, list) in self.down.iter().enumerate() {
            for (i, attended) in list.iter().enumerate() {
                let (theirs, ours) = (format!("down_blocks.{level}"), format!("input_blocks.{n}"));
                add(
                    format!("{theirs}.resnets.{i}."),
                    format!("{ours}.0."),
                    RESNET,
                );
                if *attended {
                    add(
                        format!("{theirs}.attentions.{i}."),
                        format!("{ours}.1."),
                        ATTENTION,
                    );
                }
                n += 1;
            }
            let theirs = format!("down_blocks.{level}.downsamplers.0.");
            add(theirs, format!("input_blocks.{n}.0."), SMALLER);
            n += 1;
        }
        let mut n = 0;
        for (level, list) in self.up.iter().enumerate() {
            for (i, attended) in list.iter().enumerate() {
                let (theirs, ours) = (format!("up_blocks.{level}"), format!("output_blocks.{n}"));
                add(
                    format!("{theirs}.resnets.{i}."),
                    format!("{ours}.0."),
                    RESNET,
                );
                if *attended {
                    add(
                        format!("{theirs}.attentions.{i}."),
                        format!("{ours}.1."),
                        ATTENTION,
                    );
                }
                if i + 1 == list.len() {
                    let at = 1 + usize::from(*attended);
                    let theirs = format!("{theirs}.upsamplers.0.");
                    add(theirs, format!("{ours}.{at}."), LARGER);
                }
                n += 1;
            }
        }
        NameTable::new(AROUND).with(places)
    }
}

/// The oldest names come first; where files have several the last counts.
const SPELLINGS: &[Spelling<'static>] = &[
    Spelling::underscores("lora_unet_"),
    Spelling::underscores("lycoris_"),
    Spelling::processors(""),
    Spelling::processors("unet."),
    Spelling::dots(""),
    Spelling::dots("unet."),
];

pub(crate) static LORA: LoraNames = LoraNames {
    signs: &["input_blocks.0.0.weight"],
    layouts: &[
        (LoraLayout::Made(|keys| Levels::of(keys).table()), SPELLINGS),
        (LoraLayout::Table(&CLASS), SPELLINGS),
    ],
};
