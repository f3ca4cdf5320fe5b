//! From a name to its sampler.

use fresco_tensor::Tensor;

use super::denoiser::{Denoiser, Result, SampleArgs, SampleError};
use super::names::SamplerName;
use super::options::SdeSolver;
use super::run::Run;
use super::{dpm, dpmpp, dpmpp_sde, er_sde, euler, history, lcm, res, sa_solver, seeds, uni_pc};

/// Samples `x`, a latent with noise of level `sigmas[0]` on it, down to the last level.
///
/// With fewer than two levels there is nothing to do and `x` comes back. `uni_pc` changes a last level of zero, and the
/// caller must use the changed one for what follows.
pub fn sample<'a>(
    name: SamplerName,
    model: &'a mut dyn Denoiser,
    x: Tensor,
    sigmas: &mut [f32],
    args: SampleArgs<'a>,
) -> Result<Tensor> {
    if sigmas.len() < 2 {
        return Ok(x);
    }
    if let Some(index) = sigmas.iter().position(|s| !s.is_finite()) {
        return Err(SampleError::Sigma {
            index,
            sigma: sigmas[index],
        });
    }
    if let SamplerName::UniPc | SamplerName::UniPcBh2 = name {
        uni_pc::keep_off_zero(sigmas);
    }
    let run = &mut Run::new(name, model, args, x.shape(), sigmas);
    let sigmas = &*sigmas;
    match name {
        SamplerName::Euler | SamplerName::Ddim => euler::euler(run, x, sigmas),
        SamplerName::EulerPp => euler::euler_pp(run, x, sigmas),
        SamplerName::EulerAncestral => euler::euler_ancestral(run, x, sigmas),
        SamplerName::EulerCfgPp => euler::euler_ancestral_cfg_pp(run, x, sigmas, 0.0),
        SamplerName::EulerAncestralCfgPp => {
            let eta = run.eta(1.0);
            euler::euler_ancestral_cfg_pp(run, x, sigmas, eta)
        }
        SamplerName::Heun => euler::heun(run, x, sigmas),
        SamplerName::Heunpp2 => euler::heunpp2(run, x, sigmas),
        SamplerName::Dpm2 => dpm::dpm_2(run, x, sigmas),
        SamplerName::Dpm2Ancestral => dpm::dpm_2_ancestral(run, x, sigmas),
        SamplerName::DpmFast => dpm::dpm_fast(run, x, sigmas),
        SamplerName::DpmAdaptive => dpm::dpm_adaptive(run, x, sigmas),
        SamplerName::Lms => history::lms(run, x, sigmas),
        SamplerName::Ipndm => history::ipndm(run, x, sigmas),
        SamplerName::IpndmV => history::ipndm_v(run, x, sigmas),
        SamplerName::Deis => history::deis(run, x, sigmas),
        SamplerName::Dpmpp2sAncestral => dpmpp::dpmpp_2s_ancestral(run, x, sigmas),
        SamplerName::Dpmpp2sAncestralCfgPp => dpmpp::dpmpp_2s_ancestral_cfg_pp(run, x, sigmas),
        SamplerName::Dpmpp2m => dpmpp::dpmpp_2m(run, x, sigmas),
        SamplerName::Dpmpp2mCfgPp => dpmpp::dpmpp_2m_cfg_pp(run, x, sigmas),
        SamplerName::DpmppSde | SamplerName::DpmppSdeGpu => dpmpp_sde::dpmpp_sde(run, x, sigmas),
        SamplerName::Dpmpp2mSde | SamplerName::Dpmpp2mSdeGpu => {
            let solver = run.options.sde_solver;
            dpmpp_sde::dpmpp_2m_sde(run, x, sigmas, solver)
        }
        SamplerName::Dpmpp2mSdeHeun | SamplerName::Dpmpp2mSdeHeunGpu => {
            dpmpp_sde::dpmpp_2m_sde(run, x, sigmas, SdeSolver::Heun)
        }
        SamplerName::Dpmpp3mSde | SamplerName::Dpmpp3mSdeGpu => {
            dpmpp_sde::dpmpp_3m_sde(run, x, sigmas)
        }
        SamplerName::Ddpm => euler::ddpm(run, x, sigmas),
        SamplerName::Lcm => lcm::lcm(run, x, sigmas),
        SamplerName::LcmUpscale => lcm::lcm_upscale(run, x, sigmas),
        SamplerName::ResMultistep => res::res_multistep(run, x, sigmas, 0.0, false),
        SamplerName::ResMultistepCfgPp => res::res_multistep(run, x, sigmas, 0.0, true),
        SamplerName::ResMultistepAncestral => {
            let eta = run.eta(1.0);
            res::res_multistep(run, x, sigmas, eta, false)
        }
        SamplerName::ResMultistepAncestralCfgPp => {
            let eta = run.eta(1.0);
            res::res_multistep(run, x, sigmas, eta, true)
        }
        SamplerName::GradientEstimation => res::gradient_estimation(run, x, sigmas, false),
        SamplerName::GradientEstimationCfgPp => res::gradient_estimation(run, x, sigmas, true),
        SamplerName::ErSde => er_sde::er_sde(run, x, sigmas),
        SamplerName::Seeds2 => seeds::seeds_2(run, x, sigmas),
        SamplerName::ExpHeun2X0 => seeds::exp_heun_2_x0(run, x, sigmas, false),
        SamplerName::ExpHeun2X0Sde => seeds::exp_heun_2_x0(run, x, sigmas, true),
        SamplerName::Seeds3 => seeds::seeds_3(run, x, sigmas),
        SamplerName::SaSolver => {
            let twice = run.options.use_pece;
            sa_solver::sa_solver(run, x, sigmas, twice)
        }
        SamplerName::SaSolverPece => sa_solver::sa_solver(run, x, sigmas, true),
        SamplerName::UniPc => uni_pc::uni_pc(run, x, sigmas, uni_pc::Variant::Bh1),
        SamplerName::UniPcBh2 => uni_pc::uni_pc(run, x, sigmas, uni_pc::Variant::Bh2),
    }
}
