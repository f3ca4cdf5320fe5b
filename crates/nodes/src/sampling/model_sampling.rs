//! Nodes that change how a model is sampled.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Twin};
use fresco_models::latent_format::PLAYGROUND;
use fresco_models::schedules::token_shift;
use fresco_models::{ModelSampling, Prediction};

use super::Model;
use crate::sigmas::schedulers::ltxv_tokens;
use crate::types::Latent;

fn unknown(sampling: &str) -> NodeError {
    NodeError::value_error(format!("unknown sampling '{sampling}'"))
}

fn patched(model: Model, sampling: ModelSampling) -> NodeResult {
    Ok(NodeOutput::one(model.with_sampling(sampling)))
}

/// Tells what a model of a thousand discrete noise levels predicts.
#[derive(Node)]
#[node(
    id = "ModelSamplingDiscrete",
    v1,
    module = "comfy_extras.nodes_model_advanced",
    category = "advanced/model",
    outputs("MODEL")
)]
pub struct ModelSamplingDiscrete {
    model: Model,
    #[input(choices = ["eps", "v_prediction", "lcm", "x0", "img_to_img"])]
    sampling: String,
    /// Makes the first step start from pure noise, for models that were trained so.
    #[input(default = false)]
    zsnr: bool,
}

impl Node for ModelSamplingDiscrete {
    fn run(self, _: &Cx) -> NodeResult {
        let prediction = match self.sampling.as_str() {
            "eps" => Prediction::Eps,
            "v_prediction" => Prediction::V,
            "x0" => Prediction::X0,
            "img_to_img" => Prediction::ImgToImg,
            "lcm" => {
                return patched(
                    self.model,
                    ModelSampling::distilled(Prediction::Lcm, self.zsnr),
                );
            }
            other => return Err(unknown(other)),
        };
        patched(self.model, ModelSampling::discrete(prediction, self.zsnr))
    }
}

/// Sets how strong the noise was that a model was trained with.
#[derive(Node)]
#[node(
    id = "ModelNoiseScale",
    v3,
    module = "comfy_extras.nodes_model_advanced",
    display = "ModelNoiseScale",
    category = "advanced/model",
    outputs("MODEL")
)]
pub struct ModelNoiseScale {
    model: Model,
    /// Factor of the noise; 1 changes nothing.
    #[input(default = 1.0, min = 0.0, max = 64.0, step = 0.01)]
    noise_scale: f64,
}

impl Node for ModelNoiseScale {
    fn run(self, _: &Cx) -> NodeResult {
        let mut sampling = (*self.model.sampling).clone();
        sampling.noise_scale = self.noise_scale as f32;
        patched(self.model, sampling)
    }
}

/// The range of noise levels, which must be positive and finite.
fn range(min: f64, max: f64) -> Result<(f64, f64), NodeError> {
    if min > 0.0 && max > 0.0 && min.is_finite() && max.is_finite() {
        Ok((min, max))
    } else {
        // The logarithm of zero is what the reference stumbles over.
        Err(NodeError::value_error("math domain error"))
    }
}

/// Tells what a model of continuous noise levels predicts.
#[derive(Node)]
#[node(
    id = "ModelSamplingContinuousEDM",
    v1,
    module = "comfy_extras.nodes_model_advanced",
    category = "advanced/model",
    outputs("MODEL")
)]
pub struct ModelSamplingContinuousEDM {
    model: Model,
    #[input(choices = ["v_prediction", "edm", "edm_playground_v2.5", "eps", "cosmos_rflow"])]
    sampling: String,
    #[input(default = 120.0, min = 0.0, max = 1000.0, step = 0.001, round = false)]
    sigma_max: f64,
    #[input(default = 0.002, min = 0.0, max = 1000.0, step = 0.001, round = false)]
    sigma_min: f64,
}

impl Node for ModelSamplingContinuousEDM {
    fn run(self, _: &Cx) -> NodeResult {
        let (min, max) = range(self.sigma_min, self.sigma_max)?;
        let (prediction, data) = match self.sampling.as_str() {
            "v_prediction" => (Prediction::V, 1.0),
            "eps" => (Prediction::Eps, 1.0),
            "edm" | "edm_playground_v2.5" => (Prediction::Edm, 0.5),
            "cosmos_rflow" => {
                return patched(self.model, ModelSampling::ratio_flow(min, max, 1.0));
            }
            other => return Err(unknown(other)),
        };
        let mut model = self.model;
        if self.sampling == "edm_playground_v2.5" {
            model = model.with_latent_format(PLAYGROUND);
        }
        patched(
            model,
            ModelSampling::continuous_edm(prediction, min, max, data),
        )
    }
}

/// Tells what a model of continuous noise levels on the circle predicts.
#[derive(Node)]
#[node(
    id = "ModelSamplingContinuousV",
    v1,
    module = "comfy_extras.nodes_model_advanced",
    category = "advanced/model",
    outputs("MODEL")
)]
pub struct ModelSamplingContinuousV {
    model: Model,
    #[input(choices = ["v_prediction"])]
    sampling: String,
    #[input(default = 500.0, min = 0.0, max = 1000.0, step = 0.001, round = false)]
    sigma_max: f64,
    #[input(default = 0.03, min = 0.0, max = 1000.0, step = 0.001, round = false)]
    sigma_min: f64,
}

impl Node for ModelSamplingContinuousV {
    fn run(self, _: &Cx) -> NodeResult {
        if self.sampling != "v_prediction" {
            return Err(unknown(&self.sampling));
        }
        let (min, max) = range(self.sigma_min, self.sigma_max)?;
        patched(
            self.model,
            ModelSampling::continuous_v(Prediction::V, min, max),
        )
    }
}

/// Sets the shift of SD3 and similar models.
#[derive(Node)]
#[node(
    id = "ModelSamplingSD3",
    v1,
    module = "comfy_extras.nodes_model_advanced",
    category = "advanced/model",
    outputs("MODEL")
)]
pub struct ModelSamplingSD3 {
    model: Model,
    #[input(default = 3.0, min = 0.0, max = 100.0, step = 0.01)]
    shift: f64,
}

impl Node for ModelSamplingSD3 {
    fn run(self, _: &Cx) -> NodeResult {
        patched(self.model, ModelSampling::flow(self.shift, 1000.0))
    }
}

pub static COSINE_SHIFT: Twin<ModelSamplingSD3> = Twin {
    id: "ModelSamplingStableCascade",
    display: None,
    about: "Sets the shift of Stable Cascade.",
    defaults: &[("shift", 2.0)],
    run: |node, _| {
        patched(
            node.model,
            ModelSampling::cosine(Prediction::Eps, node.shift),
        )
    },
};

pub static UNIT_SHIFT: Twin<ModelSamplingSD3> = Twin {
    id: "ModelSamplingAuraFlow",
    display: None,
    about: "Sets the shift of AuraFlow, Lumina and similar models.",
    defaults: &[("shift", 1.73)],
    run: |node, _| patched(node.model, ModelSampling::flow(node.shift, 1.0)),
};

/// Sets the shift of Flux by the size of the picture.
#[derive(Node)]
#[node(
    id = "ModelSamplingFlux",
    v1,
    module = "comfy_extras.nodes_model_advanced",
    category = "advanced/model",
    outputs("MODEL")
)]
pub struct ModelSamplingFlux {
    model: Model,
    #[input(default = 1.15, min = 0.0, max = 100.0, step = 0.01)]
    max_shift: f64,
    #[input(default = 0.5, min = 0.0, max = 100.0, step = 0.01)]
    base_shift: f64,
    #[input(default = 1024, min = 16, max = 16384, step = 8)]
    width: i64,
    #[input(default = 1024, min = 16, max = 16384, step = 8)]
    height: i64,
}

impl Node for ModelSamplingFlux {
    fn run(self, _: &Cx) -> NodeResult {
        let tokens = self.width as f64 * self.height as f64 / 256.0;
        let shift = token_shift(tokens, (256.0, self.base_shift), (4096.0, self.max_shift));
        patched(self.model, ModelSampling::exponential_flow(shift))
    }
}

/// Sets the shift of LTX-Video by the size of the latent.
#[derive(Node)]
#[node(
    id = "ModelSamplingLTXV",
    v3,
    module = "comfy_extras.nodes_lt",
    category = "advanced/model",
    outputs("MODEL")
)]
pub struct ModelSamplingLTXV {
    model: Model,
    #[input(default = 2.05, min = 0.0, max = 100.0, step = 0.01)]
    max_shift: f64,
    #[input(default = 0.95, min = 0.0, max = 100.0, step = 0.01)]
    base_shift: f64,
    /// The latent to be sampled; its size decides how far levels shift.
    #[input(optional)]
    latent: Option<Latent>,
}

impl Node for ModelSamplingLTXV {
    fn run(self, _: &Cx) -> NodeResult {
        let tokens = ltxv_tokens(self.latent.as_ref())?;
        let shift = token_shift(tokens, (1024.0, self.base_shift), (4096.0, self.max_shift));
        patched(self.model, ModelSampling::exponential_flow(shift))
    }
}
