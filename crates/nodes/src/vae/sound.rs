//! Autoencoders of sound from weight files, as nodes use them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fresco_graph::{Cx, NodeError};
use fresco_memory::{Handle, Need};
use fresco_models::ModelError;
use fresco_models::network::Lazy;
use fresco_models::store::WeightStore;
use fresco_models::waves::{SoundFacts, SoundNetwork, SoundStore};
use fresco_tensor::Tensor;
use fresco_tensor::weights::shards_of;

use super::VaeModel;
use crate::loaders::WeightSource;
use crate::resident::{Component, Hold, InUse, LoadOptions, SharedNetwork, content, registry, who};
use crate::sampling::run::failure;

/// What nodes need of a VAE of sound.
pub trait SoundModel: Send + Sync {
    fn facts(&self) -> SoundFacts;

    /// The latent of waves `(b, channels, samples)`.
    fn encode_sound(&self, wave: &Tensor, cx: &Cx) -> Result<Tensor, NodeError>;

    /// Waves `(b, channels, samples)` of a latent.
    fn decode_sound(&self, latent: &Tensor, cx: &Cx) -> Result<Tensor, NodeError>;
}

type Network = Lazy<Box<dyn SoundNetwork>>;

fn lazy(found: &SoundStore) -> Network {
    let own = found.clone();
    let stores = vec![Arc::clone(&found.store)];
    Lazy::new(stores, Box::new(move || own.build()))
}

/// A VAE of sound whose weights are packed when it is first used.
pub struct LoadedSound {
    found: SoundStore,
    network: Arc<Network>,
    hold: Arc<Hold>,
}

/// Values that a network holds for a sample of its result at its fullest.
const HELD: u64 = 256;

impl LoadedSound {
    /// The one in a file.
    pub(crate) fn load(
        cx: &Cx,
        source: &WeightSource,
        options: &LoadOptions,
    ) -> Result<Self, NodeError> {
        // A checkpoint may have a VAE of pictures, too.
        let files = shards_of(source.path());
        let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        let key = content(&files, Component::Vae, "sound")?;
        let opened = registry(cx).open(&who(cx), &key, "AudioVae", || {
            let found = SoundStore::find(source.open()?).map_err(failure)?;
            Ok::<_, NodeError>(SharedNetwork::new(lazy(&found), found))
        })?;
        let shared = opened.shared;
        let hold = Hold::claim(cx, &shared, &opened.id, Component::Vae, options);
        let found = shared.extra.on(hold.compute().clone());
        Ok(Self {
            network: shared.joined(lazy(&found)),
            found,
            hold,
        })
    }

    /// The same, if the file has nothing but sound.
    pub(crate) fn maybe(
        cx: &Cx,
        source: &WeightSource,
        options: &LoadOptions,
    ) -> Result<Option<Self>, NodeError> {
        let pictures = |name: &String| {
            let rest = name.strip_prefix("vae.").unwrap_or(name);
            rest.starts_with("decoder.up_blocks.") || rest.starts_with("decoder.conv_in.weight")
        };
        let file = source.open()?;
        if file.names().iter().any(pictures) || SoundStore::maybe(file).map_err(failure)?.is_none()
        {
            return Ok(None);
        }
        Self::load(cx, source, options).map(Some)
    }

    fn run(
        &self,
        cx: &Cx,
        samples: u64,
        pass: impl Fn(&dyn SoundNetwork) -> Result<Tensor, ModelError>,
    ) -> Result<Tensor, NodeError> {
        let need = Need {
            required: samples.saturating_mul(HELD * 4),
            ..Need::default()
        };
        let in_use = InUse::of(cx, &[self.hold.handle()], need)?;
        let made = in_use.run(|| pass(&**self.network.get()?));
        made.map_err(failure)
    }
}

impl SoundModel for LoadedSound {
    fn facts(&self) -> SoundFacts {
        self.found.facts
    }

    fn encode_sound(&self, wave: &Tensor, cx: &Cx) -> Result<Tensor, NodeError> {
        let check = || cx.check_interrupt().map_err(|_| ModelError::Cancelled);
        self.run(cx, wave.len() as u64, |net| net.encode(wave, &check))
    }

    fn decode_sound(&self, latent: &Tensor, cx: &Cx) -> Result<Tensor, NodeError> {
        let check = || cx.check_interrupt().map_err(|_| ModelError::Cancelled);
        let facts = self.found.facts;
        let frames = latent.len() / facts.latent_shape(1, 1).iter().product::<usize>().max(1);
        let seconds = frames as f64 / facts.latent_rate.max(1.0);
        let samples = (seconds * f64::from(facts.rate_out)) as u64;
        self.run(cx, samples, |net| net.decode(latent, &check))
    }
}

impl VaeModel for LoadedSound {
    fn encode(&self, _: &Tensor, _: &Cx) -> Result<Tensor, NodeError> {
        Err(NodeError::value_error(
            "this VAE is for sound: pictures are encoded by the model's other VAE",
        ))
    }

    fn decode(&self, _: &Tensor, _: &Cx) -> Result<Tensor, NodeError> {
        Err(NodeError::value_error(
            "this VAE is for sound: pictures are decoded by the model's other VAE",
        ))
    }

    fn sound(&self) -> Option<&dyn SoundModel> {
        Some(self)
    }

    fn handle(&self) -> Option<&Handle> {
        Some(self.hold.handle())
    }

    fn spatial_ratio(&self) -> usize {
        1
    }

    fn temporal_ratio(&self) -> Option<usize> {
        None
    }

    fn latent_channels(&self) -> usize {
        self.found.facts.channels
    }

    fn store(&self) -> Option<&Arc<WeightStore>> {
        Some(&self.found.store)
    }
}
