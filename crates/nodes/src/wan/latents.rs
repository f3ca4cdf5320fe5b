//! Middle and spread of Wan's latent channels.
//!
//! A latent on a link is as the VAE made it; the model works on it shifted and scaled channel by channel. Zeros of the
//! model are therefore the channel means outside.

use fresco_graph::NodeError;
use fresco_tensor::Tensor;

/// Latents of 16 channels (Wan 2.1 and the models that took over its VAE).
pub(crate) mod wan21 {
    use super::{NodeError, Tensor, per_channel};

    pub(super) const MEAN: [f32; 16] = [
        -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715,
        0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
    ];
    const STD: [f32; 16] = [
        2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652,
        1.5579, 1.6382, 1.1253, 2.8251, 1.916,
    ];

    /// From the model's space to the VAE's.
    pub(crate) fn from_model(t: &Tensor) -> Result<Tensor, NodeError> {
        Ok(t.mul(&per_channel(&STD)?)?.add(&per_channel(&MEAN)?)?)
    }

    /// From the VAE's space to the model's.
    pub(crate) fn to_model(t: &Tensor) -> Result<Tensor, NodeError> {
        Ok(t.sub(&per_channel(&MEAN)?)?.div(&per_channel(&STD)?)?)
    }
}

/// Means of the 48 channels of Wan 2.2's own VAE.
const MEAN_22: [f32; 48] = [
    -0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557, -0.1382, 0.0542, 0.2813,
    0.0891, 0.157, -0.0098, 0.0375, -0.1825, -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108,
    -0.2158, 0.2502, -0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.123, -0.0313,
    -0.1649, 0.0117, 0.0723, -0.2839, -0.2083, -0.052, 0.3748, 0.0152, 0.1957, 0.1433, -0.2944,
    0.3573, -0.0548, -0.1681, -0.0667,
];

fn per_channel(values: &[f32]) -> Result<Tensor, NodeError> {
    Ok(Tensor::from_slice(values).reshape([1, values.len(), 1, 1, 1])?)
}

/// What the model's zero is outside, `(batch, channels, frames, h, w)`; 48 channels are Wan 2.2's, all others Wan 2.1's.
pub(crate) fn neutral(shape: [usize; 5]) -> Result<Tensor, NodeError> {
    let mean = if shape[1] == 48 {
        per_channel(&MEAN_22)?
    } else {
        per_channel(&wan21::MEAN)?
    };
    Ok(mean.expand(&shape)?)
}
