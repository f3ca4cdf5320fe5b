//! What sampler nodes can set. Defaults are the reference's.

use fresco_tensor::ResizeMethod;

/// How `dpmpp_2m_sde` uses the step before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SdeSolver {
    Midpoint,
    Heun,
}

/// How `seeds_2` joins its two evaluations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeedsSolver {
    Phi1,
    Phi2,
}

/// How far noise reaches in `er_sde`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NoiseScaler {
    /// The extended reverse-time form of the paper.
    ErSde,
    /// `x^(eta + 1)`: reverse-time SDE, and ODE for eta 0.
    Power { eta: f64 },
}

impl NoiseScaler {
    pub fn scale(self, x: f32) -> f32 {
        match self {
            Self::ErSde => x * (x.powf(0.3).exp() + 10.0),
            Self::Power { eta } => x.powf((eta + 1.0) as f32),
        }
    }
}

/// Between which levels `sa_solver` adds noise, and how much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseInterval {
    pub eta: f64,
    pub start_sigma: f64,
    pub end_sigma: f64,
}

impl NoiseInterval {
    /// The amount at a level.
    pub fn at(self, sigma: f64) -> f64 {
        if self.eta > 0.0 && self.start_sigma >= sigma && sigma >= self.end_sigma {
            self.eta
        } else {
            0.0
        }
    }
}

/// Options of all samplers; each reads its own.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerOptions {
    /// How much noise is added; each sampler has its own default.
    pub eta: Option<f64>,
    /// What the added noise is multiplied by.
    pub s_noise: Option<f64>,
    /// The same at the last step of `lcm`, reached in even steps from the first.
    pub s_noise_end: Option<f64>,
    /// Standard deviations beyond which `lcm` cuts its noise off; 0 for none.
    pub noise_limit: f64,
    /// Noise put back at the start of a step (euler, heun, heunpp2, dpm_2), between two levels.
    pub s_churn: f64,
    pub s_tmin: f64,
    pub s_tmax: f64,
    /// Order of `lms` (4) and `dpm_adaptive` (3).
    pub order: Option<usize>,
    /// Where the middle evaluation of `dpmpp_sde` and `seeds_2` lies.
    pub r: f64,
    pub sde_solver: SdeSolver,
    pub seeds_solver: SeedsSolver,
    pub rtol: f64,
    pub atol: f64,
    pub h_init: f64,
    pub pcoeff: f64,
    pub icoeff: f64,
    pub dcoeff: f64,
    pub accept_safety: f64,
    pub noise_scaler: NoiseScaler,
    /// Stages of `er_sde`.
    pub max_stage: usize,
    /// Of `sa_solver`; without one, noise is added from 20 % to 80 % of sampling.
    pub noise_interval: Option<NoiseInterval>,
    pub predictor_order: usize,
    pub corrector_order: usize,
    pub use_pece: bool,
    pub simple_order_2: bool,
    /// Gain of `gradient_estimation`.
    pub ge_gamma: f64,
    /// How much larger `lcm_upscale` makes the latent, in how many steps (half of all without a number).
    pub total_upscale: f64,
    pub upscale_steps: Option<usize>,
    pub upscale_method: ResizeMethod,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            eta: None,
            s_noise: None,
            s_noise_end: None,
            noise_limit: 0.0,
            s_churn: 0.0,
            s_tmin: 0.0,
            s_tmax: f64::INFINITY,
            order: None,
            r: 0.5,
            sde_solver: SdeSolver::Midpoint,
            seeds_solver: SeedsSolver::Phi1,
            rtol: 0.05,
            atol: 0.0078,
            h_init: 0.05,
            pcoeff: 0.0,
            icoeff: 1.0,
            dcoeff: 0.0,
            accept_safety: 0.81,
            noise_scaler: NoiseScaler::ErSde,
            max_stage: 3,
            noise_interval: None,
            predictor_order: 3,
            corrector_order: 4,
            use_pece: false,
            simple_order_2: false,
            ge_gamma: 2.0,
            total_upscale: 2.0,
            upscale_steps: None,
            upscale_method: ResizeMethod::Bislerp,
        }
    }
}
