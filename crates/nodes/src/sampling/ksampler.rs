//! KSampler: the node that does it all, and its form with a window of steps.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_models::Scheduler;
use fresco_models::denoise::Guidance;
use fresco_models::samplers::{SamplerName, ksampler_sigmas, step_window};

use super::own::own_schedule;
use super::run::{Guided, steps};
use super::samplers::{Choice, sampler_names};
use super::{Model, Noise, Sampler};
use crate::sigmas::of_model::scheduler_names;
use crate::types::{Conditioning, Latent};

/// Which part of a schedule runs.
struct Window {
    start: Option<usize>,
    last: Option<usize>,
    /// End without noise even if the schedule goes on.
    finish: bool,
}

/// What both nodes have in common.
struct Job {
    guided: Guided,
    noise: Noise,
    seed: u64,
    steps: i64,
    sampler: Choice,
    scheduler: Choice,
    denoise: f64,
    window: Window,
    latent: Latent,
}

impl Job {
    fn run(self, cx: &Cx) -> NodeResult {
        let sampling = &self.guided.model.sampling;
        // Unknown names mean the first of their list, as in the reference.
        let (name, sampler) = match self.sampler {
            Choice::Named(name) => {
                let name = SamplerName::named(&name).unwrap_or(SamplerName::Euler);
                (name, Sampler::listed(name))
            }
            Choice::Own(own) => (SamplerName::Euler, Sampler::try_from_value(own)?),
        };
        let steps = steps(self.steps)?;
        let sigmas = match &self.scheduler {
            Choice::Named(scheduler) => {
                let scheduler = Scheduler::named(scheduler).unwrap_or(Scheduler::Simple);
                ksampler_sigmas(sampling, name, scheduler, steps, self.denoise)
                    .map_err(|e| NodeError::value_error(e.to_string()))?
            }
            Choice::Own(own) => own_schedule(own, &self.guided.model, name, steps, self.denoise)?,
        };
        let Window {
            start,
            last,
            finish,
        } = self.window;
        let sigmas = step_window(sigmas, start, last, finish).unwrap_or_default();
        let out = self
            .guided
            .sample(self.noise, self.seed, &sampler, &sigmas, self.latent, cx)?;
        Ok(NodeOutput::one(out.latent))
    }
}

fn guided(model: Model, positive: Conditioning, negative: Conditioning, cfg: f64) -> Guided {
    Guided {
        model,
        guidance: Guidance::Cfg { cfg },
        lists: vec![("positive", positive), ("negative", negative)],
        negative: None,
        own: None,
    }
}

/// Turns a noisy latent into a clean one, step by step, towards one prompt and away from another.
#[derive(Node)]
#[node(
    id = "KSampler",
    v1,
    module = "nodes",
    category = "sampling",
    outputs("LATENT")
)]
pub struct KSampler {
    /// Does the denoising.
    model: Model,
    /// Where the random noise comes from: equal numbers give equal pictures.
    #[input(default = 0, min = 0, max = u64::MAX, control_after_generate = true)]
    seed: u64,
    #[input(default = 20, min = 1, max = 10000)]
    steps: i64,
    #[input(default = 8.0, min = 0.0, max = 100.0, step = 0.1, round = 0.01)]
    cfg: f64,
    #[input(choices = sampler_names())]
    sampler_name: Choice,
    #[input(choices = scheduler_names())]
    scheduler: Choice,
    /// What the picture shall have.
    positive: Conditioning,
    /// What it shall not have.
    negative: Conditioning,
    /// Where to start.
    latent_image: Latent,
    /// How much of the noise there is at the start: less than 1 keeps the structure of the given picture.
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    denoise: f64,
}

impl Node for KSampler {
    fn run(self, cx: &Cx) -> NodeResult {
        Job {
            guided: guided(self.model, self.positive, self.negative, self.cfg),
            noise: Noise::Random { seed: self.seed },
            seed: self.seed,
            steps: self.steps,
            sampler: self.sampler_name,
            scheduler: self.scheduler,
            denoise: self.denoise,
            window: Window {
                start: None,
                last: None,
                finish: false,
            },
            latent: self.latent_image,
        }
        .run(cx)
    }
}

/// KSampler for a part of the steps, so that another one can do the rest.
#[derive(Node)]
#[node(
    id = "KSamplerAdvanced",
    v1,
    module = "nodes",
    display = "KSampler (Advanced)",
    category = "sampling",
    outputs("LATENT")
)]
pub struct KSamplerAdvanced {
    model: Model,
    /// Adds noise first; disable it where the latent has noise from an earlier part.
    #[input(choices = ["enable", "disable"])]
    add_noise: String,
    #[input(default = 0, min = 0, max = u64::MAX, control_after_generate = true)]
    noise_seed: u64,
    /// Number of steps of the whole schedule, all parts together.
    #[input(default = 20, min = 1, max = 10000)]
    steps: i64,
    #[input(default = 8.0, min = 0.0, max = 100.0, step = 0.1, round = 0.01)]
    cfg: f64,
    #[input(choices = sampler_names())]
    sampler_name: Choice,
    #[input(choices = scheduler_names())]
    scheduler: Choice,
    positive: Conditioning,
    negative: Conditioning,
    latent_image: Latent,
    /// The first step of this part, counted from 0.
    #[input(default = 0, min = 0, max = 10000)]
    start_at_step: i64,
    /// The step before which this part ends.
    #[input(default = 10000, min = 0, max = 10000)]
    end_at_step: i64,
    /// Keeps the noise that is left at the end, for a later part to take away.
    #[input(choices = ["disable", "enable"])]
    return_with_leftover_noise: String,
}

impl Node for KSamplerAdvanced {
    fn run(self, cx: &Cx) -> NodeResult {
        let noise = if self.add_noise == "disable" {
            Noise::Disabled
        } else {
            Noise::Random {
                seed: self.noise_seed,
            }
        };
        let step = |n: i64| usize::try_from(n).unwrap_or(0);
        Job {
            guided: guided(self.model, self.positive, self.negative, self.cfg),
            noise,
            seed: self.noise_seed,
            steps: self.steps,
            sampler: self.sampler_name,
            scheduler: self.scheduler,
            denoise: 1.0,
            window: Window {
                start: Some(step(self.start_at_step)),
                last: Some(step(self.end_at_step)),
                finish: self.return_with_leftover_noise != "enable",
            },
            latent: self.latent_image,
        }
        .run(cx)
    }
}
