//! From a product to attention and on: queries, keys and values of several groups of tokens, normed, turned and joined; and
//! what stands beside attention in blocks whose layers run in parallel. The processor does it step by step, a GPU at once.

use super::attention::{Mask, attention};
use super::misc::{activate, rope_half, rope_interleaved};
use super::modulate::{swiglu, swiglu_halves};
use super::{Act, Linear, RmsNorm};
use crate::cpu::attention::Sizes;
use crate::error::{Result, TensorError};
use crate::gpu::{Format, HeadAngles, HeadSizes, HeadTokens, TrailingColumns, ValueRows};
use crate::tensor::Tensor;

/// Where queries, keys and values are.
#[derive(Debug, Clone, Copy)]
pub enum HeadSource<'a> {
    /// One behind the other, they are the first three widths of (b, n, ..).
    Joined(&'a Tensor),
    /// Each (b, n, width).
    Apart([&'a Tensor; 3]),
}

impl HeadSource<'_> {
    /// One of the three.
    fn part(self, n: usize, width: usize) -> Result<Tensor> {
        match self {
            Self::Joined(all) => all.narrow(2, n * width, width),
            Self::Apart(each) => Ok(each[n].clone()),
        }
    }

    /// The tensor that has queries.
    fn first(&self) -> &Tensor {
        match self {
            Self::Joined(all) | Self::Apart([all, ..]) => all,
        }
    }
}

/// Some of the tokens.
#[derive(Debug, Clone, Copy)]
pub struct HeadPart<'a> {
    pub from: HeadSource<'a>,
    /// Norms of each head of queries and of keys.
    pub norms: Option<(&'a RmsNorm, &'a RmsNorm)>,
}

/// Positions of all tokens: cosines and sines, (n, d / 2) or (b, n, d / 2).
#[derive(Debug, Clone, Copy)]
pub struct HeadRope<'a> {
    pub cos: &'a Tensor,
    pub sin: &'a Tensor,
    /// Whether pairs of channels are half a head apart, as for [`rope_half`], or neighbours.
    pub apart: bool,
}

const OP: &str = "heads";

/// Queries, keys and values (b, n, width) of all tokens, one part after another.
pub fn join_heads(
    parts: &[HeadPart<'_>],
    heads: usize,
    width: usize,
    rope: Option<HeadRope<'_>>,
) -> Result<[Tensor; 3]> {
    if let Some((q, k, Some(v))) = joined_on_gpu(parts, heads, width, rope, true)? {
        return Ok([q, k, v]);
    }
    let split = |part: &HeadPart<'_>| -> Result<[Tensor; 3]> {
        let one = |n: usize| part.from.part(n, width);
        Ok(match part.norms {
            Some((query, key)) => [
                normed(query, &one(0)?, heads)?,
                normed(key, &one(1)?, heads)?,
                one(2)?,
            ],
            None => [one(0)?, one(1)?, one(2)?],
        })
    };
    let split = parts.iter().map(split).collect::<Result<Vec<_>>>()?;
    let all = |n: usize| match &*split {
        [only] => Ok(only[n].clone()),
        _ => Tensor::cat(&split.iter().map(|part| &part[n]).collect::<Vec<_>>(), 1),
    };
    let (q, k, v) = (all(0)?, all(1)?, all(2)?);
    drop(split);
    Ok([turned(q, heads, rope)?, turned(k, heads, rope)?, v])
}

/// Queries and keys (b, n, heads * d) of equal shapes, normalised and turned; a GPU does both in one pass.
pub fn join_pair(
    [q, k]: [&Tensor; 2],
    (query, key): (&RmsNorm, &RmsNorm),
    heads: usize,
    rope: Option<HeadRope<'_>>,
) -> Result<[Tensor; 2]> {
    let part = HeadPart {
        from: HeadSource::Apart([q, k, k]),
        norms: Some((query, key)),
    };
    let width = q.dims3()?[2];
    if let Some((q, k, _)) = joined_on_gpu(&[part], heads, width, rope, false)? {
        return Ok([q, k]);
    }
    Ok([
        turned(normed(query, q, heads)?, heads, rope)?,
        turned(normed(key, k, heads)?, heads, rope)?,
    ])
}

fn turned(x: Tensor, heads: usize, rope: Option<HeadRope<'_>>) -> Result<Tensor> {
    match rope {
        Some(rope) if rope.apart => rope_half(&x, heads, rope.cos, rope.sin),
        Some(rope) => rope_interleaved(&x, heads, rope.cos, rope.sin),
        None => Ok(x),
    }
}

/// Queries, keys and values of all tokens, ready to [`attend`](Self::attend).
pub struct ReadyHeads<'a> {
    q: Tensor,
    k: Tensor,
    values: HeadValues,
    heads: usize,
    mask: Mask<'a>,
}

enum HeadValues {
    Own(Tensor),
    /// The third width of the rows of a tensor on a GPU.
    InRows(Tensor),
}

impl<'a> ReadyHeads<'a> {
    /// [`join_heads`]; a GPU leaves values where they are, if that is one tensor and nothing is masked.
    pub fn new(
        parts: &[HeadPart<'_>],
        heads: usize,
        width: usize,
        rope: Option<HeadRope<'_>>,
        mask: Mask<'a>,
    ) -> Result<Self> {
        if let (Mask::None, [part]) = (mask, parts)
            && let HeadSource::Joined(all) = part.from
            && values_may_stay(all, heads, width)?
            && let Some((q, k, _)) = joined_on_gpu(parts, heads, width, rope, false)?
        {
            let values = HeadValues::InRows(all.clone());
            return Ok(Self {
                q,
                k,
                values,
                heads,
                mask,
            });
        }
        let [q, k, v] = join_heads(parts, heads, width, rope)?;
        let values = HeadValues::Own(v);
        Ok(Self {
            q,
            k,
            values,
            heads,
            mask,
        })
    }

    /// [`attention`] of them.
    pub fn attend(self) -> Result<Tensor> {
        let all = match self.values {
            HeadValues::Own(v) => {
                return attention(&self.q, &self.k, &v, self.heads, self.mask, None);
            }
            HeadValues::InRows(all) => all,
        };
        let (elements, [.., row]) = (all.gpu_on(OP)?, all.dims3()?);
        let [.., width] = self.q.dims3()?;
        let sizes = sizes_in_rows(&all, self.heads, width)?;
        let values = ValueRows {
            rows: elements,
            first: 2 * width,
            row,
        };
        let scale = 1.0 / (sizes.d as f32).sqrt();
        let (q, k) = (self.q.gpu_on(OP)?, self.k.gpu_on(OP)?);
        let seen = q
            .device()
            .fusions()
            .offer_attention_in_rows(sizes, [q, k], values, scale)?;
        Ok(Tensor::from_gpu(self.q.shape(), seen))
    }
}

fn sizes_in_rows(all: &Tensor, heads: usize, width: usize) -> Result<Sizes> {
    let [batch, tokens, _] = all.dims3()?;
    Ok(Sizes {
        batch,
        queries: tokens,
        keys: tokens,
        heads,
        d: width / heads,
    })
}

/// Whether attention can read values in rows that have more than them.
fn values_may_stay(all: &Tensor, heads: usize, width: usize) -> Result<bool> {
    let Some(elements) = all.gpu() else {
        return Ok(false);
    };
    let [.., row] = all.dims3()?;
    if heads == 0 || !width.is_multiple_of(heads) || row < 3 * width || all.is_empty() {
        return Ok(false);
    }
    let sizes = sizes_in_rows(all, heads, width)?;
    let gpu = elements.device();
    Ok(gpu
        .fusions()
        .reads_values_in_rows(sizes, elements.format(), row))
}

/// Each head divided by its root mean square.
fn normed(norm: &RmsNorm, x: &Tensor, heads: usize) -> Result<Tensor> {
    let [b, n, width] = x.dims3()?;
    if heads == 0 || !width.is_multiple_of(heads) {
        return Err(TensorError::invalid(
            OP,
            format!("{width} channels in {heads} heads"),
        ));
    }
    let each = x.reshape([b, n, heads, width / heads])?;
    norm.forward(&each)?.reshape([b, n, width])
}

/// Queries, keys and, if they are wanted, values.
type OnGpu = (Tensor, Tensor, Option<Tensor>);

/// [`join_heads`] with one kernel for each part. None where it has to be done step by step.
fn joined_on_gpu(
    parts: &[HeadPart<'_>],
    heads: usize,
    width: usize,
    rope: Option<HeadRope<'_>>,
    values: bool,
) -> Result<Option<OnGpu>> {
    let Some(first) = parts.first().map(|part| part.from.first()) else {
        return Ok(None);
    };
    let Some(elements) = first.gpu() else {
        return Ok(None);
    };
    let (gpu, format) = (elements.device(), elements.format());
    let device = first.device();
    if heads == 0 || !width.is_multiple_of(heads) {
        return Ok(None);
    }
    let (d, items) = (width / heads, first.dims3()?[0]);
    let apart = rope.is_some_and(|rope| rope.apart);
    let mut tokens = 0;
    for part in parts {
        let own = part.from.first();
        let [b, n, row] = own.dims3()?;
        let least = match part.from {
            HeadSource::Joined(_) => 3 * width,
            HeadSource::Apart(each) => {
                for other in each {
                    first.check_device(OP, other)?;
                }
                if each.iter().any(|other| other.shape() != [b, n, width]) {
                    return Ok(None);
                }
                width
            }
        };
        first.check_device(OP, own)?;
        let norms = part.norms.is_none_or(|(query, key)| {
            query.eps() == key.eps() && (query.width(), key.width()) == (Some(d), Some(d))
        });
        if b != items || row < least || !norms || !gpu.fusions().joins_heads(format, d, apart, row)
        {
            return Ok(None);
        }
        tokens += n;
    }
    let each_item = match rope {
        Some(rope) => {
            let each_item = rope.cos.shape() == [items, tokens, d / 2];
            let fits = each_item || rope.cos.shape() == [tokens, d / 2];
            if !fits || rope.cos.shape() != rope.sin.shape() {
                return Ok(None);
            }
            each_item
        }
        None => false,
    };
    if items * tokens == 0 {
        return Ok(None);
    }
    let tables = rope.map(|rope| -> Result<_> {
        let cos = rope.cos.gpu_in(OP, Format::F32)?;
        Ok((cos, rope.sin.gpu_in(OP, Format::F32)?))
    });
    let tables = tables.transpose()?;
    let angles = tables.as_ref().map(|(cos, sin)| HeadAngles {
        cos,
        sin,
        each_item,
        apart,
    });
    let sizes = HeadSizes {
        items,
        tokens,
        heads,
        d,
    };
    let made = || gpu.buffer(items * tokens * width, format);
    let (q, k) = (made()?, made()?);
    let v = values.then(made).transpose()?;
    let mut at = 0;
    for part in parts {
        let [_, own, row_width] = part.from.first().dims3()?;
        if own == 0 {
            continue;
        }
        let views = match part.from {
            HeadSource::Joined(all) => vec![all.gpu_in(OP, format)?],
            HeadSource::Apart(each) => {
                let views = each.iter().map(|one| one.gpu_in(OP, format));
                views.collect::<Result<_>>()?
            }
        };
        let from = match &*views {
            [q, k, v] => [q, k, v].map(|one| (&**one, 0)),
            // One behind the other.
            all => [0, 1, 2].map(|n| (&*all[0], n * width)),
        };
        let norms = part.norms.map(|(query, key)| -> Result<_> {
            Ok((query.slot().at(&device)?, key.slot().at(&device)?))
        });
        let norms = norms.transpose()?;
        let weights = match &norms {
            Some((query, key)) => Some([query.gpu(0)?.floats()?, key.gpu(0)?.floats()?]),
            None => None,
        };
        let rows = HeadTokens {
            from,
            row_width,
            tokens: own,
            first: at,
            norms: weights,
            eps: part.norms.map_or(0.0, |(query, _)| query.eps()),
        };
        gpu.fusions()
            .offer_join_heads(([&q, &k], v.as_ref()), sizes, rows, angles)?;
        at += own;
    }
    let shape = [items, tokens, width];
    let tensor = |elements| Tensor::from_gpu(shape, elements);
    Ok(Some((tensor(q), tensor(k), v.map(tensor))))
}

/// What the columns beside attention become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MlpJoin {
    /// GELU approximated by tanh.
    GeluTanh,
    /// [`swiglu_halves`]: the first half is the gate.
    GateFirst,
    /// The same, the second half being the gate.
    GateLast,
    /// What they are: [`Linear::forward_beside`] has done the rest.
    Done,
}

/// Columns beside those of attention, which join what attention has seen.
#[derive(Debug)]
pub struct SideColumns {
    columns: Tensor,
    /// Where they begin in each row and what becomes of them, as long as that is left to do.
    left: Option<(usize, MlpJoin)>,
}

impl SideColumns {
    /// The columns of (b, n, ..) from `first` on. The processor does its work now, so that it keeps nothing but the result; a
    /// GPU does it in [`Self::join`], in one pass.
    pub fn new(wide: Tensor, first: usize, kind: MlpJoin) -> Result<Self> {
        let [.., row] = wide.dims3()?;
        let Some(columns) = row.checked_sub(first) else {
            return Err(TensorError::invalid(
                OP,
                format!("{first} of {row} columns"),
            ));
        };
        if let Some(elements) = wide.gpu() {
            let together = 16 / elements.format().size();
            let sizes = [kind.width(columns), row, first];
            let whole = sizes.iter().all(|size| size.is_multiple_of(together));
            let halves =
                matches!(kind, MlpJoin::GeluTanh | MlpJoin::Done) || columns.is_multiple_of(2);
            if whole && halves && !wide.is_empty() {
                return Ok(Self {
                    columns: wide,
                    left: Some((first, kind)),
                });
            }
        }
        let rest = wide.narrow(2, first, columns)?;
        drop(wide);
        let columns = match kind {
            MlpJoin::Done => rest,
            MlpJoin::GeluTanh => activate(rest, Act::GeluTanh),
            MlpJoin::GateFirst => swiglu_halves(&rest)?,
            MlpJoin::GateLast => {
                let half = columns / 2;
                swiglu(&rest.narrow(2, half, half)?, &rest.narrow(2, 0, half)?)?
            }
        };
        Ok(Self {
            columns,
            left: None,
        })
    }

    /// `to + gate * y` of what a layer makes of what attention has seen with the columns behind it: see [`Linear::forward_gated`].
    pub fn through(
        self,
        layer: &Linear,
        seen: &Tensor,
        to: Tensor,
        gate: &Tensor,
    ) -> Result<Tensor> {
        if let Some((first, MlpJoin::Done)) = self.left
            && let Some(found) = layer.gated_of_two((seen, &self.columns, first), &to, gate)?
        {
            return Ok(found);
        }
        layer.forward_gated(&self.join(seen)?, to, gate)
    }

    /// What attention has seen, (b, n, c), with the columns behind it.
    pub fn join(self, seen: &Tensor) -> Result<Tensor> {
        let Some((first, kind)) = self.left else {
            return Tensor::cat(&[seen, &self.columns], 2);
        };
        seen.check_device(OP, &self.columns)?;
        let ([b, n, left], [wb, wn, row]) = (seen.dims3()?, self.columns.dims3()?);
        let elements = seen.gpu_on(OP)?;
        let together = 16 / elements.format().size();
        if (b, n) != (wb, wn) || !left.is_multiple_of(together) {
            return Err(TensorError::mismatch(
                OP,
                seen.shape(),
                self.columns.shape(),
            ));
        }
        let right = kind.width(row - first);
        let wide = self.columns.gpu_in(OP, elements.format())?;
        let behind = TrailingColumns {
            wide: &wide,
            row,
            first,
            columns: row - first,
        };
        let gpu = elements.device();
        let found = gpu
            .fusions()
            .offer_join_activated((elements, left), behind, kind)?;
        Ok(Tensor::from_gpu([b, n, left + right], found))
    }
}

impl MlpJoin {
    /// Columns of the result.
    pub(crate) fn width(self, columns: usize) -> usize {
        match self {
            Self::GeluTanh | Self::Done => columns,
            Self::GateFirst | Self::GateLast => columns / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::stored::Stored;

    fn wave(shape: &[usize], seed: f32) -> Tensor {
        Tensor::from_fn(shape, |i| (i as f32 * 0.37 + seed).sin()).unwrap()
    }

    #[test]
    fn parts_are_normed_joined_and_turned() {
        let (heads, d) = (2, 4);
        let (text, image) = (wave(&[1, 2, 24], 0.1), wave(&[1, 3, 30], 0.7));
        let weight = |seed| Stored::from_f32(&wave(&[d], seed), Dtype::F32).unwrap();
        let norm = |seed| RmsNorm::new(Some(&weight(seed)), 1e-6).unwrap();
        let (query, key) = (norm(0.2), norm(0.9));
        let (cos, sin) = (wave(&[5, 2], 1.0), wave(&[5, 2], 2.0));
        for apart in [false, true] {
            let rope = HeadRope {
                cos: &cos,
                sin: &sin,
                apart,
            };
            let norms = Some((&query, &key));
            let parts = [&text, &image].map(|all| HeadPart {
                from: HeadSource::Joined(all),
                norms,
            });
            let [q, k, v] = join_heads(&parts, heads, 8, Some(rope)).unwrap();
            let part = |n: usize| {
                let one = |t: &Tensor| t.narrow(2, n * 8, 8).unwrap();
                Tensor::cat(&[&one(&text), &one(&image)], 1).unwrap()
            };
            let turn = if apart { rope_half } else { rope_interleaved };
            let turned = |norm: &RmsNorm, n: usize| {
                turn(&normed(norm, &part(n), heads).unwrap(), heads, &cos, &sin).unwrap()
            };
            assert_eq!(q, turned(&query, 0));
            assert_eq!(k, turned(&key, 1));
            assert_eq!(v, part(2));
            let pair = join_pair([&part(0), &part(1)], (&query, &key), heads, Some(rope)).unwrap();
            assert_eq!(pair, [q, k]);
        }
    }

    #[test]
    fn columns_join_what_was_seen() {
        let (seen, wide) = (wave(&[1, 3, 4], 0.0), wave(&[1, 3, 10], 1.0));
        let rest = wide.narrow(2, 4, 6).unwrap();
        let (a, b) = (rest.narrow(2, 0, 3).unwrap(), rest.narrow(2, 3, 3).unwrap());
        let all = [
            (MlpJoin::GeluTanh, activate(rest, Act::GeluTanh)),
            (MlpJoin::GateFirst, swiglu(&a, &b).unwrap()),
            (MlpJoin::GateLast, swiglu(&b, &a).unwrap()),
        ];
        for (kind, expected) in all {
            let beside = SideColumns::new(wide.clone(), 4, kind).unwrap();
            let found = beside.join(&seen).unwrap();
            assert_eq!(found, Tensor::cat(&[&seen, &expected], 2).unwrap());
        }
        assert!(SideColumns::new(wide, 11, MlpJoin::GeluTanh).is_err());
    }
}
