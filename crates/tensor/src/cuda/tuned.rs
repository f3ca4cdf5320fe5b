//! Choices that were measured: which kernel, in which tiles, from how many rows on, and in how many blocks.
//!
//! Each part says the card and what was timed there. Another card runs with the same choices, scaled by its multiprocessors where a comment says so, until somebody
//! measures it: `FRESCO_TUNE=1` times products in every tile (`ops/product_tuning.rs`), `cargo xtask bench gpu` times networks and names their kernels. What a kernel cannot do
//! otherwise, such as the sizes it is compiled for and the room in its shared memory, stands beside its launch.

use super::launches::attention_hopper::AttentionKernel;
use super::launches::norm_cluster::GroupKernel;

/// Multiprocessors of an H200, to which numbers of clusters that run at once are compared.
pub(super) const H200_MULTIPROCESSORS: usize = 132;

// ---- products: H200, f16, microseconds of the device's clock; the shapes of ops/product_tuning.rs -----------------------------------------------

/// The cost of a tile of 128 rows, in microseconds of a multiprocessor.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileCost {
    pub(super) width: usize,
    /// One step along K.
    pub(super) step: f64,
    /// What comes before the first step and after the last, for each tile.
    pub(super) each: f64,
    /// The same once.
    pub(super) once: f64,
}

const fn cost(width: usize, step: f64, each: f64, once: f64) -> TileCost {
    TileCost {
        width,
        step,
        each,
        once,
    }
}

/// Steps of 64 channels. The narrowest first.
pub(super) const HOPPER: [TileCost; 4] = [
    cost(64, 0.235, 0.9, 0.6),
    cost(128, 0.335, 1.2, 0.8),
    cost(160, 0.42, 1.2, 0.8),
    cost(256, 0.66, 1.6, 0.8),
];
/// The same for kernels of which every block, or every cluster of blocks, makes one tile, and the sizes of clusters that there are. They are few, because code
/// that was not used for a while is waited for.
pub(super) const HOPPER_ONCE: [(TileCost, &[usize]); 3] = [
    (cost(64, 0.235, 0.4, 0.4), &[1, 2, 5]),
    (cost(80, 0.3, 0.4, 0.4), &[1, 2]),
    (cost(160, 0.412, 0.5, 0.5), &[1, 2, 3]),
];
/// Those that begin at the multiples of 256 from which on columns have an activation.
pub(super) const HOPPER_WIDE: [TileCost; 2] = [HOPPER[1], HOPPER[3]];
/// With bytes for operands: steps of 128 channels.
pub(super) const HOPPER_BYTES: [TileCost; 2] = [HOPPER[1], HOPPER[3]];
/// With a gate: the one in the middle by turns.
pub(super) const HOPPER_GEGLU: [TileCost; 3] = [
    cost(128, 0.345, 1.8, 0.8),
    cost(160, 0.4, 1.8, 0.8),
    cost(256, 0.66, 2.8, 0.8),
];
/// The same with bytes for operands.
pub(super) const HOPPER_GEGLU_BYTES: [TileCost; 2] = [HOPPER_GEGLU[0], HOPPER_GEGLU[2]];

/// What blocks of a cluster take to add their sums, in microseconds.
pub(super) const CLUSTER_SUMS: f64 = 1.0;

/// Multiprocessors of an H200 that clusters of so many blocks can have at once. They lie in groups, some with members missing, and a cluster is in one of them.
pub(super) const fn in_clusters(size: usize) -> usize {
    match size {
        1 | 2 => 132,
        3 => 117,
        4 => 120,
        5 => 110,
        _ => 102,
    }
}

/// Most steps along K of tiles that are made by turns: with more of them the ends of tiles hardly count.
pub(super) const MOST_STEPS_BY_TURNS: usize = 60;

/// Millions of operations of mma.sync that a multiprocessor does in a microsecond, on cards for servers and on others.
const MMA_RATES: [f64; 2] = [2.6, 1.0];

/// Steps of 32 channels with mma.sync on a card of a compute capability.
pub(super) fn mma_costs(arch: u32) -> [TileCost; 2] {
    let [server, other] = MMA_RATES;
    let millions = if matches!(arch, 80 | 90 | 100) {
        server
    } else {
        other
    };
    let step =
        |width: usize, share: f64| 2.0 * 128.0 * width as f64 * 32.0 / (millions * share) / 1e6;
    [
        cost(128, step(128, 0.9), 0.8, 2.0),
        cost(256, step(256, 1.0), 2.0, 1.0),
    ]
}

/// Most parts of a tile along K, and least steps of one.
pub(super) const MOST_PARTS: usize = 16;
pub(super) const LEAST_PART_STEPS: usize = 4;
/// The kernel that adds parts: its start in microseconds, and bytes that it reads in one.
pub(super) const ADDING_PARTS: f64 = 6.0;
pub(super) const ADDED_BYTES: f64 = 6e6;

/// Pixels of a result over an enlarged picture from which on adding weights of equal pixels costs less than it saves: the up-sampling convolutions of SD1.5.
pub(super) const DOUBLED_PIXELS: usize = 8192;
/// Positions of kernels over all pixels, of few channels, up to which what they see is put together first: the first convolution of SD1.5.
pub(super) const GATHERED_POSITIONS: usize = 1 << 21;
/// Tiles of 128 by 128 for each multiprocessor from which on products without tensor cores are made in them, and not in tiles of 64 by 64.
pub(super) const LARGE_TILES: usize = 2;

// ---- attention: H200, f16, the sizes of SD1.5, SDXL and Flux -----------------------------------------------------------------------

/// What one warp group of a kernel takes, compared with others for heads of the same width.
pub(super) const fn attention_cost(kernel: AttentionKernel) -> u32 {
    match kernel {
        AttentionKernel::Attention40Of4 => 99,
        AttentionKernel::Attention80 => 116,
        _ => 100,
    }
}

/// Blocks for each multiprocessor where keys are few: one has something to do while the other waits for its first queries.
pub(super) const SHORT_BLOCKS: usize = 2;

// ---- norms: H200, f16, the sizes of SD1.5 ------------------------------------------------------------------------------------------

/// Sums of so many blocks are added by every block that uses them; more are added once, by a kernel of their own.
pub(super) const JOINED_SUMS: usize = 144;
/// Bytes of a tensor from which on more blocks are better for a group norm in two passes.
pub(super) const MANY_BYTES: usize = 32 << 20;
/// Blocks for each multiprocessor of two passes: where there are many bytes, or another card, and where there are few.
pub(super) const PASS_BLOCKS: [usize; 2] = [4, 2];
/// Blocks for each multiprocessor where products left sums.
pub(super) const KNOWN_BLOCKS: usize = 2;
/// Blocks of a cluster, the kernel, and how many such clusters the multiprocessors of an H200 have at once, with one block on each.
pub(super) const NORM_CLUSTERS: [(usize, GroupKernel, usize); 4] = [
    (1, GroupKernel::Group1, 132),
    (2, GroupKernel::Group2, 66),
    (4, GroupKernel::Group4, 30),
    (8, GroupKernel::Group8, 15),
];

/// Whether clusters keep all multiprocessors at work, as far as that pays: of those that each have several blocks, a third is enough for little work (`vectors` of
/// a thread).
pub(super) const fn clusters_are_busy(
    blocks: usize,
    multiprocessors: usize,
    size: usize,
    vectors: usize,
) -> bool {
    8 * blocks >= 7 * multiprocessors || (3 * blocks >= multiprocessors && size > 1 && vectors <= 6)
}

/// Rows for each multiprocessor below which the norm of a row is given a block of its own: twice the warps that run at once.
pub(super) const FEW_ROWS: usize = 48;
/// The same from which on rows of 33 to 40 vectors have a kernel in which every thread has the same share.
pub(super) const EVEN_ROWS: usize = 24;

// ---- what is bound by memory: H200 -------------------------------------------------------------------------------------------------

/// Most blocks for each multiprocessor of what happens between the layers of transformers.
pub(super) const BETWEEN_BLOCKS: usize = 32;
/// Least rows and columns that are worth a transposition through tiles.
pub(super) const LEAST_TRANSPOSED: usize = 16;
/// Longest row for whose sum a warp is enough.
pub(super) const SHORT_SUM: usize = 512;
/// Shortest part of a row that is worth a block of its own, if there are few rows, and most parts of a row.
pub(super) const SUM_PART: usize = 1 << 14;
pub(super) const SUM_PARTS: usize = 512;
/// So many rows keep a device busy without being cut.
pub(super) const MANY_SUMS: usize = 512;
/// Tokens of a part of the sums of attention among channels, and most parts.
pub(super) const CHANNEL_PART: usize = 1024;
pub(super) const CHANNEL_PARTS: usize = 64;
/// The share of free memory that a form of kernels may take, which is only there to save time.
pub(super) const SPARE_MEMORY: u64 = 16;
