//! The control net (Zhang et al. 2023): a copy of a UNet's encoder that also sees a hint, and adds to the skips.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, Conv2d, Linear, silu};

use crate::denoise::hooks::{BlockKind, ControlFeatures, Hooks};
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::sd::unet::{Cache, Pass, Trunk, UNetConfig};
use crate::store::{Layout, Walk, WeightStore};

use super::union::{self, Union};

/// Places of the hint's convolutions in their sequence, with their strides.
const HINT: [(usize, usize); 8] = [
    (0, 1),
    (2, 1),
    (4, 2),
    (6, 1),
    (8, 2),
    (10, 1),
    (12, 2),
    (14, 1),
];

/// A copy of the encoder half of a UNet that steers it by a picture.
pub struct ControlNet {
    trunk: Trunk,
    hint: Vec<Arc<Conv2d>>,
    hint_channels: usize,
    zero: Vec<Arc<Linear>>,
    middle: Arc<Linear>,
    union: Option<Union>,
    cache: Cache,
}

/// Channels after each of the hint's convolutions but the last, in all published nets.
const HINT_WIDTHS: [usize; 7] = [16, 16, 32, 32, 96, 96, 256];

/// The network in messages.
const WHAT: &str = "the control net";

/// The shape of a control net.
struct NetConfig {
    encoder: UNetConfig,
    hint_channels: usize,
    /// Channels after each of the hint's convolutions but the last.
    hint_widths: Vec<usize>,
    /// For nets that know several kinds of hints, how many.
    kinds: Option<usize>,
}

impl NetConfig {
    /// The hint's convolutions as a store has them.
    fn detect(store: &WeightStore, encoder: UNetConfig) -> Self {
        let width = |place: usize, dim: usize| {
            let shape = store.shape(&format!("input_hint_block.{place}.weight"));
            shape.and_then(|s| s.get(dim).copied()).unwrap_or(0)
        };
        let inner = &HINT[..HINT.len() - 1];
        Self {
            encoder,
            hint_channels: width(0, 1),
            hint_widths: inner.iter().map(|(place, _)| width(*place, 0)).collect(),
            kinds: union::kinds(store),
        }
    }
}

impl ControlNet {
    /// From weights under the names of the original. Heads are those of the published models.
    pub fn new(store: &WeightStore) -> Result<Self> {
        Self::with(store, UNetConfig::encoder(store)?)
    }

    /// Whether a store has what a control net needs, without reading it.
    pub fn verify(store: &WeightStore) -> Result<()> {
        let config = NetConfig::detect(store, UNetConfig::encoder(store)?);
        Layout::of(|weights| Self::walk(weights, &config))?.verify(store, WHAT)
    }

    /// The same with a given shape of the encoder.
    pub fn with(store: &WeightStore, encoder: UNetConfig) -> Result<Self> {
        let config = NetConfig::detect(store, encoder);
        store.build(WHAT, |weights| Self::walk(weights, &config))
    }

    fn walk(weights: &Walk<'_>, config: &NetConfig) -> Result<Self> {
        let encoder = &config.encoder;
        let trunk = Trunk::new(weights, encoder.clone())?;
        let mut at = config.hint_channels;
        let widths = config.hint_widths.iter().copied();
        let widths = widths.chain([encoder.model_channels]);
        let mut hint = Vec::new();
        for ((place, stride), width) in HINT.into_iter().zip(widths) {
            let weights = weights.at("input_hint_block");
            hint.push(weights.conv(&place.to_string(), width, at, 3, stride)?);
            at = width;
        }
        let mut zero = Vec::new();
        for (number, channels) in encoder.skips().into_iter().enumerate() {
            let weights = weights.at("zero_convs").at(number);
            zero.push(weights.linear("0", channels, channels)?);
        }
        let inner = encoder.inner();
        Ok(Self {
            hint,
            hint_channels: config.hint_channels,
            zero,
            middle: weights.linear("middle_block_out.0", inner, inner)?,
            union: config
                .kinds
                .map(|kinds| Union::new(weights, kinds, encoder.model_channels))
                .transpose()?,
            trunk,
            cache: Cache::default(),
        })
    }

    /// Every weight with its shape for an encoder like this and the usual hint convolutions.
    pub fn weights(
        encoder: &UNetConfig,
        hint_channels: usize,
    ) -> Result<Vec<(String, Vec<usize>)>> {
        let config = NetConfig {
            encoder: encoder.clone(),
            hint_channels,
            hint_widths: HINT_WIDTHS.to_vec(),
            kinds: None,
        };
        let layout = Layout::of(|weights| Self::walk(weights, &config))?;
        Ok(layout.items().to_vec())
    }

    pub fn config(&self) -> &UNetConfig {
        self.trunk.config()
    }

    /// Drops the keys and values of prompts that it remembers.
    pub fn rest(&self) {
        self.cache.clear();
    }

    pub fn hint_channels(&self) -> usize {
        self.hint_channels
    }

    /// What a net for several kinds of hints makes of what it sees, (b, h, w, c), with the kinds in mind.
    pub fn with_types(&self, seen: &Tensor, types: &[usize]) -> Result<Tensor> {
        match &self.union {
            Some(union) => union.fused(seen, types),
            None => Ok(seen.clone()),
        }
    }

    /// What the network sees in a hint (b, c, 8h, 8w) in 0..1; the same for all steps of a sampling.
    pub fn see(&self, hint: &Tensor) -> Result<Tensor> {
        if hint.rank() != 4 || hint.is_empty() || hint.shape()[1] != self.hint_channels {
            let reason = format!(
                "takes pictures of {} channels, got shape {:?}",
                self.hint_channels,
                hint.shape()
            );
            return Err(ModelError::invalid("control net", reason));
        }
        let mut h = hint.nchw_to_nhwc()?.to(self.trunk.device())?;
        for (place, conv) in self.hint.iter().enumerate() {
            let last = place + 1 == self.hint.len();
            let act = if last { Act::None } else { Act::Silu };
            h = conv.forward_with(&h, then(act))?;
        }
        Ok(h)
    }

    /// What to add to the UNet's feature maps for a latent `x` (b, c, h, w) as the UNet gets it. `seen` is of one hint or of
    /// one per item.
    pub fn forward(
        &self,
        x: &Tensor,
        seen: &Tensor,
        timesteps: &[f32],
        context: Option<&Tensor>,
        y: Option<&Tensor>,
    ) -> Result<ControlFeatures> {
        self.forward_as(x, seen, timesteps, context, y, &[])
    }

    /// The same with the kinds that the hint is said to be.
    pub fn forward_as(
        &self,
        x: &Tensor,
        seen: &Tensor,
        timesteps: &[f32],
        context: Option<&Tensor>,
        y: Option<&Tensor>,
        types: &[usize],
    ) -> Result<ControlFeatures> {
        self.trunk.check(x, timesteps, context, y)?;
        let device = self.trunk.device();
        let x = &x.to(device)?;
        let seen = &seen.to(device)?;
        let here = context;
        let context = here.map(|context| context.to(device)).transpose()?;
        let context = context.as_ref();
        let [b, _, h, w] = x.dims4()?;
        let fits = match *seen.shape() {
            [items, rows, columns, _] => (items == 1 || items == b) && (rows, columns) == (h, w),
            _ => false,
        };
        if !fits {
            let reason = format!(
                "a hint of shape {:?} for {b} items of {w}x{h}",
                seen.shape()
            );
            return Err(ModelError::invalid("control net", reason));
        }
        let mut emb = self.trunk.embed(timesteps, y)?;
        if let Some(union) = &self.union {
            emb = emb.add(&union.embedding(types)?)?;
        }
        let emb = silu(&emb);
        let keys = self.cache.begin(here, self.trunk.slots);
        let hooks = Hooks::default();
        let pass = Pass {
            hooks: &hooks,
            emb: &emb,
            levels: &[],
            context,
            keys: &keys,
            original: x.shape(),
            frames: x.dim(0)?,
        };
        let mut output = Vec::with_capacity(self.zero.len());
        let mut h = x.nchw_to_nhwc()?;
        for (number, zero) in self.zero.iter().enumerate() {
            h = self.trunk.input(number, h, &pass)?;
            if number == 0 {
                h = h.add(seen)?;
            }
            output.push(Some(zero.forward(&h)?.nhwc_to_nchw()?));
        }
        h = self.trunk.middle(h, &pass)?;
        let middle = self.middle.forward(&h)?.nhwc_to_nchw()?;
        self.cache.end(here, keys);
        Ok(ControlFeatures::default()
            .with(BlockKind::OUTPUT, output)
            .with(BlockKind::MIDDLE, vec![Some(middle)]))
    }
}
