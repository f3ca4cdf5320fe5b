//! Fusions that a GPU back end may have kernels for.
//!
//! Each is offered by every device: its body here is a composition of required operations, correct everywhere, with a pass over memory for each part. A
//! back end writes its own where it has a kernel that does all at once, and asks [`COMPOSITIONS`] for shapes that the kernel does not take. Layers call the
//! fusion and know nothing of this; the few that order their work by it ask [`GpuFusions::fuses`] first.

use super::{
    Activation, COMPOSITIONS, Finish, Format, Fusion, GpuBuffer, GpuMask, GpuOps, GpuSlice,
    GpuWeight, GroupNormSpec, HeadAngles, HeadSizes, HeadTokens, RopePairs, RowNorm, RowNormEnd,
    RowNormKind, SkipLayer, TrailingColumns, Treatment, ValueRows, WeightWithBias, Window,
};
use crate::cpu::attention::Sizes;
use crate::elementwise::{Binary, Unary};
use crate::error::Result;
use crate::nn::MlpJoin;
use crate::reduce::Reduction;

/// See the module.
pub(crate) trait GpuFusions {
    /// Whether a fusion is a kernel of its own for elements of a format, for layers that would order their work otherwise.
    fn fuses(&self, _fusion: Fusion, _format: Format) -> bool {
        false
    }

    /// Whether [`Self::offer_join_heads`] is a kernel of its own for heads of `d` channels in rows of a width, turned in pairs of
    /// neighbours or of channels half a head apart. Without it, a layer does the same with whole tensors.
    fn joins_heads(&self, _format: Format, _d: usize, _apart: bool, _row: usize) -> bool {
        false
    }

    /// Whether [`Self::offer_attention_in_rows`] reads values in rows of so many elements where they are.
    fn reads_values_in_rows(&self, _sizes: Sizes, _format: Format, _row: usize) -> bool {
        false
    }

    /// `uncond + scale * (cond - uncond)`.
    fn offer_guide(&self, cond: &GpuBuffer, uncond: &GpuBuffer, scale: f32) -> Result<GpuBuffer> {
        let change = ops(cond).unary(&zip(cond, uncond, Binary::Sub)?, Unary::Mul(scale))?;
        zip(uncond, &change, Binary::Add)
    }

    /// `x + (x - denoised) / sigma * change`.
    fn offer_euler(
        &self,
        x: &GpuBuffer,
        denoised: &GpuBuffer,
        sigma: f32,
        change: f32,
    ) -> Result<GpuBuffer> {
        let noise = ops(x).unary(&zip(x, denoised, Binary::Sub)?, Unary::Div(sigma))?;
        zip(x, &ops(x).unary(&noise, Unary::Mul(change))?, Binary::Add)
    }

    /// The first half of each row times the GELU of the second; rows of twice `half`.
    fn offer_geglu(&self, from: &GpuBuffer, half: usize) -> Result<GpuBuffer> {
        let gate = columns(from, 2 * half, half, half)?;
        ops(from).activate(&gate, &gate, Activation::Gelu)?;
        zip(&columns(from, 2 * half, 0, half)?, &gate, Binary::Mul)
    }

    /// `silu(gate) * value`, element by element.
    fn offer_swiglu(&self, gate: &GpuBuffer, value: &GpuBuffer) -> Result<GpuBuffer> {
        zip(&activated(gate, Activation::Silu)?, value, Binary::Mul)
    }

    /// The same of the halves of rows of `width`: the first is the gate.
    fn offer_swiglu_halves(&self, x: &GpuBuffer, width: usize) -> Result<GpuBuffer> {
        let half = width / 2;
        self.offer_swiglu(
            &columns(x, width, 0, half)?,
            &columns(x, width, half, half)?,
        )
    }

    /// `x * (1 + scale) + shift` into `out`, which may be `x`; a row of `scale` and `shift` for every `each` rows of `width`. There is an
    /// element.
    fn offer_modulate(
        &self,
        x: &GpuBuffer,
        scale: &GpuBuffer,
        shift: Option<&GpuBuffer>,
        out: &GpuBuffer,
        rows: (usize, usize),
    ) -> Result<()> {
        let factor = ops(x).unary(scale, Unary::Add(1.0))?;
        let mut result = with_rows(x, &factor, rows, Binary::Mul)?;
        if let Some(shift) = shift {
            result = with_rows(&result, shift, rows, Binary::Add)?;
        }
        put(&result, out)
    }

    /// `x + gate * y` into `out`, which may be `x`; a row of the gate for every `each` rows of `width`. There is an element.
    fn offer_add_gated(
        &self,
        x: &GpuBuffer,
        gate: &GpuBuffer,
        y: &GpuBuffer,
        out: &GpuBuffer,
        rows: (usize, usize),
    ) -> Result<()> {
        let change = with_rows(y, gate, rows, Binary::Mul)?;
        put(&zip(x, &change, Binary::Add)?, out)
    }

    /// Negative values times the slope of their channel, one for each of `slopes.len()`, into `to`, which may be `from`. There is an element.
    fn offer_negative_slopes(
        &self,
        to: &GpuBuffer,
        from: &GpuBuffer,
        slopes: &GpuBuffer,
    ) -> Result<()> {
        let above = ops(from).unary(from, Unary::Clamp(0.0, f32::INFINITY))?;
        let below = ops(from).unary(from, Unary::Clamp(f32::NEG_INFINITY, 0.0))?;
        let width = slopes.len();
        let rows = (width, from.len() / width);
        put(
            &zip(
                &above,
                &with_rows(&below, slopes, rows, Binary::Mul)?,
                Binary::Add,
            )?,
            to,
        )
    }

    /// Rows cut into so many parts of equal width, each a tensor of its own.
    fn offer_split_rows(
        &self,
        from: &GpuBuffer,
        rows: usize,
        parts: usize,
    ) -> Result<Vec<GpuBuffer>> {
        let width = from.len() / rows.max(1) / parts.max(1);
        (0..parts)
            .map(|part| columns(from, parts * width, part * width, width))
            .collect()
    }

    /// Pictures to another height and width: every target takes the source at `floor(i * in / out)`. No size is 0.
    fn offer_upsample_nearest(
        &self,
        from: &GpuBuffer,
        [b, h, w, c]: [usize; 4],
        [height, width]: [usize; 2],
    ) -> Result<GpuBuffer> {
        let sources =
            |old: usize, new: usize| -> Vec<usize> { (0..new).map(|i| i * old / new).collect() };
        let tall = ops(from).index_select(from, (b, h, w * c), &sources(h, height))?;
        ops(from).index_select(&tall, (b * height, w, c), &sources(w, width))
    }

    /// Group norm of the channels of `x` and of those of `behind` after them. There is an element of each.
    fn offer_group_norm_of_two(
        &self,
        x: &GpuBuffer,
        behind: &GpuBuffer,
        of: GroupNormSpec<'_>,
    ) -> Result<GpuBuffer> {
        let joined = beside(x, behind, of.items * of.pixels)?;
        ops(x).group_norm(&joined, &joined, of)?;
        Ok(joined)
    }

    /// [`Self::linear`] of the norm of rows. There is an element.
    fn offer_linear_of_norm(
        &self,
        weight: &dyn GpuWeight,
        x: &GpuBuffer,
        norm: RowNorm<'_>,
        treatment: Treatment<'_>,
        finish: Finish<'_>,
    ) -> Result<GpuBuffer> {
        let rows = x.len() / norm.width;
        let normed = ops(x).row_norm(x, norm)?;
        ops(x).linear(weight, &normed, rows, treatment, finish)
    }

    /// [`Self::linear`] of rows whose last channels are elsewhere. There is an element of each.
    fn offer_linear_of_two(
        &self,
        weight: &dyn GpuWeight,
        (x, behind): (&GpuBuffer, TrailingColumns<'_>),
        rows: usize,
        treatment: Treatment<'_>,
        finish: Finish<'_>,
    ) -> Result<GpuBuffer> {
        let left = x.len() / rows.max(1);
        let joined = ops(x)
            .fusions()
            .offer_join_activated((x, left), behind, MlpJoin::Done)?;
        ops(x).linear(weight, &joined, rows, treatment, finish)
    }

    /// `a * gelu(g)` of the halves of so many outputs.
    fn offer_linear_geglu(
        &self,
        (weight, outputs): (&dyn GpuWeight, usize),
        x: &GpuBuffer,
        rows: usize,
        treatment: Treatment<'_>,
        bias: Option<GpuSlice<'_>>,
    ) -> Result<GpuBuffer> {
        let finish = Finish {
            bias,
            ..Finish::default()
        };
        let both = ops(x).linear(weight, x, rows, treatment, finish)?;
        ops(x).fusions().offer_geglu(&both, outputs / 2)
    }

    /// The rows of an input times each of several weights of one size, all of which have the format of the input.
    fn offer_linear_each(
        &self,
        weights: &[WeightWithBias<'_>],
        x: &GpuBuffer,
        rows: usize,
    ) -> Result<Vec<GpuBuffer>> {
        let one = |&(weight, bias): &WeightWithBias<'_>| {
            let finish = Finish {
                bias,
                ..Finish::default()
            };
            ops(x).linear(weight, x, rows, Treatment::default(), finish)
        };
        weights.iter().map(one).collect()
    }

    /// At most eight rows times many weights, all of which have the format of the input and as many channels.
    fn offer_few_rows(
        &self,
        layers: &[WeightWithBias<'_>],
        x: &GpuBuffer,
        rows: usize,
    ) -> Result<Vec<GpuBuffer>> {
        COMPOSITIONS.offer_linear_each(layers, x, rows)
    }

    /// A convolution of stride 1 whose result has the size of its input, and a layer of single pixels beside it, rounded once.
    fn offer_conv_with_skip(
        &self,
        weight: &dyn GpuWeight,
        x: &GpuBuffer,
        window: Window,
        finish: Finish<'_>,
        skip: SkipLayer<'_>,
    ) -> Result<GpuBuffer> {
        let rows = window.out.iter().product();
        let last = Finish {
            bias: skip.bias,
            ..Finish::default()
        };
        let treatment = Treatment::default();
        let skipped = match skip.behind {
            Some(behind) => {
                let joined = beside(skip.x, behind, rows)?;
                ops(x).linear(skip.weight, &joined, rows, treatment, last)?
            }
            None => ops(x).linear(skip.weight, skip.x, rows, treatment, last)?,
        };
        // What is added comes before the activation, and the residual after it.
        let first = Finish {
            bias: finish.bias,
            per_item: finish.per_item,
            rows_per_item: finish.rows_per_item,
            residual: Some(&skipped),
            ..Finish::default()
        };
        let sum = ops(x).conv(&[weight], x, window, treatment, first)?;
        if let Some(activation) = finish.act.activation() {
            ops(x).activate(&sum, &sum, activation)?;
        }
        let gated = match finish.gate {
            Some(gate) => {
                let width = sum.len() / rows;
                with_rows(
                    &sum,
                    gate,
                    (width, finish.rows_per_item.max(1)),
                    Binary::Mul,
                )?
            }
            None => sum,
        };
        match finish.residual {
            Some(residual) => zip(&gated, residual, Binary::Add),
            None => Ok(gated),
        }
    }

    /// Puts a part of the tokens into queries, keys and, where there is a place for them, values: with norms of heads and rotations. There
    /// is an element.
    fn offer_join_heads(
        &self,
        ([q, k], v): ([&GpuBuffer; 2], Option<&GpuBuffer>),
        sizes: HeadSizes,
        part: HeadTokens<'_>,
        angles: Option<HeadAngles<'_>>,
    ) -> Result<()> {
        let HeadSizes {
            items,
            tokens,
            heads,
            d,
        } = sizes;
        let width = heads * d;
        let own = part.tokens;
        let tables = angles.map(|angles| -> Result<_> {
            let count = if angles.each_item { items } else { 1 };
            let half = d / 2;
            let walk = [count, own, half];
            let steps = [(tokens * half) as isize, half as isize, 1];
            let base = (part.first * half) as isize;
            let rows = |table: &GpuBuffer| ops(table).gather(table, &walk, &steps, base);
            let pairs = if angles.apart {
                RopePairs::Halves
            } else {
                RopePairs::Neighbours
            };
            Ok((rows(angles.cos)?, rows(angles.sin)?, pairs))
        });
        let tables = tables.transpose()?;
        let row = part.row_width as isize;
        for (n, to) in [Some(q), Some(k), v].into_iter().enumerate() {
            let Some(to) = to else { continue };
            let (from, first) = part.from[n];
            let steps = [own as isize * row, row, 1];
            let mut found = ops(from).gather(from, &[items, own, width], &steps, first as isize)?;
            let weight = part.norms.and_then(|norms| norms.get(n).copied());
            if weight.is_some() {
                let norm = RowNorm {
                    width: d,
                    kind: RowNormKind::Rms,
                    end: RowNormEnd {
                        weight,
                        ..RowNormEnd::default()
                    },
                    eps: part.eps,
                };
                found = ops(from).row_norm(&found, norm)?;
            }
            if let Some((cos, sin, pairs)) = tables.as_ref().filter(|_| n < 2) {
                found = ops(from).rope(&found, [heads, d / 2], [cos, sin], *pairs)?;
            }
            let steps = [(tokens * width) as isize, width as isize, 1];
            let base = part.first * width;
            ops(to).paste(to, &steps, base, &found, &[items, own, width])?;
        }
        Ok(())
    }

    /// [`Self::attention`] with nothing masked and values that stand in rows of something larger.
    fn offer_attention_in_rows(
        &self,
        sizes: Sizes,
        [q, k]: [&GpuBuffer; 2],
        values: ValueRows<'_>,
        scale: f32,
    ) -> Result<GpuBuffer> {
        let width = sizes.heads * sizes.d;
        let v = columns(values.rows, values.row, values.first, width)?;
        ops(q).attention(sizes, [q, k, &v], scale, GpuMask::None)
    }

    /// Rows of `seen`, of a width, with what becomes of the columns of others behind them. There is an element.
    fn offer_join_activated(
        &self,
        (seen, left): (&GpuBuffer, usize),
        behind: TrailingColumns<'_>,
        kind: MlpJoin,
    ) -> Result<GpuBuffer> {
        let half = behind.columns / 2;
        let part = |from: usize| columns(behind.wide, behind.row, behind.first + from, half);
        let right = match kind {
            MlpJoin::Done => columns_behind(behind)?,
            MlpJoin::GeluTanh => {
                let all = columns_behind(behind)?;
                ops(seen).activate(&all, &all, Activation::GeluTanh)?;
                all
            }
            MlpJoin::GateFirst => ops(seen).fusions().offer_swiglu(&part(0)?, &part(half)?)?,
            MlpJoin::GateLast => ops(seen).fusions().offer_swiglu(&part(half)?, &part(0)?)?,
        };
        beside(seen, &right, seen.len() / left)
    }

    /// Attention among channels of (b, n, heads * d), which has elements; `factors` has one for each head.
    fn offer_channel_attention(
        &self,
        [q, k, v]: [&GpuBuffer; 3],
        [b, n, heads, d]: [usize; 4],
        factors: &GpuBuffer,
    ) -> Result<GpuBuffer> {
        const LEAST: f32 = 1e-12;
        let gpu = ops(q);
        let (items, width) = (b * heads, heads * d);
        let steps = [n * width, d, 1, width].map(|step| step as isize);
        // (items, d, n): all tokens of a channel are a row.
        let by_channel = |of: &GpuBuffer| {
            let wide = of.converted(Format::F32)?;
            gpu.gather(&wide, &[b, heads, d, n], &steps, 0)
        };
        let unit = |of: &GpuBuffer| -> Result<GpuBuffer> {
            let rows = by_channel(of)?;
            let lengths = gpu.reduce(&rows, items * d, n, Reduction::Norm)?;
            let lengths = gpu.unary(&lengths, Unary::Clamp(LEAST, f32::INFINITY))?;
            let shape = [items * d, n];
            gpu.binary(
                (&shape, &rows),
                (&[items * d, 1], &lengths),
                &shape,
                Binary::Div,
            )
        };
        let keys = unit(k)?;
        let turned = [d * n, 1, n].map(|step| step as isize);
        let keys = gpu.gather(&keys, &[items, n, d], &turned, 0)?;
        let scores = gpu.matmul(&unit(q)?, &keys, [items, d, n, d])?;
        let factors = factors.converted(Format::F32)?;
        let shape = [b, heads, d * d];
        let scores = gpu.binary(
            (&shape, &scores),
            (&[heads, 1], &factors),
            &shape,
            Binary::Mul,
        )?;
        gpu.softmax(&scores, &scores, d)?;
        let mixed = gpu.matmul(&scores, &by_channel(v)?, [items, d, d, n])?;
        let steps = [width * n, 1, d * n, n].map(|step| step as isize);
        gpu.gather(&mixed, &[b, n, heads, d], &steps, 0)?
            .converted(q.format())
    }
}

fn ops(of: &GpuBuffer) -> &dyn GpuOps {
    &**of.device()
}

/// Arithmetic on two tensors of one size.
fn zip(a: &GpuBuffer, b: &GpuBuffer, op: Binary) -> Result<GpuBuffer> {
    let shape = [a.len()];
    ops(a).binary((&shape, a), (&[b.len()], b), &shape, op)
}

/// Arithmetic on rows of a width and a row for every `each` of them.
fn with_rows(
    x: &GpuBuffer,
    by: &GpuBuffer,
    (width, each): (usize, usize),
    op: Binary,
) -> Result<GpuBuffer> {
    let groups = x.len() / width / each;
    let (shape, one) = ([groups, each, width], [groups, 1, width]);
    ops(x).binary((&shape, x), (&one, by), &shape, op)
}

/// So many columns of rows, from one on.
fn columns(of: &GpuBuffer, row: usize, first: usize, count: usize) -> Result<GpuBuffer> {
    let rows = of.len() / row.max(1);
    ops(of).gather(of, &[rows, count], &[row as isize, 1], first as isize)
}

/// A new buffer with an activation of every element.
fn activated(of: &GpuBuffer, activation: Activation) -> Result<GpuBuffer> {
    let out = ops(of).buffer(of.len(), of.format())?;
    ops(of).activate(of, &out, activation)?;
    Ok(out)
}

/// Writes a result into the buffer that was asked for.
fn put(result: &GpuBuffer, out: &GpuBuffer) -> Result<()> {
    out.fill_from(result.slice(), result.format())
}

/// The columns of two matrices of so many rows, one behind the other.
fn beside(x: &GpuBuffer, behind: &GpuBuffer, rows: usize) -> Result<GpuBuffer> {
    let parts = [x, behind].map(|part| (part, part.len() / rows.max(1)));
    ops(x).cat(x.format(), rows, &parts)
}

/// The columns that stand behind others, as a matrix of their own.
fn columns_behind(of: TrailingColumns<'_>) -> Result<GpuBuffer> {
    columns(of.wide, of.row, of.first, of.columns)
}
