//! What small networks over pictures do besides: slopes for negative values, a kernel for each channel, attention among
//! channels.

use rayon::prelude::*;

use super::misc::last;
use crate::cancel::Cancel;
use crate::device::Device;
use crate::elements::allocate;
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// Negative values times the slope of their channel: (c) or one for all.
pub fn negative_slopes(x: Tensor, slopes: &Tensor) -> Result<Tensor> {
    const OP: &str = "negative slopes";
    x.check_device(OP, slopes)?;
    let width = last(&x, OP)?;
    if slopes.len() != width && slopes.len() != 1 {
        return Err(TensorError::mismatch(OP, x.shape(), slopes.shape()));
    }
    if x.is_empty() {
        return Ok(x);
    }
    let mut x = x;
    match x.device() {
        Device::Gpu(_) => {
            let elements = x.on_gpu()?;
            let slopes = slopes.gpu_in(OP, elements.format())?;
            if x.is_unique() {
                elements
                    .device()
                    .fusions()
                    .offer_negative_slopes(elements, elements, &slopes)?;
                return Ok(x);
            }
            let gpu = elements.device();
            let out = gpu.buffer(elements.len(), elements.format())?;
            gpu.fusions()
                .offer_negative_slopes(&out, elements, &slopes)?;
            return Ok(Tensor::from_gpu(x.shape(), out));
        }
        Device::Cpu | Device::Sim(_) => {
            let slopes = slopes.values();
            x.values_mut()?.par_chunks_mut(width).for_each(|row| {
                for (i, v) in row.iter_mut().enumerate() {
                    if *v < 0.0 {
                        *v *= slopes[i % slopes.len()];
                    }
                }
            });
        }
    }
    Ok(x)
}

/// A convolution of (b, h, w, c) with a kernel for each channel, zeros around the picture. `taps` is (side * side, c) with
/// an odd side, row by row; `bias` has c values.
pub fn depthwise(x: &Tensor, taps: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    const OP: &str = "depthwise convolution";
    x.check_device(OP, taps)?;
    let [b, h, w, c] = x.dims4()?;
    let &[count, width] = taps.shape() else {
        return Err(TensorError::rank(OP, "2", taps.shape()));
    };
    let side = (count as f64).sqrt().round() as usize;
    if width != c || side * side != count || side.is_multiple_of(2) {
        return Err(TensorError::mismatch(OP, x.shape(), taps.shape()));
    }
    if let Some(bias) = bias {
        x.check_device(OP, bias)?;
        if bias.len() != c {
            return Err(TensorError::mismatch(OP, x.shape(), bias.shape()));
        }
    }
    let room = match x.device() {
        Device::Gpu(_) => {
            if x.is_empty() {
                return Ok(x.clone());
            }
            let elements = x.on_gpu()?;
            let format = elements.format();
            let taps = taps.gpu_in(OP, format)?;
            let bias = bias.map(|bias| bias.gpu_in(OP, format)).transpose()?;
            let (sizes, bias) = ([b, h, w, c], bias.as_deref());
            let gpu = elements.device();
            let found = gpu.depthwise(elements, sizes, (&taps, side), bias)?;
            return Ok(Tensor::from_gpu(x.shape(), found));
        }
        Device::Cpu | Device::Sim(_) => x.room_for(x.shape())?,
    };
    let mut out = allocate(x.shape(), 0.0)?;
    if !x.is_empty() {
        let picture = Picture {
            values: x.values(),
            size: (h, w),
            taps: taps.values(),
            side,
            bias: bias.map(Tensor::values),
        };
        let cancel = Cancel::current();
        out.par_chunks_mut(w * c).enumerate().for_each(|(row, to)| {
            if !cancel.is_raised() {
                picture.row(row, to);
            }
        });
        cancel.check()?;
    }
    Ok(Tensor::kept(x.shape(), room, out))
}

/// What a depthwise convolution reads.
struct Picture<'a> {
    values: &'a [f32],
    size: (usize, usize),
    taps: &'a [f32],
    side: usize,
    bias: Option<&'a [f32]>,
}

impl Picture<'_> {
    /// One row of the result, counted through all items.
    fn row(&self, row: usize, to: &mut [f32]) {
        let (h, w) = self.size;
        let c = to.len() / w;
        let (item, y) = (row / h, row % h);
        if let Some(bias) = self.bias {
            to.chunks_exact_mut(c)
                .for_each(|to| to.copy_from_slice(bias));
        }
        let half = self.side / 2;
        for dy in 0..self.side {
            let Some(from) = (y + dy).checked_sub(half).filter(|from| *from < h) else {
                continue;
            };
            let line = &self.values[(item * h + from) * w * c..][..w * c];
            for dx in 0..self.side {
                let tap = &self.taps[(dy * self.side + dx) * c..][..c];
                // The columns whose neighbour at this distance is in the picture.
                let first = half.saturating_sub(dx);
                let end = (w + half).saturating_sub(dx).min(w);
                for x in first..end {
                    let from = &line[(x + dx - half) * c..][..c];
                    let to = &mut to[x * c..][..c];
                    for ((to, from), tap) in to.iter_mut().zip(from).zip(tap) {
                        *to += from * tap;
                    }
                }
            }
        }
    }
}

/// Attention of channels to each other: in each head, softmax of the products of queries and keys over all tokens, both
/// of length 1, times the head's factor; applied to the values. All are (b, n, heads * d); `factors` has one for each head.
pub fn channel_attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    heads: usize,
    factors: &Tensor,
) -> Result<Tensor> {
    const OP: &str = "channel attention";
    for other in [k, v, factors] {
        q.check_device(OP, other)?;
    }
    let [b, n, width] = q.dims3()?;
    let fits = k.shape() == q.shape() && v.shape() == q.shape();
    if !fits || heads == 0 || !width.is_multiple_of(heads) || factors.len() != heads {
        return Err(TensorError::mismatch(OP, q.shape(), k.shape()));
    }
    let room = match q.device() {
        Device::Gpu(_) => {
            if q.is_empty() {
                return Ok(q.clone());
            }
            let queries = q.on_gpu()?;
            let format = queries.format();
            let (keys, values) = (k.gpu_in(OP, format)?, v.gpu_in(OP, format)?);
            let factors = factors.gpu_in(OP, format)?;
            let sizes = [b, n, heads, width / heads];
            let gpu = queries.device();
            let qkv = [queries, &keys, &values];
            let found = gpu
                .fusions()
                .offer_channel_attention(qkv, sizes, &factors)?;
            return Ok(Tensor::from_gpu(q.shape(), found));
        }
        Device::Cpu | Device::Sim(_) => q.room_for(q.shape())?,
    };
    let mut out = allocate(q.shape(), 0.0)?;
    if !q.is_empty() {
        let (q, k, v) = (q.values(), k.values(), v.values());
        let factors = factors.values();
        let cancel = Cancel::current();
        let items = out.par_chunks_mut(n * width).enumerate();
        items.for_each(|(item, to)| {
            if cancel.is_raised() {
                return;
            }
            let at = item * n * width;
            let tokens = [&q[at..][..n * width], &k[at..][..n * width]];
            let scores = channel_scores(tokens, width, heads, factors);
            mix_channels(&scores, &v[at..][..n * width], width, heads, to);
        });
        cancel.check()?;
    }
    Ok(Tensor::kept(q.shape(), room, out))
}

/// For each head, how much each channel takes of each other: (heads, d, d).
fn channel_scores([q, k]: [&[f32]; 2], width: usize, heads: usize, factors: &[f32]) -> Vec<f32> {
    const LEAST: f64 = 1e-12;
    // Sums of parts, so that many small numbers do not vanish beside a large one.
    const PART: usize = 256;
    let d = width / heads;
    let length = |values: &[f32]| -> Vec<f64> {
        let mut sums = vec![0.0; width];
        for row in values.chunks_exact(width) {
            for (sum, v) in sums.iter_mut().zip(row) {
                *sum += f64::from(*v) * f64::from(*v);
            }
        }
        sums.iter().map(|sum| sum.sqrt().max(LEAST)).collect()
    };
    let (long_q, long_k) = (length(q), length(k));
    let mut sums = vec![0.0f64; heads * d * d];
    let mut part = vec![0.0f32; heads * d * d];
    for (q, k) in q.chunks(PART * width).zip(k.chunks(PART * width)) {
        part.fill(0.0);
        for (q, k) in q.chunks_exact(width).zip(k.chunks_exact(width)) {
            for head in 0..heads {
                let keys = &k[head * d..][..d];
                for i in 0..d {
                    let query = q[head * d + i];
                    let to = &mut part[(head * d + i) * d..][..d];
                    for (to, key) in to.iter_mut().zip(keys) {
                        *to += query * key;
                    }
                }
            }
        }
        for (sum, part) in sums.iter_mut().zip(&part) {
            *sum += f64::from(*part);
        }
    }
    let mut scores = vec![0.0; heads * d * d];
    for head in 0..heads {
        for i in 0..d {
            let at = (head * d + i) * d;
            let row: Vec<f64> = (0..d)
                .map(|j| {
                    let lengths = long_q[head * d + i] * long_k[head * d + j];
                    sums[at + j] / lengths * f64::from(factors[head])
                })
                .collect();
            let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let all: f64 = row.iter().map(|v| (v - most).exp()).sum();
            for (j, v) in row.iter().enumerate() {
                scores[at + j] = ((v - most).exp() / all) as f32;
            }
        }
    }
    scores
}

/// Every channel as the mixture of those of its head that the scores say.
fn mix_channels(scores: &[f32], v: &[f32], width: usize, heads: usize, to: &mut [f32]) {
    let d = width / heads;
    for (to, v) in to.chunks_exact_mut(width).zip(v.chunks_exact(width)) {
        for head in 0..heads {
            let values = &v[head * d..][..d];
            for i in 0..d {
                let row = &scores[(head * d + i) * d..][..d];
                to[head * d + i] = row.iter().zip(values).map(|(a, b)| a * b).sum();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_values_have_slopes() {
        let x = Tensor::from_vec([2, 2], vec![-1.0, -2.0, 3.0, f32::NAN]).unwrap();
        let slopes = Tensor::from_slice(&[0.5, 0.1]);
        let y = negative_slopes(x.clone(), &slopes).unwrap();
        assert_eq!(y.data()[..3], [-0.5, -0.2, 3.0]);
        assert!(y.data()[3].is_nan());
        let one = negative_slopes(x, &Tensor::scalar(2.0)).unwrap();
        assert_eq!(one.data()[..3], [-2.0, -4.0, 3.0]);
        assert!(negative_slopes(one, &Tensor::from_slice(&[1.0; 3])).is_err());
    }

    #[test]
    fn every_channel_has_its_kernel() {
        let x = Tensor::from_fn([2, 3, 4, 2], |i| (i as f32 * 0.7).sin()).unwrap();
        let taps = Tensor::from_fn([9, 2], |i| (i as f32 * 1.3).cos()).unwrap();
        let bias = Tensor::from_slice(&[0.5, -1.0]);
        let y = depthwise(&x, &taps, Some(&bias)).unwrap();
        for (b, row, column, c) in [
            (0, 0usize, 0usize, 0),
            (1, 1, 2, 1),
            (1, 2, 3, 0),
            (0, 2, 0, 1),
        ] {
            let mut want = bias.data()[c];
            for (dy, dx) in (0..9).map(|i| (i / 3, i % 3)) {
                let (Some(from), Some(at)) =
                    ((row + dy).checked_sub(1), (column + dx).checked_sub(1usize))
                else {
                    continue;
                };
                if from < 3 && at < 4 {
                    let tap: usize = dy * 3 + dx;
                    want += x.at(&[b, from, at, c]).unwrap() * taps.at(&[tap, c]).unwrap();
                }
            }
            let got = y.at(&[b, row, column, c]).unwrap();
            assert!((got - want).abs() < 1e-5, "{got} {want}");
        }
        assert!(depthwise(&x, &Tensor::zeros([4, 2]).unwrap(), None).is_err());
        // A kernel wider than the picture.
        let wide = Tensor::from_fn([49, 2], |_| 1.0).unwrap();
        let sum = depthwise(&x, &wide, None)
            .unwrap()
            .at(&[0, 1, 1, 0])
            .unwrap();
        let all: f32 = x.data()[..24].iter().step_by(2).sum();
        assert!((sum - all).abs() < 1e-5);
    }

    #[test]
    fn channels_attend_to_each_other() {
        let q = Tensor::from_fn([1, 5, 4], |i| (i as f32 * 0.9).sin()).unwrap();
        let k = Tensor::from_fn([1, 5, 4], |i| (i as f32 * 0.4).cos()).unwrap();
        let v = Tensor::from_fn([1, 5, 4], |i| i as f32).unwrap();
        let factors = Tensor::from_slice(&[2.0, 0.5]);
        let out = channel_attention(&q, &k, &v, 2, &factors).unwrap();
        // The third channel is the first of the second head.
        let column = |t: &Tensor, c: usize| -> Vec<f64> {
            (0..5)
                .map(|n| f64::from(t.at(&[0, n, c]).unwrap()))
                .collect()
        };
        let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
        let unit = |a: Vec<f64>| -> Vec<f64> {
            let length = dot(&a, &a).sqrt();
            a.iter().map(|v| v / length).collect()
        };
        let query = unit(column(&q, 2));
        let scores = [2, 3].map(|c| (0.5 * dot(&query, &unit(column(&k, c)))).exp());
        let total = scores[0] + scores[1];
        let want = (scores[0] * 18.0 + scores[1] * 19.0) / total;
        let got = f64::from(out.at(&[0, 4, 2]).unwrap());
        assert!((got - want).abs() < 1e-4, "{got} {want}");
    }
}
