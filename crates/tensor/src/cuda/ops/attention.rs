//! Attention on a GPU.

use super::small;
use crate::cpu::attention::Sizes;
use crate::cuda::launches::attention_hopper::{self, AttentionKernel as HopperKernel};
use crate::cuda::launches::attention_mma::{
    self, AttentionKernel as MmaKernel, MaskedKernel, ShortKernel,
};
use crate::cuda::launches::attention_plain::{self, AttentionKernel as PlainKernel};
use crate::cuda::launches::{AttentionMask, AttentionSizes, AttentionTensors};
use crate::cuda::tuned::{SHORT_BLOCKS, attention_cost};
use crate::cuda::{
    Address, CudaDevice, Format, GpuBuffer, OnCard, Pointer, Shape, TensorMapSpec, work,
};
use crate::error::{Result, TensorError};
use crate::gpu::{GpuMask, ValueRows};

/// An instance of `attention_hopper.cu`: the widest head, keys of a tile, and warp groups that compute 64 queries each.
struct Hopper {
    kernel: HopperKernel,
    d: usize,
    keys: u32,
    groups: u32,
}

/// The narrowest first.
static HOPPER: [Hopper; 8] = [
    hopper(HopperKernel::Attention40, 40, 128, 3),
    hopper(HopperKernel::Attention40Of4, 40, 80, 4),
    hopper(HopperKernel::Attention64, 64, 128, 3),
    hopper(HopperKernel::Attention80, 80, 128, 2),
    hopper(HopperKernel::Attention80Of3, 80, 96, 3),
    hopper(HopperKernel::Attention128, 128, 128, 2),
    hopper(HopperKernel::Attention160, 160, 64, 2),
    hopper(HopperKernel::Attention256, 256, 64, 2),
];

const fn hopper(kernel: HopperKernel, d: usize, keys: u32, groups: u32) -> Hopper {
    Hopper {
        kernel,
        d,
        keys,
        groups,
    }
}

impl Hopper {
    /// Of the instances for the narrowest heads that have room for these, the one whose last round of blocks leaves the fewest multiprocessors without work.
    fn find(s: Sizes, multiprocessors: u32) -> Option<&'static Self> {
        let d = HOPPER.iter().map(|h| h.d).find(|&d| d >= s.d)?;
        let time = |h: &&Self| {
            let blocks = s.queries.div_ceil(64 * h.groups as usize) * s.heads * s.batch;
            let rounds = blocks.div_ceil(multiprocessors.max(1) as usize);
            rounds as u64 * u64::from(h.groups * attention_cost(h.kernel))
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
struct Mma<K> {
    kernel: K,
    d: usize,
    keys: u32,
    queries: u32,
}

static MMA: [Mma<MmaKernel>; 7] = [
    mma(MmaKernel::Attention40, 40, 64, 128),
    mma(MmaKernel::Attention64, 64, 64, 128),
    mma(MmaKernel::Attention80, 80, 64, 128),
    mma(MmaKernel::Attention128, 128, 64, 128),
    mma(MmaKernel::Attention128Small, 128, 32, 128),
    mma(MmaKernel::Attention160, 160, 32, 128),
    mma(MmaKernel::Attention256, 256, 32, 64),
];

static MASKED: [Mma<MaskedKernel>; 3] = [
    mma(MaskedKernel::Masked64, 64, 64, 128),
    mma(MaskedKernel::Masked128, 128, 32, 128),
    mma(MaskedKernel::Masked256, 256, 32, 64),
];

/// Keys that are one tile, such as the 77 words of a prompt.
const SHORT: usize = 80;

/// An instance for so few keys: the widest head, and warps of a block, each of which has 16 queries at a time.
struct Short {
    kernel: ShortKernel,
    d: usize,
    warps: usize,
}

static SHORTS: [Short; 4] = [
    short(ShortKernel::Short40, 40, 8),
    short(ShortKernel::Short64, 64, 4),
    short(ShortKernel::Short80, 80, 4),
    short(ShortKernel::Short160, 160, 4),
];

const fn short(kernel: ShortKernel, d: usize, warps: usize) -> Short {
    Short { kernel, d, warps }
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

const fn mma<K>(kernel: K, d: usize, keys: u32, queries: u32) -> Mma<K> {
    Mma {
        kernel,
        d,
        keys,
        queries,
    }
}

impl<K> Mma<K> {
    fn shared(&self) -> u32 {
        pitch(self.d) as u32 * (self.queries + 4 * self.keys)
    }

    fn shape(&self, s: Sizes) -> Result<Shape> {
        Ok(Shape::row(blocks(s, self.queries, 1)?, 128).with_shared(self.shared()))
    }

    /// The narrowest instance that has room for heads of `d`, on a card with so much shared memory.
    fn find(all: &'static [Self], d: usize, shared: u32) -> Option<&'static Self> {
        all.iter().find(|m| m.d >= d && m.shared() <= shared)
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

fn sizes(s: Sizes, scale: f32) -> Result<AttentionSizes> {
    Ok(AttentionSizes {
        queries: small(s.queries)?,
        keys: small(s.keys)?,
        heads: small(s.heads)?,
        d: small(s.d)?,
        scale,
    })
}

fn tensors(all: [&GpuBuffer; 4]) -> AttentionTensors {
    let [q, k, v, out] = all.map(Into::into);
    AttentionTensors { q, k, v, out }
}

fn mask_parameters(mask: GpuMask<'_>) -> AttentionMask {
    let (mask, steps, kind) = match mask {
        GpuMask::None => (Pointer::NONE, [0; 3], 0),
        GpuMask::Causal => (Pointer::NONE, [0; 3], 1),
        GpuMask::Add { data, steps } => (data.into(), steps, 2),
    };
    let [mask_item, mask_head, mask_query] = steps.map(|step| step as i64);
    AttentionMask {
        mask,
        mask_item,
        mask_head,
        mask_query,
        kind,
    }
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
        let values = ValueRows {
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
    let all = [q, k, v, &out];
    let found = if masked {
        masked_attention(s, all, scale, mask)?
    } else {
        mma_attention(s, all, scale)?
    };
    if !found {
        plain(s, all, scale, mask)?;
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
    values: ValueRows<'_>,
    scale: f32,
) -> Result<GpuBuffer> {
    let out = q.card().buffer(q.len(), q.format())?;
    hopper_attention(s, [q, k, &out], values, scale)?;
    Ok(out)
}

fn hopper_attention(
    s: Sizes,
    [q, k, out]: [&GpuBuffer; 3],
    values: ValueRows<'_>,
    scale: f32,
) -> Result<()> {
    let device = q.card();
    let (kernel, keys, queries, shared, threads) = match Hopper::find(s, device.multiprocessors()) {
        Some(h) => (
            h.kernel,
            h.keys,
            64 * h.groups,
            h.shared(),
            128 * (h.groups + 1),
        ),
        None => (HopperKernel::Attention512, 64, 64, WIDE_SHARED, 384),
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
    let attention = attention_hopper::Attention {
        kernel,
        map_q: map((q.address(), own), [s.d, s.heads], s.queries, queries)?,
        map_k: map((k.address(), own), [own, 1], s.keys, keys)?,
        map_v: map((first, values.row), [own, 1], s.keys, keys)?,
        out: out.into(),
        sizes: sizes(s, scale)?,
    };
    let shape = Shape::row(blocks(s, queries, 1)?, threads).with_shared(shared);
    tell_work(s, out);
    device.launch(q.format(), shape, attention)
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
    let each = all.div_ceil(SHORT_BLOCKS * device.multiprocessors() as usize);
    let each = each.clamp(1, s.queries.div_ceil(queries));
    let attention = attention_mma::Short {
        kernel: instance.kernel,
        tensors: tensors([q, k, v, out]),
        sizes: sizes(s, scale)?,
        each: small(each)?,
    };
    let blocks = blocks(s, super::blocks(queries * each)?, 1)?;
    tell_work(s, out);
    let shape = Shape::row(blocks, 32 * instance.warps as u32).with_shared(instance.shared());
    device.launch(q.format(), shape, attention)
}

/// `false` where no instance has room, as below.
fn mma_attention(s: Sizes, [q, k, v, out]: [&GpuBuffer; 4], scale: f32) -> Result<bool> {
    let Some(instance) = Mma::find(&MMA, s.d, q.card().shared_limit()) else {
        return Ok(false);
    };
    let attention = attention_mma::Attention {
        kernel: instance.kernel,
        tensors: tensors([q, k, v, out]),
        sizes: sizes(s, scale)?,
    };
    tell_work(s, out);
    q.card().launch(q.format(), instance.shape(s)?, attention)?;
    Ok(true)
}

fn masked_attention(
    s: Sizes,
    [q, k, v, out]: [&GpuBuffer; 4],
    scale: f32,
    mask: GpuMask<'_>,
) -> Result<bool> {
    let Some(instance) = Mma::find(&MASKED, s.d, q.card().shared_limit()) else {
        return Ok(false);
    };
    let attention = attention_mma::Masked {
        kernel: instance.kernel,
        tensors: tensors([q, k, v, out]),
        sizes: sizes(s, scale)?,
        mask: mask_parameters(mask),
    };
    tell_work(s, out);
    q.card().launch(q.format(), instance.shape(s)?, attention)?;
    Ok(true)
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
    let (kernel, slice) = match s.d {
        0..=64 => (PlainKernel::Attention64, 64),
        65..=128 => (PlainKernel::Attention128, 128),
        _ => (PlainKernel::Attention256, 256),
    };
    let attention = attention_plain::Attention {
        kernel,
        tensors: tensors([q, k, v, out]),
        sizes: sizes(s, scale)?,
        mask: mask_parameters(mask),
    };
    let blocks = blocks(s, PLAIN_QUERIES, s.d.div_ceil(slice))?;
    q.card()
        .launch(q.format(), Shape::row(blocks, 256), attention)
}

/// The softmax of `q k^T * scale` itself, (batch * heads, queries, keys).
pub(crate) fn probabilities(s: Sizes, [q, k]: [&GpuBuffer; 2], scale: f32) -> Result<GpuBuffer> {
    check_plain(s)?;
    let device = q.card();
    let count = s.batch * s.heads * s.queries * s.keys;
    let out = device.buffer(count, q.format())?;
    if count > 0 {
        let probabilities = attention_plain::Probabilities {
            q_all: q.into(),
            k_all: k.into(),
            out: (&out).into(),
            sizes: sizes(s, scale)?,
        };
        let shape = Shape::row(blocks(s, PLAIN_QUERIES, 1)?, 256);
        device.launch(q.format(), shape, probabilities)?;
    }
    Ok(out)
}
