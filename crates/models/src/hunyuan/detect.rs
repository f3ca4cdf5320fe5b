//! How files of this family are recognised.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::HunyuanConfig;
use super::model::HunyuanNetwork;
use super::video::{HunyuanVideoConfig, HunyuanVideoNetwork};
use crate::denoise::Found;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::preview::PreviewHints;
use crate::store::{Blocks, Origin, UnitOrder};
use crate::text::TextStack;
use crate::transformer::Renames;

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "img_in",
        "time_in",
        "time_r_in",
        "vector_in",
        "guidance_in",
        "txt_in",
        "byt5_in",
        "vision_in",
        "cond_type_embedding",
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
        &["HunyuanImage 2.1", "Hunyuan Video 1 and 1.5"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        if !keys.has("txt_in.individual_token_refiner.blocks.0.norm1.weight") {
            return Ok(None);
        }
        let mut origins = AUTHORS.origins(keys);
        let store = keys.store(&origins);
        // Tokens of videos have a time.
        if let Some(&[rows, channels, time, side, _]) = store.shape(CELLS) {
            let shape = vec![rows, channels * time * side * side];
            if let Some(Origin::Whole(name)) = origins.get(CELLS) {
                let name = name.clone();
                origins.insert(CELLS.to_owned(), Origin::Shaped { name, shape });
            }
            if let Some(found) = refiner(keys, &origins, side)? {
                return Ok(Some(found));
            }
            return video(keys, origins, side).map(Some);
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

/// The first layer.
const CELLS: &str = "img_in.proj.weight";

/// The network that goes over pictures of another; none if it is for videos.
fn refiner(
    keys: &FileKeys<'_>,
    origins: &BTreeMap<String, Origin>,
    patch: usize,
) -> Result<Option<Checkpoint>> {
    let config = HunyuanVideoConfig::detect(&keys.store(origins), patch)?;
    Ok(config.refines().then(|| Checkpoint {
        family: "HunyuanImage 2.1 refiner",
        network: Arc::new(Found::<HunyuanVideoNetwork>(config)),
        keys: origins.clone(),
        units: &UNITS,
        vae_prefix: keys.vae_prefix(),
        text: keys.has_text().then_some(&stacks::HUNYUAN_IMAGE),
        preview: PreviewHints::of(keys.file.metadata()),
    }))
}

/// Networks of videos, with so many cells along a side of a token.
fn video(
    keys: &FileKeys<'_>,
    origins: BTreeMap<String, Origin>,
    patch: usize,
) -> Result<Checkpoint> {
    let config = HunyuanVideoConfig::detect(&keys.store(&origins), patch)?;
    let newer = config.vision.is_some();
    if config.pooled.is_none() && !newer {
        return Err(keys.not_run("HunyuanImage 2.1 refiner"));
    }
    let text: &TextStack = if newer {
        &stacks::HUNYUAN_VIDEO_15
    } else {
        &stacks::HUNYUAN_VIDEO
    };
    Ok(Checkpoint {
        family: if config.enlarges() {
            "Hunyuan Video 1.5 for larger videos"
        } else if newer {
            "Hunyuan Video 1.5"
        } else {
            "Hunyuan Video"
        },
        network: Arc::new(Found::<HunyuanVideoNetwork>(config)),
        keys: origins,
        units: &UNITS,
        vae_prefix: keys.vae_prefix(),
        text: keys.has_text().then_some(text),
        preview: PreviewHints::of(keys.file.metadata()),
    })
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
