//! Values of layers on a GPU. How they lie there is their back end's own affair.

use std::any::Any;
use std::fmt::Debug;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use super::{GpuMemory, GpuSlice};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::narrow::Narrow;
use crate::stored::Stored;

/// Bytes from so many on are brought from their file, or through pinned memory.
pub(crate) const LARGE: usize = 1 << 20;

/// Sizes of a matrix, or of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MatrixShape {
    pub(crate) out: usize,
    pub(crate) channels: usize,
    /// Positions of a kernel; one for a matrix.
    pub(crate) taps: usize,
}

/// A value of a layer on a GPU. Its memory belongs to the layer's slot, which holds it as long as the value is used.
pub(crate) trait GpuWeight: Any + Debug + Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Number of elements.
    fn len(&self) -> usize;

    /// By the size in a file.
    fn bytes(&self) -> u64;

    /// The values as floats of 32 bits, for what is added or multiplied channel by channel: made at the first time, and kept.
    fn floats(&self) -> Result<GpuSlice<'_>>;

    /// The value in main memory, as it was given.
    fn stored(&self) -> Result<Stored>;

    /// Some bytes of it, as in the file.
    fn part(&self, from: usize, out: &mut [u8]) -> Result<()>;

    /// The same value, without other forms, for as long as its memory is held.
    fn again(&self) -> GpuValue;

    /// A copy on the GPU of the memory, made beside its work, at a place that moves behind it.
    fn stream_to(&self, memory: &GpuMemory, place: &mut u64) -> Result<GpuValue>;
}

/// A value that its holder owns.
pub(crate) type GpuValue = Box<dyn GpuWeight>;

/// A value that has come to a GPU in another form than kernels read, which is made when it is used: so the copies that come
/// next need not wait for a kernel.
pub(crate) trait FoldedWeight: Debug + Send + Sync {
    /// Bytes that it takes as kernels read it.
    fn bytes(&self) -> u64;

    /// The value as kernels read it, at a place that moves behind it.
    fn unfolded(&self, memory: &GpuMemory, place: &mut u64) -> Result<GpuValue>;
}

/// What has come to a GPU.
pub(crate) enum ArrivedWeight {
    Value(GpuValue),
    Folded(Box<dyn FoldedWeight>),
}

/// A value in main memory in the form in which it streams to GPUs.
#[derive(Debug)]
pub(crate) enum Transfer {
    Whole(Stored),
    /// In its file, from which it comes straight.
    File(Stored),
    Narrow(Arc<Narrow>),
}

impl Transfer {
    /// How many bytes come over.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Whole(stored) | Self::File(stored) => stored.byte_len(),
            Self::Narrow(narrow) => narrow.bytes().len(),
        }
    }
}

/// How a weight that is changed on a GPU is kept: its format, its sizes, and the chance by which numbers of 8 bits are
/// rounded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergedWeight {
    pub(crate) dtype: Dtype,
    pub(crate) matrix: MatrixShape,
    pub(crate) seed: u64,
}
