//! Sampling a part of a latent only: outside the mask, every pass of the network sees the original at the step's noise
//! level, and the original is what comes out.

use fresco_tensor::{Crop, ResizeMethod, Tensor, common_upscale, repeat_to_batch};

use super::guidance::DifferentialDiffusion;
use crate::error::{ModelError, Result};
use crate::model_sampling::ModelSampling;

/// A mask of any batch and size, brought to the shape (b, c, ..., h, w) of a latent. Of videos, a mask whose planes are as
/// many as the frames has one for each; else its planes are items of the batch and cover all frames.
pub fn fit_mask(mask: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let unfit = || {
        Err(ModelError::invalid(
            "noise mask",
            format!(
                "shape {:?} does not fit a latent of shape {shape:?}",
                mask.shape()
            ),
        ))
    };
    let (&[batch, _, ref frames @ .., h, w], [.., mh, mw]) = (shape, mask.shape()) else {
        return unfit();
    };
    if mask.is_empty() {
        return Err(ModelError::invalid("noise mask", "the mask is empty"));
    }
    let planes = mask.reshape([mask.len() / (mh * mw), 1, *mh, *mw])?;
    let sized = common_upscale(&planes, w, h, ResizeMethod::Bilinear, Crop::Disabled)?;
    let sized = match *frames {
        [] => sized,
        [count] if sized.dim(0)? == count => sized.reshape([1, 1, count, h, w])?,
        [_] => sized.unsqueeze(2)?,
        _ => return unfit(),
    };
    let batched = repeat_to_batch(&sized, batch)?;
    Ok(batched.expand(shape)?)
}

/// The part of a latent that is sampled.
pub struct Inpaint<'a> {
    /// (b, c, h, w), 1 where the latent is sampled.
    pub mask: Tensor,
    /// The original, as the network sees latents.
    pub latent: Tensor,
    pub noise: Tensor,
    pub sampling: &'a ModelSampling,
    pub differential: Option<DifferentialDiffusion>,
    /// All noise levels of the run.
    pub sigmas: Vec<f32>,
    /// What the original is multiplied with where the network sees it without noise; none if it sees it with.
    pub clean: Option<&'a dyn Fn(f32) -> f32>,
}

impl Inpaint<'_> {
    /// Runs a model on the masked part of `x`.
    pub fn denoise<E: From<ModelError>>(
        &self,
        x: &Tensor,
        sigma: f32,
        model: impl FnOnce(&Tensor) -> Result<Tensor, E>,
    ) -> Result<Tensor, E> {
        let mask = match &self.differential {
            Some(rule) => rule.mask(self.sampling, sigma, &self.mask, &self.sigmas),
            None => self.mask.clone(),
        };
        let mix = |new: &Tensor, old: &Tensor| -> Result<Tensor> {
            let rest = mask.rsub_scalar(1.0);
            Ok(new.mul(&mask)?.add(&old.mul(&rest)?)?)
        };
        let around = match self.clean {
            Some(scale) => self.latent.mul_scalar(scale(sigma)),
            None => self
                .sampling
                .noise_scaling(sigma, &self.noise, &self.latent, false)
                .map_err(ModelError::from)?,
        };
        let out = model(&mix(x, &around)?)?;
        Ok(mix(&out, &self.latent)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_sampling::Prediction;

    #[test]
    fn masks_take_the_shape_of_the_latent() {
        let mask = Tensor::from_fn([1, 16, 16], |i| f32::from(u8::from(i % 16 >= 8))).unwrap();
        let fitted = fit_mask(&mask, &[2, 4, 8, 8]).unwrap();
        assert_eq!(fitted.shape(), [2, 4, 8, 8]);
        assert_eq!(fitted.data()[..8], [0., 0., 0., 0., 1., 1., 1., 1.]);
        let moving = Tensor::from_fn([3, 4, 4], |i| (i / 16) as f32).unwrap();
        let fitted = fit_mask(&moving, &[1, 2, 3, 8, 8]).unwrap();
        assert_eq!(fitted.shape(), [1, 2, 3, 8, 8]);
        assert_eq!(fitted.data()[2 * 64], 2.0);
        let still = fit_mask(&moving.narrow(0, 1, 1).unwrap(), &[2, 2, 5, 8, 8]).unwrap();
        assert!(still.data().iter().all(|v| *v == 1.0));
        assert!(fit_mask(&Tensor::zeros([0, 8, 8]).unwrap(), &[1, 4, 8, 8]).is_err());
        assert!(fit_mask(&Tensor::zeros([8]).unwrap(), &[1, 4, 8, 8]).is_err());
    }

    #[test]
    fn outside_the_mask_the_original_stays() {
        let sampling = ModelSampling::discrete(Prediction::Eps, false);
        let t = |f: fn(usize) -> f32| Tensor::from_fn([1, 1, 1, 4], f).unwrap();
        let inpaint = Inpaint {
            mask: t(|i| f32::from(u8::from(i < 2))),
            latent: t(|i| i as f32),
            noise: t(|_| 1.0),
            sampling: &sampling,
            differential: None,
            sigmas: vec![2.0, 0.0],
            clean: None,
        };
        let mut seen = Vec::new();
        let out = inpaint
            .denoise::<ModelError>(&t(|_| 9.0), 2.0, |x| {
                seen = x.data().to_vec();
                Ok(x.mul_scalar(0.0))
            })
            .unwrap();
        assert_eq!(seen, [9.0, 9.0, 4.0, 5.0]);
        assert_eq!(out.data(), [0.0, 0.0, 2.0, 3.0]);
    }
}
