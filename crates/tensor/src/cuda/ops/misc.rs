//! Gated activations and rotary positions on a GPU.

use super::{grid, pack, small, whole};
use crate::cuda::{Address, Args, GpuBuffer, Kernel, OnCard};
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
    let kernel = Kernel {
        module: "misc",
        format,
        name: if in_packs {
            "geglu_packs"
        } else {
            "geglu_elements"
        },
    };
    let total = out.len() / together;
    let args = Args::new()
        .pointer(out.address())
        .pointer(from.address())
        .long(whole(total))
        .int(small(half / together)?);
    device.launch(kernel, grid(total)?, 256, 0, &args)?;
    Ok(out)
}

/// Turns the pairs of (rows, heads, 2 * half), which has elements. The tables are (positions, half) and F32; rows take them
/// in turn.
pub(crate) fn rope(
    x: &GpuBuffer,
    [heads, half]: [usize; 2],
    cos: &GpuBuffer,
    sin: &GpuBuffer,
    pairs: RopePairs,
) -> Result<GpuBuffer> {
    let (device, format) = (x.card(), x.format());
    let out = device.buffer(x.len(), format)?;
    let together = pack(format);
    // Threads turn whole packs where those do not reach beyond a head (its half), else single pairs.
    let (name, total) = match pairs {
        RopePairs::Neighbours if (2 * half).is_multiple_of(together) => {
            ("rope_interleaved_packs", x.len() / together)
        }
        RopePairs::Neighbours => ("rope_interleaved_elements", x.len() / 2),
        RopePairs::Halves if half.is_multiple_of(together) => {
            ("rope_half_packs", x.len() / 2 / together)
        }
        RopePairs::Halves => ("rope_half_elements", x.len() / 2),
    };
    let kernel = Kernel {
        module: "misc",
        format,
        name,
    };
    let args = Args::new()
        .pointer(out.address())
        .pointer(x.address())
        .pointer(cos.address())
        .pointer(sin.address())
        .long(whole(total))
        .long(whole(cos.len() / half))
        .int(small(heads)?)
        .int(small(half)?);
    device.launch(kernel, grid(total)?, 256, 0, &args)?;
    Ok(out)
}
