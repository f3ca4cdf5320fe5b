//! Queries, keys and values on a GPU, ready for attention, and what follows it.

use super::{grid, pack, small, whole};
use crate::cuda::{Args, CudaBuffer, Format, Kernel};
use crate::error::Result;

/// Sizes of queries, keys and values together: (items, tokens, heads * d) each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadSizes {
    pub(crate) items: usize,
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) d: usize,
}

/// Tables of angles, F32, one for all items or one for each; and whether pairs are half a head apart.
#[derive(Clone, Copy)]
pub(crate) struct HeadAngles<'a> {
    pub(crate) cos: &'a CudaBuffer,
    pub(crate) sin: &'a CudaBuffer,
    pub(crate) each_item: bool,
    pub(crate) apart: bool,
}

/// A part of the tokens: addresses of queries, keys and values, each in rows of so many elements, where its first token goes,
/// and addresses of the norms' weights or 0.
#[derive(Clone, Copy)]
pub(crate) struct HeadRows {
    pub(crate) from: [u64; 3],
    pub(crate) row_width: usize,
    pub(crate) tokens: usize,
    pub(crate) first: usize,
    pub(crate) query: u64,
    pub(crate) key: u64,
    pub(crate) eps: f32,
}

/// Whether heads of a size are whole packs of a warp.
pub(crate) fn fits(format: Format, d: usize, apart: bool, row_width: usize) -> bool {
    let together = pack(format);
    let whole_packs = d.is_multiple_of(if apart { 2 * together } else { together });
    whole_packs && d > 0 && d / together <= 32 && row_width.is_multiple_of(together)
}

/// Puts a part of the tokens into queries, keys and, where there is a place for them, values. It [`fits`], and there are elements.
pub(crate) fn join_heads(
    ([q, k], v): ([&CudaBuffer; 2], Option<&CudaBuffer>),
    sizes: HeadSizes,
    part: HeadRows,
    angles: Option<HeadAngles<'_>>,
) -> Result<()> {
    let (device, format) = (q.device(), q.format());
    let lanes = (sizes.d / pack(format)).next_power_of_two().max(4);
    let kernel = Kernel {
        module: "heads",
        format,
        name: match lanes {
            4 => "join_heads_4",
            8 => "join_heads_8",
            16 => "join_heads_16",
            _ => "join_heads_32",
        },
    };
    let kinds = if v.is_some() { 3 } else { 2 };
    let rows = sizes.items * part.tokens * kinds * sizes.heads;
    let item_angles = match angles {
        Some(angles) if angles.each_item => sizes.tokens,
        _ => 0,
    };
    let args = Args::new()
        .pointer(q.address())
        .pointer(k.address())
        .pointer(v.map_or(0, CudaBuffer::address))
        .pointer(part.from[0])
        .pointer(part.from[1])
        .pointer(part.from[2])
        .pointer(part.query)
        .pointer(part.key)
        .pointer(angles.map_or(0, |angles| angles.cos.address()))
        .pointer(angles.map_or(0, |angles| angles.sin.address()))
        .long(whole(rows))
        .int(small(part.tokens)?)
        .int(small(sizes.tokens)?)
        .int(small(part.first)?)
        .long(whole(part.row_width))
        .int(small(sizes.heads)?)
        .int(small(sizes.d)?)
        .int(small(item_angles)?)
        .float(part.eps)
        .int(i32::from(angles.is_some_and(|angles| angles.apart)));
    device.launch(kernel, grid(rows * lanes)?, 256, 0, &args)
}

/// Rows of `seen` with an activation of the columns of `wide` from `first` on behind them; widths in elements, all of whole
/// packs. `kind` is as in the kernel.
pub(crate) fn join_activated(
    (seen, left): (&CudaBuffer, usize),
    (wide, wide_row, first): (&CudaBuffer, usize, usize),
    right: usize,
    kind: i32,
) -> Result<CudaBuffer> {
    let (device, format) = (seen.device(), seen.format());
    let together = pack(format);
    let rows = seen.len() / left;
    let out = device.buffer(rows * (left + right), format)?;
    let total = out.len() / together;
    let mut args = Args::new()
        .pointer(out.address())
        .pointer(seen.address())
        .pointer(wide.address())
        .long(whole(total));
    for number in [left, right, wide_row, first] {
        args = args.int(small(number / together)?);
    }
    let kernel = Kernel {
        module: "heads",
        format,
        name: "join_activated",
    };
    device.launch(kernel, grid(total)?, 256, 0, &args.int(kind))?;
    Ok(out)
}
