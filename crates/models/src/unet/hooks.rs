//! Where other code can look into a running UNet or change what flows through it.
//!
//! Feature maps are (b, c, h, w) to hooks, sequences (b, n, c). A pass without hooks pays nothing for them.

use std::sync::Arc;

use fresco_tensor::Tensor;

use crate::blocks::{Downscale, FreeU};
use crate::error::{ModelError, Result};

/// What the caller knows about one pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallInfo {
    /// The noise level of the pass.
    pub sigma: f32,
    /// What each chunk of the batch is: 0 the prompt, 1 the negative prompt.
    pub cond_or_uncond: Vec<usize>,
}

/// The part of the network a block is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    Input,
    Middle,
    Output,
}

impl Part {
    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Middle => "middle",
            Self::Output => "output",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        [Self::Input, Self::Middle, Self::Output]
            .into_iter()
            .find(|part| part.name() == name)
    }
}

/// Which attention a replacement stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockKey {
    pub part: Part,
    pub number: usize,
    /// Depth in the transformer of the block; none for every depth that has no replacement of its own.
    pub index: Option<usize>,
}

/// Where in the network a hook is called.
#[derive(Clone, Copy, Debug)]
pub struct BlockInfo<'a> {
    pub part: Part,
    /// Number of the block in its part.
    pub number: usize,
    /// Depth in the block's transformer.
    pub index: usize,
    pub heads: usize,
    /// Height and width at this level.
    pub size: (usize, usize),
    /// The shape (b, c, h, w) of the latent that went into the network.
    pub original: [usize; 4],
    pub sigma: f32,
    pub cond_or_uncond: &'a [usize],
}

/// Changes what an attention looks at, before its projections: the queries' input, and what keys and values come from.
pub trait AttnInput: Send + Sync {
    fn apply(
        &self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        at: &BlockInfo<'_>,
    ) -> Result<(Tensor, Tensor, Tensor)>;
}

/// Changes a sequence: the result of an attention, or what goes on between the two attentions of a block.
pub trait AttnOutput: Send + Sync {
    fn apply(&self, x: Tensor, at: &BlockInfo<'_>) -> Result<Tensor>;
}

/// Stands in for an attention, between its projections.
pub trait AttnReplace: Send + Sync {
    fn apply(&self, q: &Tensor, k: &Tensor, v: &Tensor, at: &BlockInfo<'_>) -> Result<Tensor>;
}

/// Changes the result of an input block.
pub trait InputBlock: Send + Sync {
    fn apply(&self, h: Tensor, at: &BlockInfo<'_>) -> Result<Tensor>;
}

/// Changes what goes into an output block: the backbone and the skip.
pub trait OutputBlock: Send + Sync {
    fn apply(&self, h: Tensor, skip: Tensor, at: &BlockInfo<'_>) -> Result<(Tensor, Tensor)>;
}

/// Changes the embedding of the noise level (b, 4 * model channels).
pub trait Embedding: Send + Sync {
    fn apply(&self, emb: Tensor, model_channels: usize) -> Result<Tensor>;
}

/// Asks whether to go on; an error ends the pass.
pub type Check = Arc<dyn Fn() -> Result<(), ModelError> + Send + Sync>;

/// Everything that acts on one pass, in the order it acts.
#[derive(Clone, Default)]
pub struct UNetHooks {
    pub info: CallInfo,
    /// Asked before every block.
    pub check: Option<Check>,
    pub emb: Vec<Arc<dyn Embedding>>,
    /// Seen by the skip connection too.
    pub input_block: Vec<Arc<dyn InputBlock>>,
    /// Not seen by the skip connection.
    pub input_block_after_skip: Vec<Arc<dyn InputBlock>>,
    pub output_block: Vec<Arc<dyn OutputBlock>>,
    pub free_u: Vec<FreeU>,
    pub downscale: Vec<Downscale>,
    /// Self-attention.
    pub attn1: Vec<Arc<dyn AttnInput>>,
    pub attn1_output: Vec<Arc<dyn AttnOutput>>,
    pub attn1_replace: Vec<(BlockKey, Arc<dyn AttnReplace>)>,
    /// Between the two attentions of a block.
    pub middle_patch: Vec<Arc<dyn AttnOutput>>,
    /// Attention to the prompt.
    pub attn2: Vec<Arc<dyn AttnInput>>,
    pub attn2_output: Vec<Arc<dyn AttnOutput>>,
    pub attn2_replace: Vec<(BlockKey, Arc<dyn AttnReplace>)>,
}

impl UNetHooks {
    pub(crate) fn check(&self) -> Result<()> {
        self.check.as_ref().map_or(Ok(()), |check| check())
    }

    pub(crate) fn on_input(&self) -> bool {
        !self.input_block.is_empty()
            || !self.input_block_after_skip.is_empty()
            || !self.downscale.is_empty()
    }

    pub(crate) fn on_output(&self) -> bool {
        !self.output_block.is_empty() || !self.free_u.is_empty() || !self.downscale.is_empty()
    }

    /// The result (b, c, h, w) of an input block: what the skip gets, and what goes on.
    pub(crate) fn input(&self, mut h: Tensor, at: &BlockInfo<'_>) -> Result<(Tensor, Tensor)> {
        let number = at.number as i64;
        let shrink = |h: Tensor, after_skip: bool| -> Result<Tensor> {
            let mut h = h;
            for down in self.downscale.iter().filter(|d| d.after_skip == after_skip) {
                h = down.input(number, at.sigma, &h)?;
            }
            Ok(h)
        };
        for hook in &self.input_block {
            h = hook.apply(h, at)?;
        }
        let skip = shrink(h, false)?;
        let mut h = skip.clone();
        for hook in &self.input_block_after_skip {
            h = hook.apply(h, at)?;
        }
        Ok((skip, shrink(h, true)?))
    }

    /// What goes into an output block, (b, c, h, w) both.
    pub(crate) fn output(
        &self,
        mut h: Tensor,
        mut skip: Tensor,
        at: &BlockInfo<'_>,
    ) -> Result<(Tensor, Tensor)> {
        for free_u in &self.free_u {
            (h, skip) = free_u.apply(&h, &skip)?;
        }
        for down in &self.downscale {
            h = down.output(&h, &skip)?;
        }
        for hook in &self.output_block {
            (h, skip) = hook.apply(h, skip, at)?;
        }
        Ok((h, skip))
    }
}

/// The replacement for an attention: one for its depth first, else one for the whole block. The last one set counts.
pub(crate) fn replacement<'a>(
    list: &'a [(BlockKey, Arc<dyn AttnReplace>)],
    at: &BlockInfo<'_>,
) -> Option<&'a dyn AttnReplace> {
    [Some(at.index), None].into_iter().find_map(|index| {
        let key = BlockKey {
            part: at.part,
            number: at.number,
            index,
        };
        let found = list.iter().rev().find(|(k, _)| *k == key);
        found.map(|(_, hook)| &**hook)
    })
}

/// What a control net adds to the feature maps of a UNet, (b, c, h, w). Lists are used from their ends.
#[derive(Clone, Debug, Default)]
pub struct ControlFeatures {
    /// After input blocks.
    pub input: Vec<Option<Tensor>>,
    /// After the middle.
    pub middle: Vec<Option<Tensor>>,
    /// To the skips, on their way into output blocks.
    pub output: Vec<Option<Tensor>>,
}
