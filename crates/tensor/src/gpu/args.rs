//! What operations on a GPU are told: sizes, places, and what follows a product.

use super::{GpuBuffer, GpuSlice, GpuWeight};
use crate::nn::Act;

/// Activations, by their numbers in kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    Silu = 9,
    Gelu = 10,
    GeluTanh = 11,
    QuickGelu = 12,
    Relu = 13,
    Leaky = 14,
    Mish = 15,
    Tanh = 16,
    Sigmoid = 17,
}

impl Act {
    /// The same as a function of every element; none where nothing happens.
    pub(crate) fn activation(self) -> Option<Activation> {
        Some(match self {
            Self::None => return None,
            Self::Silu => Activation::Silu,
            Self::Gelu => Activation::Gelu,
            Self::GeluTanh => Activation::GeluTanh,
            Self::QuickGelu => Activation::QuickGelu,
            Self::Relu => Activation::Relu,
            Self::Leaky => Activation::Leaky,
        })
    }
}

/// Fusions of which a layer wants to know beforehand whether a device has them, because it would order its work otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fusion {
    /// [`super::GpuFusions::offer_linear_each`]
    LinearEach,
    /// [`super::GpuFusions::offer_few_rows`]
    FewRows,
    /// [`super::GpuFusions::offer_linear_of_two`]
    LinearOfTwo,
    /// [`super::GpuFusions::offer_group_norm_of_two`]
    GroupNormOfTwo,
    /// [`super::GpuFusions::offer_conv_with_skip`]
    ConvAndLinear,
}

/// Which channels of a head are a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RopePairs {
    Neighbours,
    Halves,
}

/// For every new position along an axis, the old positions that count and their weights: so many of them for each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AxisTaps<'a> {
    pub(crate) per_output: usize,
    pub(crate) index: &'a [usize],
    pub(crate) weight: &'a [f32],
}

/// Which keys a query may look at. Steps are over items, heads and queries; a mask has the format of the tensors.
#[derive(Clone, Copy)]
pub(crate) enum GpuMask<'a> {
    None,
    Causal,
    Add {
        data: &'a GpuBuffer,
        steps: [usize; 3],
    },
}

/// Where the values of attention are: in `rows`, from an element on, and elements from one token to the next.
#[derive(Clone, Copy)]
pub(crate) struct ValueRows<'a> {
    pub(crate) rows: &'a GpuBuffer,
    pub(crate) first: usize,
    pub(crate) row: usize,
}

/// Sizes of queries, keys and values together: (items, tokens, heads * d) each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadSizes {
    pub(crate) items: usize,
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) d: usize,
}

/// Tables of angles, F32, one for all items or one for each; and whether pairs are half a head apart.
#[derive(Clone, Copy)]
pub(crate) struct HeadAngles<'a> {
    pub(crate) cos: &'a GpuBuffer,
    pub(crate) sin: &'a GpuBuffer,
    pub(crate) each_item: bool,
    pub(crate) apart: bool,
}

/// A part of the tokens: queries, keys and values, each in rows of so many elements of a tensor from an element on, where
/// its first token goes, and the norms of each head of queries and keys.
#[derive(Clone, Copy)]
pub(crate) struct HeadTokens<'a> {
    pub(crate) from: [(&'a GpuBuffer, usize); 3],
    pub(crate) row_width: usize,
    pub(crate) tokens: usize,
    pub(crate) first: usize,
    pub(crate) norms: Option<[GpuSlice<'a>; 2]>,
    pub(crate) eps: f32,
}

/// What follows a product: `gate * act(y + bias + per_item) + residual`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Finish<'a> {
    /// One f32 per output.
    pub(crate) bias: Option<GpuSlice<'a>>,
    /// (items, outputs), in the format of the input, as all that follows.
    pub(crate) per_item: Option<&'a GpuBuffer>,
    /// (items, outputs)
    pub(crate) gate: Option<&'a GpuBuffer>,
    /// Of the shape of the result.
    pub(crate) residual: Option<&'a GpuBuffer>,
    pub(crate) act: Act,
    /// The first column with the activation: a multiple of 256, or all.
    pub(crate) act_from: usize,
    /// Rows of the result that an item has.
    pub(crate) rows_per_item: usize,
    /// Whether a group norm follows, for which the mean and the spread of the result are left with it where that costs little.
    pub(crate) for_norm: bool,
}

/// What happens to the input of a layer first.
#[derive(Clone, Copy, Default)]
pub(crate) struct Treatment<'a> {
    /// A factor for each channel, F32.
    pub(crate) scale: Option<GpuSlice<'a>>,
    /// Whether nothing is rounded, also where the format of the weight would have it.
    pub(crate) exact: bool,
    /// Whether the weight stays where it is after the layer, so that another form of it can be kept.
    pub(crate) stays: bool,
}

/// How a convolution reads its input, (frames, size, channels).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) frames: usize,
    pub(crate) size: (usize, usize),
    /// What the pictures are enlarged to by repeating pixels.
    pub(crate) enlarged: (usize, usize),
    pub(crate) channels: usize,
    /// Frames, height and width of the result.
    pub(crate) out: [usize; 3],
    /// Time, height and width of the kernels.
    pub(crate) kernel: [usize; 3],
    pub(crate) time_stride: usize,
    pub(crate) stride: usize,
    /// Frames of zeros before the first; those in the input do not count. Below zero the first frames are left out.
    pub(crate) time_before: i32,
    /// Zeros above and at the left.
    pub(crate) above: usize,
    pub(crate) left: usize,
}

/// Columns behind those of a matrix of as many rows.
#[derive(Clone, Copy)]
pub(crate) struct TrailingColumns<'a> {
    /// Rows of `row` elements, whose columns from `first` on they are.
    pub(crate) wide: &'a GpuBuffer,
    pub(crate) row: usize,
    pub(crate) first: usize,
    pub(crate) columns: usize,
}

/// A weight, and one f32 per output that is added.
pub(crate) type WeightWithBias<'a> = (&'a dyn GpuWeight, Option<GpuSlice<'a>>);

/// A layer of single pixels whose product is added to that of a convolution of stride 1 before it is rounded.
#[derive(Clone, Copy)]
pub(crate) struct SkipLayer<'a> {
    pub(crate) weight: &'a dyn GpuWeight,
    /// One f32 per output.
    pub(crate) bias: Option<GpuSlice<'a>>,
    /// Its input, as many pixels as the result has.
    pub(crate) x: &'a GpuBuffer,
    /// Channels behind those of the input.
    pub(crate) behind: Option<&'a GpuBuffer>,
}

/// Sizes of a group norm over (items, pixels, channels), what is done with it, and a weight and a bias in F32.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupNormSpec<'a> {
    pub(crate) items: usize,
    pub(crate) pixels: usize,
    pub(crate) channels: usize,
    pub(crate) groups: usize,
    pub(crate) weight: GpuSlice<'a>,
    pub(crate) bias: GpuSlice<'a>,
    pub(crate) eps: f32,
    pub(crate) act: Act,
}

/// What rows are normalised by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowNormKind {
    /// Mean and deviation.
    Layer,
    /// The root mean square.
    Rms,
}

/// What follows: weight and bias in F32; `modulation` is shift and scale, a row of each for every item.
#[derive(Clone, Copy, Default)]
pub(crate) struct RowNormEnd<'a> {
    pub(crate) weight: Option<GpuSlice<'a>>,
    pub(crate) bias: Option<GpuSlice<'a>>,
    pub(crate) modulation: Option<(&'a GpuBuffer, &'a GpuBuffer)>,
}

/// A norm of rows of `width`.
#[derive(Clone, Copy)]
pub(crate) struct RowNorm<'a> {
    pub(crate) width: usize,
    pub(crate) kind: RowNormKind,
    pub(crate) end: RowNormEnd<'a>,
    pub(crate) eps: f32,
}
