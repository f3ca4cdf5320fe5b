//! What a network says of itself: in which kinds of blocks what can act. Every network states it
//! ([`DiffusionNetwork::HOOKS`](super::DiffusionNetwork::HOOKS)); `cargo xtask gold` holds each statement against what the network
//! really asks, so that a statement can neither promise nor conceal anything.

use std::collections::BTreeSet;
use std::fmt;

use super::hooks::{AttentionHooks, BlockKind, Hooks, Moment};

/// What of an attention can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttentionPoint {
    /// What queries, keys and values are made from.
    Input,
    /// What tokens see.
    Replace,
    /// The result, before it is added.
    Output,
    /// The tokens once it was added.
    After,
}

/// A way of acting on blocks of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookPoint {
    /// On what goes in.
    Before,
    /// On what comes out.
    After,
    /// On what comes out, for the next block and not for a skip connection.
    AfterSkip,
    /// Blocks that do nothing.
    Skip,
    /// What control networks add.
    Control,
    /// Caches that leave out the rest of the blocks.
    Cache,
    /// On the embedding of the noise level, which all blocks see.
    Embedding,
    /// The attention of tokens to each other.
    Own(AttentionPoint),
    /// The attention to the prompt.
    Prompt(AttentionPoint),
}

impl fmt::Display for HookPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Self::Before => "what goes into blocks",
            Self::After => "what comes out of blocks",
            Self::AfterSkip => "what goes from one block to the next",
            Self::Skip => "which blocks are left out",
            Self::Control => "what a control net adds after blocks",
            Self::Cache => "how many blocks a step computes",
            Self::Embedding => "the embedding of the noise level",
            Self::Own(point) => return attention_words(*point, "self-attention", f),
            Self::Prompt(point) => return attention_words(*point, "attention to the prompt", f),
        };
        f.write_str(words)
    }
}

fn attention_words(
    point: AttentionPoint,
    attention: &str,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match point {
        AttentionPoint::Input => write!(f, "the input of the {attention}"),
        AttentionPoint::Replace => write!(f, "what the {attention} sees"),
        AttentionPoint::Output => write!(f, "the result of the {attention}"),
        AttentionPoint::After => write!(f, "what goes on after the {attention}"),
    }
}

/// All that the loop over blocks offers.
pub const BLOCKS: &[HookPoint] = &[
    HookPoint::Before,
    HookPoint::After,
    HookPoint::Skip,
    HookPoint::Cache,
];

/// What control networks add, which that loop adds where a network hands it over.
pub const CONTROL: &[HookPoint] = &[HookPoint::Control];

/// Self-attention that is added by itself.
pub const OWN: &[HookPoint] = &[
    HookPoint::Own(AttentionPoint::Input),
    HookPoint::Own(AttentionPoint::Replace),
    HookPoint::Own(AttentionPoint::Output),
    HookPoint::Own(AttentionPoint::After),
];

/// Self-attention whose result goes through something else before it is added.
pub const OWN_APART: &[HookPoint] = &[
    HookPoint::Own(AttentionPoint::Input),
    HookPoint::Own(AttentionPoint::Replace),
    HookPoint::Own(AttentionPoint::Output),
];

/// Self-attention that has its last layer together with a feed-forward part.
pub const OWN_INSIDE: &[HookPoint] = &[
    HookPoint::Own(AttentionPoint::Input),
    HookPoint::Own(AttentionPoint::Replace),
];

/// Self-attention that is not a weighted mean of values and cannot be replaced by one.
pub const OWN_LINEAR: &[HookPoint] = &[
    HookPoint::Own(AttentionPoint::Input),
    HookPoint::Own(AttentionPoint::Output),
    HookPoint::Own(AttentionPoint::After),
];

/// Attention to the prompt that is added by itself.
pub const PROMPT: &[HookPoint] = &[
    HookPoint::Prompt(AttentionPoint::Input),
    HookPoint::Prompt(AttentionPoint::Replace),
    HookPoint::Prompt(AttentionPoint::Output),
    HookPoint::Prompt(AttentionPoint::After),
];

/// Where a network can be acted on, by the kind of its blocks.
#[derive(Clone, Copy, Debug)]
pub struct HookPoints(pub &'static [(BlockKind, &'static [&'static [HookPoint]])]);

/// What something wants to act on: the kinds of blocks that would do, all of them if none is named.
type Wish = (Vec<BlockKind>, HookPoint);

impl HookPoints {
    /// Of a network that nothing can act on.
    pub const NONE: Self = Self(&[]);

    /// Whether something can act on blocks of a kind.
    pub fn has(&self, kind: BlockKind, point: HookPoint) -> bool {
        let mut lists = self.0.iter().filter(|(k, _)| *k == kind);
        lists.any(|(_, lists)| lists.iter().any(|list| list.contains(&point)))
    }

    /// Every way of acting on it.
    pub fn all(&self) -> impl Iterator<Item = (BlockKind, HookPoint)> {
        self.0.iter().flat_map(|(kind, lists)| {
            let points = lists.iter().copied().flatten();
            points.map(|point| (*kind, *point))
        })
    }

    /// Whether something can act on blocks of any of these kinds, or of any kind at all where none is named.
    pub fn grants(&self, kinds: &[BlockKind], point: HookPoint) -> bool {
        match kinds {
            [] => self.0.iter().any(|(kind, _)| self.has(*kind, point)),
            kinds => kinds.iter().any(|kind| self.has(*kind, point)),
        }
    }

    /// What of these hooks has no effect on the network, each as the end of a sentence that begins with its name.
    pub fn refusals(&self, hooks: &Hooks) -> Vec<String> {
        let refused = wishes(hooks)
            .into_iter()
            .filter(|(kinds, point)| !self.grants(kinds, *point));
        let own: BTreeSet<&str> = self.0.iter().map(|(kind, _)| kind.name()).collect();
        let own: Vec<&str> = own.into_iter().collect();
        let reasons = refused.map(|(kinds, point)| {
            let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
            let wanted = match &*names {
                [] => String::new(),
                names => format!(" of the kind {}", names.join(" or ")),
            };
            let has = match &*own {
                [] => "its blocks cannot be changed".to_owned(),
                own => format!("its blocks are of the kind {}", own.join(" and ")),
            };
            format!("{point}{wanted} cannot be changed in this model: {has}")
        });
        let reasons: BTreeSet<String> = reasons.collect();
        reasons.into_iter().collect()
    }
}

/// What hooks want to act on.
fn wishes(hooks: &Hooks) -> Vec<Wish> {
    let mut all: Vec<Wish> = Vec::new();
    for placed in &hooks.blocks {
        let point = match placed.moment {
            Moment::Before => HookPoint::Before,
            Moment::After => HookPoint::After,
            Moment::AfterSkip => HookPoint::AfterSkip,
        };
        all.push((vec![placed.kind], point));
    }
    if !hooks.skipped.is_empty() {
        let kinds: BTreeSet<BlockKind> = hooks.skipped.iter().map(|(kind, _)| *kind).collect();
        all.push((kinds.into_iter().collect(), HookPoint::Skip));
    }
    if hooks.block_cache.is_some() {
        all.push((Vec::new(), HookPoint::Cache));
    }
    if !hooks.embedding.is_empty() {
        all.push((Vec::new(), HookPoint::Embedding));
    }
    let mut add = |list: &AttentionHooks, point: fn(AttentionPoint) -> HookPoint| {
        let inputs = list.input.iter().map(|hook| hook.kinds().to_vec());
        all.extend(inputs.map(|kinds| (kinds, point(AttentionPoint::Input))));
        let outputs = list.output.iter().map(|hook| hook.kinds().to_vec());
        all.extend(outputs.map(|kinds| (kinds, point(AttentionPoint::Output))));
        let after = list.after.iter().map(|hook| hook.kinds().to_vec());
        all.extend(after.map(|kinds| (kinds, point(AttentionPoint::After))));
        let replaced = list.replace.iter().map(|(key, _)| vec![key.kind]);
        all.extend(replaced.map(|kinds| (kinds, point(AttentionPoint::Replace))));
    };
    add(&hooks.self_attention, HookPoint::Own);
    add(&hooks.prompt_attention, HookPoint::Prompt);
    all
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::denoise::PerturbedAttention;
    use crate::denoise::hooks::{AttnOutput, BlockInfo};
    use crate::sd::unet::blocks::FreeU;

    const TRANSFORMER: HookPoints = HookPoints(&[
        (BlockKind::DOUBLE, &[BLOCKS, OWN]),
        (BlockKind::SINGLE, &[BLOCKS, OWN_INSIDE]),
    ]);

    fn refused(hooks: &Hooks) -> String {
        TRANSFORMER.refusals(hooks).join("; ")
    }

    #[test]
    fn what_a_network_does_not_ask_is_refused_by_name() {
        let mut hooks = Hooks::default();
        assert_eq!(refused(&hooks), "");
        let free = FreeU {
            model_channels: 320,
            inner: (1.0, 1.0),
            outer: (1.0, 1.0),
            adaptive: false,
        };
        free.install(&mut hooks);
        assert_eq!(
            refused(&hooks),
            "what goes into blocks of the kind output cannot be changed in this model: its blocks are of the kind \
             double_block and single_block"
        );
        let mut hooks = Hooks::default();
        PerturbedAttention { scale: 1.0 }.install(&mut hooks);
        let reason = refused(&hooks);
        assert!(
            reason.starts_with("what the self-attention sees of the kind middle"),
            "{reason}"
        );
        assert_eq!(HookPoints::NONE.refusals(&hooks).len(), 1);
    }

    struct Anywhere;

    impl AttnOutput for Anywhere {
        fn apply(
            &self,
            x: fresco_tensor::Tensor,
            _at: &BlockInfo<'_>,
        ) -> crate::error::Result<fresco_tensor::Tensor> {
            Ok(x)
        }
    }

    #[test]
    fn one_kind_of_several_is_enough() {
        let mut hooks = Hooks {
            skipped: vec![(BlockKind::MIDDLE, 0), (BlockKind::SINGLE, 7)],
            ..Hooks::default()
        };
        hooks.self_attention.output.push(Arc::new(Anywhere));
        assert_eq!(refused(&hooks), "");
        hooks.prompt_attention.after.push(Arc::new(Anywhere));
        let reason = refused(&hooks);
        assert!(
            reason.starts_with("what goes on after the attention to the prompt"),
            "{reason}"
        );
        assert!(TRANSFORMER.has(BlockKind::SINGLE, HookPoint::Own(AttentionPoint::Input)));
        assert!(!TRANSFORMER.has(BlockKind::SINGLE, HookPoint::Own(AttentionPoint::After)));
    }
}
