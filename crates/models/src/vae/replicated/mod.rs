//! Autoencoders of films whose convolutions see the first frame again before it, and the outermost pixels again beyond the
//! borders of frames. One kind has group norms and convolutions that halve; the other puts cells onto channels.
//!
//! Films are worked on in pieces. Every convolution keeps the last two frames that it saw for the next piece; the blocks at
//! the bottom see all frames at once.

mod blocks;
mod config;
mod model;

pub(crate) use blocks::{Carry, Norm, Replicated, Residual};
pub use config::ReplicatedConfig;
pub use model::ReplicatedVae;
