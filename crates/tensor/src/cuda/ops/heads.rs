//! Queries, keys and values on a GPU, ready for attention, and what follows it.

use super::{grid, pack, small, whole};
use crate::cuda::{Address, Args, Format, GpuBuffer, Kernel, OnCard};
use crate::error::Result;
use crate::gpu::{Behind, HeadAngles, HeadSizes, HeadTokens};
use crate::nn::MlpJoin;

/// Whether heads of a size are whole packs of a warp.
pub(crate) fn fits(format: Format, d: usize, apart: bool, row_width: usize) -> bool {
    let together = pack(format);
    let whole_packs = d.is_multiple_of(if apart { 2 * together } else { together });
    whole_packs && d > 0 && d / together <= 32 && row_width.is_multiple_of(together)
}

/// Puts a part of the tokens into queries, keys and, where there is a place for them, values. It [`fits`], and there are elements.
pub(crate) fn join_heads(
    ([q, k], v): ([&GpuBuffer; 2], Option<&GpuBuffer>),
    sizes: HeadSizes,
    part: HeadTokens<'_>,
    angles: Option<HeadAngles<'_>>,
) -> Result<()> {
    let (device, format) = (q.card(), q.format());
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
    let [queries, keys, values] = part.from.map(|(of, first)| of.slice_at(first).address());
    let norms = part
        .norms
        .map_or([0; 2], |norms| norms.map(|norm| norm.address()));
    let args = Args::new()
        .pointer(q.address())
        .pointer(k.address())
        .pointer(v.map_or(0, Address::address))
        .pointer(queries)
        .pointer(keys)
        .pointer(values)
        .pointer(norms[0])
        .pointer(norms[1])
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

/// Whether all widths are of whole packs.
pub(crate) fn joins((seen, left): (&GpuBuffer, usize), behind: Behind<'_>, kind: MlpJoin) -> bool {
    let sizes = [left, kind.width(behind.columns), behind.row, behind.first];
    let together = pack(seen.format());
    sizes.iter().all(|size| size.is_multiple_of(together))
}

/// Rows of `seen` with an activation of columns behind them; widths in elements. It [`joins`].
pub(crate) fn join_activated(
    (seen, left): (&GpuBuffer, usize),
    behind: Behind<'_>,
    kind: MlpJoin,
) -> Result<GpuBuffer> {
    let (device, format) = (seen.card(), seen.format());
    let right = kind.width(behind.columns);
    let number = match kind {
        MlpJoin::GeluTanh => 0,
        MlpJoin::GateFirst => 1,
        MlpJoin::GateLast => 2,
        MlpJoin::Done => 3,
    };
    let together = pack(format);
    let rows = seen.len() / left;
    let out = device.buffer(rows * (left + right), format)?;
    let total = out.len() / together;
    let mut args = Args::new()
        .pointer(out.address())
        .pointer(seen.address())
        .pointer(behind.wide.address())
        .long(whole(total));
    for size in [left, right, behind.row, behind.first] {
        args = args.int(small(size / together)?);
    }
    let kernel = Kernel {
        module: "heads",
        format,
        name: "join_activated",
    };
    device.launch(kernel, grid(total)?, 256, 0, &args.int(number))?;
    Ok(out)
}
