//! What a GPU back end must provide.
//!
//! A back end is a folder beside this one with a type for one open device that is a [`GpuDevice`] and a [`GpuOps`], and a [`Backend`](super::Backend) in the list of
//! `backends.rs`. Nothing else in the program changes for it. The traits have two kinds of operations:
//!
//! - **Required** ones have no body. They are what every network can be computed with: memory and copies, weights, and some
//!   twenty operations on elements. They answer an error where a device cannot do something, never another result.
//! - **Offered** ones begin with `offer_` and have a body. Most are fusions of required ones (`fusions.rs`), and their body is that
//!   composition.
//!
//! A new back end begins with the required operations and passes `tests/gpu`, the conformance suite: every operation and
//! every fusion against the processor, over formats, shapes, odd sizes and empty tensors. Then it replaces compositions where
//! measurements say that it is worth it.
//!
//! What holds for all of them:
//!
//! - **Elements** are in row-major order in the [`Format`] of their buffer. Sums are kept in f32 at least, and the order in which they
//!   are made depends on sizes alone: the same inputs give the same bits. Numbers that f16 cannot hold become the largest that it can.
//!   Buffers of one call have one format unless it says F32. An operation may be given empty buffers unless it says otherwise.
//! - **Places** in memory are [`GpuSlice`]s: the number by which the back end knows the memory, and an offset in bytes. Memory of a device begins at
//!   multiples of 256 bytes, and so do parts in place; values inside a layer's memory begin at such places too.
//! - **Order**: everything that is asked of a device by one thread happens in that order, and no call waits, but for `read`, `fetch`, `synchronize` and what says
//!   so. Memory can be used by what is asked for after it was taken; when a [`GpuMemory`] is dropped, work that was asked for
//!   before may still use it, and what is asked for later may get it.
//! - **Books**: memory is counted to the byte when it is taken and when it is given back, and refused with
//!   `TensorError::DeviceFull` beyond the capacity. A device that has failed answers `TensorError::DeviceFailed` from then on; the program lives.
//! - **Launches** are hundreds within milliseconds: no operation may lock, allocate or wait more than it must.
//! - **Threads**: any thread may call; one at a time computes.
//! - **Steps**: a network's step is run by [`GpuDevice::record`]. A back end that can repeat what was started with one call uses `recorder.rs`, which
//!   notes what a step starts, compares the next time, and gives it memory in which addresses are the same every time.
//! - **Weights** are a back end's own: a [`GpuWeight`] lies there as its kernels read it, and a back end knows its own again (`downcast_ref`). The
//!   sizes of a matrix, and what stands beside it, are checked before.

use std::any::Any;
use std::fmt::Debug;
use std::panic::{RefUnwindSafe, UnwindSafe};

use super::{
    Activation, ArrivedWeight, AxisTaps, COMPOSITIONS, Finish, Format, GpuBuffer, GpuFusions,
    GpuId, GpuMask, GpuMemory, GpuSettings, GpuSlice, GpuState, GpuValue, GpuWeight, GroupNormSpec,
    KernelTime, MatrixShape, MemoryPurpose, MergedWeight, RopePairs, RowNorm, TESTED_COMPOSITIONS,
    Transfer, Treatment, Window, composed,
};
use crate::cpu::attention::Sizes;
use crate::dtype::Dtype;
use crate::elementwise::{Binary, Unary};
use crate::error::{Result, TensorError};
use crate::nn::Growth;
use crate::reduce::Reduction;
use crate::stored::Stored;

/// Who uses memory first: the work of a device, or a copy that is made beside it and waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryUse {
    Work,
    Copies,
}

/// What happens where there is no room: what could be had again is given up, or the memory is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenFull {
    MakeRoom,
    Refuse,
}

/// Two tensors, each with its shape.
pub(crate) type Shaped<'a> = (&'a [usize], &'a GpuBuffer);

/// One open GPU, its memory and what is copied there: see the module.
pub(crate) trait GpuDevice: Any + Debug + Send + Sync + UnwindSafe + RefUnwindSafe {
    // The device and its books.

    fn id(&self) -> GpuId;

    /// What is known of it.
    fn state(&self) -> GpuState;

    /// What the program keeps with the device.
    fn settings(&self) -> &GpuSettings;

    /// Whether products of bf16 are as fast as those of f16.
    fn has_bf16(&self) -> bool;

    /// Why it cannot be used any more; none while it can.
    fn failure(&self) -> Option<String>;

    /// What the driver's count of memory and ours do not agree about, while nothing is computed; none if they do.
    fn discrepancy(&self) -> Option<String>;

    /// Bytes that the program may use, those in use by weights and results, those that can be had, and the most that were in use.
    fn capacity(&self) -> u64;
    fn used(&self) -> u64;
    fn free(&self) -> u64;
    fn peak(&self) -> u64;
    fn reset_peak(&self);

    /// Leaves so many bytes of the device to other programs.
    fn reserve(&self, bytes: u64);

    /// Waits until everything that was asked for is done.
    fn synchronize(&self) -> Result<()>;

    /// Gives unused memory back to the driver.
    fn trim(&self);

    /// Bytes per second from main memory, measured now.
    fn measured_link(&self) -> Result<f64>;

    /// Runs something once and says how long each kernel took, the longest first.
    fn profile(&self, body: &mut dyn FnMut()) -> Result<Vec<KernelTime>>;

    // Memory.

    /// Memory of so many bytes, with nothing written there.
    fn allocate(&self, bytes: u64, by: MemoryUse, full: WhenFull) -> Result<GpuMemory>;

    /// Takes memory back, in the order of the work. For [`GpuMemory`] when it is dropped.
    fn release(&self, memory: GpuSlice<'_>, bytes: u64, purpose: MemoryPurpose);

    /// Room for a result; that of a step, while one is recorded.
    fn buffer(&self, len: usize, format: Format) -> Result<GpuBuffer>;

    /// Memory for a copy of weights that is made beside the work and used once. None while there is no room for it: the copy is then made in
    /// the order of the work.
    fn offer_passing_memory(&self, bytes: u64) -> Result<Option<GpuMemory>> {
        match self.allocate(bytes, MemoryUse::Copies, WhenFull::Refuse) {
            Err(TensorError::DeviceFull { .. }) => Ok(None),
            found => found.map(Some),
        }
    }

    // Steps.

    /// Runs a step of a network, once, that usually does the same as the last one of that key.
    fn record(&self, _key: u64, step: &mut dyn FnMut()) {
        step();
    }

    /// For a step that does more than those after it, before it has done anything: it is not taken for what they repeat.
    fn step_apart(&self) {}

    /// Runs, once, what stays beyond the step of this thread, as if there was no step: before all that the step has asked for.
    fn outside_of_step(&self, body: &mut dyn FnMut()) {
        body();
    }

    // Copies.

    /// Elements that are in main memory, in a format.
    fn upload(&self, values: &[f32], format: Format) -> Result<GpuBuffer>;

    /// The elements of a buffer that has some, in main memory, waited for.
    fn read(&self, from: &GpuBuffer, out: &mut [f32]) -> Result<()>;

    /// Elements of another device of this back end, in their format, waited for.
    fn fetch(&self, from: &GpuBuffer) -> Result<GpuBuffer>;

    /// Writes the elements at a place, in a format, into a buffer that has as many, at least one, in its own.
    fn convert(&self, from: (GpuSlice<'_>, Format), to: &GpuBuffer) -> Result<()>;

    // Weights. The memory belongs to a slot; a value begins at the place, or where it is aligned behind it, and the place moves behind the value.

    /// A value of a layer, copied in the order of the work, or beside it with `Copies`: then an end of copies is waited for.
    fn upload_weight(
        &self,
        stored: &Stored,
        matrix: Option<MatrixShape>,
        to: (&GpuMemory, MemoryUse),
        place: &mut u64,
    ) -> Result<GpuValue>;

    /// The same beside the work from the form in which it streams, into memory of [`Self::offer_passing_memory`].
    fn stream_weight(
        &self,
        from: Transfer,
        matrix: Option<MatrixShape>,
        to: &GpuMemory,
        place: &mut u64,
    ) -> Result<ArrivedWeight>;

    /// A mark behind all copies beside the work until now; the work that is asked for next waits for it; it is given back.
    fn mark_copies(&self) -> Result<u64>;
    fn wait_for_copies(&self, mark: u64) -> Result<()>;
    fn drop_mark(&self, mark: u64);

    /// Whether [`Self::offer_merged_weight`] writes a format, and whether it reads a weight. Others are changed in main memory.
    fn merges_into(&self, _dtype: Dtype) -> bool {
        false
    }

    fn merges(&self, _weight: &dyn GpuWeight) -> bool {
        false
    }

    /// A matrix that it [`Self::merges`] with what it grows by, in such a format, rounded as the processor would.
    fn offer_merged_weight(
        &self,
        _weight: &dyn GpuWeight,
        _growths: &[Growth],
        _how: MergedWeight,
        _to: &GpuMemory,
        _place: &mut u64,
    ) -> Result<GpuValue> {
        Err(TensorError::invalid("merge", "this GPU changes no weights"))
    }
}

/// What is computed on one: see the module.
pub(crate) trait GpuOps: GpuDevice {
    // Element by element.

    /// So many times the same value.
    fn filled(&self, count: usize, format: Format, value: f32) -> Result<GpuBuffer>;

    /// Two tensors, stretched to the shape that they have together.
    fn binary(
        &self,
        a: Shaped<'_>,
        b: Shaped<'_>,
        shape: &[usize],
        op: Binary,
    ) -> Result<GpuBuffer>;

    fn unary(&self, from: &GpuBuffer, op: Unary) -> Result<GpuBuffer>;

    /// An activation of every element, into a buffer that may be the same.
    fn activate(&self, from: &GpuBuffer, to: &GpuBuffer, activation: Activation) -> Result<()>;

    // Moving elements.

    /// Reads elements of a walk one after another into a new buffer: sizes, steps in elements, and where the walk begins.
    fn gather(
        &self,
        from: &GpuBuffer,
        walk: &[usize],
        steps: &[isize],
        base: isize,
    ) -> Result<GpuBuffer>;

    /// Writes a whole tensor of a shape into the box of another that begins `base` elements behind its start. The target has the
    /// steps.
    fn paste(
        &self,
        to: &GpuBuffer,
        steps: &[isize],
        base: usize,
        source: &GpuBuffer,
        shape: &[usize],
    ) -> Result<()>;

    /// Joins tensors along a dimension: of each, its elements and how many of them belong to one of the `outer` entries before
    /// that dimension.
    fn cat(&self, format: Format, outer: usize, parts: &[(&GpuBuffer, usize)])
    -> Result<GpuBuffer>;

    /// (outer, size, inner) to (outer, the given entries, inner). The entries were checked.
    fn index_select(
        &self,
        from: &GpuBuffer,
        sizes: (usize, usize, usize),
        indices: &[usize],
    ) -> Result<GpuBuffer>;

    // Sums, norms.

    /// One value for each of `rows` rows of `count` neighbours.
    fn reduce(
        &self,
        from: &GpuBuffer,
        rows: usize,
        count: usize,
        op: Reduction,
    ) -> Result<GpuBuffer>;

    /// Softmax of rows of `width` into `out`, which may be `x`. There is an element.
    fn softmax(&self, x: &GpuBuffer, out: &GpuBuffer, width: usize) -> Result<()>;

    /// Group norm of `x` into `out`, which may be `x`. There is an element.
    fn group_norm(&self, x: &GpuBuffer, out: &GpuBuffer, of: GroupNormSpec<'_>) -> Result<()>;

    /// Normalises rows. There is an element.
    fn row_norm(&self, x: &GpuBuffer, norm: RowNorm<'_>) -> Result<GpuBuffer>;

    // Products.

    /// `rows` rows of the weight's channels times the weight, treated as the layer wants.
    fn linear(
        &self,
        weight: &dyn GpuWeight,
        x: &GpuBuffer,
        rows: usize,
        treatment: Treatment<'_>,
        finish: Finish<'_>,
    ) -> Result<GpuBuffer>;

    /// A convolution over frames, with one weight for each tap of time: at least one.
    fn conv(
        &self,
        taps: &[&dyn GpuWeight],
        x: &GpuBuffer,
        window: Window,
        treatment: Treatment<'_>,
        finish: Finish<'_>,
    ) -> Result<GpuBuffer>;

    /// (items, rows, inner) times (items, inner, columns), item by item: `sizes` in this order.
    fn matmul(&self, a: &GpuBuffer, b: &GpuBuffer, sizes: [usize; 4]) -> Result<GpuBuffer>;

    // Attention.

    /// Softmax of `q k^T * scale` and the mask, times `v`, head by head. There is a query and a key.
    fn attention(
        &self,
        sizes: Sizes,
        qkv: [&GpuBuffer; 3],
        scale: f32,
        mask: GpuMask<'_>,
    ) -> Result<GpuBuffer>;

    /// The softmax of `q k^T * scale` itself, (batch * heads, queries, keys).
    fn probabilities(&self, sizes: Sizes, qk: [&GpuBuffer; 2], scale: f32) -> Result<GpuBuffer>;

    /// Turns the pairs of (rows, heads, 2 * half), which has elements. The tables are (positions, half) and F32; rows take them
    /// in turn.
    fn rope(
        &self,
        x: &GpuBuffer,
        sizes: [usize; 2],
        tables: [&GpuBuffer; 2],
        pairs: RopePairs,
    ) -> Result<GpuBuffer>;

    // Pictures: (b, h, w, c), or planes of h by w.

    /// Means of squares of `size` by `size` pixels.
    fn avg_pool2d(&self, from: &GpuBuffer, sizes: [usize; 4], size: usize) -> Result<GpuBuffer>;

    /// A kernel of `side` by `side` for each channel of pictures that have elements, zeros around them, and a bias.
    fn depthwise(
        &self,
        from: &GpuBuffer,
        sizes: [usize; 4],
        taps: (&GpuBuffer, usize),
        bias: Option<&GpuBuffer>,
    ) -> Result<GpuBuffer>;

    /// Planes to other sizes: rows first, then columns.
    fn resample(
        &self,
        from: &GpuBuffer,
        sizes: [usize; 3],
        across: AxisTaps<'_>,
        down: AxisTaps<'_>,
    ) -> Result<GpuBuffer>;

    /// Means over windows that cover planes: as many as the new height and width.
    fn window_means(
        &self,
        from: &GpuBuffer,
        sizes: [usize; 3],
        to: [usize; 2],
    ) -> Result<GpuBuffer>;

    /// The fusions that it has kernels for.
    fn own_fusions(&self) -> &dyn GpuFusions {
        &COMPOSITIONS
    }
}

impl dyn GpuOps {
    /// Every fusion, by a kernel or as a composition.
    pub(crate) fn fusions(&self) -> &dyn GpuFusions {
        if composed::composes() {
            &TESTED_COMPOSITIONS
        } else {
            self.own_fusions()
        }
    }
}
