//! Latents of several parts that are sampled together: a video and its sound.
//!
//! Samplers and guidance see one tensor (b, 1, values) with the parts one behind the other; a network gets their shapes with
//! its hooks and takes them apart.

use fresco_tensor::Tensor;

use crate::error::{ModelError, Result};

/// A second latent that a network samples together with the first.
#[derive(Clone, Copy, Debug)]
pub struct BesideLatent {
    /// Values of one of its frames: channels times what stands beside frames.
    pub values: usize,
    /// Whether frames are the last dimension, (b, channels, rows, frames), or the one before.
    pub rows_first: bool,
    /// How its schedule is shifted against that of the first, where it is; nodes may say otherwise.
    pub shift: Option<BesideShift>,
    /// How many of its frames stand beside so many of the first, where that never comes alone.
    pub silence: Option<fn(usize) -> usize>,
}

impl BesideLatent {
    /// An empty one for a first of this shape that came alone; none where it may.
    pub fn empty_beside(&self, first: &[usize]) -> Option<Vec<usize>> {
        let frames = (self.silence?)(*first.get(2)?);
        let batch = first[0];
        Some(if self.rows_first {
            vec![batch, self.values / 2, 2, frames]
        } else {
            vec![batch, self.values, frames, 1]
        })
    }

    /// Whether a latent is one of these.
    pub fn fits(&self, shape: &[usize]) -> bool {
        match *shape {
            [b, c, rows, n] if self.rows_first => b * n > 0 && c * rows == self.values,
            [b, c, n, rows] => b * n > 0 && c * rows == self.values,
            _ => false,
        }
    }
}

/// How far the schedules of both latents are shifted. Stands beside a network, for those that know it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BesideShift {
    pub first: f64,
    pub beside: f64,
}

impl BesideShift {
    /// By what the second is multiplied on its way in, and divided on its way out.
    pub fn scale(self) -> f32 {
        (self.first / self.beside) as f32
    }
}

/// Parts of one batch as one tensor.
pub fn pack_parts(parts: &[Tensor]) -> Result<Tensor> {
    let batch = parts.first().map_or(0, |first| first.shape()[0]);
    let mut lines = Vec::with_capacity(parts.len());
    for part in parts {
        if part.rank() < 3 || part.shape()[0] != batch || batch == 0 {
            let reason = format!(
                "a part of shape {:?} does not belong to a batch of {batch}",
                part.shape()
            );
            return Err(ModelError::invalid("latent", reason));
        }
        lines.push(part.reshape([batch, 1, part.len() / batch])?);
    }
    if lines.is_empty() {
        return Err(ModelError::invalid("latent", "it has no parts"));
    }
    Ok(Tensor::cat(&lines.iter().collect::<Vec<_>>(), 2)?)
}

/// The parts again; `shapes` are theirs without the batch.
pub fn unpack_parts(x: &Tensor, shapes: &[Vec<usize>]) -> Result<Vec<Tensor>> {
    let [batch, _, values] = x.dims3()?;
    let lengths = shapes.iter().map(|shape| shape.iter().product::<usize>());
    let total: usize = lengths.clone().sum();
    if total != values {
        let reason = format!("{values} values are no parts of {total}");
        return Err(ModelError::invalid("latent", reason));
    }
    let mut first = 0;
    let mut parts = Vec::with_capacity(shapes.len());
    for (shape, length) in shapes.iter().zip(lengths) {
        let mut whole = vec![batch];
        whole.extend_from_slice(shape);
        parts.push(x.narrow(2, first, length)?.reshape(whole)?);
        first += length;
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_back() {
        let video = Tensor::from_fn([2, 3, 2, 2, 1], |i| i as f32).unwrap();
        let sound = Tensor::from_fn([2, 1, 4, 2], |i| -(i as f32)).unwrap();
        let packed = pack_parts(&[video.clone(), sound.clone()]).unwrap();
        assert_eq!(packed.shape(), [2, 1, 20]);
        let shapes = [vec![3, 2, 2, 1], vec![1, 4, 2]];
        let again = unpack_parts(&packed, &shapes).unwrap();
        assert!(again[0] == video && again[1] == sound);
        assert!(unpack_parts(&packed, &shapes[..1]).is_err());
        let other = Tensor::zeros([1, 1, 4, 2]).unwrap();
        assert!(pack_parts(&[video, other]).is_err() && pack_parts(&[]).is_err());
    }
}
