//! How files of this family are recognised.

use std::sync::Arc;

use super::config::{Hunyuan3d21Config, Hunyuan3dConfig};
use super::streams::Hunyuan3dNetwork;
use super::v21::Hunyuan3d21Network;
use crate::denoise::{Found, FoundNetwork};
use crate::detect::{Checkpoint, Family, FileKeys};
use crate::error::Result;
use crate::preview::PreviewHints;
use crate::store::{Blocks, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "latent_in",
        "x_embedder",
        "time_in",
        "t_embedder",
        "guidance_in",
        "cond_in",
        "double_blocks",
        "single_blocks",
        "blocks",
        "final_layer",
    ],
    &[
        Blocks::List("double_blocks"),
        Blocks::List("single_blocks"),
        Blocks::List("blocks"),
    ],
);

pub struct Hunyuan3d;

impl Family for Hunyuan3d {
    fn names(&self) -> &'static [&'static str] {
        &["Hunyuan3D 2", "Hunyuan3D 2.1"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let second = keys.has("latent_in.weight") && keys.has("cond_in.weight");
        let later = keys.has("t_embedder.mlp.2.weight") && keys.has("blocks.0.attn1.to_q.weight");
        if !second && !later {
            return Ok(None);
        }
        let origins = keys.own();
        let store = keys.store(&origins);
        let (family, network): (_, Arc<dyn FoundNetwork>) = if second {
            let config = Hunyuan3dConfig::detect(&store)?;
            let name = if config.is_mini() {
                "Hunyuan3D 2 mini"
            } else {
                "Hunyuan3D 2"
            };
            (name, Arc::new(Found::<Hunyuan3dNetwork>(config)))
        } else {
            let config = Hunyuan3d21Config::detect(&store)?;
            (
                "Hunyuan3D 2.1",
                Arc::new(Found::<Hunyuan3d21Network>(config)),
            )
        };
        Ok(Some(Checkpoint {
            family,
            network,
            keys: origins,
            units: &UNITS,
            vae_prefix: keys.vae_prefix(),
            text: None,
            preview: PreviewHints::of(keys.file.metadata()),
        }))
    }
}
