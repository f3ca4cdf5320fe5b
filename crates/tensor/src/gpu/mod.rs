//! GPUs, whatever runs them: the seam between tensors, layers and weights on one side and a back end on the other.
//!
//! `GpuOps` with `GpuDevice` is all that a back end must provide, and its file says what that is; `GpuFusions` is what it may, with
//! compositions of required operations for what it has no kernel for. `GpuBuffer` is elements on a GPU, `GpuWeight` a value of a layer there; `recorder` has the
//! steps of networks that are repeated, and `backends` the list of those that this program has. Nothing outside of a back end's own folder knows
//! which one it is.

mod arena;
mod args;
mod backends;
mod buffer;
mod composed;
mod format;
mod fusions;
mod ops;
mod pinned;
pub(crate) mod recorder;
mod state;
mod weight;

pub(crate) use arena::{ALIGNMENT, Arena, CHUNK, Chunk, StepMemory};
pub(crate) use args::{
    Activation, AxisTaps, Finish, Fusion, GpuMask, GroupNormSpec, HeadAngles, HeadSizes,
    HeadTokens, RopePairs, RowNorm, RowNormEnd, RowNormKind, SkipLayer, TrailingColumns, Treatment,
    ValueRows, WeightWithBias, Window,
};
pub use backends::open_first;
pub(crate) use backends::{Backend, NAMES, number_of, opened};
pub(crate) use buffer::{
    CopyEnd, GpuBuffer, GpuMemory, GpuSlice, MemoryLender, MemoryPurpose, MemorySource, SideResult,
};
pub use composed::with_composed_fusions;
pub(crate) use composed::{COMPOSITIONS, TESTED_COMPOSITIONS};
pub use format::{Format, FormatChoices, NetworkPart};
pub(crate) use fusions::GpuFusions;
pub(crate) use ops::{GpuDevice, GpuOps, MemoryUse, Shaped, WhenFull};
pub(crate) use pinned::PinnedBytes;
pub use pinned::allow_pinned_memory;
pub(crate) use recorder::{CurrentStep, PinnedMemory, Recordable, Recorder};
pub(crate) use state::GpuSettings;
pub use state::{GpuId, GpuState, KernelCode, KernelModule, KernelTime};
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
