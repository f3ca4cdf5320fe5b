//! Activations that swing: `x + sin(a x)^2 / b` (Ziyin et al. 2020).

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Value, add_gated};

use super::filter::Smoothed;
use crate::error::Result;
use crate::store::Walk;

/// Pi in two parts, so that what is left of large angles is exact enough.
const HIGH: f32 = 3.140_625;
/// The rest of it.
const LOW: f32 = 9.676_536e-4;
/// Of the square of an angle up to a quarter turn, highest power first.
const TERMS: [f32; 9] = [
    2.047_25e-11,
    -1.566_14e-9,
    9.396_83e-8,
    -4.275_56e-6,
    1.410_93e-4,
    -3.174_603e-3,
    4.444_444e-2,
    -0.333_333_34,
    1.0,
];

/// The square of the sine, by operations that all devices have.
pub fn sin_squared(x: &Tensor) -> Result<Tensor> {
    if x.device().is_cpu() {
        return Ok(x.map(|v| v.sin().powi(2)));
    }
    let turns = x.mul_scalar(std::f32::consts::FRAC_1_PI).round();
    let rest = x
        .sub(&turns.mul_scalar(HIGH))?
        .sub(&turns.mul_scalar(LOW))?;
    let square = rest.mul(&rest)?;
    let mut sum = square.mul_scalar(TERMS[0]);
    for (at, term) in TERMS.iter().enumerate().skip(1) {
        sum = sum.add_scalar(*term);
        if at + 1 < TERMS.len() {
            sum = sum.mul(&square)?;
        }
    }
    Ok(sum.mul(&square)?)
}

/// What stands in files for `a` and `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnakeKind {
    /// Logarithms of both.
    Beta,
    /// One number for both, as it is.
    Alpha,
}

/// The activation of some channels.
pub struct Snake {
    alpha: Arc<Value>,
    beta: Option<Arc<Value>>,
}

const EPS: f32 = 1e-9;

impl Snake {
    pub fn new(weights: &Walk<'_>, name: &str, channels: usize, kind: SnakeKind) -> Result<Self> {
        let named = |part: &str| format!("{name}.{part}");
        Ok(match kind {
            SnakeKind::Beta => Self {
                alpha: weights.value(&named("alpha"), &[channels])?,
                beta: Some(weights.value(&named("beta"), &[channels])?),
            },
            SnakeKind::Alpha => Self {
                alpha: weights.value(&named("alpha"), &[1, channels, 1])?,
                beta: None,
            },
        })
    }

    /// (b, n, c) to the same.
    pub fn forward(&self, x: Tensor) -> Result<Tensor> {
        let device = x.device();
        let host = fresco_tensor::Device::cpu();
        let alpha = self.alpha.at(&host)?;
        let alpha = alpha.reshape([alpha.len()])?;
        let (alpha, beta) = match &self.beta {
            Some(beta) => (alpha.map(f32::exp), beta.at(&host)?.map(f32::exp)),
            None => (alpha.clone(), alpha),
        };
        let share = beta.map(|v| 1.0 / (v + EPS)).to(&device)?;
        let swing = sin_squared(&x.mul(&alpha.to(&device)?)?)?;
        Ok(add_gated(x, &share, &swing)?)
    }

    /// The same without new frequencies above what the samples can tell.
    pub fn smoothed(&self, x: &Tensor, filter: &Smoothed) -> Result<Tensor> {
        filter.around(x, |longer| self.forward(longer))
    }
}

#[cfg(test)]
mod tests {
    use fresco_tensor::Device;

    use super::*;

    #[test]
    fn devices_agree_on_sines() {
        let x = Tensor::from_fn([1, 401, 1], |i| (i as f32 - 200.0) * 0.37).unwrap();
        let expected = sin_squared(&x).unwrap();
        let device = Device::register_sim(77, 1 << 24).unwrap();
        let found = sin_squared(&x.to(&device).unwrap()).unwrap();
        let found = found.to(&Device::cpu()).unwrap();
        for ((x, a), b) in x.data().iter().zip(expected.data()).zip(found.data()) {
            assert!((a - b).abs() < 2e-5, "{x}: {a} {b}");
        }
    }
}
