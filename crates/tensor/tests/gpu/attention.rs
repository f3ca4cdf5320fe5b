//! Attention for many shapes, masks and formats, and how long it takes.

use fresco_tensor::gpu::Format;
use fresco_tensor::nn::{Mask, attention, attention_probabilities};
use fresco_tensor::{Device, Tensor};

use crate::compare::{FORMATS, Random, Report, gpu, milliseconds, on_both};

/// Every multiple of 8 up to 256, some above, and some that are none.
fn head_sizes() -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=32).map(|n| 8 * n).collect();
    sizes.extend([
        264, 384, 504, 512, 520, 1, 3, 7, 20, 33, 65, 100, 130, 300, 600,
    ]);
    sizes
}

struct Inputs {
    there: [Tensor; 3],
    here: [Tensor; 3],
}

fn inputs(random: &mut Random, device: &Device, [b, heads, nq, nk, d]: [usize; 5]) -> Inputs {
    let (q, q_here) = random.pair(&[b, nq, heads * d], device);
    let (k, k_here) = random.pair(&[b, nk, heads * d], device);
    let (v, v_here) = random.pair(&[b, nk, heads * d], device);
    Inputs {
        there: [q, k, v],
        here: [q_here, k_here, v_here],
    }
}

/// A mask of one of the shapes there are: some keys cannot be seen at all, some hardly.
fn mask(random: &mut Random, [b, heads, nq, nk]: [usize; 4]) -> Tensor {
    let shape = match random.below(6) {
        0 => vec![nq, nk],
        1 => vec![1, nk],
        2 => vec![b, 1, 1, nk],
        3 => vec![b, heads, nq, nk],
        4 => vec![1, heads, nq, nk],
        _ => vec![b, 1, nq, nk],
    };
    let lowest = random.one_of(&[f32::NEG_INFINITY, -1e4, f32::MIN]);
    Tensor::from_fn(shape, |i| match random.below(4) {
        // The first key is seen by everyone: a query that sees nothing is a test of its own.
        0 if i % nk > 0 => lowest,
        1 => 0.0,
        _ => random.number(),
    })
    .unwrap()
}

#[test]
fn attention_is_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(1);
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        for d in head_sizes() {
            for round in 0..3 {
                let b = 1 + random.below(2);
                let heads = random.one_of(&[1, 2, 3, 5]);
                let nq = random.one_of(&[1, 2, 63, 64, 65, 77, 129, 193, 257]);
                let nk = random.one_of(&[1, 2, 31, 64, 77, 80, 81, 127, 128, 129, 200, 321]);
                let shape = [b, heads, nq, nk, d];
                let inputs = inputs(&mut random, &device, shape);
                let ([q, k, v], [qh, kh, vh]) = (&inputs.there, &inputs.here);
                let (added, added_here) = on_both(&mask(&mut random, [b, heads, nq, nk]), &device);
                let scale = if round == 2 {
                    Some(random.one_of(&[0.3, 0.05, -0.2]))
                } else {
                    None
                };
                let kinds = [
                    ("none", Mask::None, Mask::None),
                    ("causal", Mask::Causal, Mask::Causal),
                    ("added", Mask::Add(&added), Mask::Add(&added_here)),
                ];
                for (name, there, here) in kinds {
                    let case = format!("{shape:?} {name} {:?} scale {scale:?}", added.shape());
                    let found = attention(q, k, v, heads, there, scale);
                    let expected = attention(qh, kh, vh, heads, here, scale).unwrap();
                    report.check(format, &case, found, &expected);
                }
            }
        }
    }
    report.end("attention");
}

#[test]
fn long_attention_is_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(2);
    for format in [Format::F16, Format::Bf16] {
        let device = gpu.computing_only_in(format);
        for shape in [
            [2, 3, 1000, 1333, 40],
            [1, 2, 777, 4096, 64],
            [1, 2, 1000, 999, 80],
            [1, 2, 1025, 2047, 128],
            [1, 2, 500, 700, 160],
            [1, 1, 300, 1500, 256],
            [1, 1, 333, 1000, 512],
            [300, 2, 5, 7, 64],
            // Few keys, and so many queries that a block makes several tiles of them.
            [2, 8, 4101, 77, 40],
            [2, 10, 4000, 80, 64],
            [4, 8, 2500, 77, 80],
            [8, 8, 1100, 33, 160],
        ] {
            let inputs = inputs(&mut random, &device, shape);
            let ([q, k, v], [qh, kh, vh]) = (&inputs.there, &inputs.here);
            for (name, mask) in [("none", Mask::None), ("causal", Mask::Causal)] {
                let found = attention(q, k, v, shape[1], mask, None);
                let expected = attention(qh, kh, vh, shape[1], mask, None).unwrap();
                report.check(format, &format!("{shape:?} {name}"), found, &expected);
            }
        }
    }
    report.end("long attention");
}

#[test]
fn a_query_that_sees_nothing_is_no_number() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(3);
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        for d in [32, 64, 104, 200, 33] {
            let (nq, nk) = (70, 91);
            let inputs = inputs(&mut random, &device, [2, 2, nq, nk, d]);
            let ([q, k, v], [qh, kh, vh]) = (&inputs.there, &inputs.here);
            // Every seventh query sees nothing; every fifth only the last key.
            let mask = Tensor::from_fn([nq, nk], |i| {
                let (query, key) = (i / nk, i % nk);
                let hidden = query % 7 == 0 || (query % 5 == 0 && key + 1 < nk);
                if hidden { f32::NEG_INFINITY } else { 0.0 }
            });
            let (added, added_here) = on_both(&mask.unwrap(), &device);
            let found = attention(q, k, v, 2, Mask::Add(&added), None);
            let expected = attention(qh, kh, vh, 2, Mask::Add(&added_here), None).unwrap();
            assert!(expected.data()[0].is_nan());
            report.check(format, &format!("d {d}"), found, &expected);
        }
    }
    report.end("queries that see nothing");
}

#[test]
fn the_lowest_number_hides_keys_and_not_queries() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random::new(6);
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        let inputs = inputs(&mut random, &device, [1, 2, 9, 40, 64]);
        let [q, k, v] = &inputs.there;
        let mask = Tensor::from_fn([9, 40], |_| f32::MIN).unwrap();
        let mask = mask.to(&device).unwrap();
        let found = attention(q, k, v, 2, Mask::Add(&mask), None).unwrap();
        let found = found.to(&Device::Cpu).unwrap();
        assert!(found.data().iter().all(|v| v.is_finite()), "{format:?}");
    }
}

#[test]
fn attention_of_nothing() {
    let Some(gpu) = gpu() else { return };
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        let empty = |shape: [usize; 3]| Tensor::zeros_on(&device, shape).unwrap();
        for (nq, nk) in [(0, 5), (5, 0), (0, 0)] {
            let (q, k) = (empty([2, nq, 64]), empty([2, nk, 64]));
            let out = attention(&q, &k, &k, 2, Mask::None, None).unwrap();
            let out = out.to(&Device::Cpu).unwrap();
            assert_eq!(out.shape(), q.shape());
            assert!(out.data().iter().all(|&v| v == 0.0));
            let out = attention_probabilities(&q, &k, 2).unwrap();
            assert_eq!(out.shape(), [4, nq, nk]);
        }
    }
}

#[test]
fn probabilities_are_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(4);
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        for shape in [
            [1, 1, 1, 1, 8],
            [2, 3, 65, 77, 40],
            [1, 2, 64, 64, 64],
            [2, 2, 130, 257, 33],
        ] {
            let inputs = inputs(&mut random, &device, shape);
            let found = attention_probabilities(&inputs.there[0], &inputs.there[1], shape[1]);
            let expected =
                attention_probabilities(&inputs.here[0], &inputs.here[1], shape[1]).unwrap();
            report.check(format, &format!("{shape:?}"), found, &expected);
        }
    }
    report.end("probabilities");
}

/// `FRESCO_BENCH=1` prints the times of shapes of real networks.
#[test]
fn attention_times() {
    if std::env::var_os("FRESCO_BENCH").is_none() {
        return;
    }
    let Some(gpu) = gpu() else { return };
    let mut random = Random::new(5);
    println!("attention b x heads x q x k d: us, TFLOP/s, kernel");
    let cases = [
        (Format::F16, [2, 8, 4096, 4096, 40], "none"),
        (Format::F16, [2, 10, 4096, 4096, 64], "none"),
        (Format::F16, [1, 24, 4608, 4608, 128], "none"),
        (Format::Bf16, [1, 24, 4608, 4608, 128], "none"),
        (Format::F16, [2, 20, 1024, 1024, 64], "none"),
        (Format::F16, [2, 8, 1024, 1024, 80], "none"),
        (Format::F16, [2, 8, 256, 256, 160], "none"),
        (Format::F16, [2, 8, 4096, 77, 40], "none"),
        (Format::F16, [2, 10, 4096, 77, 64], "none"),
        (Format::F16, [2, 8, 1024, 77, 80], "none"),
        (Format::F16, [2, 8, 256, 77, 160], "none"),
        (Format::F16, [1, 1, 4096, 4096, 512], "none"),
        (Format::Bf16, [1, 1, 16384, 16384, 512], "none"),
        (Format::Bf16, [1, 16, 2048, 2048, 256], "none"),
        (Format::F16, [2, 12, 77, 77, 64], "causal"),
        (Format::Bf16, [1, 32, 2048, 2048, 128], "causal"),
        (Format::Bf16, [1, 24, 2048, 2048, 64], "added"),
        (Format::Bf16, [1, 24, 2048, 2048, 128], "added"),
        (Format::F32, [2, 12, 77, 77, 64], "causal"),
        (Format::F32, [1, 64, 512, 512, 64], "added"),
        (Format::F32, [2, 8, 4096, 4096, 40], "none"),
        (Format::F32, [1, 1, 4096, 4096, 512], "none"),
    ];
    for (format, shape, name) in cases {
        let [b, heads, nq, nk, d] = shape;
        let device = gpu.computing_only_in(format);
        let tensor = |random: &mut Random, n: usize| {
            let t = random.tensor(&[b, n, heads * d]);
            t.to(&device).unwrap()
        };
        let q = tensor(&mut random, nq);
        let (k, v) = (tensor(&mut random, nk), tensor(&mut random, nk));
        let added = random.tensor(&[nq, nk]).to(&device).unwrap();
        let mask = match name {
            "causal" => Mask::Causal,
            "added" => Mask::Add(&added),
            _ => Mask::None,
        };
        let (ms, kernel) = milliseconds(&device, || attention(&q, &k, &v, heads, mask, None));
        let work = 4e-9 * (b * heads * nq * nk * d) as f64;
        println!(
            "  {format:?} {b}x{heads}x{nq}x{nk} d{d} {name}: {:.1} us, {:.0}, {kernel}",
            1000.0 * ms,
            work / ms
        );
    }
}
