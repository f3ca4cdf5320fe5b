use fresco_tensor::{Device, Tensor, nn};

use crate::against::{Checks, Random, gpus};

/// A number that is rounded beforehand is the one that a tensor on the device has.
#[test]
fn numbers_are_rounded_as_the_device_keeps_them() {
    for gpu in gpus() {
        for value in [3500.0, 3.3, 1.0 / 3.0, -0.1] {
            let there = Tensor::from_slice(&[value]).to(&gpu.device).unwrap();
            let kept = there.to(&Device::cpu()).unwrap().data()[0];
            assert_eq!(gpu.device.rounded(value), kept, "{} {value}", gpu.format);
        }
        if gpu.format == "bf16" && gpu.device.rounded(1.0 + 1.0 / 256.0) == 1.0 {
            assert_eq!(gpu.device.rounded(3500.0), 3504.0);
        }
    }
    assert_eq!(Device::cpu().rounded(3500.3), 3500.3);
}

#[test]
fn gates() {
    let (mut checks, mut random) = (Checks::default(), Random::new(41));
    for shape in [
        &[2, 77, 640][..],
        &[3, 14],
        &[5, 6],
        &[2, 0],
        &[0, 8],
        &[1, 4096, 2560],
    ] {
        let x = [random.scaled(shape, 3.0)];
        checks.run("geglu", &x, |t| nn::geglu(&t[0]));
    }
    checks.finish();
}

#[test]
fn positions() {
    let (mut checks, mut random) = (Checks::default(), Random::new(42));
    for (b, n, heads, d) in [
        (2, 77, 8, 64),
        (1, 300, 24, 128),
        (2, 5, 3, 6),
        (1, 7, 2, 20),
        (2, 3, 1, 2),
        (0, 4, 2, 8),
        (1, 4, 2, 8),
    ] {
        let x = random.tensor(&[b, n, heads * d]);
        for per_item in [false, true] {
            let shape = if per_item {
                vec![b, n, d / 2]
            } else {
                vec![n, d / 2]
            };
            let angles = random.scaled(&shape, 100.0);
            let inputs = [x.clone(), angles.map(f32::cos), angles.map(f32::sin)];
            let case = format!("{heads} heads of {d}, tables {shape:?}");
            checks.run(&format!("neighbours {case}"), &inputs, |t| {
                nn::rope_interleaved(&t[0], heads, &t[1], &t[2])
            });
            checks.run(&format!("halves {case}"), &inputs, |t| {
                nn::rope_half(&t[0], heads, &t[1], &t[2])
            });
        }
    }
    checks.finish();
}
