//! Functions of every instruction set against f64.

use super::isa::{Isa, available};
use super::math::{
    self, Function, Gelu, GeluTanh, Leaky, Mish, QuickGelu, Relu, Sigmoid, Silu, Tanh,
};
use super::math_lanes::Lanes;

/// The exponential as a function of its own, for these tests.
struct Exp;

impl Function for Exp {
    #[inline(always)]
    #[expect(unsafe_code, reason = "the trait asks for it")]
    unsafe fn of<V: Lanes>(x: V) -> V {
        // SAFETY: the caller promises the instruction set.
        unsafe { math::exp(x) }
    }
}

fn map<F: Function>(isa: Isa, x: &[f32]) -> Vec<f32> {
    let mut y = x.to_vec();
    math::map::<F>(isa, &mut y);
    y
}

/// The error function by its series, and for larger numbers by its continued fraction.
fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x < 2.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..80 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return 1.0 - sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let fraction = (1..200).rev().fold(x, |f, n| x + f64::from(n) / 2.0 / f);
    (-x * x).exp() / fraction * std::f64::consts::FRAC_2_SQRT_PI / 2.0
}

/// Numbers from -100 to 100, dense around zero, an odd count of them.
fn numbers() -> Vec<f32> {
    (-30_001..=30_001)
        .map(|i| {
            let t = i as f32 / 30_001.0;
            100.0 * t * t * t + 4.0 * t
        })
        .collect()
}

/// Compares with f64: within `relative` of the value or `absolute`.
#[track_caller]
fn check<F: Function>(want: impl Fn(f64) -> f64, relative: f64, absolute: f64) {
    let x = numbers();
    for isa in available() {
        let y = map::<F>(isa, &x);
        for (&x, &y) in x.iter().zip(&y) {
            let want = want(f64::from(x));
            let error = (f64::from(y) - want).abs();
            assert!(
                error <= absolute.max(relative * want.abs()),
                "{isa:?}: {y} instead of {want} for {x}"
            );
        }
    }
}

#[test]
fn exponentials_are_exact_to_two_units() {
    let x: Vec<f32> = (0..200_003)
        .map(|i| i as f32 / 200_003.0 * 175.0 - 87.0)
        .collect();
    for isa in available() {
        for (&x, y) in x.iter().zip(map::<Exp>(isa, &x)) {
            let want = f64::from(x).exp();
            let unit = f64::from(f32::EPSILON) * want;
            assert!(
                (f64::from(y) - want).abs() < 1.2 * unit,
                "{isa:?}: {y} for {x}"
            );
        }
        let edges = [-200.0, f32::NEG_INFINITY, 88.8, f32::INFINITY, 0.0, -100.0];
        let y = map::<Exp>(isa, &edges);
        assert_eq!(
            y[..5],
            [0.0, 0.0, f32::INFINITY, f32::INFINITY, 1.0],
            "{isa:?}"
        );
        assert!((y[5] / 3.78e-44 - 1.0).abs() < 0.1, "{isa:?}: {}", y[5]);
        assert!(map::<Exp>(isa, &[f32::NAN])[0].is_nan());
    }
}

#[test]
fn activations() {
    check::<Sigmoid>(|x| 1.0 / (1.0 + (-x).exp()), 4e-7, 1e-37);
    check::<Silu>(|x| x / (1.0 + (-x).exp()), 4e-7, 1e-36);
    check::<QuickGelu>(|x| x / (1.0 + (-1.702 * x).exp()), 1e-5, 1e-36);
    check::<Tanh>(f64::tanh, 3e-7, 0.0);
    check::<Relu>(|x| x.max(0.0), 0.0, 0.0);
    check::<Leaky>(|x| x.max(0.2 * x), 1e-7, 0.0);
    check::<Mish>(|x| x * x.exp().ln_1p().tanh(), 1e-6, 1e-36);
    check::<Gelu>(
        |x| x * 0.5 * erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
        2.5e-7,
        1e-7,
    );
    check::<GeluTanh>(
        |x| {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + u.tanh())
        },
        3e-7,
        1e-7,
    );
}

#[test]
fn activations_at_the_edges() {
    for isa in available() {
        for y in [
            map::<Silu>(isa, &[1e30, -1e30, f32::NAN]),
            map::<Gelu>(isa, &[1e30, -1e30, f32::NAN]),
            map::<GeluTanh>(isa, &[1e30, -1e30, f32::NAN]),
            map::<QuickGelu>(isa, &[1e30, -1e30, f32::NAN]),
            map::<Relu>(isa, &[1e30, -1e30, f32::NAN]),
        ] {
            assert_eq!(y[..2], [1e30, 0.0], "{isa:?}");
            assert!(y[2].is_nan(), "{isa:?}");
        }
    }
}

#[test]
fn gates_and_softmax() {
    let x: Vec<f32> = (0..37).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
    let g: Vec<f32> = (0..37).map(|i| (i as f32 * 0.3).cos() * 3.0).collect();
    for isa in available() {
        let mut out = vec![0.0; 37];
        math::geglu_row(isa, &x, &g, &mut out);
        for ((o, x), g) in out.iter().zip(&x).zip(map::<Gelu>(isa, &g)) {
            assert!((o - x * g).abs() < 1e-6);
        }
        for n in [1, 3, 16, 37] {
            let mut row = x[..n].to_vec();
            math::softmax_row(isa, &mut row);
            let sum: f64 = x[..n].iter().map(|&v| f64::from(v).exp()).sum();
            for (&y, &x) in row.iter().zip(&x) {
                assert!(
                    (f64::from(y) - f64::from(x).exp() / sum).abs() < 1e-7,
                    "{isa:?}"
                );
            }
        }
        let mut row = [f32::NEG_INFINITY; 3];
        math::softmax_row(isa, &mut row);
        assert!(row.iter().all(|v| v.is_nan()), "{isa:?}");
        let mut row = [1e30, -1e30, f32::NEG_INFINITY];
        math::softmax_row(isa, &mut row);
        assert_eq!(row, [1.0, 0.0, 0.0], "{isa:?}");
    }
}
