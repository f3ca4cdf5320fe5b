//! What networks over pictures do besides convolutions, on a GPU.

use super::arrange::index_list;
use super::{blocks, grid, launch_packs, pack, small, whole};
use crate::cuda::launches::picture::{self as launches, DepthwiseKernel, PoolKernel};
use crate::cuda::tuned::{CHANNEL_PART, CHANNEL_PARTS};
use crate::cuda::{Format, GpuBuffer, OnCard, Shape};
use crate::error::Result;
use crate::gpu::AxisTaps;

/// The kernel for whole packs of channels or for single ones, and how many threads a pixel needs.
fn by_channels<K>(format: Format, channels: usize, packs: K, elements: K) -> (K, usize) {
    let together = pack(format);
    if channels.is_multiple_of(together) {
        (packs, channels / together)
    } else {
        (elements, channels)
    }
}

/// Means of squares of `size` by `size` pixels of (b, h, w, c).
pub(crate) fn avg_pool2d(
    from: &GpuBuffer,
    [b, h, w, c]: [usize; 4],
    size: usize,
) -> Result<GpuBuffer> {
    let (device, format) = (from.card(), from.format());
    let (oh, ow) = (h / size, w / size);
    let out = device.buffer(b * oh * ow * c, format)?;
    if out.len() == 0 {
        return Ok(out);
    }
    let [packs, elements] = [PoolKernel::PoolPacks, PoolKernel::PoolElements];
    let (kernel, groups) = by_channels(format, c, packs, elements);
    let total = b * oh * ow * groups;
    let pool = launches::Pool {
        kernel,
        to: (&out).into(),
        from: from.into(),
        total: whole(total),
        h: whole(h),
        w: whole(w),
        size: small(size)?,
        out_h: small(oh)?,
        out_w: small(ow)?,
        groups: small(groups)?,
    };
    device.launch(format, grid(total)?, pool)?;
    Ok(out)
}

/// A kernel of `side` by `side` for each channel of (b, h, w, c), which has elements. All have one format.
pub(crate) fn depthwise(
    from: &GpuBuffer,
    [b, h, w, c]: [usize; 4],
    (taps, side): (&GpuBuffer, usize),
    bias: Option<&GpuBuffer>,
) -> Result<GpuBuffer> {
    let (device, format) = (from.card(), from.format());
    let out = device.buffer(from.len(), format)?;
    let packs = DepthwiseKernel::DepthwisePacks;
    let (kernel, groups) = by_channels(format, c, packs, DepthwiseKernel::DepthwiseElements);
    let total = b * h * w * groups;
    let depthwise = launches::Depthwise {
        kernel,
        to: (&out).into(),
        from: from.into(),
        taps: taps.into(),
        bias: bias.into(),
        total: whole(total),
        h: small(h)?,
        w: small(w)?,
        side: small(side)?,
        groups: small(groups)?,
    };
    device.launch(format, grid(total)?, depthwise)?;
    Ok(out)
}

/// Negative values times the slope of their channel: one for each of `slopes.len()` channels. Writes to a new buffer, or
/// where the elements are.
pub(crate) fn negative_slopes(to: &GpuBuffer, from: &GpuBuffer, slopes: &GpuBuffer) -> Result<()> {
    let slopes = launches::Slopes {
        to: to.into(),
        from: from.into(),
        slope: slopes.into(),
        total: whole(from.len()),
        width: small(slopes.len())?,
    };
    launch_packs(to, slopes)
}

/// Attention among channels of (b, n, heads * d), which has elements; `factors` has one for each head. All have one format.
pub(crate) fn channel_attention(
    [q, k, v]: [&GpuBuffer; 3],
    [b, n, heads, d]: [usize; 4],
    factors: &GpuBuffer,
) -> Result<GpuBuffer> {
    let (device, format) = (q.card(), q.format());
    let out = device.buffer(q.len(), format)?;
    let each = n.div_ceil(CHANNEL_PARTS).max(CHANNEL_PART);
    let parts = n.div_ceil(each);
    let float = size_of::<f32>();
    let sums = device.scratch(b * heads * parts * (d * d + 2 * d) * float)?;
    let scores = device.scratch(b * heads * d * d * float)?;
    let (tiles, rows) = (d.div_ceil(16), b * heads * d);
    let (heads_before, tokens) = (b * heads, whole(n));
    let (heads, d, splits) = (small(heads)?, small(d)?, small(parts)?);
    let products = launches::ChannelProducts {
        sums: (&sums).into(),
        q: q.into(),
        k: k.into(),
        tokens,
        heads,
        d,
        each: whole(each),
        splits,
    };
    let shape = Shape::row(blocks(heads_before * parts * tiles * tiles)?, 256);
    device.launch(format, shape, products)?;
    let channel_scores = launches::ChannelScores {
        scores: (&scores).into(),
        sums: (&sums).into(),
        factors: factors.into(),
        rows: whole(rows),
        heads,
        d,
        splits,
    };
    let shape = Shape::row(blocks(rows.div_ceil(8))?, 256);
    device.launch(format, shape, channel_scores)?;
    let mix = launches::ChannelMix {
        to: (&out).into(),
        v: v.into(),
        scores: (&scores).into(),
        total: whole(out.len()),
        tokens,
        heads,
        d,
    };
    device.launch(format, grid(out.len())?, mix)?;
    Ok(out)
}

/// Planes of h by w to other sizes: rows first, then columns.
pub(crate) fn resample(
    from: &GpuBuffer,
    [planes, h, w]: [usize; 3],
    across: AxisTaps<'_>,
    down: AxisTaps<'_>,
) -> Result<GpuBuffer> {
    let (device, format) = (from.card(), from.format());
    let width = across.index.len() / across.per_output;
    let height = down.index.len() / down.per_output;
    let out = device.buffer(planes * height * width, format)?;
    if out.len() == 0 {
        return Ok(out);
    }
    let lists = |taps: AxisTaps<'_>| -> Result<_> {
        let index = index_list(device, taps.index)?;
        let weight = device.upload_values(taps.weight, Format::F32)?;
        Ok((index, weight, small(taps.per_output)?))
    };
    let rows = device.scratch(planes * h * width * size_of::<f32>())?;
    let (index, weight, taps) = lists(across)?;
    let total = planes * h * width;
    let resample = launches::ResampleAcross {
        to: (&rows).into(),
        from: from.into(),
        index: (&index).into(),
        weight: (&weight).into(),
        total: whole(total),
        w: whole(w),
        width: whole(width),
        taps,
    };
    device.launch(format, grid(total)?, resample)?;
    let (index, weight, taps) = lists(down)?;
    let resample = launches::ResampleDown {
        to: (&out).into(),
        from: (&rows).into(),
        index: (&index).into(),
        weight: (&weight).into(),
        total: whole(out.len()),
        h: whole(h),
        height: whole(height),
        width: whole(width),
        taps,
    };
    device.launch(format, grid(out.len())?, resample)?;
    Ok(out)
}

/// Means over windows that cover planes of h by w.
pub(crate) fn window_means(
    from: &GpuBuffer,
    [planes, h, w]: [usize; 3],
    [height, width]: [usize; 2],
) -> Result<GpuBuffer> {
    let (device, format) = (from.card(), from.format());
    let out = device.buffer(planes * height * width, format)?;
    if out.len() == 0 {
        return Ok(out);
    }
    let means = launches::WindowMeans {
        to: (&out).into(),
        from: from.into(),
        total: whole(out.len()),
        h: whole(h),
        w: whole(w),
        height: whole(height),
        width: whole(width),
    };
    device.launch(format, grid(out.len())?, means)?;
    Ok(out)
}
