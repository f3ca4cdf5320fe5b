//! Queries, keys and values on a GPU, ready for attention, and what follows it.

use super::{grid, pack, small, whole};
use crate::cuda::launches::heads::{JoinActivated, JoinHeads, JoinHeadsKernel};
use crate::cuda::{Format, GpuBuffer, OnCard};
use crate::error::Result;
use crate::gpu::{HeadAngles, HeadSizes, HeadTokens, TrailingColumns};
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
    let kernel = match lanes {
        4 => JoinHeadsKernel::JoinHeads4,
        8 => JoinHeadsKernel::JoinHeads8,
        16 => JoinHeadsKernel::JoinHeads16,
        _ => JoinHeadsKernel::JoinHeads32,
    };
    let kinds = if v.is_some() { 3 } else { 2 };
    let rows = sizes.items * part.tokens * kinds * sizes.heads;
    let item_angles = match angles {
        Some(angles) if angles.each_item => sizes.tokens,
        _ => 0,
    };
    let [from_q, from_k, from_v] = part.from.map(|(of, first)| of.slice_at(first).into());
    let join = JoinHeads {
        kernel,
        q: q.into(),
        k: k.into(),
        v: v.into(),
        from_q,
        from_k,
        from_v,
        query: part.norms.map(|[query, _]| query).into(),
        key: part.norms.map(|[_, key]| key).into(),
        cosines: angles.map(|angles| angles.cos).into(),
        sines: angles.map(|angles| angles.sin).into(),
        rows: whole(rows),
        tokens: small(part.tokens)?,
        all: small(sizes.tokens)?,
        first: small(part.first)?,
        row_width: whole(part.row_width),
        heads: small(sizes.heads)?,
        d: small(sizes.d)?,
        item_angles: small(item_angles)?,
        eps: part.eps,
        apart: i32::from(angles.is_some_and(|angles| angles.apart)),
    };
    device.launch(format, grid(rows * lanes)?, join)
}

/// Whether all widths are of whole packs.
pub(crate) fn joins(
    (seen, left): (&GpuBuffer, usize),
    behind: TrailingColumns<'_>,
    kind: MlpJoin,
) -> bool {
    let sizes = [left, kind.width(behind.columns), behind.row, behind.first];
    let together = pack(seen.format());
    sizes.iter().all(|size| size.is_multiple_of(together))
}

/// Rows of `seen` with an activation of columns behind them; widths in elements. It [`joins`].
pub(crate) fn join_activated(
    (seen, left): (&GpuBuffer, usize),
    behind: TrailingColumns<'_>,
    kind: MlpJoin,
) -> Result<GpuBuffer> {
    let (device, format) = (seen.card(), seen.format());
    let right = kind.width(behind.columns);
    let kind = match kind {
        MlpJoin::GeluTanh => 0,
        MlpJoin::GateFirst => 1,
        MlpJoin::GateLast => 2,
        MlpJoin::Done => 3,
    };
    let together = pack(format);
    let rows = seen.len() / left;
    let out = device.buffer(rows * (left + right), format)?;
    let total = out.len() / together;
    let packs = |elements: usize| small(elements / together);
    let join = JoinActivated {
        to: (&out).into(),
        seen: seen.into(),
        wide: behind.wide.into(),
        total: whole(total),
        left: packs(left)?,
        right: packs(right)?,
        wide_row: packs(behind.row)?,
        first: packs(behind.first)?,
        kind,
    };
    device.launch(format, grid(total)?, join)?;
    Ok(out)
}
