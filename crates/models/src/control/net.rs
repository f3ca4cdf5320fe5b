//! The control net (Zhang et al. 2023): a copy of a UNet's encoder that also sees a hint, and adds to the skips.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, After, Conv2d, Linear, Padding, silu};

use crate::error::{ModelError, Result};
use crate::layout::Layout;
use crate::store::Store;
use crate::unet::{Cache, ControlFeatures, Pass, Trunk, UNetConfig, UNetHooks};

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
    cache: Cache,
}

/// The weights of a control net with this encoder, `hint_widths` being the channels after each of the hint's convolutions
/// but the last.
fn layout(config: &UNetConfig, hint_channels: usize, hint_widths: &[usize]) -> Layout {
    let mut to = Layout::default();
    config.trunk_layout(&mut to);
    let mut at = hint_channels;
    let last = [config.model_channels];
    for ((place, _), &width) in HINT.iter().zip(hint_widths.iter().chain(&last)) {
        to.conv(&format!("input_hint_block.{place}"), width, at, 3);
        at = width;
    }
    for (number, channels) in config.skips().into_iter().enumerate() {
        to.linear(&format!("zero_convs.{number}.0"), channels, channels);
    }
    let inner = config.inner();
    to.linear("middle_block_out.0", inner, inner);
    to
}

/// The channels of the hint that a store's weights take, all of them of the right shape.
fn checked(store: &Store, config: &UNetConfig) -> Result<usize> {
    let width = |place: usize, dim: usize| {
        let shape = store.shape(&format!("input_hint_block.{place}.weight"));
        shape.and_then(|s| s.get(dim).copied()).unwrap_or(0)
    };
    let hint_channels = width(0, 1);
    let widths: Vec<usize> = HINT[..7]
        .iter()
        .map(|(place, _)| width(*place, 0))
        .collect();
    layout(config, hint_channels, &widths).verify(store, "the control net")?;
    Ok(hint_channels)
}

impl ControlNet {
    /// From weights under the names of the original. Heads are those of the published models.
    pub fn new(store: &Arc<Store>) -> Result<Self> {
        Self::with(store, UNetConfig::encoder(store)?)
    }

    /// Whether a store has what a control net needs, without reading it.
    pub fn verify(store: &Arc<Store>) -> Result<()> {
        checked(store, &UNetConfig::encoder(store)?).map(|_| ())
    }

    /// The same with a given shape of the encoder.
    pub fn with(store: &Arc<Store>, config: UNetConfig) -> Result<Self> {
        let hint_channels = checked(store, &config)?;
        let mut hint = Vec::new();
        for (place, stride) in HINT {
            let key = format!("input_hint_block.{place}");
            hint.push(store.conv(&key, stride, Padding::Same(1))?);
        }
        let mut zero = Vec::new();
        for number in 0..config.input.len() {
            zero.push(store.linear(&format!("zero_convs.{number}.0"))?);
        }
        Ok(Self {
            hint,
            hint_channels,
            zero,
            middle: store.linear("middle_block_out.0")?,
            trunk: Trunk::new(store, config)?,
            cache: Cache::default(),
        })
    }

    /// Every weight with its shape for an encoder like this and the usual hint convolutions.
    pub fn weights(config: &UNetConfig, hint_channels: usize) -> Vec<(String, Vec<usize>)> {
        let widths = [16, 16, 32, 32, 96, 96, 256];
        layout(config, hint_channels, &widths).items().to_vec()
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
            let after = After {
                act,
                ..After::default()
            };
            h = conv.forward_with(&h, after)?;
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
        let emb = silu(&self.trunk.embed(timesteps, y)?);
        let keys = self.cache.begin(here, self.trunk.slots);
        let hooks = UNetHooks::default();
        let pass = Pass {
            hooks: &hooks,
            emb: &emb,
            context,
            keys: &keys,
            original: x.dims4()?,
        };
        let mut out = ControlFeatures::default();
        let mut h = x.nchw_to_nhwc()?;
        for (number, zero) in self.zero.iter().enumerate() {
            h = self.trunk.input(number, h, &pass)?;
            if number == 0 {
                h = h.add(seen)?;
            }
            out.output.push(Some(zero.forward(&h)?.nhwc_to_nchw()?));
        }
        h = self.trunk.middle(h, &pass)?;
        out.middle
            .push(Some(self.middle.forward(&h)?.nhwc_to_nchw()?));
        self.cache.end(here, keys);
        Ok(out)
    }
}
