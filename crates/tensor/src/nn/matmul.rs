//! Products of two results, neither of which is a weight.

use rayon::prelude::*;

use crate::cancel::Cancel;
use crate::device::Device;
use crate::elements::allocate;
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

const OP: &str = "matmul";

/// (b, n, k) times (b, k, m), item by item: (b, n, m).
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let ([items, rows, inner], [count, height, width]) = (a.dims3()?, b.dims3()?);
    a.check_device(OP, b)?;
    if items != count || inner != height {
        return Err(TensorError::mismatch(OP, a.shape(), b.shape()));
    }
    let shape = vec![items, rows, width];
    if let Some(left) = a.gpu() {
        let right = b.gpu_in(OP, left.format())?;
        let out = left
            .device()
            .matmul(left, &right, [items, rows, inner, width])?;
        return Ok(Tensor::from_gpu(shape, out));
    }
    let room = a.room_for(&shape)?;
    let mut out = allocate(&shape, 0.0)?;
    if !out.is_empty() && inner > 0 {
        match a.device() {
            Device::Gpu(_) => crate::gpu::has_its_own_way(),
            Device::Cpu | Device::Sim(_) => {
                let (left, right) = (a.values(), b.values());
                let cancel = &Cancel::current();
                out.par_chunks_mut(width)
                    .enumerate()
                    .for_each(|(row, out)| {
                        cancel.stop();
                        let item = row / rows;
                        let factors = &left[row * inner..][..inner];
                        let others = right[item * inner * width..].chunks_exact(width);
                        for (factor, other) in factors.iter().zip(others) {
                            for (o, v) in out.iter_mut().zip(other) {
                                *o += factor * v;
                            }
                        }
                    });
            }
        }
    }
    Ok(Tensor::kept(shape, room, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_has_its_own_product() {
        let a = Tensor::from_fn([2, 2, 3], |i| i as f32).unwrap();
        let b = Tensor::from_fn([2, 3, 2], |i| i as f32 - 2.0).unwrap();
        let out = matmul(&a, &b).unwrap();
        assert_eq!(out.shape(), [2, 2, 2]);
        assert_eq!(
            out.data(),
            [4.0, 7.0, 4.0, 16.0, 130.0, 151.0, 184.0, 214.0]
        );
        assert!(matmul(&a, &Tensor::zeros([1, 3, 2]).unwrap()).is_err());
        assert!(matmul(&a, &Tensor::zeros([2, 2, 2]).unwrap()).is_err());
        let none = matmul(
            &Tensor::zeros([2, 2, 0]).unwrap(),
            &Tensor::zeros([2, 0, 3]).unwrap(),
        );
        assert_eq!(none.unwrap().data(), [0.0; 12]);
    }
}
