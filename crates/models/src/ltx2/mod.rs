//! LTX-2 and its successors: pictures and sound are two streams of tokens, each with weights of its own, that look at each
//! other in every block. Positions are in seconds and pixels. Prompts go through connectors first.

mod config;
mod connector;
mod detect;
mod layers;
mod model;
pub(crate) mod names;
mod positions;
pub mod sound;
pub mod text;
pub mod upsampler;
mod voice;

pub use config::{ConnectorConfig, Ltx2Config, StreamConfig};
pub use connector::Connector;
pub use detect::Ltx2;
pub use model::{Ltx2Network, Ltx2Tokens};
pub use names::DIFFUSERS;
pub use positions::NO_TOKEN;
pub use voice::{VOICE, VoiceGuidance};
