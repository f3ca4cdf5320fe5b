//! What this back end computes: each operation of the seam, with the kernels that do it.

use super::cuda_value;
use super::device::CudaDevice;
use super::ops::{
    arrange, attention, elementwise, filled, heads, misc, modulate, norm, picture, product, reduce,
};
use crate::cpu::attention::Sizes;
use crate::elementwise::{Binary, Unary};
use crate::error::Result;
use crate::gpu::{
    Activation, AxisTaps, COMPOSITIONS, Finish, Format, Fusion, GpuBuffer, GpuFusions, GpuMask,
    GpuOps, GpuSlice, GpuWeight, GroupNormSpec, HeadAngles, HeadSizes, HeadTokens, RopePairs,
    RowNorm, Shaped, SkipLayer, TrailingColumns, Treatment, ValueRows, WeightWithBias, Window,
};
use crate::nn::MlpJoin;
use crate::reduce::Reduction;

impl CudaDevice {
    fn fuses_on_hopper(&self, format: Format) -> bool {
        self.hopper() && format != Format::F32
    }
}

/// Methods that are functions of the same parameters.
macro_rules! forward {
    ($($name:ident($($parameter:ident: $kind:ty),*) -> $out:ty = $function:path;)*) => {
        $(fn $name(&self, $($parameter: $kind),*) -> Result<$out> {
            $function($($parameter),*)
        })*
    };
}

impl GpuOps for CudaDevice {
    forward! {
        binary(a: Shaped<'_>, b: Shaped<'_>, shape: &[usize], op: Binary) -> GpuBuffer
            = elementwise::binary;
        unary(from: &GpuBuffer, op: Unary) -> GpuBuffer = elementwise::unary;
        activate(from: &GpuBuffer, to: &GpuBuffer, activation: Activation) -> ()
            = elementwise::activate;
        gather(from: &GpuBuffer, walk: &[usize], steps: &[isize], base: isize) -> GpuBuffer
            = arrange::gather;
        paste(to: &GpuBuffer, steps: &[isize], base: usize, source: &GpuBuffer, shape: &[usize]) -> ()
            = arrange::paste;
        index_select(from: &GpuBuffer, sizes: (usize, usize, usize), indices: &[usize]) -> GpuBuffer
            = arrange::index_select;
        reduce(from: &GpuBuffer, rows: usize, count: usize, op: Reduction) -> GpuBuffer
            = reduce::rows;
        softmax(x: &GpuBuffer, out: &GpuBuffer, width: usize) -> () = norm::softmax;
        group_norm(x: &GpuBuffer, out: &GpuBuffer, of: GroupNormSpec<'_>) -> () = norm::group_norm;
        row_norm(x: &GpuBuffer, norm: RowNorm<'_>) -> GpuBuffer = norm::row_norm;
        conv(taps: &[&dyn GpuWeight], x: &GpuBuffer, window: Window, treatment: Treatment<'_>, finish: Finish<'_>) -> GpuBuffer
            = product::conv3d;
        matmul(a: &GpuBuffer, b: &GpuBuffer, sizes: [usize; 4]) -> GpuBuffer = product::matmul;
        attention(sizes: Sizes, qkv: [&GpuBuffer; 3], scale: f32, mask: GpuMask<'_>) -> GpuBuffer
            = attention::attention;
        avg_pool2d(from: &GpuBuffer, sizes: [usize; 4], size: usize) -> GpuBuffer
            = picture::avg_pool2d;
        depthwise(from: &GpuBuffer, sizes: [usize; 4], taps: (&GpuBuffer, usize), bias: Option<&GpuBuffer>) -> GpuBuffer
            = picture::depthwise;
        resample(from: &GpuBuffer, sizes: [usize; 3], across: AxisTaps<'_>, down: AxisTaps<'_>) -> GpuBuffer
            = picture::resample;
        window_means(from: &GpuBuffer, sizes: [usize; 3], to: [usize; 2]) -> GpuBuffer
            = picture::window_means;
        probabilities(sizes: Sizes, qk: [&GpuBuffer; 2], scale: f32) -> GpuBuffer
            = attention::probabilities;
        rope(x: &GpuBuffer, sizes: [usize; 2], tables: [&GpuBuffer; 2], pairs: RopePairs) -> GpuBuffer
            = misc::rope;
    }

    fn filled(&self, count: usize, format: Format, value: f32) -> Result<GpuBuffer> {
        filled(self, count, format, value)
    }

    fn cat(
        &self,
        format: Format,
        outer: usize,
        parts: &[(&GpuBuffer, usize)],
    ) -> Result<GpuBuffer> {
        arrange::cat(self, format, outer, parts)
    }

    fn linear(
        &self,
        weight: &dyn GpuWeight,
        x: &GpuBuffer,
        rows: usize,
        treatment: Treatment<'_>,
        finish: Finish<'_>,
    ) -> Result<GpuBuffer> {
        product::linear(cuda_value(weight)?, x, rows, treatment, finish)
    }

    fn own_fusions(&self) -> &dyn GpuFusions {
        self
    }
}

impl GpuFusions for CudaDevice {
    forward! {
        offer_guide(cond: &GpuBuffer, uncond: &GpuBuffer, scale: f32) -> GpuBuffer
            = elementwise::guide;
        offer_euler(x: &GpuBuffer, denoised: &GpuBuffer, sigma: f32, change: f32) -> GpuBuffer
            = elementwise::euler;
        offer_geglu(from: &GpuBuffer, half: usize) -> GpuBuffer = misc::geglu;
        offer_swiglu(gate: &GpuBuffer, value: &GpuBuffer) -> GpuBuffer = modulate::swiglu;
        offer_swiglu_halves(x: &GpuBuffer, width: usize) -> GpuBuffer = modulate::swiglu_halves;
        offer_modulate(x: &GpuBuffer, scale: &GpuBuffer, shift: Option<&GpuBuffer>, out: &GpuBuffer, rows: (usize, usize)) -> ()
            = modulate::modulate;
        offer_add_gated(x: &GpuBuffer, gate: &GpuBuffer, y: &GpuBuffer, out: &GpuBuffer, rows: (usize, usize)) -> ()
            = modulate::add_gated;
        offer_negative_slopes(to: &GpuBuffer, from: &GpuBuffer, slopes: &GpuBuffer) -> ()
            = picture::negative_slopes;
        offer_upsample_nearest(from: &GpuBuffer, sizes: [usize; 4], to: [usize; 2]) -> GpuBuffer
            = arrange::upsample_nearest;
        offer_few_rows(layers: &[WeightWithBias<'_>], x: &GpuBuffer, rows: usize) -> Vec<GpuBuffer>
            = product::few_rows;
        offer_channel_attention(qkv: [&GpuBuffer; 3], sizes: [usize; 4], factors: &GpuBuffer) -> GpuBuffer
            = picture::channel_attention;
    }

    fn fuses(&self, fusion: Fusion, format: Format) -> bool {
        match fusion {
            Fusion::LinearEach | Fusion::GroupNormOfTwo | Fusion::ConvAndLinear => {
                self.fuses_on_hopper(format)
            }
            Fusion::FewRows => format != Format::F32,
            Fusion::LinearOfTwo => product::has_tensor_cores(self, format),
        }
    }

    fn joins_heads(&self, format: Format, d: usize, apart: bool, row: usize) -> bool {
        heads::fits(format, d, apart, row)
    }

    fn reads_values_in_rows(&self, sizes: Sizes, format: Format, row: usize) -> bool {
        attention::reads_rows(self, format, sizes, row)
    }

    fn offer_split_rows(
        &self,
        from: &GpuBuffer,
        rows: usize,
        parts: usize,
    ) -> Result<Vec<GpuBuffer>> {
        if let Some(found) = arrange::split_rows(from, rows, parts)? {
            return Ok(found);
        }
        COMPOSITIONS.offer_split_rows(from, rows, parts)
    }

    fn offer_group_norm_of_two(
        &self,
        x: &GpuBuffer,
        behind: &GpuBuffer,
        of: GroupNormSpec<'_>,
    ) -> Result<GpuBuffer> {
        if let Some(found) = norm::group_norm_of_two(x, behind, of)? {
            return Ok(found);
        }
        COMPOSITIONS.offer_group_norm_of_two(x, behind, of)
    }

    fn offer_linear_of_norm(
        &self,
        weight: &dyn GpuWeight,
        x: &GpuBuffer,
        norm: RowNorm<'_>,
        treatment: Treatment<'_>,
        finish: Finish<'_>,
    ) -> Result<GpuBuffer> {
        product::linear_of_norm(cuda_value(weight)?, x, norm, treatment, finish)
    }

    fn offer_linear_of_two(
        &self,
        weight: &dyn GpuWeight,
        x: (&GpuBuffer, TrailingColumns<'_>),
        rows: usize,
        treatment: Treatment<'_>,
        finish: Finish<'_>,
    ) -> Result<GpuBuffer> {
        let value = cuda_value(weight)?;
        if let Some(found) = product::linear_of_two(value, x, rows, treatment, finish)? {
            return Ok(found);
        }
        COMPOSITIONS.offer_linear_of_two(weight, x, rows, treatment, finish)
    }

    fn offer_linear_geglu(
        &self,
        weight: (&dyn GpuWeight, usize),
        x: &GpuBuffer,
        rows: usize,
        treatment: Treatment<'_>,
        bias: Option<GpuSlice<'_>>,
    ) -> Result<GpuBuffer> {
        product::geglu(cuda_value(weight.0)?, x, rows, treatment, bias)
    }

    fn offer_linear_each(
        &self,
        weights: &[WeightWithBias<'_>],
        x: &GpuBuffer,
        rows: usize,
    ) -> Result<Vec<GpuBuffer>> {
        if let Some(found) = product::each(weights, x, rows)? {
            return Ok(found);
        }
        COMPOSITIONS.offer_linear_each(weights, x, rows)
    }

    fn offer_conv_with_skip(
        &self,
        weight: &dyn GpuWeight,
        x: &GpuBuffer,
        window: Window,
        finish: Finish<'_>,
        skip: SkipLayer<'_>,
    ) -> Result<GpuBuffer> {
        let value = cuda_value(weight)?;
        if let Some(found) = product::conv_with_skip(value, x, window, finish, skip)? {
            return Ok(found);
        }
        COMPOSITIONS.offer_conv_with_skip(weight, x, window, finish, skip)
    }

    fn offer_join_heads(
        &self,
        to: ([&GpuBuffer; 2], Option<&GpuBuffer>),
        sizes: HeadSizes,
        part: HeadTokens<'_>,
        angles: Option<HeadAngles<'_>>,
    ) -> Result<()> {
        let apart = angles.is_some_and(|angles| angles.apart);
        let format = to.0[0].format();
        if !heads::fits(format, sizes.d, apart, part.row_width) {
            return COMPOSITIONS.offer_join_heads(to, sizes, part, angles);
        }
        heads::join_heads(to, sizes, part, angles)
    }

    fn offer_attention_in_rows(
        &self,
        sizes: Sizes,
        qk: [&GpuBuffer; 2],
        values: ValueRows<'_>,
        scale: f32,
    ) -> Result<GpuBuffer> {
        let fits = attention::reads_rows(self, qk[0].format(), sizes, values.row);
        if !fits {
            return COMPOSITIONS.offer_attention_in_rows(sizes, qk, values, scale);
        }
        attention::attention_in_rows(sizes, qk, values, scale)
    }

    fn offer_join_activated(
        &self,
        seen: (&GpuBuffer, usize),
        behind: TrailingColumns<'_>,
        kind: MlpJoin,
    ) -> Result<GpuBuffer> {
        if !heads::joins(seen, behind, kind) {
            return COMPOSITIONS.offer_join_activated(seen, behind, kind);
        }
        heads::join_activated(seen, behind, kind)
    }
}
