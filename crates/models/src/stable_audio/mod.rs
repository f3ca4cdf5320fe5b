//! Stable Audio: sound from a description and two lengths.

mod config;
mod detect;
mod model;
mod seconds;

pub use config::StableAudioConfig;
pub use detect::StableAudio;
pub use model::StableAudioNetwork;
pub use seconds::SecondsEmbedder;
