//! Normalisation and softmax of rows on a GPU.

use super::product::UNIT;
use crate::cuda::{Address, Args, Format, GpuBuffer, Kernel, OnCard, Shape, work};
use crate::error::{Result, TensorError};
use crate::gpu::{GroupNormSpec, RowNorm, RowNormKind};
use crate::nn::Act;

/// A size as kernels take it.
pub(super) fn int(size: usize) -> Result<i32> {
    i32::try_from(size).map_err(|_| {
        TensorError::invalid("cuda", format!("a size of {size} is too large for kernels"))
    })
}

/// The same for a number of blocks.
pub(super) fn blocks(count: usize) -> Result<u32> {
    Ok(int(count)?.cast_unsigned())
}

pub(super) fn kernel(format: Format, name: &'static str) -> Kernel {
    Kernel {
        module: "norm",
        format,
        name,
    }
}

/// Elements in 16 bytes.
pub(super) fn lanes(format: Format) -> usize {
    16 / format.size()
}

/// Whether kernels may read and write 16 bytes at a time: rows have whole ones, and all addresses are multiples.
pub(super) fn in_vectors(width: usize, format: Format, addresses: &[u64]) -> bool {
    width.is_multiple_of(lanes(format)) && addresses.iter().all(|at| at.is_multiple_of(16))
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

/// Sums of so many blocks are added by every block that uses them; more are added once, by a kernel of their own.
const JOINED: usize = 144;

/// Bytes from which on more blocks are better for two passes.
const MANY_BYTES: usize = 32 << 20;

/// Threads that a block for two passes may have, of which each has a vector of a pixel: shared memory has room for two floats for each of their elements.
const MOST_VECTORS: usize = 512;

/// Group norm of `x` into `out`, which may be `x`. There is an element.
pub(crate) fn group_norm(x: &GpuBuffer, out: &GpuBuffer, of: GroupNormSpec<'_>) -> Result<()> {
    let format = x.format();
    let vectors = of.channels / lanes(format);
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
    let vectors = of.channels / lanes(format);
    let early = behind.map_or(of.channels, |_| x.len() / (of.items * of.pixels));
    let lines = (256 / vectors).max(1);
    let threads = (vectors * lines) as u32;
    // As many blocks as run at once, but at least four vectors for every thread.
    let many = !device.hopper() || out.len() * format.size() > MANY_BYTES;
    let each = if many { 4 } else { 2 };
    let wanted = (each * device.multiprocessors() as usize / of.items).max(1);
    let per_block = of.pixels.div_ceil(wanted).max(4 * lines);
    let parts = of.pixels.div_ceil(per_block);
    let grid = [blocks(parts)?, of.items as u32, 1];
    let groups = of.items * of.groups;
    // Two sums for each block and group, the same joined, and the value from which differences are taken.
    let scratch = device.scratch(groups * (8 * parts + 8 + 4))?;
    let sums = scratch.address();
    let joined = sums + 8 * (groups * parts) as u64;
    let origins = joined + 8 * groups as u64;
    let inputs = Args::new()
        .pointer(x.address())
        .pointer(behind.map_or(0, Address::address))
        .int(int(early)?);
    let args = inputs
        .clone()
        .pointer(sums)
        .pointer(origins)
        .int(int(of.pixels)?)
        .int(int(of.channels)?)
        .int(int(of.groups)?)
        .int(int(per_block)?);
    let shared = threads * lanes(format) as u32 * 8;
    device.launch(kernel(format, "group_sums"), grid, threads, shared, &args)?;
    let (sums, parts) = if parts > JOINED {
        let args = Args::new()
            .pointer(sums)
            .pointer(joined)
            .int(int(groups)?)
            .int(int(parts)?);
        let grid = [blocks(groups.div_ceil(8))?, 1, 1];
        device.launch(kernel(format, "group_join"), grid, 256, 0, &args)?;
        (joined, 1)
    } else {
        (sums, parts)
    };
    let args = inputs
        .pointer(sums)
        .pointer(origins)
        .pointer(of.weight.address())
        .pointer(of.bias.address())
        .pointer(out.address())
        .int(int(of.pixels)?)
        .int(int(of.channels)?)
        .int(int(of.groups)?)
        .int(int(per_block)?)
        .int(int(parts)?)
        .float(of.eps)
        .int(act_number(of.act));
    let name = match of.act {
        Act::None => "group_apply_none",
        Act::Silu => "group_apply_silu",
        Act::Gelu | Act::GeluTanh | Act::QuickGelu | Act::Relu | Act::Leaky => "group_apply_act",
    };
    let shared = 8 * of.groups as u32;
    device.launch(kernel(format, name), grid, threads, shared, &args)
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
    let Some(first) = x.spread() else {
        return Ok(false);
    };
    let second = match behind.map(GpuBuffer::spread) {
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
    let vectors = of.channels / lanes(format);
    let lines = (KNOWN_THREADS / vectors).max(1);
    let threads = (vectors * lines).next_multiple_of(32);
    let parts = [Some(first), second]
        .map(|spread| spread.map_or(0, |spread| of.pixels / 128 * spread.shares));
    if !fits || threads > MOST_KNOWN_THREADS {
        return Ok(false);
    }
    // Two blocks for each multiprocessor, with as many pixels for a thread as it has room for.
    let wanted = 2 * device.multiprocessors() as usize;
    let each = (of.items * of.pixels).div_ceil(wanted * lines);
    let per_block = lines * each.clamp(1, KNOWN_VECTORS);
    let args = Args::new()
        .pointer(x.address())
        .pointer(behind.map_or(0, Address::address))
        .int(int(first.channels)?)
        .pointer(first.numbers.address())
        .int(int(parts[0])?)
        .pointer(second.map_or(0, |second| second.numbers.address()))
        .int(int(parts[1])?)
        .pointer(of.weight.address())
        .pointer(of.bias.address())
        .pointer(out.address())
        .int(int(of.pixels)?)
        .int(int(of.channels)?)
        .int(int(width)?)
        .int(int(per_block)?)
        .float(of.eps)
        .int(act_number(of.act));
    let kernel = Kernel {
        module: "norm_cluster",
        format,
        name: "group_known",
    };
    let grid = [blocks(of.pixels.div_ceil(per_block))?, of.items as u32, 1];
    work(0.0, (2 * out.len() * format.size()) as f64);
    let shared = 8 * of.groups as u32;
    device.launch(kernel, grid, threads as u32, shared, &args)?;
    Ok(true)
}

/// Threads of a block of `norm_cluster.cu`, and most vectors of a pixel, and groups, that one has.
const CLUSTER_THREADS: usize = 512;
const CLUSTER_COLUMNS: usize = 32;
const CLUSTER_GROUPS: usize = 8;
/// Blocks of a cluster, the kernel, and how many such clusters the 132 multiprocessors of an H200 have at once, with one block on each.
const CLUSTERS: [(usize, &str, usize); 4] = [
    (1, "group_1", 132),
    (2, "group_2", 66),
    (4, "group_4", 30),
    (8, "group_8", 15),
];
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
    name: &'static str,
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
        for &(size, name, at_once) in &CLUSTERS {
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
                let at_once = (at_once * multiprocessors / 132).max(1) * resident;
                let rounds = clusters.div_ceil(at_once);
                let blocks = clusters * size;
                // Little work is shared by fewer.
                let busy = 8 * blocks >= 7 * multiprocessors
                    || (3 * blocks >= multiprocessors && size > 1 && vectors <= 6)
                    || (groups == least && of.pixels <= 2 * lines * size);
                let found = Self {
                    groups,
                    columns,
                    size,
                    name,
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
    let args = Args::new()
        .pointer(x.address())
        .pointer(behind.map_or(0, Address::address))
        .int(int(early)?)
        .pointer(of.weight.address())
        .pointer(of.bias.address())
        .pointer(out.address())
        .int(int(of.pixels)?)
        .int(int(of.channels)?)
        .int(int(width)?)
        .int(int(clusters.columns)?)
        .int(int(of.pixels.div_ceil(clusters.size))?)
        .float(of.eps)
        .int(act_number(of.act));
    let kernel = Kernel {
        module: "norm_cluster",
        format,
        name: clusters.name,
    };
    let slices = of.groups / clusters.groups;
    let grid = [blocks(slices * clusters.size)?, of.items as u32, 1];
    let shared = clusters.shared;
    work(0.0, (2 * out.len() * format.size()) as f64);
    device.launch(kernel, grid, CLUSTER_THREADS as u32, shared as u32, &args)?;
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
        && early.is_multiple_of(lanes(format))
        && in_vectors(of.channels, format, &addresses)
        && of.channels / lanes(format) <= MOST_VECTORS
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
    let name = match of.act {
        Act::None => "group_whole_none",
        Act::Silu => "group_whole_silu",
        Act::Gelu | Act::GeluTanh | Act::QuickGelu | Act::Relu | Act::Leaky => return Ok(false),
    };
    let vectors = of.channels / lanes(format);
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
    let args = Args::new()
        .pointer(x.address())
        .pointer(sums.address())
        .pointer(of.weight.address())
        .pointer(of.bias.address())
        .pointer(out.address())
        .int(int(of.pixels)?)
        .int(int(of.channels)?)
        .int(int(of.groups)?)
        .int(int(per_block)?)
        .float(of.eps);
    let grid = [blocks(parts)?, of.items as u32, 1];
    // Sums of every element of a thread, then statistics of groups, which are not more than channels.
    let shared = threads * lanes(format) as u32 * 8;
    let shape = Shape {
        grid,
        block: threads,
        shared,
    };
    work(0.0, (2 * x.len() * format.size()) as f64);
    device.launch_cooperative(kernel(format, name), shape, &args)?;
    Ok(true)
}

/// The same for any number of channels: one block for each group.
fn group_norm_any(x: &GpuBuffer, out: &GpuBuffer, of: GroupNormSpec<'_>) -> Result<()> {
    let args = Args::new()
        .pointer(x.address())
        .pointer(of.weight.address())
        .pointer(of.bias.address())
        .pointer(out.address())
        .int(int(of.pixels)?)
        .int(int(of.channels)?)
        .int(int(of.groups)?)
        .float(of.eps)
        .int(act_number(of.act));
    let grid = [blocks(of.items * of.groups)?, 1, 1];
    let kernel = kernel(x.format(), "group_any");
    x.card().launch(kernel, grid, 512, 0, &args)
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

    /// `NORM_PARAMETERS` of row_norm.cuh.
    fn arguments(&self, args: Args, x: &GpuBuffer) -> Result<Args> {
        let (shift, scale, each) = match self.end.modulation {
            None => (0, 0, 1),
            Some((shift, scale)) => (
                shift.address(),
                scale.address(),
                (x.len() / scale.len()).max(1),
            ),
        };
        Ok(args
            .pointer(self.end.weight.map_or(0, |of| of.address()))
            .pointer(self.end.bias.map_or(0, |of| of.address()))
            .pointer(scale)
            .pointer(shift)
            .int(int(x.len() / self.width)?)
            .int(int(self.width)?)
            .int(int(each)?)
            .float(self.eps)
            .int(i32::from(self.kind == RowNormKind::Rms)))
    }
}

/// Normalises rows. There is an element.
pub(crate) fn row_norm(x: &GpuBuffer, norm: RowNorm<'_>) -> Result<GpuBuffer> {
    let (device, format) = (x.card(), x.format());
    let out = device.buffer(x.len(), format)?;
    let rows = x.len() / norm.width;
    let vectors = norm.width / lanes(format);
    let aligned = norm.aligned(x, out.address());
    // Fewer rows than twice the warps that run at once are given a block each.
    let few = rows < 48 * device.multiprocessors() as usize;
    // The name, threads of a block, and its rows.
    let (name, threads, per_block) = match vectors {
        _ if !aligned => ("row_norm_any", 256, 1),
        0..=16 => ("row_norm_16", 256, 16),
        // Those of which every thread has the same share.
        33..=40 if rows >= 24 * device.multiprocessors() as usize => ("row_norm_40", 256, 32),
        65..=80 if !few => ("row_norm_80", 256, 16),
        129..=160 if !few => ("row_norm_160", 256, 8),
        17..=128 if few => ("row_norm_few_128", 128, 1),
        17..=128 => ("row_norm_128", 256, 8),
        129..=384 if few => ("row_norm_few_384", 128, 1),
        129..=192 => ("row_norm_192", 256, 8),
        193..=384 => ("row_norm_384", 256, 8),
        385..=1024 => ("row_norm_1024", 256, 1),
        _ => ("row_norm_any", 256, 1),
    };
    let args = Args::new().pointer(x.address()).pointer(out.address());
    let args = norm.arguments(args, x)?;
    let grid = [blocks(rows.div_ceil(per_block))?, 1, 1];
    device.launch(kernel(format, name), grid, threads, 0, &args)?;
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
    let vectors = norm.width / lanes(format);
    let (name, threads) = match (vectors, levels) {
        (..=384, Some(_)) => ("whole_384", 128),
        (..=384, None) => ("e4m3_384", 128),
        (..=1024, Some(_)) => ("whole_1024", 256),
        (..=1024, None) => ("e4m3_1024", 256),
        _ => return Ok(false),
    };
    if !norm.aligned(x, codes) {
        return Ok(false);
    }
    let args = Args::new()
        .pointer(x.address())
        .pointer(codes)
        .pointer(scales)
        .float(levels.unwrap_or(0.0));
    let args = norm.arguments(args, x)?;
    let kernel = Kernel {
        module: "norm_bytes",
        format,
        name,
    };
    let grid = [blocks(x.len() / norm.width)?, 1, 1];
    x.card().launch(kernel, grid, threads, 0, &args)?;
    Ok(true)
}

/// Softmax of rows of `width` into `out`, which may be `x`. There is an element.
pub(crate) fn softmax(x: &GpuBuffer, out: &GpuBuffer, width: usize) -> Result<()> {
    let rows = x.len() / width;
    let (name, per_block) = if width <= 1024 {
        ("softmax_rows", 8)
    } else {
        ("softmax_wide", 1)
    };
    let args = Args::new()
        .pointer(x.address())
        .pointer(out.address())
        .int(int(rows)?)
        .int(int(width)?);
    let grid = [blocks(rows.div_ceil(per_block))?, 1, 1];
    x.card()
        .launch(kernel(x.format(), name), grid, 256, 0, &args)
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
