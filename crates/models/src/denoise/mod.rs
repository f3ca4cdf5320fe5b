//! From prompts to one prediction: which parts of a latent each prompt speaks for, how prompts share passes of the
//! network, and how the predictions become the one that sampling goes on with.
//!
//! A [`Cond`] is one entry of a conditioning. [`prepare`] fits all entries of a run to its latent; [`predict`] makes the
//! predictions of one step; a [`Guider`] joins them.

mod attention_guidance;
mod base_model;
mod batch;
pub mod block_cache;
mod call;
mod cond;
mod conds;
mod diffusion;
pub mod guidance;
mod guide;
pub mod hook_points;
pub mod hooks;
mod inpaint;
mod parts;
mod pass_memory;
mod per_cond;
mod prepare;
mod region;
mod reuse;
mod skip_layers;
mod token_patches;
mod windows;

pub use attention_guidance::{PerpNeg, PerturbedAttention, SelfAttention};
pub use base_model::BaseModel;
pub use batch::predict;
pub use block_cache::{BlockCache, CacheStep, Residuals};
pub use call::{Call, CallConds, CondValue, ModelConds, Predict};
pub use cond::{Cond, CondHooks, ControlSource, Lists, SeenPicture};
pub use conds::{ReadCond, names};
pub use diffusion::{Diffusion, DiffusionNetwork, Found, FoundNetwork, ModelFacts, NetworkInput};
pub use guide::{CfgOverride, Guidance, Guider, RunPatch};
pub use hook_points::{AttentionPoint, HookPoint, HookPoints};
pub use inpaint::{Inpaint, fit_mask};
pub use parts::{BesideLatent, BesideShift, pack_parts, unpack_parts};
pub use pass_memory::PassMemory;
pub use prepare::{Encode, EncodeArgs, Setting, encode, prepare};
pub use region::{Area, Region};
pub use reuse::{Reuse, ReuseRule};
pub use skip_layers::{SkipLayers, SkippedBlocks};
pub use token_patches::{HyperTile, TokenMerging};
pub use windows::{ContextWindows, WindowFuse, WindowSchedule};

use std::sync::Arc;

use guidance::{CfgRule, DifferentialDiffusion, PostCfg, PreCfg};
use hooks::Hooks;

/// What was changed about a model's sampling, in the order it was.
#[derive(Clone, Default)]
pub struct Patches {
    pub pre_cfg: Vec<Arc<dyn PreCfg>>,
    /// In place of plain guidance; the last one set counts.
    pub cfg_rule: Option<Arc<dyn CfgRule>>,
    pub post_cfg: Vec<Arc<dyn PostCfg>>,
    pub denoise_mask: Option<DifferentialDiffusion>,
    /// Where two speak of the same part of sampling, the last one set counts.
    pub cfg_overrides: Vec<CfgOverride>,
    /// Predict without the prompt even where guidance of strength 1 does not need it.
    pub keep_uncond: bool,
    /// Blocks that are left out of the prediction without the prompt; the last one set counts.
    pub skipped_in_uncond: Option<SkippedBlocks>,
    /// What acts inside the network.
    pub hooks: Hooks,
    /// What acts inside the network and starts anew with every run.
    pub per_run: Vec<Arc<dyn RunPatch>>,
}
