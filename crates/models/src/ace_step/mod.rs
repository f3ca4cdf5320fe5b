//! ACE-Step: songs from tags and lyrics, its first version and 1.5.

mod blocks;
mod config;
mod detect;
mod lyric_encoder;
pub mod lyrics;
mod model;
mod v15;

pub use config::AceConfig;
pub use detect::{AceStep, LORA};
pub use model::AceNetwork;
pub use v15::{
    Ace15Config, Ace15Network, CodeDecoder, CodeSampling, CodeWriter, CodesConfig, ConditionConfig,
    ConditionEncoder, SongPlan,
};
