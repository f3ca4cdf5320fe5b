//! Sums and extremes of rows on a GPU. How a row is cut depends on its length alone, so that every sum has one order.

use super::{blocks, filled, grid, small, whole};
use crate::cuda::launches::reduce::{ReduceJoin, ReduceParts, ReduceRows, ReduceShort};
use crate::cuda::tuned::{MANY_SUMS, SHORT_SUM, SUM_PART, SUM_PARTS};
use crate::cuda::{GpuBuffer, OnCard, Shape};
use crate::error::Result;
use crate::reduce::Reduction;

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
    let op = op.on_gpu();
    if count <= SHORT_SUM {
        let reduce = ReduceShort {
            to: (&out).into(),
            from: from.into(),
            rows: whole(rows),
            count: whole(count),
            op,
        };
        device.launch(format, Shape::row(blocks(rows.div_ceil(8))?, 256), reduce)?;
        return Ok(out);
    }
    let each = count.div_ceil(SUM_PARTS).max(SUM_PART).next_multiple_of(8);
    let parts = count.div_ceil(each);
    if parts == 1 || rows >= MANY_SUMS {
        let reduce = ReduceRows {
            to: (&out).into(),
            from: from.into(),
            count: whole(count),
            op,
        };
        device.launch(format, Shape::row(blocks(rows)?, 256), reduce)?;
        return Ok(out);
    }
    let sums = device.scratch(rows * parts * 2 * size_of::<f32>())?;
    let (count, each, splits) = (whole(count), whole(each), small(parts)?);
    let reduce = ReduceParts {
        parts: (&sums).into(),
        from: from.into(),
        count,
        each,
        splits,
        op,
    };
    device.launch(format, Shape::row(blocks(rows * parts)?, 256), reduce)?;
    let join = ReduceJoin {
        to: (&out).into(),
        parts: (&sums).into(),
        rows: whole(rows),
        count,
        each,
        splits,
        op,
    };
    device.launch(format, grid(rows)?, join)?;
    Ok(out)
}
