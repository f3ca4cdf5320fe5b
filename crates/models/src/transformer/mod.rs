//! What transformers of several families share: attention, what follows it, what a noise level says to blocks, positions as
//! turned pairs, pictures as tokens, numbers as waves, and the loop over blocks. A family says widths, names and order.

mod adaln;
mod attention;
mod blocks;
mod embed;
mod encoder;
mod experts;
mod heads;
mod mask;
mod mlp;
mod norm;
mod parallel;
mod patches;
mod place;
mod rope;
mod sandwich;
mod shapes;

pub use adaln::AdaLn;
pub use attention::{
    Attention, AttentionBias, AttentionLayers, GateLayer, Heads, Looks, Qkv, QkvLayers, Rotation,
};
pub use blocks::{BlockControl, Blocks, ControlOrder, add_to_some};
pub use embed::{Embedder, TimeEmbed, exponential, sinusoid, thousandfold};
pub use encoder::{EncoderBlock, EncoderLayers, NormPlace};
pub use experts::{ExpertPlan, Experts};
pub use heads::{chunks, part, repeat_heads};
pub use mask::{TokenMask, hide, hides};
pub use mlp::{Mlp, MlpLayers};
pub use norm::{HeadNorm, LessOneNorm, TokenRows};
pub use parallel::{ParallelBlock, ParallelSeen};
pub use patches::{
    PatchOrder, PictureTokens, TokenGrid, TokenPlaces, circular_pad, from_tokens, patch_conv,
    spread_tokens, to_tokens, video_from_tokens, video_to_tokens,
};
pub use rope::{Pairs, Rope, RopeScale, grid_positions};
pub use sandwich::{SandwichBlock, SandwichLayers};
pub use shapes::Shapes;
