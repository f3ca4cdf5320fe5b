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

use fresco_graph::{NodeEntry, entry, row};

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
    row(&samplers::EULER_ANCESTRAL),
    row(&samplers::EULER_ANCESTRAL_CFG_PP),
    row(&samplers::LMS),
    row(&samplers::DPMPP_3M_SDE),
    row(&samplers::DPMPP_2M_SDE),
    row(&samplers::DPMPP_SDE),
    row(&samplers::DPMPP_2S_ANCESTRAL),
    row(&samplers::DPM_ADAPTIVE),
    entry::<samplers::SamplerERSDE>(),
    row(&samplers::SEEDS_2),
    entry::<samplers::SamplerLCMUpscale>(),
    row(&samplers::LCM),
    entry::<samplers::SamplerEulerCFGpp>(),
    entry::<noise::RandomNoise>(),
    entry::<noise::DisableNoise>(),
    entry::<noise::AddNoise>(),
    entry::<samplers::SamplerSASolver>(),
    entry::<model_sampling::ModelSamplingDiscrete>(),
    entry::<model_sampling::ModelSamplingContinuousEDM>(),
    entry::<model_sampling::ModelSamplingContinuousV>(),
    row(&model_sampling::COSINE_SHIFT),
    entry::<model_sampling::ModelSamplingSD3>(),
    row(&model_sampling::UNIT_SHIFT),
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
    row(&guidance::VIDEO_TRIANGLE_CFG),
    entry::<guidance::LatentApplyOperationCFG>(),
    entry::<guidance::DifferentialDiffusion>(),
    entry::<skip_layers::SkipLayerGuidanceSD3>(),
    entry::<skip_layers::SkipLayerGuidanceDiT>(),
    entry::<skip_layers::SkipLayerGuidanceDiTSimple>(),
    entry::<reuse::EasyCache>(),
    row(&reuse::LAZY_CACHE),
    entry::<windows::ContextWindowsManual>(),
    entry::<windows::LongFilmWindows>(),
    entry::<guidance::CFGOverride>(),
    entry::<attention_choice::ModelAttentionBackend>(),
    entry::<attention_choice::BlockSparseAttention>(),
    entry::<attention_choice::FluxKVCache>(),
    entry::<block_patches::FreeU>(),
    row(&block_patches::FREE_U_2),
    entry::<block_patches::PatchModelAddDownscale>(),
    entry::<chroma_options::ChromaRadianceOptions>(),
    entry::<model_patches::PerpNeg>(),
    entry::<model_patches::SelfAttentionGuidance>(),
    entry::<model_patches::PerturbedAttentionGuidance>(),
    entry::<model_patches::HyperTile>(),
    entry::<model_patches::TomePatchModel>(),
    entry::<model_patches::UNetSelfAttentionMultiply>(),
    row(&model_patches::CROSS_ATTENTION),
    entry::<model_patches::UNetTemporalAttentionMultiply>(),
    entry::<model_patches::ModelComputeDtype>(),
    entry::<model_patches::TorchCompileModel>(),
];
