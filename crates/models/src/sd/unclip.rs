//! What a vision network saw, as a vector beside the noise level (Ramesh et al. 2022): with noise put on it, and how much.

use std::f64::consts::FRAC_PI_2;

use fresco_tensor::{Generator, Tensor};

use crate::denoise::SeenPicture;
use crate::error::{ModelError, Result};
use crate::transformer::sinusoid;

/// Levels of noise.
const LEVELS: usize = 1000;

/// How much noise is put on the sum of several pictures.
pub const USUAL_MERGE: f64 = 0.05;

/// What the noise of a picture is drawn from, before the seed of the run.
const BEFORE: u64 = 10;

/// What is left of a picture at each level of noise: the root of what is left of its variance (Nichol and Dhariwal 2021).
pub fn left() -> Vec<f64> {
    let kept = |t: f64| ((t + 0.008) / 1.008 * FRAC_PI_2).cos().powi(2);
    let mut product = 1.0;
    (0..LEVELS)
        .map(|i| {
            let (from, to) = (i as f64 / LEVELS as f64, (i + 1) as f64 / LEVELS as f64);
            let step = (1.0 - kept(to) / kept(from)).min(0.999);
            product *= 1.0 - step;
            product.sqrt()
        })
        .collect()
}

/// A vector (1, c) with noise on it, and the level of that as waves behind it: (1, 2 c).
fn noised(vector: &Tensor, noise: f64, seed: u64) -> Result<Tensor> {
    let width = vector.len();
    let level = ((LEVELS - 1) as f64 * noise.clamp(0.0, 1.0)).round_ties_even();
    let left = left()[level as usize];
    let (left, rest) = (left as f32, (1.0 - left * left).max(0.0).sqrt() as f32);
    let drawn = Generator::new(seed).randn(&[1, width])?;
    let mixed = vector
        .reshape([1, width])?
        .zip_map(&drawn, |v, n| v * left + n * rest)?;
    let waves = sinusoid(&[level as f32], width)?;
    Ok(Tensor::cat(&[&mixed, &waves], 1)?)
}

/// The vector of all pictures together: (1, 2 c); zeros of width `width` if there are none. `seed` is that of the run.
pub fn vector(seen: &[SeenPicture], seed: u64, merge: f64, width: usize) -> Result<Tensor> {
    let seed = seed.wrapping_sub(BEFORE);
    let mut sum: Option<Tensor> = None;
    let mut count = 0;
    for picture in seen {
        let [items, wide] = match *picture.embeds.shape() {
            [items, wide] => [items, wide],
            ref shape => {
                let reason =
                    format!("a vision network gave shape {shape:?}, which is not a vector");
                return Err(ModelError::invalid("conditioning", reason));
            }
        };
        if 2 * wide != width {
            let reason = format!(
                "this model takes vectors of {} numbers from a vision network, this one gave {wide}: it belongs to another \
                 model",
                width / 2
            );
            return Err(ModelError::invalid("conditioning", reason));
        }
        for item in 0..items {
            let one = picture.embeds.narrow(0, item, 1)?;
            let one = noised(&one, picture.noise, seed)?.mul_scalar(picture.strength as f32);
            count += 1;
            sum = Some(match sum {
                None => one,
                Some(sum) => sum.add(&one)?,
            });
        }
    }
    match sum {
        None => Ok(Tensor::zeros([1, width])?),
        // The reference draws this noise from nowhere in particular.
        Some(sum) if count > 1 => noised(&sum.narrow(1, 0, width / 2)?, merge, seed),
        Some(sum) => Ok(sum),
    }
}
