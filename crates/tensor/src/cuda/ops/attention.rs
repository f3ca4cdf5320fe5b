//! Attention on a GPU.

use super::norm::int;
use crate::cpu::attention::Sizes;
use crate::cuda::{
    Address, Args, CudaDevice, Format, GpuBuffer, Kernel, OnCard, TensorMapSpec, work,
};
use crate::error::{Result, TensorError};
use crate::gpu::{GpuMask, Values};

/// An instance of `attention_hopper.cu`: the widest head, keys of a tile, warp groups that compute 64 queries each, and what one of
/// them takes, compared with others for that width.
struct Hopper {
    name: &'static str,
    d: usize,
    keys: u32,
    groups: u32,
    cost: u32,
}

/// The narrowest first. Measured on an H200.
static HOPPER: [Hopper; 8] = [
    hopper("attention_40", 40, 128, 3, 100),
    hopper("attention_40_of_4", 40, 80, 4, 99),
    hopper("attention_64", 64, 128, 3, 100),
    hopper("attention_80", 80, 128, 2, 116),
    hopper("attention_80_of_3", 80, 96, 3, 100),
    hopper("attention_128", 128, 128, 2, 100),
    hopper("attention_160", 160, 64, 2, 100),
    hopper("attention_256", 256, 64, 2, 100),
];

const fn hopper(name: &'static str, d: usize, keys: u32, groups: u32, cost: u32) -> Hopper {
    Hopper {
        name,
        d,
        keys,
        groups,
        cost,
    }
}

impl Hopper {
    /// Of the instances for the narrowest heads that have room for these, the one whose last round of blocks leaves the fewest multiprocessors without work.
    fn find(s: Sizes, multiprocessors: u32) -> Option<&'static Self> {
        let d = HOPPER.iter().map(|h| h.d).find(|&d| d >= s.d)?;
        let time = |h: &&Self| {
            let blocks = s.queries.div_ceil(64 * h.groups as usize) * s.heads * s.batch;
            let rounds = blocks.div_ceil(multiprocessors.max(1) as usize);
            rounds as u64 * u64::from(h.groups * h.cost)
        };
        HOPPER.iter().filter(|h| h.d == d).min_by_key(time)
    }

    fn shared(&self) -> u32 {
        let chunks = self.d.div_ceil(64) as u32;
        let (queries, stages) = (64 * self.groups, 2);
        // Queries, keys and values in pieces of 64 columns; barriers; what is lost until a multiple of 1024.
        128 * chunks * (queries + 2 * stages * self.keys) + 8 * (1 + 4 * stages) + 1024
    }
}

/// Bytes of shared memory of `attention_512` of `attention_hopper.cu`: three tiles, weights, maxima, barriers.
const WIDE_SHARED: u32 = 3 * 65536 + 8192 + 512 + 64 + 1024;

/// An instance of `attention_mma.cu`: the widest head, keys of a tile, and queries of a block.
struct Mma {
    name: &'static str,
    d: usize,
    keys: u32,
    queries: u32,
}

static MMA: [Mma; 7] = [
    mma("attention_40", 40, 64, 128),
    mma("attention_64", 64, 64, 128),
    mma("attention_80", 80, 64, 128),
    mma("attention_128", 128, 64, 128),
    mma("attention_128_small", 128, 32, 128),
    mma("attention_160", 160, 32, 128),
    mma("attention_256", 256, 32, 64),
];

static MASKED: [Mma; 3] = [
    mma("masked_64", 64, 64, 128),
    mma("masked_128", 128, 32, 128),
    mma("masked_256", 256, 32, 64),
];

/// Keys that are one tile, such as the 77 words of a prompt.
const SHORT: usize = 80;

/// An instance for so few keys: the widest head, and warps of a block, each of which has 16 queries at a time.
struct Short {
    name: &'static str,
    d: usize,
    warps: usize,
}

static SHORTS: [Short; 4] = [
    short("short_40", 40, 8),
    short("short_64", 64, 4),
    short("short_80", 80, 4),
    short("short_160", 160, 4),
];

const fn short(name: &'static str, d: usize, warps: usize) -> Short {
    Short { name, d, warps }
}

impl Short {
    /// The narrowest instance that has room, where nothing is masked.
    fn find(device: &CudaDevice, s: Sizes) -> Option<&'static Self> {
        let fits = |m: &&Self| m.d >= s.d && m.shared() <= device.shared_limit();
        SHORTS.iter().find(fits).filter(|_| s.keys <= SHORT)
    }

    /// Keys, values, and two tiles of queries for each warp.
    fn shared(&self) -> u32 {
        (pitch(self.d) * (2 * SHORT + 2 * 16 * self.warps)) as u32
    }
}

/// Bytes of a row in the shared memory of `attention_mma.cu`.
fn pitch(d: usize) -> usize {
    d.next_multiple_of(16) * 2 + 16
}

const fn mma(name: &'static str, d: usize, keys: u32, queries: u32) -> Mma {
    Mma {
        name,
        d,
        keys,
        queries,
    }
}

impl Mma {
    fn shared(&self) -> u32 {
        pitch(self.d) as u32 * (self.queries + 4 * self.keys)
    }

    /// The narrowest instance that has room for heads of `d`, on a card with so much shared memory.
    fn find(d: usize, masked: bool, shared: u32) -> Option<&'static Self> {
        let fits = |m: &&Self| m.d >= d && m.shared() <= shared;
        if masked {
            MASKED.iter().find(fits)
        } else {
            MMA.iter().find(fits)
        }
    }
}

/// Blocks along the one dimension that has room for many: tiles of queries of every head of every item.
fn blocks(s: Sizes, queries: u32, slices: usize) -> Result<u32> {
    let tiles = s.queries.div_ceil(queries as usize);
    let count = [s.heads, s.batch, slices]
        .into_iter()
        .try_fold(tiles, usize::checked_mul)
        .and_then(|count| i32::try_from(count).ok());
    count
        .map(i32::cast_unsigned)
        .ok_or_else(|| TensorError::invalid("attention", "too many queries for a GPU"))
}

fn sizes(args: Args, s: Sizes) -> Result<Args> {
    Ok(args
        .int(int(s.queries)?)
        .int(int(s.keys)?)
        .int(int(s.heads)?)
        .int(int(s.d)?))
}

fn mask_args(args: Args, mask: GpuMask<'_>) -> Args {
    let (address, steps, kind) = match mask {
        GpuMask::None => (0, [0; 3], 0),
        GpuMask::Causal => (0, [0; 3], 1),
        GpuMask::Add { data, steps } => (data.address(), steps, 2),
    };
    let args = args.pointer(address);
    steps
        .into_iter()
        .fold(args, |args, step| args.long(step as i64))
        .int(kind)
}

/// Softmax of `q k^T * scale` and the mask, times `v`. All have one format; there is a query and a key.
pub(crate) fn attention(
    s: Sizes,
    [q, k, v]: [&GpuBuffer; 3],
    scale: f32,
    mask: GpuMask<'_>,
) -> Result<GpuBuffer> {
    let device = q.card();
    let out = device.buffer(q.len(), q.format())?;
    let masked = !matches!(mask, GpuMask::None);
    // Copies are of 16 bytes. Where nothing is masked, the largest product is looked for before it is scaled.
    let tiled = q.format() != Format::F32
        && device.arch() >= 80
        && s.d.is_multiple_of(8)
        && [q, k, v].iter().all(|t| t.address().is_multiple_of(16))
        && scale >= 0.0;
    if !tiled {
        plain(s, [q, k, v, &out], scale, mask)?;
        return Ok(out);
    }
    if !masked && suits_hopper(device, s) {
        let values = Values {
            rows: v,
            first: 0,
            row: s.heads * s.d,
        };
        hopper_attention(s, [q, k, &out], values, scale)?;
        return Ok(out);
    }
    if !masked && let Some(instance) = Short::find(device, s) {
        short_attention(instance, s, [q, k, v, &out], scale)?;
        return Ok(out);
    }
    match Mma::find(s.d, masked, device.shared_limit()) {
        Some(instance) => mma_attention(instance, s, [q, k, v, &out], scale, mask)?,
        None => plain(s, [q, k, v, &out], scale, mask)?,
    }
    Ok(out)
}

/// The words of a prompt are one tile, and nothing is gained by feeding it from a warp group of its own.
fn suits_hopper(device: &CudaDevice, s: Sizes) -> bool {
    device.hopper() && Short::find(device, s).is_none() && s.d <= 512
}

/// Whether values may stand in rows of something larger, with nothing masked.
pub(crate) fn reads_rows(device: &CudaDevice, format: Format, s: Sizes, row: usize) -> bool {
    let whole = s.d.is_multiple_of(8) && row.is_multiple_of(8);
    format != Format::F32 && whole && suits_hopper(device, s)
}

/// [`attention`] with values that do so.
pub(crate) fn attention_in_rows(
    s: Sizes,
    [q, k]: [&GpuBuffer; 2],
    values: Values<'_>,
    scale: f32,
) -> Result<GpuBuffer> {
    let out = q.card().buffer(q.len(), q.format())?;
    hopper_attention(s, [q, k, &out], values, scale)?;
    Ok(out)
}

fn hopper_attention(
    s: Sizes,
    [q, k, out]: [&GpuBuffer; 3],
    values: Values<'_>,
    scale: f32,
) -> Result<()> {
    let device = q.card();
    let (name, keys, queries, shared, threads) = match Hopper::find(s, device.multiprocessors()) {
        Some(h) => (
            h.name,
            h.keys,
            64 * h.groups,
            h.shared(),
            128 * (h.groups + 1),
        ),
        None => ("attention_512", 64, 64, WIDE_SHARED, 384),
    };
    let map = |(address, row): (u64, usize), [d, heads]: [usize; 2], tokens: usize, rows: u32| {
        let [d, heads, tokens, batch] = [d, heads, tokens, s.batch].map(|n| n as u64);
        let row = row as u64;
        device.tensor_map(&TensorMapSpec {
            address,
            format: q.format(),
            sizes: &[d, heads, tokens, batch],
            strides: &[2 * d, 2 * row, 2 * row * tokens],
            part: &[64, 1, rows, 1],
        })
    };
    let own = s.heads * s.d;
    let first = values.rows.slice_at(values.first).address();
    // Heads of queries one by one, so that columns past theirs are zeros; of keys and values as one row.
    let args = Args::new()
        .map(&map(
            (q.address(), own),
            [s.d, s.heads],
            s.queries,
            queries,
        )?)
        .map(&map((k.address(), own), [own, 1], s.keys, keys)?)
        .map(&map((first, values.row), [own, 1], s.keys, keys)?)
        .pointer(out.address());
    let args = sizes(args, s)?.float(scale);
    let kernel = Kernel {
        module: "attention_hopper",
        format: q.format(),
        name,
    };
    let grid = [blocks(s, queries, 1)?, 1, 1];
    tell_work(s, out);
    device.launch(kernel, grid, threads, shared, &args)
}

/// Tells what the next kernel has to do.
fn tell_work(s: Sizes, out: &GpuBuffer) {
    let [batch, heads, queries, keys, d] =
        [s.batch, s.heads, s.queries, s.keys, s.d].map(|n| n as f64);
    let elements = 2.0 * batch * heads * d * (queries + keys);
    let operations = 4.0 * batch * heads * queries * keys * d;
    work(operations, elements * out.format().size() as f64);
}

fn short_attention(
    instance: &Short,
    s: Sizes,
    [q, k, v, out]: [&GpuBuffer; 4],
    scale: f32,
) -> Result<()> {
    let device = q.card();
    let queries = 16 * instance.warps;
    let all = s.queries.div_ceil(queries) * s.heads * s.batch;
    // Two blocks for each multiprocessor, so that one has something to do while the other waits for its first queries.
    let each = all.div_ceil(2 * device.multiprocessors() as usize);
    let each = each.clamp(1, s.queries.div_ceil(queries));
    let args = [q, k, v, out]
        .iter()
        .fold(Args::new(), |args, buffer| args.pointer(buffer.address()));
    let args = sizes(args, s)?.float(scale).int(int(each)?);
    let kernel = Kernel {
        module: "attention_mma",
        format: q.format(),
        name: instance.name,
    };
    let grid = [blocks(s, int(queries * each)?.cast_unsigned(), 1)?, 1, 1];
    tell_work(s, out);
    let threads = 32 * instance.warps as u32;
    device.launch(kernel, grid, threads, instance.shared(), &args)
}

fn mma_attention(
    instance: &Mma,
    s: Sizes,
    [q, k, v, out]: [&GpuBuffer; 4],
    scale: f32,
    mask: GpuMask<'_>,
) -> Result<()> {
    let args = [q, k, v, out]
        .iter()
        .fold(Args::new(), |args, buffer| args.pointer(buffer.address()));
    let args = sizes(args, s)?.float(scale);
    let args = match mask {
        GpuMask::None => args,
        GpuMask::Causal | GpuMask::Add { .. } => mask_args(args, mask),
    };
    let kernel = Kernel {
        module: "attention_mma",
        format: q.format(),
        name: instance.name,
    };
    let grid = [blocks(s, instance.queries, 1)?, 1, 1];
    tell_work(s, out);
    q.card().launch(kernel, grid, 128, instance.shared(), &args)
}

/// Most channels of a token that the plain kernels address.
const PLAIN_CHANNELS: usize = 1 << 24;
/// Queries of a block of the plain kernels.
const PLAIN_QUERIES: u32 = 64;

fn check_plain(s: Sizes) -> Result<()> {
    if s.heads * s.d <= PLAIN_CHANNELS {
        return Ok(());
    }
    Err(TensorError::invalid(
        "attention",
        format!("{} channels are too many for a GPU", s.heads * s.d),
    ))
}

fn plain(s: Sizes, [q, k, v, out]: [&GpuBuffer; 4], scale: f32, mask: GpuMask<'_>) -> Result<()> {
    check_plain(s)?;
    // Heads that are wider than the widest are shared by several blocks.
    let (name, slice) = match s.d {
        0..=64 => ("attention_64", 64),
        65..=128 => ("attention_128", 128),
        _ => ("attention_256", 256),
    };
    let args = [q, k, v, out]
        .iter()
        .fold(Args::new(), |args, buffer| args.pointer(buffer.address()));
    let args = mask_args(sizes(args, s)?.float(scale), mask);
    let kernel = plain_kernel(q.format(), name);
    let grid = [blocks(s, PLAIN_QUERIES, s.d.div_ceil(slice))?, 1, 1];
    q.card().launch(kernel, grid, 256, 0, &args)
}

fn plain_kernel(format: Format, name: &'static str) -> Kernel {
    Kernel {
        module: "attention_plain",
        format,
        name,
    }
}

/// The softmax of `q k^T * scale` itself, (batch * heads, queries, keys).
pub(crate) fn probabilities(
    s: Sizes,
    q: &GpuBuffer,
    k: &GpuBuffer,
    scale: f32,
) -> Result<GpuBuffer> {
    check_plain(s)?;
    let device = q.card();
    let count = s.batch * s.heads * s.queries * s.keys;
    let out = device.buffer(count, q.format())?;
    if count > 0 {
        let args = [q, k, &out]
            .iter()
            .fold(Args::new(), |args, buffer| args.pointer(buffer.address()));
        let args = sizes(args, s)?.float(scale);
        let kernel = plain_kernel(q.format(), "probabilities");
        let grid = [blocks(s, PLAIN_QUERIES, 1)?, 1, 1];
        device.launch(kernel, grid, 256, 0, &args)?;
    }
    Ok(out)
}
