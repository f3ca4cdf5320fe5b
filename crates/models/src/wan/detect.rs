//! How files of this family are recognised.

use std::collections::BTreeMap;

use super::config::{WanConfig, flattened};
use super::model::WanNetwork;
use super::names::DIFFUSERS;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::store::{Blocks, Origin, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "patch_embedding",
        "vace_patch_embedding",
        "control_adapter",
        "ref_conv",
        "cond_encoder",
        "trainable_cond_mask",
        "frame_packer",
        "casual_audio_encoder",
        "audio_proj",
        "pose_patch_embedding",
        "motion_encoder",
        "face_encoder",
        "time_embedding",
        "time_projection",
        "text_embedding",
        "img_emb",
        "blocks",
        "vace_blocks",
        "audio_injector",
        "face_adapter",
        "head",
    ],
    &[Blocks::List("blocks"), Blocks::List("vace_blocks")],
);

/// Wan 2.1 and 2.2.
pub struct Wan;

impl Family for Wan {
    fn names(&self) -> &'static [&'static str] {
        &["Wan 2.1 and 2.2"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let mut origins = if keys.has("head.modulation") {
            keys.own()
        } else if keys.has("condition_embedder.time_proj.weight") && keys.has("scale_shift_table") {
            keys.origins_by(&DIFFUSERS)
        } else {
            return Ok(None);
        };
        flatten(keys, &mut origins);
        // The filters of a network that looks at faces are always the same.
        origins.retain(|key, _| !(key.starts_with("motion_encoder.") && key.ends_with(".kernel")));
        let config = WanConfig::detect(&keys.store(&origins))?;
        let family = match &config {
            WanConfig {
                out_channels: 48, ..
            } => "Wan 2.2 5B",
            WanConfig { sound: Some(_), .. } => "Wan sound to video",
            WanConfig {
                speech: Some(_), ..
            } => "Wan HuMo",
            WanConfig { face: Some(_), .. } => "Wan Animate",
            _ => "Wan",
        };
        Ok(Some(keys.checkpoint::<WanNetwork>(
            family,
            config,
            origins,
            &UNITS,
            Some(&stacks::WAN),
        )))
    }
}

/// Convolutions whose squares do not overlap become matrices.
fn flatten(keys: &FileKeys<'_>, origins: &mut BTreeMap<String, Origin>) {
    for (key, origin) in origins {
        let Origin::Whole(name) = origin else {
            continue;
        };
        let info = keys.file.info(name);
        if let Some(shape) = info.and_then(|info| flattened(key, &info.shape)) {
            let name = name.clone();
            *origin = Origin::Shaped { name, shape };
        }
    }
}
