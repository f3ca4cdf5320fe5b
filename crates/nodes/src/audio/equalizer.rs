//! Bass, middle and treble.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use fresco_graph::{Cx, Node, NodeOutput, NodeResult, Output};
use fresco_tensor::Tensor;

use super::Audio;

/// A filter with two samples of memory (Bristow-Johnson's cookbook), its last factor divided out.
#[derive(Clone, Copy, Debug)]
struct Biquad {
    b: [f64; 3],
    a: [f64; 2],
}

/// The side of a frequency that a shelf is on.
#[derive(Clone, Copy)]
enum Shelf {
    Low,
    High,
}

impl Biquad {
    fn new(b: [f64; 3], a: [f64; 3]) -> Self {
        Self {
            b: b.map(|v| v / a[0]),
            a: [a[1] / a[0], a[2] / a[0]],
        }
    }

    /// More or less of all on one side of a frequency.
    fn shelf(rate: f64, hertz: f64, gain: f64, side: Shelf) -> Self {
        let a = 10f64.powf(gain / 40.0);
        let w = 2.0 * PI * hertz / rate;
        let alpha = w.sin() / 2.0 / FRAC_1_SQRT_2;
        let sign = match side {
            Shelf::Low => 1.0,
            Shelf::High => -1.0,
        };
        let (cos, root) = (w.cos(), 2.0 * a.sqrt() * alpha);
        let (up, down) = (a + 1.0, a - 1.0);
        Self::new(
            [
                a * (up - sign * down * cos + root),
                sign * 2.0 * a * (down - sign * up * cos),
                a * (up - sign * down * cos - root),
            ],
            [
                up + sign * down * cos + root,
                -sign * 2.0 * (down + sign * up * cos),
                up + sign * down * cos - root,
            ],
        )
    }

    /// More or less of what is around a frequency.
    fn peak(rate: f64, hertz: f64, gain: f64, q: f64) -> Self {
        let a = 10f64.powf(gain / 40.0);
        let w = 2.0 * PI * hertz / rate;
        let alpha = w.sin() / 2.0 / q;
        let cos = w.cos();
        Self::new(
            [1.0 + alpha * a, -2.0 * cos, 1.0 - alpha * a],
            [1.0 + alpha / a, -2.0 * cos, 1.0 - alpha / a],
        )
    }

    fn apply(self, line: &mut [f32]) {
        let (mut x, mut y) = ([0.0; 2], [0.0; 2]);
        for value in line {
            let now = f64::from(*value);
            let out = self.b[0] * now + self.b[1] * x[0] + self.b[2] * x[1]
                - self.a[0] * y[0]
                - self.a[1] * y[1];
            x = [now, x[0]];
            y = [out, y[0]];
            *value = (out as f32).clamp(-1.0, 1.0);
        }
    }
}

/// Makes bass, middle and treble louder or softer.
#[derive(Node)]
#[node(
    id = "AudioEqualizer3Band",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "Audio Equalizer (3-Band)",
    category = "audio",
    outputs(Output::new("AUDIO").named("audio"))
)]
pub(super) struct AudioEqualizer3Band {
    audio: Audio,
    /// Decibels by which the low band gets louder; negative makes it softer.
    #[input(optional, name = "low_gain_dB", default = 0.0, min = -24.0, max = 24.0)]
    low_gain: Option<f64>,
    /// Frequency in hertz up to which the low band reaches.
    #[input(optional, default = 100, min = 20, max = 500)]
    low_freq: Option<i64>,
    /// Decibels by which the middle band gets louder; negative makes it softer.
    #[input(optional, name = "mid_gain_dB", default = 0.0, min = -24.0, max = 24.0)]
    mid_gain: Option<f64>,
    /// Frequency in hertz in the centre of the middle band.
    #[input(optional, default = 1000, min = 200, max = 4000)]
    mid_freq: Option<i64>,
    /// How narrow the middle band is; higher is narrower.
    #[input(optional, default = 0.707, min = 0.1, max = 10.0)]
    mid_q: Option<f64>,
    /// Decibels by which the high band gets louder; negative makes it softer.
    #[input(optional, name = "high_gain_dB", default = 0.0, min = -24.0, max = 24.0)]
    high_gain: Option<f64>,
    /// Frequency in hertz from which on the high band begins.
    #[input(optional, default = 5000, min = 1000, max = 15000)]
    high_freq: Option<i64>,
}

impl Node for AudioEqualizer3Band {
    fn run(self, cx: &Cx) -> NodeResult {
        let rate = self.audio.sample_rate()?;
        let per_second = f64::from(rate);
        // Nothing above half the rate can be heard, nor filtered.
        let within =
            |hertz: Option<i64>, usual: i64| (hertz.unwrap_or(usual) as f64).min(per_second * 0.49);
        let (low, mid, high) = (
            self.low_gain.unwrap_or(0.0),
            self.mid_gain.unwrap_or(0.0),
            self.high_gain.unwrap_or(0.0),
        );
        let q = self.mid_q.unwrap_or(0.707);
        let filters = [
            (low != 0.0)
                .then(|| Biquad::shelf(per_second, within(self.low_freq, 100), low, Shelf::Low)),
            (mid != 0.0).then(|| Biquad::peak(per_second, within(self.mid_freq, 1000), mid, q)),
            (high != 0.0).then(|| {
                Biquad::shelf(per_second, within(self.high_freq, 5000), high, Shelf::High)
            }),
        ];
        let waveform = self.audio.waveform()?;
        let mut out: Tensor = waveform.clone();
        let length = out.dim(2)?.max(1);
        for line in out.data_mut().chunks_exact_mut(length) {
            cx.check_interrupt()?;
            for filter in filters.iter().flatten() {
                filter.apply(line);
            }
        }
        Ok(NodeOutput::one(Audio::new(out, rate)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The swing of a tone after a filter, once it has settled.
    fn swing(filter: Biquad, hertz: f64) -> f64 {
        let mut tone: Vec<f32> = (0..20_000)
            .map(|i| (0.05 * (2.0 * PI * hertz * f64::from(i) / 44_100.0).sin()) as f32)
            .collect();
        filter.apply(&mut tone);
        let most = tone[10_000..].iter().fold(0.0f32, |m, v| m.max(v.abs()));
        20.0 * (f64::from(most) / 0.05).log10()
    }

    #[test]
    fn bands_get_their_gain_and_leave_the_others() {
        let bass = Biquad::shelf(44_100.0, 200.0, 6.0, Shelf::Low);
        assert!((swing(bass, 20.0) - 6.0).abs() < 0.3);
        assert!(swing(bass, 5000.0).abs() < 0.1);
        let treble = Biquad::shelf(44_100.0, 5000.0, -12.0, Shelf::High);
        assert!((swing(treble, 18_000.0) + 12.0).abs() < 0.3);
        assert!(swing(treble, 100.0).abs() < 0.1);
        let middle = Biquad::peak(44_100.0, 1000.0, 9.0, 0.707);
        assert!((swing(middle, 1000.0) - 9.0).abs() < 0.1);
        assert!(swing(middle, 30.0).abs() < 0.2);
    }
}
