//! Nodes that mix the weights of models.

pub mod specific;

use std::sync::Arc;

use fresco_graph::{
    Args, Cx, Form, FromValue, Input, Node, NodeEntry, NodeError, NodeOutput, NodeResult, NodeRow,
    Output, Schema, entry, row,
};
use fresco_models::PatchSet;
use fresco_models::patch::{Change, OtherWeight, Patch};

use crate::clip::Clip;
use crate::lora::{Weights, with_patches};
use crate::sampling::Model;

pub static NODES: &[NodeEntry] = &[
    row(&MODEL_MIX),
    entry::<ModelMergeBlocks>(),
    row(&MODEL_DIFFERENCE),
    row(&MODEL_SUM),
    row(&CLIP_MIX),
    row(&CLIP_DIFFERENCE),
    row(&CLIP_SUM),
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

/// A mix of two models or of two text encoders: a row of the table below.
struct Merge {
    id: &'static str,
    about: &'static str,
    what: Merged,
    /// The number that decides the mix, if one does: its name, its tooltip, its least and its most.
    number: Option<(&'static str, &'static str, [f64; 2])>,
    mix: fn(f64) -> Mix,
}

#[derive(Clone, Copy)]
enum Merged {
    Models,
    Clips,
}

impl Merged {
    /// The type, and the names of both inputs.
    fn inputs(self) -> (&'static str, [&'static str; 2]) {
        match self {
            Self::Models => (Model::IO, ["model1", "model2"]),
            Self::Clips => (Clip::IO, ["clip1", "clip2"]),
        }
    }
}

impl NodeRow for Merge {
    fn schema(&self) -> Schema {
        let (ty, [one, two]) = self.what.inputs();
        let schema = Schema::new(self.id, Form::V1)
            .module("comfy_extras.nodes_model_merging")
            .category("advanced/model_merging")
            .description(self.about)
            .output(Output::new(ty))
            .input(Input::new(one, ty))
            .input(Input::new(two, ty));
        let number = self.number.map(|(name, about, [min, max])| {
            Input::float(name, 1.0, [min, max, 0.01]).tooltip(about)
        });
        number.into_iter().fold(schema, Schema::input)
    }

    fn run(&self, mut args: Args, cx: &Cx) -> NodeResult {
        let (_, [one, two]) = self.what.inputs();
        let number = match self.number {
            Some((name, ..)) => args.take(name)?,
            None => 1.0,
        };
        let mix = (self.mix)(number);
        match self.what {
            Merged::Models => {
                let (one, two): (Model, Model) = (args.take(one)?, args.take(two)?);
                Ok(NodeOutput::one(mixed(one, &two, cx, |_| Some(mix))?))
            }
            Merged::Clips => mixed_clips(args.take(one)?, &args.take(two)?, mix, cx),
        }
    }
}

/// The difference of two sets of weights, times a number.
fn difference(multiplier: f64) -> Mix {
    Mix {
        strength: -multiplier,
        strength_model: multiplier,
    }
}

fn sum(_: f64) -> Mix {
    Mix {
        strength: 1.0,
        strength_model: 1.0,
    }
}

const SHARE: &str = "Share of the first one: 1 is all of it, 0 all of the second.";
const FACTOR: &str = "Factor of both.";

static MODEL_MIX: Merge = Merge {
    id: "ModelMergeSimple",
    about: "Mixes two models: a ratio of 1 is the first, 0 the second.",
    what: Merged::Models,
    number: Some(("ratio", SHARE, [0.0, 1.0])),
    mix: Mix::shared,
};

static MODEL_DIFFERENCE: Merge = Merge {
    id: "ModelMergeSubtract",
    about: "Takes the weights of the second model away from those of the first, both multiplied.",
    what: Merged::Models,
    number: Some(("multiplier", FACTOR, [-10.0, 10.0])),
    mix: difference,
};

static MODEL_SUM: Merge = Merge {
    id: "ModelMergeAdd",
    about: "Adds the weights of two models.",
    what: Merged::Models,
    number: None,
    mix: sum,
};

static CLIP_MIX: Merge = Merge {
    id: "CLIPMergeSimple",
    about: "Mixes two text encoders: a ratio of 1 is the first, 0 the second.",
    what: Merged::Clips,
    number: Some(("ratio", SHARE, [0.0, 1.0])),
    mix: Mix::shared,
};

static CLIP_DIFFERENCE: Merge = Merge {
    id: "CLIPMergeSubtract",
    about: "Takes the weights of the second text encoder away from those of the first, both multiplied.",
    what: Merged::Clips,
    number: Some(("multiplier", FACTOR, [-10.0, 10.0])),
    mix: difference,
};

static CLIP_SUM: Merge = Merge {
    id: "CLIPMergeAdd",
    about: "Adds the weights of two text encoders.",
    what: Merged::Clips,
    number: None,
    mix: sum,
};

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
    /// Share of the first model in the first blocks: 1 is all of it.
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    input: f64,
    /// Share of the first model in the middle block: 1 is all of it.
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    middle: f64,
    /// Share of the first model in the last blocks: 1 is all of it.
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
