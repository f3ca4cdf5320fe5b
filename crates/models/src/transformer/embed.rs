//! Numbers that networks are told: noise levels, guidance, sizes.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Linear};
use fresco_tensor::{Buffer, Device, Tensor};

use super::mlp::{Mlp, MlpLayers};
use crate::epilogue::then;
use crate::error::Result;
use crate::store::{Bias, Walk};

/// Cosines and sines of each value at frequencies that fall from 1 to 1 / 10000: (values, width).
pub fn sinusoid(values: &[f32], width: usize) -> Result<Tensor> {
    let half = width / 2;
    let fall = -(10000.0_f64.ln()) as f32;
    let frequencies: Vec<f32> = (0..half)
        .map(|i| (fall * i as f32 / half as f32).exp())
        .collect();
    let mut out = Buffer::with_room(values.len() * width)?;
    for value in values {
        out.extend(frequencies.iter().map(|f| (value * f).cos()));
        out.extend(frequencies.iter().map(|f| (value * f).sin()));
        out.extend(std::iter::repeat_n(0.0, width % 2));
    }
    Ok(Tensor::from_buffer([values.len(), width], out)?)
}

/// A condition times 1,000, both in the numbers that a network's device keeps, as the reference computes it: 3.5 becomes 3,504 in
/// bf16. Noise levels are not conditions, and keep all of their bits.
pub fn thousandfold(condition: f32, device: &Device) -> f32 {
    device.rounded(1000.0 * device.rounded(condition))
}

/// The exponential function as the reference's library computes it in f32, to the last bit: two parts of the logarithm of two
/// are taken away, and a polynomial does the rest. For places so far out that the last bit of a frequency shows.
pub fn exponential(x: f32) -> f32 {
    const TWO: [f32; 2] = [0.693_145_75, 1.428_606_8e-6];
    const TERMS: [f32; 6] = [
        0.000_198_527_62,
        0.001_393_043_6,
        0.008_333_361,
        0.041_666_485,
        0.166_666_67,
        0.5,
    ];
    let times = (x * std::f32::consts::LOG2_E).round_ties_even();
    let rest = times.mul_add(-TWO[0], x);
    let rest = times.mul_add(-TWO[1], rest);
    let mut sum = TERMS[0];
    for term in &TERMS[1..] {
        sum = sum.mul_add(rest, *term);
    }
    let near = 1.0 + (rest * rest).mul_add(sum, rest);
    near * times.exp2()
}

/// A linear layer, SiLU, a linear layer.
pub struct Embedder {
    first: Arc<Linear>,
    second: Arc<Linear>,
}

impl Embedder {
    /// The names of the two layers: `["in_layer", "out_layer"]`, `["mlp.0", "mlp.2"]`.
    pub fn new(
        weights: &Walk<'_>,
        names: [&str; 2],
        input: usize,
        width: usize,
        bias: Bias,
    ) -> Result<Self> {
        Ok(Self {
            first: weights.linear_with(names[0], width, input, bias)?,
            second: weights.linear_with(names[1], width, width, bias)?,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = self.first.forward_with(x, then(Act::Silu))?;
        Ok(self.second.forward(&inner)?)
    }
}

/// Noise levels and other numbers as vectors: waves, then two layers.
pub struct TimeEmbed {
    layers: Mlp,
    waves: usize,
}

impl TimeEmbed {
    /// Layers of one width, which have a bias and SiLU between them.
    pub fn new(weights: &Walk<'_>, names: [&str; 2], waves: usize, width: usize) -> Result<Self> {
        let layers = MlpLayers::Plain(names, Act::Silu);
        Self::between(weights, layers, [waves, width, width], Bias::With)
    }

    /// From waves over an inner width to the embedding's.
    pub fn between(
        weights: &Walk<'_>,
        layers: MlpLayers<'_>,
        sizes: [usize; 3],
        bias: Bias,
    ) -> Result<Self> {
        Ok(Self {
            layers: Mlp::between(weights, layers, sizes, bias)?,
            waves: sizes[0],
        })
    }

    /// The waves of each value times `scale`, and their embedding: (values, width).
    pub fn forward(&self, values: &[f32], scale: f32, device: &Device) -> Result<Tensor> {
        let scaled: Vec<f32> = values.iter().map(|value| value * scale).collect();
        self.layers
            .forward(&sinusoid(&scaled, self.waves)?.to(device)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_function_is_near_the_true_one() {
        for i in -400..100 {
            let x = i as f32 / 20.0;
            let (found, exact) = (f64::from(exponential(x)), f64::from(x).exp());
            assert!((found - exact).abs() <= 1.2e-7 * exact, "{x}");
        }
        assert_eq!(exponential(0.0), 1.0);
        // Here the two differ in the last bit.
        assert_eq!(exponential(-1.315_762_9), 0.268_269_6);
    }
}
