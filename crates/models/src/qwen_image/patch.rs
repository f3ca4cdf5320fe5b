//! Networks that steer Qwen-Image from inside (DiffSynth): after each block, what is seen of a hint is added to the
//! picture's tokens.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Linear, RmsNorm};
use fresco_tensor::{Device, Tensor, WeightFile, repeat_to_batch};

use super::blocks::EPS;
use super::config::PATCH;
use super::tokens::tokens;
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_patch::{PatchNetwork, PatchStore};
use crate::network::Lazy;
use crate::store::{Walk, WeightStore};
use crate::transformer::{Shapes, add_to_some};

/// The network in messages.
pub const WHAT: &str = "the model patch";

/// What files of this kind are.
pub const KIND: &str = "a control patch for Qwen-Image";

/// The key that only these files have.
const MARK: &str = "controlnet_blocks.0.y_rms.weight";

/// Recognises files of this kind.
pub fn find(
    file: &Arc<dyn WeightFile>,
    names: &[String],
    device: &Device,
) -> Result<Option<PatchStore>> {
    if !names.iter().any(|name| name == MARK) {
        return Ok(None);
    }
    let store = WeightStore::open(Arc::clone(file), "", device.clone());
    let config = PatchConfig::detect(&store)?;
    PatchStore::new(KIND, WHAT, store, config, BlockPatch::new).map(Some)
}

/// Whether a network is one that these patches act in.
pub fn steers(store: &WeightStore) -> bool {
    store.has(super::config::SIGN) && store.has("transformer_blocks.0.img_mod.1.weight")
}

/// The shape of a patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchConfig {
    pub layers: usize,
    pub width: usize,
    /// Channels of the hint.
    pub hint: usize,
}

impl PatchConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (width, values) = shapes.matrix("img_in.weight")?;
        if !values.is_multiple_of(PATCH * PATCH) {
            return Err(shapes.unsupported(format!("a hint of {values} values to a token")));
        }
        Ok(Self {
            layers: shapes.count("controlnet_blocks"),
            width,
            hint: values / (PATCH * PATCH),
        })
    }

    /// Channels of the hint beside those of a latent: for the mask.
    pub fn mask_channels(&self, latent: usize) -> usize {
        self.hint.saturating_sub(latent)
    }
}

struct PatchBlock {
    x_norm: Arc<RmsNorm>,
    y_norm: Arc<RmsNorm>,
    first: Arc<Linear>,
    last: Arc<Linear>,
}

impl PatchBlock {
    fn new(weights: &Walk<'_>, width: usize) -> Result<Self> {
        Ok(Self {
            x_norm: weights.rms_norm("x_rms.weight", width, EPS)?,
            y_norm: weights.rms_norm("y_rms.weight", width, EPS)?,
            first: weights.linear("input_proj", width, width)?,
            last: weights.linear("output_proj", width, width)?,
        })
    }
}

/// The network of a patch file.
pub struct BlockPatch {
    config: PatchConfig,
    device: Device,
    embed: Arc<Linear>,
    blocks: Vec<PatchBlock>,
}

impl BlockPatch {
    pub fn new(weights: &Walk<'_>, config: &PatchConfig) -> Result<Self> {
        let values = config.hint * PATCH * PATCH;
        let blocks = weights.at("controlnet_blocks");
        let blocks = blocks.each(config.layers, |weights| {
            PatchBlock::new(weights, config.width)
        })?;
        Ok(Self {
            embed: weights.linear("img_in", config.width, values)?,
            blocks,
            device: weights.device().clone(),
            config: config.clone(),
        })
    }

    pub fn config(&self) -> &PatchConfig {
        &self.config
    }

    /// The tokens of a hint (b, c, t, h, w): a latent as nodes have it, and a mask.
    pub fn see(&self, hint: &Tensor) -> Result<Tensor> {
        let format = latent_format::WAN21;
        let channels = hint.dim(1)?;
        if channels != self.config.hint || channels < format.channels {
            let reason = format!("it sees {} channels and not {channels}", self.config.hint);
            return Err(ModelError::invalid("model patch", reason));
        }
        let latent = format.process_in(&hint.narrow(1, 0, format.channels)?)?;
        let rest = hint.narrow(1, format.channels, channels - format.channels)?;
        let (made, _) = tokens(&Tensor::cat(&[&latent, &rest], 1)?)?;
        Ok(self.embed.forward(&made.to(&self.device)?)?)
    }

    /// What a block adds to tokens of a picture. `seen` are those of the hint.
    pub fn block(&self, number: usize, img: &Tensor, seen: &Tensor) -> Result<Option<Tensor>> {
        let Some(block) = self.blocks.get(number) else {
            return Ok(None);
        };
        let both = block.x_norm.forward(img)?;
        let both = both.add(&block.y_norm.forward(seen)?)?;
        let inner = block.first.forward_with(&both, then(Act::Gelu))?;
        Ok(Some(block.last.forward(&inner)?))
    }
}

/// A patch with the hint it sees. Stands beside a network in [`Hooks::beside`](crate::denoise::hooks::Hooks::beside).
pub struct BlockControl {
    pub network: Arc<Lazy<PatchNetwork>>,
    /// (b, c, t, h, w).
    pub hint: Tensor,
    pub strength: f32,
}

/// A patch during one pass.
pub(super) struct RunningPatch<'a> {
    control: &'a BlockControl,
    network: Arc<PatchNetwork>,
    seen: Tensor,
}

impl<'a> RunningPatch<'a> {
    /// For a picture of so many items and a network of this width.
    pub(super) fn new(control: &'a BlockControl, items: usize, width: usize) -> Result<Self> {
        let network = control.network.get()?;
        let patch = network.of::<BlockPatch>()?;
        if patch.config.width != width {
            let own = patch.config.width;
            let reason = format!("it is for models of width {own}, and this one is {width} wide");
            return Err(ModelError::invalid("model patch", reason));
        }
        let seen = repeat_to_batch(&control.hint, items)?;
        Ok(Self {
            seen: patch.see(&seen)?,
            control,
            network,
        })
    }

    /// The picture's tokens after a block.
    pub(super) fn after(&self, number: usize, img: Tensor) -> Result<Tensor> {
        let patch = self.network.of::<BlockPatch>()?;
        let count = self.seen.dim(1)?.min(img.dim(1)?);
        let first = img.narrow(1, 0, count)?.to(&patch.device)?;
        let seen = self.seen.narrow(1, 0, count)?;
        let Some(add) = patch.block(number, &first, &seen)? else {
            return Ok(img);
        };
        let add = add.mul_scalar(self.control.strength).to(&img.device())?;
        add_to_some(img, &add, 0)
    }
}
