use fresco_tensor::{Device, Tensor, nn};

use crate::against::{Checks, Random, gpus};

const PAIRS: &[(&[usize], &[usize])] = &[
    (&[1], &[1]),
    (&[], &[]),
    (&[7], &[7]),
    (&[4096], &[4096]),
    (&[3, 1021], &[3, 1021]),
    (&[2, 64, 64, 320], &[2, 64, 64, 320]),
    // Numbers for all, for rows, for columns, for items, for both sides.
    (&[5, 33], &[]),
    (&[], &[5, 33]),
    (&[5, 33], &[33]),
    (&[5, 64], &[64]),
    (&[5, 64], &[5, 1]),
    (&[5, 1], &[1, 64]),
    (&[2, 16, 16, 40], &[2, 1, 1, 40]),
    (&[2, 40, 6, 6], &[40, 1, 1]),
    (&[2, 3, 4, 5], &[1, 3, 1, 1]),
    (&[2, 1, 4], &[3, 1]),
    (&[1, 2, 1, 2, 1, 2], &[2, 1, 2, 1, 2, 1]),
    (&[2, 1, 3, 1, 2, 1, 2], &[1, 2, 1, 3, 1, 2, 1]),
    (&[0, 3], &[1, 3]),
    (&[0], &[0]),
];

#[test]
fn two_tensors() {
    let (mut checks, mut random) = (Checks::default(), Random::new(1));
    for (a, b) in PAIRS {
        let inputs = [random.tensor(a), random.tensor(b).add_scalar(2.5)];
        let case = |name: &str| format!("{name} {a:?} {b:?}");
        checks.run(&case("add"), &inputs, |t| t[0].add(&t[1]));
        checks.run(&case("sub"), &inputs, |t| t[0].sub(&t[1]));
        checks.run(&case("mul"), &inputs, |t| t[0].mul(&t[1]));
        checks.run(&case("div"), &inputs, |t| t[0].div(&t[1]));
        checks.run(&case("min"), &inputs, |t| {
            t[0].minimum(&t[1].sub_scalar(2.5))
        });
        checks.run(&case("max"), &inputs, |t| {
            t[0].maximum(&t[1].sub_scalar(2.5))
        });
        checks.run(&case("lerp"), &inputs, |t| t[0].lerp(&t[1], 0.3));
    }
    checks.finish();
}

#[test]
fn one_tensor() {
    let (mut checks, mut random) = (Checks::default(), Random::new(2));
    for shape in [
        &[1][..],
        &[0, 4],
        &[9],
        &[3, 341],
        &[1 << 20],
        &[2, 32, 32, 64],
    ] {
        let x = [random.scaled(shape, 6.0)];
        checks.run("add 1.5", &x, |t| Ok(t[0].add_scalar(1.5)));
        checks.run("sub 1.5", &x, |t| Ok(t[0].sub_scalar(1.5)));
        checks.run("mul 1.5", &x, |t| Ok(t[0].mul_scalar(1.5)));
        checks.run("div 1.5", &x, |t| Ok(t[0].div_scalar(1.5)));
        checks.run("1.5 minus", &x, |t| Ok(t[0].rsub_scalar(1.5)));
        checks.run("abs, sqrt", &x, |t| Ok(t[0].abs().sqrt()));
        checks.run("clamp", &x, |t| Ok(t[0].clamp(-2.0, 3.0)));
        checks.run("crossed clamp", &x, |t| Ok(t[0].clamp(3.0, -2.0)));
        checks.run("round", &x, |t| Ok(t[0].round()));
        checks.run("silu", &x, |t| Ok(nn::silu(&t[0])));
        checks.run("gelu", &x, |t| Ok(nn::gelu(&t[0])));
        checks.run("gelu tanh", &x, |t| Ok(nn::gelu_tanh(&t[0])));
        checks.run("quick gelu", &x, |t| Ok(nn::quick_gelu(&t[0])));
        checks.run("relu", &x, |t| Ok(nn::relu(&t[0])));
        checks.run("leaky", &x, |t| {
            Ok(nn::activate(t[0].clone(), nn::Act::Leaky))
        });
        checks.run("mish", &x, |t| Ok(nn::mish(&t[0])));
        checks.run("tanh", &x, |t| Ok(nn::tanh(&t[0])));
        checks.run("sigmoid", &x, |t| Ok(nn::sigmoid(&t[0])));
        // A tensor that nobody else holds is changed in place.
        checks.run("silu of a sum", &x, |t| {
            Ok(nn::activate(t[0].add_scalar(1.0), nn::Act::Silu))
        });
    }
    checks.finish();
}

#[test]
fn special_values() {
    let mut checks = Checks::default();
    let odd = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -0.0,
        1.0,
        -80.0,
        80.0,
        2.5,
    ];
    let x = [Tensor::from_slice(&odd), Tensor::scalar(0.5)];
    checks.run("max", &x, |t| t[0].maximum(&t[1]));
    checks.run("min", &x, |t| t[1].minimum(&t[0]));
    checks.run("clamp", &x, |t| Ok(t[0].clamp(-1.0, 1.0)));
    checks.run("round", &x, |t| Ok(t[0].round()));
    checks.run("division by zero", &x, |t| t[1].div(&t[0]));
    checks.run("relu", &x[..1], |t| Ok(nn::relu(&t[0].clamp(-90.0, 90.0))));
    checks.finish();
}

#[test]
fn steps_of_samplers() {
    let (mut checks, mut random) = (Checks::default(), Random::new(3));
    for shape in [&[1, 4, 64, 64][..], &[2, 16, 33, 7], &[3], &[0, 4, 8, 8]] {
        let inputs = [random.tensor(shape), random.tensor(shape)];
        checks.run_within("guidance", 2.0, &inputs, |t| nn::guide(&t[0], &t[1], 7.5));
        checks.run("euler", &inputs, |t| nn::euler_step(&t[0], &t[1], 3.0, 2.2));
    }
    checks.finish();
}

/// Every value of 16 bits survives the way to a device and back, and numbers are rounded to the nearest even one.
#[test]
fn formats() {
    let mut checks = Checks::default();
    let mut random = Random::new(4);
    for count in [0, 1, 7, 8, 9, 4099, 1 << 20] {
        let x = random.tensor(&[count]);
        for gpu in gpus() {
            let there = x.to(&gpu.device).unwrap();
            let here = there.to(&Device::cpu()).unwrap();
            checks.compare(
                &format!("to {} and back", gpu.format),
                gpu.tolerance,
                &x,
                &here,
            );
            for other in gpus() {
                let moved = there.to(&other.device).unwrap();
                let back = moved.to(&Device::cpu()).unwrap();
                let case = format!("{} to {}", gpu.format, other.format);
                checks.compare(&case, other.tolerance, &here, &back);
            }
        }
    }
    for gpu in gpus() {
        let zeros = Tensor::zeros_on(&gpu.device, [3, 1001]).unwrap();
        let zeros = zeros.to(&Device::cpu()).unwrap();
        checks.compare("zeros", 0.0, &Tensor::zeros([3, 1001]).unwrap(), &zeros);
    }
    checks.finish();
}
