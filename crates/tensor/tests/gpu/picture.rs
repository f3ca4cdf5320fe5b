use fresco_tensor::resize::{ResizeMethod, adaptive_avg_pool, interpolate};
use fresco_tensor::{Tensor, nn};

use crate::against::{Checks, Random};

#[test]
fn pools() {
    let (mut checks, mut random) = (Checks::default(), Random::new(31));
    for (shape, size) in [
        ([2, 16, 16, 320], 2),
        ([1, 9, 7, 3], 2),
        ([1, 12, 12, 8], 5),
        ([1, 3, 3, 8], 4),
        ([0, 4, 4, 8], 2),
    ] {
        let x = [random.tensor(&shape)];
        checks.run(&format!("pool of {size}"), &x, |t| {
            nn::avg_pool2d(&t[0], size)
        });
    }
    checks.finish();
}

#[test]
fn kernels_of_channels() {
    let (mut checks, mut random) = (Checks::default(), Random::new(32));
    for (shape, side) in [
        ([2usize, 13, 17, 48], 3usize),
        ([1, 4, 3, 5], 7),
        ([1, 8, 8, 16], 5),
        ([1, 8, 8, 3], 1),
        ([0, 8, 8, 3], 1),
    ] {
        let c = shape[3];
        let inputs = [
            random.tensor(&shape),
            random.tensor(&[side * side, c]),
            random.tensor(&[c]),
        ];
        let case = format!("depthwise of {side}");
        checks.run(&case, &inputs, |t| nn::depthwise(&t[0], &t[1], Some(&t[2])));
        checks.run(&case, &inputs, |t| nn::depthwise(&t[0], &t[1], None));
        checks.run("slopes", &inputs, |t| {
            nn::negative_slopes(t[0].clone(), &t[2])
        });
        checks.run("one slope", &inputs, |t| {
            let one = t[2].narrow(0, 0, 1)?;
            nn::negative_slopes(t[0].add_scalar(0.0), &one)
        });
    }
    checks.finish();
}

#[test]
fn attention_among_channels() {
    let (mut checks, mut random) = (Checks::default(), Random::new(33));
    for (b, n, heads, d) in [
        (1, 5, 2, 2),
        (2, 300, 3, 16),
        (1, 5000, 2, 48),
        (1, 77, 1, 33),
        (0, 4, 1, 8),
    ] {
        let shape = [b, n, heads * d];
        let inputs = [
            random.tensor(&shape),
            random.tensor(&shape),
            random.tensor(&shape),
            random.tensor(&[heads]).add_scalar(2.0),
        ];
        let case = format!("channel attention of {heads} heads");
        checks.run(&case, &inputs, |t| {
            nn::channel_attention(&t[0], &t[1], &t[2], heads, &t[3])
        });
    }
    checks.finish();
}

#[test]
fn resampling() {
    let (mut checks, mut random) = (Checks::default(), Random::new(34));
    let methods = [
        ResizeMethod::Nearest,
        ResizeMethod::NearestExact,
        ResizeMethod::Bilinear,
        ResizeMethod::Bicubic,
        ResizeMethod::Area,
    ];
    for (shape, width, height) in [
        ([2, 4, 16, 16], 32, 32),
        ([1, 3, 11, 17], 29, 5),
        ([1, 1, 1, 1], 4, 3),
        ([2, 3, 64, 48], 7, 9),
        ([0, 3, 4, 4], 8, 8),
    ] {
        let x = [random.tensor(&shape)];
        for method in methods {
            let case = format!("{method:?} to {width}x{height}");
            checks.run(&case, &x, |t| interpolate(&t[0], width, height, method));
        }
        checks.run("windows", &x, |t| adaptive_avg_pool(&t[0], width, height));
    }
    checks.finish();
}

/// Tables and values of layers, which come from files.
#[test]
fn looking_up() {
    use fresco_tensor::{Device, Dtype, Stored};

    let (mut checks, mut random) = (Checks::default(), Random::new(35));
    let table = random.tensor(&[50, 24]);
    let stored = Stored::from_f32(&table, Dtype::F32).unwrap();
    let embedding = nn::Embedding::new(&stored).unwrap();
    let value = nn::Value::new(&stored).unwrap();
    for gpu in crate::against::gpus() {
        for ids in [&[3, 49, 0, 3][..], &[]] {
            let expected = embedding.lookup(ids).unwrap();
            let found = embedding.lookup_on(ids, &gpu.device).unwrap();
            let found = found.to(&Device::cpu()).unwrap();
            checks.compare("embedding", gpu.tolerance, &expected, &found);
        }
        let found: Tensor = value.at(&gpu.device).unwrap().to(&Device::cpu()).unwrap();
        checks.compare("value", gpu.tolerance, &table, &found);
    }
    checks.finish();
}
