//! What sampling is made of: samplers, noise, and the sigmas that a model gives.

pub mod attention_choice;
pub mod block_patches;
pub mod chroma_options;
pub mod conds;
pub mod custom;
pub mod guidance;
pub mod guiders;
pub mod ksampler;
pub mod model;
pub mod model_patches;
pub mod model_sampling;
pub mod noise;
pub mod own;
pub mod preview;
pub mod reuse;
pub mod run;
pub mod samplers;
pub mod skip_layers;
pub mod windows;

use fresco_graph::{NodeEntry, entry};

pub use guiders::Guider;
pub use model::{BaseModel, Model, Patches, Ready};
pub use noise::{Noise, StartNoise};
pub use samplers::Sampler;

pub static NODES: &[NodeEntry] = &[
    entry::<ksampler::KSampler>(),
    entry::<ksampler::KSamplerAdvanced>(),
    entry::<custom::SamplerCustom>(),
    entry::<custom::SamplerCustomAdvanced>(),
    entry::<guiders::BasicGuider>(),
    entry::<guiders::CFGGuider>(),
    entry::<guiders::DualCFGGuider>(),
    entry::<guiders::PerpNegGuider>(),
    entry::<guiders::DualModelGuider>(),
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
    entry::<samplers::SamplerLCM>(),
    entry::<samplers::SamplerEulerCFGpp>(),
    entry::<noise::RandomNoise>(),
    entry::<noise::DisableNoise>(),
    entry::<noise::AddNoise>(),
    entry::<samplers::SamplerSASolver>(),
    entry::<model_sampling::ModelSamplingDiscrete>(),
    entry::<model_sampling::ModelSamplingContinuousEDM>(),
    entry::<model_sampling::ModelSamplingContinuousV>(),
    entry::<model_sampling::ModelSamplingStableCascade>(),
    entry::<model_sampling::ModelSamplingSD3>(),
    entry::<model_sampling::ModelSamplingAuraFlow>(),
    entry::<model_sampling::ModelSamplingFlux>(),
    entry::<model_sampling::ModelSamplingLTXV>(),
    entry::<model_sampling::ModelNoiseScale>(),
    entry::<guidance::RescaleCFG>(),
    entry::<guidance::Mahiro>(),
    entry::<guidance::CFGZeroStar>(),
    entry::<guidance::CFGNorm>(),
    entry::<guidance::TCFG>(),
    entry::<guidance::APG>(),
    entry::<guidance::EpsilonScaling>(),
    entry::<guidance::TemporalScoreRescaling>(),
    entry::<guidance::FreSca>(),
    entry::<guidance::RenormCFG>(),
    entry::<guidance::VideoLinearCFGGuidance>(),
    entry::<guidance::VideoTriangleCFGGuidance>(),
    entry::<guidance::LatentApplyOperationCFG>(),
    entry::<guidance::DifferentialDiffusion>(),
    entry::<skip_layers::SkipLayerGuidanceSD3>(),
    entry::<skip_layers::SkipLayerGuidanceDiT>(),
    entry::<skip_layers::SkipLayerGuidanceDiTSimple>(),
    entry::<reuse::EasyCache>(),
    entry::<reuse::LazyCache>(),
    entry::<windows::ContextWindowsManual>(),
    entry::<windows::LongFilmWindows>(),
    entry::<guidance::CFGOverride>(),
    entry::<attention_choice::ModelAttentionBackend>(),
    entry::<attention_choice::BlockSparseAttention>(),
    entry::<attention_choice::FluxKVCache>(),
    entry::<block_patches::FreeU>(),
    entry::<block_patches::FreeUV2>(),
    entry::<block_patches::PatchModelAddDownscale>(),
    entry::<chroma_options::ChromaRadianceOptions>(),
    entry::<model_patches::PerpNeg>(),
    entry::<model_patches::SelfAttentionGuidance>(),
    entry::<model_patches::PerturbedAttentionGuidance>(),
    entry::<model_patches::HyperTile>(),
    entry::<model_patches::TomePatchModel>(),
    entry::<model_patches::UNetSelfAttentionMultiply>(),
    entry::<model_patches::UNetCrossAttentionMultiply>(),
    entry::<model_patches::UNetTemporalAttentionMultiply>(),
    entry::<model_patches::ModelComputeDtype>(),
    entry::<model_patches::TorchCompileModel>(),
];
