//! Attention of every instruction set against a plain sum in f64.

use super::attention::{Masking, Sizes, attention};
use super::isa::{self, Isa};
use crate::rng::Generator;
use crate::tensor::Tensor;

/// Every way to compute on this machine; the last is that of matrix tiles, if there are any.
fn available() -> Vec<(Isa, bool)> {
    let tiles = [
        #[cfg(target_arch = "x86_64")]
        super::amx::available().then_some((Isa::Avx512, true)),
    ];
    let vectors = isa::available().into_iter().map(|isa| (isa, false));
    vectors.chain(tiles.into_iter().flatten()).collect()
}

fn random(shape: &[usize], seed: u64, size: f32) -> Tensor {
    let mut t = Generator::new(seed).randn(shape).unwrap();
    t.data_mut().iter_mut().for_each(|v| *v *= size);
    t
}

/// The definition.
fn naive(s: Sizes, [q, k, v]: [&Tensor; 3], scale: f32, mask: Masking<'_>) -> Vec<f64> {
    let width = s.heads * s.d;
    let mut out = vec![0.0; s.batch * s.queries * width];
    for item in 0..s.batch {
        for head in 0..s.heads {
            for i in 0..s.queries {
                let at = |n: usize, row: usize| (item * n + row) * width + head * s.d;
                let q = &q.data()[at(s.queries, i)..][..s.d];
                let mut scores: Vec<f64> = (0..s.keys)
                    .map(|j| {
                        let k = &k.data()[at(s.keys, j)..][..s.d];
                        let dot: f64 = q
                            .iter()
                            .zip(k)
                            .map(|(&a, &b)| f64::from(a) * f64::from(b))
                            .sum();
                        dot * f64::from(scale)
                            + match mask {
                                Masking::Causal if j > i => f64::NEG_INFINITY,
                                Masking::None | Masking::Causal => 0.0,
                                Masking::Add { data, steps } => f64::from(
                                    data[item * steps[0] + head * steps[1] + i * steps[2] + j],
                                ),
                            }
                    })
                    .collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                for s in &mut scores {
                    *s = (*s - max).exp();
                }
                let sum: f64 = scores.iter().sum();
                for c in 0..s.d {
                    out[at(s.queries, i) + c] = (0..s.keys)
                        .map(|j| scores[j] / sum * f64::from(v.data()[at(s.keys, j) + c]))
                        .sum();
                }
            }
        }
    }
    out
}

fn inputs(s: Sizes, size: f32) -> [Tensor; 3] {
    let width = s.heads * s.d;
    [
        random(&[s.batch, s.queries, width], 1, size),
        random(&[s.batch, s.keys, width], 2, size),
        random(&[s.batch, s.keys, width], 3, 1.0),
    ]
}

#[track_caller]
fn check_close(got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let same = (g.is_nan() && w.is_nan()) || (f64::from(g) - w).abs() <= tolerance;
        assert!(same, "{what}: {g} instead of {w} at {i}");
    }
}

#[track_caller]
fn check(s: Sizes, mask: Masking<'_>, size: f32, tolerance: f64) {
    let [q, k, v] = inputs(s, size);
    let scale = 1.0 / (s.d as f32).sqrt();
    let want = naive(s, [&q, &k, &v], scale, mask);
    for isa in available() {
        let got = attention(isa, s, [&q, &k, &v], scale, mask).unwrap();
        let what = format!("{isa:?} {:?}", (s.batch, s.heads, s.queries, s.keys, s.d));
        // Products of two bf16 parts each leave out about 2^-17: 2e-5 of the largest value, where 2e-6 is asked of f32.
        let largest = want
            .iter()
            .filter(|w| w.is_finite())
            .fold(0.1, |m: f64, w| m.max(w.abs()));
        let tolerance = if isa.1 {
            tolerance * 10.0 * largest
        } else {
            tolerance
        };
        check_close(&got, &want, tolerance, &what);
    }
}

fn sizes(batch: usize, heads: usize, queries: usize, keys: usize, d: usize) -> Sizes {
    Sizes {
        batch,
        queries,
        keys,
        heads,
        d,
    }
}

#[test]
fn sizes_of_networks_and_odd_ones() {
    for (batch, heads, queries, keys, d) in [
        (1, 1, 1, 1, 1),
        (1, 1, 3, 2, 5),
        (2, 3, 7, 13, 3),
        (1, 2, 33, 129, 17),
        (2, 8, 100, 300, 40),
        (2, 8, 65, 77, 40),
        (1, 8, 64, 64, 160),
        (1, 2, 70, 256, 80),
        (1, 5, 31, 154, 64),
        (1, 1, 130, 140, 512),
        (1, 12, 77, 77, 64),
        (3, 1, 66, 1, 4),
    ] {
        check(
            sizes(batch, heads, queries, keys, d),
            Masking::None,
            1.0,
            2e-6,
        );
    }
}

#[test]
fn causal_queries_see_themselves_and_what_is_before() {
    for (queries, keys) in [(77, 77), (1, 1), (200, 200), (5, 9), (130, 40)] {
        check(sizes(2, 3, queries, keys, 16), Masking::Causal, 1.0, 2e-6);
    }
}

#[test]
fn masks_are_added() {
    let s = sizes(2, 3, 40, 150, 8);
    let full = random(&[2, 3, 40, 150], 9, 2.0);
    let steps = [3 * 40 * 150, 40 * 150, 150];
    for steps in [
        steps,
        [0, steps[1], 150],
        [steps[0], 0, 150],
        [0, 0, 150],
        [0, 0, 0],
    ] {
        let data = full.data();
        check(s, Masking::Add { data, steps }, 1.0, 2e-6);
    }
}

#[test]
fn a_query_that_sees_nothing_is_nan_and_hurts_no_other() {
    let s = sizes(1, 2, 40, 200, 8);
    let mut mask = random(&[40, 200], 9, 1.0);
    for (i, m) in mask.data_mut().iter_mut().enumerate() {
        let (query, key) = (i / 200, i % 200);
        // Query 3 sees nothing, query 4 the last key only, query 5 the first only.
        if query == 3 || (query == 4 && key != 199) || (query == 5 && key != 0) {
            *m = f32::NEG_INFINITY;
        }
    }
    let data = mask.data();
    let steps = [0, 0, 200];
    check(s, Masking::Add { data, steps }, 1.0, 2e-6);
}

#[test]
fn the_smallest_number_masks_like_the_reference() {
    // All keys masked by the smallest f32: the scores vanish beside it and all keys count the same.
    let s = sizes(1, 1, 2, 30, 8);
    let [q, k, v] = inputs(s, 1.0);
    let mask = vec![f32::MIN; 60];
    let steps = [0, 0, 30];
    for isa in available() {
        let got = attention(
            isa,
            s,
            [&q, &k, &v],
            1.0,
            Masking::Add { data: &mask, steps },
        )
        .unwrap();
        for c in 0..8 {
            let mean: f32 = (0..30).map(|j| v.data()[j * 8 + c]).sum::<f32>() / 30.0;
            let tolerance = if isa.1 { 2e-5 } else { 1e-6 };
            assert!((got[c] - mean).abs() < tolerance, "{isa:?}");
        }
    }
}

#[test]
fn large_scores_do_not_overflow() {
    // Scores of several thousands: the softmax picks one key, up to the rounding of such scores.
    check(sizes(1, 2, 20, 150, 16), Masking::None, 40.0, 2e-3);
    let s = sizes(1, 1, 1, 2, 1);
    let one = |x: f32| Tensor::from_vec([1, 1, 1], vec![x]).unwrap();
    let k = Tensor::from_vec([1, 2, 1], vec![1e18, -1e18]).unwrap();
    let v = Tensor::from_vec([1, 2, 1], vec![5.0, 7.0]).unwrap();
    for isa in available() {
        let got = attention(isa, s, [&one(1e18), &k, &v], 1.0, Masking::None).unwrap();
        assert_eq!(got[..], [5.0], "{isa:?}");
    }
}

#[test]
fn not_a_number_spreads_to_its_queries_only() {
    let s = sizes(1, 1, 40, 10, 4);
    let [mut q, k, v] = inputs(s, 1.0);
    q.data_mut()[7 * 4] = f32::NAN;
    for isa in available() {
        let got = attention(isa, s, [&q, &k, &v], 1.0, Masking::None).unwrap();
        for (i, row) in got.chunks(4).enumerate() {
            assert_eq!(row.iter().all(|v| v.is_nan()), i == 7, "{isa:?} {i}");
        }
    }
}

#[test]
fn threads_change_nothing() {
    let s = sizes(2, 2, 200, 300, 40);
    let [q, k, v] = inputs(s, 1.0);
    let run = |threads: usize, isa: (Isa, bool)| {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap()
            .install(|| attention(isa, s, [&q, &k, &v], 0.2, Masking::None).unwrap())
    };
    for isa in available() {
        assert_eq!(run(1, isa), run(3, isa));
    }
}
