//! Linear layers and convolutions against plain sums in f64, on every instruction set of this machine.

use std::sync::{Mutex, MutexGuard};

use fresco_tensor::cpu::isa::{self, Isa};
use fresco_tensor::nn::{Act, After, Conv2d, Linear, Padding};
use fresco_tensor::{Buffer, Device, Dtype, Stored, Tensor};

/// The choice of the instruction set is the process's: tests that make it take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs `f` on every path: (instruction set, with tiles).
fn on_every_path(f: impl Fn(&str)) {
    let _turn = turn();
    for isa in isa::available() {
        isa::force(Some(isa));
        for tiles in [true, false] {
            isa::allow_tiles(tiles);
            if tiles == isa::tiles() {
                f(&format!(
                    "{isa:?}{}",
                    if tiles { " with tiles" } else { "" }
                ));
            }
        }
    }
    isa::allow_tiles(true);
    isa::force(None);
}

/// Numbers without a pattern in -1..1.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

fn tensor(shape: &[usize], seed: u64) -> Tensor {
    let values = noise(shape.iter().product(), seed);
    Tensor::from_buffer(shape, Buffer::copied(&values).unwrap()).unwrap()
}

fn stored(shape: &[usize], dtype: Dtype, seed: u64) -> Stored {
    let values = tensor(shape, seed);
    match dtype {
        Dtype::F8E4M3 | Dtype::F8E5M2 | Dtype::I8 => {
            let bytes = values
                .data()
                .iter()
                // Exponents that leave all values finite.
                .map(|v| (v.abs() * 63.0) as u8 | if *v < 0.0 { 0x80 } else { 0 })
                .collect();
            Stored::new(dtype, shape, bytes).unwrap()
        }
        _ => Stored::from_f32(&values, dtype).unwrap(),
    }
}

/// A sum with the sum of its magnitudes, which bounds what rounding may do.
#[derive(Clone, Copy, Default)]
struct Sum(f64, f64);

fn check(path: &str, what: &str, got: &Tensor, want: &[Sum]) {
    assert_eq!(got.len(), want.len(), "{path}, {what}");
    // Summed kernels of enlarged pictures are rounded to the sixteen bits of two parts.
    let summed = path.ends_with("tiles") && what.starts_with("enlarged");
    let bound = if summed { 2e-5 } else { 2e-6 };
    let (mut error, mut size) = (0.0, 0.0);
    for (i, (got, want)) in got.data().iter().zip(want).enumerate() {
        let off = (f64::from(*got) - want.0).abs();
        assert!(
            off <= bound * want.1 + 1e-6,
            "{path}, {what}: output {i} is {got}, not {} ({})",
            want.0,
            want.1
        );
        error += off * off;
        size += want.0 * want.0;
    }
    let relative = (error / size.max(1e-30)).sqrt();
    assert!(relative <= bound, "{path}, {what}: off by {relative:e}");
}

fn linear_sums(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Vec<Sum> {
    let (n, k) = (w.shape()[0], w.shape()[1]);
    let mut sums = Vec::new();
    for row in x.data().chunks_exact(k) {
        for j in 0..n {
            let b = bias.map_or(0.0, |b| f64::from(b.data()[j]));
            let mut sum = Sum(b, b.abs());
            for (a, w) in row.iter().zip(&w.data()[j * k..][..k]) {
                let product = f64::from(*a) * f64::from(*w);
                sum = Sum(sum.0 + product, sum.1 + product.abs());
            }
            sums.push(sum);
        }
    }
    sums
}

const SHAPES: &[(usize, usize, usize)] = &[
    (1, 1, 1),
    (1, 3, 5),
    (2, 32, 32),
    (2, 37, 1280),
    (3, 4, 33),
    (7, 64, 31),
    (9, 33, 65),
    (13, 50, 96),
    (16, 32, 64),
    (17, 5, 3),
    (31, 100, 70),
    (33, 64, 128),
    (77, 768, 40),
    (130, 129, 97),
    (300, 40, 36),
    (2100, 32, 4),
];

#[test]
fn linear_equals_plain_sums() {
    on_every_path(|path| {
        for &(m, k, n) in SHAPES {
            for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                let weight = stored(&[n, k], dtype, 2);
                let bias = tensor(&[n], 3);
                let x = tensor(&[m, k], 1);
                let layer =
                    Linear::new(&weight, Some(&Stored::from(&bias)), &Device::cpu()).unwrap();
                let want = linear_sums(&x, &weight.to_f32().unwrap(), Some(&bias));
                let what = format!("{m}x{k}x{n} {dtype:?}");
                check(path, &what, &layer.forward(&x).unwrap(), &want);
            }
        }
    });
}

#[test]
fn long_sums_are_cut_into_blocks() {
    on_every_path(|path| {
        for (m, k, n) in [(2, 9001, 33), (40, 9000, 64), (150, 5120, 32)] {
            let weight = stored(&[n, k], Dtype::F16, 2);
            let x = tensor(&[m, k], 1);
            let layer = Linear::new(&weight, None, &Device::cpu()).unwrap();
            let want = linear_sums(&x, &weight.to_f32().unwrap(), None);
            check(
                path,
                &format!("{m}x{k}x{n}"),
                &layer.forward(&x).unwrap(),
                &want,
            );
        }
    });
}

#[test]
fn every_format_is_read() {
    on_every_path(|path| {
        for dtype in [
            Dtype::F8E4M3,
            Dtype::F8E5M2,
            Dtype::F16,
            Dtype::Bf16,
            Dtype::F32,
            Dtype::F64,
            Dtype::I8,
        ] {
            for m in [1, 20] {
                let weight = stored(&[45, 70], dtype, 2);
                let x = tensor(&[m, 70], 1);
                let layer = Linear::new(&weight, None, &Device::cpu()).unwrap();
                let want = linear_sums(&x, &weight.to_f32().unwrap(), None);
                check(
                    path,
                    &format!("{dtype:?}, {m} rows"),
                    &layer.forward(&x).unwrap(),
                    &want,
                );
                let kernel = stored(&[45, 7, 3, 3], dtype, 2);
                let conv = Conv2d::new(&kernel, None, 1, Padding::Same(1), &Device::cpu()).unwrap();
                let x = tensor(&[1, 4, 5, 7], 4);
                let want = conv_sums(&x, &kernel.to_f32().unwrap(), 1, (1, 1), (4, 5));
                check(
                    path,
                    &format!("conv {dtype:?}"),
                    &conv.forward(&x).unwrap(),
                    &want,
                );
                let want = conv_sums(&x, &kernel.to_f32().unwrap(), 1, (1, 1), (8, 10));
                let got = conv.upsampled(&x, (8, 10), After::default()).unwrap();
                check(path, &format!("enlarged {dtype:?}"), &got, &want);
            }
        }
    });
}

#[test]
fn blocks_of_numbers_are_read() {
    on_every_path(|path| {
        // A scale of 2^-6 in f16, then small integers.
        for (dtype, bytes) in [(Dtype::Q8_0, 34), (Dtype::Q4_0, 18)] {
            let data = (0..40 * 100 * bytes)
                .map(|i| match i % bytes {
                    0 => 0x00,
                    1 => 0x24,
                    _ => (i * 37 + i / 50) as u8,
                })
                .collect();
            let weight = Stored::new(dtype, [40, 3200], data).unwrap();
            let layer = Linear::new(&weight, None, &Device::cpu()).unwrap();
            assert_eq!(layer.weight().unwrap(), weight);
            for m in [2, 40] {
                let x = tensor(&[m, 3200], 1);
                let want = linear_sums(&x, &weight.to_f32().unwrap(), None);
                let what = format!("{dtype:?}, {m} rows");
                check(path, &what, &layer.forward(&x).unwrap(), &want);
            }
            let kernels = weight.reshape([320, 100, 2, 2]).unwrap();
            assert!(Conv2d::new(&kernels, None, 1, Padding::Same(0), &Device::cpu()).is_err());
        }
    });
}

#[test]
fn small_and_special_halves_are_exact() {
    on_every_path(|path| {
        // Subnormal, smallest normal, largest, with all bits of the mantissa.
        let bits: [u16; 8] = [
            0x0001, 0x03FF, 0x0400, 0x7BFF, 0x8001, 0xFBFF, 0x3555, 0xB7FF,
        ];
        let bytes = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
        let weight = Stored::new(Dtype::F16, [8, 1], bytes).unwrap();
        let layer = Linear::new(&weight, None, &Device::cpu()).unwrap();
        for m in [1, 16] {
            let y = layer.forward(&Tensor::ones([m, 1]).unwrap()).unwrap();
            assert_eq!(&y.data()[..8], weight.to_f32().unwrap().data(), "{path}");
        }
    });
}

#[test]
fn what_follows_is_applied_in_order() {
    let gelu_tanh =
        |x: f64| 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x)).tanh());
    let acts: [(Act, &dyn Fn(f64) -> f64); 6] = [
        (Act::None, &|x| x),
        (Act::Silu, &|x| x / (1.0 + (-x).exp())),
        (Act::QuickGelu, &|x| x / (1.0 + (-1.702 * x).exp())),
        (Act::GeluTanh, &gelu_tanh),
        (Act::Gelu, &gelu),
        (Act::Relu, &|x| x.max(0.0)),
    ];
    on_every_path(|path| {
        // One row for each item, or one for all.
        for (rows, n, items) in [(3, 40, 2), (40, 64, 2), (3, 40, 1), (40, 64, 1)] {
            let weight = stored(&[n, 24], Dtype::F16, 2);
            let x = tensor(&[2, rows, 24], 1);
            let (add, per_item) = (tensor(&[2, rows, n], 4), tensor(&[items, n], 5));
            let bias = tensor(&[n], 3);
            let layer = Linear::new(&weight, Some(&Stored::from(&bias)), &Device::cpu()).unwrap();
            let plain = linear_sums(&x, &weight.to_f32().unwrap(), Some(&bias));
            for (act, f) in &acts {
                let want: Vec<Sum> = plain
                    .iter()
                    .enumerate()
                    .map(|(i, sum)| {
                        let item = i / (rows * n) % items * n + i % n;
                        let before = sum.0 + f64::from(per_item.data()[item]);
                        let after = f(before) + f64::from(add.data()[i]);
                        Sum(after, sum.1 + 2.0)
                    })
                    .collect();
                let after = After {
                    act: *act,
                    add: Some(&add),
                    per_item: Some(&per_item),
                    for_norm: true,
                };
                let got = layer.forward_with(&x, after).unwrap();
                check(path, &format!("{act:?} {rows}"), &got, &want);
            }
        }
    });
}

/// By the series of the error function.
fn gelu(x: f64) -> f64 {
    let z = x / std::f64::consts::SQRT_2;
    let (mut term, mut sum) = (z, z);
    for n in 1..200 {
        term *= -z * z / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    if x.abs() > 7.0 {
        return if x > 0.0 { x } else { 0.0 };
    }
    0.5 * x * (1.0 + sum * std::f64::consts::FRAC_2_SQRT_PI)
}

#[test]
fn geglu_gates_one_half_by_the_other() {
    on_every_path(|path| {
        for (m, k, n) in [
            (3, 40, 128),
            (50, 40, 128),
            (300, 64, 64),
            (20, 30, 50),
            (600, 5000, 64),
        ] {
            let weight = stored(&[n, k], Dtype::F16, 2);
            let bias = tensor(&[n], 3);
            let x = tensor(&[m, k], 1);
            let layer = Linear::new(&weight, Some(&Stored::from(&bias)), &Device::cpu()).unwrap();
            let both = linear_sums(&x, &weight.to_f32().unwrap(), Some(&bias));
            let want: Vec<Sum> = both
                .chunks_exact(n)
                .flat_map(|row| {
                    let (a, g) = row.split_at(n / 2);
                    a.iter().zip(g).map(|(a, g)| {
                        Sum(
                            a.0 * gelu(g.0),
                            (a.0.abs() + 1.0) * g.1 + (g.0.abs() + 1.0) * a.1,
                        )
                    })
                })
                .collect();
            let got = layer.geglu(&x).unwrap();
            assert_eq!(got.shape(), [m, n / 2]);
            let what = format!("geglu {m}x{k}x{n}");
            assert_eq!(got.len(), want.len());
            for (got, want) in got.data().iter().zip(&want) {
                assert!(
                    (f64::from(*got) - want.0).abs() <= 2e-5 * want.1,
                    "{path} {what}: {got} {}",
                    want.0
                );
            }
        }
    });
}

/// `padding` is (before, behind); the picture is enlarged to `size` first.
fn conv_sums(
    x: &Tensor,
    w: &Tensor,
    stride: usize,
    padding: (usize, usize),
    size: (usize, usize),
) -> Vec<Sum> {
    let [b, h, wd, c] = x.dims4().unwrap();
    let [o, _, kh, kw] = w.dims4().unwrap();
    let length = |n: usize, k: usize| (n + padding.0 + padding.1 - k) / stride + 1;
    let (oh, ow) = (length(size.0, kh), length(size.1, kw));
    let mut sums = Vec::new();
    for (((image, y), px), out) in (0..b)
        .flat_map(|i| (0..oh).map(move |y| (i, y)))
        .flat_map(|i| (0..ow).map(move |x| (i, x)))
        .flat_map(|i| (0..o).map(move |o| (i, o)))
    {
        let mut sum = Sum::default();
        for ty in 0..kh {
            for tx in 0..kw {
                let (iy, ix) = (y * stride + ty, px * stride + tx);
                if iy < padding.0
                    || ix < padding.0
                    || iy - padding.0 >= size.0
                    || ix - padding.0 >= size.1
                {
                    continue;
                }
                let (sy, sx) = (
                    (iy - padding.0) * h / size.0,
                    (ix - padding.0) * wd / size.1,
                );
                for ch in 0..c {
                    let product = f64::from(x.at(&[image, sy, sx, ch]).unwrap())
                        * f64::from(w.at(&[out, ch, ty, tx]).unwrap());
                    sum = Sum(sum.0 + product, sum.1 + product.abs());
                }
            }
        }
        sums.push(sum);
    }
    sums
}

#[test]
fn convolution_equals_plain_sums() {
    // (batch, height, width, in, out, kernel height, kernel width, stride, padding)
    let same = Padding::Same;
    let cases = [
        (1, 1, 1, 1, 1, 1, 1, 1, same(0)),
        (2, 5, 7, 3, 33, 3, 3, 1, same(1)),
        (1, 8, 8, 4, 32, 3, 3, 1, same(1)),
        (1, 1, 3, 9, 4, 3, 3, 1, same(1)),
        (2, 9, 6, 32, 3, 3, 3, 1, same(1)),
        (3, 4, 4, 64, 64, 3, 3, 1, same(1)),
        (1, 8, 9, 35, 40, 3, 3, 2, same(1)),
        (2, 8, 8, 32, 32, 3, 3, 2, Padding::RightBottom),
        (1, 7, 9, 5, 6, 3, 3, 2, Padding::RightBottom),
        (1, 6, 5, 8, 8, 3, 3, 1, same(0)),
        (1, 6, 5, 8, 8, 3, 3, 1, same(2)),
        (2, 6, 5, 8, 8, 1, 1, 1, same(0)),
        (1, 6, 5, 8, 8, 1, 1, 2, same(0)),
        (1, 16, 16, 3, 10, 14, 14, 14, same(0)),
        (1, 9, 9, 4, 8, 5, 3, 3, same(2)),
        (1, 6, 7, 4, 8, 4, 2, 1, same(1)),
        (1, 70, 60, 33, 34, 3, 3, 1, same(1)),
    ];
    on_every_path(|path| {
        for (b, h, w, i, o, kh, kw, stride, padding) in cases {
            let weight = stored(&[o, i, kh, kw], Dtype::F16, 2);
            let x = tensor(&[b, h, w, i], 1);
            let sizes = match padding {
                Padding::Same(n) => (n, n),
                Padding::RightBottom => (0, 1),
            };
            let conv = Conv2d::new(&weight, None, stride, padding, &Device::cpu()).unwrap();
            let want = conv_sums(&x, &weight.to_f32().unwrap(), stride, sizes, (h, w));
            let what = format!("conv {b} {h}x{w} {i}->{o} {kh}x{kw}/{stride} {padding:?}");
            check(path, &what, &conv.forward(&x).unwrap(), &want);
        }
    });
}

#[test]
fn convolution_of_an_enlarged_picture() {
    on_every_path(|path| {
        for (b, h, w, size) in [
            (1, 4, 4, (8, 8)),
            (2, 3, 5, (6, 10)),
            (1, 4, 5, (7, 9)),
            (1, 30, 33, (60, 66)),
        ] {
            let weight = stored(&[40, 34, 3, 3], Dtype::F16, 2);
            let bias = tensor(&[40], 8);
            let x = tensor(&[b, h, w, 34], 1);
            let conv = Conv2d::new(
                &weight,
                Some(&Stored::from(&bias)),
                1,
                Padding::Same(1),
                &Device::cpu(),
            )
            .unwrap();
            let mut want = conv_sums(&x, &weight.to_f32().unwrap(), 1, (1, 1), size);
            for (i, sum) in want.iter_mut().enumerate() {
                sum.0 += f64::from(bias.data()[i % 40]);
            }
            let got = conv.upsampled(&x, size, After::default()).unwrap();
            assert_eq!(got.shape(), [b, size.0, size.1, 40]);
            check(path, &format!("enlarged {h}x{w} to {size:?}"), &got, &want);
        }
    });
}

#[test]
fn weights_come_back_bit_by_bit() {
    for dtype in [
        Dtype::F8E4M3,
        Dtype::F8E5M2,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::F32,
        Dtype::F64,
        Dtype::I8,
    ] {
        for (o, i) in [(1, 1), (33, 5), (64, 70), (40, 129)] {
            let bytes: Vec<u8> = (0..o * i * 9 * dtype.size())
                .map(|b| (b * 7 + b / 13) as u8)
                .collect();
            let weight = Stored::new(dtype, [o, i, 3, 3], bytes).unwrap();
            let conv = Conv2d::new(&weight, None, 1, Padding::Same(1), &Device::cpu()).unwrap();
            assert_eq!(conv.weight().unwrap(), weight, "{dtype:?}");
            let flat = weight.reshape([o, i * 9]).unwrap();
            let linear = Linear::new(&flat, None, &Device::cpu()).unwrap();
            assert_eq!(linear.weight().unwrap(), flat);
            assert!(linear.bytes() >= flat.bytes().len() as u64);
            assert!(linear.bytes() <= (o.next_multiple_of(32) * i * 9 * dtype.size()) as u64 + 64);
        }
    }
}

#[test]
fn results_do_not_depend_on_the_thread_count() {
    let pool = |n| {
        rayon::ThreadPoolBuilder::new()
            .num_threads(n)
            .build()
            .unwrap()
    };
    let (one, three) = (pool(1), pool(3));
    on_every_path(|path| {
        for (m, k, n) in [
            (2, 300, 200),
            (100, 1300, 96),
            (3000, 64, 70),
            (500, 9000, 40),
        ] {
            let layer = Linear::new(&stored(&[n, k], Dtype::F16, 2), None, &Device::cpu()).unwrap();
            let x = tensor(&[m, k], 1);
            let a = one.install(|| layer.forward(&x).unwrap());
            let b = three.install(|| layer.forward(&x).unwrap());
            assert!(a == b, "{path}: {m}x{k}x{n}");
        }
        for (b, size, c) in [(2, 8, 480), (1, 65, 40), (3, 33, 64)] {
            let weight = stored(&[c, c, 3, 3], Dtype::F16, 2);
            let conv = Conv2d::new(&weight, None, 1, Padding::Same(1), &Device::cpu()).unwrap();
            let x = tensor(&[b, size, size, c], 1);
            let a = one.install(|| conv.forward(&x).unwrap());
            let b = three.install(|| conv.forward(&x).unwrap());
            assert!(a == b, "{path}: conv {size} {c}");
        }
    });
}

#[test]
fn not_a_number_stays_one() {
    on_every_path(|path| {
        for m in [1, 40] {
            let mut x = tensor(&[m, 64], 1);
            x.data_mut()[5] = f32::NAN;
            for act in [
                Act::None,
                Act::Silu,
                Act::Gelu,
                Act::GeluTanh,
                Act::QuickGelu,
                Act::Relu,
            ] {
                let layer =
                    Linear::new(&stored(&[40, 64], Dtype::F16, 2), None, &Device::cpu()).unwrap();
                let after = After {
                    act,
                    ..After::default()
                };
                let y = layer.forward_with(&x, after).unwrap();
                assert!(y.data()[..40].iter().all(|v| v.is_nan()), "{path} {act:?}");
                assert!(
                    y.data()[40..].iter().all(|v| v.is_finite()),
                    "{path} {act:?}"
                );
            }
        }
    });
}

#[test]
fn bad_shapes_are_errors_and_empty_batches_are_empty() {
    let device = Device::cpu();
    let weight = stored(&[4, 6], Dtype::F16, 1);
    let layer = Linear::new(&weight, None, &device).unwrap();
    assert!(layer.forward(&tensor(&[2, 5], 1)).is_err());
    assert!(layer.forward(&Tensor::scalar(1.0)).is_err());
    assert_eq!(layer.forward(&tensor(&[0, 6], 1)).unwrap().shape(), [0, 4]);
    assert_eq!(layer.geglu(&tensor(&[0, 6], 1)).unwrap().shape(), [0, 2]);
    assert_eq!(layer.forward(&tensor(&[6], 1)).unwrap().shape(), [4]);
    let wrong = tensor(&[2, 5], 1);
    let after = After {
        add: Some(&wrong),
        ..After::default()
    };
    assert!(layer.forward_with(&tensor(&[2, 6], 1), after).is_err());
    let after = After {
        per_item: Some(&wrong),
        ..After::default()
    };
    assert!(layer.forward_with(&tensor(&[2, 6], 1), after).is_err());
    assert!(Linear::new(&stored(&[4, 0], Dtype::F16, 1), None, &device).is_err());
    assert!(Linear::new(&stored(&[4, 6, 2], Dtype::F16, 1), None, &device).is_err());
    assert!(Linear::new(&weight, Some(&stored(&[5], Dtype::F16, 1)), &device).is_err());
    assert!(
        Linear::new(&stored(&[3, 6], Dtype::F16, 1), None, &device)
            .unwrap()
            .geglu(&tensor(&[2, 6], 1))
            .is_err()
    );
    let kernel = stored(&[4, 6, 3, 3], Dtype::F16, 1);
    assert!(Conv2d::new(&kernel, None, 0, Padding::Same(1), &device).is_err());
    let conv = Conv2d::new(&kernel, None, 1, Padding::Same(0), &device).unwrap();
    assert!(conv.forward(&tensor(&[1, 2, 5, 6], 1)).is_err());
    assert!(conv.forward(&tensor(&[1, 5, 5, 5], 1)).is_err());
    assert!(conv.forward(&tensor(&[5, 5, 6], 1)).is_err());
    assert_eq!(
        conv.forward(&tensor(&[0, 5, 5, 6], 1)).unwrap().shape(),
        [0, 3, 3, 4]
    );
}

#[test]
fn the_best_path_is_chosen_again_after_a_test() {
    let _turn = turn();
    isa::force(Some(Isa::Portable));
    assert_eq!(isa::isa(), Isa::Portable);
    assert!(!isa::tiles());
    isa::force(None);
    assert_eq!(isa::isa(), isa::available()[0]);
}

/// Small enough for Miri, which has no vector instructions: everything that kernels do with memory, once.
#[test]
fn one_small_layer_of_each_kind() {
    let device = Device::cpu();
    let weight = stored(&[64, 3], Dtype::F16, 2);
    let x = tensor(&[2, 3], 1);
    let layer = Linear::new(&weight, None, &device).unwrap();
    let want = linear_sums(&x, &weight.to_f32().unwrap(), None);
    check("one", "linear", &layer.forward(&x).unwrap(), &want);
    let gated = layer.geglu(&x).unwrap();
    for (i, got) in gated.data().iter().enumerate() {
        let (row, column) = (i / 32, i % 32);
        let (a, g) = (want[row * 64 + column], want[row * 64 + 32 + column]);
        assert!((f64::from(*got) - a.0 * gelu(g.0)).abs() < 1e-5);
    }
    let kernels = stored(&[3, 2, 3, 3], Dtype::F16, 3);
    let values = kernels.to_f32().unwrap();
    let x = tensor(&[1, 3, 2, 2], 4);
    for (stride, padding, sizes) in [
        (1, Padding::Same(1), (1, 1)),
        (2, Padding::RightBottom, (0, 1)),
    ] {
        let conv = Conv2d::new(&kernels, None, stride, padding, &device).unwrap();
        let want = conv_sums(&x, &values, stride, sizes, (3, 2));
        check("one", "conv", &conv.forward(&x).unwrap(), &want);
        assert_eq!(conv.weight().unwrap(), kernels);
    }
    let conv = Conv2d::new(&kernels, None, 1, Padding::Same(1), &device).unwrap();
    let want = conv_sums(&x, &values, 1, (1, 1), (6, 4));
    let got = conv.upsampled(&x, (6, 4), After::default()).unwrap();
    check("one with tiles", "enlarged", &got, &want);
}
