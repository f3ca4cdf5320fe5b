//! The samplers by name.

/// A sampler. [`Self::ALL`] lists those that KSampler offers; the others come from nodes of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SamplerName {
    Euler,
    EulerCfgPp,
    EulerAncestral,
    EulerAncestralCfgPp,
    Heun,
    Heunpp2,
    ExpHeun2X0,
    ExpHeun2X0Sde,
    Dpm2,
    Dpm2Ancestral,
    Lms,
    DpmFast,
    DpmAdaptive,
    Dpmpp2sAncestral,
    Dpmpp2sAncestralCfgPp,
    DpmppSde,
    DpmppSdeGpu,
    Dpmpp2m,
    Dpmpp2mCfgPp,
    Dpmpp2mSde,
    Dpmpp2mSdeGpu,
    Dpmpp2mSdeHeun,
    Dpmpp2mSdeHeunGpu,
    Dpmpp3mSde,
    Dpmpp3mSdeGpu,
    Ddpm,
    Lcm,
    Ipndm,
    IpndmV,
    Deis,
    ResMultistep,
    ResMultistepCfgPp,
    ResMultistepAncestral,
    ResMultistepAncestralCfgPp,
    GradientEstimation,
    GradientEstimationCfgPp,
    ErSde,
    Seeds2,
    Seeds3,
    SaSolver,
    SaSolverPece,
    Ddim,
    UniPc,
    UniPcBh2,
    /// LCM on a latent that grows (`SamplerLCMUpscale`).
    LcmUpscale,
    /// The other form of CFG++ (`SamplerEulerCFG++`, version `alternative`).
    EulerPp,
}

impl SamplerName {
    /// The names that KSampler offers, in its order.
    pub const ALL: [(&'static str, Self); 44] = [
        ("euler", Self::Euler),
        ("euler_cfg_pp", Self::EulerCfgPp),
        ("euler_ancestral", Self::EulerAncestral),
        ("euler_ancestral_cfg_pp", Self::EulerAncestralCfgPp),
        ("heun", Self::Heun),
        ("heunpp2", Self::Heunpp2),
        ("exp_heun_2_x0", Self::ExpHeun2X0),
        ("exp_heun_2_x0_sde", Self::ExpHeun2X0Sde),
        ("dpm_2", Self::Dpm2),
        ("dpm_2_ancestral", Self::Dpm2Ancestral),
        ("lms", Self::Lms),
        ("dpm_fast", Self::DpmFast),
        ("dpm_adaptive", Self::DpmAdaptive),
        ("dpmpp_2s_ancestral", Self::Dpmpp2sAncestral),
        ("dpmpp_2s_ancestral_cfg_pp", Self::Dpmpp2sAncestralCfgPp),
        ("dpmpp_sde", Self::DpmppSde),
        ("dpmpp_sde_gpu", Self::DpmppSdeGpu),
        ("dpmpp_2m", Self::Dpmpp2m),
        ("dpmpp_2m_cfg_pp", Self::Dpmpp2mCfgPp),
        ("dpmpp_2m_sde", Self::Dpmpp2mSde),
        ("dpmpp_2m_sde_gpu", Self::Dpmpp2mSdeGpu),
        ("dpmpp_2m_sde_heun", Self::Dpmpp2mSdeHeun),
        ("dpmpp_2m_sde_heun_gpu", Self::Dpmpp2mSdeHeunGpu),
        ("dpmpp_3m_sde", Self::Dpmpp3mSde),
        ("dpmpp_3m_sde_gpu", Self::Dpmpp3mSdeGpu),
        ("ddpm", Self::Ddpm),
        ("lcm", Self::Lcm),
        ("ipndm", Self::Ipndm),
        ("ipndm_v", Self::IpndmV),
        ("deis", Self::Deis),
        ("res_multistep", Self::ResMultistep),
        ("res_multistep_cfg_pp", Self::ResMultistepCfgPp),
        ("res_multistep_ancestral", Self::ResMultistepAncestral),
        (
            "res_multistep_ancestral_cfg_pp",
            Self::ResMultistepAncestralCfgPp,
        ),
        ("gradient_estimation", Self::GradientEstimation),
        ("gradient_estimation_cfg_pp", Self::GradientEstimationCfgPp),
        ("er_sde", Self::ErSde),
        ("seeds_2", Self::Seeds2),
        ("seeds_3", Self::Seeds3),
        ("sa_solver", Self::SaSolver),
        ("sa_solver_pece", Self::SaSolverPece),
        ("ddim", Self::Ddim),
        ("uni_pc", Self::UniPc),
        ("uni_pc_bh2", Self::UniPcBh2),
    ];

    /// The sampler of KSampler's list.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(n, _)| *n == name).map(|(_, s)| *s)
    }

    /// What the reference calls its function (`sample_euler`, `dpm_fast_function`), for reports.
    pub fn function(self) -> String {
        match self {
            Self::UniPc => "sample_unipc".to_owned(),
            Self::UniPcBh2 => "sample_unipc_bh2".to_owned(),
            Self::DpmFast | Self::DpmAdaptive => format!("{}_function", self.name()),
            _ => format!("sample_{}", self.name()),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::LcmUpscale => "lcm_upscale",
            Self::EulerPp => "euler_pp",
            other => Self::ALL
                .iter()
                .find(|(_, s)| *s == other)
                .map_or("", |(name, _)| name),
        }
    }

    /// Whether the sampler reads [`super::Denoiser::uncond`], so that the negative prompt is evaluated even at cfg 1.
    pub fn needs_uncond(self) -> bool {
        matches!(
            self,
            Self::EulerCfgPp
                | Self::EulerAncestralCfgPp
                | Self::Dpmpp2sAncestralCfgPp
                | Self::Dpmpp2mCfgPp
                | Self::ResMultistepCfgPp
                | Self::ResMultistepAncestralCfgPp
                | Self::GradientEstimationCfgPp
                | Self::EulerPp
        )
    }

    /// Whether the noise under the kept part of an inpainted latent is drawn anew, from `seed + 1`.
    pub fn redraws_inpaint_noise(self) -> bool {
        self == Self::Ddim
    }

    /// Whether KSampler asks for one level more and leaves out the last but one.
    pub fn skips_penultimate(self) -> bool {
        matches!(
            self,
            Self::Dpm2 | Self::Dpm2Ancestral | Self::UniPc | Self::UniPcBh2
        )
    }

    /// Whether the noise it adds comes from a Brownian tree.
    pub(crate) fn is_brownian(self) -> bool {
        matches!(
            self,
            Self::DpmppSde
                | Self::DpmppSdeGpu
                | Self::Dpmpp2mSde
                | Self::Dpmpp2mSdeGpu
                | Self::Dpmpp2mSdeHeun
                | Self::Dpmpp2mSdeHeunGpu
                | Self::Dpmpp3mSde
                | Self::Dpmpp3mSdeGpu
        )
    }
}
