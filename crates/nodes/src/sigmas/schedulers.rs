//! Schedules that need no model.

use fresco_graph::{Args, Cx, Form, Input, Node, NodeResult, NodeRow, Output, Schema};
use fresco_models::{ScheduleError, schedules};

use super::{sigmas_output, steps};
use crate::types::Latent;

/// Noise levels by a formula of a few numbers: a row of the table below.
pub(super) struct Formula {
    id: &'static str,
    about: &'static str,
    numbers: fn() -> Vec<Input>,
    /// The levels for so many steps and these numbers, zeros after the last.
    levels: fn(usize, [f64; 4]) -> Result<Vec<f32>, ScheduleError>,
}

impl NodeRow for Formula {
    fn schema(&self) -> Schema {
        let schema = Schema::new(self.id, Form::V3)
            .module("comfy_extras.nodes_custom_sampler")
            .category("sampling/custom_sampling/schedulers")
            .description(self.about)
            .output(Output::new("SIGMAS"))
            .input(Input::int("steps", 20, [1, 10000]));
        (self.numbers)().into_iter().fold(schema, Schema::input)
    }

    fn run(&self, mut args: Args, _: &Cx) -> NodeResult {
        let count = steps(args.take("steps")?);
        let mut numbers = [0.0; 4];
        for (number, input) in numbers.iter_mut().zip((self.numbers)()) {
            *number = args.take(&input.name)?;
        }
        sigmas_output((self.levels)(count, numbers))
    }
}

/// A number that keeps all of its digits.
fn exact(name: &str, default: f64, range: [f64; 3], about: &str) -> Input {
    let input = Input::float(name, default, range).option("round", false);
    input.tooltip(about)
}

fn ends() -> Vec<Input> {
    let level = |name, default, about| exact(name, default, [0.0, 5000.0, 0.01], about);
    vec![
        level("sigma_max", 14.614642, "The highest noise level."),
        level("sigma_min", 0.0291675, "The lowest noise level above zero."),
    ]
}

fn ends_and(more: impl IntoIterator<Item = Input>) -> Vec<Input> {
    ends().into_iter().chain(more).collect()
}

pub(super) static KARRAS: Formula = Formula {
    id: "KarrasScheduler",
    about: "Noise levels after Karras et al.",
    numbers: || {
        let about = "How much steps crowd at low noise; higher gives more of them there.";
        ends_and([exact("rho", 7.0, [0.0, 100.0, 0.01], about)])
    },
    levels: |steps, [max, min, rho, _]| schedules::karras(steps, min, max, rho),
};

pub(super) static EXPONENTIAL: Formula = Formula {
    id: "ExponentialScheduler",
    about: "Noise levels evenly spaced in their logarithm.",
    numbers: ends,
    levels: |steps, [max, min, ..]| schedules::exponential(steps, min, max),
};

pub(super) static POLYEXPONENTIAL: Formula = Formula {
    id: "PolyexponentialScheduler",
    about: "Noise levels spaced by a power of their logarithm.",
    numbers: || {
        let about = "How much steps crowd at low noise: not at all at 1, more above.";
        ends_and([exact("rho", 1.0, [0.0, 100.0, 0.01], about)])
    },
    levels: |steps, [max, min, rho, _]| schedules::polyexponential(steps, min, max, rho),
};

pub(super) static LAPLACE: Formula = Formula {
    id: "LaplaceScheduler",
    about: "Noise levels by a Laplace distribution.",
    numbers: || {
        let middle = "Where the middle of the distribution is, as a logarithm of the noise level.";
        ends_and([
            exact("mu", 0.0, [-10.0, 10.0, 0.1], middle),
            exact(
                "beta",
                0.5,
                [0.0, 10.0, 0.1],
                "How wide the distribution is.",
            ),
        ])
    },
    levels: |steps, [max, min, mu, beta]| schedules::laplace(steps, min, max, mu, beta),
};

pub(super) static VARIANCE_PRESERVING: Formula = Formula {
    id: "VPScheduler",
    about: "Noise levels of variance-preserving models.",
    numbers: || {
        let growth = "How fast noise grows in the process that the model was trained with.";
        let first = "How fast noise grows at the start of that process.";
        let last = "Time of the last level; lower ends with less noise.";
        vec![
            exact("beta_d", 19.9, [0.0, 5000.0, 0.01], growth),
            exact("beta_min", 0.1, [0.0, 5000.0, 0.01], first),
            exact("eps_s", 0.001, [0.0, 1.0, 0.0001], last),
        ]
    },
    levels: |steps, [beta_d, beta_min, eps_s, _]| schedules::vp(steps, beta_d, beta_min, eps_s),
};

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
    /// How much the levels crowd; each value has levels of its own.
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
    /// The latent to be sampled; its size decides how far levels shift.
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
