//! Norms of every instruction set against f64.

use super::isa::{Isa, available};
use super::math::{Identity, Silu};
use super::norm::{RowAffine, RowNorm, group_norm, row_norm};
use crate::rng::Generator;
use crate::tensor::Tensor;

fn random(shape: &[usize], seed: u64, mean: f32) -> Tensor {
    let mut t = Generator::new(seed).randn(shape).unwrap();
    t.data_mut().iter_mut().for_each(|v| *v += mean);
    t
}

fn naive_group(x: &Tensor, groups: usize, weight: &[f32], bias: &[f32], eps: f64) -> Vec<f64> {
    let [items, h, w, c] = x.dims4().unwrap();
    let (size, width) = (h * w * c, c / groups);
    let mut out = vec![0.0; x.len()];
    for item in 0..items {
        for group in 0..groups {
            let places: Vec<usize> = (0..size)
                .filter(|i| i % c / width == group)
                .map(|i| item * size + i)
                .collect();
            let value = |i: usize| f64::from(x.data()[i]);
            let count = places.len() as f64;
            let mean = places.iter().map(|&i| value(i)).sum::<f64>() / count;
            let variance = places
                .iter()
                .map(|&i| (value(i) - mean).powi(2))
                .sum::<f64>()
                / count;
            for &i in &places {
                out[i] = (value(i) - mean) / (variance + eps).sqrt() * f64::from(weight[i % c])
                    + f64::from(bias[i % c]);
            }
        }
    }
    out
}

#[track_caller]
fn check_close(got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len());
    for (&g, &w) in got.iter().zip(want) {
        assert!(
            (f64::from(g) - w).abs() <= tolerance * w.abs().max(1.0),
            "{what}: {g} instead of {w}"
        );
    }
}

#[test]
fn groups_of_channels() {
    for (shape, groups) in [
        ([1, 1, 1, 4], 2),
        ([2, 3, 5, 7], 7),
        ([2, 3, 5, 6], 1),
        ([2, 16, 16, 64], 32),
        ([1, 9, 11, 320], 32),
        ([3, 20, 20, 12], 4),
        ([1, 2, 2, 1280], 32),
    ] {
        let x = random(&shape, 1, 3.0);
        let weight = random(&[shape[3]], 2, 0.0);
        let bias = random(&[shape[3]], 3, 0.0);
        let want = naive_group(&x, groups, weight.data(), bias.data(), 1e-5);
        let activated: Vec<f64> = want.iter().map(|v| v / (1.0 + (-v).exp())).collect();
        for isa in available() {
            let what = format!("{isa:?} {shape:?} {groups}");
            let args = (weight.data(), bias.data());
            let got = group_norm::<Identity>(isa, &x, groups, args.0, args.1, 1e-5).unwrap();
            check_close(&got, &want, 2e-6, &what);
            let got = group_norm::<Silu>(isa, &x, groups, args.0, args.1, 1e-5).unwrap();
            check_close(&got, &activated, 2e-6, &what);
        }
    }
}

#[test]
fn a_large_mean_costs_no_digits_and_one_colour_gives_the_bias() {
    let x = random(&[1, 40, 40, 8], 1, 1000.0);
    let (weight, bias) = (vec![1.0; 8], vec![0.25; 8]);
    let want = naive_group(&x, 4, &weight, &bias, 1e-5);
    let flat = Tensor::full([1, 40, 40, 8], 0.1).unwrap();
    for isa in available() {
        let got = group_norm::<Identity>(isa, &x, 4, &weight, &bias, 1e-5).unwrap();
        // The inputs themselves are exact to 3e-5.
        check_close(&got, &want, 1e-4, "large mean");
        let got = group_norm::<Identity>(isa, &flat, 4, &weight, &bias, 1e-5).unwrap();
        check_close(&got, &vec![0.25; flat.len()], 1e-5, "one colour");
    }
}

#[test]
fn rows() {
    for width in [1, 3, 16, 33, 320, 2051] {
        let x = random(&[6, width], 1, 2.0);
        let factors = random(&[2, width], 2, 0.0);
        let offsets = random(&[2, width], 3, 0.0);
        let affine = RowAffine {
            factors: factors.data(),
            offsets: offsets.data(),
            rows: 3,
        };
        for kind in [RowNorm::Layer, RowNorm::Rms] {
            let want: Vec<f64> = x
                .data()
                .chunks(width)
                .enumerate()
                .flat_map(|(row, x)| {
                    let n = width as f64;
                    let mean = match kind {
                        RowNorm::Layer => x.iter().map(|&v| f64::from(v)).sum::<f64>() / n,
                        RowNorm::Rms => 0.0,
                    };
                    let squares = x
                        .iter()
                        .map(|&v| (f64::from(v) - mean).powi(2))
                        .sum::<f64>();
                    let inverse = 1.0 / (squares / n + 1e-6).sqrt();
                    let (f, o) = (&factors, &offsets);
                    x.iter().enumerate().map(move |(i, &v)| {
                        let at = row / 3 * width + i;
                        (f64::from(v) - mean) * inverse * f64::from(f.data()[at])
                            + f64::from(o.data()[at])
                    })
                })
                .collect();
            for isa in available() {
                let got = row_norm(isa, kind, &x, width, Some(&affine), 1e-6).unwrap();
                check_close(&got, &want, 2e-6, &format!("{isa:?} {kind:?} {width}"));
            }
        }
    }
}

#[test]
fn threads_change_nothing() {
    let x = random(&[2, 40, 40, 96], 1, 0.5);
    let (weight, bias) = (vec![1.5; 96], vec![0.25; 96]);
    let run = |threads: usize, isa: Isa| {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap()
            .install(|| {
                (
                    group_norm::<Silu>(isa, &x, 32, &weight, &bias, 1e-5).unwrap(),
                    row_norm(isa, RowNorm::Layer, &x, 96, None, 1e-5).unwrap(),
                )
            })
    };
    for isa in available() {
        assert_eq!(run(1, isa), run(3, isa));
    }
}
