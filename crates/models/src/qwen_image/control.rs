//! Control nets of Qwen-Image (InstantX): its first blocks again, with the latent of a hint added to the picture's tokens.

use std::sync::Arc;

use fresco_tensor::nn::Linear;
use fresco_tensor::{Device, Tensor, WeightFile, repeat_to_batch};

use super::blocks::{Trunk, TrunkPass};
use super::config::{PATCH, QwenConfig};
use super::detect::UNITS;
use super::model::rope;
use super::tokens::tokens;
use crate::control::{ControlConds, ControlInput, ControlNetwork, ControlStore, SeenHint, Steers};
use crate::denoise::hooks::{BlockKind, ControlFeatures};
use crate::epilogue::plus;
use crate::error::{ModelError, Result};
use crate::latent_format::{self, LatentFormat};
use crate::store::{Layout, Walk, WeightStore};
use crate::transformer::Shapes;

/// The network in messages.
pub const WHAT: &str = "the control net";

/// Blocks of the network that is steered.
const STEERED: usize = 60;

/// The key that tells these nets from others with the same blocks.
pub(super) const MARK: &str = "controlnet_blocks.0.weight";

/// A layer that these networks have.
const MLP: &str = "transformer_blocks.0.img_mlp.net.0.proj.weight";

const STEERS: Steers = Steers {
    models: "Qwen-Image",
    key: MLP,
    columns: &[(MLP, MLP)],
};

/// What is in a file, if it steers this family.
pub(crate) fn find(
    file: &Arc<dyn WeightFile>,
    names: &[String],
    device: &Device,
) -> Result<Option<ControlStore>> {
    let has = |key: &str| names.iter().any(|name| name == key);
    if !has(MARK) || !has(MLP) {
        return Ok(None);
    }
    let store = WeightStore::open(Arc::clone(file), "", device.clone()).with_units(&UNITS);
    let config = QwenControlConfig::detect(&store)?;
    QwenControl::verify(&store, &config)?;
    let build = |store: &WeightStore| -> Result<Box<dyn ControlNetwork>> {
        let config = QwenControlConfig::detect(store)?;
        let network = store.build(WHAT, |weights| QwenControl::new(weights, &config))?;
        Ok(Box::new(network))
    };
    Ok(Some(ControlStore {
        wants_mask: config.wants_mask(),
        ..ControlStore::new(store, build, STEERS)
    }))
}

/// The shape of a control net.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QwenControlConfig {
    pub trunk: QwenConfig,
    /// Channels of the hint: those of a latent, and for nets that paint in one for the mask.
    pub hint: usize,
}

impl QwenControlConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (_, values) = shapes.matrix("controlnet_x_embedder.weight")?;
        if !values.is_multiple_of(PATCH * PATCH) {
            return Err(shapes.unsupported(format!("a hint of {values} values to a token")));
        }
        Ok(Self {
            trunk: QwenConfig::detect(store)?,
            hint: values / (PATCH * PATCH),
        })
    }

    /// Channels of the latent that is steered.
    pub fn channels(&self) -> usize {
        self.trunk.channels()
    }

    /// Whether the hint has a mask.
    pub fn wants_mask(&self) -> bool {
        self.hint == self.channels() + 1
    }
}

/// What one pass looks at.
pub struct ControlInputs<'a> {
    /// (b, c, t, h, w), as the steered network gets it.
    pub x: &'a Tensor,
    /// The hint's latent of the same size, with the mask as a further channel for nets that want it.
    pub hint: &'a Tensor,
    pub timesteps: &'a [f32],
    pub context: &'a Tensor,
}

/// The network of a control file.
pub struct QwenControl {
    config: QwenControlConfig,
    trunk: Trunk,
    embed: Arc<Linear>,
    out: Vec<Arc<Linear>>,
}

impl QwenControl {
    pub fn new(weights: &Walk<'_>, config: &QwenControlConfig) -> Result<Self> {
        let width = config.trunk.width;
        let values = config.hint * PATCH * PATCH;
        let mut out = Vec::new();
        for number in 0..config.trunk.layers {
            let name = number.to_string();
            out.push(
                weights
                    .at("controlnet_blocks")
                    .linear(&name, width, width)?,
            );
        }
        Ok(Self {
            trunk: Trunk::new(weights, &config.trunk)?,
            embed: weights.linear("controlnet_x_embedder", width, values)?,
            out,
            config: config.clone(),
        })
    }

    /// Whether a store has what a net of this shape needs, without reading it.
    pub fn verify(store: &WeightStore, config: &QwenControlConfig) -> Result<()> {
        Layout::of(|weights| Self::new(weights, config))?.verify(store, WHAT)
    }

    pub fn config(&self) -> &QwenControlConfig {
        &self.config
    }

    /// What to add to the picture's tokens after each block of the steered network, in main memory.
    pub fn forward(&self, input: &ControlInputs<'_>) -> Result<ControlFeatures> {
        self.trunk.check(input.x, input.timesteps, input.context)?;
        let (picture, grid) = tokens(input.x)?;
        let (hint, seen) = tokens(input.hint)?;
        if seen != grid || hint.dim(0)? != picture.dim(0)? {
            let (hint, x) = (input.hint.shape(), input.x.shape());
            let reason = format!("a hint of shape {hint:?} for a latent of {x:?}");
            return Err(ModelError::invalid("control net", reason));
        }
        let device = self.trunk.device();
        let emb = self.trunk.embed(input.timesteps, 0, false)?;
        let prompt = input.context.dim(1)?;
        let rope = rope(self.trunk.config(), grid, prompt, &[])?.to(device)?;
        let pass = TrunkPass {
            emb: &emb,
            rope: &rope,
            clean_from: None,
        };
        let mut txt = self.trunk.prompt(&input.context.to(device)?)?;
        let own = self.trunk.picture(&picture.to(device)?)?;
        let mut img = self.embed.forward_with(&hint.to(device)?, plus(&own))?;
        drop(own);
        let each = STEERED.div_ceil(self.trunk.len().max(1));
        let mut list = Vec::with_capacity(STEERED);
        for (number, out) in self.out.iter().enumerate() {
            (img, txt) = self.trunk.block(number, img, txt, &pass)?;
            let add = out.forward(&img)?.to(&Device::cpu())?;
            let left = STEERED - list.len();
            list.extend(std::iter::repeat_n(Some(add), each.min(left)));
        }
        Ok(ControlFeatures::default().with(BlockKind::DOUBLE, list))
    }
}

/// Pixels along a side of a latent's cell.
const CELL: usize = 8;

impl ControlNetwork for QwenControl {
    fn hint_size(&self, columns: usize, rows: usize) -> (usize, usize) {
        (columns * CELL, rows * CELL)
    }

    fn hint_channels(&self) -> usize {
        3
    }

    fn latent(&self) -> Option<LatentFormat> {
        Some(latent_format::WAN21)
    }

    fn see(&self, hint: &Tensor, _: &[usize]) -> Result<SeenHint> {
        match *hint.shape() {
            [_, channels, _, _, _] if channels == self.config.hint => {
                Ok(SeenHint::Map(hint.clone()))
            }
            ref shape => {
                let reason = format!(
                    "it takes latents of {} channels and five dimensions, got shape {shape:?}: the VAE is of another \
                     family of models",
                    self.config.hint
                );
                Err(ModelError::invalid("control net", reason))
            }
        }
    }

    fn features(&self, input: &ControlInput<'_>) -> Result<ControlFeatures> {
        let SeenHint::Map(hint) = input.seen else {
            return Err(ModelError::invalid("control net", "not a control net"));
        };
        let context = ControlConds::read(input.conds)?.steering_prompt()?;
        self.forward(&ControlInputs {
            x: input.x,
            hint: &repeat_to_batch(hint, input.x.dim(0)?)?,
            timesteps: input.timesteps,
            context,
        })
    }
}
