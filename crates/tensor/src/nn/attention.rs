//! Attention without a score matrix.

use rayon::prelude::*;

use super::misc::softmax_row;
use crate::cpu::math;
use crate::error::{Result, TensorError};
use crate::tensor::{Tensor, allocate};

/// Which keys a query may look at.
#[derive(Debug, Clone, Copy)]
pub enum Mask<'a> {
    None,
    /// Only those at its own position and before.
    Causal,
    /// Added to the scores: (b or 1, heads or 1, nq, nk), or (nq, nk).
    Add(&'a Tensor),
}

/// Sizes of one call, checked.
struct Sizes {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    /// Channels of one head.
    d: usize,
}

fn sizes(q: &Tensor, k: &Tensor, heads: usize) -> Result<Sizes> {
    let ([batch, queries, width], [b, keys, w]) = (q.dims3()?, k.dims3()?);
    if b != batch || w != width {
        return Err(TensorError::mismatch("attention", q.shape(), k.shape()));
    }
    if heads == 0 || !width.is_multiple_of(heads) {
        return Err(TensorError::invalid(
            "attention",
            format!("{width} channels do not make {heads} heads"),
        ));
    }
    Ok(Sizes {
        batch,
        queries,
        keys,
        heads,
        d: width / heads,
    })
}

/// Steps of a mask over items, heads and queries; keys are next to each other.
fn mask_steps(mask: &Tensor, s: &Sizes) -> Result<[usize; 3]> {
    let shape = match *mask.shape() {
        [nq, nk] => [1, 1, nq, nk],
        [b, h, nq, nk] => [b, h, nq, nk],
        _ => return Err(TensorError::rank("attention mask", "2 or 4", mask.shape())),
    };
    let full = [s.batch, s.heads, s.queries, s.keys];
    let fits = shape[3] == full[3] && (0..3).all(|i| shape[i] == full[i] || shape[i] == 1);
    if !fits {
        return Err(TensorError::mismatch("attention", mask.shape(), &full));
    }
    let row = if shape[2] == 1 { 0 } else { s.keys };
    let head = if shape[1] == 1 { 0 } else { shape[2] * s.keys };
    let item = if shape[0] == 1 {
        0
    } else {
        shape[1] * shape[2] * s.keys
    };
    Ok([item, head, row])
}

/// Softmax of `q k^T * scale + mask`, times `v`, head by head.
///
/// `q` is (b, nq, heads * d), `k` and `v` are (b, nk, heads * d); so is the result, in the shape of `q`. `scale` is one
/// over the root of `d` unless given. A query that may look at nothing gives NaN; without any key the result is zero.
pub fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    heads: usize,
    mask: Mask<'_>,
    scale: Option<f32>,
) -> Result<Tensor> {
    let s = sizes(q, k, heads)?;
    if v.shape() != k.shape() {
        return Err(TensorError::mismatch("attention", k.shape(), v.shape()));
    }
    let added = match mask {
        Mask::Add(t) => Some((t.data(), mask_steps(t, &s)?)),
        _ => None,
    };
    let causal = matches!(mask, Mask::Causal);
    let mut out = allocate(q.shape(), 0.0)?;
    if out.is_empty() || s.keys == 0 {
        return Tensor::from_vec(q.shape(), out);
    }
    let scale = scale.unwrap_or_else(|| 1.0 / (s.d as f32).sqrt());
    let width = s.heads * s.d;
    out.par_chunks_mut(width)
        .enumerate()
        .for_each(|(row, out)| {
            let (item, query) = (row / s.queries, row % s.queries);
            let base = item * s.keys * width;
            let allowed = if causal {
                s.keys.min(query + 1)
            } else {
                s.keys
            };
            for head in 0..s.heads {
                let at = head * s.d;
                let q = &q.data()[row * width + at..][..s.d];
                let out = &mut out[at..at + s.d];
                let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
                for key in 0..allowed {
                    let k = &k.data()[base + key * width + at..][..s.d];
                    let v = &v.data()[base + key * width + at..][..s.d];
                    let mut score = q.iter().zip(k).map(|(a, b)| a * b).sum::<f32>() * scale;
                    if let Some((mask, [i, h, r])) = added {
                        score += mask[item * i + head * h + query * r + key];
                    }
                    if score == f32::NEG_INFINITY {
                        continue;
                    }
                    if score > max || score.is_nan() {
                        let shrink = math::exp(max - score);
                        max = score;
                        sum *= shrink;
                        out.iter_mut().for_each(|o| *o *= shrink);
                    }
                    let share = math::exp(score - max);
                    sum += share;
                    for (o, v) in out.iter_mut().zip(v) {
                        *o += share * v;
                    }
                }
                out.iter_mut().for_each(|o| *o /= sum);
            }
        });
    Tensor::from_vec(q.shape(), out)
}

/// The softmax of `q k^T / sqrt(d)` itself, (b * heads, nq, nk).
pub fn attention_probabilities(q: &Tensor, k: &Tensor, heads: usize) -> Result<Tensor> {
    let s = sizes(q, k, heads)?;
    let shape = vec![s.batch * s.heads, s.queries, s.keys];
    let mut out = allocate(&shape, 0.0)?;
    if !out.is_empty() {
        let scale = 1.0 / (s.d as f32).sqrt();
        let width = s.heads * s.d;
        out.par_chunks_mut(s.keys)
            .enumerate()
            .for_each(|(row, out)| {
                let (item, head) = (row / s.queries / s.heads, row / s.queries % s.heads);
                let query = item * s.queries + row % s.queries;
                let q = &q.data()[query * width + head * s.d..][..s.d];
                for (key, o) in out.iter_mut().enumerate() {
                    let first = (item * s.keys + key) * width + head * s.d;
                    let k = &k.data()[first..first + s.d];
                    *o = q.iter().zip(k).map(|(a, b)| a * b).sum::<f32>() * scale;
                }
                softmax_row(out);
            });
    }
    Tensor::from_vec(shape, out)
}
