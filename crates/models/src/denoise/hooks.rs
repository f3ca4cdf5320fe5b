//! Where other code can look into a running network or change what flows through it.
//!
//! A place is a kind of block, its number among those of its kind, and the depth inside of it; what kinds there are is
//! the network's to say. Feature maps are (b, c, ...) to hooks, sequences (b, n, c). A pass without hooks pays nothing.

use std::any::Any;
use std::sync::Arc;

use fresco_tensor::{Axes, Tensor};

use super::block_cache::BlockCache;
use super::reuse::Reuse;
use super::windows::ContextWindows;
use crate::error::{ModelError, Result};

/// What the caller knows about one pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallInfo {
    /// The noise level of the pass.
    pub sigma: f32,
    /// What each chunk of the batch is: 0 the prompt, 1 the negative prompt.
    pub cond_or_uncond: Vec<usize>,
    /// A number for each chunk's condition, the same in all steps of a run.
    pub cond_ids: Vec<usize>,
}

/// A kind of block of a network, by the name that patches of the reference have for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKind(pub &'static str);

impl BlockKind {
    /// On the way down of networks that have one.
    pub const INPUT: Self = Self("input");
    /// At the bottom.
    pub const MIDDLE: Self = Self("middle");
    /// On the way up.
    pub const OUTPUT: Self = Self("output");
    /// Of transformers: picture and prompt have weights of their own.
    pub const DOUBLE: Self = Self("double_block");
    /// Of transformers: one set of weights for all tokens.
    pub const SINGLE: Self = Self("single_block");

    /// Those of networks with levels, each of which has cells of another size.
    pub const LEVELS: [Self; 3] = [Self::INPUT, Self::MIDDLE, Self::OUTPUT];

    pub fn name(self) -> &'static str {
        self.0
    }
}

/// Which attention a replacement stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockKey {
    pub kind: BlockKind,
    pub number: usize,
    /// Depth in the transformer of the block; none for every depth that has no replacement of its own.
    pub index: Option<usize>,
}

/// Where in the network a hook is called.
#[derive(Clone, Copy, Debug)]
pub struct BlockInfo<'a> {
    pub kind: BlockKind,
    /// Number of the block among those of its kind.
    pub number: usize,
    /// Depth in the block's transformer; where several streams of tokens have blocks of one kind, the number of the stream.
    pub index: usize,
    pub heads: usize,
    /// Frames, height and width at this place; one frame for pictures.
    pub size: [usize; 3],
    /// The shape (b, c, ...) of the latent that went into the network.
    pub original: &'a [usize],
    pub sigma: f32,
    pub cond_or_uncond: &'a [usize],
}

/// Changes what an attention looks at, before its projections: the queries' input, and what keys and values come from.
pub trait AttnInput: Send + Sync {
    /// The kinds of blocks that it is for; all of them if none is named.
    fn kinds(&self) -> &[BlockKind] {
        &[]
    }

    fn apply(
        &self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        at: &BlockInfo<'_>,
    ) -> Result<(Tensor, Tensor, Tensor)>;
}

/// Changes a sequence: the result of an attention, or what goes on after it was added.
pub trait AttnOutput: Send + Sync {
    /// The kinds of blocks that it is for; all of them if none is named.
    fn kinds(&self) -> &[BlockKind] {
        &[]
    }

    fn apply(&self, x: Tensor, at: &BlockInfo<'_>) -> Result<Tensor>;
}

/// Stands in for an attention, between its projections.
pub trait AttnReplace: Send + Sync {
    fn apply(&self, q: &Tensor, k: &Tensor, v: &Tensor, at: &BlockInfo<'_>) -> Result<Tensor>;
}

/// The hooks of one kind of attention, each list in the order it acts.
#[derive(Clone, Default)]
pub struct AttentionHooks {
    pub input: Vec<Arc<dyn AttnInput>>,
    pub output: Vec<Arc<dyn AttnOutput>>,
    pub replace: Vec<(BlockKey, Arc<dyn AttnReplace>)>,
    /// On what goes on once the attention was added.
    pub after: Vec<Arc<dyn AttnOutput>>,
}

/// Whether something for these kinds of blocks is for one of them.
fn is_for(kinds: &[BlockKind], kind: BlockKind) -> bool {
    kinds.is_empty() || kinds.contains(&kind)
}

/// A sequence, changed by hooks on its way.
fn change_sequence(hooks: &[Arc<dyn AttnOutput>], x: Tensor, at: &BlockInfo<'_>) -> Result<Tensor> {
    let mut hooks = hooks.iter().filter(|hook| is_for(hook.kinds(), at.kind));
    hooks.try_fold(x, |x, hook| hook.apply(x, at))
}

impl AttentionHooks {
    pub fn is_empty(&self) -> bool {
        let Self {
            input,
            output,
            replace,
            after,
        } = self;
        input.is_empty() && output.is_empty() && replace.is_empty() && after.is_empty()
    }

    /// Whether anything changes what attentions of a kind of block look at.
    pub fn changes_input(&self, kind: BlockKind) -> bool {
        self.input.iter().any(|hook| is_for(hook.kinds(), kind))
    }

    /// Whether anything changes the result of attentions of a kind of block.
    pub fn changes_output(&self, kind: BlockKind) -> bool {
        self.output.iter().any(|hook| is_for(hook.kinds(), kind))
    }

    /// Whether anything changes what goes on after attentions of a kind of block.
    pub fn changes_after(&self, kind: BlockKind) -> bool {
        self.after.iter().any(|hook| is_for(hook.kinds(), kind))
    }

    /// What queries, keys and values are made from, changed.
    pub fn change_input(&self, [q, k, v]: [Tensor; 3], at: &BlockInfo<'_>) -> Result<[Tensor; 3]> {
        let mut hooks = self
            .input
            .iter()
            .filter(|hook| is_for(hook.kinds(), at.kind));
        let (q, k, v) = hooks.try_fold((q, k, v), |(q, k, v), hook| hook.apply(q, k, v, at))?;
        Ok([q, k, v])
    }

    /// The result of an attention, changed.
    pub fn change_output(&self, x: Tensor, at: &BlockInfo<'_>) -> Result<Tensor> {
        change_sequence(&self.output, x, at)
    }

    /// What goes on once an attention was added, changed.
    pub fn change_after(&self, x: Tensor, at: &BlockInfo<'_>) -> Result<Tensor> {
        change_sequence(&self.after, x, at)
    }

    /// The replacement for an attention: one for its depth first, else one for the whole block. The last one set counts.
    pub fn replacement(&self, at: &BlockInfo<'_>) -> Option<&dyn AttnReplace> {
        [Some(at.index), None].into_iter().find_map(|index| {
            let key = BlockKey {
                kind: at.kind,
                number: at.number,
                index,
            };
            let found = self.replace.iter().rev().find(|(k, _)| *k == key);
            found.map(|(_, hook)| &**hook)
        })
    }
}

/// When a block's hooks act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// On what goes into the block.
    Before,
    /// On what comes out, for all that follows.
    After,
    /// On what comes out, for the next block and not for a skip connection.
    AfterSkip,
}

/// What flows at a block.
#[derive(Clone, Debug)]
pub struct BlockFlow {
    pub h: Tensor,
    /// What goes in beside it: a skip connection, the prompt's tokens, or those of a film's sound.
    pub beside: Option<Tensor>,
}

/// Changes what flows into or out of a block.
pub trait BlockHook: Send + Sync {
    fn apply(&self, flow: BlockFlow, at: &BlockInfo<'_>) -> Result<BlockFlow>;
}

/// A block hook with its place.
#[derive(Clone)]
pub struct PlacedHook {
    pub kind: BlockKind,
    pub moment: Moment,
    pub hook: Arc<dyn BlockHook>,
}

/// Changes the embedding of the noise level (b, c) of a network whose first level has so many channels.
pub trait Embedding: Send + Sync {
    fn apply(&self, emb: Tensor, model_channels: usize) -> Result<Tensor>;
}

/// Asks whether to go on; an error ends the pass.
pub type Check = Arc<dyn Fn() -> Result<(), ModelError> + Send + Sync>;

/// Everything that acts on one pass, in the order it acts.
#[derive(Clone, Default)]
pub struct Hooks {
    pub info: CallInfo,
    /// Asked before every block.
    pub check: Option<Check>,
    pub embedding: Vec<Arc<dyn Embedding>>,
    /// Passes of the network that are left out.
    pub reused_passes: Option<Arc<Reuse>>,
    /// Steps that are left out.
    pub reused_steps: Option<Arc<Reuse>>,
    /// What leaves out the rest of a pass's blocks.
    pub block_cache: Option<Arc<dyn BlockCache>>,
    /// In which windows long latents are predicted.
    pub windows: Option<Arc<ContextWindows>>,
    /// Blocks that do nothing.
    pub skipped: Vec<(BlockKind, usize)>,
    pub blocks: Vec<PlacedHook>,
    /// The noise levels of the run, falling; empty outside of one.
    pub schedule: Arc<[f32]>,
    /// The seed of the run.
    pub seed: u64,
    /// Shapes without the batch of the parts of a latent that has several; the latent is then (b, 1, values).
    pub parts: Option<Arc<[Vec<usize>]>>,
    /// Networks and values beside the one that runs. It asks those whose types it knows between its blocks.
    pub beside: Vec<Arc<dyn Any + Send + Sync>>,
    /// Of tokens to each other, the prompt's among them where a network joins both.
    pub self_attention: AttentionHooks,
    /// To the prompt.
    pub prompt_attention: AttentionHooks,
}

impl Hooks {
    /// Asks whether to go on.
    pub fn check(&self) -> Result<()> {
        self.check.as_ref().map_or(Ok(()), |check| check())
    }

    /// Whether a block is left out.
    pub fn skips(&self, kind: BlockKind, number: usize) -> bool {
        self.skipped.contains(&(kind, number))
    }

    /// The noise level that the run goes to from this one; zero at its end.
    pub fn level_after(&self, level: f32) -> f32 {
        // Levels that were computed twice differ in their last digits.
        let below = level - 1e-6 * level.abs().max(1.0);
        let next = self.schedule.iter().copied().find(|s| *s < below);
        next.unwrap_or(0.0)
    }

    /// The noise level after that of this pass, where that is exactly one of the run's.
    pub fn level_after_exactly(&self) -> Option<f32> {
        let at = self.schedule.iter().position(|s| *s == self.info.sigma)?;
        self.schedule.get(at + 1).copied()
    }

    /// What of a type stands beside the network, in the order it acts.
    pub fn beside<T: 'static>(&self) -> impl Iterator<Item = &T> {
        self.beside.iter().filter_map(|one| one.downcast_ref())
    }

    /// Adds a hook to all blocks of a kind.
    pub fn on_block(&mut self, kind: BlockKind, moment: Moment, hook: Arc<dyn BlockHook>) {
        self.blocks.push(PlacedHook { kind, moment, hook });
    }

    /// The hooks of a kind of block at a moment.
    pub fn of_block(
        &self,
        kind: BlockKind,
        moment: Moment,
    ) -> impl Iterator<Item = &dyn BlockHook> {
        let here = self.blocks.iter();
        here.filter(move |placed| placed.kind == kind && placed.moment == moment)
            .map(|placed| &*placed.hook)
    }

    /// Whether a kind of block has any hooks.
    pub fn any_on(&self, kind: BlockKind) -> bool {
        self.blocks.iter().any(|placed| placed.kind == kind)
    }

    /// What flows at a block, changed by its hooks.
    pub fn at_block(
        &self,
        moment: Moment,
        flow: BlockFlow,
        at: &BlockInfo<'_>,
    ) -> Result<BlockFlow> {
        self.of_block(at.kind, moment)
            .try_fold(flow, |flow, hook| hook.apply(flow, at))
    }
}

/// What a control net adds to a network's feature maps or tokens, by kind of block. Lists are used from their ends.
#[derive(Clone, Debug, Default)]
pub struct ControlFeatures {
    lists: Vec<(BlockKind, Vec<Option<Tensor>>)>,
}

impl ControlFeatures {
    /// With one list more.
    #[must_use]
    pub fn with(mut self, kind: BlockKind, list: Vec<Option<Tensor>>) -> Self {
        self.lists.push((kind, list));
        self
    }

    /// The kinds of blocks that something is for.
    pub fn kinds(&self) -> impl Iterator<Item = BlockKind> {
        let some = |list: &&(BlockKind, Vec<Option<Tensor>>)| list.1.iter().any(Option::is_some);
        self.lists.iter().filter(some).map(|(kind, _)| *kind)
    }

    /// What is for blocks of a kind; empty if nothing is.
    pub fn of(&self, kind: BlockKind) -> &[Option<Tensor>] {
        let found = self.lists.iter().find(|(k, _)| *k == kind);
        found.map_or(&[], |(_, list)| list)
    }

    /// Every tensor changed; one that stands for several blocks, once.
    pub fn map(mut self, change: impl Fn(Tensor) -> Result<Tensor>) -> Result<Self> {
        let mut done: Vec<(Tensor, Tensor)> = Vec::new();
        let all = self.lists.iter_mut().flat_map(|(_, list)| list);
        for features in all.flatten() {
            let same = |old: &Tensor| {
                old.shape() == features.shape()
                    && old.storage_address() == features.storage_address()
            };
            if let Some((_, new)) = done.iter().find(|(old, _)| same(old)) {
                *features = new.clone();
                continue;
            }
            let new = change(features.clone())?;
            done.push((std::mem::replace(features, new.clone()), new));
        }
        Ok(self)
    }

    /// Made weaker or stronger; with `pooled`, each map (b, c, h, w) is replaced by its mean first.
    pub fn scaled(self, strength: f32, pooled: bool) -> Result<Self> {
        self.map(|features| {
            let mut features = features;
            if pooled {
                let shape = features.shape().to_vec();
                features = features.mean(&[2, 3], Axes::Keep)?.expand(&shape)?;
            }
            Ok(if strength == 1.0 {
                features
            } else {
                features.mul_scalar(strength)
            })
        })
    }

    /// With those of the control net before. Where one has nothing the other's passes.
    pub fn joined(mut self, before: Self) -> Result<Self> {
        for (kind, list) in before.lists {
            let Some((_, own)) = self.lists.iter_mut().find(|(k, _)| *k == kind) else {
                self.lists.push((kind, list));
                continue;
            };
            for (place, features) in list.into_iter().enumerate() {
                match own.get_mut(place) {
                    None => own.push(features),
                    Some(own) => *own = both(own.take(), features)?,
                }
            }
        }
        Ok(self)
    }
}

fn both(a: Option<Tensor>, b: Option<Tensor>) -> Result<Option<Tensor>> {
    Ok(match (a, b) {
        (Some(a), Some(b)) => Some(b.add(&a)?),
        (a, b) => a.or(b),
    })
}
