//! Bilinear-spherical resizing of latents: neighbours are turned into each other, so that mixing does not shorten them.

use super::sampling::{check_sizes, linear_position};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn bislerp(x: &Tensor, width: usize, height: usize) -> Result<Tensor> {
    check_sizes(x, width, height)?;
    // Channels last, so that a channel vector is a slice.
    let rows = x.permute(&[0, 2, 3, 1])?;
    let wide = along(&rows, 2, width)?;
    along(&wide, 1, height)?.permute(&[0, 3, 1, 2])
}

/// Resizes one dimension of (b, h, w, c).
fn along(x: &Tensor, dim: usize, new: usize) -> Result<Tensor> {
    let c = x.shape()[3];
    let (outer, old, _) = x.around(dim);
    let inner = if dim == 1 { x.shape()[2] } else { 1 };
    let places = places(old, new);
    let mut shape = x.shape().to_vec();
    shape[dim] = new;
    let mut out = Tensor::zeros_on(&x.device(), shape)?;
    if c == 0 {
        return Ok(out);
    }
    let data = x.data();
    let target = out.data_mut();
    let cancel = Cancel::current();
    for o in 0..outer {
        for (i, place) in places.iter().enumerate() {
            cancel.check()?;
            for k in 0..inner {
                let vector = |at: usize| &data[((o * old + at) * inner + k) * c..][..c];
                let to = &mut target[((o * new + i) * inner + k) * c..][..c];
                slerp(vector(place.first), vector(place.second), place.ratio, to);
            }
        }
    }
    Ok(out)
}

struct SourcePlace {
    first: usize,
    second: usize,
    ratio: f32,
}

/// The reference finds neighbours by resizing index ramps; f32 rounding of that is part of the result.
fn places(old: usize, new: usize) -> Vec<SourcePlace> {
    (0..new)
        .map(|i| {
            let (a, b, part) = linear_position(i, old, new);
            let mix = |value: &dyn Fn(usize) -> usize| {
                (value(b) as f32).mul_add(part, value(a) as f32 * (1.0 - part))
            };
            let first = mix(&|n| n);
            let second = mix(&|n| (n + 1).min(old - 1));
            SourcePlace {
                first: (first as usize).min(old - 1),
                second: (second as usize).min(old - 1),
                ratio: first - first.floor(),
            }
        })
        .collect()
}

fn slerp(a: &[f32], b: &[f32], ratio: f32, out: &mut [f32]) {
    let norm = |v: &[f32]| v.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt() as f32;
    let (na, nb) = (norm(a), norm(b));
    let unit = |v: f32, n: f32| if n == 0.0 { 0.0 } else { v / n };
    let dot: f32 = a
        .iter()
        .zip(b)
        .map(|(&x, &y)| f64::from(unit(x, na) * unit(y, nb)))
        .sum::<f64>() as f32;
    if dot > 1.0 - 1e-5 {
        out.copy_from_slice(a);
        return;
    }
    if dot < 1e-5 - 1.0 {
        for ((v, &x), &y) in out.iter_mut().zip(a).zip(b) {
            *v = x * (1.0 - ratio) + y * ratio;
        }
        return;
    }
    let omega = dot.acos();
    let sin = omega.sin();
    let wa = ((1.0 - ratio) * omega).sin() / sin;
    let wb = (ratio * omega).sin() / sin;
    let length = na * (1.0 - ratio) + nb * ratio;
    for ((v, &x), &y) in out.iter_mut().zip(a).zip(b) {
        *v = (wa * unit(x, na) + wb * unit(y, nb)) * length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turning_keeps_length() {
        let mut out = [0.0; 2];
        slerp(&[2.0, 0.0], &[0.0, 2.0], 0.5, &mut out);
        assert!((out[0] - 2f32.sqrt()).abs() < 1e-6 && (out[1] - 2f32.sqrt()).abs() < 1e-6);
        slerp(&[1.0, 0.0], &[-1.0, 0.0], 0.25, &mut out);
        assert_eq!(out, [0.5, 0.0]);
        slerp(&[1.0, 0.0], &[3.0, 0.0], 0.9, &mut out);
        assert_eq!(out, [1.0, 0.0]);
        slerp(&[0.0, 0.0], &[0.0, 1.0], 0.5, &mut out);
        assert!((out[1] - 0.5 * std::f32::consts::FRAC_1_SQRT_2).abs() < 1e-6);
    }
}
