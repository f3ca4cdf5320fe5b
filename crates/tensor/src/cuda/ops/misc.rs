//! Gated activations and rotary positions on a GPU.

use super::{grid, pack, small, whole};
use crate::cuda::launches::misc::{self as launches, GegluKernel, RopeKernel};
use crate::cuda::{GpuBuffer, OnCard};
use crate::error::Result;
use crate::gpu::RopePairs;

/// The first half of each row times the GELU of the second; rows of twice `half`.
pub(crate) fn geglu(from: &GpuBuffer, half: usize) -> Result<GpuBuffer> {
    let (device, format) = (from.card(), from.format());
    let out = device.buffer(from.len() / 2, format)?;
    if out.len() == 0 {
        return Ok(out);
    }
    let in_packs = half.is_multiple_of(pack(format));
    let together = if in_packs { pack(format) } else { 1 };
    let total = out.len() / together;
    let geglu = launches::Geglu {
        kernel: if in_packs {
            GegluKernel::GegluPacks
        } else {
            GegluKernel::GegluElements
        },
        to: (&out).into(),
        from: from.into(),
        total: whole(total),
        groups: small(half / together)?,
    };
    device.launch(format, grid(total)?, geglu)?;
    Ok(out)
}

/// Turns the pairs of (rows, heads, 2 * half), which has elements. The tables are (positions, half) and F32; rows take them
/// in turn.
pub(crate) fn rope(
    x: &GpuBuffer,
    [heads, half]: [usize; 2],
    [cos, sin]: [&GpuBuffer; 2],
    pairs: RopePairs,
) -> Result<GpuBuffer> {
    let (device, format) = (x.card(), x.format());
    let out = device.buffer(x.len(), format)?;
    let together = pack(format);
    // Threads turn whole packs where those do not reach beyond a head (its half), else single pairs.
    let (kernel, total) = match pairs {
        RopePairs::Neighbours if (2 * half).is_multiple_of(together) => {
            (RopeKernel::RopeInterleavedPacks, x.len() / together)
        }
        RopePairs::Neighbours => (RopeKernel::RopeInterleavedElements, x.len() / 2),
        RopePairs::Halves if half.is_multiple_of(together) => {
            (RopeKernel::RopeHalfPacks, x.len() / 2 / together)
        }
        RopePairs::Halves => (RopeKernel::RopeHalfElements, x.len() / 2),
    };
    let rope = launches::Rope {
        kernel,
        to: (&out).into(),
        from: x.into(),
        cosines: cos.into(),
        sines: sin.into(),
        total: whole(total),
        positions: whole(cos.len() / half),
        heads: small(heads)?,
        half: small(half)?,
    };
    device.launch(format, grid(total)?, rope)?;
    Ok(out)
}
