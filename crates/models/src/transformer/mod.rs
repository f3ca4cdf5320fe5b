//! What transformers of several families share: positions as turned pairs, pictures as tokens, numbers as waves.

mod embed;
mod heads;
mod patches;
mod rope;
mod shapes;

pub use embed::{Embedder, sinusoid};
pub use heads::{chunks, part, repeat_heads};
pub use patches::{PatchOrder, circular_pad, from_tokens, to_tokens};
pub use rope::{Rope, grid_positions};
pub use shapes::Shapes;
