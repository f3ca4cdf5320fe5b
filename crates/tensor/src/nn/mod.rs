//! Layers of networks: they hold weights in their storage format and compute in f32.
//!
//! Pictures are (b, h, w, c) here and sequences (b, n, c), so that channels are next to each other.

mod attention;
mod contents;
mod conv;
mod conv3d;
mod delta;
mod heads;
mod layer_weights;
mod linear;
mod matmul;
mod merge;
mod misc;
mod modulate;
mod norm;
mod picture;
mod prepare;
mod residual;
mod side;
mod slot;
mod snake;
mod step;
mod table;

pub use attention::{Mask, attention, attention_probabilities};
pub use conv::{Conv2d, Padding};
pub use conv3d::{Conv3d, Keeping};
pub use delta::{DeltaInput, DeltaMemory, DeltaSizes, gated_delta};
pub use heads::{
    HeadPart, HeadRope, HeadSource, MlpJoin, ReadyHeads, SideColumns, join_heads, join_pair,
};
pub use layer_weights::MakeWeight;
pub use linear::{After, LayerInput, Linear, ModulatedRows};
pub use matmul::matmul;
pub use merge::{Growth, MergedAs};
pub use misc::{
    Act, activate, avg_pool2d, concat_channels, geglu, gelu, gelu_tanh, mish, quick_gelu, relu,
    rope_half, rope_interleaved, sigmoid, silu, softmax_last, tanh, upsample_nearest,
};
pub use modulate::{add_gated, modulate, swiglu, swiglu_halves};
pub use norm::{GroupNorm, LayerNorm, RmsNorm};
pub use picture::{channel_attention, depthwise, negative_slopes};
pub use residual::{ChannelParts, Shortcut};
pub use side::{LowRank, Side};
pub use slot::{SlotGroup, Streamed, WeightSlot};
pub use snake::snake;
pub use step::{euler_step, guide};
pub use table::{Embedding, Value};
