//! What networks over pictures do besides convolutions, on a GPU.

use super::arrange::index_list;
use super::{blocks, grid, launch_packs, pack, small, whole};
use crate::cuda::{Address, Args, Format, GpuBuffer, Kernel, OnCard};
use crate::error::Result;
use crate::gpu::AxisTaps;

/// The kernel for whole packs of channels or for single ones, and how many threads a pixel needs.
fn by_channels(
    format: Format,
    channels: usize,
    packs: &'static str,
    elements: &'static str,
) -> (Kernel, usize) {
    let together = pack(format);
    let whole_packs = channels.is_multiple_of(together);
    let kernel = Kernel {
        module: "picture",
        format,
        name: if whole_packs { packs } else { elements },
    };
    let groups = if whole_packs {
        channels / together
    } else {
        channels
    };
    (kernel, groups)
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
    let (kernel, groups) = by_channels(format, c, "pool_packs", "pool_elements");
    let total = b * oh * ow * groups;
    let mut args = Args::new()
        .pointer(out.address())
        .pointer(from.address())
        .long(whole(total))
        .long(whole(h))
        .long(whole(w));
    for number in [size, oh, ow, groups] {
        args = args.int(small(number)?);
    }
    device.launch(kernel, grid(total)?, 256, 0, &args)?;
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
    let (kernel, groups) = by_channels(format, c, "depthwise_packs", "depthwise_elements");
    let total = b * h * w * groups;
    let mut args = Args::new()
        .pointer(out.address())
        .pointer(from.address())
        .pointer(taps.address())
        .pointer(bias.map_or(0, Address::address))
        .long(whole(total));
    for number in [h, w, side, groups] {
        args = args.int(small(number)?);
    }
    device.launch(kernel, grid(total)?, 256, 0, &args)?;
    Ok(out)
}

/// Negative values times the slope of their channel: one for each of `slopes.len()` channels. Writes to a new buffer, or
/// where the elements are.
pub(crate) fn negative_slopes(to: &GpuBuffer, from: &GpuBuffer, slopes: &GpuBuffer) -> Result<()> {
    let args = Args::new()
        .pointer(to.address())
        .pointer(from.address())
        .pointer(slopes.address())
        .long(whole(from.len()))
        .int(small(slopes.len())?);
    launch_packs(to, "picture", "slopes", &args)
}

/// Attention among channels of (b, n, heads * d), which has elements; `factors` has one for each head. All have one format.
pub(crate) fn channel_attention(
    [q, k, v]: [&GpuBuffer; 3],
    [b, n, heads, d]: [usize; 4],
    factors: &GpuBuffer,
) -> Result<GpuBuffer> {
    /// Tokens of a part of the sums, and most parts.
    const EACH: usize = 1024;
    const PARTS: usize = 64;
    let (device, format) = (q.card(), q.format());
    let out = device.buffer(q.len(), format)?;
    let each = n.div_ceil(PARTS).max(EACH);
    let parts = n.div_ceil(each);
    let float = size_of::<f32>();
    let sums = device.scratch(b * heads * parts * (d * d + 2 * d) * float)?;
    let scores = device.scratch(b * heads * d * d * float)?;
    let kernel = |name| Kernel {
        module: "picture",
        format,
        name,
    };
    let tiles = d.div_ceil(16);
    let args = Args::new()
        .pointer(sums.address())
        .pointer(q.address())
        .pointer(k.address())
        .long(whole(n))
        .int(small(heads)?)
        .int(small(d)?)
        .long(whole(each))
        .int(small(parts)?);
    let shape = [blocks(b * heads * parts * tiles * tiles)?, 1, 1];
    device.launch(kernel("channel_products"), shape, 256, 0, &args)?;
    let rows = b * heads * d;
    let args = Args::new()
        .pointer(scores.address())
        .pointer(sums.address())
        .pointer(factors.address())
        .long(whole(rows))
        .int(small(heads)?)
        .int(small(d)?)
        .int(small(parts)?);
    let shape = [blocks(rows.div_ceil(8))?, 1, 1];
    device.launch(kernel("channel_scores"), shape, 256, 0, &args)?;
    let args = Args::new()
        .pointer(out.address())
        .pointer(v.address())
        .pointer(scores.address())
        .long(whole(out.len()))
        .long(whole(n))
        .int(small(heads)?)
        .int(small(d)?);
    device.launch(kernel("channel_mix"), grid(out.len())?, 256, 0, &args)?;
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
    let kernel = |name| Kernel {
        module: "picture",
        format,
        name,
    };
    let rows = device.scratch(planes * h * width * size_of::<f32>())?;
    let (index, weight, taps) = lists(across)?;
    let total = planes * h * width;
    let args = Args::new()
        .pointer(rows.address())
        .pointer(from.address())
        .pointer(index.address())
        .pointer(weight.address())
        .long(whole(total))
        .long(whole(w))
        .long(whole(width))
        .int(taps);
    device.launch(kernel("resample_across"), grid(total)?, 256, 0, &args)?;
    let (index, weight, taps) = lists(down)?;
    let args = Args::new()
        .pointer(out.address())
        .pointer(rows.address())
        .pointer(index.address())
        .pointer(weight.address())
        .long(whole(out.len()))
        .long(whole(h))
        .long(whole(height))
        .long(whole(width))
        .int(taps);
    device.launch(kernel("resample_down"), grid(out.len())?, 256, 0, &args)?;
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
    let mut args = Args::new()
        .pointer(out.address())
        .pointer(from.address())
        .long(whole(out.len()));
    for size in [h, w, height, width] {
        args = args.long(whole(size));
    }
    let kernel = Kernel {
        module: "picture",
        format,
        name: "window_means",
    };
    device.launch(kernel, grid(out.len())?, 256, 0, &args)?;
    Ok(out)
}
