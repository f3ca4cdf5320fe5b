//! What transformers of several families share: positions as turned pairs, pictures as tokens, numbers as waves.

mod embed;
mod experts;
mod heads;
mod mask;
mod patches;
mod rename;
mod rope;
mod shapes;

pub use embed::{Embedder, exponential, sinusoid, thousandfold};
pub use experts::ExpertPlan;
pub use heads::{chunks, part, repeat_heads};
pub use mask::{hide, hides};
pub use patches::{
    PatchOrder, TokenGrid, circular_pad, from_tokens, patch_conv, spread_tokens, to_tokens,
    video_from_tokens, video_to_tokens,
};
pub use rename::{Renames, swapped_halves};
pub use rope::{Rope, RopeScale, grid_positions};
pub use shapes::Shapes;
