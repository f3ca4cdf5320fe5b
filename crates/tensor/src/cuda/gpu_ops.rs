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

impl GpuOps for CudaDevice {
    fn filled(&self, count: usize, format: Format, value: f32) -> Result<GpuBuffer> {
        filled(self, count, format, value)
    }

    fn binary(
        &self,
        a: Shaped<'_>,
        b: Shaped<'_>,
        shape: &[usize],
        op: Binary,
    ) -> Result<GpuBuffer> {
        elementwise::binary(a, b, shape, op)
    }

    fn unary(&self, from: &GpuBuffer, op: Unary) -> Result<GpuBuffer> {
        elementwise::unary(from, op)
    }

    fn activate(&self, from: &GpuBuffer, to: &GpuBuffer, activation: Activation) -> Result<()> {
        elementwise::activate(from, to, activation)
    }

    fn gather(
        &self,
        from: &GpuBuffer,
        walk: &[usize],
        steps: &[isize],
        base: isize,
    ) -> Result<GpuBuffer> {
        arrange::gather(from, walk, steps, base)
    }

    fn paste(
        &self,
        to: &GpuBuffer,
        steps: &[isize],
        base: usize,
        source: &GpuBuffer,
        shape: &[usize],
    ) -> Result<()> {
        arrange::paste(to, steps, base, source, shape)
    }

    fn cat(
        &self,
        format: Format,
        outer: usize,
        parts: &[(&GpuBuffer, usize)],
    ) -> Result<GpuBuffer> {
        arrange::cat(self, format, outer, parts)
    }

    fn index_select(
        &self,
        from: &GpuBuffer,
        sizes: (usize, usize, usize),
        indices: &[usize],
    ) -> Result<GpuBuffer> {
        arrange::index_select(from, sizes, indices)
    }

    fn reduce(
        &self,
        from: &GpuBuffer,
        rows: usize,
        count: usize,
        op: Reduction,
    ) -> Result<GpuBuffer> {
        reduce::rows(from, rows, count, op)
    }

    fn softmax(&self, x: &GpuBuffer, out: &GpuBuffer, width: usize) -> Result<()> {
        norm::softmax(x, out, width)
    }

    fn group_norm(&self, x: &GpuBuffer, out: &GpuBuffer, of: GroupNormSpec<'_>) -> Result<()> {
        norm::group_norm(x, out, of)
    }

    fn row_norm(&self, x: &GpuBuffer, norm: RowNorm<'_>) -> Result<GpuBuffer> {
        norm::row_norm(x, norm)
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

    fn conv(
        &self,
        taps: &[&dyn GpuWeight],
        x: &GpuBuffer,
        window: Window,
        treatment: Treatment<'_>,
        finish: Finish<'_>,
    ) -> Result<GpuBuffer> {
        product::conv3d(taps, x, window, treatment, finish)
    }

    fn matmul(&self, a: &GpuBuffer, b: &GpuBuffer, sizes: [usize; 4]) -> Result<GpuBuffer> {
        product::matmul(a, b, sizes)
    }

    fn attention(
        &self,
        sizes: Sizes,
        qkv: [&GpuBuffer; 3],
        scale: f32,
        mask: GpuMask<'_>,
    ) -> Result<GpuBuffer> {
        attention::attention(sizes, qkv, scale, mask)
    }

    fn probabilities(
        &self,
        sizes: Sizes,
        [q, k]: [&GpuBuffer; 2],
        scale: f32,
    ) -> Result<GpuBuffer> {
        attention::probabilities(sizes, q, k, scale)
    }

    fn rope(
        &self,
        x: &GpuBuffer,
        sizes: [usize; 2],
        [cos, sin]: [&GpuBuffer; 2],
        pairs: RopePairs,
    ) -> Result<GpuBuffer> {
        misc::rope(x, sizes, cos, sin, pairs)
    }

    fn avg_pool2d(&self, from: &GpuBuffer, sizes: [usize; 4], size: usize) -> Result<GpuBuffer> {
        picture::avg_pool2d(from, sizes, size)
    }

    fn depthwise(
        &self,
        from: &GpuBuffer,
        sizes: [usize; 4],
        taps: (&GpuBuffer, usize),
        bias: Option<&GpuBuffer>,
    ) -> Result<GpuBuffer> {
        picture::depthwise(from, sizes, taps, bias)
    }

    fn resample(
        &self,
        from: &GpuBuffer,
        sizes: [usize; 3],
        across: AxisTaps<'_>,
        down: AxisTaps<'_>,
    ) -> Result<GpuBuffer> {
        picture::resample(from, sizes, across, down)
    }

    fn window_means(
        &self,
        from: &GpuBuffer,
        sizes: [usize; 3],
        to: [usize; 2],
    ) -> Result<GpuBuffer> {
        picture::window_means(from, sizes, to)
    }

    fn own_fusions(&self) -> &dyn GpuFusions {
        self
    }
}

impl GpuFusions for CudaDevice {
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

    fn offer_guide(&self, cond: &GpuBuffer, uncond: &GpuBuffer, scale: f32) -> Result<GpuBuffer> {
        elementwise::guide(cond, uncond, scale)
    }

    fn offer_euler(
        &self,
        x: &GpuBuffer,
        denoised: &GpuBuffer,
        sigma: f32,
        change: f32,
    ) -> Result<GpuBuffer> {
        elementwise::euler(x, denoised, sigma, change)
    }

    fn offer_geglu(&self, from: &GpuBuffer, half: usize) -> Result<GpuBuffer> {
        misc::geglu(from, half)
    }

    fn offer_swiglu(&self, gate: &GpuBuffer, value: &GpuBuffer) -> Result<GpuBuffer> {
        modulate::swiglu(gate, value)
    }

    fn offer_swiglu_halves(&self, x: &GpuBuffer, width: usize) -> Result<GpuBuffer> {
        modulate::swiglu_halves(x, width)
    }

    fn offer_modulate(
        &self,
        x: &GpuBuffer,
        scale: &GpuBuffer,
        shift: Option<&GpuBuffer>,
        out: &GpuBuffer,
        rows: (usize, usize),
    ) -> Result<()> {
        modulate::modulate(x, scale, shift, out, rows)
    }

    fn offer_add_gated(
        &self,
        x: &GpuBuffer,
        gate: &GpuBuffer,
        y: &GpuBuffer,
        out: &GpuBuffer,
        rows: (usize, usize),
    ) -> Result<()> {
        modulate::add_gated(x, gate, y, out, rows)
    }

    fn offer_negative_slopes(
        &self,
        to: &GpuBuffer,
        from: &GpuBuffer,
        slopes: &GpuBuffer,
    ) -> Result<()> {
        picture::negative_slopes(to, from, slopes)
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

    fn offer_upsample_nearest(
        &self,
        from: &GpuBuffer,
        sizes: [usize; 4],
        to: [usize; 2],
    ) -> Result<GpuBuffer> {
        arrange::upsample_nearest(from, sizes, to)
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

    fn offer_few_rows(
        &self,
        layers: &[WeightWithBias<'_>],
        x: &GpuBuffer,
        rows: usize,
    ) -> Result<Vec<GpuBuffer>> {
        product::few_rows(layers, x, rows)
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

    fn offer_channel_attention(
        &self,
        qkv: [&GpuBuffer; 3],
        sizes: [usize; 4],
        factors: &GpuBuffer,
    ) -> Result<GpuBuffer> {
        picture::channel_attention(qkv, sizes, factors)
    }
}
