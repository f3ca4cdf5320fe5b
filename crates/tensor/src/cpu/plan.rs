//! The order in which a product adds up: steps of channels, and blocks of steps whose decoded weights fit a cache.
//!
//! It depends on the shapes alone, so that neither the number of threads nor the division of rows changes a bit.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::isa::{self, Isa};
use super::kernel::{self, KernelStep};
use super::packed::{WIDTH, Weight};
use super::picture::{Grid, Phase, halved_taps};
#[cfg(target_arch = "x86_64")]
use crate::dtype::Dtype;

/// Channels of a linear layer's block: its activations for some hundred rows fill half of a second cache.
const ROW_BLOCK: usize = 1280;
/// Channels of a convolution's block: its decoded weights fill a quarter of a second cache.
const PICTURE_BLOCK: usize = 4096;
/// Most channels of one step of vectors.
const VECTOR_STEP: usize = 2048;
/// Fewer rows than this are not worth the padding of tiles.
#[cfg(target_arch = "x86_64")]
const TILE_ROWS: usize = 9;

/// What multiplies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ProductEngine {
    /// f32 vectors.
    Vector(Isa),
    /// Tiles of so many bf16 parts of an activation.
    #[cfg(target_arch = "x86_64")]
    Tiles(usize),
}

impl ProductEngine {
    pub(super) fn choose(rows: usize, weight: &Weight) -> Self {
        // Formats that two parts hold without loss. The others would take more products than tiles are worth.
        #[cfg(target_arch = "x86_64")]
        let exact = match weight.dtype() {
            Dtype::F16 | Dtype::Bf16 | Dtype::F8E4M3 | Dtype::F8E5M2 => true,
            Dtype::Rows(format) => weight.is_plain(format),
            _ => false,
        };
        #[cfg(target_arch = "x86_64")]
        if rows >= TILE_ROWS && exact && isa::tiles() {
            return Self::Tiles(if weight.is_short() { 2 } else { 3 });
        }
        let _ = (rows, weight);
        Self::Vector(isa::isa())
    }

    /// The instruction set for what is not a product.
    pub(super) fn isa(self) -> Isa {
        match self {
            Self::Vector(isa) => isa,
            #[cfg(target_arch = "x86_64")]
            Self::Tiles(_) => Isa::Avx512,
        }
    }

    /// Rows of a block of the kernel.
    pub(super) fn rows(self) -> usize {
        match self {
            Self::Vector(isa) => kernel::rows(isa),
            #[cfg(target_arch = "x86_64")]
            Self::Tiles(_) => amx::ROWS,
        }
    }

    /// Bytes from one copied pixel or row to the next; in tiles for each of the parts.
    pub(super) fn row_bytes(self, channels: usize) -> usize {
        let bytes = match self {
            Self::Vector(_) => channels * 4,
            #[cfg(target_arch = "x86_64")]
            Self::Tiles(_) => channels.next_multiple_of(amx::DEPTH) * 2,
        };
        // An odd number of lines spreads the rows of a tile over the sets of the first cache.
        (bytes.div_ceil(64) | 1) * 64
    }

    /// Parts into which activations are split.
    pub(super) fn parts(self) -> usize {
        match self {
            Self::Vector(_) => 1,
            #[cfg(target_arch = "x86_64")]
            Self::Tiles(parts) => parts,
        }
    }
}

/// A step of the sum and the weights it takes.
#[derive(Clone, Copy)]
pub(super) struct ProductPart {
    pub(super) tap: usize,
    /// How many taps are added up, downwards and to the right.
    pub(super) sum: (usize, usize),
    pub(super) channel: usize,
    /// Number of channels.
    pub(super) len: usize,
    /// Where its tiles begin in those of its block, in bytes.
    #[cfg(target_arch = "x86_64")]
    pub(super) at: usize,
}

/// Some steps, one after the other.
pub(super) struct Block {
    pub(super) parts: Vec<ProductPart>,
    /// The steps again, as the vector kernels read them.
    pub(super) steps: Vec<KernelStep>,
    /// The same for tiles.
    pub(super) offsets: Vec<usize>,
    /// Bytes of the decoded weights.
    pub(super) bytes: usize,
    /// Channels, where there is only one tap.
    pub(super) channels: Range<usize>,
}

/// The order of one product.
pub(super) struct ProductPlan {
    pub(super) blocks: Vec<Block>,
    /// Bytes from one row (or pixel) of prepared activations to the next.
    pub(super) row_bytes: usize,
    /// Whether bf16 is too short for the weights.
    pub(super) split: bool,
}

impl ProductPlan {
    /// For rows of channels. Each block has its own activations.
    pub(super) fn rows(engine: ProductEngine, weight: &Weight) -> Self {
        let channels = weight.channels();
        let split = weight.is_split();
        let direct = engine.parts() == 1;
        let row_bytes = if direct {
            channels * 4
        } else {
            engine.row_bytes(channels.min(ROW_BLOCK))
        };
        let blocks = (0..channels)
            .step_by(ROW_BLOCK)
            .map(|first| {
                let range = first..channels.min(first + ROW_BLOCK);
                let mut block = Block::new(range.clone());
                let most = most(engine);
                for channel in range.clone().step_by(most) {
                    let len = most.min(range.end - channel);
                    // Vectors read the activations where they are.
                    let offset = if direct {
                        channel * 4
                    } else {
                        (channel - first) * 2
                    };
                    block.push(engine, split, (0, (1, 1)), channel, len, offset);
                }
                block
            })
            .collect();
        Self {
            blocks,
            row_bytes,
            split,
        }
    }

    /// For pictures. All blocks read the same copied pixels.
    pub(super) fn picture(
        engine: ProductEngine,
        weight: &Weight,
        grid: &Grid,
        kernel: (usize, usize),
        phase: Phase,
    ) -> Self {
        let doubled = phase.scale > 1;
        // Sums are longer than what is added.
        let split = weight.is_split() || doubled;
        let channels = weight.channels();
        let row_bytes = engine.row_bytes(channels);
        let most = most(engine);
        let size = if engine.parts() == 1 { 4 } else { 2 };
        let mut blocks = vec![Block::new(0..channels)];
        let mut sum = 0;
        for y in 0..kernel.0 {
            let along = (0..channels).step_by(most);
            // Neighbouring taps of a row read almost the same pixels: in tiles they take turns.
            let order: Vec<(usize, usize)> = match engine {
                ProductEngine::Vector(_) => (0..kernel.1)
                    .flat_map(|x| along.clone().map(move |c| (x, c)))
                    .collect(),
                #[cfg(target_arch = "x86_64")]
                ProductEngine::Tiles(_) => along
                    .flat_map(|c| (0..kernel.1).map(move |x| (x, c)))
                    .collect(),
            };
            for (x, channel) in order {
                let len = most.min(channels - channel);
                if sum > 0 && sum + len > PICTURE_BLOCK {
                    blocks.push(Block::new(0..channels));
                    sum = 0;
                }
                sum += len;
                let block = blocks.last_mut().expect("there is one from the start");
                let offset = grid.tap(y, x) * row_bytes + channel * size;
                let tap = if doubled {
                    let (top, down) = halved_taps(phase.row, y);
                    let (left, right) = halved_taps(phase.column, x);
                    (top * 3 + left, (down, right))
                } else {
                    (y * kernel.1 + x, (1, 1))
                };
                block.push(engine, split, tap, channel, len, offset);
            }
        }
        Self {
            blocks,
            row_bytes,
            split,
        }
    }
}

/// Most channels of a step.
fn most(engine: ProductEngine) -> usize {
    match engine {
        ProductEngine::Vector(_) => VECTOR_STEP,
        #[cfg(target_arch = "x86_64")]
        ProductEngine::Tiles(_) => amx::DEPTH,
    }
}

impl Block {
    /// Whether no taps are added up.
    pub(super) fn is_plain(&self) -> bool {
        self.parts.iter().all(|part| part.sum == (1, 1))
    }

    fn new(channels: Range<usize>) -> Self {
        Self {
            parts: Vec::new(),
            steps: Vec::new(),
            offsets: Vec::new(),
            bytes: 0,
            channels,
        }
    }

    fn push(
        &mut self,
        engine: ProductEngine,
        split: bool,
        (tap, sum): (usize, (usize, usize)),
        channel: usize,
        len: usize,
        offset: usize,
    ) {
        self.parts.push(ProductPart {
            tap,
            sum,
            channel,
            len,
            #[cfg(target_arch = "x86_64")]
            at: self.bytes,
        });
        self.steps.push(KernelStep { offset, len });
        self.offsets.push(offset);
        self.bytes += match engine {
            ProductEngine::Vector(_) => len * WIDTH * 4,
            #[cfg(target_arch = "x86_64")]
            ProductEngine::Tiles(_) => amx::step_bytes(split),
        };
        let _ = split;
    }
}
