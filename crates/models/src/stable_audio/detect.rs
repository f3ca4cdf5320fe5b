//! How files of this family are recognised.

use std::sync::Arc;

use super::config::StableAudioConfig;
use super::model::StableAudioNetwork;
use crate::denoise::Found;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::preview::PreviewHints;
use crate::store::{Blocks, Origin, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "timestep_features",
        "to_timestep_embed",
        "to_cond_embed",
        "to_global_embed",
        "seconds_start",
        "seconds_total",
        "preprocess_conv",
        "transformer",
        "project_in",
        "layers",
        "project_out",
        "postprocess_conv",
    ],
    &[Blocks::Within("layers")],
);

const VAE: &str = "pretransform.model.";

pub struct StableAudio;

impl Family for StableAudio {
    fn names(&self) -> &'static [&'static str] {
        &["Stable Audio"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        if !keys.has("transformer.rotary_pos_emb.inv_freq") || !keys.any_inside("to_global_embed.")
        {
            return Ok(None);
        }
        // Zeros that nothing adds.
        let own = keys
            .inside
            .iter()
            .filter(|key| key.rsplit('.').next() != Some("beta"));
        let mut origins = keys.origins(own.map(|key| ((*key).to_owned(), *key)));
        for which in ["seconds_start", "seconds_total"] {
            for part in ["0.weights", "1.weight", "1.bias"] {
                let name = format!("conditioner.conditioners.{which}.embedder.embedding.{part}");
                if keys.has_name(&name) {
                    origins.insert(format!("{which}.{part}"), Origin::Whole(name));
                }
            }
        }
        let config = StableAudioConfig::detect(&keys.store(&origins))?;
        Ok(Some(Checkpoint {
            family: "Stable Audio",
            network: Arc::new(Found::<StableAudioNetwork>(config)),
            keys: origins,
            units: &UNITS,
            vae_prefix: keys.any_name(VAE).then_some(VAE).or(keys.vae_prefix()),
            text: keys.has_text().then_some(&stacks::STABLE_AUDIO),
            preview: PreviewHints::of(keys.file.metadata()),
        }))
    }
}
