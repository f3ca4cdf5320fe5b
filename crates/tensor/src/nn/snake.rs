//! The periodic activation of networks that make sound (Ziyin et al. 2020).

use rayon::prelude::*;

use super::misc::last;
use crate::device::Device;
use crate::elements::allocate;
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// Terms of the series of sin² that are left of f32's precision over half a turn.
const TERMS: usize = 10;

/// `x + sin²(x * frequency) * amount`, with a frequency and an amount for each channel of the last dimension.
pub fn snake(x: &Tensor, frequencies: &Tensor, amounts: &Tensor) -> Result<Tensor> {
    const OP: &str = "snake";
    x.check_device(OP, frequencies)?;
    x.check_device(OP, amounts)?;
    let width = last(x, OP)?;
    for values in [frequencies, amounts] {
        if values.len() != width {
            return Err(TensorError::mismatch(OP, x.shape(), values.shape()));
        }
    }
    let room = match x.device() {
        Device::Gpu(_) => return by_series(x, frequencies, amounts),
        Device::Cpu | Device::Sim(_) => x.room_for(x.shape())?,
    };
    let mut out = allocate(x.shape(), 0.0)?;
    if width > 0 {
        let (values, frequencies, amounts) = (x.values(), frequencies.values(), amounts.values());
        out.par_chunks_mut(width)
            .zip(values.par_chunks(width))
            .for_each(|(out, row)| {
                let factors = frequencies.iter().zip(amounts);
                for ((out, v), (frequency, amount)) in out.iter_mut().zip(row).zip(factors) {
                    let sine = (v * frequency).sin();
                    *out = v + sine * sine * amount;
                }
            });
    }
    Ok(Tensor::kept(x.shape(), room, out))
}

/// The same of operations that GPUs have: whole half turns change nothing, and what is left is in reach of the series.
fn by_series(x: &Tensor, frequencies: &Tensor, amounts: &Tensor) -> Result<Tensor> {
    let device = x.device();
    let wide = device.exact();
    let along = |values: &Tensor| values.to(&wide);
    let turns = x
        .to(&wide)?
        .mul(&along(frequencies)?)?
        .div_scalar(std::f32::consts::PI);
    let rest = turns.sub(&turns.round())?;
    let square = rest
        .mul(&rest)?
        .mul_scalar(4.0 * std::f32::consts::PI.powi(2));
    drop((turns, rest));
    let factors = series();
    let mut sum = square.mul_scalar(0.0).add_scalar(factors[TERMS - 1]);
    for factor in factors[..TERMS - 1].iter().rev() {
        sum = sum.mul(&square)?.add_scalar(*factor);
    }
    let waves = sum.mul(&square)?.mul(&along(amounts)?)?;
    x.to(&wide)?.add(&waves)?.to(&device)
}

/// Factors of the powers of z² in (1 - cos z) / 2, from the first on.
fn series() -> [f32; TERMS] {
    let mut factors = [0.0; TERMS];
    let mut term = 0.5f64;
    for (k, factor) in factors.iter_mut().enumerate() {
        let n = 2.0 * (k + 1) as f64;
        term /= n * (n - 1.0);
        *factor = if k % 2 == 0 { term } else { -term } as f32;
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_agree() {
        let x = Tensor::from_fn([2, 50, 3], |i| (i as f32 * 0.37).sin() * 20.0).unwrap();
        let frequencies = Tensor::from_slice(&[1.0, 0.3, 2.5]);
        let amounts = Tensor::from_slice(&[1.0, 4.0, 0.2]);
        let exact = snake(&x, &frequencies, &amounts).unwrap();
        let other = by_series(&x, &frequencies, &amounts).unwrap();
        for (i, (a, b)) in exact.data().iter().zip(other.data()).enumerate() {
            let (v, c) = (f64::from(x.data()[i]), i % 3);
            let sine = (v * f64::from(frequencies.data()[c])).sin();
            let want = v + sine * sine * f64::from(amounts.data()[c]);
            assert!((f64::from(*a) - want).abs() < 2e-5, "{a} {want}");
            assert!((f64::from(*b) - want).abs() < 5e-5, "{b} {want}");
        }
        assert!(snake(&x, &amounts, &Tensor::from_slice(&[1.0])).is_err());
    }
}
