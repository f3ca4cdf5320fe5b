//! How files of this family are recognised.

use std::sync::Arc;

use super::config::HunyuanConfig;
use super::model::HunyuanNetwork;
use crate::denoise::Found;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::preview::PreviewHints;
use crate::store::{Blocks, UnitOrder};
use crate::transformer::Renames;

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "img_in",
        "time_in",
        "time_r_in",
        "guidance_in",
        "txt_in",
        "byt5_in",
        "double_blocks",
        "single_blocks",
        "final_layer",
    ],
    blocks: &[Blocks::List("double_blocks"), Blocks::List("single_blocks")],
    values: UnitOrder::NORMS,
};

/// The names that the authors have. Those that are ours already stay.
const AUTHORS: Renames = Renames {
    parts: &[
        ("_mod.linear.", "_mod.lin."),
        ("_attn_qkv.", "_attn.qkv."),
        ("_attn_proj.", "_attn.proj."),
        ("_attn_q_norm.weight", "_attn.norm.query_norm.scale"),
        ("_attn_k_norm.weight", "_attn.norm.key_norm.scale"),
        (".q_norm.weight", ".norm.query_norm.scale"),
        (".k_norm.weight", ".norm.key_norm.scale"),
        ("mlp.fc1.", "mlp.0."),
        ("mlp.fc2.", "mlp.2."),
        (".modulation.linear.", ".modulation.lin."),
        ("_in.mlp.0.", "_in.in_layer."),
        ("_in.mlp.2.", "_in.out_layer."),
        ("t_embedder.mlp.0.", "t_embedder.in_layer."),
        ("t_embedder.mlp.2.", "t_embedder.out_layer."),
        ("c_embedder.linear_1.", "c_embedder.in_layer."),
        ("c_embedder.linear_2.", "c_embedder.out_layer."),
    ],
    starts: &[],
};

/// HunyuanImage 2.1, base and distilled.
pub struct Hunyuan;

impl Family for Hunyuan {
    fn names(&self) -> &'static [&'static str] {
        &["HunyuanImage 2.1"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        if !keys.has("txt_in.individual_token_refiner.blocks.0.norm1.weight") {
            return Ok(None);
        }
        let origins = AUTHORS.origins(keys);
        let store = keys.store(&origins);
        // Videos and the refiner have tokens with a time, and a vector of the prompt.
        let picture = matches!(store.shape("img_in.proj.weight"), Some([_, _, 1, 1]));
        if !picture || store.has("vector_in.in_layer.weight") {
            return Ok(None);
        }
        let config = HunyuanConfig::detect(&store)?;
        Ok(Some(Checkpoint {
            family: if config.looks_ahead {
                "HunyuanImage 2.1 distilled"
            } else {
                "HunyuanImage 2.1"
            },
            network: Arc::new(Found::<HunyuanNetwork>(config)),
            keys: origins,
            units: &UNITS,
            vae_prefix: keys.vae_prefix(),
            text: keys.has_text().then_some(&stacks::HUNYUAN_IMAGE),
            preview: PreviewHints::of(keys.file.metadata()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_authors_become_ours() {
        let pairs = [
            (
                "double_blocks.3.img_mod.linear.bias",
                "double_blocks.3.img_mod.lin.bias",
            ),
            (
                "double_blocks.3.txt_attn_qkv.weight",
                "double_blocks.3.txt_attn.qkv.weight",
            ),
            (
                "double_blocks.3.img_attn_q_norm.weight",
                "double_blocks.3.img_attn.norm.query_norm.scale",
            ),
            (
                "double_blocks.3.img_mlp.fc1.weight",
                "double_blocks.3.img_mlp.0.weight",
            ),
            (
                "single_blocks.0.k_norm.weight",
                "single_blocks.0.norm.key_norm.scale",
            ),
            (
                "single_blocks.0.modulation.linear.weight",
                "single_blocks.0.modulation.lin.weight",
            ),
            ("time_in.mlp.0.weight", "time_in.in_layer.weight"),
            (
                "txt_in.t_embedder.mlp.2.bias",
                "txt_in.t_embedder.out_layer.bias",
            ),
            (
                "txt_in.individual_token_refiner.blocks.0.self_attn_qkv.weight",
                "txt_in.individual_token_refiner.blocks.0.self_attn.qkv.weight",
            ),
            (
                "txt_in.individual_token_refiner.blocks.0.mlp.fc2.weight",
                "txt_in.individual_token_refiner.blocks.0.mlp.2.weight",
            ),
        ];
        for (theirs, ours) in pairs {
            assert_eq!(AUTHORS.key(theirs), ours);
            assert_eq!(AUTHORS.key(ours), ours);
        }
    }
}
