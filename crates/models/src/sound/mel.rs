//! Spectrograms with bands as wide as ears tell tones apart (Slaney's auditory toolbox), in main memory.

use std::f64::consts::TAU;

use fresco_tensor::Tensor;

use crate::error::{ModelError, Result};

/// How a spectrogram is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mel {
    pub rate: u32,
    /// Samples of a window, and from one to the next.
    pub window: usize,
    pub hop: usize,
    pub bands: usize,
    pub low: f64,
    pub high: f64,
}

/// The share of each frequency in each band, (bands, window / 2 + 1).
pub struct MelBands {
    of: Mel,
    shares: Vec<f32>,
}

/// Frequencies below are spaced evenly, above by their logarithm.
const KNEE: f64 = 1000.0;
const EVEN: f64 = 200.0 / 3.0;

fn to_mel(hertz: f64) -> f64 {
    if hertz < KNEE {
        return hertz / EVEN;
    }
    KNEE / EVEN + (hertz / KNEE).ln() / (6.4f64.ln() / 27.0)
}

fn to_hertz(mel: f64) -> f64 {
    let knee = KNEE / EVEN;
    if mel < knee {
        return mel * EVEN;
    }
    KNEE * ((mel - knee) * (6.4f64.ln() / 27.0)).exp()
}

impl MelBands {
    pub fn new(of: Mel) -> Self {
        let count = of.window / 2 + 1;
        let (low, high) = (to_mel(of.low), to_mel(of.high));
        let edge = |i: usize| to_hertz(low + (high - low) * i as f64 / (of.bands + 1) as f64);
        let edges: Vec<f64> = (0..of.bands + 2).map(edge).collect();
        let top = f64::from(of.rate / 2);
        let mut shares = Vec::with_capacity(of.bands * count);
        for band in edges.windows(3) {
            let &[start, middle, end] = band else {
                continue;
            };
            for i in 0..count {
                let hertz = top * i as f64 / (count.max(2) - 1) as f64;
                let rising = (hertz - start) / (middle - start);
                let falling = (end - hertz) / (end - middle);
                let share = rising.min(falling).max(0.0);
                shares.push((share * 2.0 / (end - start)) as f32);
            }
        }
        Self { of, shares }
    }

    /// Bands (bands) of the magnitudes of frequencies.
    fn apply(&self, magnitudes: &[f32], out: &mut [f32], step: usize) {
        let rows = self.shares.chunks_exact(magnitudes.len());
        for (band, row) in rows.enumerate() {
            let sum: f64 = row
                .iter()
                .zip(magnitudes)
                .map(|(a, b)| f64::from(*a) * f64::from(*b))
                .sum();
            out[band * step] = sum as f32;
        }
    }
}

/// A line with its own mirror image before and behind it, so many samples each.
pub fn reflected(line: &[f32], around: usize) -> Result<Vec<f32>> {
    if line.len() <= around {
        let reason = format!(
            "{} samples are too few, at least {} are needed",
            line.len(),
            around + 1
        );
        return Err(ModelError::invalid("sound", reason));
    }
    let before = (1..=around).rev().map(|i| line[i]);
    let behind = (0..around).map(|i| line[line.len() - 2 - i]);
    Ok(before.chain(line.iter().copied()).chain(behind).collect())
}

/// The bands (bands, frames) of a line of samples. `strength` makes a value of the square of a frequency's magnitude.
pub fn spectrogram(
    bands: &MelBands,
    line: &[f32],
    strength: impl Fn(f64) -> f64,
) -> Result<Tensor> {
    let Mel { window, hop, .. } = bands.of;
    let frames = (line.len() + hop).saturating_sub(window) / hop;
    if line.len() < window {
        let reason = format!("{} samples are too few for a spectrogram", line.len());
        return Err(ModelError::invalid("sound", reason));
    }
    let shape: Vec<f64> = (0..window)
        .map(|i| 0.5 - 0.5 * (TAU * i as f64 / window as f64).cos())
        .collect();
    let turns: Vec<(f64, f64)> = (0..window)
        .map(|i| (-TAU * i as f64 / window as f64).sin_cos())
        .map(|(sin, cos)| (cos, sin))
        .collect();
    let mut out = Tensor::zeros([bands.of.bands, frames])?;
    let values = out.data_mut();
    let mut wave = vec![(0.0, 0.0); window];
    let mut magnitudes = vec![0.0f32; window / 2 + 1];
    for frame in 0..frames {
        let part = &line[frame * hop..][..window];
        for ((to, from), w) in wave.iter_mut().zip(part).zip(&shape) {
            *to = (f64::from(*from) * w, 0.0);
        }
        let found = transformed(&wave, &turns, 1);
        for (to, (re, im)) in magnitudes.iter_mut().zip(&found) {
            *to = strength(re * re + im * im) as f32;
        }
        bands.apply(&magnitudes, &mut values[frame..], frames);
    }
    Ok(out)
}

/// The size of each frequency of a line of samples, from none to half of them.
pub fn magnitudes(line: &[f64]) -> Vec<f64> {
    let wave: Vec<(f64, f64)> = line.iter().map(|v| (*v, 0.0)).collect();
    let turns: Vec<(f64, f64)> = (0..line.len())
        .map(|i| (-TAU * i as f64 / line.len() as f64).sin_cos())
        .map(|(sin, cos)| (cos, sin))
        .collect();
    let found = transformed(&wave, &turns, 1).into_iter();
    found
        .take(line.len() / 2 + 1)
        .map(|(re, im)| re.hypot(im))
        .collect()
}

/// The Fourier transform of every `step`-th value, by the factors of their number.
fn transformed(values: &[(f64, f64)], turns: &[(f64, f64)], step: usize) -> Vec<(f64, f64)> {
    let count = values.len().div_ceil(step);
    if count <= 1 {
        return values.first().copied().into_iter().collect();
    }
    let factor = (2..=count)
        .find(|f| count.is_multiple_of(*f))
        .unwrap_or(count);
    let inner = count / factor;
    let parts: Vec<Vec<(f64, f64)>> = (0..factor)
        .map(|i| transformed(&values[i * step..], turns, step * factor))
        .collect();
    (0..count)
        .map(|k| {
            let mut sum = (0.0, 0.0);
            for (i, part) in parts.iter().enumerate() {
                let (re, im) = part[k % inner];
                let (cos, sin) = turns[i * k * step % turns.len()];
                sum.0 += re * cos - im * sin;
                sum.1 += re * sin + im * cos;
            }
            sum
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transform_is_the_sum_it_stands_for() {
        for count in [1usize, 8, 12, 25, 7] {
            let values: Vec<(f64, f64)> =
                (0..count).map(|i| ((i as f64 * 1.7).sin(), 0.0)).collect();
            let turns: Vec<(f64, f64)> = (0..count)
                .map(|i| {
                    let angle = -TAU * i as f64 / count as f64;
                    (angle.cos(), angle.sin())
                })
                .collect();
            let found = transformed(&values, &turns, 1);
            for (k, (re, im)) in found.iter().enumerate() {
                let mut sum = (0.0, 0.0);
                for (i, (v, _)) in values.iter().enumerate() {
                    let angle = -TAU * (i * k) as f64 / count as f64;
                    sum.0 += v * angle.cos();
                    sum.1 += v * angle.sin();
                }
                assert!((re - sum.0).abs() < 1e-9 && (im - sum.1).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn short_lines_are_refused() {
        assert!(reflected(&[1.0, 2.0], 2).is_err());
        assert_eq!(
            reflected(&[1.0, 2.0, 3.0], 2).unwrap(),
            [3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0]
        );
        let bands = MelBands::new(Mel {
            rate: 16000,
            window: 400,
            hop: 160,
            bands: 8,
            low: 0.0,
            high: 8000.0,
        });
        assert!(spectrogram(&bands, &[0.0; 399], |v| v).is_err());
        assert_eq!(
            spectrogram(&bands, &[0.0; 560], |v| v).unwrap().shape(),
            [8, 2]
        );
    }
}
