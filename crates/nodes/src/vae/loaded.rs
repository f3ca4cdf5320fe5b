//! Autoencoders from weight files, as nodes use them.

use std::sync::{Arc, Mutex, PoisonError};

use fresco_graph::{Cx, NodeError};
use fresco_models::ModelError;
use fresco_models::store::Store;
use fresco_models::taesd::Taesd;
use fresco_models::vae::{self, KlConfig, Tiles};
use fresco_tensor::{Device, Tensor, TensorError, WeightFile};

use super::VaeModel;
use crate::sampling::run::failure;

type Network = Arc<vae::Vae>;

/// A VAE whose weights are packed when it is first used.
pub struct LoadedVae {
    channels: usize,
    ratio: usize,
    /// The weights by key, where they can be saved again.
    store: Option<Arc<Store>>,
    network: Mutex<Option<Network>>,
}

impl LoadedVae {
    /// The autoencoder in a file. What is wrong with its keys and shapes is said now, not when it is first used.
    pub fn open(
        file: &Arc<dyn WeightFile>,
        prefix: &str,
        device: Device,
    ) -> Result<Self, ModelError> {
        if file.info("taesd_decoder.1.weight").is_some() {
            // So small that it stays in main memory.
            let network = vae::Vae::open(file, prefix, Device::cpu())?;
            return Ok(Self::ready(network));
        }
        let store = vae::names::store(file, prefix, device);
        let config = KlConfig::detect(&store)?;
        config.verify(&store)?;
        Ok(Self {
            channels: config.latent_channels(),
            ratio: config.ratio(),
            store: Some(store),
            network: Mutex::default(),
        })
    }

    /// The small approximation.
    pub fn taesd(network: Taesd) -> Self {
        Self::ready(vae::Vae::Taesd(network))
    }

    fn ready(network: vae::Vae) -> Self {
        Self {
            channels: network.latent_channels(),
            ratio: network.ratio(),
            store: None,
            network: Mutex::new(Some(Arc::new(network))),
        }
    }

    fn network(&self) -> Result<Network, NodeError> {
        // A panic while building leaves nothing half built.
        let mut slot = self.network.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(network) = &*slot {
            return Ok(Arc::clone(network));
        }
        let store = self
            .store
            .as_ref()
            .expect("a VAE without a store is built at once");
        let built = vae::KlVae::new(store).map_err(failure)?;
        let network = Arc::new(vae::Vae::Kl(Box::new(built)));
        *slot = Some(Arc::clone(&network));
        Ok(network)
    }
}

/// Whether smaller pieces would help.
fn is_full(error: &TensorError) -> bool {
    matches!(
        error,
        TensorError::NoMemory { .. } | TensorError::DeviceFull { .. }
    )
}

/// Stops the network when the user asked to.
fn check(cx: &Cx) -> impl Fn() -> Result<(), ModelError> + Sync + '_ {
    || cx.check_interrupt().map_err(|_| ModelError::Cancelled)
}

impl VaeModel for LoadedVae {
    fn encode(&self, pixels: &Tensor, cx: &Cx) -> Result<Tensor, NodeError> {
        let network = self.network()?;
        match network.encode(pixels, &check(cx)) {
            Err(ModelError::Tensor(error)) if is_full(&error) => {
                tracing::warn!("not enough memory to encode at once, encoding in tiles: {error}");
                network.encode_tiled(pixels, Tiles::ENCODE, &check(cx))
            }
            other => other,
        }
        .map_err(failure)
    }

    fn decode(&self, latent: &Tensor, cx: &Cx) -> Result<Tensor, NodeError> {
        let network = self.network()?;
        match network.decode(latent, &check(cx)) {
            Err(ModelError::Tensor(error)) if is_full(&error) => {
                tracing::warn!("not enough memory to decode at once, decoding in tiles: {error}");
                network.decode_tiled(latent, Tiles::DECODE, &check(cx))
            }
            other => other,
        }
        .map_err(failure)
    }

    fn encode_tiled(&self, pixels: &Tensor, tiles: Tiles, cx: &Cx) -> Result<Tensor, NodeError> {
        let network = self.network()?;
        network
            .encode_tiled(pixels, tiles, &check(cx))
            .map_err(failure)
    }

    fn decode_tiled(&self, latent: &Tensor, tiles: Tiles, cx: &Cx) -> Result<Tensor, NodeError> {
        let network = self.network()?;
        network
            .decode_tiled(latent, tiles, &check(cx))
            .map_err(failure)
    }

    fn spatial_ratio(&self) -> usize {
        self.ratio
    }

    fn temporal_ratio(&self) -> Option<usize> {
        None
    }

    fn latent_channels(&self) -> usize {
        self.channels
    }

    fn store(&self) -> Option<&Arc<Store>> {
        self.store.as_ref()
    }
}

/// Pixels as they are: for models that work on pictures instead of latents.
pub struct PixelSpace;

impl VaeModel for PixelSpace {
    fn encode(&self, pixels: &Tensor, _: &Cx) -> Result<Tensor, NodeError> {
        Ok(pixels.nhwc_to_nchw()?.mul_scalar(2.0).add_scalar(-1.0))
    }

    fn decode(&self, latent: &Tensor, _: &Cx) -> Result<Tensor, NodeError> {
        let [_, channels, _, _] = latent.dims4()?;
        if channels != 3 {
            return Err(NodeError::runtime(format!(
                "these latents have {channels} channels, pictures have 3: this VAE is for models without latents"
            )));
        }
        let images = latent.nchw_to_nhwc()?;
        Ok(images.map(|v| f32::midpoint(v, 1.0).clamp(0.0, 1.0)))
    }

    fn spatial_ratio(&self) -> usize {
        1
    }

    fn temporal_ratio(&self) -> Option<usize> {
        None
    }

    fn latent_channels(&self) -> usize {
        3
    }
}
