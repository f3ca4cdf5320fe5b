//! How the latents that nodes exchange differ from those a network works on.

use fresco_tensor::{Result, Tensor};

mod table;

pub use table::*;

/// A scale, for some families a shift, for some a mean and a deviation per channel; and what a preview needs to know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentFormat {
    /// The reference's name.
    pub name: &'static str,
    pub channels: usize,
    /// Dimensions behind the channels: 2 for pictures, 3 for videos, 1 for sound.
    pub dimensions: usize,
    /// Pixels along a side of a cell, where empty latents that were made for cells of eight are resized to it.
    pub ratio: usize,
    pub scale: f32,
    pub shift: f32,
    pub mean: &'static [f32],
    pub deviation: &'static [f32],
    /// Red, green and blue that each channel stands for, roughly. Empty where nobody fitted them.
    pub rgb: &'static [[f32; 3]],
    pub rgb_bias: [f32; 3],
    /// How the file of the small decoder for previews begins.
    pub taesd: Option<&'static str>,
    /// Whether two frames are one with twice the channels to the network, the first of which is there twice.
    pub paired: bool,
}

impl LatentFormat {
    /// Changes nothing.
    const fn plain() -> Self {
        Self {
            name: "",
            channels: 4,
            dimensions: 2,
            ratio: 8,
            scale: 1.0,
            shift: 0.0,
            mean: &[],
            deviation: &[],
            rgb: &[],
            rgb_bias: [0.0; 3],
            taesd: None,
            paired: false,
        }
    }

    /// A format that only scales.
    pub const fn scaled(scale: f32) -> Self {
        Self {
            scale,
            ..Self::plain()
        }
    }

    /// A format by the reference's name.
    pub fn by_name(name: &str) -> Option<Self> {
        ALL.iter().find(|format| format.name == name).copied()
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
        if self.paired && latent.rank() == 5 {
            return paired(&latent.mul_scalar(self.scale));
        }
        if self.mean.is_empty() {
            return Ok(match self.shift {
                0.0 => latent.mul_scalar(self.scale),
                shift => latent.map(|v| (v - shift) * self.scale),
            });
        }
        let mean = Self::per_channel(self.mean, latent.rank())?;
        let deviation = Self::per_channel(self.deviation, latent.rank())?;
        latent.sub(&mean)?.mul_scalar(self.scale).div(&deviation)
    }

    /// And back.
    pub fn process_out(&self, latent: &Tensor) -> Result<Tensor> {
        if self.paired && latent.rank() == 5 {
            return Ok(single(latent)?.div_scalar(self.scale));
        }
        if self.mean.is_empty() {
            return Ok(match self.shift {
                0.0 => latent.div_scalar(self.scale),
                shift => latent.map(|v| v / self.scale + shift),
            });
        }
        let mean = Self::per_channel(self.mean, latent.rank())?;
        let deviation = Self::per_channel(self.deviation, latent.rank())?;
        latent.mul(&deviation)?.div_scalar(self.scale).add(&mean)
    }
}

/// (b, c, t, h, w) with the first frame twice, as pairs of frames: (b, 2 c, (t + 1) / 2, h, w).
fn paired(latent: &Tensor) -> Result<Tensor> {
    let first = latent.narrow(2, 0, 1)?;
    let mut frames = Tensor::cat(&[&first, latent], 2)?;
    let count = frames.dim(2)?;
    if !count.is_multiple_of(2) {
        // A last frame without another stands with itself.
        let last = frames.narrow(2, count - 1, 1)?;
        frames = Tensor::cat(&[&frames, &last], 2)?;
    }
    let &[b, c, t, h, w] = frames.shape() else {
        return Ok(frames);
    };
    let pairs = frames.reshape([b, c, t / 2, 2, h, w])?;
    let pairs = pairs.permute(&[0, 3, 1, 2, 4, 5])?;
    pairs.reshape([b, 2 * c, t / 2, h, w])
}

/// And back, without the frame that was there twice.
fn single(latent: &Tensor) -> Result<Tensor> {
    let &[b, c, t, h, w] = latent.shape() else {
        return Ok(latent.clone());
    };
    let frames = latent.reshape([b, 2, c / 2, t, h, w])?;
    let frames = frames.permute(&[0, 2, 3, 1, 4, 5])?;
    let frames = frames.reshape([b, c / 2, 2 * t, h, w])?;
    frames.narrow(2, 1, (2 * t).saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_undoes_in() {
        let latent = Tensor::from_fn([1, 4, 2, 2], |i| i as f32 - 7.5).unwrap();
        for format in [PLAYGROUND, LatentFormat::scaled(0.18215), SD15, SD3] {
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
