//! Which autoencoder a file has.

use std::any::Any;
use std::sync::Arc;

use fresco_tensor::WeightFile;

use super::autoencoder::{AutoencoderConfig, VaeFacts};
use super::causal::CausalConfig;
use super::images::Vae;
use super::kl::KlConfig;
use super::pieces::PieceConfig;
use super::pixel_norm::PixelNormConfig;
use super::quantised::QuantisedConfig;
use super::replicated::ReplicatedConfig;
use super::shape::ShapeVaeConfig;
use super::sound::SoundVaeConfig;
use super::stacked::StackedConfig;
use super::wavelet::WaveletConfig;
use crate::detect::{something_else, what_it_is};
use crate::error::{ModelError, Result};
use crate::store::WeightStore;
use crate::taehv::TaehvConfig;

/// The shape of an autoencoder of any kind.
#[derive(Clone, Debug)]
pub struct VaeConfig(Arc<dyn AutoencoderConfig>);

impl<C: AutoencoderConfig> From<C> for VaeConfig {
    fn from(config: C) -> Self {
        Self(Arc::new(config))
    }
}

/// A kind of autoencoders: whether a store has one, and its shape.
struct VaeKind {
    is_in: fn(&WeightStore) -> bool,
    detect: fn(&WeightStore) -> Result<VaeConfig>,
}

macro_rules! kinds {
    ($($config:ty),* $(,)?) => {
        &[$(VaeKind {
            is_in: <$config>::is_in,
            detect: |store| Ok(<$config>::detect(store)?.into()),
        }),*]
    };
}

/// All but the usual one of pictures; the first whose weights are there counts.
static KINDS: &[VaeKind] = kinds![
    CausalConfig,
    PixelNormConfig,
    PieceConfig,
    QuantisedConfig,
    WaveletConfig,
    StackedConfig,
    ReplicatedConfig,
    TaehvConfig,
    SoundVaeConfig,
    ShapeVaeConfig,
];

impl VaeConfig {
    /// From a store under the names of the original; [`super::names::store`] makes one from any file.
    pub fn detect(store: &WeightStore) -> Result<Self> {
        Self::known(store)?.map_or_else(|| Ok(KlConfig::detect(store)?.into()), Ok)
    }

    /// The same for the autoencoder of a file. Says what the file holds where that is none.
    pub fn detect_in(file: &Arc<dyn WeightFile>, store: &WeightStore) -> Result<Self> {
        if let Some(found) = Self::known(store)? {
            return Ok(found);
        }
        if KlConfig::is_in(store) {
            return Ok(KlConfig::detect(store)?.into());
        }
        let reason = match what_it_is(&file.names()) {
            Some("a VAE") => "no VAE is known with its tensors".to_owned(),
            _ => something_else(file, "a VAE"),
        };
        Err(ModelError::unsupported(store.file(), reason))
    }

    fn known(store: &WeightStore) -> Result<Option<Self>> {
        let found = KINDS.iter().find(|kind| (kind.is_in)(store));
        found.map(|kind| (kind.detect)(store)).transpose()
    }

    /// The config of one kind; none if it is of another.
    pub fn get<C: AutoencoderConfig>(&self) -> Option<&C> {
        (&*self.0 as &dyn Any).downcast_ref()
    }

    pub fn is<C: AutoencoderConfig>(&self) -> bool {
        self.get::<C>().is_some()
    }

    pub fn facts(&self) -> VaeFacts {
        self.0.facts()
    }

    /// Whether a store has every weight in its shape.
    pub fn verify(&self, store: &WeightStore) -> Result<()> {
        self.0.verify(store)
    }

    /// The network over its weights.
    pub fn build(&self, store: &WeightStore) -> Result<Vae> {
        self.0.build(store)
    }
}
