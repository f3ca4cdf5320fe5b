//! What transformers do between their layers, on a GPU.

use super::norm::in_vectors;
use super::{blocks, pack};
use crate::cuda::launch::FormattedLaunch;
use crate::cuda::launches::norm::{
    AddGated, AddGatedKernel, Modulate, ModulateKernel, Swiglu, SwigluKernel,
};
use crate::cuda::tuned::BETWEEN_BLOCKS;
use crate::cuda::{Address, GpuBuffer, OnCard, Shape};
use crate::error::Result;
use crate::gpu::GpuSlice;

/// Threads of a block.
const THREADS: u32 = 256;

/// A kernel for every element of `out`, whose rows have `width` elements.
struct Rows<'a> {
    out: &'a GpuBuffer,
    width: usize,
    /// Elements that kernels take at once: 16 bytes, or one.
    unit: usize,
}

impl<'a> Rows<'a> {
    /// In vectors where all addresses and rows allow it; numbers of rows are computed with 32 bits then. `step`: elements from row to row elsewhere.
    fn of(out: &'a GpuBuffer, addresses: &[u64], (width, step): (usize, usize)) -> Self {
        let n = pack(out.format());
        let vectors = step.is_multiple_of(n)
            && in_vectors(width, out.format(), addresses)
            && u32::try_from(out.len() / n).is_ok();
        let unit = if vectors { n } else { 1 };
        Self { out, width, unit }
    }

    /// The kernel for vectors, or that for single elements.
    fn kernel<K>(&self, vectors: K, elements: K) -> K {
        if self.unit > 1 { vectors } else { elements }
    }

    fn count(&self) -> u64 {
        (self.out.len() / self.unit) as u64
    }

    fn width(&self) -> Result<u32> {
        blocks(self.width / self.unit)
    }

    fn start(&self, launch: impl FormattedLaunch) -> Result<()> {
        let device = self.out.card();
        let most = BETWEEN_BLOCKS * device.multiprocessors() as usize;
        let count = self.out.len() / self.unit;
        let blocks = count.div_ceil(THREADS as usize).min(most) as u32;
        device.launch(self.out.format(), Shape::row(blocks, THREADS), launch)
    }
}

/// `x * (1 + scale) + shift` into `out`, which may be `x`; a row of `scale` and `shift` for every `each` rows of `width`.
pub(crate) fn modulate(
    x: &GpuBuffer,
    scale: &GpuBuffer,
    shift: Option<&GpuBuffer>,
    out: &GpuBuffer,
    (width, each): (usize, usize),
) -> Result<()> {
    let addresses = [
        x.address(),
        scale.address(),
        shift.map_or(0, Address::address),
        out.address(),
    ];
    let rows = Rows::of(out, &addresses, (width, 0));
    rows.start(Modulate {
        kernel: rows.kernel(ModulateKernel::Modulate, ModulateKernel::ModulateAny),
        x: x.into(),
        scale: scale.into(),
        shift: shift.into(),
        y: out.into(),
        count: rows.count(),
        width: rows.width()?,
        each: blocks(each)?,
    })
}

/// `x + gate * y` into `out`, which may be `x`; a row of the gate for every `each` rows of `width`.
pub(crate) fn add_gated(
    x: &GpuBuffer,
    gate: &GpuBuffer,
    y: &GpuBuffer,
    out: &GpuBuffer,
    (width, each): (usize, usize),
) -> Result<()> {
    let addresses = [x, gate, y, out].map(Address::address);
    let rows = Rows::of(out, &addresses, (width, 0));
    rows.start(AddGated {
        kernel: rows.kernel(AddGatedKernel::AddGated, AddGatedKernel::AddGatedAny),
        x: x.into(),
        gate: gate.into(),
        v: y.into(),
        y: out.into(),
        count: rows.count(),
        width: rows.width()?,
        each: blocks(each)?,
    })
}

/// `silu(gate) * value`, element by element.
pub(crate) fn swiglu(gate: &GpuBuffer, value: &GpuBuffer) -> Result<GpuBuffer> {
    let out = gate.card().buffer(gate.len(), gate.format())?;
    if out.len() > 0 {
        // Rows do not matter: those of 16 bytes, where there are only whole ones, make the kernel's division trivial.
        let width = pack(gate.format());
        let width = if out.len().is_multiple_of(width) {
            width
        } else {
            1
        };
        gated(gate.slice(), value.slice(), &out, (width, width))?;
    }
    Ok(out)
}

/// The same of the halves of rows of `width`: the first is the gate.
pub(crate) fn swiglu_halves(x: &GpuBuffer, width: usize) -> Result<GpuBuffer> {
    let half = width / 2;
    let out = x.card().buffer(x.len() / 2, x.format())?;
    if out.len() > 0 {
        gated(x.slice(), x.slice_at(half), &out, (half, width))?;
    }
    Ok(out)
}

/// The same of rows of `width` elements, of which each begins `step` elements behind the one before.
fn gated(
    gate: GpuSlice<'_>,
    value: GpuSlice<'_>,
    out: &GpuBuffer,
    (width, step): (usize, usize),
) -> Result<()> {
    let addresses = [gate.address(), value.address(), out.address()];
    let rows = Rows::of(out, &addresses, (width, step));
    rows.start(Swiglu {
        kernel: rows.kernel(SwigluKernel::Swiglu, SwigluKernel::SwigluAny),
        gate: gate.into(),
        value: value.into(),
        y: out.into(),
        count: rows.count(),
        width: rows.width()?,
        step: blocks(step / rows.unit)?,
    })
}
