//! Band-limited resampling: a sinc under a Hann window, six zero crossings wide, as torchaudio's default.

use std::f32::consts::PI;

use fresco_graph::NodeError;
use fresco_tensor::Tensor;

const ZERO_CROSSINGS: f32 = 6.0;
/// Share of the usable band that is kept.
const ROLLOFF: f64 = 0.99;
/// Taps of all phases together; only absurd pairs of rates need more.
const MAX_TAPS: usize = 1 << 26;

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// `(batch, channels, samples)` from one rate to another.
pub(crate) fn resample(waveform: &Tensor, from: u32, to: u32) -> Result<Tensor, NodeError> {
    if from == to {
        return Ok(waveform.clone());
    }
    let [batch, channels, length] = waveform.dims3()?;
    let common = gcd(from, to);
    let (from, to) = ((from / common) as usize, (to / common) as usize);
    let base = from.min(to) as f64 * ROLLOFF;
    let width = (f64::from(ZERO_CROSSINGS) * from as f64 / base).ceil() as usize;
    let taps = 2 * width + from;
    if taps.saturating_mul(to) > MAX_TAPS {
        return Err(NodeError::value_error(
            "the two sample rates have too little in common to convert between them",
        ));
    }
    let kernels = kernels(from, to, base, width);
    let target = (to * length).div_ceil(from);
    let mut out = Tensor::zeros([batch, channels, target])?;
    if target == 0 {
        return Ok(out);
    }
    let sources = waveform.data().chunks_exact(length.max(1));
    for (source, result) in sources.zip(out.data_mut().chunks_exact_mut(target)) {
        for (i, value) in result.iter_mut().enumerate() {
            let kernel = &kernels[(i % to) * taps..][..taps];
            // Sample 0 of the padded source is `width` before the first real one.
            let start = (i / to * from) as isize - width as isize;
            let skip = (-start).max(0) as usize;
            let first = start.max(0) as usize;
            *value = kernel
                .iter()
                .skip(skip)
                .zip(&source[first.min(length)..])
                .map(|(k, s)| k * s)
                .sum();
        }
    }
    Ok(out)
}

/// One row of taps for each of the `to` phases.
fn kernels(from: usize, to: usize, base: f64, width: usize) -> Vec<f32> {
    let scale = (base / from as f64) as f32;
    let mut rows = Vec::with_capacity(to * (2 * width + from));
    for phase in 0..to {
        let shift = -(phase as f32) / to as f32;
        for tap in 0..2 * width + from {
            let position = (tap as f32 - width as f32) / from as f32;
            let t = ((shift + position) * base as f32).clamp(-ZERO_CROSSINGS, ZERO_CROSSINGS);
            let window = (t * PI / ZERO_CROSSINGS / 2.0).cos().powi(2);
            let t = t * PI;
            let sinc = if t == 0.0 { 1.0 } else { t.sin() / t };
            rows.push(sinc * (window * scale));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_stays_constant_away_from_the_ends() {
        let tone = Tensor::full([1, 1, 400], 0.5).unwrap();
        let up = resample(&tone, 8000, 12000).unwrap();
        assert_eq!(up.shape(), [1, 1, 600]);
        for v in &up.data()[50..550] {
            assert!((v - 0.5).abs() < 1e-2, "{v}");
        }
    }

    #[test]
    fn empty_and_absurd_inputs_do_not_panic() {
        let empty = Tensor::zeros([1, 2, 0]).unwrap();
        assert_eq!(resample(&empty, 8000, 44100).unwrap().shape(), [1, 2, 0]);
        let one = Tensor::zeros([1, 1, 1]).unwrap();
        assert!(resample(&one, 191_999, 191_993).is_err());
    }
}
