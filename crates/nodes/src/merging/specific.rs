//! Merging with a ratio for every block of a family of models. All of them are one node with another list of blocks.

use fresco_graph::{
    Args, Cx, Form, Input, NodeEntry, NodeError, NodeOutput, NodeResult, NodeRow, Output, Schema,
    rows,
};

use super::{Mix, block_share, mixed};
use crate::sampling::Model;

/// A row of a family's list: one block, or blocks numbered from zero.
enum Blocks {
    One(&'static str),
    Numbered(&'static str, usize, &'static str),
}

use Blocks::{Numbered, One};

fn names(blocks: &[Blocks]) -> Vec<String> {
    let mut all = Vec::new();
    for row in blocks {
        match row {
            One(name) => all.push((*name).to_owned()),
            Numbered(before, count, after) => {
                all.extend((0..*count).map(|n| format!("{before}{n}{after}")));
            }
        }
    }
    all
}

/// What the keys of a block begin with, where the network has other names than its files.
fn key_start(name: &str) -> String {
    match name {
        "affline_norm." => "t_embedding_norm.".to_owned(),
        _ => name.replace("blocks.block", "blocks."),
    }
}

/// A family whose blocks can be mixed one by one: a row of the table below.
struct Family {
    id: &'static str,
    name: &'static str,
    blocks: &'static [Blocks],
}

impl NodeRow for Family {
    fn schema(&self) -> Schema {
        let share = |name: &String| {
            let about = "Share of the first model in this block, from 0 to 1.";
            Input::float(name, 1.0, [0.0, 1.0, 0.01]).tooltip(about)
        };
        let text = format!(
            "Mixes two {} models with a ratio for every block: 1 is the first model, 0 the second.",
            self.name
        );
        let schema = Schema::new(self.id, Form::V1)
            .description(&text)
            .module("comfy_extras.nodes_model_merging_model_specific")
            .category("advanced/model_merging/model_specific")
            .output(Output::new("MODEL"))
            .input(Input::new("model1", "MODEL"))
            .input(Input::new("model2", "MODEL"));
        let shares = names(self.blocks);
        shares.iter().map(share).fold(schema, Schema::input)
    }

    fn run(&self, mut args: Args, cx: &Cx) -> NodeResult {
        let (one, two): (Model, Model) = (args.take("model1")?, args.take("model2")?);
        let shares = names(self.blocks)
            .into_iter()
            .map(|name| Ok((key_start(&name), args.take(&name)?)))
            .collect::<Result<Vec<_>, NodeError>>()?;
        let model = mixed(one, &two, cx, |key| {
            block_share(&shares, key).map(Mix::shared)
        })?;
        Ok(NodeOutput::one(model))
    }
}

const fn family(id: &'static str, name: &'static str, blocks: &'static [Blocks]) -> Family {
    Family { id, name, blocks }
}

#[rustfmt::skip]
static FAMILIES: [Family; 15] = [
    family("ModelMergeSD1", "SD1", &[
        One("time_embed."), One("label_emb."), Numbered("input_blocks.", 12, "."),
        Numbered("middle_block.", 3, "."), Numbered("output_blocks.", 12, "."), One("out."),
    ]),
    family("ModelMergeSD2", "SD2", &[
        One("time_embed."), One("label_emb."), Numbered("input_blocks.", 12, "."),
        Numbered("middle_block.", 3, "."), Numbered("output_blocks.", 12, "."), One("out."),
    ]),
    family("ModelMergeSDXL", "SDXL", &[
        One("time_embed."), One("label_emb."), Numbered("input_blocks.", 9, ""),
        Numbered("middle_block.", 3, ""), Numbered("output_blocks.", 9, ""), One("out."),
    ]),
    family("ModelMergeSD3_2B", "SD3", &[
        One("pos_embed."), One("x_embedder."), One("context_embedder."), One("y_embedder."),
        One("t_embedder."), Numbered("joint_blocks.", 24, "."), One("final_layer."),
    ]),
    family("ModelMergeAuraflow", "AuraFlow", &[
        One("init_x_linear."), One("positional_encoding"), One("cond_seq_linear."), One("register_tokens"),
        One("t_embedder."), Numbered("double_layers.", 4, "."), Numbered("single_layers.", 32, "."),
        One("modF."), One("final_linear."),
    ]),
    family("ModelMergeFlux1", "Flux", &[
        One("img_in."), One("time_in."), One("guidance_in"), One("vector_in."), One("txt_in."),
        Numbered("double_blocks.", 19, "."), Numbered("single_blocks.", 38, "."), One("final_layer."),
    ]),
    family("ModelMergeSD35_Large", "SD3.5 large", &[
        One("pos_embed."), One("x_embedder."), One("context_embedder."), One("y_embedder."),
        One("t_embedder."), Numbered("joint_blocks.", 38, "."), One("final_layer."),
    ]),
    family("ModelMergeMochiPreview", "Mochi", &[
        One("pos_frequencies."), One("t_embedder."), One("t5_y_embedder."), One("t5_yproj."),
        Numbered("blocks.", 48, "."), One("final_layer."),
    ]),
    family("ModelMergeLTXV", "LTXV", &[
        One("patchify_proj."), One("adaln_single."), One("caption_projection."),
        Numbered("transformer_blocks.", 28, "."), One("scale_shift_table"), One("proj_out."),
    ]),
    family("ModelMergeCosmos7B", "Cosmos 7B", &[
        One("pos_embedder."), One("extra_pos_embedder."), One("x_embedder."), One("t_embedder."),
        One("affline_norm."), Numbered("blocks.block", 28, "."), One("final_layer."),
    ]),
    family("ModelMergeCosmos14B", "Cosmos 14B", &[
        One("pos_embedder."), One("extra_pos_embedder."), One("x_embedder."), One("t_embedder."),
        One("affline_norm."), Numbered("blocks.block", 36, "."), One("final_layer."),
    ]),
    family("ModelMergeWAN2_1", "Wan 2.1", &[
        One("patch_embedding."), One("time_embedding."), One("time_projection."), One("text_embedding."),
        One("img_emb."), Numbered("blocks.", 40, "."), One("head."),
    ]),
    family("ModelMergeCosmosPredict2_2B", "Cosmos Predict2 2B", &[
        One("pos_embedder."), One("x_embedder."), One("t_embedder."), One("t_embedding_norm."),
        Numbered("blocks.", 28, "."), One("final_layer."),
    ]),
    family("ModelMergeCosmosPredict2_14B", "Cosmos Predict2 14B", &[
        One("pos_embedder."), One("x_embedder."), One("t_embedder."), One("t_embedding_norm."),
        Numbered("blocks.", 36, "."), One("final_layer."),
    ]),
    family("ModelMergeQwenImage", "Qwen-Image", &[
        One("pos_embeds."), One("img_in."), One("txt_norm."), One("txt_in."), One("time_text_embed."),
        Numbered("transformer_blocks.", 60, "."), One("proj_out."),
    ]),
];

pub static NODES: [NodeEntry; 15] = rows(&FAMILIES);
