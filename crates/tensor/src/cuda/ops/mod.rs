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

use super::launch::FormattedLaunch;
use super::launches::elementwise::Fill;
use super::{CudaDevice, Format, GpuBuffer, OnCard, Shape};
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

/// Blocks of 256 threads with at least so many threads.
fn grid(threads: usize) -> Result<Shape> {
    Ok(Shape::row(blocks(threads.div_ceil(256))?, 256))
}

fn too_large(number: usize) -> TensorError {
    TensorError::invalid(
        "cuda",
        format!("a size of {number} is more than kernels take"),
    )
}

/// Starts a kernel whose threads write 16 bytes each of a buffer; not for an empty one.
fn launch_packs(to: &GpuBuffer, launch: impl FormattedLaunch) -> Result<()> {
    if to.len() == 0 {
        return Ok(());
    }
    let shape = grid(to.len().div_ceil(pack(to.format())))?;
    to.card().launch(to.format(), shape, launch)
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
        let fill = Fill {
            to: (&out).into(),
            value,
            total: whole(count),
        };
        let blocks = count.div_ceil(1024).min(1 << 16) as u32;
        device.launch(format, Shape::row(blocks, 256), fill)?;
    }
    Ok(out)
}
