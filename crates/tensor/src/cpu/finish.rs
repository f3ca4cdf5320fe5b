//! What follows a product: bias, a value per item, an activation, an addition; and the gate of GEGLU.
//!
//! Written over fixed arrays without branches, so that the compiler makes vectors of them in each instruction set.

use super::packed::WIDTH;
use crate::nn::Act;

/// `act(y + bias + per_item) + add` for rows of outputs.
#[derive(Clone, Copy)]
pub(crate) struct Finish<'a> {
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) per_item: Option<&'a [f32]>,
    pub(crate) rows_per_item: usize,
    pub(crate) act: Act,
    pub(crate) add: Option<&'a [f32]>,
    /// Whether it is added to what stands in the output already.
    pub(crate) onto: bool,
}

/// A row of a panel.
pub(crate) type Lane = [f32; WIDTH];

impl<'a> Finish<'a> {
    /// Nothing but a bias.
    pub(crate) fn plain(bias: Option<&'a [f32]>) -> Self {
        Self {
            bias,
            per_item: None,
            rows_per_item: 1,
            act: Act::None,
            add: None,
            onto: false,
        }
    }

    /// Writes the part of an output row that begins at column `column`. `row` counts output rows, `out` is their length.
    #[inline(always)]
    pub(crate) fn row(&self, y: &Lane, row: usize, column: usize, out: usize, to: &mut [f32]) {
        let mut y = *y;
        let n = to.len();
        if let Some(bias) = self.bias {
            add(&mut y, &bias[column..][..n]);
        }
        if let Some(per_item) = self.per_item {
            add(
                &mut y,
                &per_item[row / self.rows_per_item * out + column..][..n],
            );
        }
        match self.act {
            Act::None => {}
            Act::Silu => each(&mut y, |x| x / (1.0 + exp(-x))),
            Act::QuickGelu => each(&mut y, |x| x / (1.0 + exp(-1.702 * x))),
            Act::Gelu => each(&mut y, |x| x * normal_cdf(x)),
            // x * (1 + tanh(z)) / 2 = x / (1 + e^-2z)
            Act::GeluTanh => each(&mut y, |x| {
                x / (1.0 + exp(-2.0 * 0.797_884_6 * (x + 0.044_715 * x * x * x)))
            }),
            // Not `max`: NaN stays NaN.
            Act::Relu => each(&mut y, |x| if x < 0.0 { 0.0 } else { x }),
            Act::Leaky => each(&mut y, |x| if x < 0.0 { 0.2 * x } else { x }),
        }
        if let Some(other) = self.add {
            add(&mut y, &other[row * out + column..][..n]);
        }
        if self.onto {
            add(&mut y, to);
        }
        if let Ok(to) = <&mut Lane>::try_from(&mut *to) {
            *to = y;
        } else {
            to.copy_from_slice(&y[..n]);
        }
    }
}

/// As `map` of an array, which is a function of its own, made for any machine.
#[inline(always)]
fn each(y: &mut Lane, f: impl Fn(f32) -> f32) {
    for y in y {
        *y = f(*y);
    }
}

#[inline(always)]
fn add(y: &mut Lane, other: &[f32]) {
    if let Ok(other) = <&Lane>::try_from(other) {
        for (y, o) in y.iter_mut().zip(other) {
            *y += o;
        }
    } else {
        for (y, o) in y.iter_mut().zip(other) {
            *y += o;
        }
    }
}

/// `a * gelu(g)`, both with their bias, for a part of a row.
#[inline(always)]
pub(crate) fn gate(a: &Lane, g: &Lane, bias: Option<(&[f32], &[f32])>, to: &mut [f32]) {
    let (mut a, mut g) = (*a, *g);
    if let Some((of_a, of_g)) = bias {
        add(&mut a, of_a);
        add(&mut g, of_g);
    }
    for (a, g) in a.iter_mut().zip(&g) {
        *a *= g * normal_cdf(*g);
    }
    to.copy_from_slice(&a[..to.len()]);
}

/// `e^x` to about one unit in the last place; beyond the range of f32 its ends.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.3, 88.3);
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = x - n * 0.693_359_4;
    let r = r + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    p = p * (r * r) + r + 1.0;
    // The low bits of `rounded` are n.
    let scale = (rounded.to_bits() << 23).wrapping_add(127 << 23);
    p * f32::from_bits(scale)
}

/// The share of a standard normal distribution below `x`, to about 1e-7.
///
/// Near zero an odd polynomial; outside the tail as `exp` of a polynomial, whose error shrinks with the tail itself.
#[inline(always)]
pub(crate) fn normal_cdf(x: f32) -> f32 {
    let a = x.abs().min(6.0);
    let s = x * x;
    let mut centre = -6.822_396_8e-6;
    for c in [
        1.110_920_3e-4,
        -1.183_907_6e-3,
        9.972_323e-3,
        -6.649_022e-2,
        3.989_423e-1,
    ] {
        centre = centre * s + c;
    }
    let centre = 0.5 + x * centre;
    let mut tail = 9.687_49e-8;
    for c in [
        -3.923_686_5e-6,
        7.290_881e-5,
        -8.306_282e-4,
        6.563_943_5e-3,
        -3.882_099_8e-2,
        -3.160_536_7e-1,
        -7.990_846_5e-1,
        -6.928_641e-1,
    ] {
        tail = tail * a + c;
    }
    let tail = if x.abs() > 6.0 { 0.0 } else { exp(tail) };
    let side = if x < 0.0 { tail } else { 1.0 - tail };
    if a < 1.25 { centre } else { side }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_everywhere() {
        for i in -8700..8800 {
            let x = i as f32 / 100.0;
            let want = f64::from(x).exp();
            assert!((f64::from(exp(x)) / want - 1.0).abs() < 3e-7, "{x}");
        }
    }

    #[test]
    fn the_normal_distribution_is_close() {
        // Values of the distribution to 16 digits.
        for (x, want) in [
            (0.0, 0.5),
            (0.5, 0.691_462_461_274_013_1),
            (-1.0, 0.158_655_253_931_457_05),
            (1.3, 0.903_199_515_414_389_7),
            (-2.0, 0.022_750_131_948_179_21),
            (-3.5, 0.000_232_629_079_035_525),
            (5.0, 0.999_999_713_348_428),
        ] {
            let got = f64::from(normal_cdf(x));
            assert!((got - want).abs() < 2e-7, "{x}: {got}");
        }
        assert!((1.0 - normal_cdf(40.0)).abs() < 1e-7 && normal_cdf(-40.0) == 0.0);
    }
}
