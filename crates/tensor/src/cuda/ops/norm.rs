//! Normalisation and softmax of rows on a GPU.

use super::product::{ChannelSums, UNIT};
use super::{blocks, pack, small};
use crate::cuda::launches::NormRows;
use crate::cuda::launches::norm::{
    self as launches, GroupApplyKernel, GroupWholeKernel, RowNormKernel, SoftmaxKernel,
};
use crate::cuda::launches::norm_bytes::{NormedBytes, NormedBytesKernel};
use crate::cuda::launches::norm_cluster::{Group, GroupKernel, GroupKnown};
use crate::cuda::tuned;
use crate::cuda::{Address, Format, GpuBuffer, OnCard, Pointer, Shape, work};
use crate::error::Result;
use crate::gpu::{GroupNormSpec, RowNorm, RowNormKind};
use crate::nn::Act;

/// Whether kernels may read and write 16 bytes at a time: rows have whole ones, and all addresses are multiples.
pub(super) fn in_vectors(width: usize, format: Format, addresses: &[u64]) -> bool {
    width.is_multiple_of(pack(format)) && addresses.iter().all(|at| at.is_multiple_of(16))
}

/// The number that kernels know an activation by.
fn act_number(act: Act) -> i32 {
    match act {
        Act::None => 0,
        Act::Silu => 1,
        Act::Gelu => 2,
        Act::GeluTanh => 3,
        Act::QuickGelu => 4,
        Act::Relu => 5,
        Act::Leaky => 6,
    }
}

/// Threads that a block for two passes may have, of which each has a vector of a pixel: shared memory has room for two floats for each of their elements.
const MOST_VECTORS: usize = 512;

/// Group norm of `x` into `out`, which may be `x`. There is an element.
pub(crate) fn group_norm(x: &GpuBuffer, out: &GpuBuffer, of: GroupNormSpec<'_>) -> Result<()> {
    let format = x.format();
    let vectors = of.channels / pack(format);
    let most = if format == Format::F32 {
        2 * MOST_VECTORS
    } else {
        MOST_VECTORS
    };
    let (weight, bias) = (of.weight.address(), of.bias.address());
    let addresses = [x.address(), out.address(), weight, bias];
    let fits = in_vectors(of.channels, format, &addresses)
        && vectors <= most
        && u16::try_from(of.items).is_ok();
    if !fits {
        return group_norm_any(x, out, of);
    }
    if group_norm_known(x, None, out, of)?
        || group_norm_in_clusters(x, None, out, of)?
        || group_norm_whole(x, out, of)?
    {
        return Ok(());
    }
    group_norm_in_passes(x, None, out, of)
}

/// Sums of groups in one pass, and the norm in another. The last channels may be in another tensor of as many pixels. Rows are whole vectors.
fn group_norm_in_passes(
    x: &GpuBuffer,
    behind: Option<&GpuBuffer>,
    out: &GpuBuffer,
    of: GroupNormSpec<'_>,
) -> Result<()> {
    let (device, format) = (x.card(), x.format());
    let vectors = of.channels / pack(format);
    let early = behind.map_or(of.channels, |_| x.len() / (of.items * of.pixels));
    let lines = (256 / vectors).max(1);
    let threads = (vectors * lines) as u32;
    // As many blocks as run at once, but at least four vectors for every thread.
    let many = !device.hopper() || out.len() * format.size() > tuned::MANY_BYTES;
    let [of_many, of_few] = tuned::PASS_BLOCKS;
    let each = if many { of_many } else { of_few };
    let wanted = (each * device.multiprocessors() as usize / of.items).max(1);
    let per_block = of.pixels.div_ceil(wanted).max(4 * lines);
    let parts = of.pixels.div_ceil(per_block);
    let grid = [blocks(parts)?, of.items as u32, 1];
    let groups = of.items * of.groups;
    let (early, pixels, channels) = (small(early)?, small(of.pixels)?, small(of.channels)?);
    let (own_groups, per_block) = (small(of.groups)?, small(per_block)?);
    // Two sums for each block and group, the same joined, and the value from which differences are taken.
    let scratch = device.scratch(groups * (8 * parts + 8 + 4))?;
    let sums = scratch.address();
    let joined = sums + 8 * (groups * parts) as u64;
    let origins = joined + 8 * groups as u64;
    let group_sums = launches::GroupSums {
        x: x.into(),
        x1: behind.into(),
        early,
        sums: Pointer::at(sums),
        origins: Pointer::at(origins),
        pixels,
        channels,
        groups: own_groups,
        per_block,
    };
    let shape = Shape::new(grid, threads);
    let shared = threads * pack(format) as u32 * 8;
    device.launch(format, shape.with_shared(shared), group_sums)?;
    let (sums, parts) = if parts > tuned::JOINED_SUMS {
        let join = launches::GroupJoin {
            sums: Pointer::at(sums),
            joined: Pointer::at(joined),
            count: small(groups)?,
            blocks: small(parts)?,
        };
        device.launch(format, Shape::row(blocks(groups.div_ceil(8))?, 256), join)?;
        (joined, 1)
    } else {
        (sums, parts)
    };
    let apply = launches::GroupApply {
        kernel: match of.act {
            Act::None => GroupApplyKernel::GroupApplyNone,
            Act::Silu => GroupApplyKernel::GroupApplySilu,
            Act::Gelu | Act::GeluTanh | Act::QuickGelu | Act::Relu | Act::Leaky => {
                GroupApplyKernel::GroupApplyAct
            }
        },
        x: x.into(),
        x1: behind.into(),
        early,
        sums: Pointer::at(sums),
        origins: Pointer::at(origins),
        weight: of.weight.into(),
        bias: of.bias.into(),
        y: out.into(),
        pixels,
        channels,
        groups: own_groups,
        per_block,
        blocks: small(parts)?,
        eps: of.eps,
        act: act_number(of.act),
    };
    device.launch(format, shape.with_shared(8 * of.groups as u32), apply)
}

/// Of `group_known` in norm_cluster.cu: threads of a block, and most of them, and vectors of one.
const KNOWN_THREADS: usize = 256;
const MOST_KNOWN_THREADS: usize = 384;
const KNOWN_VECTORS: usize = 8;

/// The same where the products that made the channels left sums of them; `false` where they did not.
fn group_norm_known(
    x: &GpuBuffer,
    behind: Option<&GpuBuffer>,
    out: &GpuBuffer,
    of: GroupNormSpec<'_>,
) -> Result<bool> {
    let (device, format) = (x.card(), x.format());
    let Some(first) = ChannelSums::of(x) else {
        return Ok(false);
    };
    let second = match behind.map(ChannelSums::of) {
        Some(Some(second)) => Some(second),
        Some(None) => return Ok(false),
        None => None,
    };
    let late = second.map_or(0, |second| second.channels);
    let width = of.channels / of.groups;
    let fits = first.channels + late == of.channels
        && width.is_multiple_of(UNIT)
        && of.pixels.is_multiple_of(128)
        && format != Format::F32
        && matches!(of.act, Act::None | Act::Silu);
    let vectors = of.channels / pack(format);
    let lines = (KNOWN_THREADS / vectors).max(1);
    let threads = (vectors * lines).next_multiple_of(32);
    let parts =
        [Some(first), second].map(|sums| sums.map_or(0, |sums| of.pixels / 128 * sums.shares));
    if !fits || threads > MOST_KNOWN_THREADS {
        return Ok(false);
    }
    // As many pixels for a thread as it has room for, where there are enough.
    let wanted = tuned::KNOWN_BLOCKS * device.multiprocessors() as usize;
    let each = (of.items * of.pixels).div_ceil(wanted * lines);
    let per_block = lines * each.clamp(1, KNOWN_VECTORS);
    let known = GroupKnown {
        x: x.into(),
        x1: behind.into(),
        early: small(first.channels)?,
        known: first.numbers.into(),
        parts: small(parts[0])?,
        known1: second.map(|second| second.numbers).into(),
        parts1: small(parts[1])?,
        weight: of.weight.into(),
        bias: of.bias.into(),
        y: out.into(),
        pixels: small(of.pixels)?,
        channels: small(of.channels)?,
        width: small(width)?,
        per_block: small(per_block)?,
        eps: of.eps,
        act: act_number(of.act),
    };
    let grid = [blocks(of.pixels.div_ceil(per_block))?, of.items as u32, 1];
    work(0.0, (2 * out.len() * format.size()) as f64);
    let shape = Shape::new(grid, threads as u32).with_shared(8 * of.groups as u32);
    device.launch(format, shape, known)?;
    Ok(true)
}

/// Threads of a block of `norm_cluster.cu`, and most vectors of a pixel, and groups, that one has.
const CLUSTER_THREADS: usize = 512;
const CLUSTER_COLUMNS: usize = 32;
const CLUSTER_GROUPS: usize = 8;
/// Vectors that a thread can keep in shared memory.
const CLUSTER_VECTORS: usize = 24;
/// Shared memory of a multiprocessor for blocks, each of which the driver takes a part of.
const CLUSTER_SHARED: usize = 227 * 1024;

/// How `norm_cluster.cu` shares out a tensor: groups that a cluster makes, its blocks, and what follows from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Clusters {
    groups: usize,
    /// Vectors of a pixel.
    columns: usize,
    size: usize,
    kernel: GroupKernel,
    shared: usize,
    rounds: usize,
}

impl Clusters {
    /// The form that needs the fewest rounds of all multiprocessors, keeps them at work, has small clusters, which begin sooner, and reads much of a pixel at once.
    fn find(of: &GroupNormSpec<'_>, multiprocessors: usize) -> Option<Self> {
        let width = of.channels / of.groups;
        // Groups that have whole vectors together.
        let least = (1..=CLUSTER_GROUPS).find(|n| (n * width).is_multiple_of(8))?;
        let mut best: Option<((usize, bool), Self)> = None;
        for &(size, kernel, at_once) in &tuned::NORM_CLUSTERS {
            for groups in [4 * least, 2 * least, least] {
                let columns = groups * width / 8;
                let many = groups > CLUSTER_GROUPS || columns > CLUSTER_COLUMNS;
                if many || !of.groups.is_multiple_of(groups) {
                    continue;
                }
                let lines = CLUSTER_THREADS / columns;
                let vectors = of.pixels.div_ceil(size).div_ceil(lines);
                if vectors > CLUSTER_VECTORS {
                    continue;
                }
                let sums = 2 * CLUSTER_COLUMNS + 2 * CLUSTER_GROUPS + 2 * columns * lines;
                let shared = 8 * sums + vectors * CLUSTER_THREADS * 16;
                let clusters = of.items * of.groups / groups;
                let resident = (CLUSTER_SHARED / (shared + 1024)).clamp(1, 2);
                let at_once =
                    (at_once * multiprocessors / tuned::H200_MULTIPROCESSORS).max(1) * resident;
                let rounds = clusters.div_ceil(at_once);
                let blocks = clusters * size;
                // Little work is shared by fewer.
                let busy = tuned::clusters_are_busy(blocks, multiprocessors, size, vectors)
                    || (groups == least && of.pixels <= 2 * lines * size);
                let found = Self {
                    groups,
                    columns,
                    size,
                    kernel,
                    shared,
                    rounds,
                };
                if best.is_none_or(|(least, _)| (rounds, !busy) < least) {
                    best = Some(((rounds, !busy), found));
                }
            }
        }
        best.map(|(_, found)| found)
    }
}

/// The same in one kernel whose blocks meet in clusters, where those can keep the tensor; `false` where they cannot. The last channels may be in another
/// tensor of as many pixels.
fn group_norm_in_clusters(
    x: &GpuBuffer,
    behind: Option<&GpuBuffer>,
    out: &GpuBuffer,
    of: GroupNormSpec<'_>,
) -> Result<bool> {
    let (device, format) = (x.card(), x.format());
    let width = of.channels / of.groups;
    let plain = matches!(of.act, Act::None | Act::Silu);
    if !device.hopper() || format == Format::F32 || !plain || width < 8 {
        return Ok(false);
    }
    let clusters = Clusters::find(&of, device.multiprocessors() as usize);
    // What needs several rounds is read faster in two passes.
    let Some(clusters) = clusters.filter(|clusters| clusters.rounds == 1) else {
        return Ok(false);
    };
    let early = behind.map_or(of.channels, |_| x.len() / (of.items * of.pixels));
    let group = Group {
        kernel: clusters.kernel,
        x: x.into(),
        x1: behind.into(),
        early: small(early)?,
        weight: of.weight.into(),
        bias: of.bias.into(),
        y: out.into(),
        pixels: small(of.pixels)?,
        channels: small(of.channels)?,
        width: small(width)?,
        columns: small(clusters.columns)?,
        per_block: small(of.pixels.div_ceil(clusters.size))?,
        eps: of.eps,
        act: act_number(of.act),
    };
    let slices = of.groups / clusters.groups;
    let grid = [blocks(slices * clusters.size)?, of.items as u32, 1];
    work(0.0, (2 * out.len() * format.size()) as f64);
    let shape = Shape::new(grid, CLUSTER_THREADS as u32).with_shared(clusters.shared as u32);
    device.launch(format, shape, group)?;
    Ok(true)
}

/// Group norm of the channels of `x` and of those of `behind` after them, without a copy of both; none where no kernel does that. There is an element.
pub(crate) fn group_norm_of_two(
    x: &GpuBuffer,
    behind: &GpuBuffer,
    of: GroupNormSpec<'_>,
) -> Result<Option<GpuBuffer>> {
    let format = x.format();
    let early = x.len() / (of.items * of.pixels);
    let addresses = [
        x.address(),
        behind.address(),
        of.weight.address(),
        of.bias.address(),
    ];
    let fits = x.card().hopper()
        && format != Format::F32
        && behind.format() == format
        && early.is_multiple_of(pack(format))
        && in_vectors(of.channels, format, &addresses)
        && of.channels / pack(format) <= MOST_VECTORS
        && u16::try_from(of.items).is_ok();
    if !fits {
        return Ok(None);
    }
    let out = x
        .card()
        .buffer(of.items * of.pixels * of.channels, format)?;
    if !group_norm_known(x, Some(behind), &out, of)?
        && !group_norm_in_clusters(x, Some(behind), &out, of)?
    {
        group_norm_in_passes(x, Some(behind), &out, of)?;
    }
    Ok(Some(out))
}

/// Items, threads of a block and vectors of a thread that the one-kernel form has room for.
const WHOLE_ITEMS: usize = 64;
const WHOLE_THREADS: usize = 512;
const WHOLE_VECTORS: usize = 8;

/// The same in one kernel, where all multiprocessors together can keep the tensor; `false` where they cannot. Rows are whole
/// vectors.
fn group_norm_whole(x: &GpuBuffer, out: &GpuBuffer, of: GroupNormSpec<'_>) -> Result<bool> {
    let (device, format) = (x.card(), x.format());
    let kernel = match of.act {
        Act::None => GroupWholeKernel::GroupWholeNone,
        Act::Silu => GroupWholeKernel::GroupWholeSilu,
        Act::Gelu | Act::GeluTanh | Act::QuickGelu | Act::Relu | Act::Leaky => return Ok(false),
    };
    let vectors = of.channels / pack(format);
    // One block on each multiprocessor, so that all run at once.
    let most = device.multiprocessors() as usize / of.items;
    if vectors > WHOLE_THREADS || of.items > WHOLE_ITEMS || most == 0 {
        return Ok(false);
    }
    let lines = WHOLE_THREADS / vectors;
    let per_block = of.pixels.div_ceil(most).max(2 * lines);
    if per_block > WHOLE_VECTORS * lines {
        return Ok(false);
    }
    let parts = of.pixels.div_ceil(per_block);
    let threads = (vectors * lines) as u32;
    let sums = device.scratch(8 * of.items * of.groups * parts)?;
    let group = launches::GroupWhole {
        kernel,
        x: x.into(),
        sums: (&sums).into(),
        weight: of.weight.into(),
        bias: of.bias.into(),
        y: out.into(),
        pixels: small(of.pixels)?,
        channels: small(of.channels)?,
        groups: small(of.groups)?,
        per_block: small(per_block)?,
        eps: of.eps,
    };
    let shape = Shape {
        grid: [blocks(parts)?, of.items as u32, 1],
        block: threads,
        // Sums of every element of a thread, then statistics of groups, which are not more than channels.
        shared: threads * pack(format) as u32 * 8,
    };
    work(0.0, (2 * x.len() * format.size()) as f64);
    device.launch_cooperative(format, shape, group)?;
    Ok(true)
}

/// The same for any number of channels: one block for each group.
fn group_norm_any(x: &GpuBuffer, out: &GpuBuffer, of: GroupNormSpec<'_>) -> Result<()> {
    let group = launches::GroupAny {
        x: x.into(),
        weight: of.weight.into(),
        bias: of.bias.into(),
        y: out.into(),
        pixels: small(of.pixels)?,
        channels: small(of.channels)?,
        groups: small(of.groups)?,
        eps: of.eps,
        act: act_number(of.act),
    };
    let shape = Shape::row(blocks(of.items * of.groups)?, 512);
    x.card().launch(x.format(), shape, group)
}

impl RowNorm<'_> {
    /// Whether rows are whole vectors, also those at another address.
    fn aligned(&self, x: &GpuBuffer, other: u64) -> bool {
        let end = &self.end;
        let (shift, scale) = end.modulation.unzip();
        let of = |buffer: Option<&GpuBuffer>| buffer.map_or(0, Address::address);
        let [weight, bias] = [end.weight, end.bias].map(|of| of.map_or(0, |of| of.address()));
        let addresses = [x.address(), other, of(shift), of(scale), weight, bias];
        in_vectors(self.width, x.format(), &addresses)
    }

    fn parameters(&self, x: &GpuBuffer) -> Result<NormRows> {
        let (shift, scale) = self.end.modulation.unzip();
        let each = scale.map_or(1, |scale| (x.len() / scale.len()).max(1));
        Ok(NormRows {
            weight: self.end.weight.into(),
            bias: self.end.bias.into(),
            scale: scale.into(),
            shift: shift.into(),
            rows: small(x.len() / self.width)?,
            width: small(self.width)?,
            each: small(each)?,
            eps: self.eps,
            rms: i32::from(self.kind == RowNormKind::Rms),
        })
    }
}

/// Normalises rows. There is an element.
pub(crate) fn row_norm(x: &GpuBuffer, norm: RowNorm<'_>) -> Result<GpuBuffer> {
    let (device, format) = (x.card(), x.format());
    let out = device.buffer(x.len(), format)?;
    let rows = x.len() / norm.width;
    let vectors = norm.width / pack(format);
    let aligned = norm.aligned(x, out.address());
    let per_multiprocessor = rows / device.multiprocessors().max(1) as usize;
    let few = per_multiprocessor < tuned::FEW_ROWS;
    // The kernel, threads of a block, and its rows.
    let (kernel, threads, per_block) = match vectors {
        _ if !aligned => (RowNormKernel::RowNormAny, 256, 1),
        0..=16 => (RowNormKernel::RowNorm16, 256, 16),
        // Those of which every thread has the same share.
        33..=40 if per_multiprocessor >= tuned::EVEN_ROWS => (RowNormKernel::RowNorm40, 256, 32),
        65..=80 if !few => (RowNormKernel::RowNorm80, 256, 16),
        129..=160 if !few => (RowNormKernel::RowNorm160, 256, 8),
        17..=128 if few => (RowNormKernel::RowNormFew128, 128, 1),
        17..=128 => (RowNormKernel::RowNorm128, 256, 8),
        129..=384 if few => (RowNormKernel::RowNormFew384, 128, 1),
        129..=192 => (RowNormKernel::RowNorm192, 256, 8),
        193..=384 => (RowNormKernel::RowNorm384, 256, 8),
        385..=1024 => (RowNormKernel::RowNorm1024, 256, 1),
        _ => (RowNormKernel::RowNormAny, 256, 1),
    };
    let launch = launches::RowNorm {
        kernel,
        x: x.into(),
        y: (&out).into(),
        norm: norm.parameters(x)?,
    };
    let shape = Shape::row(blocks(rows.div_ceil(per_block))?, threads);
    device.launch(format, shape, launch)?;
    Ok(out)
}

/// The same as bytes: whole numbers up to so many levels, or E4M3; codes and a scale for each row at the given addresses. `false` where the rows do not suit
/// the kernels. There is an element, and tensors are of 16 bits.
pub(crate) fn row_norm_to_bytes(
    x: &GpuBuffer,
    norm: RowNorm<'_>,
    levels: Option<f32>,
    [codes, scales]: [u64; 2],
) -> Result<bool> {
    let format = x.format();
    let vectors = norm.width / pack(format);
    let (kernel, threads) = match (vectors, levels) {
        (..=384, Some(_)) => (NormedBytesKernel::Whole384, 128),
        (..=384, None) => (NormedBytesKernel::E4m3_384, 128),
        (..=1024, Some(_)) => (NormedBytesKernel::Whole1024, 256),
        (..=1024, None) => (NormedBytesKernel::E4m3_1024, 256),
        _ => return Ok(false),
    };
    if !norm.aligned(x, codes) {
        return Ok(false);
    }
    let launch = NormedBytes {
        kernel,
        x: x.into(),
        to: Pointer::at(codes),
        scales: Pointer::at(scales),
        levels: levels.unwrap_or(0.0),
        norm: norm.parameters(x)?,
    };
    let shape = Shape::row(blocks(x.len() / norm.width)?, threads);
    x.card().launch(format, shape, launch)?;
    Ok(true)
}

/// Softmax of rows of `width` into `out`, which may be `x`. There is an element.
pub(crate) fn softmax(x: &GpuBuffer, out: &GpuBuffer, width: usize) -> Result<()> {
    let rows = x.len() / width;
    let (kernel, per_block) = if width <= 1024 {
        (SoftmaxKernel::SoftmaxRows, 8)
    } else {
        (SoftmaxKernel::SoftmaxWide, 1)
    };
    let softmax = launches::Softmax {
        kernel,
        x: x.into(),
        y: out.into(),
        rows: small(rows)?,
        width: small(width)?,
    };
    let shape = Shape::row(blocks(rows.div_ceil(per_block))?, 256);
    x.card().launch(x.format(), shape, softmax)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuSlice;

    fn found(items: usize, side: usize, channels: usize) -> (usize, usize) {
        let of = GroupNormSpec {
            items,
            pixels: side * side,
            channels,
            groups: 32,
            weight: GpuSlice::new(0, 0),
            bias: GpuSlice::new(0, 0),
            eps: 1e-5,
            act: Act::Silu,
        };
        let found = Clusters::find(&of, 132).expect("a form");
        (found.groups, found.size)
    }

    #[test]
    fn clusters_are_all_at_work_at_once() {
        // As measured: 21.7 us, and 25.6 with clusters of four, of which four would begin when all others end.
        assert_eq!(found(8, 64, 320), (4, 2));
        assert_eq!(found(8, 32, 960), (4, 2));
        // More of a pixel at once.
        assert_eq!(found(8, 32, 1280), (2, 1));
        assert_eq!(found(8, 16, 1280), (2, 1));
        // Few items are shared by many blocks, little work by fewer.
        assert_eq!(found(2, 64, 320), (4, 8));
        assert_eq!(found(2, 32, 640), (2, 2));
        assert_eq!(found(2, 8, 1280), (1, 1));
    }
}
