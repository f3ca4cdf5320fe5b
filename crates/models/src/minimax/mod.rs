//! MiniMax H3: words, given pictures, sound and a video are one sequence, in which everything looks at everything. Sound has
//! a noise level of its own, which follows from that of the video.

mod conditions;
mod config;
mod detect;
mod model;
pub(crate) mod names;
pub mod sound;

pub use conditions::{KINDS, Kind, LATENTS, TAGS, latent_frames};
pub use config::{MiniMaxConfig, TimeConfig};
pub use detect::MiniMax;
pub use model::{MiniMaxNetwork, Segment, Sequence, Tokens};
