//! GPUs, whatever runs them: the seam between tensors, layers and weights on one side and a back end on the other.
//!
//! `GpuOps` with `GpuDevice` is all that a back end provides, and its file says what that is. `GpuBuffer` is elements on a GPU, `GpuWeight` a value of a
//! layer there; `composed` has what a back end that offers no fusions does instead, `recorder` the steps of networks that are
//! repeated, and `backends` the list of those that this program has. Nothing outside of a back end's own folder knows
//! which one it is.

mod arena;
mod args;
mod backends;
mod buffer;
pub(crate) mod composed;
mod format;
mod ops;
mod pinned;
pub(crate) mod recorder;
mod state;
mod weight;

pub(crate) use arena::{ALIGNMENT, Arena, CHUNK, Chunk, StepMemory};
pub(crate) use args::{
    Activation, AxisTaps, Behind, Finish, Fusion, GpuMask, GroupNormSpec, HeadAngles, HeadSizes,
    HeadTokens, More, RopePairs, RowNorm, RowNormEnd, RowNormKind, Treatment, Values,
    WeightWithBias, Window,
};
pub use backends::open_first;
pub(crate) use backends::{Backend, NAMES, number_of, opened};
pub(crate) use buffer::{
    CopyEnd, GpuBuffer, GpuMemory, GpuSlice, MemoryLender, MemoryPurpose, MemorySource, Spread,
};
pub use composed::with_composed_fusions;
pub use format::{Format, FormatChoices, NetworkPart};
pub(crate) use ops::{GpuDevice, GpuOps, MemoryUse, Shaped, WhenFull};
pub(crate) use pinned::PinnedBytes;
pub use pinned::allow_pinned_memory;
pub(crate) use recorder::{CurrentStep, PinnedMemory, Recordable, Recorder};
pub(crate) use state::GpuSettings;
pub use state::{GpuId, GpuState, KernelTime};
pub(crate) use weight::{
    ArrivedWeight, FoldedWeight, GpuValue, GpuWeight, LARGE, MatrixShape, MergedWeight, Transfer,
};

/// For the processor's way through an operation that a GPU has left before.
pub(crate) fn has_its_own_way() -> ! {
    crate::buffer::raise(crate::error::TensorError::invalid(
        "gpu",
        "the processor was asked to compute on a GPU's tensor",
    ))
}
