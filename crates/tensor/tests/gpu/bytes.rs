//! Products of bytes, products with several weights or inputs, and steps that are repeated.

use fresco_tensor::formats::{GridKind, Levels, RowFormat, RowKind};
use fresco_tensor::gpu::Format;
use fresco_tensor::nn::{
    Act, After, LayerInput, LayerNorm, Linear, MlpJoin, ModulatedRows, SideColumns,
};
use fresco_tensor::{Device, Dtype, Stored, Tensor};

use crate::compare::{FORMATS, Random, Report, gpu, is_tried, milliseconds};

fn weight(random: &mut Random, [out, k]: [usize; 2], dtype: Dtype) -> Stored {
    let scale = 1.0 / (k as f32).sqrt();
    Stored::from_f32(&random.tensor(&[out, k]).mul_scalar(scale), dtype).unwrap()
}

fn rows(kind: RowKind, columns: usize, rotation: usize) -> Option<Dtype> {
    RowFormat::new(kind, columns, rotation).map(Dtype::Rows)
}

/// A layer here and there.
fn layers(weight: &Stored, bias: Option<&Stored>, device: &Device) -> [Linear; 2] {
    [&Device::Cpu, device].map(|device| Linear::new(weight, bias, device).unwrap())
}

/// (rows, inputs, outputs): narrow and wide tiles, sums that are cut, rows that fill no tile, and widths that no kernel of bytes takes.
const SIZES: [(usize, usize, usize); 8] = [
    (33, 512, 48),
    (1, 256, 264),
    (154, 768, 320),
    (300, 1280, 2560),
    (70, 15360, 136),
    (2, 3072, 18432),
    (0, 256, 64),
    (5, 264, 20),
];

/// Rows rounded to E4M3, each with a scale of its own.
fn rounded(x: &Tensor, columns: usize) -> Tensor {
    let format = rows(RowKind::F8E4M3, columns, 0).unwrap();
    let mut all = Vec::with_capacity(x.len());
    for row in x.data().chunks_exact(columns) {
        let row = Tensor::from_vec([1, columns], row.to_vec()).unwrap();
        let coded = Stored::from_f32(&row, format).unwrap();
        all.extend_from_slice(coded.to_f32().unwrap().data());
    }
    Tensor::from_fn(x.shape(), |i| all[i]).unwrap()
}

#[test]
fn products_of_whole_numbers_are_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(41);
    let grid = |levels, wide_scales| {
        RowKind::Grid(GridKind {
            bits: 4,
            group: 32,
            wide_scales,
            levels,
            corrected: false,
        })
    };
    let kinds = [
        (RowKind::Int8, 0),
        (RowKind::Int8, 16),
        (RowKind::Int8, 256),
        (RowKind::Int4 { wide_input: false }, 64),
        (RowKind::Int4 { wide_input: true }, 256),
        (grid(Levels::Even, false), 0),
        (grid(Levels::Usual, true), 0),
    ];
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        for (count, k, out) in SIZES {
            if !is_tried(&device, count.next_multiple_of(128) * k * out) {
                continue;
            }
            for (kind, rotation) in kinds {
                // What f32 does has been tried with the other formats; rotated sums of it are rounded elsewhere now and then. Without products of
                // bytes rotated numbers are rounded to sixteen bits first.
                if rotation > 0 && (format == Format::F32 || capability(&gpu) < (8, 0)) {
                    continue;
                }
                let Some(dtype) = rows(kind, k, rotation) else {
                    continue;
                };
                let w = weight(&mut random, [out, k], dtype);
                let bias = Stored::from_f32(&random.tensor(&[out]), Dtype::F32).unwrap();
                let [here, there] = layers(&w, Some(&bias), &device);
                let (x, x_here) = random.pair(&[1, count, k], &device);
                let case = format!("{} {count}x{k}x{out}", dtype.name());
                let expected = here.forward(&x_here).unwrap();
                report.check(format, &case, there.forward(&x), &expected);
                assert_eq!(there.weight().unwrap(), w, "{case}");
                let (add, add_here) = random.pair(&[1, count, out], &device);
                let after = |add| After {
                    act: Act::GeluTanh,
                    add: Some(add),
                    per_item: None,
                    ..After::default()
                };
                let expected = here.forward_with(&x_here, after(&add_here)).unwrap();
                let found = there.forward_with(&x, after(&add));
                report.check(format, &format!("after {case}"), found, &expected);
                // Halves that no kernel of bytes writes: there rotated numbers are rounded to sixteen bits first.
                if rotation > 0 && out % 16 != 0 {
                    continue;
                }
                let expected = here.geglu(&x_here).unwrap();
                report.check(format, &format!("geglu {case}"), there.geglu(&x), &expected);
            }
        }
    }
    report.end("whole numbers");
}

/// What a card computes as.
fn capability(gpu: &Device) -> (u32, u32) {
    gpu.gpu().map_or((0, 0), |gpu| gpu.generation)
}

/// Others multiply such weights as halves, and round no input.
pub(crate) fn has_fp8(gpu: &Device) -> bool {
    matches!(capability(gpu), (8, 9) | (9 | 12.., _))
}

#[test]
fn products_of_eight_bit_floats_are_those_of_rounded_inputs() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(42);
    for format in [Format::F16, Format::Bf16] {
        let device = gpu.computing_only_in(format);
        for (count, k, out) in SIZES {
            if !is_tried(&device, count.next_multiple_of(128) * k * out) {
                continue;
            }
            for kind in [RowKind::F8E4M3, RowKind::F8E5M2] {
                let w = weight(&mut random, [out, k], rows(kind, k, 0).unwrap());
                let [here, there] = layers(&w, None, &device);
                let (x, x_here) = random.pair(&[1, count, k], &device);
                // Rows of other sizes, as those of an activation are.
                let case = format!("{kind:?} {count}x{k}x{out}");
                let bytes = has_fp8(&gpu) && k % 16 == 0 && out % 8 == 0;
                let rounded = if bytes {
                    rounded(&x_here, k)
                } else {
                    x_here.clone()
                };
                let expected = here.forward(&rounded).unwrap();
                // A number half way between two bytes may be rounded the other way there: one input in 3,072 then differs by 6 %.
                let coarse = if bytes { Format::Bf16 } else { format };
                report.check(coarse, &case, there.forward(&x), &expected);
                assert_eq!(there.weight().unwrap(), w, "{case}");
                if bytes && out % 16 == 0 {
                    let expected = here.geglu(&rounded).unwrap();
                    report.check(coarse, &format!("geglu {case}"), there.geglu(&x), &expected);
                }
                // A layer that must not round.
                let exact = Linear::new(&w, None, &device).unwrap().exact();
                let expected = here.forward(&x_here).unwrap();
                report.check(
                    format,
                    &format!("exact {case}"),
                    exact.forward(&x),
                    &expected,
                );
            }
        }
    }
    report.end("floats of eight bits");
}

#[test]
fn one_pass_through_several_layers_is_as_one_by_one() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(43);
    for (format, dtype) in [(Format::F16, Dtype::F16), (Format::Bf16, Dtype::Bf16)] {
        let device = gpu.computing_only_in(format);
        for (count, k, out) in [
            (154_usize, 768, 320),
            (8192, 320, 320),
            (128, 1280, 1280),
            (2048, 640, 640),
            (37, 72, 24),
            (9, 64, 20),
        ] {
            if !is_tried(&device, count.next_multiple_of(128) * k * out) {
                continue;
            }
            let made: Vec<[Linear; 2]> = (0..3)
                .map(|n| {
                    let w = weight(&mut random, [out, k], dtype);
                    let bias = Stored::from_f32(&random.tensor(&[out]), Dtype::F32).unwrap();
                    layers(&w, (n != 1).then_some(&bias), &device)
                })
                .collect();
            let (x, x_here) = random.pair(&[1, count, k], &device);
            let [a, b, c] = &made[..] else { return };
            let three = Linear::forward_each([&a[1], &b[1], &c[1]], &x).unwrap();
            for (n, (found, layer)) in three.into_iter().zip(&made).enumerate() {
                let expected = layer[0].forward(&x_here).unwrap();
                let case = format!("{n} of three {count}x{k}x{out}");
                report.check(format, &case, Ok(found), &expected);
            }
            let two = Linear::forward_each([&b[1], &c[1]], &x).unwrap();
            for (n, (found, layer)) in two.into_iter().zip(&made[1..]).enumerate() {
                let expected = layer[0].forward(&x_here).unwrap();
                let case = format!("{n} of two {count}x{k}x{out}");
                report.check(format, &case, Ok(found), &expected);
            }
        }
    }
    report.end("several layers");
}

#[test]
fn few_rows_through_many_layers_are_as_one_by_one() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(47);
    for (format, dtype) in [(Format::F16, Dtype::F16), (Format::Bf16, Dtype::Bf16)] {
        let device = gpu.computing_only_in(format);
        for (count, k) in [(1, 1280), (2, 1280), (8, 256), (3, 8), (9, 64), (2, 20)] {
            let made: Vec<[Linear; 2]> = (0..40)
                .map(|n| {
                    let w = weight(&mut random, [1 + 13 * n, k], dtype);
                    let bias = Stored::from_f32(&random.tensor(&[1 + 13 * n]), Dtype::F32).unwrap();
                    layers(&w, (n % 3 != 1).then_some(&bias), &device)
                })
                .collect();
            let (x, x_here) = random.pair(&[count, k], &device);
            let there: Vec<&Linear> = made.iter().map(|layer| &layer[1]).collect();
            let found = Linear::forward_few(&there, &x).unwrap();
            assert_eq!(found.is_some(), count <= 8 && k % 8 == 0);
            for (found, layer) in found.into_iter().flatten().zip(&made) {
                let expected = layer[0].forward(&x_here).unwrap();
                let case = format!("{count} rows of {k} to {}", layer[0].out_features());
                report.check(format, &case, Ok(found), &expected);
            }
        }
    }
    report.end("few rows");
}

#[test]
fn columns_beside_attention_are_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(44);
    for (format, plain) in [(Format::F16, Dtype::F16), (Format::Bf16, Dtype::Bf16)] {
        let device = gpu.computing_only_in(format);
        for (count, width, mlp) in [(70, 256, 1024), (300, 512, 640), (9, 64, 40)] {
            let formats = |k| [plain, rows(RowKind::Int8, k, 0).unwrap()];
            for number in 0..2 {
                let first = weight(
                    &mut random,
                    [3 * width + mlp, width],
                    formats(width)[number],
                );
                let k = width + mlp;
                let second = weight(&mut random, [width, k], formats(k)[number]);
                let [first, second] = [first, second].map(|w| layers(&w, None, &device));
                let (x, x_here) = random.pair(&[1, count, width], &device);
                let (seen, seen_here) = random.pair(&[1, count, width], &device);
                let (gate, gate_here) = random.pair(&[1, width], &device);
                let through = |at: usize, x: &Tensor, seen: &Tensor, gate: &Tensor| {
                    let kind = MlpJoin::GeluTanh;
                    let (all, kind) =
                        first[at].forward_beside(LayerInput::Rows(x), 3 * width, kind)?;
                    let beside = SideColumns::new(all, 3 * width, kind)?;
                    beside.through(&second[at], seen, x.clone(), gate)
                };
                let expected = through(0, &x_here, &seen_here, &gate_here).unwrap();
                let case = format!("{count} rows of {width} and {mlp}, format {number}");
                // What comes between is rounded to bytes again.
                let format = if number == 0 { format } else { Format::Bf16 };
                report.check(format, &case, through(1, &x, &seen, &gate), &expected);
            }
        }
    }
    report.end("beside attention");
}

/// Kernels of a step that is repeated are started before those before them have ended: nothing may be read too early.
#[test]
fn repeated_steps_give_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random::new(45);
    let device = gpu.computing_only_in(Format::F16);
    let k = 640;
    let made: Vec<Linear> = (0..4)
        .map(|_| {
            let w = weight(&mut random, [k, k], Dtype::F16);
            Linear::new(&w, None, &device).unwrap()
        })
        .collect();
    let whole = weight(&mut random, [k, k], rows(RowKind::Int8, k, 0).unwrap());
    let whole = Linear::new(&whole, None, &device).unwrap();
    let norm = LayerNorm::new(None, None, 1e-5).unwrap();
    for count in [3_usize, 200, 3000] {
        if !is_tried(&device, 40 * 60 * count.next_multiple_of(128) * k * k) {
            continue;
        }
        let given = random.tensor(&[1, count, k]);
        let step = || {
            let mut x = given.to(&device).unwrap();
            for _ in 0..12 {
                let normed = norm.forward(&x).unwrap();
                let [q, r] = Linear::forward_each([&made[0], &made[1]], &normed).unwrap();
                let sum = q.add(&r).unwrap();
                let inner = made[2].forward_with(&sum, act()).unwrap();
                let add = whole.forward(&inner).unwrap();
                x = made[3].forward_with(&add, plus(&x)).unwrap();
            }
            x.to(&Device::Cpu).unwrap()
        };
        let expected = step();
        assert!(expected.data().iter().all(|v| v.is_finite()));
        for time in 0..40 {
            let found = device.repeated(count as u64, step);
            assert!(found == expected, "{count} rows, time {time}");
        }
        let repeats = device.gpu().map_or(0, |gpu| gpu.repeats);
        println!("repeated steps of {count} rows: {repeats} as graphs");
        assert!(repeats > 30, "{repeats}");
    }
}

fn act() -> After<'static> {
    After {
        act: Act::Silu,
        ..After::default()
    }
}

fn plus(x: &Tensor) -> After<'_> {
    After {
        add: Some(x),
        ..After::default()
    }
}

/// `FRESCO_BENCH=1` prints how long products of bytes take.
#[test]
fn times() {
    if std::env::var_os("FRESCO_BENCH").is_none() {
        return;
    }
    let Some(gpu) = gpu() else { return };
    let device = gpu.computing_only_in(Format::Bf16);
    let mut random = Random::new(46);
    for (m, k, n) in [
        (4352, 3072, 9216),
        (4352, 3072, 12288),
        (4352, 12288, 3072),
        (4352, 15360, 3072),
        (4352, 3072, 21504),
        (256, 3072, 9216),
    ] {
        let x = random.tensor(&[m, k]).to(&device).unwrap();
        let small = random.tensor(&[n.min(256), k]);
        for dtype in [
            Dtype::Bf16,
            rows(RowKind::F8E4M3, k, 0).unwrap(),
            rows(RowKind::Int8, k, 0).unwrap(),
            rows(RowKind::Int8, k, 256).unwrap(),
        ] {
            let part = Stored::from_f32(&small, dtype).unwrap();
            let bytes = part.bytes().repeat(n / n.min(256));
            let w = Stored::new(dtype, &[n, k][..], bytes).unwrap();
            let layer = Linear::new(&w, None, &device).unwrap();
            let (ms, kernels) = milliseconds(&device, || layer.forward(&x));
            let rate = 2.0 * (m * k * n) as f64 / ms / 1e9;
            println!(
                "{m}x{k}x{n} {}: {:.1} us, {rate:.0} TFLOP/s: {kernels}",
                dtype.name(),
                ms * 1e3
            );
        }
    }
}

#[test]
fn rows_are_rounded_while_they_are_normalised() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random::new(47);
    let norm = LayerNorm::new(None, None, 1e-6).unwrap();
    // Rows of some items, inputs, outputs; the last two widths are for other kernels.
    let sizes = [
        (40_usize, 256, 264),
        (301, 3072, 768),
        (70, 3080, 512),
        (17, 8192, 256),
        (9, 15360, 512),
        (3, 264, 20),
    ];
    for format in [Format::F16, Format::Bf16] {
        let device = gpu.computing_only_in(format);
        for (count, k, out) in sizes {
            if !is_tried(&device, count.next_multiple_of(128) * k * out) {
                continue;
            }
            for (kind, rotation) in [
                (RowKind::F8E4M3, 0),
                (RowKind::F8E5M2, 0),
                (RowKind::Int8, 0),
                (RowKind::Int8, 16),
            ] {
                let Some(dtype) = rows(kind, k, rotation) else {
                    continue;
                };
                let case = format!("{} {count}x{k}x{out}", dtype.name());
                let w = weight(&mut random, [out, k], dtype);
                let bias = Stored::from_f32(&random.tensor(&[out]), Dtype::F32).unwrap();
                let layer = Linear::new(&w, Some(&bias), &device).unwrap();
                let [(x, _), (shift, _), (scale, _)] =
                    [[2, count, k], [2, 1, k], [2, 1, k]].map(|s| random.pair(&s, &device));
                let given = ModulatedRows {
                    norm: &norm,
                    x: &x,
                    shift: &shift,
                    scale: &scale,
                };
                let apart = given.to_tensor().unwrap();
                let after = After {
                    act: Act::GeluTanh,
                    ..After::default()
                };
                let equal = |found: &Tensor, expected: &Tensor| {
                    let [found, expected] = [found, expected].map(|t| t.to(&Device::Cpu).unwrap());
                    assert_eq!(found, expected, "{case}");
                };
                let found = layer.forward_modulated(given, after).unwrap();
                equal(&found, &layer.forward_with(&apart, after).unwrap());
                let beside = |input| layer.forward_beside(input, 256, MlpJoin::GeluTanh).unwrap();
                let (found, _) = beside(LayerInput::Modulated(given));
                equal(&found, &beside(LayerInput::Rows(&apart)).0);
            }
        }
    }
}
