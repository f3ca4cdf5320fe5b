//! Functions of one number for vectors of every instruction set, and those functions on slices.
//!
//! Errors are below two units in the last place of an f32. Coefficients are Chebyshev fits (mpmath, 40 digits).

#![expect(
    unsafe_code,
    reason = "vector instructions need pointers and a check that the machine has them"
)]
#![expect(
    clippy::excessive_precision,
    reason = "coefficients as they were fitted"
)]

use super::isa::Isa;
use super::math_lanes::{Kernel, Lanes, dispatch};

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// The logarithm of 2 in two parts: products of the first with whole numbers up to 2^9 are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// A polynomial, the highest power first.
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
unsafe fn polynomial<V: Lanes, const N: usize>(x: V, coefficients: [f32; N]) -> V {
    // SAFETY: as promised.
    unsafe {
        let mut sum = V::splat(coefficients[0]);
        let mut i = 1;
        while i < N {
            sum = sum.mul_add(x, V::splat(coefficients[i]));
            i += 1;
        }
        sum
    }
}

/// `e^x`: zero, infinity and NaN where they belong.
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn exp<V: Lanes>(x: V) -> V {
    // SAFETY: as promised.
    unsafe {
        let x = V::splat(89.0).min(V::splat(-104.5).max(x));
        let n = x.mul(V::splat(LOG2_E)).round();
        let r = n.neg_mul_add(V::splat(LN_2_HIGH), x);
        let r = n.neg_mul_add(V::splat(LN_2_LOW), r);
        let p = polynomial(
            r,
            [
                1.394_110_8e-3,
                8.375_126e-3,
                4.166_635_3e-2,
                1.666_641_5e-1,
                5.000_000_05e-1,
                1.000_000_04,
                1.0,
            ],
        );
        // In two steps: the whole power may be outside the range of normal numbers.
        let first = n.mul(V::splat(0.5)).round();
        p.times_power_of_two(first).times_power_of_two(n.sub(first))
    }
}

/// `2^x` for `x <= 0`; at least `2^-126`, which is as good as zero in a softmax.
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn exp2_of_negative<V: Lanes>(x: V) -> V {
    // SAFETY: as promised.
    unsafe {
        let x = V::splat(-126.0).max(x);
        let n = x.round();
        let p = polynomial(
            x.sub(n),
            [
                1.339_086_3e-3,
                9.676_032e-3,
                5.550_357e-2,
                2.402_210_7e-1,
                6.931_472e-1,
                1.000_000_1,
            ],
        );
        p.times_power_of_two(n)
    }
}

/// `1 / (1 + e^-x)`
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn sigmoid<V: Lanes>(x: V) -> V {
    // SAFETY: as promised.
    unsafe {
        let one = V::splat(1.0);
        one.div(one.add(exp(V::zero().sub(x))))
    }
}

/// The share of a standard normal distribution below `x`.
///
/// Near zero an odd polynomial; outside the tail `exp(p(|x|))`, whose error shrinks with the tail itself. Computing it
/// from the error function would lose the tail of negative numbers.
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn normal_cdf<V: Lanes>(x: V) -> V {
    // SAFETY: as promised.
    unsafe {
        let zero = V::zero();
        let size = zero.sub(x).max(x);
        let centre = polynomial(
            x.mul(x),
            [
                -6.822_396_8e-6,
                1.110_920_3e-4,
                -1.183_907_6e-3,
                9.972_323e-3,
                -6.649_021_6e-2,
                3.989_422_8e-1,
            ],
        );
        let centre = centre.mul_add(x, V::splat(0.5));
        let tail = exp(polynomial(
            V::splat(6.0).min(size),
            [
                9.687_49e-8,
                -3.923_686_5e-6,
                7.290_881_4e-5,
                -8.306_282_3e-4,
                6.563_943_5e-3,
                -3.882_099_8e-2,
                -3.160_536_7e-1,
                -7.990_846_5e-1,
                -6.928_641e-1,
            ],
        ));
        // Below a hundred millionth: nothing, so that it stays nothing times a large number.
        let tail = V::splat(6.0).if_less(size, zero, tail);
        let outside = x.if_less(zero, tail, V::splat(1.0).sub(tail));
        size.if_less(V::splat(1.25), centre, outside)
    }
}

/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn tanh<V: Lanes>(x: V) -> V {
    // SAFETY: as promised.
    unsafe {
        let (zero, one) = (V::zero(), V::splat(1.0));
        let size = zero.sub(x).max(x);
        let small = polynomial(
            x.mul(x),
            [
                -6.233_633_5e-3,
                2.103_821_5e-2,
                -5.384_232e-2,
                1.333_245_6e-1,
                -3.333_331e-1,
                1.0,
            ],
        );
        let large = V::splat(2.0).div(exp(size.add(size)).add(one));
        let large = one.sub(large);
        let large = x.if_less(zero, zero.sub(large), large);
        size.if_less(V::splat(0.55), small.mul(x), large)
    }
}

/// A function of one number, as a type: kernels that use it are compiled for it.
pub(crate) trait Function {
    /// Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// The machine has the instruction set of `V`.
    unsafe fn of<V: Lanes>(x: V) -> V;
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident($x:ident) = $value:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name;

        impl Function for $name {
            #[inline(always)]
            unsafe fn of<V: Lanes>($x: V) -> V {
                #[allow(unused_unsafe, reason = "the identity needs none")]
                // SAFETY: the caller promises the instruction set.
                unsafe { $value }
            }
        }
    )*};
}

functions! {
    Identity(x) = x;
    Sigmoid(x) = sigmoid(x);
    Tanh(x) = tanh(x);
    Silu(x) = x.div(V::splat(1.0).add(exp(V::zero().sub(x))));
    Gelu(x) = x.mul(normal_cdf(x));
    /// `0.5 x (1 + tanh(u))` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, which is `x sigmoid(2 u)`.
    GeluTanh(x) = {
        let u = x.mul(x).mul_add(V::splat(0.071_354_814), V::splat(1.595_769_1));
        x.div(V::splat(1.0).add(exp(V::zero().sub(x.mul(u)))))
    };
    QuickGelu(x) = x.div(V::splat(1.0).add(exp(x.mul(V::splat(-1.702)))));
    Relu(x) = V::zero().max(x);
    Leaky(x) = x.mul(V::splat(0.2)).max(x);
    /// `x tanh(ln(1 + e^x))`, which is `x t / (t + 2)` with `t = e^x (e^x + 2)`. Beyond 20 it is `x`.
    Mish(x) = {
        let e = exp(V::splat(20.0).min(x));
        let t = e.mul(e.add(V::splat(2.0)));
        x.mul(t).div(t.add(V::splat(2.0)))
    };
}

/// Replaces every number by its function value.
pub(crate) fn map<F: Function>(isa: Isa, data: &mut [f32]) {
    dispatch(isa, Map::<F>(data, std::marker::PhantomData));
}

struct Map<'a, F>(&'a mut [f32], std::marker::PhantomData<F>);

impl<F: Function> Kernel for Map<'_, F> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let (p, n) = (self.0.as_mut_ptr(), self.0.len());
        // SAFETY: the caller promises the instruction set; offsets stay inside the slice.
        unsafe {
            let mut i = 0;
            while i + V::N <= n {
                F::of(V::load(p.add(i))).store(p.add(i));
                i += V::N;
            }
            if i < n {
                F::of(V::load_part(p.add(i), n - i)).store_part(p.add(i), n - i);
            }
        }
    }
}

/// `out = values * gelu(gates)`; all of one length.
pub(crate) fn geglu_row(isa: Isa, values: &[f32], gates: &[f32], out: &mut [f32]) {
    assert!(values.len() == out.len() && gates.len() == out.len());
    dispatch(isa, Geglu { values, gates, out });
}

struct Geglu<'a> {
    values: &'a [f32],
    gates: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Geglu<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let (a, g, o) = (
            self.values.as_ptr(),
            self.gates.as_ptr(),
            self.out.as_mut_ptr(),
        );
        let n = self.out.len();
        // SAFETY: the caller promises the instruction set; the slices are of one length and offsets stay inside.
        unsafe {
            let mut i = 0;
            while i + V::N <= n {
                Gelu::of(V::load(g.add(i)))
                    .mul(V::load(a.add(i)))
                    .store(o.add(i));
                i += V::N;
            }
            if i < n {
                Gelu::of(V::load_part(g.add(i), n - i))
                    .mul(V::load_part(a.add(i), n - i))
                    .store_part(o.add(i), n - i);
            }
        }
    }
}

/// Softmax of one row in place. A row of minus infinities becomes NaN.
pub(crate) fn softmax_row(isa: Isa, row: &mut [f32]) {
    dispatch(isa, Softmax(row));
}

struct Softmax<'a>(&'a mut [f32]);

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let (p, n) = (self.0.as_mut_ptr(), self.0.len());
        let max = self
            .0
            .iter()
            .fold(f32::NEG_INFINITY, |m, &v| if v > m { v } else { m });
        // SAFETY: the caller promises the instruction set; offsets stay inside the slice.
        unsafe {
            let top = V::splat(max);
            let mut sum = V::zero();
            let mut rest = 0.0;
            let mut i = 0;
            while i + V::N <= n {
                let e = exp(V::load(p.add(i)).sub(top));
                e.store(p.add(i));
                sum = sum.add(e);
                i += V::N;
            }
            if i < n {
                exp(V::load_part(p.add(i), n - i).sub(top)).store_part(p.add(i), n - i);
                while i < n {
                    rest += *p.add(i);
                    i += 1;
                }
            }
            let share = V::splat(1.0 / (sum.sum() + rest));
            let mut i = 0;
            while i + V::N <= n {
                V::load(p.add(i)).mul(share).store(p.add(i));
                i += V::N;
            }
            if i < n {
                V::load_part(p.add(i), n - i)
                    .mul(share)
                    .store_part(p.add(i), n - i);
            }
        }
    }
}
