//! What transformers do between their layers, on a GPU.

use super::norm::{in_vectors, int, kernel, lanes};
use crate::cuda::{Address, Args, GpuBuffer, OnCard};
use crate::error::Result;

/// Threads of a block.
const THREADS: u32 = 256;

/// Starts a kernel for every element of `out`, whose rows have `width`: the name for 16 bytes at a time, that for single
/// elements, addresses, and what the kernel wants to know last, counted in elements if `last_in_elements`.
struct Rows<'a> {
    names: [&'static str; 2],
    addresses: &'a [u64],
    width: usize,
    last: usize,
    last_in_elements: bool,
}

impl Rows<'_> {
    fn start(&self, out: &GpuBuffer) -> Result<()> {
        let (device, format) = (out.card(), out.format());
        let n = lanes(format);
        let whole = !self.last_in_elements || self.last.is_multiple_of(n);
        // In vectors, numbers of rows are computed with 32 bits.
        let vectors = whole
            && in_vectors(self.width, format, self.addresses)
            && u32::try_from(out.len() / n).is_ok();
        let (name, unit) = if vectors {
            (self.names[0], n)
        } else {
            (self.names[1], 1)
        };
        let last = if self.last_in_elements {
            self.last / unit
        } else {
            self.last
        };
        let count = out.len() / unit;
        let args = self
            .addresses
            .iter()
            .fold(Args::new(), |args, &address| args.pointer(address))
            .long(count as i64)
            .int(int(self.width / unit)?)
            .int(int(last)?);
        let most = 32 * device.multiprocessors() as usize;
        let blocks = count.div_ceil(THREADS as usize).min(most) as u32;
        device.launch(kernel(format, name), [blocks, 1, 1], THREADS, 0, &args)
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
    let shift = shift.map_or(0, Address::address);
    Rows {
        names: ["modulate", "modulate_any"],
        addresses: &[x.address(), scale.address(), shift, out.address()],
        width,
        last: each,
        last_in_elements: false,
    }
    .start(out)
}

/// `x + gate * y` into `out`, which may be `x`; a row of the gate for every `each` rows of `width`.
pub(crate) fn add_gated(
    x: &GpuBuffer,
    gate: &GpuBuffer,
    y: &GpuBuffer,
    out: &GpuBuffer,
    (width, each): (usize, usize),
) -> Result<()> {
    Rows {
        names: ["add_gated", "add_gated_any"],
        addresses: &[x.address(), gate.address(), y.address(), out.address()],
        width,
        last: each,
        last_in_elements: false,
    }
    .start(out)
}

/// `silu(gate) * value`, element by element.
pub(crate) fn swiglu(gate: &GpuBuffer, value: &GpuBuffer) -> Result<GpuBuffer> {
    let out = gate.card().buffer(gate.len(), gate.format())?;
    if out.len() > 0 {
        // Rows do not matter: those of 16 bytes, where there are only whole ones, make the kernel's division trivial.
        let width = lanes(gate.format());
        let width = if out.len().is_multiple_of(width) {
            width
        } else {
            1
        };
        Rows {
            names: ["swiglu", "swiglu_any"],
            addresses: &[gate.address(), value.address(), out.address()],
            width,
            last: width,
            last_in_elements: true,
        }
        .start(&out)?;
    }
    Ok(out)
}

/// The same of the halves of rows of `width`: the first is the gate.
pub(crate) fn swiglu_halves(x: &GpuBuffer, width: usize) -> Result<GpuBuffer> {
    let half = width / 2;
    let out = x.card().buffer(x.len() / 2, x.format())?;
    if out.len() > 0 {
        let value = x.address() + (half * x.format().size()) as u64;
        Rows {
            names: ["swiglu", "swiglu_any"],
            addresses: &[x.address(), value, out.address()],
            width: half,
            last: width,
            last_in_elements: true,
        }
        .start(&out)?;
    }
    Ok(out)
}
