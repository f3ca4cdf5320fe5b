//! Scaling of low spatial frequencies.

use std::f64::consts::TAU;
use std::ops::Range;

use fresco_tensor::{Device, Result, Tensor};

/// Multiplies the frequencies in a box by `inside` and all others by `outside`. The box counts in the order with zero
/// frequency at the middle, `len / 2`.
///
/// Only the box is transformed: what lies outside is the whole minus it. For the small boxes of guidance this is far less
/// work than a full transform there and back.
pub(crate) fn scale_box(
    x: &Tensor,
    rows: Range<usize>,
    columns: Range<usize>,
    inside: f64,
    outside: f64,
) -> Result<Tensor> {
    // Computed in main memory, wherever the network runs.
    let (x, device) = (&x.to(&Device::cpu())?, x.device());
    let [_, _, h, w] = x.dims4()?;
    let waves = |range: &Range<usize>, len: usize| -> Vec<Vec<(f64, f64)>> {
        range
            .clone()
            .map(|place| {
                let frequency = place as f64 - (len / 2) as f64;
                (0..len)
                    .map(|i| (TAU * frequency * i as f64 / len as f64).sin_cos())
                    .map(|(sin, cos)| (cos, sin))
                    .collect()
            })
            .collect()
    };
    let (down, across) = (waves(&rows, h), waves(&columns, w));
    let plane = h * w;
    let mut out = x.clone();
    for (source, target) in x
        .data()
        .chunks_exact(plane.max(1))
        .zip(out.data_mut().chunks_exact_mut(plane.max(1)))
    {
        let low = low_part(source, w, &down, &across);
        for ((t, s), l) in target.iter_mut().zip(source).zip(low) {
            *t = (outside * f64::from(*s) + (inside - outside) * l) as f32;
        }
    }
    out.to(&device)
}

/// The part of one plane that the given waves make up.
fn low_part(
    source: &[f32],
    w: usize,
    down: &[Vec<(f64, f64)>],
    across: &[Vec<(f64, f64)>],
) -> Vec<f64> {
    let h = source.len() / w.max(1);
    // Rows first: for each wave across, one complex number a row.
    let mut low = vec![0.0; source.len()];
    for wave in across {
        let row_sums: Vec<(f64, f64)> = source
            .chunks_exact(w)
            .map(|row| {
                row.iter()
                    .zip(wave)
                    .fold((0.0, 0.0), |(re, im), (v, (c, s))| {
                        let v = f64::from(*v);
                        (re + v * c, im - v * s)
                    })
            })
            .collect();
        // Then down and back up again, which leaves one complex number a row.
        let mut back = vec![(0.0, 0.0); h];
        for steps in down {
            let (re, im) = row_sums
                .iter()
                .zip(steps)
                .fold((0.0, 0.0), |(re, im), ((a, b), (c, s))| {
                    (re + a * c + b * s, im + b * c - a * s)
                });
            for ((out_re, out_im), (c, s)) in back.iter_mut().zip(steps) {
                *out_re += re * c - im * s;
                *out_im += re * s + im * c;
            }
        }
        for (row, (re, im)) in low.chunks_exact_mut(w).zip(&back) {
            for (v, (c, s)) in row.iter_mut().zip(wave) {
                *v += re * c - im * s;
            }
        }
    }
    let count = source.len() as f64;
    for v in &mut low {
        *v /= count;
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_box_is_everything() {
        let x = Tensor::from_fn([1, 2, 5, 6], |i| ((i * 7) % 11) as f32 - 5.0).unwrap();
        let doubled = scale_box(&x, 0..5, 0..6, 2.0, 0.0).unwrap();
        for (a, b) in doubled.data().iter().zip(x.data()) {
            assert!((a - 2.0 * b).abs() < 1e-5);
        }
    }

    #[test]
    fn the_middle_is_the_mean() {
        let x = Tensor::from_fn([1, 1, 4, 4], |i| i as f32).unwrap();
        let mean = scale_box(&x, 2..3, 2..3, 1.0, 0.0).unwrap();
        assert!(mean.data().iter().all(|v| (v - 7.5).abs() < 1e-5));
    }
}
