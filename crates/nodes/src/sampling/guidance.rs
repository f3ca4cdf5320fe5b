//! Nodes that change the guidance of a model.

use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeOutput, NodeResult, Output, Twin};
use fresco_models::denoise::CfgOverride;
use fresco_models::guidance::{self, CfgRule, FrameCfg, GuidanceStep, PostCfg, PreCfg};
use fresco_tensor::Tensor;

use super::Model;
use crate::latent::operation::LatentOperation;
use crate::latent::size;

fn with_rule(mut model: Model, rule: impl CfgRule + 'static) -> NodeResult {
    model.patches.cfg_rule = Some(Arc::new(rule));
    Ok(NodeOutput::one(model))
}

fn with_pre(mut model: Model, pre: impl PreCfg + 'static) -> NodeResult {
    model.patches.pre_cfg.push(Arc::new(pre));
    Ok(NodeOutput::one(model))
}

fn with_post(mut model: Model, post: impl PostCfg + 'static) -> NodeResult {
    model.patches.post_cfg.push(Arc::new(post));
    Ok(NodeOutput::one(model))
}

/// Keeps strong guidance from over-exposing, by rescaling it.
#[derive(Node)]
#[node(
    id = "RescaleCFG",
    v1,
    module = "comfy_extras.nodes_model_advanced",
    category = "advanced/model",
    outputs("MODEL")
)]
pub struct RescaleCFG {
    model: Model,
    /// How much of the contrast that guidance adds is taken back: 0 none, 1 all.
    #[input(default = 0.7, min = 0.0, max = 1.0, step = 0.01)]
    multiplier: f64,
}

impl Node for RescaleCFG {
    fn run(self, _: &Cx) -> NodeResult {
        let rule = guidance::RescaleCfg {
            multiplier: self.multiplier,
        };
        with_rule(self.model, rule)
    }
}

/// Follows the prompt more where the unprompted prediction already agrees with it.
#[derive(Node)]
#[node(id = "Mahiro", v3, module = "comfy_extras.nodes_mahiro", display = "Mahiro CFG", category = "_for_testing", outputs(Output::new("MODEL").named("patched_model")), experimental)]
pub struct Mahiro {
    model: Model,
}

impl Node for Mahiro {
    fn run(self, _: &Cx) -> NodeResult {
        with_post(self.model, guidance::Mahiro)
    }
}

/// Sets the strength of guidance for a part of sampling. Of several the one next to the sampler counts.
#[derive(Node)]
#[node(
    id = "CFGOverride",
    v3,
    module = "comfy_extras.nodes_cfg",
    display = "CFG Override",
    category = "advanced/guidance",
    outputs("MODEL")
)]
pub struct CFGOverride {
    model: Model,
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.1)]
    cfg: f64,
    /// Where the part begins: 0 is the first step.
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.001)]
    start_percent: f64,
    /// Where it ends: 1 is the last step.
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.001)]
    end_percent: f64,
}

impl Node for CFGOverride {
    fn run(self, _: &Cx) -> NodeResult {
        let mut model = self.model;
        model.patches.cfg_overrides.push(CfgOverride {
            cfg: self.cfg,
            start_percent: self.start_percent,
            end_percent: self.end_percent,
        });
        Ok(NodeOutput::one(model))
    }
}

/// Scales the unprompted prediction to fit the prompted one best.
#[derive(Node)]
#[node(id = "CFGZeroStar", v3, module = "comfy_extras.nodes_cfg", category = "advanced/guidance", outputs(Output::new("MODEL").named("patched_model")))]
pub struct CFGZeroStar {
    model: Model,
}

impl Node for CFGZeroStar {
    fn run(self, _: &Cx) -> NodeResult {
        with_post(self.model, guidance::CfgZeroStar)
    }
}

/// Keeps the guided prediction no stronger than the prompted one.
#[derive(Node)]
#[node(id = "CFGNorm", v3, module = "comfy_extras.nodes_cfg", category = "advanced/guidance", outputs(Output::new("MODEL").named("patched_model")), experimental)]
pub struct CFGNorm {
    model: Model,
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01)]
    strength: f64,
}

impl Node for CFGNorm {
    fn run(self, _: &Cx) -> NodeResult {
        let post = guidance::CfgNorm {
            strength: self.strength,
        };
        with_post(self.model, post)
    }
}

/// Removes from the unprompted prediction what it does not share with the prompted one.
#[derive(Node)]
#[node(id = "TCFG", v3, module = "comfy_extras.nodes_tcfg", display = "Tangential Damping CFG", category = "advanced/guidance", outputs(Output::new("MODEL").named("patched_model")))]
pub struct TCFG {
    model: Model,
}

impl Node for TCFG {
    fn run(self, _: &Cx) -> NodeResult {
        with_pre(self.model, guidance::TangentialDamping)
    }
}

/// Guidance with less of the part that only makes colours stronger.
#[derive(Node)]
#[node(
    id = "APG",
    v3,
    module = "comfy_extras.nodes_apg",
    display = "Adaptive Projected Guidance",
    category = "sampling/custom_sampling",
    outputs("MODEL")
)]
pub struct APG {
    model: Model,
    /// How much of the part along the prediction to keep.
    #[input(default = 1.0, min = -10.0, max = 10.0, step = 0.01)]
    eta: f64,
    /// The greatest length of the guidance; 0 for no limit.
    #[input(default = 5.0, min = 0.0, max = 50.0, step = 0.1)]
    norm_threshold: f64,
    /// How much of the guidance before is added; 0 for none.
    #[input(default = 0.0, min = -5.0, max = 1.0, step = 0.01)]
    momentum: f64,
}

impl Node for APG {
    fn run(self, _: &Cx) -> NodeResult {
        let pre = guidance::Apg::new(self.eta, self.norm_threshold, self.momentum);
        with_pre(self.model, pre)
    }
}

/// Divides the predicted noise by a factor, against the error that sampling gathers.
#[derive(Node)]
#[node(
    id = "Epsilon Scaling",
    v3,
    module = "comfy_extras.nodes_eps",
    category = "model_patches/unet",
    outputs("MODEL")
)]
pub struct EpsilonScaling {
    model: Model,
    /// The divisor; above 1 takes away less noise in each step.
    #[input(
        default = 1.005,
        min = 0.5,
        max = 1.5,
        step = 0.001,
        display = "number"
    )]
    scaling_factor: f64,
}

impl Node for EpsilonScaling {
    fn run(self, _: &Cx) -> NodeResult {
        let factor = if self.scaling_factor == 0.0 {
            1e-9
        } else {
            self.scaling_factor
        };
        with_post(self.model, guidance::EpsilonScaling { factor })
    }
}

/// Steers towards more detail or more smoothness.
#[derive(Node)]
#[node(id = "TemporalScoreRescaling", v3, module = "comfy_extras.nodes_eps", display = "TSR - Temporal Score Rescaling", category = "model_patches/unet", outputs(Output::new("MODEL").named("patched_model")))]
pub struct TemporalScoreRescaling {
    model: Model,
    /// Below 1 more detail, above 1 smoother.
    #[input(
        default = 0.95,
        min = 0.01,
        max = 100.0,
        step = 0.001,
        display = "number"
    )]
    tsr_k: f64,
    /// How early it takes effect; larger is earlier.
    #[input(
        default = 1.0,
        min = 0.01,
        max = 100.0,
        step = 0.001,
        display = "number"
    )]
    tsr_sigma: f64,
}

impl Node for TemporalScoreRescaling {
    fn run(self, _: &Cx) -> NodeResult {
        let post = guidance::TemporalScoreRescaling {
            k: self.tsr_k,
            sigma: self.tsr_sigma,
            sampling: self.model.sampling.clone(),
        };
        with_post(self.model, post)
    }
}

/// Scales coarse and fine structure of the guidance separately.
#[derive(Node)]
#[node(
    id = "FreSca",
    v3,
    module = "comfy_extras.nodes_fresca",
    display = "FreSca",
    category = "_for_testing",
    outputs("MODEL"),
    experimental
)]
pub struct FreSca {
    model: Model,
    /// Factor of coarse structure.
    #[input(default = 1.0, min = 0, max = 10, step = 0.01)]
    scale_low: f64,
    /// Factor of fine structure.
    #[input(default = 1.25, min = 0, max = 10, step = 0.01)]
    scale_high: f64,
    /// How many waves across count as coarse.
    #[input(default = 20, min = 1, max = 10000, step = 1)]
    freq_cutoff: i64,
}

impl Node for FreSca {
    fn run(self, _: &Cx) -> NodeResult {
        let pre = guidance::FreSca {
            scale_low: self.scale_low,
            scale_high: self.scale_high,
            cutoff: size("freq_cutoff", self.freq_cutoff)?,
        };
        with_pre(self.model, pre)
    }
}

/// Limits the strength of guidance, and where in sampling it applies.
#[derive(Node)]
#[node(
    id = "RenormCFG",
    v3,
    module = "comfy_extras.nodes_lumina2",
    category = "advanced/model",
    outputs("MODEL")
)]
pub struct RenormCFG {
    model: Model,
    /// Noise level below which guidance acts; above it the prompt alone counts.
    #[input(default = 100, min = 0.0, max = 100.0, step = 0.01)]
    cfg_trunc: f64,
    /// Largest size of the guided prediction, as a multiple of the unguided one; 0 for no limit.
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01)]
    renorm_cfg: f64,
}

impl Node for RenormCFG {
    fn run(self, _: &Cx) -> NodeResult {
        let rule = guidance::RenormCfg {
            truncate_at: self.cfg_trunc,
            limit: self.renorm_cfg,
            channels: self.model.base.in_channels().unwrap_or(usize::MAX),
        };
        with_rule(self.model, rule)
    }
}

/// Guidance that rises along the frames of a video.
#[derive(Node)]
#[node(
    id = "VideoLinearCFGGuidance",
    v1,
    module = "comfy_extras.nodes_video_model",
    category = "sampling/video_models",
    outputs("MODEL")
)]
pub struct VideoLinearCFGGuidance {
    model: Model,
    /// The least guidance, at the first frame; the most is the sampler's.
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.5, round = 0.01)]
    min_cfg: f64,
}

impl Node for VideoLinearCFGGuidance {
    fn run(self, _: &Cx) -> NodeResult {
        with_rule(
            self.model,
            FrameCfg::Linear {
                least: self.min_cfg,
            },
        )
    }
}

pub static VIDEO_TRIANGLE_CFG: Twin<VideoLinearCFGGuidance> = Twin {
    id: "VideoTriangleCFGGuidance",
    display: None,
    about: "Guidance that rises to the middle of a video and falls again.",
    defaults: &[],
    run: |node, _| {
        let least = node.min_cfg;
        with_rule(node.model, FrameCfg::Triangle { least })
    },
};

/// Applies a latent operation to the guidance of every step.
#[derive(Node)]
#[node(
    id = "LatentApplyOperationCFG",
    v3,
    module = "comfy_extras.nodes_latent",
    category = "latent/advanced/operations",
    outputs("MODEL"),
    experimental
)]
pub struct LatentApplyOperationCFG {
    model: Model,
    operation: LatentOperation,
}

impl PreCfg for LatentOperation {
    fn apply(&self, step: &GuidanceStep) -> guidance::Result<(Tensor, Tensor)> {
        let guided = self.on(&step.cond.sub(step.uncond)?)?;
        Ok((guided.add(step.uncond)?, step.uncond.clone()))
    }
}

impl Node for LatentApplyOperationCFG {
    fn run(self, _: &Cx) -> NodeResult {
        with_pre(self.model, self.operation)
    }
}

/// Lets shades of a mask decide from which step on each place may change.
#[derive(Node)]
#[node(
    id = "DifferentialDiffusion",
    v3,
    module = "comfy_extras.nodes_differential_diffusion",
    display = "Differential Diffusion",
    category = "_for_testing",
    outputs("MODEL"),
    experimental
)]
pub struct DifferentialDiffusion {
    model: Model,
    #[input(optional, default = 1.0, min = 0.0, max = 1.0, step = 0.01, or = 1.0)]
    strength: f64,
}

impl Node for DifferentialDiffusion {
    fn run(self, _: &Cx) -> NodeResult {
        let mut model = self.model;
        model.patches.denoise_mask = Some(guidance::DifferentialDiffusion {
            strength: self.strength,
        });
        Ok(NodeOutput::one(model))
    }
}
