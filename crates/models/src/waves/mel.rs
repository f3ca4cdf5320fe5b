//! Spectrograms whose bands are as wide as ears hear them.

use std::f64::consts::PI;

use fresco_tensor::{Buffer, Tensor};

use crate::error::{ModelError, Result};

/// How a spectrogram is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MelRule {
    pub rate: usize,
    /// Samples of a window, a power of two, and between windows.
    pub window: usize,
    pub hop: usize,
    pub bands: usize,
}

/// Hertz on the scale of ears and back, as Slaney has it.
fn to_mel(hertz: f64) -> f64 {
    if hertz < 1000.0 {
        hertz * 3.0 / 200.0
    } else {
        15.0 + (hertz / 1000.0).ln() / (6.4f64.ln() / 27.0)
    }
}

fn to_hertz(mel: f64) -> f64 {
    if mel < 15.0 {
        mel * 200.0 / 3.0
    } else {
        1000.0 * ((mel - 15.0) * 6.4f64.ln() / 27.0).exp()
    }
}

impl MelRule {
    /// Weights of frequencies for each band: triangles of equal area.
    fn bands(&self) -> Vec<Vec<f64>> {
        let top = to_mel(self.rate as f64 / 2.0);
        let edge = |n: usize| to_hertz(top * n as f64 / (self.bands + 1) as f64);
        let edges: Vec<f64> = (0..self.bands + 2).map(edge).collect();
        let frequency = |n: usize| n as f64 * self.rate as f64 / self.window as f64;
        let band = |n: usize| -> Vec<f64> {
            let (low, mid, high) = (edges[n], edges[n + 1], edges[n + 2]);
            let value = |k: usize| {
                let at = frequency(k);
                let rise = (at - low) / (mid - low);
                let fall = (high - at) / (high - mid);
                rise.min(fall).max(0.0) * 2.0 / (high - low)
            };
            (0..=self.window / 2).map(value).collect()
        };
        (0..self.bands).map(band).collect()
    }
}

/// The Fourier transform of as many values as a power of two, in place.
fn transform(values: &mut [(f64, f64)]) {
    let n = values.len();
    let mut at = 0;
    for i in 1..n {
        let mut bit = n >> 1;
        while at & bit != 0 {
            at ^= bit;
            bit >>= 1;
        }
        at |= bit;
        if i < at {
            values.swap(i, at);
        }
    }
    let mut size = 2;
    while size <= n {
        let half = size / 2;
        for block in values.chunks_exact_mut(size) {
            for k in 0..half {
                let angle = -2.0 * PI * k as f64 / size as f64;
                let (c, s) = (angle.cos(), angle.sin());
                let ((ar, ai), (br, bi)) = (block[k], block[k + half]);
                let (tr, ti) = (br * c - bi * s, br * s + bi * c);
                block[k] = (ar + tr, ai + ti);
                block[k + half] = (ar - tr, ai - ti);
            }
        }
        size *= 2;
    }
}

/// The place of a sample that may lie outside, as in a mirror at the ends.
fn mirrored(at: i64, length: usize) -> usize {
    if length <= 1 {
        return 0;
    }
    let period = 2 * (length as i64 - 1);
    let at = at.rem_euclid(period);
    at.min(period - at) as usize
}

/// Logarithms of the bands of sounds (b, channels, samples): (b, channels, frames, bands). Windows are Hann's, the first one
/// around the first sample.
pub fn mel_spectrogram(sound: &Tensor, rule: &MelRule) -> Result<Tensor> {
    const LEAST: f64 = 1e-5;
    let [b, channels, samples] = sound.dims3()?;
    if !rule.window.is_power_of_two() || rule.hop == 0 || samples == 0 {
        let reason = format!("no spectrogram of {samples} samples can be made with {rule:?}");
        return Err(ModelError::invalid("sound", reason));
    }
    let bands = rule.bands();
    let window = |n: usize| 0.5 - 0.5 * (2.0 * PI * n as f64 / rule.window as f64).cos();
    let window: Vec<f64> = (0..rule.window).map(window).collect();
    let frames = samples / rule.hop + 1;
    let mut out = Buffer::with_room(b * channels * frames * rule.bands)?;
    let mut values = vec![(0.0, 0.0); rule.window];
    for line in sound.data().chunks_exact(samples) {
        for frame in 0..frames {
            let first = (frame * rule.hop) as i64 - (rule.window / 2) as i64;
            for (n, (value, window)) in values.iter_mut().zip(&window).enumerate() {
                let sample = line[mirrored(first + n as i64, samples)];
                *value = (f64::from(sample) * window, 0.0);
            }
            transform(&mut values);
            let strengths = values[..=rule.window / 2].iter();
            let strengths: Vec<f64> = strengths.map(|(re, im)| re.hypot(*im)).collect();
            out.extend(bands.iter().map(|band| {
                let sum: f64 = band.iter().zip(&strengths).map(|(w, s)| w * s).sum();
                sum.max(LEAST).ln() as f32
            }));
        }
    }
    Ok(Tensor::from_buffer([b, channels, frames, rule.bands], out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tone_is_in_its_band() {
        let rule = MelRule {
            rate: 16_000,
            window: 1024,
            hop: 160,
            bands: 64,
        };
        let tone = |i: usize| (2.0 * PI * 1000.0 * i as f64 / 16_000.0).sin() as f32;
        let sound = Tensor::from_fn([1, 1, 3200], tone).unwrap();
        let mel = mel_spectrogram(&sound, &rule).unwrap();
        assert_eq!(mel.shape(), [1, 1, 21, 64]);
        let row = &mel.data()[10 * 64..11 * 64];
        let loudest = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        let top = to_mel(8000.0);
        let band = (to_mel(1000.0) / top * 65.0).round() as usize - 1;
        assert_eq!(loudest.map(|(n, _)| n), Some(band));
        assert!((to_hertz(to_mel(3456.0)) - 3456.0).abs() < 1e-6);
    }

    #[test]
    fn the_transform_is_the_sum_it_stands_for() {
        let x: Vec<(f64, f64)> = (0..8).map(|i| (f64::from(i * i % 5), 0.0)).collect();
        let mut found = x.clone();
        transform(&mut found);
        for (k, (re, im)) in found.iter().enumerate() {
            let (mut r, mut i) = (0.0, 0.0);
            for (n, (v, _)) in x.iter().enumerate() {
                let angle = -2.0 * PI * (k * n) as f64 / 8.0;
                r += v * angle.cos();
                i += v * angle.sin();
            }
            assert!((re - r).abs() < 1e-9 && (im - i).abs() < 1e-9);
        }
    }
}
