//! Control nets of Qwen-Image that go along with it (Fun): blocks of their own that begin with the tokens of the steered network,
//! to which those of a hint are added, and say something every few blocks.
//!
//! They share the layers before the first block with the steered network, and so have none in their files.

use std::sync::Arc;

use fresco_tensor::nn::Linear;
use fresco_tensor::{Device, Tensor, WeightFile, repeat_to_batch};

use super::blocks::{Block, Trunk, TrunkPass};
use super::config::{PATCH, QwenConfig, ReferenceMethod, axes};
use super::model::rope;
use super::tokens::tokens;
use crate::control::{ControlConds, ControlInput, ControlNetwork, ControlStore, SeenHint, Steers};
use crate::denoise::hooks::{BlockKind, ControlFeatures};
use crate::epilogue::plus;
use crate::error::{ModelError, Result};
use crate::latent_format::{self, LatentFormat};
use crate::store::{Blocks, Layout, UnitOrder, Walk, WeightStore};
use crate::transformer::Shapes;

/// The network in messages.
pub const WHAT: &str = "the control net";

/// The key that tells these nets from others.
const MARK: &str = "control_blocks.0.attn.add_q_proj.weight";

/// A layer of the blocks, here and in the steered network.
const MLP: &str = "control_blocks.0.img_mlp.net.0.proj.weight";
const STEERED_MLP: &str = "transformer_blocks.0.img_mlp.net.0.proj.weight";

const STEERS: Steers = Steers {
    models: "Qwen-Image",
    key: STEERED_MLP,
    columns: &[(MLP, STEERED_MLP)],
};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder {
    parts: &["control_img_in", "control_blocks"],
    blocks: &[Blocks::List("control_blocks")],
    values: UnitOrder::NORMS,
};

/// What is in a file, if it steers this family.
pub(crate) fn find(
    file: &Arc<dyn WeightFile>,
    names: &[String],
    device: &Device,
) -> Result<Option<ControlStore>> {
    let has = |key: &str| names.iter().any(|name| name == key);
    if !has(MARK) || !has(MLP) || !has("control_img_in.weight") {
        return Ok(None);
    }
    let store = WeightStore::open(Arc::clone(file), "", device.clone()).with_units(&UNITS);
    let config = FunControlConfig::detect(&store)?;
    FunControl::verify(&store, &config)?;
    let build = |store: &WeightStore| -> Result<Box<dyn ControlNetwork>> {
        let config = FunControlConfig::detect(store)?;
        let network = store.build(WHAT, |weights| FunControl::new(weights, &config))?;
        Ok(Box::new(network))
    };
    Ok(Some(ControlStore::new(store, build, STEERS)))
}

/// The shape of a control net.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunControlConfig {
    pub layers: usize,
    /// Channels of a token, of one head, and inside the feed-forward parts.
    pub width: usize,
    pub head: usize,
    pub inner: usize,
    /// Channels of a hint: its latent, then a mask and the latent of what is kept, for painting in.
    pub hint: usize,
}

impl FunControlConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (width, values) = shapes.matrix("control_img_in.weight")?;
        if !values.is_multiple_of(PATCH * PATCH) {
            return Err(shapes.unsupported(format!("a hint of {values} values to a token")));
        }
        let head = shapes.vector("control_blocks.0.attn.norm_q.weight")?;
        if !head.is_multiple_of(2) || !width.is_multiple_of(head) {
            let reason = format!("{width} channels do not make heads of {head}");
            return Err(shapes.unsupported(reason));
        }
        Ok(Self {
            layers: shapes.count("control_blocks"),
            width,
            head,
            inner: shapes.matrix(MLP)?.0,
            hint: values / (PATCH * PATCH),
        })
    }

    /// As a network of such blocks has it.
    fn blocks(&self) -> QwenConfig {
        QwenConfig {
            layers: self.layers,
            width: self.width,
            head: self.head,
            inner: self.inner,
            axes: axes(self.head),
            // Blocks know nothing of what is before and behind them.
            context: 0,
            input: 0,
            output: 0,
            method: ReferenceMethod::Index,
            kinds: false,
        }
    }
}

/// One block and what it says.
struct ControlBlock {
    block: Block,
    after: Arc<Linear>,
}

/// The network of a control file.
pub struct FunControl {
    config: FunControlConfig,
    /// Where it computes.
    device: Device,
    embed: Arc<Linear>,
    before: Arc<Linear>,
    blocks: Vec<ControlBlock>,
}

/// What one pass looks at.
pub struct FunInputs<'a> {
    /// (b, c, t, h, w), as the steered network gets it.
    pub x: &'a Tensor,
    /// (b, channels, t, h, w): see [`FunControlConfig::hint`]. Channels that it lacks are zero.
    pub hint: &'a Tensor,
    pub timesteps: &'a [f32],
    pub context: &'a Tensor,
}

impl FunControl {
    pub fn new(weights: &Walk<'_>, config: &FunControlConfig) -> Result<Self> {
        let width = config.width;
        let all = weights.at("control_blocks");
        let blocks = (0..config.layers).map(|number| {
            let weights = all.at(number);
            Ok(ControlBlock {
                block: Block::new(&weights, &config.blocks())?,
                after: weights.linear("after_proj", width, width)?,
            })
        });
        Ok(Self {
            embed: weights.linear("control_img_in", width, config.hint * PATCH * PATCH)?,
            before: all.at(0).linear("before_proj", width, width)?,
            blocks: blocks.collect::<Result<_>>()?,
            device: weights.device().clone(),
            config: config.clone(),
        })
    }

    /// Whether a store has what a net of this shape needs, without reading it.
    pub fn verify(store: &WeightStore, config: &FunControlConfig) -> Result<()> {
        Layout::of(|weights| Self::new(weights, config))?.verify(store, WHAT)
    }

    pub fn config(&self) -> &FunControlConfig {
        &self.config
    }

    /// What to add to the picture's tokens after the blocks of the steered network, in main memory. `steered` has its weights.
    pub fn forward(&self, input: &FunInputs<'_>, steered: &WeightStore) -> Result<ControlFeatures> {
        let whole = QwenConfig::detect(steered)?;
        self.check(&whole, steered)?;
        // The layers before the first block; the store has them already.
        let first = QwenConfig {
            layers: 0,
            ..whole.clone()
        };
        let trunk = steered.build(WHAT, |weights| Trunk::new(weights, &first))?;
        trunk.check(input.x, input.timesteps, input.context)?;
        let (picture, grid) = tokens(input.x)?;
        let (hint, seen) = tokens(&self.padded(input.hint)?)?;
        if seen != grid || hint.dim(0)? != picture.dim(0)? {
            let (hint, x) = (input.hint.shape(), input.x.shape());
            let reason = format!("a hint of shape {hint:?} for a latent of {x:?}");
            return Err(ModelError::invalid("control net", reason));
        }
        let there = trunk.device();
        let device = &self.device;
        let emb = trunk.embed(input.timesteps, 0, false)?.to(device)?;
        let rope = rope(&whole, grid, input.context.dim(1)?, &[])?.to(device)?;
        let pass = TrunkPass {
            emb: &emb,
            rope: &rope,
            clean_from: None,
        };
        let mut txt = trunk.prompt(&input.context.to(there)?)?.to(device)?;
        let own = trunk.picture(&picture.to(there)?)?.to(device)?;
        let hint = self.embed.forward(&hint.to(device)?)?;
        let mut img = self.before.forward_with(&hint, plus(&own))?;
        drop((own, hint));
        let each = whole.layers / self.blocks.len().max(1);
        let mut list = vec![None; whole.layers];
        for (number, one) in self.blocks.iter().enumerate() {
            (img, txt) = one.block.forward(img, txt, &pass)?;
            list[number * each] = Some(one.after.forward(&img)?.to(&Device::cpu())?);
        }
        Ok(ControlFeatures::default().with(BlockKind::DOUBLE, list))
    }

    /// Refuses a network of another size.
    fn check(&self, whole: &QwenConfig, steered: &WeightStore) -> Result<()> {
        let same = (whole.width, whole.head) == (self.config.width, self.config.head);
        if same && whole.layers >= self.blocks.len() {
            return Ok(());
        }
        let reason = format!(
            "{} blocks of {} channels cannot steer the {} blocks of {} channels of {}: choose a control net that was made for the \
             model",
            self.blocks.len(),
            self.config.width,
            whole.layers,
            whole.width,
            steered.file()
        );
        Err(ModelError::invalid("control net", reason))
    }

    /// A hint with zeros in place of what is not painted in.
    fn padded(&self, hint: &Tensor) -> Result<Tensor> {
        let &[b, c, t, h, w] = hint.shape() else {
            return Err(wrong(hint));
        };
        if c == self.config.hint {
            return Ok(hint.clone());
        }
        let missing = self.config.hint.checked_sub(c);
        let missing = missing.ok_or_else(|| wrong(hint))?;
        let zeros = Tensor::zeros([b, missing, t, h, w])?;
        Ok(Tensor::cat(&[hint, &zeros], 1)?)
    }
}

fn wrong(hint: &Tensor) -> ModelError {
    let reason = format!(
        "it takes latents of {CHANNELS} channels and five dimensions, got shape {:?}: the VAE is of another family of models",
        hint.shape()
    );
    ModelError::invalid("control net", reason)
}

/// Channels of a picture's latent.
const CHANNELS: usize = 16;
/// Pixels along a side of a latent's cell.
const CELL: usize = 8;

impl ControlNetwork for FunControl {
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
            [_, CHANNELS, _, _, _] => Ok(SeenHint::Map(hint.clone())),
            _ => Err(wrong(hint)),
        }
    }

    fn features(&self, input: &ControlInput<'_>) -> Result<ControlFeatures> {
        let invalid = |reason| ModelError::invalid("control net", reason);
        let SeenHint::Map(hint) = input.seen else {
            return Err(invalid("not a control net"));
        };
        let steered = input.steered;
        let steered = steered.ok_or_else(|| invalid("there is no model to go along with"))?;
        let context = ControlConds::read(input.conds)?.prompt;
        let context = context.ok_or_else(|| invalid("there is no prompt"))?;
        let input = FunInputs {
            x: input.x,
            hint: &repeat_to_batch(hint, input.x.dim(0)?)?,
            timesteps: input.timesteps,
            context,
        };
        self.forward(&input, steered)
    }
}
