//! Weights changed by low-rank matrices: in f32, then in the format that they are kept in.

use super::{product, small, weights, whole};
use crate::cuda::launch::PlainLaunch;
use crate::cuda::launches::elementwise::{Convert, ConvertKernel};
use crate::cuda::launches::relayout::{AddScaled, RoundByChance};
use crate::cuda::memory::convert;
use crate::cuda::staging::Moment;
use crate::cuda::{Address, CudaDevice, CudaValue, Format, GpuBuffer, OnCard, Pointer, Shape};
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::formats;
use crate::nn::Growth;

const OP: &str = "merge";

/// Whether kernels write a format.
pub(crate) fn can_write(dtype: Dtype) -> bool {
    matches!(
        dtype,
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::F8E4M3 | Dtype::F8E5M2
    )
}

fn start(device: &CudaDevice, count: usize, launch: impl PlainLaunch) -> Result<()> {
    let blocks = count.div_ceil(1024).clamp(1, 1 << 14) as u32;
    device.launch_plain(Moment::InTurn, Shape::row(blocks, 256), launch)
}

/// Whether it is a matrix whose elements kernels read: rotations are undone by the processor alone.
pub(crate) fn can_read(weight: &CudaValue) -> bool {
    let plain = weight.matrix().is_some_and(|shape| shape.taps == 1);
    plain && weights::rotation(weight) == 0
}

/// A weight (out, channels) that kernels [`can_read`] with what it grows by, in f32.
pub(crate) fn grown(weight: &CudaValue, growths: &[Growth]) -> Result<GpuBuffer> {
    let shape = weights::shape(weight)?;
    let device = weight.device();
    let sum = match weights::elements(weight, Format::F32, shape.channels)? {
        weights::Elements::Made(buffer) => buffer,
        weights::Elements::Kept(value, format) => {
            let copy = device.buffer(shape.out * shape.channels, Format::F32)?;
            convert((value.address(), format), &copy)?;
            copy
        }
        // Bytes for products of bytes, and other forms, which nothing can be added to.
        weights::Elements::Pairs(..) | weights::Elements::Form(_) => {
            return Err(TensorError::invalid(OP, "the weight is not a plain matrix"));
        }
    };
    for growth in growths {
        let [up, down] = [&growth.up, &growth.down].map(|of| -> Result<(GpuBuffer, usize)> {
            let values = of.to_f32()?;
            let rows = of.shape().first().copied().unwrap_or(0);
            Ok((device.upload_values(values.data(), Format::F32)?, rows))
        });
        let ((up, rows), (down, rank)) = (up?, down?);
        let fits = rows * rank == up.len()
            && rank * shape.channels == down.len()
            && growth.first + rows <= shape.out;
        if !fits {
            let (up, down) = (growth.up.shape(), growth.down.shape());
            return Err(TensorError::mismatch(OP, up, down));
        }
        if up.len() == 0 || down.len() == 0 {
            continue;
        }
        let change = product::matmul(&up, &down, [1, rows, rank, shape.channels])?;
        let to = sum.address() + (growth.first * shape.channels * 4) as u64;
        let add = AddScaled {
            to: Pointer::at(to),
            from: (&change).into(),
            by: growth.scale,
            count: whole(change.len()),
        };
        start(device, change.len(), add)?;
    }
    Ok(sum)
}

/// Writes values to an address in a format, byte for byte as the processor would.
pub(crate) fn write(values: &GpuBuffer, to: u64, dtype: Dtype, seed: u64) -> Result<()> {
    let device = values.card();
    let count = values.len();
    let format = match dtype {
        Dtype::F32 => Format::F32,
        Dtype::F16 => Format::F16,
        Dtype::Bf16 => Format::Bf16,
        Dtype::F8E4M3 | Dtype::F8E5M2 => {
            let steps = formats::f8_steps(dtype);
            let known = device.upload_values(&steps, Format::F32)?;
            let round = RoundByChance {
                from: values.into(),
                to: Pointer::at(to),
                steps: (&known).into(),
                number: small(steps.len())?,
                seed,
                count: whole(count),
            };
            return start(device, count, round);
        }
        _ => {
            let reason = format!("a GPU does not write {}", dtype.name());
            return Err(TensorError::invalid(OP, reason));
        }
    };
    let convert = Convert {
        kernel: ConvertKernel::FromF32,
        from: values.into(),
        to: Pointer::at(to),
        total: whole(count),
    };
    let blocks = count.div_ceil(1024).clamp(1, 1 << 16) as u32;
    device.launch(format, Shape::row(blocks, 256), convert)
}
