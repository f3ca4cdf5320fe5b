//! LTX-Video 0.9: tokens of a video, each told its own noise level, look at each other and at a prompt. Positions are in
//! seconds and pixels, and turn all channels at once.

mod config;
mod detect;
mod model;

pub use config::LtxvConfig;
pub use detect::Ltxv;
pub use model::LtxvNetwork;
