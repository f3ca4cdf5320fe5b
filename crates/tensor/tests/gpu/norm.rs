//! Normalisation, softmax and gates for many shapes and formats, and how long they take.

use fresco_tensor::gpu::Format;
use fresco_tensor::nn::{
    Act, After, Conv2d, GroupNorm, LayerNorm, Linear, Padding, RmsNorm, add_gated, concat_channels,
    modulate, softmax_last, swiglu, swiglu_halves,
};
use fresco_tensor::{Device, Dtype, Stored, Tensor};

use crate::compare::{FORMATS, Random, Report, gpu, is_tried, milliseconds, on_both};

const ACTS: [Act; 7] = [
    Act::None,
    Act::Silu,
    Act::Gelu,
    Act::GeluTanh,
    Act::QuickGelu,
    Act::Relu,
    Act::Leaky,
];

fn values(random: &mut Random, n: usize) -> Stored {
    Stored::from(&random.tensor(&[n]))
}

/// What products leave for a norm that follows must be of what they wrote, whatever their tiles are, and go with it.
#[test]
fn group_norm_after_products_is_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(23);
    let mut known = 0;
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        let dtype = match format {
            Format::F32 => Dtype::F32,
            Format::F16 => Dtype::F16,
            Format::Bf16 => Dtype::Bf16,
        };
        // Items, height, width, channels of the input, of the result, of another result behind it (0 for none), size of kernels.
        for [b, h, w, c, out, late, kernel] in [
            [2, 64, 64, 320, 320, 0, 3],
            [1, 64, 64, 320, 320, 320, 1],
            [2, 64, 64, 64, 640, 320, 1],
            [2, 32, 32, 640, 640, 0, 3],
            [2, 32, 32, 64, 640, 320, 3],
            [2, 32, 32, 640, 1280, 640, 1],
            [2, 16, 16, 1280, 1280, 0, 3],
            [2, 16, 16, 1280, 1280, 1280, 1],
            [2, 8, 8, 1280, 1280, 0, 3],
            [3, 16, 24, 128, 320, 0, 3],
            [1, 24, 40, 128, 320, 320, 1],
            [2, 13, 9, 64, 160, 0, 3],
            [1, 16, 16, 64, 192, 0, 1],
        ] {
            if !is_tried(&gpu, b * h * w * c * (out + late) * kernel * kernel) {
                continue;
            }
            let mut layer = |out: usize| {
                let spread = 1.0 / ((c * kernel * kernel) as f32).sqrt();
                let kernels = random.tensor(&[out, c, kernel, kernel]).mul_scalar(spread);
                let kernels = Stored::from_f32(&kernels, dtype).unwrap();
                // Channels of which some are far from zero.
                let bias = random.tensor(&[out]).mul_scalar(3.0);
                let bias = Stored::from(&bias);
                let (x, _) = random.pair(&[b, h, w, c], &device);
                let (add, _) = random.pair(&[b, h, w, out], &device);
                let after = After {
                    add: (random.below(2) == 0).then_some(&add),
                    for_norm: true,
                    ..After::default()
                };
                let made = if kernel == 1 {
                    let layer = Linear::new(&kernels, Some(&bias), &device).unwrap();
                    layer.forward_with(&x, after)
                } else {
                    let padding = Padding::Same(kernel / 2);
                    let conv = Conv2d::new(&kernels, Some(&bias), 1, padding, &device);
                    conv.unwrap().forward_with(&x, after)
                };
                made.unwrap()
            };
            let first = layer(out);
            let second = (late > 0).then(|| layer(late));
            let channels = out + late;
            let (weight, bias) = (values(&mut random, channels), values(&mut random, channels));
            let norm = GroupNorm::new(&weight, &bias, 32, 1e-5).unwrap();
            let here = first.to(&Device::Cpu).unwrap();
            let case = format!("{b}x{h}x{w}x{c} to {out} and {late}, {kernel}x{kernel}");
            let act = random.one_of(&[Act::None, Act::Silu, Act::Gelu]);
            let (expected, (found, kernels)) = if let Some(second) = &second {
                let behind = second.to(&Device::Cpu).unwrap();
                let both = concat_channels(&[&here, &behind]).unwrap();
                let run = || norm.forward_of_two(&first, second, act);
                (norm.forward(&both, act), device.profiled(run).unwrap())
            } else {
                let run = || norm.forward(&first, act).map(Some);
                (norm.forward(&here, act), device.profiled(run).unwrap())
            };
            known += kernels
                .iter()
                .filter(|of| of.kernel.contains("group_known"))
                .count();
            let Some(found) = found.unwrap() else {
                continue;
            };
            report.check(format, &case, Ok(found), &expected.unwrap());
            // What is written in its place is not what was known.
            if second.is_none() {
                let doubled = first.add(&first).unwrap();
                let act = Act::None;
                let twice = norm.forward(&here.add(&here).unwrap(), act).unwrap();
                report.check(format, &case, norm.forward(&doubled, act), &twice);
                let owned = norm.forward_owned(first, Act::None).unwrap();
                let again = norm
                    .forward(&norm.forward(&here, act).unwrap(), act)
                    .unwrap();
                report.check(format, &case, norm.forward(&owned, act), &again);
            }
        }
    }
    println!("{known} after products that left sums");
    let on_hopper = gpu.gpu().is_some_and(|gpu| gpu.generation == (9, 0));
    assert!(!on_hopper || known >= 8, "only {known}");
    report.end("group norm after products");
}

#[test]
fn group_norm_is_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(11);
    // Items, height, width, channels, groups.
    let shapes = [
        [1, 1, 1, 8, 1],
        [1, 1, 1, 8, 8],
        [2, 9, 7, 20, 5],
        [1, 5, 3, 3, 3],
        [2, 8, 8, 64, 32],
        [2, 33, 31, 128, 32],
        [1, 64, 64, 320, 32],
        [2, 16, 16, 640, 32],
        [2, 8, 8, 1280, 32],
        [3, 9, 5, 1920, 32],
        [2, 7, 5, 2560, 32],
        [1, 3, 3, 4096, 16],
        [1, 3, 2, 4104, 8],
        [1, 2, 2, 8192, 1],
        [1, 128, 130, 32, 1],
        [1, 300, 211, 16, 2],
        [2, 50, 50, 30, 10],
        [1, 40, 40, 1030, 2],
        [1, 20, 20, 96, 96],
        [70, 4, 4, 32, 4],
        [1, 256, 300, 64, 32],
        [2, 64, 64, 320, 32],
        [8, 64, 64, 320, 32],
        [2, 64, 64, 960, 32],
        [2, 32, 32, 640, 32],
        [1, 57, 71, 320, 32],
    ];
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        for (n, [b, h, w, c, groups]) in shapes.into_iter().enumerate() {
            let (weight, bias) = (values(&mut random, c), values(&mut random, c));
            let norm = GroupNorm::new(&weight, &bias, groups, 1e-5).unwrap();
            let (x, here) = random.pair(&[b, h, w, c], &device);
            for act in [ACTS[n % 7], Act::Silu, Act::None] {
                let case = format!("{:?} groups {groups} {act:?}", x.shape());
                let expected = norm.forward(&here, act).unwrap();
                report.check(format, &case, norm.forward(&x, act), &expected);
                let owned = here.to(&device).unwrap();
                let case = format!("{case} owned");
                report.check(format, &case, norm.forward_owned(owned, act), &expected);
            }
            // Other holders keep what they have.
            report.check(format, "the input", Ok(x), &here);
        }
    }
    report.end("group norm");
}

#[test]
fn group_norm_of_two_is_that_of_both() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(13);
    let mut made = 0;
    for format in [Format::F16, Format::Bf16, Format::F32] {
        let device = gpu.computing_only_in(format);
        for [b, h, w, early, late] in [
            [2, 64, 64, 320, 320],
            [2, 64, 64, 640, 320],
            [2, 32, 32, 1280, 640],
            [1, 8, 8, 1280, 1280],
            [3, 9, 5, 40, 24],
            [2, 7, 6, 12, 20],
        ] {
            let c = early + late;
            let (weight, bias) = (values(&mut random, c), values(&mut random, c));
            let groups = if c % 32 == 0 { 32 } else { 4 };
            let norm = GroupNorm::new(&weight, &bias, groups, 1e-5).unwrap();
            let (x, here) = random.pair(&[b, h, w, early], &device);
            let (behind, behind_here) = random.pair(&[b, h, w, late], &device);
            let both = concat_channels(&[&here, &behind_here]).unwrap();
            for act in [Act::Silu, Act::None] {
                let none = norm.forward_of_two(&here, &behind_here, act).unwrap();
                assert!(none.is_none(), "the processor has no such kernel");
                let Some(found) = norm.forward_of_two(&x, &behind, act).unwrap() else {
                    continue;
                };
                made += 1;
                let expected = norm.forward(&both, act).unwrap();
                let case = format!("{b}x{h}x{w}x{early} and {late} {act:?}");
                report.check(format, &case, Ok(found), &expected);
            }
            let other = norm.forward_of_two(&x, &x, Act::None);
            assert!(other.is_err() || early == late, "channels do not fit");
        }
    }
    println!("{made} of two without a copy");
    report.end("group norm of two");
}

#[test]
fn data_far_from_zero_keep_their_variance() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(12);
    let device = gpu.computing_only_in(Format::F32);
    for c in [64, 30] {
        let (weight, bias) = (values(&mut random, c), values(&mut random, c));
        // Not farther: the processor's means have the digits of an f32.
        let far = random.tensor(&[2, 40, 30, c]).add_scalar(1000.0);
        let (x, here) = on_both(&far, &device);
        let norm = GroupNorm::new(&weight, &bias, 2, 1e-5).unwrap();
        let expected = norm.forward(&here, Act::None).unwrap();
        report.check(
            Format::F32,
            "groups",
            norm.forward(&x, Act::None),
            &expected,
        );
        let norm = LayerNorm::new(Some(&weight), Some(&bias), 1e-5).unwrap();
        let expected = norm.forward(&here).unwrap();
        report.check(Format::F32, "rows", norm.forward(&x), &expected);
    }
    report.end("far from zero");
}

#[test]
fn row_norms_are_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(13);
    let widths = [
        1, 3, 8, 24, 40, 64, 72, 100, 128, 136, 320, 768, 1000, 1024, 1032, 1280, 2048, 3072, 3080,
        4096, 5120, 8192, 8200, 10001,
    ];
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        for width in widths {
            let rows = random.one_of(&[1, 2, 7, 33]);
            let (x, here) = random.pair(&[2, rows, width], &device);
            let (weight, bias) = (values(&mut random, width), values(&mut random, width));
            let case = |name: &str| format!("{:?} {name}", x.shape());
            let norms = [
                ("plain", None, None),
                ("weight", Some(&weight), None),
                ("both", Some(&weight), Some(&bias)),
            ];
            let (shift, shift_here) = random.pair(&[2, width], &device);
            let (scale, scale_here) = random.pair(&[2, 1, width], &device);
            for (name, weight, bias) in norms {
                let norm = LayerNorm::new(weight, bias, 1e-6).unwrap();
                let expected = norm.forward(&here).unwrap();
                report.check(format, &case(name), norm.forward(&x), &expected);
                let expected = norm.modulated(&here, &shift_here, &scale_here).unwrap();
                let found = norm.modulated(&x, &shift, &scale);
                report.check(
                    format,
                    &case(&format!("{name}, modulated")),
                    found,
                    &expected,
                );
                if bias.is_none() {
                    let norm = RmsNorm::new(weight, 1e-6).unwrap();
                    let expected = norm.forward(&here).unwrap();
                    report.check(
                        format,
                        &case(&format!("rms {name}")),
                        norm.forward(&x),
                        &expected,
                    );
                }
            }
            let expected = softmax_last(&here).unwrap();
            report.check(format, &case("softmax"), softmax_last(&x), &expected);
        }
    }
    report.end("row norms");
}

#[test]
fn gates_are_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(14);
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        for width in [1, 2, 8, 12, 64, 66, 320, 3072, 1001] {
            let rows = random.one_of(&[1, 2, 7, 133]);
            let shape = [2, rows, width];
            let (x, here) = random.pair(&shape, &device);
            let (y, y_here) = random.pair(&shape, &device);
            for gate in [
                vec![2, width],
                vec![2, 1, width],
                vec![width],
                shape.to_vec(),
            ] {
                let (g, g_here) = random.pair(&gate, &device);
                let (s, s_here) = random.pair(&gate, &device);
                let case = |name: &str| format!("{name} {shape:?} by {gate:?}");
                let expected = add_gated(here.clone(), &g_here, &y_here).unwrap();
                let found = add_gated(x.clone(), &g, &y);
                report.check(format, &case("add gated"), found, &expected);
                let owned = here.to(&device).unwrap();
                let found = add_gated(owned, &g, &y);
                report.check(format, &case("add gated, owned"), found, &expected);
                let expected = modulate(here.clone(), &g_here, None).unwrap();
                let found = modulate(x.clone(), &g, None);
                report.check(format, &case("scaled"), found, &expected);
                let expected = modulate(here.clone(), &g_here, Some(&s_here)).unwrap();
                let found = modulate(x.clone(), &g, Some(&s));
                report.check(format, &case("modulated"), found, &expected);
            }
            let expected = swiglu(&here, &y_here).unwrap();
            report.check(
                format,
                &format!("swiglu {shape:?}"),
                swiglu(&x, &y),
                &expected,
            );
            if width % 2 == 0 {
                let expected = swiglu_halves(&here).unwrap();
                let case = format!("swiglu of halves {shape:?}");
                report.check(format, &case, swiglu_halves(&x), &expected);
            }
        }
    }
    report.end("gates");
}

#[test]
fn rows_of_nothing() {
    let Some(gpu) = gpu() else { return };
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        let x = Tensor::zeros_on(&device, [2, 0, 16]).unwrap();
        let norm = LayerNorm::new(None, None, 1e-5).unwrap();
        assert_eq!(norm.forward(&x).unwrap().shape(), [2, 0, 16]);
        assert_eq!(softmax_last(&x).unwrap().shape(), [2, 0, 16]);
        assert_eq!(swiglu(&x, &x).unwrap().shape(), [2, 0, 16]);
        assert_eq!(swiglu_halves(&x).unwrap().shape(), [2, 0, 8]);
        // Rows of minus infinities have no softmax.
        let low = Tensor::from_fn([2, 40], |i| if i < 40 { f32::NEG_INFINITY } else { 1.0 });
        let found = softmax_last(&low.unwrap().to(&device).unwrap()).unwrap();
        let found = found.to(&Device::Cpu).unwrap();
        assert!(found.data()[..40].iter().all(|v| v.is_nan()));
        assert!(found.data()[40..].iter().all(|v| (v - 0.025).abs() < 1e-3));
    }
}

/// `FRESCO_BENCH=1` prints the times of shapes of real networks.
#[test]
fn norm_times() {
    if std::env::var_os("FRESCO_BENCH").is_none() {
        return;
    }
    let Some(gpu) = gpu() else { return };
    let mut random = Random::new(15);
    let device = gpu.computing_only_in(Format::F16);
    let line = |name: &str, elements: usize, times: (f64, String)| {
        let bytes = 4.0 * elements as f64;
        let (ms, kernels) = times;
        println!(
            "  {name}: {:.1} us, {:.0} GB/s, {kernels}",
            1000.0 * ms,
            bytes / ms / 1e6
        );
    };
    println!("f16, bytes: input read once and output written once");
    for (b, pixels, c) in [
        (2, 4096, 320),
        (2, 1024, 640),
        (2, 1024, 1280),
        (2, 256, 2560),
        (2, 64, 1280),
        (1, 16384, 512),
        (1, 1 << 20, 128),
    ] {
        let (weight, bias) = (values(&mut random, c), values(&mut random, c));
        let norm = GroupNorm::new(&weight, &bias, 32, 1e-5).unwrap();
        norm.slot().move_to(&device).unwrap();
        let x = Tensor::from_fn([b, pixels, 1, c], |i| (i as f32 * 0.37).sin()).unwrap();
        let x = x.to(&device).unwrap();
        let times = milliseconds(&device, || norm.forward(&x, Act::Silu));
        line(
            &format!("group norm, silu {b}x{pixels}x{c}"),
            x.len(),
            times,
        );
    }
    for (rows, width) in [
        (4608, 3072),
        (65536, 3072),
        (131_072, 1280),
        (4608 * 24, 128),
    ] {
        let norm = LayerNorm::new(None, None, 1e-6).unwrap();
        let x = Tensor::from_fn([1, rows, width], |i| (i as f32 * 0.37).sin()).unwrap();
        let x = x.to(&device).unwrap();
        let [shift, scale] = [(); 2].map(|()| random.tensor(&[1, width]).to(&device).unwrap());
        let times = milliseconds(&device, || norm.modulated(&x, &shift, &scale));
        line(
            &format!("layer norm, modulated {rows}x{width}"),
            x.len(),
            times,
        );
        let norm = RmsNorm::new(Some(&values(&mut random, width)), 1e-6).unwrap();
        norm.slot().move_to(&device).unwrap();
        let times = milliseconds(&device, || norm.forward(&x));
        line(&format!("rms norm {rows}x{width}"), x.len(), times);
        let times = milliseconds(&device, || modulate(x.clone(), &scale, Some(&shift)));
        line(&format!("modulate {rows}x{width}"), x.len(), times);
        let times = milliseconds(&device, || swiglu_halves(&x));
        line(
            &format!("swiglu of halves {rows}x{width}"),
            x.len() * 3 / 4,
            times,
        );
    }
}
