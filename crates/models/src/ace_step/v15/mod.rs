//! Version 1.5: latents of 25 frames a second, tags, lyrics and a voice as tokens beside them, and the sketch of a song that a
//! language model writes.

mod codes;
mod condition;
mod config;
mod layers;
mod model;
mod writer;

pub use codes::CodeDecoder;
pub use condition::ConditionEncoder;
pub use config::{Ace15Config, CodesConfig, ConditionConfig};
pub use model::Ace15Network;
pub use writer::{CodeSampling, CodeWriter, SongPlan};
