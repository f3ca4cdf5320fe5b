//! What samplers do with every element in one step, so that it need not leave the device.

use crate::device::Device;
use crate::elements::reserve;
use crate::error::{Result, TensorError};
use crate::gpu::{GpuBuffer, GpuOps};
use crate::tensor::Tensor;

/// Classifier-free guidance: `uncond + scale * (cond - uncond)`.
pub fn guide(cond: &Tensor, uncond: &Tensor, scale: f32) -> Result<Tensor> {
    zip(
        "guidance",
        [cond, uncond],
        |c, u| u + scale * (c - u),
        |gpu, cond, uncond| gpu.fusions().offer_guide(cond, uncond, scale),
    )
}

/// Euler's step from noise level `sigma` to `next`: `x + (x - denoised) / sigma * (next - sigma)`.
pub fn euler_step(x: &Tensor, denoised: &Tensor, sigma: f32, next: f32) -> Result<Tensor> {
    let change = next - sigma;
    zip(
        "euler",
        [x, denoised],
        |x, d| x + (x - d) / sigma * change,
        |gpu, x, denoised| gpu.fusions().offer_euler(x, denoised, sigma, change),
    )
}

/// A function of the elements of two tensors of one shape, on the processor and on a GPU.
fn zip(
    op: &'static str,
    [a, b]: [&Tensor; 2],
    here: impl Fn(f32, f32) -> f32,
    on_gpu: impl Fn(&dyn GpuOps, &GpuBuffer, &GpuBuffer) -> Result<GpuBuffer>,
) -> Result<Tensor> {
    a.check_device(op, b)?;
    if a.shape() != b.shape() {
        return Err(TensorError::mismatch(op, a.shape(), b.shape()));
    }
    match a.device() {
        Device::Gpu(_) => {
            let first = a.on_gpu()?;
            let second = b.gpu_in(op, first.format())?;
            let found = on_gpu(&**first.device(), first, &second)?;
            Ok(Tensor::from_gpu(a.shape(), found))
        }
        Device::Cpu | Device::Sim(_) => {
            let room = a.room_for(a.shape())?;
            let mut out = reserve(a.shape())?;
            out.extend(a.values().iter().zip(b.values()).map(|(&a, &b)| here(a, b)));
            Ok(Tensor::kept(a.shape(), room, out))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guidance_goes_beyond_the_prompt() {
        let (cond, uncond) = (
            Tensor::from_slice(&[1.0, 2.0]),
            Tensor::from_slice(&[0.5, 3.0]),
        );
        assert_eq!(guide(&cond, &uncond, 3.0).unwrap().data(), [2.0, 0.0]);
        assert!(guide(&cond, &Tensor::scalar(1.0), 3.0).is_err());
    }

    #[test]
    fn a_step_to_no_noise_is_what_was_denoised() {
        let (x, denoised) = (
            Tensor::from_slice(&[4.0, -1.0]),
            Tensor::from_slice(&[1.0, 2.0]),
        );
        assert_eq!(euler_step(&x, &denoised, 2.0, 0.0).unwrap(), denoised);
        assert_eq!(
            euler_step(&x, &denoised, 2.0, 1.0).unwrap().data(),
            [2.5, 0.5]
        );
    }
}
