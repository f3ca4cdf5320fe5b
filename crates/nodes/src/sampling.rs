//! What sampling is made of: samplers, noise, and the sigmas that a model gives.

pub mod noise;
pub mod samplers;

use fresco_graph::{NodeEntry, entry};

pub use noise::Noise;
pub use samplers::Sampler;

pub static NODES: &[NodeEntry] = &[
    entry::<samplers::KSamplerSelect>(),
    entry::<samplers::SamplerEulerAncestral>(),
    entry::<samplers::SamplerEulerAncestralCFGPP>(),
    entry::<samplers::SamplerLMS>(),
    entry::<samplers::SamplerDPMPP3MSDE>(),
    entry::<samplers::SamplerDPMPP2MSDE>(),
    entry::<samplers::SamplerDPMPPSDE>(),
    entry::<samplers::SamplerDPMPP2SAncestral>(),
    entry::<samplers::SamplerDPMAdaptative>(),
    entry::<samplers::SamplerERSDE>(),
    entry::<samplers::SamplerSEEDS2>(),
    entry::<samplers::SamplerLCMUpscale>(),
    entry::<samplers::SamplerEulerCFGpp>(),
    entry::<noise::RandomNoise>(),
    entry::<noise::DisableNoise>(),
];
