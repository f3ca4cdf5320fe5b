//! Autoencoders from weight files, as nodes use them.

use std::sync::Arc;

use fresco_graph::{Cx, NodeError};
use fresco_memory::{Handle, Need};
use fresco_models::ModelError;
use fresco_models::network::Lazy;
use fresco_models::store::WeightStore;
use fresco_models::taesd::Taesd;
use fresco_models::vae::{self, FrameOrder, Tiles, VaeConfig, VaeFacts};
use fresco_tensor::{Device, Tensor};

use super::VaeModel;
use super::film::DecodedFilm;
use crate::frames::FrameStream;
use crate::loaders::WeightSource;
use crate::resident::{Component, Hold, InUse, LoadOptions, SharedNetwork, refused, registry, who};
use crate::sampling::run::failure;

type Network = Lazy<vae::Vae>;

fn lazy(store: &Arc<WeightStore>, config: &VaeConfig) -> Network {
    let (own, config) = (Arc::clone(store), config.clone());
    let build = move || config.build(&own);
    Lazy::new(vec![Arc::clone(store)], Box::new(build))
}

/// A VAE whose weights are packed when it is first used.
pub struct LoadedVae {
    facts: VaeFacts,
    kind: Kind,
}

/// Frames that take more than this as numbers are decoded when somebody wants them.
const STREAMED: u64 = 1 << 29;

/// The same for networks that make all frames at once.
const STREAMED_AT_ONCE: u64 = 1 << 31;

enum Kind {
    Held {
        network: Arc<Network>,
        store: Arc<WeightStore>,
        hold: Arc<Hold>,
    },
    /// So small that it stays in main memory, whatever is loaded.
    Small(Arc<vae::Vae>),
}

/// Why there is nothing for the registry.
enum Not {
    Registered(Box<vae::Vae>),
    Possible(NodeError),
}

impl LoadedVae {
    /// The autoencoder in a file. What is wrong with its keys and shapes is said now, not when it is first used.
    pub(crate) fn load(
        cx: &Cx,
        source: &WeightSource,
        prefix: &str,
        options: &LoadOptions,
    ) -> Result<Self, NodeError> {
        let key = source.key(Component::Vae)?;
        let opened = registry(cx).open(&who(cx), &key, "KlVae", || {
            let file = source.open().map_err(Not::Possible)?;
            let wrong = |e: ModelError| Not::Possible(failure(e));
            if file.info("taesd_decoder.1.weight").is_some() {
                let small = vae::Vae::open(file, prefix, Device::cpu()).map_err(wrong)?;
                return Err(Not::Registered(Box::new(small)));
            }
            let store = vae::names::store(file, prefix, Device::cpu());
            let config = VaeConfig::detect_in(file, &store).map_err(wrong)?;
            config.verify(&store).map_err(wrong)?;
            Ok(SharedNetwork::new(lazy(&store, &config), (store, config)))
        });
        let opened = match opened {
            Ok(opened) => opened,
            Err(Not::Registered(small)) => return Ok(Self::small(*small)),
            Err(Not::Possible(error)) => return Err(error),
        };
        let shared = opened.shared;
        let hold = Hold::claim(cx, &shared, &opened.id, Component::Vae, options);
        let (store, config) = &shared.extra;
        let store = store.on(hold.compute().clone());
        Ok(Self {
            facts: config.facts(),
            kind: Kind::Held {
                network: shared.joined(lazy(&store, config)),
                store,
                hold,
            },
        })
    }

    /// The small approximation.
    pub fn taesd(network: Taesd) -> Self {
        Self::small(network.into())
    }

    fn small(network: vae::Vae) -> Self {
        Self {
            facts: network.facts(),
            kind: Kind::Small(Arc::new(network)),
        }
    }

    /// Runs with the network where it computes. `bytes` says what it takes to run at once, if that is wanted; `tiles` is
    /// for when there is less, and smaller ones for when there is much less.
    fn run(
        &self,
        cx: &Cx,
        bytes: u64,
        whole: Option<&Pass<'_>>,
        tiles: Tiles,
        tiled: &dyn Fn(&vae::Vae, Tiles) -> Result<Tensor, ModelError>,
    ) -> Result<Tensor, NodeError> {
        let attempt = |network: &vae::Vae, tiles: Tiles| match whole.map(|pass| pass(network)) {
            Some(Err(error)) if refused(&error).is_some() => {
                tracing::warn!(
                    "not enough memory for the picture at once, working in tiles: {error}"
                );
                tiled(network, tiles)
            }
            Some(result) => result,
            None => tiled(network, tiles),
        };
        let (network, hold) = match &self.kind {
            Kind::Small(network) => return attempt(network, tiles).map_err(failure),
            Kind::Held { network, hold, .. } => (network, hold),
        };
        let need = Need {
            required: bytes,
            ..Need::default()
        };
        let in_use = InUse::of(cx, &[hold.handle()], need)?;
        let mut tiles = tiles;
        loop {
            let result = in_use.run(|| attempt(&*network.get()?, tiles));
            match (result, smaller(tiles)) {
                (Err(ModelError::NoRoom { reason }), Some(next)) => {
                    let size = next.x;
                    tracing::warn!("working in smaller tiles of {size} by {size}: {reason}");
                    tiles = next;
                }
                (result, _) => return result.map_err(failure),
            }
        }
    }
}

impl LoadedVae {
    /// Runs with the network where it computes, which takes so many bytes.
    fn run_once(
        &self,
        cx: &Cx,
        bytes: u64,
        pass: impl Fn(&vae::Vae, vae::Check<'_>) -> Result<Tensor, ModelError>,
    ) -> Result<Tensor, NodeError> {
        let check = &check(cx);
        let (network, hold) = match &self.kind {
            Kind::Small(network) => return pass(network, check).map_err(failure),
            Kind::Held { network, hold, .. } => (network, hold),
        };
        let need = Need {
            required: bytes,
            ..Need::default()
        };
        let in_use = InUse::of(cx, &[hold.handle()], need)?;
        let made = in_use.run(|| pass(&*network.get()?, check));
        made.map_err(failure)
    }
}

/// Tiles of half the size, as long as there is something to see in one.
pub(super) fn smaller(tiles: Tiles) -> Option<Tiles> {
    const LEAST: usize = 8;
    let next = Tiles {
        x: tiles.x / 2,
        y: tiles.y / 2,
        overlap: tiles.overlap / 2,
        time: tiles.time,
    };
    // Some tiles are half as wide again.
    (next.x.min(next.y) / 2 >= LEAST / 2 && next.overlap > 0).then_some(next)
}

/// One way to use a network.
type Pass<'a> = dyn Fn(&vae::Vae) -> Result<Tensor, ModelError> + 'a;

/// Stops the network when the user asked to.
fn check(cx: &Cx) -> impl Fn() -> Result<(), ModelError> + Sync + '_ {
    || cx.check_interrupt().map_err(|_| ModelError::Cancelled)
}

impl VaeModel for LoadedVae {
    fn encode(&self, pixels: &Tensor, cx: &Cx) -> Result<Tensor, NodeError> {
        let check = &check(cx);
        let whole = |network: &vae::Vae| network.encode(pixels, check);
        let tiled = |network: &vae::Vae, tiles| network.encode_tiled(pixels, tiles, check);
        let bytes = self.facts.encode_bytes(pixels.shape());
        let tiles = match self.facts.temporal_ratio {
            Some(_) => Tiles::ENCODE_VIDEO,
            None => Tiles::ENCODE,
        };
        self.run(cx, bytes, Some(&whole), tiles, &tiled)
    }

    fn decode(&self, latent: &Tensor, cx: &Cx) -> Result<Tensor, NodeError> {
        self.takes(latent)?;
        let check = &check(cx);
        let whole = |network: &vae::Vae| network.decode(latent, check);
        let tiled = |network: &vae::Vae, tiles| network.decode_tiled(latent, tiles, check);
        let bytes = self.facts.decode_bytes(latent.shape());
        let tiles = match self.facts.temporal_ratio {
            Some(_) => Tiles::decode_video(self.facts.ratio),
            None => Tiles::DECODE,
        };
        in_one_batch(&self.run(cx, bytes, Some(&whole), tiles, &tiled)?)
    }

    fn encode_tiled(&self, pixels: &Tensor, tiles: Tiles, cx: &Cx) -> Result<Tensor, NodeError> {
        let check = &check(cx);
        let pass = |network: &vae::Vae, tiles| network.encode_tiled(pixels, tiles, check);
        let frames = tiles.time.map_or(1, |time| time.frames);
        let bytes = self.facts.encode_bytes(&[frames, tiles.y, tiles.x, 3]);
        self.run(cx, bytes, None, tiles, &pass)
    }

    fn decode_tiled(&self, latent: &Tensor, tiles: Tiles, cx: &Cx) -> Result<Tensor, NodeError> {
        self.takes(latent)?;
        let check = &check(cx);
        let pass = |network: &vae::Vae, tiles| network.decode_tiled(latent, tiles, check);
        let frames = tiles.time.map_or(1, |time| time.frames);
        let bytes = match self.facts.temporal_ratio {
            Some(_) => {
                self.facts
                    .decode_bytes(&[1, self.facts.latent_channels, frames, tiles.y, tiles.x])
            }
            None => self
                .facts
                .decode_bytes(&[1, self.facts.latent_channels, tiles.y, tiles.x]),
        };
        in_one_batch(&self.run(cx, bytes, None, tiles, &pass)?)
    }

    fn film(self: Arc<Self>, latent: &Tensor, cx: &Cx) -> Option<Arc<dyn FrameStream>> {
        self.streamed(latent, None, cx)
    }

    fn film_tiled(
        self: Arc<Self>,
        latent: &Tensor,
        tiles: Tiles,
        cx: &Cx,
    ) -> Option<Arc<dyn FrameStream>> {
        self.streamed(latent, Some(tiles), cx)
    }

    fn sound_rate(&self, _: &Cx) -> Result<u32, NodeError> {
        self.facts.sound_rate().ok_or_else(super::no_sound)
    }

    fn encode_sound(&self, sound: &Tensor, cx: &Cx) -> Result<Tensor, NodeError> {
        self.run_once(cx, self.facts.sound_bytes(sound.len()), |network, check| {
            network.sound("VAE encode")?.encode(sound, check)
        })
    }

    fn decode_sound(
        &self,
        latent: &Tensor,
        tiles: Option<(usize, usize)>,
        cx: &Cx,
    ) -> Result<Tensor, NodeError> {
        let frames = latent.shape().last().copied().unwrap_or(0);
        let at_once = tiles.map_or(frames, |(tile, _)| tile.min(frames));
        let samples = latent.shape().first().copied().unwrap_or(0) * at_once * self.facts.ratio;
        self.run_once(cx, self.facts.sound_bytes(samples), |network, check| {
            let network = network.sound("VAE decode")?;
            match tiles {
                Some(tiles) => network.decode_tiled(latent, tiles, check),
                None => network.decode(latent, check),
            }
        })
    }

    fn decode_voxels(
        &self,
        latent: &Tensor,
        cells: usize,
        chunk: usize,
        cx: &Cx,
    ) -> Result<Tensor, NodeError> {
        self.run_once(cx, self.facts.voxel_bytes(cells), |network, check| {
            let network = network.solids("VAE decode")?;
            network.decode(latent, cells, chunk, check)
        })
    }

    fn handle(&self) -> Option<&Handle> {
        match &self.kind {
            Kind::Held { hold, .. } => Some(hold.handle()),
            Kind::Small(_) => None,
        }
    }

    fn spatial_ratio(&self) -> usize {
        self.facts.ratio
    }

    fn temporal_ratio(&self) -> Option<usize> {
        self.facts.temporal_ratio
    }

    fn latent_channels(&self) -> usize {
        self.facts.latent_channels
    }

    fn picture_channels(&self) -> usize {
        self.facts.picture_channels
    }

    fn store(&self) -> Option<&Arc<WeightStore>> {
        match &self.kind {
            Kind::Held { store, .. } => Some(store),
            Kind::Small(_) => None,
        }
    }
}

/// Bytes of four to a value.
const VALUE: u64 = 4;

/// Videos (b, t, h, w, c) as one batch of pictures, which they are to nodes.
fn in_one_batch(images: &Tensor) -> Result<Tensor, NodeError> {
    Ok(match *images.shape() {
        [b, t, h, w, c] => images.reshape([b * t, h, w, c])?,
        _ => images.clone(),
    })
}

/// Who has latents of so many channels, for messages.
fn families_of(channels: usize) -> &'static str {
    match channels {
        4 => " (as SD1, SD2, SDXL, PixArt and AuraFlow have)",
        12 => " (as Mochi has)",
        16 => " (as SD3, Flux.1, Z-Image, Qwen-Image and Wan 2.1 have)",
        32 => " (as Hunyuan Video 1.5 has)",
        48 => " (as Wan 2.2 5B has)",
        64 => " (as HunyuanImage 2.1 has)",
        128 => " (as Flux.2 and LTX have)",
        _ => "",
    }
}

impl LoadedVae {
    /// Frames that are decoded when they are read, in tiles where somebody asked for them.
    fn streamed(
        &self,
        latent: &Tensor,
        tiles: Option<Tiles>,
        cx: &Cx,
    ) -> Option<Arc<dyn FrameStream>> {
        let (span, &[b, channels, t, h, w]) = (self.facts.temporal_ratio?, latent.shape()) else {
            return None;
        };
        let Kind::Held { network, hold, .. } = &self.kind else {
            return None;
        };
        if channels != self.facts.latent_channels || self.facts.picture_channels != 3 {
            return None;
        }
        let frames = b * ((t * span).saturating_sub(span - 1));
        let shape = [frames, h * self.facts.ratio, w * self.facts.ratio, 3];
        let bytes = shape.iter().map(|n| *n as u64).product::<u64>() * VALUE;
        // Networks that make all frames at once do so again for everybody who reads them: only where there is no other way.
        let one_by_one = self.facts.frames == FrameOrder::OneByOne;
        let least = match (one_by_one, tiles) {
            (true, _) | (false, Some(_)) => STREAMED,
            (false, None) => STREAMED_AT_ONCE,
        };
        if bytes <= least {
            return None;
        }
        let need = match tiles {
            Some(tiles) => {
                let frames = tiles.time.map_or(t, |time| time.frames.min(t));
                self.facts
                    .decode_bytes(&[1, channels, frames, tiles.y.min(h), tiles.x.min(w)])
            }
            // One latent frame after the other.
            None if one_by_one => self.facts.decode_bytes(&[1, channels, 1, h, w]),
            None => self.facts.decode_bytes(latent.shape()),
        };
        Some(Arc::new(DecodedFilm {
            network: Arc::clone(network),
            hold: Arc::clone(hold),
            tiles,
            ratio: self.facts.ratio,
            latent: latent.clone(),
            shape,
            bytes: need,
            cx: cx.clone(),
        }))
    }

    /// Whether a latent is of a family that this VAE belongs to, as far as channels tell.
    fn takes(&self, latent: &Tensor) -> Result<(), NodeError> {
        let (&[_, found, _, _] | &[_, found, _, _, _]) = latent.shape() else {
            return Ok(());
        };
        if found == self.facts.latent_channels || self.facts.sound_rate().is_some() {
            return Ok(());
        }
        let file = match &self.kind {
            Kind::Held { store, .. } => store.file(),
            Kind::Small(_) => "the small VAE",
        };
        let own = self.facts.latent_channels;
        Err(NodeError::value_error(format!(
            "{file}: this VAE takes latents of {own} channels{}, and this latent has {found}{}: it is of another family \
             of models. Load the VAE that belongs to the model that made the latent",
            families_of(own),
            families_of(found)
        )))
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
