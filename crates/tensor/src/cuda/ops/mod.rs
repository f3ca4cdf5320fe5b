//! Operations on a GPU: each chooses a kernel for the shapes it is given, and starts it.

pub(crate) mod arrange;
pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod heads;
pub(crate) mod merge;
pub(crate) mod misc;
pub(crate) mod modulate;
pub(crate) mod norm;
pub(crate) mod picture;
mod plan;
pub(crate) mod product;
pub(crate) mod reduce;
mod weights;

use super::{Address, Args, CudaDevice, Format, GpuBuffer, Kernel, OnCard};
use crate::error::{Result, TensorError};

/// Elements in 16 bytes.
fn pack(format: Format) -> usize {
    16 / format.size()
}

/// A number of elements as kernels take it; no memory has more than fit.
fn whole(number: usize) -> i64 {
    number as i64
}

/// A size that kernels take in 32 bits.
fn small(number: usize) -> Result<i32> {
    i32::try_from(number).map_err(|_| too_large(number))
}

/// A number of blocks of a grid.
fn blocks(number: usize) -> Result<u32> {
    small(number).map(i32::cast_unsigned)
}

/// A grid of blocks of 256 threads with at least so many threads.
fn grid(threads: usize) -> Result<[u32; 3]> {
    Ok([blocks(threads.div_ceil(256))?, 1, 1])
}

fn too_large(number: usize) -> TensorError {
    TensorError::invalid(
        "cuda",
        format!("a size of {number} is more than kernels take"),
    )
}

/// Starts a kernel whose threads write 16 bytes each of a buffer; not for an empty one.
fn launch_packs(
    to: &GpuBuffer,
    module: &'static str,
    name: &'static str,
    args: &Args,
) -> Result<()> {
    if to.len() == 0 {
        return Ok(());
    }
    let format = to.format();
    let kernel = Kernel {
        module,
        format,
        name,
    };
    let shape = grid(to.len().div_ceil(pack(format)))?;
    to.card().launch(kernel, shape, 256, 0, args)
}

/// So many times the same value.
pub(crate) fn filled(
    device: &CudaDevice,
    count: usize,
    format: Format,
    value: f32,
) -> Result<GpuBuffer> {
    let out = device.buffer(count, format)?;
    if count > 0 {
        let kernel = Kernel {
            module: "elementwise",
            format,
            name: "fill",
        };
        let args = Args::new()
            .pointer(out.address())
            .float(value)
            .long(count as i64);
        let blocks = count.div_ceil(1024).min(1 << 16) as u32;
        device.launch(kernel, [blocks, 1, 1], 256, 0, &args)?;
    }
    Ok(out)
}
