//! Sums and extremes of rows on a GPU. How a row is cut depends on its length alone, so that every sum has one order.

use super::{filled, whole};
use crate::cuda::{Address, Args, GpuBuffer, Kernel, OnCard};
use crate::error::Result;
use crate::reduce::Reduction;

/// Longest row for which a warp is enough.
const SHORT: usize = 512;
/// Shortest part of a row that is worth a block of its own, if there are few rows, and most parts of a row.
const PART: usize = 1 << 14;
const PARTS: usize = 512;
/// So many rows keep a device busy without being cut.
const MANY: usize = 512;

impl Reduction {
    /// The number in the kernels.
    fn on_gpu(self) -> i32 {
        match self {
            Self::Sum => 0,
            Self::Mean => 1,
            Self::Std => 2,
            Self::Var => 3,
            Self::Norm => 4,
            Self::Min => 5,
            Self::Max => 6,
        }
    }
}

/// One value for each of `rows` rows of `count` neighbours.
pub(crate) fn rows(
    from: &GpuBuffer,
    rows: usize,
    count: usize,
    op: Reduction,
) -> Result<GpuBuffer> {
    let (device, format) = (from.card(), from.format());
    if count == 0 {
        let nothing = match op {
            Reduction::Sum | Reduction::Norm => 0.0,
            Reduction::Mean | Reduction::Std | Reduction::Var | Reduction::Min | Reduction::Max => {
                f32::NAN
            }
        };
        return filled(device, rows, format, nothing);
    }
    let out = device.buffer(rows, format)?;
    if rows == 0 {
        return Ok(out);
    }
    let kernel = |name| Kernel {
        module: "reduce",
        format,
        name,
    };
    let args = Args::new().pointer(out.address()).pointer(from.address());
    if count <= SHORT {
        let args = args.long(whole(rows)).long(whole(count)).int(op.on_gpu());
        let blocks = super::blocks(rows.div_ceil(8))?;
        device.launch(kernel("reduce_short"), [blocks, 1, 1], 256, 0, &args)?;
        return Ok(out);
    }
    let each = count.div_ceil(PARTS).max(PART).next_multiple_of(8);
    let parts = count.div_ceil(each);
    if parts == 1 || rows >= MANY {
        let args = args.long(whole(count)).int(op.on_gpu());
        let shape = [super::blocks(rows)?, 1, 1];
        device.launch(kernel("reduce_rows"), shape, 256, 0, &args)?;
        return Ok(out);
    }
    let sums = device.scratch(rows * parts * 2 * size_of::<f32>())?;
    let args = Args::new()
        .pointer(sums.address())
        .pointer(from.address())
        .long(whole(count))
        .long(whole(each))
        .int(super::small(parts)?)
        .int(op.on_gpu());
    let shape = [super::blocks(rows * parts)?, 1, 1];
    device.launch(kernel("reduce_parts"), shape, 256, 0, &args)?;
    let args = Args::new()
        .pointer(out.address())
        .pointer(sums.address())
        .long(whole(rows))
        .long(whole(count))
        .long(whole(each))
        .int(super::small(parts)?)
        .int(op.on_gpu());
    let shape = super::grid(rows)?;
    device.launch(kernel("reduce_join"), shape, 256, 0, &args)?;
    Ok(out)
}
