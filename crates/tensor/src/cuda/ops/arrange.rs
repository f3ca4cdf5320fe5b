//! Moving elements on a GPU. The kernels move units of 2 to 16 bytes and know nothing of formats.

use super::{blocks, grid, pack, small, whole};
use crate::cuda::launches::arrange::{
    Copy, CopyKernel, Nearest, NearestKernel, Select, SelectKernel, Split, Transpose,
    TransposeKernel,
};
use crate::cuda::staging::Moment;
use crate::cuda::tuned;
use crate::cuda::{Address, CudaDevice, Format, GpuBuffer, OnCard, Pointer, Shape};
use crate::elements::strides;
use crate::error::{Result, TensorError};

/// Kernels for units of 2, 4, 8 and 16 bytes, then the same for more units than 32 bits count.
const COPIES: [CopyKernel; 8] = [
    CopyKernel::Copy2,
    CopyKernel::Copy4,
    CopyKernel::Copy8,
    CopyKernel::Copy16,
    CopyKernel::Copy2Wide,
    CopyKernel::Copy4Wide,
    CopyKernel::Copy8Wide,
    CopyKernel::Copy16Wide,
];

/// The same that select entries.
const SELECTIONS: [SelectKernel; 8] = [
    SelectKernel::Select2,
    SelectKernel::Select4,
    SelectKernel::Select8,
    SelectKernel::Select16,
    SelectKernel::Select2Wide,
    SelectKernel::Select4Wide,
    SelectKernel::Select8Wide,
    SelectKernel::Select16Wide,
];

/// Most dimensions that kernels walk over.
pub(super) const RANK: usize = 6;

/// Rows and columns of a tile.
const TILE: usize = 64;

/// One dimension of a walk over two tensors: its size, and a step in each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WalkDim {
    pub(super) size: usize,
    pub(super) a: isize,
    pub(super) b: isize,
}

/// The same walk with as few dimensions as possible, at least one.
pub(super) fn merged(dims: impl IntoIterator<Item = WalkDim>) -> Vec<WalkDim> {
    let mut found: Vec<WalkDim> = Vec::new();
    for dim in dims {
        let n = dim.size as isize;
        match found.last_mut() {
            _ if dim.size == 1 => {}
            Some(last) if last.a == dim.a * n && last.b == dim.b * n => {
                *last = WalkDim {
                    size: last.size * dim.size,
                    ..dim
                };
            }
            _ => found.push(dim),
        }
    }
    if found.is_empty() {
        found.push(WalkDim {
            size: 1,
            a: 1,
            b: 1,
        });
    }
    found
}

/// A walk as kernels take it: the rank, then sizes and steps of both tensors, aligned at the end.
pub(super) fn walk_words(dims: &[WalkDim]) -> [u64; 1 + 3 * RANK] {
    let mut words = [0; 1 + 3 * RANK];
    words[0] = dims.len() as u64;
    words[1..=RANK].fill(1);
    let first = 1 + RANK - dims.len();
    for (i, dim) in dims.iter().enumerate() {
        words[first + i] = dim.size as u64;
        words[first + RANK + i] = (dim.a as i64).cast_unsigned();
        words[first + 2 * RANK + i] = (dim.b as i64).cast_unsigned();
    }
    words
}

/// Number of positions of a walk.
pub(super) fn positions(dims: &[WalkDim]) -> usize {
    dims.iter().map(|dim| dim.size).product()
}

/// The kernel for so many units of a size.
fn by_unit<K: core::marker::Copy>(kernels: [K; 8], unit: usize, total: usize) -> K {
    let at = unit.trailing_zeros() as usize - 1;
    kernels[at + if total >> 31 == 0 { 0 } else { 4 }]
}

/// The largest unit in bytes, of at most 16, that divides all of these numbers of elements of a size.
fn unit_of(element: usize, numbers: impl IntoIterator<Item = u64>) -> usize {
    let all = numbers
        .into_iter()
        .fold(0, |all, n| all | (n * element as u64));
    1 << all.trailing_zeros().min(4)
}

/// Copies elements of a size in bytes between two places of a device: `a` are the steps in the target, `b` those in the
/// source, in elements.
pub(super) fn copy(
    device: &CudaDevice,
    element: usize,
    (to, from): (u64, u64),
    dims: impl IntoIterator<Item = WalkDim>,
) -> Result<()> {
    let dims = merged(dims);
    if positions(&dims) == 0 || transposed(device, element, (to, from), &dims)? {
        return Ok(());
    }
    if dims.len() > RANK {
        // No network has so many; one start for each entry of the first dimension will do.
        let first = dims[0];
        let moved = |address: u64, step: isize, i: usize| {
            address.wrapping_add_signed((i as i64) * (step as i64) * element as i64)
        };
        return (0..first.size).try_for_each(|i| {
            let places = (moved(to, first.a, i), moved(from, first.b, i));
            copy(device, element, places, dims[1..].iter().copied())
        });
    }
    let mut dims = dims;
    let last = dims.len() - 1;
    let mut unit = element;
    if (dims[last].a, dims[last].b) == (1, 1) {
        let outer = dims[..last].iter();
        let steps =
            outer.flat_map(|dim| [dim.a.unsigned_abs() as u64, dim.b.unsigned_abs() as u64]);
        let in_elements = unit_of(element, steps.chain([dims[last].size as u64]));
        unit = in_elements.min(unit_of(1, [to, from])).max(element);
        let together = unit / element;
        dims[last].size /= together;
        for dim in &mut dims[..last] {
            dim.a /= together as isize;
            dim.b /= together as isize;
        }
    }
    let total = positions(&dims);
    let copy = Copy {
        kernel: by_unit(COPIES, unit, total),
        to: Pointer::at(to),
        from: Pointer::at(from),
        total: whole(total),
        walk: walk_words(&dims),
    };
    device.launch_plain(Moment::InTurn, grid(total)?, copy)
}

/// The same through tiles, where the target runs along one dimension and the source along another. Says whether it was so.
fn transposed(
    device: &CudaDevice,
    element: usize,
    (to, from): (u64, u64),
    dims: &[WalkDim],
) -> Result<bool> {
    let (rows, others) = (dims[dims.len() - 1], &dims[..dims.len() - 1]);
    let Some(at) = others.iter().position(|dim| dim.b == 1) else {
        return Ok(false);
    };
    let columns = others[at];
    let mut rest = others.to_vec();
    rest.remove(at);
    let tiles = rows.size.div_ceil(TILE) * columns.size.div_ceil(TILE);
    let blocks = positions(&rest).saturating_mul(tiles);
    let worth = rows.a == 1
        && !matches!(rows.b, 0 | 1)
        && rows.size.min(columns.size) >= tuned::LEAST_TRANSPOSED
        && rest.len() <= RANK
        && blocks >> 31 == 0;
    if !worth {
        return Ok(false);
    }
    let transpose = Transpose {
        kernel: if element == 2 {
            TransposeKernel::Transpose2
        } else {
            TransposeKernel::Transpose4
        },
        to: Pointer::at(to),
        from: Pointer::at(from),
        rows: whole(rows.size),
        columns: whole(columns.size),
        row_step: rows.b as i64,
        column_step: columns.a as i64,
        walk: walk_words(&rest),
    };
    device.launch_plain(Moment::InTurn, Shape::row(blocks as u32, 256), transpose)?;
    Ok(true)
}

/// Reads elements of a walk one after another into a new buffer. `base` is where the walk begins.
pub(crate) fn gather(
    from: &GpuBuffer,
    walk: &[usize],
    steps: &[isize],
    base: isize,
) -> Result<GpuBuffer> {
    let out = from.card().buffer(walk.iter().product(), from.format())?;
    if out.len() == 0 {
        return Ok(out);
    }
    let own = strides(walk);
    let dims = walk.iter().zip(&own).zip(steps);
    let dims = dims.map(|((&size, &a), &b)| WalkDim { size, a, b });
    let size = from.format().size();
    let first = from
        .address()
        .wrapping_add_signed(base as i64 * size as i64);
    copy(from.card(), size, (out.address(), first), dims)?;
    Ok(out)
}

/// Writes a whole tensor into the box of another that begins `base` elements behind its start. The target has the steps.
pub(crate) fn paste(
    to: &GpuBuffer,
    steps: &[isize],
    base: usize,
    source: &GpuBuffer,
    shape: &[usize],
) -> Result<()> {
    let own = strides(shape);
    let dims = shape.iter().zip(steps).zip(&own);
    let dims = dims.map(|((&size, &a), &b)| WalkDim { size, a, b });
    let size = to.format().size();
    let first = to.address() + (base * size) as u64;
    copy(to.card(), size, (first, source.address()), dims)
}

/// Joins tensors along a dimension: of each, its elements and how many of them belong to one of the `outer` entries before
/// that dimension. All are of one device and format.
pub(crate) fn cat(
    device: &CudaDevice,
    format: Format,
    outer: usize,
    parts: &[(&GpuBuffer, usize)],
) -> Result<GpuBuffer> {
    let each: usize = parts.iter().map(|(_, size)| size).sum();
    let out = device.buffer(outer * each, format)?;
    let size = format.size();
    let mut at = 0;
    for &(part, own) in parts {
        let dims = [(outer, each, own), (own, 1, 1)].map(|(size, a, b)| WalkDim {
            size,
            a: a as isize,
            b: b as isize,
        });
        if own > 0 && outer > 0 {
            let to = out.address() + (at * size) as u64;
            copy(device, size, (to, part.address()), dims)?;
        }
        at += own;
    }
    Ok(out)
}

/// (outer, size, inner) to (outer, the given entries, inner). The entries were checked.
pub(crate) fn index_select(
    from: &GpuBuffer,
    (outer, size, inner): (usize, usize, usize),
    indices: &[usize],
) -> Result<GpuBuffer> {
    let device = from.card();
    let out = device.buffer(outer * indices.len() * inner, from.format())?;
    if out.len() == 0 {
        return Ok(out);
    }
    let ids = index_list(device, indices)?;
    let element = from.format().size();
    let unit = unit_of(element, [inner as u64]);
    let together = unit / element;
    let total = out.len() / together;
    let select = Select {
        kernel: by_unit(SELECTIONS, unit, total),
        to: (&out).into(),
        from: from.into(),
        ids: (&ids).into(),
        total: whole(total),
        picks: whole(indices.len()),
        size: whole(size),
        inner: whole(inner / together),
    };
    device.launch_plain(Moment::InTurn, grid(total)?, select)?;
    Ok(out)
}

/// Indices on a device, as integers of 32 bits in a buffer of so many floats.
pub(super) fn index_list(device: &CudaDevice, indices: &[usize]) -> Result<GpuBuffer> {
    let bits = indices.iter().map(|&i| {
        let bits = u32::try_from(i).map_err(|_| TensorError::IndexOutOfRange {
            op: "index",
            index: i,
            size: u32::MAX as usize,
        })?;
        Ok(f32::from_bits(bits))
    });
    device.upload_values(&bits.collect::<Result<Vec<_>>>()?, Format::F32)
}

/// (b, h, w, c) to another height and width: every target takes the source at `floor(i * in / out)`. No size is 0.
pub(crate) fn upsample_nearest(
    from: &GpuBuffer,
    [b, h, w, c]: [usize; 4],
    [height, width]: [usize; 2],
) -> Result<GpuBuffer> {
    let device = from.card();
    let out = device.buffer(b * height * width * c, from.format())?;
    let element = from.format().size();
    let unit = unit_of(element, [c as u64]);
    let units = c * element / unit;
    let kernel = match unit {
        2 => NearestKernel::Nearest2,
        4 => NearestKernel::Nearest4,
        8 => NearestKernel::Nearest8,
        _ => NearestKernel::Nearest16,
    };
    // One row of blocks for each row of the result; more rows than a grid has are taken in turns.
    let (rows, across) = (b * height, width * units);
    let blocks = blocks(across.div_ceil(256))?;
    let nearest = Nearest {
        kernel,
        to: (&out).into(),
        from: from.into(),
        rows: whole(rows),
        h: small(h)?,
        w: small(w)?,
        height: small(height)?,
        width: small(width)?,
        c: small(units)?,
    };
    let shape = Shape::new([blocks, rows.min(0xffff) as u32, 1], 256);
    device.launch_plain(Moment::InTurn, shape, nearest)?;
    Ok(out)
}

/// Rows cut into so many parts of equal width, each a tensor of its own. None where they have to be cut one by one.
pub(crate) fn split_rows(
    from: &GpuBuffer,
    rows: usize,
    parts: usize,
) -> Result<Option<Vec<GpuBuffer>>> {
    const MOST: usize = 8;
    let (device, together) = (from.card(), pack(from.format()));
    let width = from.len() / rows.max(1) / parts.max(1);
    let fits = from.len() > 0 && (1..=MOST).contains(&parts) && width.is_multiple_of(together);
    if !fits {
        return Ok(None);
    }
    let made = (0..parts).map(|_| device.buffer(rows * width, from.format()));
    let made = made.collect::<Result<Vec<_>>>()?;
    let mut to = [0; MOST];
    for (target, part) in to.iter_mut().zip(&made) {
        *target = part.address();
    }
    let total = from.len() / together;
    let split = Split {
        from: from.into(),
        total: whole(total),
        parts: small(parts)?,
        width: small(width / together)?,
        to,
    };
    device.launch_plain(Moment::InTurn, grid(total)?, split)?;
    Ok(Some(made))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dim(size: usize, a: isize, b: isize) -> WalkDim {
        WalkDim { size, a, b }
    }

    #[test]
    fn neighbours_that_step_together_are_one_dimension() {
        let all = [dim(2, 12, 12), dim(3, 4, 4), dim(1, 9, 9), dim(4, 1, 1)];
        assert_eq!(merged(all), [dim(24, 1, 1)]);
        let turned = [dim(2, 12, 12), dim(4, 3, 1), dim(3, 1, 4)];
        assert_eq!(merged(turned), turned);
        assert_eq!(merged([]), [dim(1, 1, 1)]);
        assert_eq!(merged([dim(5, 3, 0), dim(3, 1, 0)]), [dim(15, 1, 0)]);
    }

    #[test]
    fn walks_are_aligned_at_the_end() {
        let words = walk_words(&[dim(7, 3, -1), dim(3, 1, 5)]);
        assert_eq!(words[..7], [2, 1, 1, 1, 1, 7, 3]);
        assert_eq!(words[11..13], [3, 1]);
        assert_eq!(words[17..], [u64::MAX, 5]);
    }

    #[test]
    fn units_divide_everything() {
        assert_eq!(unit_of(2, [8, 64]), 16);
        assert_eq!(unit_of(2, [4, 64]), 8);
        assert_eq!(unit_of(4, [3]), 4);
        assert_eq!(unit_of(1, [0x100, 0x30c]), 4);
        assert_eq!(unit_of(4, [0, 4]), 16);
    }
}
