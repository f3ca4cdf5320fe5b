//! Schedules that need no model.

use fresco_graph::{Cx, Node, NodeResult};
use fresco_models::schedules;

use super::{sigmas_output, steps};
use crate::types::Latent;

/// Noise levels after Karras et al.
#[derive(Node)]
#[node(
    id = "KarrasScheduler",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/schedulers",
    outputs("SIGMAS")
)]
pub struct KarrasScheduler {
    #[input(default = 20, min = 1, max = 10000)]
    steps: i64,
    #[input(
        default = 14.614642,
        min = 0.0,
        max = 5000.0,
        step = 0.01,
        round = false
    )]
    sigma_max: f64,
    #[input(
        default = 0.0291675,
        min = 0.0,
        max = 5000.0,
        step = 0.01,
        round = false
    )]
    sigma_min: f64,
    #[input(default = 7.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    rho: f64,
}

impl Node for KarrasScheduler {
    fn run(self, _: &Cx) -> NodeResult {
        sigmas_output(schedules::karras(
            steps(self.steps),
            self.sigma_min,
            self.sigma_max,
            self.rho,
        ))
    }
}

/// Noise levels evenly spaced in their logarithm.
#[derive(Node)]
#[node(
    id = "ExponentialScheduler",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/schedulers",
    outputs("SIGMAS")
)]
pub struct ExponentialScheduler {
    #[input(default = 20, min = 1, max = 10000)]
    steps: i64,
    #[input(
        default = 14.614642,
        min = 0.0,
        max = 5000.0,
        step = 0.01,
        round = false
    )]
    sigma_max: f64,
    #[input(
        default = 0.0291675,
        min = 0.0,
        max = 5000.0,
        step = 0.01,
        round = false
    )]
    sigma_min: f64,
}

impl Node for ExponentialScheduler {
    fn run(self, _: &Cx) -> NodeResult {
        sigmas_output(schedules::exponential(
            steps(self.steps),
            self.sigma_min,
            self.sigma_max,
        ))
    }
}

/// Noise levels spaced by a power of their logarithm.
#[derive(Node)]
#[node(
    id = "PolyexponentialScheduler",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/schedulers",
    outputs("SIGMAS")
)]
pub struct PolyexponentialScheduler {
    #[input(default = 20, min = 1, max = 10000)]
    steps: i64,
    #[input(
        default = 14.614642,
        min = 0.0,
        max = 5000.0,
        step = 0.01,
        round = false
    )]
    sigma_max: f64,
    #[input(
        default = 0.0291675,
        min = 0.0,
        max = 5000.0,
        step = 0.01,
        round = false
    )]
    sigma_min: f64,
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    rho: f64,
}

impl Node for PolyexponentialScheduler {
    fn run(self, _: &Cx) -> NodeResult {
        sigmas_output(schedules::polyexponential(
            steps(self.steps),
            self.sigma_min,
            self.sigma_max,
            self.rho,
        ))
    }
}

/// Noise levels by a Laplace distribution.
#[derive(Node)]
#[node(
    id = "LaplaceScheduler",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/schedulers",
    outputs("SIGMAS")
)]
pub struct LaplaceScheduler {
    #[input(default = 20, min = 1, max = 10000)]
    steps: i64,
    #[input(
        default = 14.614642,
        min = 0.0,
        max = 5000.0,
        step = 0.01,
        round = false
    )]
    sigma_max: f64,
    #[input(
        default = 0.0291675,
        min = 0.0,
        max = 5000.0,
        step = 0.01,
        round = false
    )]
    sigma_min: f64,
    #[input(default = 0.0, min = -10.0, max = 10.0, step = 0.1, round = false)]
    mu: f64,
    #[input(default = 0.5, min = 0.0, max = 10.0, step = 0.1, round = false)]
    beta: f64,
}

impl Node for LaplaceScheduler {
    fn run(self, _: &Cx) -> NodeResult {
        sigmas_output(schedules::laplace(
            steps(self.steps),
            self.sigma_min,
            self.sigma_max,
            self.mu,
            self.beta,
        ))
    }
}

/// Noise levels of variance-preserving models.
#[derive(Node)]
#[node(
    id = "VPScheduler",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/schedulers",
    outputs("SIGMAS")
)]
pub struct VPScheduler {
    #[input(default = 20, min = 1, max = 10000)]
    steps: i64,
    #[input(default = 19.9, min = 0.0, max = 5000.0, step = 0.01, round = false)]
    beta_d: f64,
    #[input(default = 0.1, min = 0.0, max = 5000.0, step = 0.01, round = false)]
    beta_min: f64,
    #[input(default = 0.001, min = 0.0, max = 1.0, step = 0.0001, round = false)]
    eps_s: f64,
}

impl Node for VPScheduler {
    fn run(self, _: &Cx) -> NodeResult {
        sigmas_output(schedules::vp(
            steps(self.steps),
            self.beta_d,
            self.beta_min,
            self.eps_s,
        ))
    }
}

/// Noise levels tuned for SD1, SDXL or SVD.
#[derive(Node)]
#[node(
    id = "AlignYourStepsScheduler",
    v3,
    module = "comfy_extras.nodes_align_your_steps",
    category = "sampling/custom_sampling/schedulers",
    outputs("SIGMAS")
)]
pub struct AlignYourStepsScheduler {
    #[input(choices = ["SD1", "SDXL", "SVD"])]
    model_type: String,
    #[input(default = 10, min = 1, max = 10000)]
    steps: i64,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    denoise: f64,
}

impl Node for AlignYourStepsScheduler {
    fn run(self, _: &Cx) -> NodeResult {
        sigmas_output(schedules::align_your_steps(
            &self.model_type,
            steps(self.steps),
            self.denoise,
        ))
    }
}

/// Noise levels for few steps, by the geometry of sampling paths.
#[derive(Node)]
#[node(
    id = "GITSScheduler",
    v3,
    module = "comfy_extras.nodes_gits",
    category = "sampling/custom_sampling/schedulers",
    outputs("SIGMAS")
)]
pub struct GITSScheduler {
    #[input(default = 1.2, min = 0.8, max = 1.5, step = 0.05)]
    coeff: f64,
    #[input(default = 10, min = 2, max = 1000)]
    steps: i64,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    denoise: f64,
}

impl Node for GITSScheduler {
    fn run(self, _: &Cx) -> NodeResult {
        sigmas_output(schedules::gits(self.coeff, steps(self.steps), self.denoise))
    }
}

/// Noise levels tuned for Flux, Wan or Chroma.
#[derive(Node)]
#[node(
    id = "OptimalStepsScheduler",
    v3,
    module = "comfy_extras.nodes_optimalsteps",
    category = "sampling/custom_sampling/schedulers",
    outputs("SIGMAS")
)]
pub struct OptimalStepsScheduler {
    #[input(choices = ["FLUX", "Wan", "Chroma"])]
    model_type: String,
    #[input(default = 20, min = 3, max = 1000)]
    steps: i64,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    denoise: f64,
}

impl Node for OptimalStepsScheduler {
    fn run(self, _: &Cx) -> NodeResult {
        sigmas_output(schedules::optimal_steps(
            &self.model_type,
            steps(self.steps),
            self.denoise,
        ))
    }
}

/// Noise levels for Flux 2, by picture size.
#[derive(Node)]
#[node(
    id = "Flux2Scheduler",
    v3,
    module = "comfy_extras.nodes_flux",
    category = "sampling/custom_sampling/schedulers",
    outputs("SIGMAS")
)]
pub struct Flux2Scheduler {
    #[input(default = 20, min = 1, max = 4096)]
    steps: i64,
    #[input(default = 1024, min = 16, max = 16384, step = 1)]
    width: i64,
    #[input(default = 1024, min = 16, max = 16384, step = 1)]
    height: i64,
}

impl Node for Flux2Scheduler {
    fn run(self, _: &Cx) -> NodeResult {
        sigmas_output(fresco_models::flux::schedule::levels(
            steps(self.steps),
            self.width as f64,
            self.height as f64,
        ))
    }
}

/// Noise levels for Ideogram 4, by picture size: even shares of a normal distribution of their logits.
#[derive(Node)]
#[node(
    id = "Ideogram4Scheduler",
    v3,
    module = "comfy_extras.nodes_ideogram4",
    display = "Ideogram 4 Scheduler",
    category = "sampling/custom_sampling/schedulers",
    outputs("SIGMAS")
)]
pub struct Ideogram4Scheduler {
    #[input(default = 20, min = 1, max = 200)]
    steps: i64,
    #[input(default = 1024, min = 256, max = 8192, step = 16)]
    width: i64,
    #[input(default = 1024, min = 256, max = 8192, step = 16)]
    height: i64,
    /// Where the middle of the levels is for a picture of 512 by 512 pixels; larger pictures have more noise.
    #[input(default = 0.0, min = -10.0, max = 10.0, step = 0.05)]
    mu: f64,
    /// How far they are spread.
    #[input(default = 1.75, min = 0.1, max = 5.0, step = 0.05)]
    std: f64,
}

/// Half the logarithms of the largest and smallest ratios of signal to noise that the model was trained with.
const IDEOGRAM_LOGITS: (f64, f64) = (9.0, -7.5);

impl Node for Ideogram4Scheduler {
    fn run(self, _: &Cx) -> NodeResult {
        let pixels = self.width.max(1) as f64 * self.height.max(1) as f64;
        let mean = self.mu + 0.5 * (pixels / (512.0 * 512.0)).ln();
        let limit = |logit: f64| 1.0 / (1.0 + logit.exp());
        let limits = (limit(IDEOGRAM_LOGITS.0), limit(IDEOGRAM_LOGITS.1));
        sigmas_output(schedules::logit_normal(
            steps(self.steps),
            mean,
            self.std,
            limits,
        ))
    }
}

/// Noise levels for LTX-Video, by latent size.
#[derive(Node)]
#[node(
    id = "LTXVScheduler",
    v3,
    module = "comfy_extras.nodes_lt",
    category = "sampling/custom_sampling/schedulers",
    outputs("SIGMAS")
)]
pub struct LTXVScheduler {
    #[input(default = 20, min = 1, max = 10000)]
    steps: i64,
    #[input(default = 2.05, min = 0.0, max = 100.0, step = 0.01)]
    max_shift: f64,
    #[input(default = 0.95, min = 0.0, max = 100.0, step = 0.01)]
    base_shift: f64,
    /// Stretch the levels so that the last before zero is the terminal one.
    #[input(default = true)]
    stretch: bool,
    /// The last level before zero, if stretched.
    #[input(default = 0.1, min = 0.0, max = 0.99, step = 0.01)]
    terminal: f64,
    #[input(optional)]
    latent: Option<Latent>,
}

impl Node for LTXVScheduler {
    fn run(self, _: &Cx) -> NodeResult {
        let tokens = ltxv_tokens(self.latent.as_ref())?;
        let shift =
            schedules::token_shift(tokens, (1024.0, self.base_shift), (4096.0, self.max_shift));
        let levels = schedules::exponential_flow(steps(self.steps), shift);
        sigmas_output(levels.map(|levels| {
            if self.stretch {
                schedules::stretched(levels, self.terminal)
            } else {
                levels
            }
        }))
    }
}

/// The cells of a video latent; a usual number without one.
pub(crate) fn ltxv_tokens(latent: Option<&Latent>) -> Result<f64, fresco_graph::NodeError> {
    Ok(match latent {
        Some(latent) => {
            // Of a video together with its sound, the video.
            let shape = latent.pictures()?.shape();
            shape.iter().skip(2).product::<usize>() as f64
        }
        None => 4096.0,
    })
}
