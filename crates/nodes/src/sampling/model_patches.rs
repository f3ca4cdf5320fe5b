//! Nodes that change what happens inside a network, or how it is guided by looking at it twice.

use std::sync::{Arc, Mutex};

use fresco_graph::{Cx, Node, NodeOutput, NodeResult, Twin};
use fresco_models::denoise::{self, PerturbedAttention, RunPatch, SelfAttention};
use fresco_models::patch::Patch;
use fresco_tensor::Generator;

use super::Model;
use super::conds::Reader;
use super::model::WEIGHT_PREFIX;
use crate::types::Conditioning;

fn with_run_patch(mut model: Model, name: &str, patch: impl RunPatch + 'static) -> NodeResult {
    let random = Arc::new(Mutex::new(Generator::new(0)));
    model.warn_of(name, |hooks| patch.install(hooks, &random));
    model.patches.per_run.push(Arc::new(patch));
    Ok(NodeOutput::one(model))
}

/// Guides away from that part of the negative prompt which the prompt does not want as well.
#[derive(Node)]
#[node(
    id = "PerpNeg",
    v3,
    module = "comfy_extras.nodes_perpneg",
    display = "Perp-Neg (DEPRECATED by PerpNegGuider)",
    category = "_for_testing",
    outputs("MODEL"),
    deprecated,
    experimental
)]
pub struct PerpNeg {
    model: Model,
    empty_conditioning: Conditioning,
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01)]
    neg_scale: f64,
}

impl Node for PerpNeg {
    fn run(self, _: &Cx) -> NodeResult {
        let mut model = self.model;
        model.patches.cfg_rule = Some(Arc::new(denoise::PerpNeg {
            empty: Reader::default().read(&self.empty_conditioning)?,
            neg_scale: self.neg_scale,
        }));
        Ok(NodeOutput::one(model))
    }
}

/// Guides away from a picture whose most important places are blurred.
#[derive(Node)]
#[node(
    id = "SelfAttentionGuidance",
    v3,
    module = "comfy_extras.nodes_sag",
    display = "Self-Attention Guidance",
    category = "_for_testing",
    outputs("MODEL"),
    experimental
)]
pub struct SelfAttentionGuidance {
    model: Model,
    #[input(default = 0.5, min = -2.0, max = 5.0, step = 0.01)]
    scale: f64,
    /// Width of the blur; higher blurs more.
    #[input(default = 2.0, min = 0.0, max = 10.0, step = 0.1)]
    blur_sigma: f64,
}

impl Node for SelfAttentionGuidance {
    fn run(self, _: &Cx) -> NodeResult {
        let mut model = self.model;
        let guidance = SelfAttention::new(self.scale, self.blur_sigma);
        model.warn_of("SelfAttentionGuidance", |hooks| guidance.install(hooks));
        guidance.install(&mut model.patches.hooks);
        model.patches.post_cfg.push(Arc::new(guidance));
        model.patches.keep_uncond = true;
        Ok(NodeOutput::one(model))
    }
}

/// Guides away from what the model makes when it cannot see how places belong together.
#[derive(Node)]
#[node(
    id = "PerturbedAttentionGuidance",
    v3,
    module = "comfy_extras.nodes_pag",
    category = "model_patches/unet",
    outputs("MODEL")
)]
pub struct PerturbedAttentionGuidance {
    model: Model,
    #[input(default = 3.0, min = 0.0, max = 100.0, step = 0.01, round = 0.01)]
    scale: f64,
}

impl Node for PerturbedAttentionGuidance {
    fn run(self, _: &Cx) -> NodeResult {
        let mut model = self.model;
        let guidance = PerturbedAttention { scale: self.scale };
        model.warn_of("PerturbedAttentionGuidance", |hooks| {
            guidance.install(hooks);
        });
        model.patches.post_cfg.push(Arc::new(guidance));
        model.patches.keep_uncond = true;
        Ok(NodeOutput::one(model))
    }
}

/// Makes large pictures faster: places attend to those of their own tile only.
#[derive(Node)]
#[node(
    id = "HyperTile",
    v3,
    module = "comfy_extras.nodes_hypertile",
    category = "model_patches/unet",
    outputs("MODEL")
)]
pub struct HyperTile {
    model: Model,
    /// Side of a tile in pixels; smaller is faster and loses more of the whole.
    #[input(default = 256, min = 1, max = 2048)]
    tile_size: usize,
    /// How many sizes of tiles to choose from at random, to hide seams.
    #[input(default = 2, min = 1, max = 128)]
    swap_size: usize,
    /// Deepest level of the network that is tiled; 0 is only the outermost.
    #[input(default = 0, min = 0, max = 10)]
    max_depth: usize,
    /// Makes tiles larger at deeper levels.
    #[input(default = false)]
    scale_depth: bool,
}

impl Node for HyperTile {
    fn run(self, _: &Cx) -> NodeResult {
        let patch = denoise::HyperTile {
            // A link may bring any number; beyond these nothing changes any more.
            tile_size: self.tile_size.min(1 << 20),
            swap_size: self.swap_size,
            max_depth: self.max_depth.min(10),
            scale_depth: self.scale_depth,
        };
        with_run_patch(self.model, "HyperTile", patch)
    }
}

/// Makes sampling faster: places that look alike are merged before they attend.
#[derive(Node)]
#[node(
    id = "TomePatchModel",
    v3,
    module = "comfy_extras.nodes_tomesd",
    category = "model_patches/unet",
    outputs("MODEL")
)]
pub struct TomePatchModel {
    model: Model,
    /// Share of the places that are merged: more is faster and loses detail.
    #[input(default = 0.3, min = 0.0, max = 1.0, step = 0.01)]
    ratio: f64,
}

impl Node for TomePatchModel {
    fn run(self, _: &Cx) -> NodeResult {
        let patch = denoise::TokenMerging { ratio: self.ratio };
        with_run_patch(self.model, "TomePatchModel", patch)
    }
}

/// Multiplies the weights whose layer has a factor.
fn multiplied(model: Model, factor: impl Fn(&str) -> Option<f64>) -> NodeResult {
    let Some(store) = model.base.store() else {
        return Ok(NodeOutput::one(model));
    };
    let scaled: Vec<(String, Patch)> = store
        .keys()
        .into_iter()
        .filter_map(|key| {
            let layer = key
                .strip_suffix(".weight")
                .or_else(|| key.strip_suffix(".bias"))?;
            let patch = Patch::scaled(factor(layer)?);
            Some((format!("{WEIGHT_PREFIX}{key}"), patch))
        })
        .collect();
    let set = match model.weight_patches() {
        Some(set) => set.with(scaled),
        None => fresco_models::PatchSet::default().with(scaled),
    };
    Ok(NodeOutput::one(model.with_weight_patches(Arc::new(set))))
}

/// What one attention's layers are multiplied by.
struct Factors {
    q: f64,
    k: f64,
    v: f64,
    out: f64,
}

impl Factors {
    fn of(&self, attention: &str, layer: &str) -> Option<f64> {
        let (before, part) = layer.rsplit_once(&format!("{attention}.to_"))?;
        // Nothing but a block's name may stand before it.
        if !(before.is_empty() || before.ends_with('.')) {
            return None;
        }
        match part {
            "q" => Some(self.q),
            "k" => Some(self.k),
            "v" => Some(self.v),
            "out.0" => Some(self.out),
            _ => None,
        }
    }
}

/// Multiplies the weights of a UNet's self-attention.
#[derive(Node)]
#[node(
    id = "UNetSelfAttentionMultiply",
    v3,
    module = "comfy_extras.nodes_attention_multiply",
    category = "_for_testing/attention_experiments",
    outputs("MODEL"),
    experimental
)]
pub struct UNetSelfAttentionMultiply {
    model: Model,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    q: f64,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    k: f64,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    v: f64,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    out: f64,
}

impl Node for UNetSelfAttentionMultiply {
    fn run(self, _: &Cx) -> NodeResult {
        self.multiply("attn1")
    }
}

impl UNetSelfAttentionMultiply {
    fn multiply(self, attention: &str) -> NodeResult {
        let Self { q, k, v, out, .. } = self;
        let factors = Factors { q, k, v, out };
        multiplied(self.model, |layer| factors.of(attention, layer))
    }
}

pub static CROSS_ATTENTION: Twin<UNetSelfAttentionMultiply> = Twin {
    id: "UNetCrossAttentionMultiply",
    display: None,
    about: "Multiplies the weights of a UNet's attention to the prompt.",
    defaults: &[],
    run: |node, _| node.multiply("attn2"),
};

/// Multiplies the results of a video UNet's attention, within pictures and along time.
#[derive(Node)]
#[node(
    id = "UNetTemporalAttentionMultiply",
    v3,
    module = "comfy_extras.nodes_attention_multiply",
    category = "_for_testing/attention_experiments",
    outputs("MODEL"),
    experimental
)]
pub struct UNetTemporalAttentionMultiply {
    model: Model,
    /// Factor of attention within a picture; 1 changes nothing.
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    self_structural: f64,
    /// Factor of attention along time; 1 changes nothing.
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    self_temporal: f64,
    /// Factor of attention to the prompt within a picture; 1 changes nothing.
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    cross_structural: f64,
    /// Factor of attention to the prompt along time; 1 changes nothing.
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    cross_temporal: f64,
}

impl Node for UNetTemporalAttentionMultiply {
    fn run(self, _: &Cx) -> NodeResult {
        multiplied(self.model, |layer| {
            let temporal = layer.contains(".time_stack.");
            let pick = |structural: f64, over_time: f64| {
                Some(if temporal { over_time } else { structural })
            };
            let attention = layer.strip_suffix(".to_out.0")?;
            if attention.ends_with("attn1") {
                pick(self.self_structural, self.self_temporal)
            } else if attention.ends_with("attn2") {
                pick(self.cross_structural, self.cross_temporal)
            } else {
                None
            }
        })
    }
}

/// Sets the number format a model computes in. Here that is always the most precise one, whatever is asked for.
#[derive(Node)]
#[node(
    id = "ModelComputeDtype",
    v1,
    module = "comfy_extras.nodes_model_advanced",
    category = "advanced/debug/model",
    outputs("MODEL")
)]
pub struct ModelComputeDtype {
    /// The diffusion model, which is passed on.
    model: Model,
    /// The number format. It has no effect here.
    #[input(choices = ["default", "fp32", "fp16", "bf16"])]
    dtype: String,
}

impl Node for ModelComputeDtype {
    fn run(self, _: &Cx) -> NodeResult {
        if matches!(&*self.dtype, "fp16" | "bf16") {
            tracing::info!(
                "{} is asked for, and f32 is used, which is closer",
                self.dtype
            );
        }
        Ok(NodeOutput::one(self.model))
    }
}

/// Asks for a compiled model. Models here are compiled from the start, so nothing changes.
#[derive(Node)]
#[node(
    id = "TorchCompileModel",
    v3,
    module = "comfy_extras.nodes_torch_compile",
    category = "_for_testing",
    outputs("MODEL"),
    experimental
)]
pub struct TorchCompileModel {
    model: Model,
    /// The compiler. It has no effect here.
    #[input(choices = ["inductor", "cudagraphs"])]
    backend: String,
}

impl Node for TorchCompileModel {
    fn run(self, _: &Cx) -> NodeResult {
        tracing::debug!("nothing to compile with {}", self.backend);
        Ok(NodeOutput::one(self.model))
    }
}
