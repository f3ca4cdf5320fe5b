//! Parameters of all kernels, by their sources. Made by `cargo xtask cuda --launches`; not to be edited.
//! Sources: 06007f21d558bd98

#![expect(
    clippy::enum_variant_names,
    reason = "variants have the names of kernels"
)]

use super::driver::TensorMap;
use super::launch::{Element, Pointer, Unit, kernel_names, kernel_parameters, shared_parameters};

shared_parameters! { AfterProduct; bias: Pointer<f32>, per_item: Pointer<Element>, gate: Pointer<Element>, residual: Pointer<Element>, out: Pointer<Element>, act: i32, rows_per_item: i32, act_from: i32 }
shared_parameters! { AttentionMask; mask: Pointer<Element>, mask_item: i64, mask_head: i64, mask_query: i64, kind: i32 }
shared_parameters! { AttentionSizes; queries: i32, keys: i32, heads: i32, d: i32, scale: f32 }
shared_parameters! { AttentionTensors; q: Pointer<Element>, k: Pointer<Element>, v: Pointer<Element>, out: Pointer<Element> }
shared_parameters! { ByteScales; row_scale: Pointer<f32>, column_scale: Pointer<f32> }
shared_parameters! { LineTarget; row_bytes: i32, place: i32, count: i32 }
shared_parameters! { NormRows; weight: Pointer<f32>, bias: Pointer<f32>, scale: Pointer<Element>, shift: Pointer<Element>, rows: i32, width: i32, each: i32, eps: f32, rms: i32 }
shared_parameters! { OtherResults; bias1: Pointer<f32>, out1: Pointer<Element>, bias2: Pointer<f32>, out2: Pointer<Element>, each: i32 }
shared_parameters! { PixelBoxes; out_height: i32, out_width: i32, out_count: i32, wlog: i32, hlog: i32, phases: i32 }
shared_parameters! { ProductMaps; ta: TensorMap, ta1: TensorMap, tb: TensorMap, tb1: TensorMap, tb2: TensorMap }
shared_parameters! { ProductParts; full_tiles: i32, parts: i32, sums: Pointer<f32> }
shared_parameters! { ProductWindow; frames: i32, in_height: i32, in_width: i32, channels: i32, large_height: i32, large_width: i32, out_height: i32, out_width: i32, time: i32, height: i32, width: i32, time_stride: i32, stride: i32, time_before: i32, above: i32, left: i32 }
shared_parameters! { ResultMaps; to: TensorMap, to1: TensorMap, to2: TensorMap, tr: TensorMap }
shared_parameters! { RowLayout; row_bytes: i32, code_bytes: i32, group_bytes: i32, groups: i32, group: i32, bits: i32, levels: i32, corrected: i32, number: i32 }
shared_parameters! { StepWindow; channels: i32, time: i32, height: i32, width: i32, time_stride: i32, shift: i32, time_before: i32, above: i32, left: i32, split: i32, more: i32, more_split: i32 }
shared_parameters! { WeightSizes; out: i32, channels: i32, taps: i32, padded: i32, all_taps: i32, first: i32 }

/// `kernels/arrange.cu`
pub(crate) mod arrange {
    use super::*;

    kernel_names! { CopyKernel { Copy2: "copy_2", Copy4: "copy_4", Copy8: "copy_8", Copy16: "copy_16", Copy2Wide: "copy_2_wide", Copy4Wide: "copy_4_wide", Copy8Wide: "copy_8_wide", Copy16Wide: "copy_16_wide" } }
    kernel_parameters! { plain Copy, module "arrange", kernel CopyKernel; to: Pointer<Unit>, from: Pointer<Unit>, total: i64, walk: [u64; 19] }
    kernel_names! { TransposeKernel { Transpose2: "transpose_2", Transpose4: "transpose_4" } }
    kernel_parameters! { plain Transpose, module "arrange", kernel TransposeKernel; to: Pointer<Unit>, from: Pointer<Unit>, rows: i64, columns: i64, row_step: i64, column_step: i64, walk: [u64; 19] }
    kernel_names! { SelectKernel { Select2: "select_2", Select4: "select_4", Select8: "select_8", Select16: "select_16", Select2Wide: "select_2_wide", Select4Wide: "select_4_wide", Select8Wide: "select_8_wide", Select16Wide: "select_16_wide" } }
    kernel_parameters! { plain Select, module "arrange", kernel SelectKernel; to: Pointer<Unit>, from: Pointer<Unit>, ids: Pointer<u32>, total: i64, picks: i64, size: i64, inner: i64 }
    kernel_names! { NearestKernel { Nearest2: "nearest_2", Nearest4: "nearest_4", Nearest8: "nearest_8", Nearest16: "nearest_16" } }
    kernel_parameters! { plain Nearest, module "arrange", kernel NearestKernel; to: Pointer<Unit>, from: Pointer<Unit>, rows: i64, h: i32, w: i32, height: i32, width: i32, c: i32 }
    kernel_parameters! { plain Split, module "arrange", kernel "split_16"; from: Pointer<[u32; 4]>, total: i64, parts: i32, width: i32, to: [u64; 8] }
}

/// `kernels/attention_hopper.cu`
pub(crate) mod attention_hopper {
    use super::*;

    kernel_names! { AttentionKernel { Attention40: "attention_40", Attention40Of4: "attention_40_of_4", Attention64: "attention_64", Attention80: "attention_80", Attention80Of3: "attention_80_of_3", Attention128: "attention_128", Attention160: "attention_160", Attention256: "attention_256", Attention512: "attention_512" } }
    kernel_parameters! { formatted Attention, module "attention_hopper", kernel AttentionKernel; map_q: TensorMap, map_k: TensorMap, map_v: TensorMap, out: Pointer<Element>, sizes: AttentionSizes }
}

/// `kernels/attention_mma.cu`
pub(crate) mod attention_mma {
    use super::*;

    kernel_names! { ShortKernel { Short40: "short_40", Short64: "short_64", Short80: "short_80", Short160: "short_160" } }
    kernel_parameters! { formatted Short, module "attention_mma", kernel ShortKernel; tensors: AttentionTensors, sizes: AttentionSizes, each: i32 }
    kernel_names! { AttentionKernel { Attention40: "attention_40", Attention64: "attention_64", Attention80: "attention_80", Attention128: "attention_128", Attention128Small: "attention_128_small", Attention160: "attention_160", Attention256: "attention_256" } }
    kernel_parameters! { formatted Attention, module "attention_mma", kernel AttentionKernel; tensors: AttentionTensors, sizes: AttentionSizes }
    kernel_names! { MaskedKernel { Masked64: "masked_64", Masked128: "masked_128", Masked256: "masked_256" } }
    kernel_parameters! { formatted Masked, module "attention_mma", kernel MaskedKernel; tensors: AttentionTensors, sizes: AttentionSizes, mask: AttentionMask }
}

/// `kernels/attention_plain.cu`
pub(crate) mod attention_plain {
    use super::*;

    kernel_names! { AttentionKernel { Attention64: "attention_64", Attention128: "attention_128", Attention256: "attention_256" } }
    kernel_parameters! { formatted Attention, module "attention_plain", kernel AttentionKernel; tensors: AttentionTensors, sizes: AttentionSizes, mask: AttentionMask }
    kernel_parameters! { formatted Probabilities, module "attention_plain", kernel "probabilities"; q_all: Pointer<Element>, k_all: Pointer<Element>, out: Pointer<Element>, sizes: AttentionSizes }
}

/// `kernels/bytes.cu`
pub(crate) mod bytes {
    use super::*;

    kernel_names! { ToBytesKernel { WholeNumbers: "whole_numbers", RotatedWholeNumbers: "rotated_whole_numbers", E4m3: "e4m3" } }
    kernel_parameters! { formatted ToBytes, module "bytes", kernel ToBytesKernel; a: Pointer<Element>, b: Pointer<Element>, factors: Pointer<f32>, to: Pointer<u8>, scales: Pointer<f32>, left: i32, right: i32, step: i64, levels: f32, group: i32 }
}

/// `kernels/elementwise.cu`
pub(crate) mod elementwise {
    use super::*;

    kernel_names! { BinaryKernel { BinaryPacks: "binary_packs", Binary: "binary", BinaryWide: "binary_wide" } }
    kernel_parameters! { formatted Binary, module "elementwise", kernel BinaryKernel; to: Pointer<Element>, a: Pointer<Element>, b: Pointer<Element>, total: i64, op: i32, weight: f32, walk: [u64; 19] }
    kernel_parameters! { formatted Unary, module "elementwise", kernel "unary"; to: Pointer<Element>, from: Pointer<Element>, total: i64, op: i32, p: f32, q: f32 }
    kernel_parameters! { formatted Fill, module "elementwise", kernel "fill"; to: Pointer<Element>, value: f32, total: i64 }
    kernel_parameters! { formatted Guide, module "elementwise", kernel "guide"; to: Pointer<Element>, cond: Pointer<Element>, uncond: Pointer<Element>, total: i64, scale: f32 }
    kernel_parameters! { formatted Euler, module "elementwise", kernel "euler"; to: Pointer<Element>, x: Pointer<Element>, denoised: Pointer<Element>, total: i64, sigma: f32, change: f32 }
    kernel_names! { ConvertKernel { FromF32: "from_f32", FromF16: "from_f16", FromBf16: "from_bf16" } }
    kernel_parameters! { formatted Convert, module "elementwise", kernel ConvertKernel; from: Pointer<Unit>, to: Pointer<Element>, total: i64 }
}

/// `kernels/few_rows.cu`
pub(crate) mod few_rows {
    use super::*;

    kernel_parameters! { formatted FewRows, module "few_rows", kernel "few_rows"; x: Pointer<Element>, rows: i32, columns: i32, count: i32, layers: [u64; 128] }
}

/// `kernels/heads.cu`
pub(crate) mod heads {
    use super::*;

    kernel_names! { JoinHeadsKernel { JoinHeads4: "join_heads_4", JoinHeads8: "join_heads_8", JoinHeads16: "join_heads_16", JoinHeads32: "join_heads_32" } }
    kernel_parameters! { formatted JoinHeads, module "heads", kernel JoinHeadsKernel; q: Pointer<Element>, k: Pointer<Element>, v: Pointer<Element>, from_q: Pointer<Element>, from_k: Pointer<Element>, from_v: Pointer<Element>, query: Pointer<f32>, key: Pointer<f32>, cosines: Pointer<f32>, sines: Pointer<f32>, rows: i64, tokens: i32, all: i32, first: i32, row_width: i64, heads: i32, d: i32, item_angles: i32, eps: f32, apart: i32 }
    kernel_parameters! { formatted JoinActivated, module "heads", kernel "join_activated"; to: Pointer<Element>, seen: Pointer<Element>, wide: Pointer<Element>, total: i64, left: i32, right: i32, wide_row: i32, first: i32, kind: i32 }
}

/// `kernels/misc.cu`
pub(crate) mod misc {
    use super::*;

    kernel_names! { GegluKernel { GegluPacks: "geglu_packs", GegluElements: "geglu_elements" } }
    kernel_parameters! { formatted Geglu, module "misc", kernel GegluKernel; to: Pointer<Element>, from: Pointer<Element>, total: i64, groups: i32 }
    kernel_names! { RopeKernel { RopeInterleavedPacks: "rope_interleaved_packs", RopeInterleavedElements: "rope_interleaved_elements", RopeHalfPacks: "rope_half_packs", RopeHalfElements: "rope_half_elements" } }
    kernel_parameters! { formatted Rope, module "misc", kernel RopeKernel; to: Pointer<Element>, from: Pointer<Element>, cosines: Pointer<f32>, sines: Pointer<f32>, total: i64, positions: i64, heads: i32, half: i32 }
}

/// `kernels/norm.cu`
pub(crate) mod norm {
    use super::*;

    kernel_parameters! { formatted GroupSums, module "norm", kernel "group_sums"; x: Pointer<Element>, x1: Pointer<Element>, early: i32, sums: Pointer<[f32; 2]>, origins: Pointer<f32>, pixels: i32, channels: i32, groups: i32, per_block: i32 }
    kernel_parameters! { formatted GroupJoin, module "norm", kernel "group_join"; sums: Pointer<[f32; 2]>, joined: Pointer<[f32; 2]>, count: i32, blocks: i32 }
    kernel_names! { GroupApplyKernel { GroupApplyNone: "group_apply_none", GroupApplySilu: "group_apply_silu", GroupApplyAct: "group_apply_act" } }
    kernel_parameters! { formatted GroupApply, module "norm", kernel GroupApplyKernel; x: Pointer<Element>, x1: Pointer<Element>, early: i32, sums: Pointer<[f32; 2]>, origins: Pointer<f32>, weight: Pointer<f32>, bias: Pointer<f32>, y: Pointer<Element>, pixels: i32, channels: i32, groups: i32, per_block: i32, blocks: i32, eps: f32, act: i32 }
    kernel_names! { GroupWholeKernel { GroupWholeNone: "group_whole_none", GroupWholeSilu: "group_whole_silu" } }
    kernel_parameters! { formatted GroupWhole, module "norm", kernel GroupWholeKernel; x: Pointer<Element>, sums: Pointer<[f32; 2]>, weight: Pointer<f32>, bias: Pointer<f32>, y: Pointer<Element>, pixels: i32, channels: i32, groups: i32, per_block: i32, eps: f32 }
    kernel_parameters! { formatted GroupAny, module "norm", kernel "group_any"; x: Pointer<Element>, weight: Pointer<f32>, bias: Pointer<f32>, y: Pointer<Element>, pixels: i32, channels: i32, groups: i32, eps: f32, act: i32 }
    kernel_names! { RowNormKernel { RowNorm16: "row_norm_16", RowNorm40: "row_norm_40", RowNorm80: "row_norm_80", RowNorm160: "row_norm_160", RowNorm128: "row_norm_128", RowNorm192: "row_norm_192", RowNorm384: "row_norm_384", RowNorm1024: "row_norm_1024", RowNormFew128: "row_norm_few_128", RowNormFew384: "row_norm_few_384", RowNormAny: "row_norm_any" } }
    kernel_parameters! { formatted RowNorm, module "norm", kernel RowNormKernel; x: Pointer<Element>, y: Pointer<Element>, norm: NormRows }
    kernel_names! { SoftmaxKernel { SoftmaxRows: "softmax_rows", SoftmaxWide: "softmax_wide" } }
    kernel_parameters! { formatted Softmax, module "norm", kernel SoftmaxKernel; x: Pointer<Element>, y: Pointer<Element>, rows: i32, width: i32 }
    kernel_names! { ModulateKernel { Modulate: "modulate", ModulateAny: "modulate_any" } }
    kernel_parameters! { formatted Modulate, module "norm", kernel ModulateKernel; x: Pointer<Element>, scale: Pointer<Element>, shift: Pointer<Element>, y: Pointer<Element>, count: u64, width: u32, each: u32 }
    kernel_names! { AddGatedKernel { AddGated: "add_gated", AddGatedAny: "add_gated_any" } }
    kernel_parameters! { formatted AddGated, module "norm", kernel AddGatedKernel; x: Pointer<Element>, gate: Pointer<Element>, v: Pointer<Element>, y: Pointer<Element>, count: u64, width: u32, each: u32 }
    kernel_names! { SwigluKernel { Swiglu: "swiglu", SwigluAny: "swiglu_any" } }
    kernel_parameters! { formatted Swiglu, module "norm", kernel SwigluKernel; gate: Pointer<Element>, value: Pointer<Element>, y: Pointer<Element>, count: u64, width: u32, step: u32 }
}

/// `kernels/norm_bytes.cu`
pub(crate) mod norm_bytes {
    use super::*;

    kernel_names! { NormedBytesKernel { Whole384: "whole_384", Whole1024: "whole_1024", E4m3_384: "e4m3_384", E4m3_1024: "e4m3_1024" } }
    kernel_parameters! { formatted NormedBytes, module "norm_bytes", kernel NormedBytesKernel; x: Pointer<Element>, to: Pointer<u8>, scales: Pointer<f32>, levels: f32, norm: NormRows }
}

/// `kernels/norm_cluster.cu`
pub(crate) mod norm_cluster {
    use super::*;

    kernel_names! { GroupKernel { Group1: "group_1", Group2: "group_2", Group4: "group_4", Group8: "group_8" } }
    kernel_parameters! { formatted Group, module "norm_cluster", kernel GroupKernel; x: Pointer<Element>, x1: Pointer<Element>, early: i32, weight: Pointer<f32>, bias: Pointer<f32>, y: Pointer<Element>, pixels: i32, channels: i32, width: i32, columns: i32, per_block: i32, eps: f32, act: i32 }
    kernel_parameters! { formatted GroupKnown, module "norm_cluster", kernel "group_known"; x: Pointer<Element>, x1: Pointer<Element>, early: i32, known: Pointer<[f32; 2]>, parts: i32, known1: Pointer<[f32; 2]>, parts1: i32, weight: Pointer<f32>, bias: Pointer<f32>, y: Pointer<Element>, pixels: i32, channels: i32, width: i32, per_block: i32, eps: f32, act: i32 }
}

/// `kernels/picture.cu`
pub(crate) mod picture {
    use super::*;

    kernel_names! { PoolKernel { PoolPacks: "pool_packs", PoolElements: "pool_elements" } }
    kernel_parameters! { formatted Pool, module "picture", kernel PoolKernel; to: Pointer<Element>, from: Pointer<Element>, total: i64, h: i64, w: i64, size: i32, out_h: i32, out_w: i32, groups: i32 }
    kernel_names! { DepthwiseKernel { DepthwisePacks: "depthwise_packs", DepthwiseElements: "depthwise_elements" } }
    kernel_parameters! { formatted Depthwise, module "picture", kernel DepthwiseKernel; to: Pointer<Element>, from: Pointer<Element>, taps: Pointer<Element>, bias: Pointer<Element>, total: i64, h: i32, w: i32, side: i32, groups: i32 }
    kernel_parameters! { formatted Slopes, module "picture", kernel "slopes"; to: Pointer<Element>, from: Pointer<Element>, slope: Pointer<Element>, total: i64, width: i32 }
    kernel_parameters! { formatted ChannelProducts, module "picture", kernel "channel_products"; sums: Pointer<f32>, q: Pointer<Element>, k: Pointer<Element>, tokens: i64, heads: i32, d: i32, each: i64, splits: i32 }
    kernel_parameters! { formatted ChannelScores, module "picture", kernel "channel_scores"; scores: Pointer<f32>, sums: Pointer<f32>, factors: Pointer<Element>, rows: i64, heads: i32, d: i32, splits: i32 }
    kernel_parameters! { formatted ChannelMix, module "picture", kernel "channel_mix"; to: Pointer<Element>, v: Pointer<Element>, scores: Pointer<f32>, total: i64, tokens: i64, heads: i32, d: i32 }
    kernel_parameters! { formatted ResampleAcross, module "picture", kernel "resample_across"; to: Pointer<f32>, from: Pointer<Element>, index: Pointer<u32>, weight: Pointer<f32>, total: i64, w: i64, width: i64, taps: i32 }
    kernel_parameters! { formatted ResampleDown, module "picture", kernel "resample_down"; to: Pointer<Element>, from: Pointer<f32>, index: Pointer<u32>, weight: Pointer<f32>, total: i64, h: i64, height: i64, width: i64, taps: i32 }
    kernel_parameters! { formatted WindowMeans, module "picture", kernel "window_means"; to: Pointer<Element>, from: Pointer<Element>, total: i64, h: i64, w: i64, height: i64, width: i64 }
}

/// `kernels/product_finish.cu`
pub(crate) mod product_finish {
    use super::*;

    kernel_parameters! { formatted FinishParts, module "product_finish", kernel "finish_parts"; sums: Pointer<f32>, after: AfterProduct, n: i32, boxes: PixelBoxes, group: i32, first: i32, parts: i32, columns: i32, geglu: i32, scales: ByteScales, others: OtherResults }
}

/// `kernels/product_hopper.cu`
pub(crate) mod product_hopper {
    use super::*;

    kernel_names! { ProductKernel { Product64: "product_64", Product160: "product_160", Product64Once: "product_64_once", Product80Once: "product_80_once", Product160Once: "product_160_once", Product64Of2: "product_64_of_2", Product64Of5: "product_64_of_5", Product80Of2: "product_80_of_2", Product160Of2: "product_160_of_2", Product160Of3: "product_160_of_3", Product128: "product_128", Product256: "product_256", Geglu128: "geglu_128", Geglu256: "geglu_256" } }
    kernel_parameters! { formatted Product, module "product_hopper", kernel ProductKernel; maps: ProductMaps, after: AfterProduct, n: i32, boxes: PixelBoxes, window: StepWindow, cut: ProductParts, others: OtherResults }
    kernel_names! { ByteProductModule { ProductE4m3: "product_e4m3", ProductE5m2: "product_e5m2", ProductS8: "product_s8" } }
    kernel_names! { ByteProductKernel { Product128: "product_128", Product256: "product_256", Geglu128: "geglu_128", Geglu256: "geglu_256" } }
    kernel_parameters! { formatted ByteProduct, module ByteProductModule, kernel ByteProductKernel; maps: ProductMaps, after: AfterProduct, n: i32, boxes: PixelBoxes, window: StepWindow, cut: ProductParts, scales: ByteScales }
}

/// `kernels/product_mma.cu`
pub(crate) mod product_mma {
    use super::*;

    kernel_names! { ProductModule { ProductMmaS8: "product_mma_s8", ProductMmaE4m3: "product_mma_e4m3", ProductMmaE5m2: "product_mma_e5m2", ProductMma: "product_mma" } }
    kernel_names! { ProductKernel { Product128: "product_128", Product256: "product_256", Geglu128: "geglu_128", Geglu256: "geglu_256" } }
    kernel_parameters! { formatted Product, module ProductModule, kernel ProductKernel; a: Pointer<Element>, weights: Pointer<Element>, after: AfterProduct, m: i32, n: i32, window: ProductWindow, cut: ProductParts, scales: ByteScales }
}

/// `kernels/product_plain.cu`
pub(crate) mod product_plain {
    use super::*;

    kernel_names! { MatrixProductKernel { Rows64: "rows_64", Rows128: "rows_128", Geglu64: "geglu_64" } }
    kernel_parameters! { formatted MatrixProduct, module "product_plain", kernel MatrixProductKernel; a: Pointer<Element>, weights: Pointer<Unit>, weight_kind: i32, after: AfterProduct, m: i32, n: i32, k: i32 }
    kernel_names! { PictureProductKernel { Picture64: "picture_64", Picture128: "picture_128" } }
    kernel_parameters! { formatted PictureProduct, module "product_plain", kernel PictureProductKernel; a: Pointer<Element>, weights: Pointer<Unit>, weight_kind: i32, after: AfterProduct, m: i32, n: i32, window: ProductWindow }
    kernel_parameters! { formatted Matmul, module "product_plain", kernel "matmul"; a: Pointer<Element>, b: Pointer<Element>, out: Pointer<Element>, items: i32, m: i32, n: i32, k: i32 }
}

/// `kernels/product_turns.cu`
pub(crate) mod product_turns {
    use super::*;

    kernel_names! { TurnsKernel { Turns160: "turns_160", TurnsGeglu160: "turns_geglu_160" } }
    kernel_parameters! { formatted Turns, module "product_turns", kernel TurnsKernel; maps: ProductMaps, results: ResultMaps, after: AfterProduct, n: i32, boxes: PixelBoxes, window: StepWindow, cut: ProductParts, others: OtherResults }
}

/// `kernels/reduce.cu`
pub(crate) mod reduce {
    use super::*;

    kernel_parameters! { formatted ReduceShort, module "reduce", kernel "reduce_short"; to: Pointer<Element>, from: Pointer<Element>, rows: i64, count: i64, op: i32 }
    kernel_parameters! { formatted ReduceRows, module "reduce", kernel "reduce_rows"; to: Pointer<Element>, from: Pointer<Element>, count: i64, op: i32 }
    kernel_parameters! { formatted ReduceParts, module "reduce", kernel "reduce_parts"; parts: Pointer<f32>, from: Pointer<Element>, count: i64, each: i64, splits: i32, op: i32 }
    kernel_parameters! { formatted ReduceJoin, module "reduce", kernel "reduce_join"; to: Pointer<Element>, parts: Pointer<f32>, rows: i64, count: i64, each: i64, splits: i32, op: i32 }
}

/// `kernels/relayout.cu`
pub(crate) mod relayout {
    use super::*;

    kernel_names! { TapsFirstKernel { TapsFirst8: "taps_first_8", TapsFirst16: "taps_first_16", TapsFirst32: "taps_first_32" } }
    kernel_parameters! { plain TapsFirst, module "relayout", kernel TapsFirstKernel; from: Pointer<Unit>, to: Pointer<Unit>, channels: i32, taps: i32, count: i64 }
    kernel_parameters! { plain RowsApart, module "relayout", kernel "rows_apart"; from: Pointer<u32>, to: Pointer<[u32; 4]>, columns: i32, rows: i64 }
    kernel_parameters! { plain Widen, module "relayout", kernel "widen"; low: Pointer<[u32; 4]>, codes: Pointer<u16>, index: Pointer<u32>, list: Pointer<u8>, to: Pointer<[u32; 4]>, exponents: i64, groups: i64 }
    kernel_parameters! { plain AddScaled, module "relayout", kernel "add_scaled"; to: Pointer<f32>, from: Pointer<f32>, by: f32, count: i64 }
    kernel_parameters! { plain RoundByChance, module "relayout", kernel "round_by_chance"; from: Pointer<f32>, to: Pointer<u8>, steps: Pointer<f32>, number: i32, seed: u64, count: i64 }
}

/// `kernels/rows.cu`
pub(crate) mod rows {
    use super::*;

    kernel_names! { LinesKernel { Lines8: "lines_8", Lines16: "lines_16", Lines32: "lines_32", LinesF16: "lines_f16", LinesBf16: "lines_bf16" } }
    kernel_parameters! { plain Lines, module "rows", kernel LinesKernel; from: Pointer<Unit>, to: Pointer<u8>, rows: i32, first: i32, each: i32, expert_step: i64, row_step: i64, value_step: i64, place: LineTarget }
    kernel_parameters! { plain LinesTiled, module "rows", kernel "lines_tiled"; from: Pointer<u8>, to: Pointer<u8>, rows: i32, first: i32, each: i32, expert_step: i64, across: i64, place: LineTarget }
}

/// `kernels/weights.cu`
pub(crate) mod weights {
    use super::*;

    kernel_names! { FromApartKernel { FromApartE4m3: "from_apart_e4m3", FromApartE5m2: "from_apart_e5m2", FromApartInt8: "from_apart_int8" } }
    kernel_parameters! { formatted FromApart, module "weights", kernel FromApartKernel; from: Pointer<u8>, to: Pointer<Element>, sizes: WeightSizes }
    kernel_names! { LevelsKernel { LevelsInt4: "levels_int4", LevelsGrid: "levels_grid" } }
    kernel_parameters! { formatted Levels, module "weights", kernel LevelsKernel; from: Pointer<u8>, to: Pointer<u8>, scales: Pointer<f32>, out: i32, columns: i32, layout: RowLayout }
    kernel_names! { FromPlainKernel { FromF32: "from_f32", FromF16: "from_f16", FromBf16: "from_bf16", FromE4m3: "from_e4m3", FromE5m2: "from_e5m2", FromQ8_0: "from_q8_0", FromQ4_0: "from_q4_0", FromQ4_1: "from_q4_1", FromQ5_0: "from_q5_0", FromQ5_1: "from_q5_1", FromQ2K: "from_q2_k", FromQ3K: "from_q3_k", FromQ4K: "from_q4_k", FromQ5K: "from_q5_k", FromQ6K: "from_q6_k", FromQ8K: "from_q8_k", FromTq1_0: "from_tq1_0", FromTq2_0: "from_tq2_0", FromIq4Nl: "from_iq4_nl", FromIq4Xs: "from_iq4_xs", FromMxfp4: "from_mxfp4", FromGgmlNvfp4: "from_ggml_nvfp4" } }
    kernel_parameters! { formatted FromPlain, module "weights", kernel FromPlainKernel; from: Pointer<u8>, to: Pointer<Element>, sizes: WeightSizes, taps_first: i32 }
    kernel_names! { FromRowsKernel { FromRowsE4m3: "from_rows_e4m3", FromRowsE5m2: "from_rows_e5m2", FromRowsInt8: "from_rows_int8", FromRowsInt4: "from_rows_int4", FromRowsNvfp4: "from_rows_nvfp4", FromRowsMxfp8: "from_rows_mxfp8", FromRowsGrid: "from_rows_grid", FromRowsAffine: "from_rows_affine" } }
    kernel_parameters! { formatted FromRows, module "weights", kernel FromRowsKernel; from: Pointer<u8>, to: Pointer<Element>, sizes: WeightSizes, layout: RowLayout }
    kernel_parameters! { formatted Prepare, module "weights", kernel "prepare"; from: Pointer<Element>, to: Pointer<Element>, scale: Pointer<f32>, channels: i32, padded: i32, in_height: i32, in_width: i32, height: i32, width: i32, count: i64 }
    kernel_parameters! { formatted Gather, module "weights", kernel "gather"; from: Pointer<Element>, to: Pointer<Element>, channels: i32, in_height: i32, in_width: i32, height: i32, width: i32, kernel_height: i32, kernel_width: i32, stride: i32, above: i32, left: i32, all: i32 }
    kernel_parameters! { formatted Enlarge, module "weights", kernel "enlarge"; from: Pointer<[u32; 4]>, to: Pointer<[u32; 4]>, chunks: i32, in_height: i32, in_width: i32, height: i32, width: i32, count: i64 }
    kernel_parameters! { formatted Rotate, module "weights", kernel "rotate"; from: Pointer<Element>, to: Pointer<Element>, group: i32, groups: i64 }
    kernel_parameters! { formatted RoundRows, module "weights", kernel "round_rows"; from: Pointer<Element>, to: Pointer<Element>, columns: i32, levels: f32, rows: i64 }
    kernel_parameters! { formatted HalveKernels, module "weights", kernel "halve_kernels"; from: Pointer<Element>, to: Pointer<Element>, out: i32, channels: i32 }
}
