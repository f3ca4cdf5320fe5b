//! Nodes that mix the weights of models.

mod specific;

use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeEntry, NodeError, NodeOutput, NodeResult, entry};
use fresco_models::PatchSet;
use fresco_models::patch::{Change, OtherWeight, Patch};

use crate::clip::Clip;
use crate::lora::{Weights, with_patches};
use crate::sampling::Model;

pub static NODES: &[NodeEntry] = &[
    entry::<ModelMergeSimple>(),
    entry::<ModelMergeBlocks>(),
    entry::<ModelMergeSubtract>(),
    entry::<ModelMergeAdd>(),
    entry::<ClipMergeSimple>(),
    entry::<ClipMergeSubtract>(),
    entry::<ClipMergeAdd>(),
    entry::<specific::ModelMergeSd1>(),
    entry::<specific::ModelMergeSd2>(),
    entry::<specific::ModelMergeSdxl>(),
    entry::<specific::ModelMergeSd3>(),
    entry::<specific::ModelMergeAuraFlow>(),
    entry::<specific::ModelMergeFlux1>(),
    entry::<specific::ModelMergeSd35Large>(),
    entry::<specific::ModelMergeMochi>(),
    entry::<specific::ModelMergeLtxv>(),
    entry::<specific::ModelMergeCosmos7B>(),
    entry::<specific::ModelMergeCosmos14B>(),
    entry::<specific::ModelMergeWan>(),
    entry::<specific::ModelMergeCosmosPredict2Small>(),
    entry::<specific::ModelMergeCosmosPredict2Large>(),
    entry::<specific::ModelMergeQwenImage>(),
];

/// What becomes of a weight: `own * strength_model + other * strength`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mix {
    strength: f64,
    strength_model: f64,
}

impl Mix {
    /// `share` of the first model, the rest of the second.
    fn shared(share: f64) -> Self {
        Self {
            strength: 1.0 - share,
            strength_model: share,
        }
    }
}

/// The weights of one model mixed with those of another that have the same keys. `mix` gets the key without the part
/// that says which network it is of.
fn mixed<T: Weights>(
    one: T,
    two: &T,
    cx: &Cx,
    mix: impl Fn(&str) -> Option<Mix>,
) -> Result<T, NodeError> {
    let none = Arc::new(PatchSet::default());
    let theirs = two.weight_patches().unwrap_or(&none);
    let mut patches = Vec::new();
    for (prefix, store) in two.stores()? {
        for key in store.keys() {
            let Some(mix) = mix(key) else { continue };
            let full = format!("{prefix}{key}");
            let other = OtherWeight {
                store: Arc::clone(&store),
                key: key.to_owned(),
                patches: theirs.get(&full).to_vec(),
            };
            let patch = Patch {
                strength: mix.strength,
                change: Change::Weight(Arc::new(other)),
                ..Patch::scaled(mix.strength_model)
            };
            patches.push((full, patch));
        }
    }
    with_patches(one, patches, "merging models", cx)
}

/// The share of the first model that blocks ask for: the longest name that the key begins with decides, the first
/// input where none does.
fn block_share(shares: &[(String, f64)], key: &str) -> Option<f64> {
    let fits = shares
        .iter()
        .filter(|(block, _)| key.starts_with(block.as_str()));
    // Of equally long ones the first, which `max_by_key` would not give.
    let best = fits.rev().max_by_key(|(block, _)| block.len());
    best.or_else(|| shares.first()).map(|(_, share)| *share)
}

/// Mixes two models: a ratio of 1 is the first, 0 the second.
#[derive(Node)]
#[node(
    id = "ModelMergeSimple",
    v1,
    module = "comfy_extras.nodes_model_merging",
    category = "advanced/model_merging",
    outputs("MODEL")
)]
struct ModelMergeSimple {
    model1: Model,
    model2: Model,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    ratio: f64,
}

impl Node for ModelMergeSimple {
    fn run(self, cx: &Cx) -> NodeResult {
        let mix = Mix::shared(self.ratio);
        let model = mixed(self.model1, &self.model2, cx, |_| Some(mix))?;
        Ok(NodeOutput::one(model))
    }
}

/// Mixes two models with a ratio of its own for the first, the middle and the last blocks.
#[derive(Node)]
#[node(
    id = "ModelMergeBlocks",
    v1,
    module = "comfy_extras.nodes_model_merging",
    category = "advanced/model_merging",
    outputs("MODEL")
)]
struct ModelMergeBlocks {
    model1: Model,
    model2: Model,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    input: f64,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    middle: f64,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    out: f64,
}

impl Node for ModelMergeBlocks {
    fn run(self, cx: &Cx) -> NodeResult {
        let shares = [
            ("input", self.input),
            ("middle", self.middle),
            ("out", self.out),
        ];
        let shares = shares.map(|(name, share)| (name.to_owned(), share));
        let model = mixed(self.model1, &self.model2, cx, |key| {
            block_share(&shares, key).map(Mix::shared)
        })?;
        Ok(NodeOutput::one(model))
    }
}

/// Takes the weights of the second model away from those of the first, both multiplied.
#[derive(Node)]
#[node(
    id = "ModelMergeSubtract",
    v1,
    module = "comfy_extras.nodes_model_merging",
    category = "advanced/model_merging",
    outputs("MODEL")
)]
struct ModelMergeSubtract {
    model1: Model,
    model2: Model,
    #[input(default = 1.0, min = -10.0, max = 10.0, step = 0.01)]
    multiplier: f64,
}

/// The difference of two sets of weights, times a number.
fn difference(multiplier: f64) -> Mix {
    Mix {
        strength: -multiplier,
        strength_model: multiplier,
    }
}

const SUM: Mix = Mix {
    strength: 1.0,
    strength_model: 1.0,
};

impl Node for ModelMergeSubtract {
    fn run(self, cx: &Cx) -> NodeResult {
        let mix = difference(self.multiplier);
        let model = mixed(self.model1, &self.model2, cx, |_| Some(mix))?;
        Ok(NodeOutput::one(model))
    }
}

/// Adds the weights of two models.
#[derive(Node)]
#[node(
    id = "ModelMergeAdd",
    v1,
    module = "comfy_extras.nodes_model_merging",
    category = "advanced/model_merging",
    outputs("MODEL")
)]
struct ModelMergeAdd {
    model1: Model,
    model2: Model,
}

impl Node for ModelMergeAdd {
    fn run(self, cx: &Cx) -> NodeResult {
        let model = mixed(self.model1, &self.model2, cx, |_| Some(SUM))?;
        Ok(NodeOutput::one(model))
    }
}

/// Text encoders mixed; what is no weight but a table or a constant stays the first one's.
fn mixed_clips(one: Clip, two: &Clip, mix: Mix, cx: &Cx) -> NodeResult {
    let clip = mixed(one, two, cx, |key| {
        let fixed = ["position_ids", "logit_scale"]
            .iter()
            .any(|name| key.rsplit('.').next() == Some(name));
        (!fixed).then_some(mix)
    })?;
    Ok(NodeOutput::one(clip))
}

/// Mixes two text encoders: a ratio of 1 is the first, 0 the second.
#[derive(Node)]
#[node(
    id = "CLIPMergeSimple",
    v1,
    module = "comfy_extras.nodes_model_merging",
    category = "advanced/model_merging",
    outputs("CLIP")
)]
struct ClipMergeSimple {
    clip1: Clip,
    clip2: Clip,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    ratio: f64,
}

impl Node for ClipMergeSimple {
    fn run(self, cx: &Cx) -> NodeResult {
        mixed_clips(self.clip1, &self.clip2, Mix::shared(self.ratio), cx)
    }
}

/// Takes the weights of the second text encoder away from those of the first, both multiplied.
#[derive(Node)]
#[node(
    id = "CLIPMergeSubtract",
    v1,
    module = "comfy_extras.nodes_model_merging",
    category = "advanced/model_merging",
    outputs("CLIP")
)]
struct ClipMergeSubtract {
    clip1: Clip,
    clip2: Clip,
    #[input(default = 1.0, min = -10.0, max = 10.0, step = 0.01)]
    multiplier: f64,
}

impl Node for ClipMergeSubtract {
    fn run(self, cx: &Cx) -> NodeResult {
        mixed_clips(self.clip1, &self.clip2, difference(self.multiplier), cx)
    }
}

/// Adds the weights of two text encoders.
#[derive(Node)]
#[node(
    id = "CLIPMergeAdd",
    v1,
    module = "comfy_extras.nodes_model_merging",
    category = "advanced/model_merging",
    outputs("CLIP")
)]
struct ClipMergeAdd {
    clip1: Clip,
    clip2: Clip,
}

impl Node for ClipMergeAdd {
    fn run(self, cx: &Cx) -> NodeResult {
        mixed_clips(self.clip1, &self.clip2, SUM, cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_block_name_decides() {
        let shares = [
            ("input_blocks.1", 0.1),
            ("input_blocks.11.", 0.2),
            ("out.", 0.3),
        ]
        .map(|(name, share)| (name.to_owned(), share));
        let share = |key| block_share(&shares, key);
        assert_eq!(share("input_blocks.11.0.weight"), Some(0.2));
        assert_eq!(share("input_blocks.10.0.weight"), Some(0.1));
        assert_eq!(share("out.0.weight"), Some(0.3));
        assert_eq!(share("middle_block.0.weight"), Some(0.1));
        assert_eq!(block_share(&[], "x"), None);
    }
}
