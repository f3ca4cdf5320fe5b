//! Linear layers, convolutions and products of results for many shapes, formats of weights and what follows them, and how long they take.

use fresco_tensor::formats::{AffineKind, GridKind, Levels, RowFormat, RowKind, ScaleNumber};
use fresco_tensor::gpu::Format;
use fresco_tensor::nn::{
    Act, After, Conv2d, Conv3d, Linear, Padding, SlotGroup, concat_channels, matmul,
};
use fresco_tensor::{Device, Dtype, Stored, Tensor};

use crate::compare::{FORMATS, Random, Report, gpu, is_tried, milliseconds};

const ACTS: [Act; 7] = [
    Act::None,
    Act::Silu,
    Act::Gelu,
    Act::GeluTanh,
    Act::QuickGelu,
    Act::Relu,
    Act::Leaky,
];

fn stored(t: &Tensor, dtype: Dtype) -> Stored {
    Stored::from_f32(t, dtype).unwrap()
}

/// A weight whose products with normal inputs are about normal.
fn weight(random: &mut Random, shape: &[usize], dtype: Dtype) -> Stored {
    let inputs: usize = shape[1..].iter().product();
    let scale = 1.0 / (inputs as f32).sqrt();
    stored(&random.tensor(shape).mul_scalar(scale), dtype)
}

fn plain_dtype(format: Format) -> Dtype {
    match format {
        Format::F32 => Dtype::F32,
        Format::F16 => Dtype::F16,
        Format::Bf16 => Dtype::Bf16,
    }
}

/// A layer here and there.
fn linear(weight: &Stored, bias: Option<&Stored>, device: &Device) -> [Linear; 2] {
    [&Device::Cpu, device].map(|device| Linear::new(weight, bias, device).unwrap().exact())
}

#[test]
fn linear_layers_are_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(10);
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        let mut shapes = vec![
            (1, 1, 8, 8),
            (1, 1, 3072, 18432),
            (2, 77, 768, 320),
            (2, 4096, 320, 320),
            (1, 0, 64, 64),
            (1, 1500, 1280, 1280),
            (1, 64, 5120, 640),
            (3, 100, 2048, 100),
            (1, 4608, 256, 3072),
            // Few tiles with long sums, of one item, two, and many.
            (2, 256, 1280, 1280),
            (2, 64, 2560, 1280),
            (2, 1024, 2560, 640),
            (9, 16, 1280, 1280),
            (1, 100, 5120, 104),
            // Many tiles with short sums: of whole items, of items that share tiles, with odd ends, and with the last ones cut.
            (2, 8320, 64, 320),
            (2, 8300, 72, 328),
            (1, 17000, 200, 168),
            (1, 20480, 320, 328),
        ];
        for _ in 0..40 {
            let b = 1 + random.below(3);
            let n = random.one_of(&[1, 7, 63, 64, 65, 127, 128, 129, 300, 777]);
            let k = match random.below(4) {
                0 => 1 + random.below(300),
                _ => 8 * (1 + random.below(160)),
            };
            let out = match random.below(3) {
                0 => 1 + random.below(600),
                _ => 8 * (1 + random.below(100)),
            };
            shapes.push((b, n, k, out));
        }
        for (i, (b, n, k, out)) in shapes.into_iter().enumerate() {
            if !is_tried(&device, (b * n).next_multiple_of(128) * k * out) {
                continue;
            }
            let dtype = random.one_of(&[
                plain_dtype(format),
                plain_dtype(format),
                Dtype::F32,
                Dtype::F16,
                Dtype::Bf16,
            ]);
            let w = weight(&mut random, &[out, k], dtype);
            let bias = stored(
                &random.tensor(&[out]),
                random.one_of(&[Dtype::F32, Dtype::F16]),
            );
            let bias = (random.below(3) > 0).then_some(&bias);
            let [here, there] = linear(&w, bias, &device);
            let (x, x_here) = random.pair(&[b, n, k], &device);
            let (add, add_here) = random.pair(&[b, n, out], &device);
            let (item, item_here) = random.pair(&[b, out], &device);
            let case = format!("{b}x{n}x{k}->{out} {dtype:?} bias {}", bias.is_some());
            for act in [ACTS[i % 7], Act::None] {
                let (with_add, with_item) = (random.below(2) == 0, random.below(2) == 0);
                let after = |add, item| After {
                    act,
                    add: with_add.then_some(add),
                    per_item: with_item.then_some(item),
                    for_norm: true,
                };
                let expected = here
                    .forward_with(&x_here, after(&add_here, &item_here))
                    .unwrap();
                let found = there.forward_with(&x, after(&add, &item));
                let case = format!("{case} act {act:?} add {with_add} item {with_item}");
                report.check(format, &case, found, &expected);
            }
            let gate_shape = random.one_of(&[[1, 1, out], [b, 1, out], [b, n, out]]);
            let (gate, gate_here) = random.pair(&gate_shape, &device);
            let expected = here.forward_gated(&x_here, add_here, &gate_here).unwrap();
            let found = there.forward_gated(&x, add, &gate);
            report.check(format, &format!("gated {case}"), found, &expected);
            if out % 2 == 0 {
                let expected = here.geglu(&x_here).unwrap();
                report.check(format, &format!("geglu {case}"), there.geglu(&x), &expected);
            }
        }
    }
    report.end("linear");
}

#[test]
fn layers_of_two_inputs_are_those_of_both() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(14);
    let mut made = 0;
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        for (rows, early, late, out) in [
            (8192, 320, 320, 320),
            (2048, 1280, 640, 640),
            (128, 1280, 1280, 1280),
            (77, 64, 8, 40),
            (100, 40, 24, 64),
        ] {
            let w = weight(&mut random, &[out, early + late], plain_dtype(format));
            let bias = stored(&random.tensor(&[out]), Dtype::F32);
            let [here, there] = linear(&w, Some(&bias), &device);
            let (x, x_here) = random.pair(&[1, rows, early], &device);
            let (behind, behind_here) = random.pair(&[1, rows, late], &device);
            let none = here.forward_of_two(&x_here, &behind_here).unwrap();
            assert!(none.is_none(), "the processor has no such kernel");
            let Some(found) = there.forward_of_two(&x, &behind).unwrap() else {
                continue;
            };
            made += 1;
            let both = concat_channels(&[&x_here, &behind_here]).unwrap();
            let expected = here.forward(&both).unwrap();
            let case = format!("{rows}x{early} and {late}->{out}");
            report.check(format, &case, Ok(found), &expected);
        }
    }
    println!("{made} of two without a copy");
    report.end("of two inputs");
}

fn quantised(columns: usize) -> Vec<Dtype> {
    let rows = |kind, rotation| RowFormat::new(kind, columns, rotation).map(Dtype::Rows);
    let grid = |levels, wide_scales| {
        RowKind::Grid(GridKind {
            bits: 4,
            group: 32,
            wide_scales,
            levels,
            corrected: false,
        })
    };
    let mut all = vec![
        Dtype::F8E4M3,
        Dtype::F8E5M2,
        Dtype::Q8_0,
        Dtype::Q4_0,
        Dtype::Q4_1,
        Dtype::Q5_0,
        Dtype::Q5_1,
        Dtype::Q2K,
        Dtype::Q3K,
        Dtype::Q4K,
        Dtype::Q5K,
        Dtype::Q6K,
        Dtype::Q8K,
        Dtype::Iq4Nl,
        Dtype::Iq4Xs,
        Dtype::Mxfp4,
        Dtype::GgmlNvfp4,
        Dtype::Tq1_0,
        Dtype::Tq2_0,
    ];
    let kinds = [
        (RowKind::F8E4M3, 0),
        (RowKind::F8E5M2, 0),
        (RowKind::Int8, 0),
        (RowKind::Int8, 256),
        (RowKind::Int4 { wide_input: true }, 64),
        (RowKind::Nvfp4, 0),
        (RowKind::Mxfp8, 0),
        (grid(Levels::Even, false), 0),
        (grid(Levels::Usual, true), 0),
        (
            RowKind::Affine(AffineKind {
                group: 64,
                scale: ScaleNumber::Bf16,
            }),
            0,
        ),
    ];
    all.extend(
        kinds
            .into_iter()
            .filter_map(|(kind, rotation)| rows(kind, rotation)),
    );
    all
}

/// Some bytes of a format that nothing here writes: small scales where they are known to be, and noise.
fn noise(random: &mut Random, dtype: Dtype, shape: &[usize]) -> Option<Stored> {
    let count: usize = shape.iter().product();
    let mut bytes: Vec<u8> = (0..dtype.bytes_for(count)?)
        .map(|_| random.next() as u8)
        .collect();
    let (_, size) = dtype.block();
    let half = 0x2000_u16.to_le_bytes();
    let places: &[usize] = match dtype {
        Dtype::Q2K => &[80, 82],
        Dtype::Q3K => &[108],
        Dtype::Iq4Nl | Dtype::Iq4Xs | Dtype::Q8_0 | Dtype::Q4_0 | Dtype::Q5_0 => &[0],
        Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => &[0, 2],
        Dtype::Q6K => &[208],
        Dtype::Tq1_0 => &[52],
        Dtype::Tq2_0 => &[64],
        Dtype::Q8K => {
            for block in bytes.chunks_mut(size) {
                block[..4].copy_from_slice(&0.01_f32.to_le_bytes());
            }
            &[]
        }
        Dtype::Mxfp4 => {
            for block in bytes.chunks_mut(size) {
                block[0] = 120 + block[0] % 4;
            }
            &[]
        }
        Dtype::GgmlNvfp4 => {
            for block in bytes.chunks_mut(size) {
                block[..4].iter_mut().for_each(|b| *b = 0x20 | *b & 0x0F);
            }
            &[]
        }
        _ => return None,
    };
    for block in bytes.chunks_mut(size) {
        for &at in places {
            block[at..at + 2].copy_from_slice(&half);
        }
    }
    Some(Stored::new(dtype, shape, bytes).unwrap())
}

#[test]
fn quantised_weights_are_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(11);
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        for (k, out) in [(256, 40), (1280, 136), (512, 7)] {
            for dtype in quantised(k) {
                let w = if dtype.is_writable() {
                    Some(weight(&mut random, &[out, k], dtype))
                } else {
                    noise(&mut random, dtype, &[out, k])
                };
                let Some(w) = w else {
                    println!("not tested: {}", dtype.name());
                    continue;
                };
                let [here, there] = linear(&w, None, &device);
                let (x, x_here) = random.pair(&[1, 33, k], &device);
                let expected = here.forward(&x_here).unwrap();
                let case = format!("{} {k}->{out}", dtype.name());
                report.check(format, &case, there.forward(&x), &expected);
                assert_eq!(there.weight().unwrap(), w.reshape([out, k]).unwrap());
            }
        }
        // Kernels whose blocks reach over positions.
        for dtype in [Dtype::Q8_0, Dtype::Q4K, Dtype::F8E4M3] {
            let w = weight(&mut random, &[24, 256, 3, 3], dtype);
            let [here, there] = [&Device::Cpu, &device]
                .map(|d| Conv2d::new(&w, None, 1, Padding::Same(1), d).unwrap());
            let (x, x_here) = random.pair(&[1, 9, 10, 256], &device);
            let expected = here.forward(&x_here).unwrap();
            report.check(
                format,
                &format!("conv {}", dtype.name()),
                there.forward(&x),
                &expected,
            );
        }
    }
    report.end("quantised weights");
}

#[test]
fn convolutions_are_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(12);
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        // Batch, height, width, channels in and out, kernel, stride, padding, enlarged.
        let mut cases = vec![
            (2, 64, 64, 4, 320, 3, 1, Padding::Same(1), false),
            (2, 32, 32, 320, 320, 3, 1, Padding::Same(1), false),
            (2, 16, 16, 640, 1280, 3, 1, Padding::Same(1), false),
            (2, 8, 8, 1280, 1280, 3, 1, Padding::Same(1), false),
            (3, 8, 8, 256, 64, 3, 1, Padding::Same(1), true),
            (2, 64, 64, 320, 320, 3, 2, Padding::Same(1), false),
            (1, 64, 64, 128, 128, 3, 2, Padding::RightBottom, false),
            (1, 37, 45, 320, 640, 3, 1, Padding::Same(1), false),
            (1, 33, 31, 64, 64, 3, 2, Padding::Same(1), false),
            (1, 128, 128, 128, 3, 3, 1, Padding::Same(1), false),
            (1, 32, 32, 16, 3072, 2, 2, Padding::Same(0), false),
            (1, 40, 40, 3, 1152, 14, 14, Padding::Same(0), false),
            (1, 20, 20, 512, 512, 3, 1, Padding::Same(1), true),
            (1, 64, 48, 64, 40, 3, 1, Padding::Same(1), true),
            (2, 40, 36, 72, 33, 3, 1, Padding::Same(1), true),
            (1, 64, 64, 256, 128, 3, 1, Padding::Same(1), true),
            (1, 47, 61, 128, 320, 3, 1, Padding::Same(1), true),
            (4, 64, 64, 40, 320, 3, 1, Padding::Same(1), false),
            (3, 61, 90, 64, 328, 3, 1, Padding::Same(1), false),
        ];
        for _ in 0..30 {
            let kernel = random.one_of(&[1, 1, 2, 3, 3, 3, 5]);
            cases.push((
                1 + random.below(3),
                kernel + random.below(30),
                kernel + random.below(30),
                random.one_of(&[1, 3, 4, 8, 16, 20, 32, 64, 72, 128, 192]),
                random.one_of(&[1, 3, 4, 8, 33, 64, 100, 128, 160]),
                kernel,
                1 + random.below(3),
                Padding::Same(random.below(kernel)),
                random.below(4) == 0,
            ));
        }
        for (i, (b, h, w, c, out, k, stride, padding, large)) in cases.into_iter().enumerate() {
            let pixels = if large { 4 * h * w } else { h * w };
            let rows = (b * pixels / (stride * stride)).next_multiple_of(128);
            if !is_tried(&device, rows * c * k * k * out) {
                continue;
            }
            let dtype = random.one_of(&[
                plain_dtype(format),
                plain_dtype(format),
                Dtype::F32,
                Dtype::Bf16,
            ]);
            let kernels = weight(&mut random, &[out, c, k, k], dtype);
            let bias = stored(&random.tensor(&[out]), Dtype::F32);
            let bias = (random.below(3) > 0).then_some(&bias);
            let [here, there] = [&Device::Cpu, &device]
                .map(|d| Conv2d::new(&kernels, bias, stride, padding, d).unwrap());
            let (x, x_here) = random.pair(&[b, h, w, c], &device);
            let size = match (large, random.below(3)) {
                (false, _) => (h, w),
                (true, 0) => (h + 3, 3 * w),
                (true, _) => (2 * h, 2 * w),
            };
            let case = format!(
                "{b}x{h}x{w}x{c}->{out} to {size:?} kernel {k} stride {stride} {padding:?} {dtype:?}"
            );
            let shape = here
                .upsampled(&x_here, size, After::default())
                .unwrap()
                .shape()
                .to_vec();
            let (add, add_here) = random.pair(&shape, &device);
            // One for each item, or one for all.
            let items = if random.below(3) == 0 { 1 } else { b };
            let (item, item_here) = random.pair(&[items, out], &device);
            for act in [ACTS[i % 7], Act::None] {
                let with = (random.below(2) == 0, random.below(2) == 0);
                let after = |add, item| After {
                    act,
                    add: with.0.then_some(add),
                    per_item: with.1.then_some(item),
                    for_norm: true,
                };
                let expected = here
                    .upsampled(&x_here, size, after(&add_here, &item_here))
                    .unwrap();
                let found = there.upsampled(&x, size, after(&add, &item));
                report.check(
                    format,
                    &format!("{case} act {act:?} {with:?}"),
                    found,
                    &expected,
                );
            }
        }
    }
    report.end("convolutions");
}

#[test]
fn convolutions_and_layers_beside_them_are_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(17);
    let mut made = 0;
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        for (b, side, c, early, late, out) in [
            (2, 64, 320, 640, 320, 320),
            (2, 32, 640, 320, 0, 640),
            (2, 32, 640, 1280, 640, 640),
            (8, 32, 640, 640, 320, 640),
            (8, 32, 320, 320, 320, 320),
            (2, 16, 1280, 1280, 640, 1280),
            (2, 8, 1280, 1280, 1280, 1280),
            (1, 7, 24, 40, 0, 72),
            (3, 11, 64, 64, 8, 40),
            (1, 9, 40, 40, 24, 64),
        ] {
            let kernels = weight(&mut random, &[out, c, 3, 3], plain_dtype(format));
            let w = weight(&mut random, &[out, early + late], plain_dtype(format));
            let bias = stored(&random.tensor(&[out]), Dtype::F32);
            let more = stored(&random.tensor(&[out]), Dtype::F32);
            let more = (random.below(4) > 0).then_some(&more);
            let [conv_here, conv] = [&Device::Cpu, &device]
                .map(|d| Conv2d::new(&kernels, Some(&bias), 1, Padding::Same(1), d).unwrap());
            let [layer_here, layer] = linear(&w, more, &device);
            let (h, h_here) = random.pair(&[b, side, side, c], &device);
            let (x, x_here) = random.pair(&[b, side, side, early], &device);
            let (behind, behind_here) = random.pair(&[b, side, side, late], &device);
            let behind = (late > 0).then_some(&behind);
            let (add, add_here) = random.pair(&[b, side, side, out], &device);
            let (item, item_here) = random.pair(&[b, out], &device);
            let with = (random.below(2) == 0, random.below(2) == 0);
            let after = After {
                add: with.0.then_some(&add),
                per_item: with.1.then_some(&item),
                ..After::default()
            };
            let case = format!("{b}x{side}x{side}x{c} and {early}, {late}->{out} {with:?}");
            let found = conv.forward_and(&h, &layer, (&x, behind), after);
            let Some(found) = found.unwrap() else {
                continue;
            };
            made += 1;
            let both = match late {
                0 => x_here,
                _ => concat_channels(&[&x_here, &behind_here]).unwrap(),
            };
            let mut expected = layer_here.forward(&both).unwrap();
            if with.0 {
                expected = expected.add(&add_here).unwrap();
            }
            let after_here = After {
                add: Some(&expected),
                per_item: with.1.then_some(&item_here),
                ..After::default()
            };
            let expected = conv_here.forward_with(&h_here, after_here).unwrap();
            report.check(format, &case, Ok(found), &expected);
        }
    }
    println!("{made} with a layer beside them");
    report.end("convolutions and layers beside them");
}

#[test]
fn convolutions_over_frames_are_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(13);
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        for kernel in [[3, 3, 3], [3, 1, 1], [1, 3, 3], [2, 3, 1]] {
            for (t, known, c, out) in [
                (1, 0, 16, 96),
                (1, 2, 96, 96),
                (5, 0, 64, 40),
                (4, 2, 12, 3),
                (3, 1, 192, 384),
            ] {
                let w = weight(
                    &mut random,
                    &[out, c, kernel[0], kernel[1], kernel[2]],
                    plain_dtype(format),
                );
                let bias = stored(&random.tensor(&[out]), Dtype::F32);
                let conv = Conv3d::in_group(&w, Some(&bias), &SlotGroup::new()).unwrap();
                let (x, x_here) = random.pair(&[t, 9, 13, c], &device);
                let (before, before_here) = random.pair(&[known.max(1), 9, 13, c], &device);
                let (add, add_here) = random.pair(&[t, 9, 13, out], &device);
                let given = usize::from(known > 0);
                let (before, before_here) = ([before], [before_here]);
                let expected = conv
                    .forward(&x_here, &before_here[..given], Some(add_here.clone()))
                    .unwrap();
                let found = conv.forward(&x, &before[..given], Some(add.clone()));
                let case = format!("{kernel:?} {t} frames after {known} {c}->{out}");
                report.check(format, &case, found, &expected);
                let expected = conv.strided(&x_here, 2).unwrap();
                report.check(
                    format,
                    &format!("strided {case}"),
                    conv.strided(&x, 2),
                    &expected,
                );
            }
        }
    }
    report.end("convolutions over frames");
}

#[test]
fn products_of_results_are_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(14);
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        for [b, n, k, m] in [
            [1, 1, 1, 1],
            [2, 65, 33, 130],
            [3, 64, 128, 64],
            [5, 7, 300, 9],
            [2, 0, 4, 4],
            [2, 3, 0, 4],
        ] {
            let (left, left_here) = random.pair(&[b, n, k], &device);
            let (right, right_here) = random.pair(&[b, k, m], &device);
            let expected = matmul(&left_here, &right_here).unwrap();
            report.check(
                format,
                &format!("{b}x{n}x{k}x{m}"),
                matmul(&left, &right),
                &expected,
            );
        }
    }
    report.end("products of results");
}

/// How long the shapes of prototypes/cuda/README.md take.
#[test]
fn times() {
    if std::env::var_os("FRESCO_BENCH").is_none() {
        return;
    }
    let Some(gpu) = gpu() else { return };
    let mut random = Random::new(15);
    for format in [Format::Bf16, Format::F16, Format::F32] {
        let device = gpu.computing_only_in(format);
        let dtype = plain_dtype(format);
        for (m, k, n) in [
            (4608, 3072, 12288),
            (4608, 12288, 3072),
            (4096, 1280, 10240),
            (8192, 320, 320),
            (2048, 1280, 1280),
            (154, 768, 320),
            (1, 3072, 18432),
        ] {
            if format == Format::F32 && m * k * n > 20_000_000_000 {
                continue;
            }
            let layer = Linear::new(&weight(&mut random, &[n, k], dtype), None, &device).unwrap();
            let x = random.tensor(&[m, k]).to(&device).unwrap();
            let work = 2e-9 * (m * k * n) as f64;
            let (ms, kernels) = milliseconds(&device, || layer.forward(&x));
            println!(
                "{format:?} {m}x{k}x{n}: {:.1} us, {:.0} TFLOP/s, {kernels}",
                ms * 1e3,
                work / ms
            );
            if n == 10240 {
                let (ms, kernels) = milliseconds(&device, || layer.geglu(&x));
                println!(
                    "{format:?} geglu {m}x{k}x{n}: {:.1} us, {:.0} TFLOP/s, {kernels}",
                    ms * 1e3,
                    work / ms
                );
            }
            if n == 12288 {
                let after = After {
                    act: Act::GeluTanh,
                    ..After::default()
                };
                let (ms, kernels) = milliseconds(&device, || layer.forward_with(&x, after));
                println!(
                    "{format:?} gelu {m}x{k}x{n}: {:.1} us, {:.0} TFLOP/s, {kernels}",
                    ms * 1e3,
                    work / ms
                );
            }
        }
        for (b, h, w, c, out, stride, large) in [
            (2, 64, 64, 320, 320, 1, false),
            (2, 64, 64, 960, 320, 1, false),
            (2, 32, 32, 640, 640, 1, false),
            (2, 16, 16, 1280, 1280, 1, false),
            (2, 8, 8, 1280, 1280, 1, false),
            (1, 128, 128, 512, 512, 1, false),
            (1, 1024, 1024, 128, 128, 1, false),
            (1, 37, 45, 320, 640, 1, false),
            (2, 64, 64, 320, 320, 2, false),
            (2, 32, 32, 640, 640, 1, true),
            (1, 512, 512, 256, 256, 1, true),
            (2, 64, 64, 4, 320, 1, false),
            (1, 1024, 1024, 128, 3, 1, false),
        ] {
            if format == Format::F32 && h > 64 {
                continue;
            }
            let kernels = weight(&mut random, &[out, c, 3, 3], dtype);
            let layer = Conv2d::new(&kernels, None, stride, Padding::Same(1), &device).unwrap();
            let x = random.tensor(&[b, h, w, c]).to(&device).unwrap();
            let size = if large { (2 * h, 2 * w) } else { (h, w) };
            let (ms, kernels) =
                milliseconds(&device, || layer.upsampled(&x, size, After::default()));
            let work = 18e-9 * (b * size.0 * size.1 * c * out) as f64 / (stride * stride) as f64;
            println!(
                "{format:?} conv {b}x{h}x{w}x{c}->{out} stride {stride} enlarged {large}: {:.1} us, {:.0} TFLOP/s, {kernels}",
                ms * 1e3,
                work / ms
            );
        }
    }
}
