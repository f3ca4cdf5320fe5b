//! Schedules from a model's own noise levels.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output};
use fresco_models::schedules::{self, MAX_STEPS};
use fresco_models::{ScheduleError, Scheduler};
use fresco_tensor::Tensor;

use super::{failure, sigmas_output, steps};
use crate::sampling::Model;
use crate::sampling::own::own_levels;
use crate::sampling::samplers::Choice;
use crate::types::Sigmas;

/// The names of schedules, in the order clients show them.
pub fn scheduler_names() -> [&'static str; 9] {
    Scheduler::ALL.map(|(name, _)| name)
}

/// A model's noise levels in one of the usual spacings.
#[derive(Node)]
#[node(
    id = "BasicScheduler",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/schedulers",
    outputs("SIGMAS")
)]
pub struct BasicScheduler {
    model: Model,
    #[input(choices = scheduler_names())]
    scheduler: Choice,
    #[input(default = 20, min = 1, max = 10000)]
    steps: i64,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    denoise: f64,
}

impl Node for BasicScheduler {
    fn run(self, _: &Cx) -> NodeResult {
        let wanted = steps(self.steps);
        let mut total = wanted;
        if self.denoise < 1.0 {
            if self.denoise <= 0.0 {
                return Ok(NodeOutput::one(Sigmas(Tensor::from_slice(&[]))));
            }
            let all = wanted as f64 / self.denoise;
            if all > MAX_STEPS as f64 {
                return Err(failure(ScheduleError::TooManySteps {
                    steps: all as usize,
                }));
            }
            total = all as usize;
        }
        let sigmas = match self.scheduler {
            Choice::Named(name) => {
                let scheduler = Scheduler::named(&name)
                    .ok_or_else(|| NodeError::value_error(format!("unknown scheduler '{name}'")))?;
                scheduler
                    .sigmas(&self.model.sampling, total)
                    .map_err(failure)?
            }
            Choice::Own(own) => own_levels(&own, &self.model, total)?,
        };
        let from = sigmas.len().saturating_sub(wanted + 1);
        Ok(NodeOutput::one(Sigmas(Tensor::from_slice(&sigmas[from..]))))
    }
}

/// A model's noise levels spaced by a beta distribution.
#[derive(Node)]
#[node(
    id = "BetaSamplingScheduler",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/schedulers",
    outputs("SIGMAS")
)]
pub struct BetaSamplingScheduler {
    model: Model,
    #[input(default = 20, min = 1, max = 10000)]
    steps: i64,
    /// First parameter of the distribution; lower puts more steps at low noise.
    #[input(default = 0.6, min = 0.0, max = 50.0, step = 0.01, round = false)]
    alpha: f64,
    /// Second parameter of the distribution; lower puts more steps at high noise.
    #[input(default = 0.6, min = 0.0, max = 50.0, step = 0.01, round = false)]
    beta: f64,
}

impl Node for BetaSamplingScheduler {
    fn run(self, _: &Cx) -> NodeResult {
        if self.alpha <= 0.0 || self.beta <= 0.0 {
            return Err(NodeError::value_error(format!(
                "alpha and beta must be above 0, got {} and {}",
                self.alpha, self.beta
            )));
        }
        sigmas_output(schedules::beta(
            &self.model.sampling,
            steps(self.steps),
            self.alpha,
            self.beta,
        ))
    }
}

/// The noise levels of turbo models.
#[derive(Node)]
#[node(
    id = "SDTurboScheduler",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/schedulers",
    outputs("SIGMAS")
)]
pub struct SDTurboScheduler {
    model: Model,
    #[input(default = 1, min = 1, max = 10)]
    steps: i64,
    #[input(default = 1.0, min = 0, max = 1.0, step = 0.01)]
    denoise: f64,
}

impl Node for SDTurboScheduler {
    fn run(self, _: &Cx) -> NodeResult {
        sigmas_output(schedules::turbo(
            &self.model.sampling,
            steps(self.steps),
            self.denoise,
        ))
    }
}

/// The noise level after a part of sampling.
#[derive(Node)]
#[node(id = "SamplingPercentToSigma", v3, module = "comfy_extras.nodes_custom_sampler", category = "sampling/custom_sampling/sigmas", outputs(Output::new("FLOAT").named("sigma_value")))]
pub struct SamplingPercentToSigma {
    model: Model,
    /// The part of sampling that is done: 0 is the start, 1 the end.
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.0001)]
    sampling_percent: f64,
    /// Give the model's highest and lowest level at the ends, instead of values that mean "from the very start" and "to the very end".
    #[input(default = false)]
    return_actual_sigma: bool,
}

impl Node for SamplingPercentToSigma {
    fn run(self, _: &Cx) -> NodeResult {
        let sampling = &self.model.sampling;
        let sigma = match (self.return_actual_sigma, self.sampling_percent) {
            (true, 0.0) => f64::from(sampling.sigma_max()),
            (true, 1.0) => f64::from(sampling.sigma_min()),
            (_, percent) => sampling.percent_to_sigma(percent),
        };
        Ok(NodeOutput::one(sigma))
    }
}
