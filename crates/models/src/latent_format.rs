//! How the latents that nodes exchange differ from those a network works on.

use fresco_tensor::{Result, Tensor};

/// A scale, and for some families a mean and a deviation per channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentFormat {
    pub scale: f32,
    pub mean: &'static [f32],
    pub deviation: &'static [f32],
}

/// Playground 2.5.
pub const PLAYGROUND: LatentFormat = LatentFormat {
    scale: 0.5,
    mean: &[-1.6574, 1.886, -1.383, 2.5155],
    deviation: &[8.4927, 5.9022, 6.5498, 5.2299],
};

impl LatentFormat {
    /// A format that only scales.
    pub const fn scaled(scale: f32) -> Self {
        Self {
            scale,
            mean: &[],
            deviation: &[],
        }
    }

    fn per_channel(values: &[f32], rank: usize) -> Result<Tensor> {
        let mut shape = vec![1; rank];
        if rank > 1 {
            shape[1] = values.len();
        }
        Tensor::from_vec(shape, values.to_vec())
    }

    /// From the latents of nodes to those of the network.
    pub fn process_in(&self, latent: &Tensor) -> Result<Tensor> {
        if self.mean.is_empty() {
            return Ok(latent.mul_scalar(self.scale));
        }
        let mean = Self::per_channel(self.mean, latent.rank())?;
        let deviation = Self::per_channel(self.deviation, latent.rank())?;
        latent.sub(&mean)?.mul_scalar(self.scale).div(&deviation)
    }

    /// And back.
    pub fn process_out(&self, latent: &Tensor) -> Result<Tensor> {
        if self.mean.is_empty() {
            return Ok(latent.div_scalar(self.scale));
        }
        let mean = Self::per_channel(self.mean, latent.rank())?;
        let deviation = Self::per_channel(self.deviation, latent.rank())?;
        latent.mul(&deviation)?.div_scalar(self.scale).add(&mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_undoes_in() {
        let latent = Tensor::from_fn([1, 4, 2, 2], |i| i as f32 - 7.5).unwrap();
        for format in [PLAYGROUND, LatentFormat::scaled(0.18215)] {
            let back = format
                .process_in(&latent)
                .and_then(|t| format.process_out(&t))
                .unwrap();
            for (a, b) in back.data().iter().zip(latent.data()) {
                assert!((a - b).abs() < 1e-5);
            }
        }
        let inside = PLAYGROUND.process_in(&latent).unwrap();
        assert!((inside.data()[0] - (-7.5 + 1.6574) * 0.5 / 8.4927).abs() < 1e-6);
    }
}
