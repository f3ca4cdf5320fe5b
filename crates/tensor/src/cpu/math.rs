//! Functions of one number, exact to about one unit in the last place of an f32.

/// `e^x`.
pub(crate) fn exp(x: f32) -> f32 {
    x.exp()
}

pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The share of a standard normal distribution below `x`.
///
/// Near zero an odd polynomial; outside the tail `exp(p(|x|))`, whose error shrinks with the tail itself. Both are
/// Chebyshev fits to 5e-8.
pub(crate) fn normal_cdf(x: f32) -> f32 {
    const CENTRE: [f32; 6] = [
        -6.822_396_8e-6,
        1.110_920_3e-4,
        -1.183_907_6e-3,
        9.972_323e-3,
        -6.649_021_6e-2,
        3.989_422_8e-1,
    ];
    const TAIL: [f32; 9] = [
        9.687_49e-8,
        -3.923_686_5e-6,
        7.290_881_4e-5,
        -8.306_282_3e-4,
        6.563_943_5e-3,
        -3.882_099_8e-2,
        -3.160_536_7e-1,
        -7.990_846_5e-1,
        -6.928_641e-1,
    ];
    let a = x.abs();
    if a < 1.25 {
        return 0.5 + x * horner(&CENTRE, x * x);
    }
    let tail = if a > 6.0 { 0.0 } else { exp(horner(&TAIL, a)) };
    if x < 0.0 { tail } else { 1.0 - tail }
}

fn horner(coefficients: &[f32], x: f32) -> f32 {
    coefficients.iter().fold(0.0, |sum, &c| sum * x + c)
}
