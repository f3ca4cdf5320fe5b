//! Text encoders with other settings.

use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeOutput, NodeResult};
use fresco_models::patch::Patch;

use super::{Clip, required};

/// Stops the text encoder some layers before its end.
#[derive(Node)]
#[node(
    id = "CLIPSetLastLayer",
    v1,
    module = "nodes",
    display = "CLIP Set Last Layer",
    category = "conditioning",
    outputs("CLIP")
)]
pub(super) struct CLIPSetLastLayer {
    clip: Option<Clip>,
    /// Where to stop, counted from the end: -1 is the last layer, -2 the one before it.
    #[input(default = -1, min = -24, max = -1, step = 1)]
    stop_at_clip_layer: i64,
}

impl Node for CLIPSetLastLayer {
    fn run(self, _: &Cx) -> NodeResult {
        let mut clip = required(self.clip)?;
        clip.layer = Some(self.stop_at_clip_layer);
        Ok(NodeOutput::one(clip))
    }
}

/// Sets how far T5 encoders pad their prompts.
#[derive(Node)]
#[node(
    id = "T5TokenizerOptions",
    v3,
    module = "comfy_extras.nodes_cond",
    category = "_for_testing/conditioning",
    outputs("CLIP"),
    experimental
)]
pub(super) struct T5TokenizerOptions {
    clip: Option<Clip>,
    /// Fewest padding tokens behind a prompt.
    #[input(default = 0, min = 0, max = 10000, step = 1)]
    min_padding: i64,
    /// Fewest tokens of a padded prompt.
    #[input(default = 0, min = 0, max = 10000, step = 1)]
    min_length: i64,
}

impl Node for T5TokenizerOptions {
    fn run(self, _: &Cx) -> NodeResult {
        let mut clip = required(self.clip)?;
        for kind in ["t5xxl", "pile_t5xl", "t5base", "mt5xl", "umt5xxl"] {
            let options = &mut clip.tokenizer_options;
            options.insert(format!("{kind}_min_padding"), self.min_padding);
            options.insert(format!("{kind}_min_length"), self.min_length);
        }
        Ok(NodeOutput::one(clip))
    }
}

/// Scales the attention of a text encoder.
#[derive(Node)]
#[node(
    id = "CLIPAttentionMultiply",
    v3,
    module = "comfy_extras.nodes_attention_multiply",
    category = "_for_testing/attention_experiments",
    outputs("CLIP"),
    experimental
)]
pub(super) struct CLIPAttentionMultiply {
    clip: Option<Clip>,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    q: f64,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    k: f64,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    v: f64,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    out: f64,
}

impl Node for CLIPAttentionMultiply {
    fn run(self, _: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let factors = [
            ("q_proj", self.q),
            ("k_proj", self.k),
            ("v_proj", self.v),
            ("out_proj", self.out),
        ];
        let keys = clip.loaded().keys();
        let patched = keys.into_iter().filter_map(|key| {
            let part = key.strip_suffix(".weight").or(key.strip_suffix(".bias"))?;
            let (_, projection) = part.rsplit_once(".self_attn.")?;
            let factor = factors.iter().find(|(name, _)| *name == projection)?.1;
            Some((key, Patch::scaled(factor)))
        });
        let patches = clip.weight_patches().cloned().unwrap_or_default();
        let patches = Arc::new(patches.with(patched));
        Ok(NodeOutput::one(clip.with_weight_patches(patches)?))
    }
}
