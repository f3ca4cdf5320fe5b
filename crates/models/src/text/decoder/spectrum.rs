//! Sound as Gemma 4 hears it: how strong each band of frequencies is, a hundred times a second.

use std::f64::consts::TAU;

use fresco_tensor::{Axes, Buffer, Tensor};

use crate::error::{ModelError, Result};
use crate::sound::magnitudes;

/// Samples in a second.
pub const RATE: u32 = 16_000;
/// Longer sounds are cut: 30 seconds.
const MOST: usize = 30 * RATE as usize;
/// Samples of a window, and from one to the next.
const WINDOW: usize = 320;
const HOP: usize = 160;
/// Samples that are transformed: the window, then silence.
const TRANSFORMED: usize = 512;
/// Added before the logarithm.
const FLOOR: f64 = 1e-3;
/// More bands than any network hears.
pub(super) const MOST_BANDS: usize = 1024;

fn to_mel(hertz: f64) -> f64 {
    2595.0 * (1.0 + hertz / 700.0).log10()
}

fn to_hertz(mel: f64) -> f64 {
    700.0 * (10f64.powf(mel / 2595.0) - 1.0)
}

/// The share of each frequency in each band, band by band.
fn shares(bands: usize) -> Vec<Vec<f64>> {
    let top = f64::from(RATE) / 2.0;
    let edge = |i: usize| to_hertz(to_mel(top) * i as f64 / (bands + 1) as f64);
    let edges: Vec<f64> = (0..bands + 2).map(edge).collect();
    let count = TRANSFORMED / 2 + 1;
    let share = |edges: &[f64], i: usize| {
        let hertz = top * i as f64 / (count - 1) as f64;
        let rising = (hertz - edges[0]) / (edges[1] - edges[0]);
        let falling = (edges[2] - hertz) / (edges[2] - edges[1]);
        rising.min(falling).max(0.0)
    };
    let rows = edges
        .windows(3)
        .map(|edges| (0..count).map(|i| share(edges, i)).collect());
    rows.collect()
}

/// The logarithm of each band's strength, `(frames, bands)`, of the first sound of `(b, channels, samples)`.
pub fn bands(sound: &Tensor, bands: usize) -> Result<Tensor> {
    let [count, channels, samples] = sound.dims3()?;
    let samples = samples.min(MOST);
    // A frame counts if all of its samples, and the one after them, are there; half a window of silence comes first.
    let frames = samples.saturating_sub(WINDOW / 2).div_ceil(HOP);
    if count == 0 || channels == 0 || frames == 0 {
        let reason = format!(
            "{samples} samples of {channels} channels are too short to be heard: at least {} are needed",
            WINDOW / 2 + 1
        );
        return Err(ModelError::invalid("sound", reason));
    }
    let first = sound.narrow(0, 0, 1)?.narrow(2, 0, samples)?;
    let line = first.mean(&[1], Axes::Drop)?;
    let silence = std::iter::repeat_n(0.0, WINDOW / 2);
    let line: Vec<f64> = silence
        .chain(line.data().iter().map(|v| f64::from(*v)))
        .collect();
    let shares = shares(bands);
    let mut out = Buffer::with_room(frames * bands)?;
    let mut wave = [0.0; TRANSFORMED];
    for frame in 0..frames {
        let part = line[frame * HOP..].iter().take(WINDOW);
        for (i, (to, from)) in wave.iter_mut().zip(part).enumerate() {
            *to = from * (0.5 - 0.5 * (TAU * i as f64 / WINDOW as f64).cos());
        }
        let found = magnitudes(&wave);
        out.extend(shares.iter().map(|row| {
            let sum: f64 = row.iter().zip(&found).map(|(a, b)| a * b).sum();
            (sum + FLOOR).ln() as f32
        }));
    }
    Ok(Tensor::from_buffer([frames, bands], out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tone_is_in_its_band() {
        let tone = |i: usize| (TAU * 1000.0 * i as f64 / f64::from(RATE)).sin() as f32;
        let sound = Tensor::from_fn([1, 1, 16_000], tone).unwrap();
        let found = bands(&sound, 128).unwrap();
        assert_eq!(found.shape(), [99, 128]);
        let frame = &found.data()[50 * 128..51 * 128];
        let loudest = (0..128).max_by(|a, b| frame[*a].total_cmp(&frame[*b]));
        // Bands reach 2840 mel; 1000 Hz are 1000 mel.
        assert_eq!(loudest, Some(44));
        assert!(bands(&Tensor::zeros([1, 1, 100]).unwrap(), 128).is_err());
        assert!(bands(&Tensor::zeros([0, 2, 1000]).unwrap(), 128).is_err());
    }
}
