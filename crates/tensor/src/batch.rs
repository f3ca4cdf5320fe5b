//! Making batches (dimension 0) of different lengths fit each other.

use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// Cuts a batch to `count` items, or repeats it from the start until it has that many.
pub fn repeat_to_batch(x: &Tensor, count: usize) -> Result<Tensor> {
    let size = batch(x)?;
    let indices: Vec<_> = (0..count).map(|i| i % size).collect();
    pick(x, &indices, size)
}

/// Spreads a batch over `count` items: shrinking keeps the first and last, growing repeats each in place.
pub fn resize_to_batch(x: &Tensor, count: usize) -> Result<Tensor> {
    let size = batch(x)?;
    let indices: Vec<usize> = if count <= 1 {
        (0..count).collect()
    } else if count < size {
        let scale = (size - 1) as f64 / (count - 1) as f64;
        (0..count)
            .map(|i| ((i as f64 * scale).round_ties_even() as usize).min(size - 1))
            .collect()
    } else {
        let scale = size as f64 / count as f64;
        (0..count)
            .map(|i| (((i as f64 + 0.5) * scale).floor() as usize).min(size - 1))
            .collect()
    };
    pick(x, &indices, size)
}

fn batch(x: &Tensor) -> Result<usize> {
    match x.shape() {
        [] => Err(TensorError::rank("batch", "1 or more", x.shape())),
        [0, ..] => Err(TensorError::invalid("batch", "the batch is empty")),
        [size, ..] => Ok(*size),
    }
}

fn pick(x: &Tensor, indices: &[usize], size: usize) -> Result<Tensor> {
    if indices.len() == size && indices.iter().copied().eq(0..size) {
        return Ok(x.clone());
    }
    x.index_select(0, indices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(n: usize) -> Tensor {
        Tensor::from_fn([n, 1], |i| i as f32).unwrap()
    }

    #[test]
    fn repeating() {
        let data = |n, count| repeat_to_batch(&ramp(n), count).unwrap().into_vec();
        assert_eq!(data(3, 2), [0., 1.]);
        assert_eq!(data(2, 5), [0., 1., 0., 1., 0.]);
        assert!(data(2, 0).is_empty());
        assert!(repeat_to_batch(&ramp(0), 2).is_err());
        assert!(repeat_to_batch(&Tensor::scalar(1.0), 2).is_err());
    }

    #[test]
    fn spreading() {
        let data = |n, count| resize_to_batch(&ramp(n), count).unwrap().into_vec();
        assert_eq!(data(5, 3), [0., 2., 4.]);
        // 1.5 rounds to the even neighbour.
        assert_eq!(data(4, 3), [0., 2., 3.]);
        assert_eq!(data(2, 5), [0., 0., 1., 1., 1.]);
        assert_eq!(data(5, 1), [0.]);
        assert_eq!(data(3, 3), [0., 1., 2.]);
    }
}
