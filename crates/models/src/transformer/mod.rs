//! What transformers of several families share: positions as turned pairs, pictures as tokens, numbers as waves.

mod embed;
mod patches;
mod rope;

pub use embed::{Embedder, sinusoid};
pub use patches::{PatchOrder, circular_pad, from_tokens, to_tokens};
pub use rope::{Rope, grid_positions};
