use crate::against::{Checks, Random};
use fresco_tensor::Axes;

#[test]
fn groups() {
    let (mut checks, mut random) = (Checks::default(), Random::new(21));
    let cases: &[(&[usize], &[usize])] = &[
        (&[5], &[]),
        (&[3, 7], &[1]),
        (&[3, 7], &[0]),
        (&[1000, 8], &[1]),
        (&[40, 513], &[1]),
        (&[40, 4096], &[1]),
        (&[600, 20_001], &[1]),
        (&[3, 70_001], &[1]),
        (&[3, 70_008], &[1]),
        (&[1 << 20], &[]),
        (&[2, 16, 64, 64], &[1, 2, 3]),
        (&[2, 16, 64, 64], &[0, 2]),
        (&[2, 64, 64, 16], &[1, 2]),
        (&[1, 1], &[0]),
        (&[0, 4], &[1]),
        (&[4, 0], &[1]),
    ];
    for (shape, dims) in cases {
        let x = [random.tensor(shape).add_scalar(0.5)];
        let case = |name: &str| format!("{name} of {shape:?} over {dims:?}");
        // A sum of 16 bits may be too large for its format: what is summed is small.
        let share = 1.0 / shape.iter().product::<usize>().max(1) as f32;
        checks.run(&case("sum"), &x, |t| {
            t[0].mul_scalar(share.sqrt()).sum(dims, Axes::Drop)
        });
        checks.run(&case("mean"), &x, |t| t[0].mean(dims, Axes::Keep));
        checks.run(&case("std"), &x, |t| t[0].std(dims, Axes::Keep));
        checks.run(&case("var"), &x, |t| t[0].var(dims, Axes::Drop));
        checks.run(&case("norm"), &x, |t| t[0].norm(dims, Axes::Keep));
        if !x[0].is_empty() {
            checks.run_within(&case("min"), 0.0, &x, |t| t[0].min(dims, Axes::Keep));
            checks.run_within(&case("max"), 0.0, &x, |t| t[0].max(dims, Axes::Drop));
        }
    }
    checks.finish();
}

#[test]
fn values_far_from_zero() {
    let (mut checks, mut random) = (Checks::default(), Random::new(22));
    for shape in [&[4, 300][..], &[4, 5000], &[2, 100_000]] {
        let x = [random.tensor(shape).add_scalar(30.0)];
        checks.run("std far from zero", &x, |t| t[0].std(&[1], Axes::Drop));
    }
    let mut odd = random.tensor(&[3, 2000]);
    odd.data_mut()[1234] = f32::NAN;
    odd.data_mut()[2500] = f32::INFINITY;
    checks.run("max with NaN", &[odd.clone()], |t| {
        t[0].max(&[1], Axes::Drop)
    });
    checks.run("min with NaN", &[odd], |t| t[0].min(&[1], Axes::Drop));
    checks.finish();
}
