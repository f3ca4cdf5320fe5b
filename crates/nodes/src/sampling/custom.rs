//! Sampling with parts of the user's choice: sampler, noise levels, guider, noise.

use fresco_graph::{Cx, Node, NodeOutput, NodeResult, Output};
use fresco_models::denoise::Guidance;

use super::run::{Guided, Sampled};
use super::{Guider, Model, Noise, Sampler, StartNoise};
use crate::types::{Conditioning, Latent, Sigmas};

fn sampled_output(out: Sampled) -> NodeResult {
    let denoised = out.denoised.unwrap_or_else(|| out.latent.clone());
    Ok(NodeOutput::slots(vec![out.latent.into(), denoised.into()]))
}

/// Samples with a sampler and noise levels of your choice.
#[derive(Node)]
#[node(id = "SamplerCustom", v3, module = "comfy_extras.nodes_custom_sampler", category = "sampling/custom_sampling", outputs(Output::new("LATENT").named("output"), Output::new("LATENT").named("denoised_output")))]
pub struct SamplerCustom {
    model: Model,
    /// Adds noise to the latent first; off where it has noise already.
    #[input(default = true)]
    add_noise: bool,
    #[input(default = 0, min = 0, max = u64::MAX, control_after_generate = true)]
    noise_seed: u64,
    #[input(default = 8.0, min = 0.0, max = 100.0, step = 0.1, round = 0.01)]
    cfg: f64,
    positive: Conditioning,
    negative: Conditioning,
    sampler: Sampler,
    sigmas: Sigmas,
    latent_image: Latent,
}

impl Node for SamplerCustom {
    fn run(self, cx: &Cx) -> NodeResult {
        let guided = Guided {
            model: self.model,
            guidance: Guidance::Cfg { cfg: self.cfg },
            lists: vec![("positive", self.positive), ("negative", self.negative)],
            negative: None,
            own: None,
        };
        let noise = if self.add_noise {
            Noise::Random {
                seed: self.noise_seed,
            }
        } else {
            Noise::Disabled
        };
        sampled_output(guided.sample(
            noise,
            self.noise_seed,
            &self.sampler,
            self.sigmas.0.data(),
            self.latent_image,
            cx,
        )?)
    }
}

/// Samples with every part of your choice.
#[derive(Node)]
#[node(id = "SamplerCustomAdvanced", v3, module = "comfy_extras.nodes_custom_sampler", category = "sampling/custom_sampling", outputs(Output::new("LATENT").named("output"), Output::new("LATENT").named("denoised_output")))]
pub struct SamplerCustomAdvanced {
    /// The noise to start with.
    noise: StartNoise,
    /// The model with its prompts and how to follow them.
    guider: Guider,
    sampler: Sampler,
    sigmas: Sigmas,
    latent_image: Latent,
}

impl Node for SamplerCustomAdvanced {
    fn run(self, cx: &Cx) -> NodeResult {
        let seed = self.noise.seed();
        sampled_output(self.guider.0.sample(
            self.noise,
            seed,
            &self.sampler,
            self.sigmas.0.data(),
            self.latent_image,
            cx,
        )?)
    }
}
