//! Merging with a ratio for every block of a family of models. All of them are one node with another list of blocks.

use fresco_graph::{
    Args, Cx, Form, Input, Node, NodeError, NodeOutput, NodeResult, NodeSchema, Output, Schema,
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

/// The inputs of one call.
struct Merge {
    models: (Model, Model),
    shares: Vec<(String, f64)>,
}

impl Merge {
    fn schema(id: &str, family: &str, blocks: &[Blocks]) -> Schema {
        let share = |name: &str| {
            Input::new(name, "FLOAT")
                .option("default", 1.0)
                .option("min", 0.0)
                .option("max", 1.0)
                .option("step", 0.01)
        };
        let text = format!(
            "Mixes two {family} models with a ratio for every block: 1 is the first model, 0 the second."
        );
        let start = Schema::new(id, Form::V1)
            .description(&text)
            .module("comfy_extras.nodes_model_merging_model_specific")
            .category("advanced/model_merging/model_specific")
            .output(Output::new("MODEL"))
            .input(Input::new("model1", "MODEL"))
            .input(Input::new("model2", "MODEL"));
        names(blocks)
            .iter()
            .fold(start, |schema, name| schema.input(share(name)))
    }

    fn from_args(mut args: Args, blocks: &[Blocks]) -> Result<Self, NodeError> {
        let models = (args.take("model1")?, args.take("model2")?);
        let shares = names(blocks)
            .into_iter()
            .map(|name| Ok((key_start(&name), args.take(&name)?)))
            .collect::<Result<_, NodeError>>()?;
        Ok(Self { models, shares })
    }

    fn run(self, cx: &Cx) -> NodeResult {
        let (one, two) = self.models;
        let model = mixed(one, &two, cx, |key| {
            block_share(&self.shares, key).map(Mix::shared)
        })?;
        Ok(NodeOutput::one(model))
    }
}

macro_rules! families {
    ($($name:ident $id:literal $family:literal [$($row:expr),* $(,)?];)*) => {$(
        pub(super) struct $name(Merge);

        impl $name {
            const BLOCKS: &[Blocks] = &[$($row),*];
        }

        impl NodeSchema for $name {
            fn schema() -> Schema {
                Merge::schema($id, $family, Self::BLOCKS)
            }

            fn from_args(args: Args) -> Result<Self, NodeError> {
                Merge::from_args(args, Self::BLOCKS).map(Self)
            }
        }

        impl Node for $name {
            fn run(self, cx: &Cx) -> NodeResult {
                self.0.run(cx)
            }
        }
    )*};
}

families! {
    ModelMergeSd1 "ModelMergeSD1" "SD1" [
        One("time_embed."), One("label_emb."), Numbered("input_blocks.", 12, "."),
        Numbered("middle_block.", 3, "."), Numbered("output_blocks.", 12, "."), One("out."),
    ];
    ModelMergeSd2 "ModelMergeSD2" "SD2" [
        One("time_embed."), One("label_emb."), Numbered("input_blocks.", 12, "."),
        Numbered("middle_block.", 3, "."), Numbered("output_blocks.", 12, "."), One("out."),
    ];
    ModelMergeSdxl "ModelMergeSDXL" "SDXL" [
        One("time_embed."), One("label_emb."), Numbered("input_blocks.", 9, ""),
        Numbered("middle_block.", 3, ""), Numbered("output_blocks.", 9, ""), One("out."),
    ];
    ModelMergeSd3 "ModelMergeSD3_2B" "SD3" [
        One("pos_embed."), One("x_embedder."), One("context_embedder."), One("y_embedder."),
        One("t_embedder."), Numbered("joint_blocks.", 24, "."), One("final_layer."),
    ];
    ModelMergeAuraFlow "ModelMergeAuraflow" "AuraFlow" [
        One("init_x_linear."), One("positional_encoding"), One("cond_seq_linear."), One("register_tokens"),
        One("t_embedder."), Numbered("double_layers.", 4, "."), Numbered("single_layers.", 32, "."),
        One("modF."), One("final_linear."),
    ];
    ModelMergeFlux1 "ModelMergeFlux1" "Flux" [
        One("img_in."), One("time_in."), One("guidance_in"), One("vector_in."), One("txt_in."),
        Numbered("double_blocks.", 19, "."), Numbered("single_blocks.", 38, "."), One("final_layer."),
    ];
    ModelMergeSd35Large "ModelMergeSD35_Large" "SD3.5 large" [
        One("pos_embed."), One("x_embedder."), One("context_embedder."), One("y_embedder."),
        One("t_embedder."), Numbered("joint_blocks.", 38, "."), One("final_layer."),
    ];
    ModelMergeMochi "ModelMergeMochiPreview" "Mochi" [
        One("pos_frequencies."), One("t_embedder."), One("t5_y_embedder."), One("t5_yproj."),
        Numbered("blocks.", 48, "."), One("final_layer."),
    ];
    ModelMergeLtxv "ModelMergeLTXV" "LTXV" [
        One("patchify_proj."), One("adaln_single."), One("caption_projection."),
        Numbered("transformer_blocks.", 28, "."), One("scale_shift_table"), One("proj_out."),
    ];
    ModelMergeCosmos7B "ModelMergeCosmos7B" "Cosmos 7B" [
        One("pos_embedder."), One("extra_pos_embedder."), One("x_embedder."), One("t_embedder."),
        One("affline_norm."), Numbered("blocks.block", 28, "."), One("final_layer."),
    ];
    ModelMergeCosmos14B "ModelMergeCosmos14B" "Cosmos 14B" [
        One("pos_embedder."), One("extra_pos_embedder."), One("x_embedder."), One("t_embedder."),
        One("affline_norm."), Numbered("blocks.block", 36, "."), One("final_layer."),
    ];
    ModelMergeWan "ModelMergeWAN2_1" "Wan 2.1" [
        One("patch_embedding."), One("time_embedding."), One("time_projection."), One("text_embedding."),
        One("img_emb."), Numbered("blocks.", 40, "."), One("head."),
    ];
    ModelMergeCosmosPredict2Small "ModelMergeCosmosPredict2_2B" "Cosmos Predict2 2B" [
        One("pos_embedder."), One("x_embedder."), One("t_embedder."), One("t_embedding_norm."),
        Numbered("blocks.", 28, "."), One("final_layer."),
    ];
    ModelMergeCosmosPredict2Large "ModelMergeCosmosPredict2_14B" "Cosmos Predict2 14B" [
        One("pos_embedder."), One("x_embedder."), One("t_embedder."), One("t_embedding_norm."),
        Numbered("blocks.", 36, "."), One("final_layer."),
    ];
    ModelMergeQwenImage "ModelMergeQwenImage" "Qwen-Image" [
        One("pos_embeds."), One("img_in."), One("txt_norm."), One("txt_in."), One("time_text_embed."),
        Numbered("transformer_blocks.", 60, "."), One("proj_out."),
    ];
}
