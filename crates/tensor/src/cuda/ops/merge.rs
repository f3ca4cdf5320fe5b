//! Weights changed by low-rank matrices: in f32, then in the format that they are kept in.

use super::{product, weights};
use crate::cuda::memory::convert;
use crate::cuda::{Address, Args, CudaDevice, CudaValue, Format, GpuBuffer, Kernel, OnCard};
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

fn start(device: &CudaDevice, name: &'static str, count: usize, args: &Args) -> Result<()> {
    let kernel = Kernel {
        module: "relayout",
        format: Format::F32,
        name,
    };
    let blocks = count.div_ceil(1024).clamp(1, 1 << 14) as u32;
    device.launch(kernel, [blocks, 1, 1], 256, 0, args)
}

/// A weight (out, channels) with what it grows by, in f32. None for one that is kept in a way that only the processor undoes.
pub(crate) fn grown(weight: &CudaValue, growths: &[Growth]) -> Result<Option<GpuBuffer>> {
    let shape = weights::shape(weight)?;
    if shape.taps != 1 || weights::rotation(weight) > 0 {
        return Ok(None);
    }
    let device = weight.device();
    let sum = match weights::elements(weight, Format::F32, shape.channels)? {
        weights::Elements::Made(buffer) => buffer,
        weights::Elements::Kept(value, format) => {
            let copy = device.buffer(shape.out * shape.channels, Format::F32)?;
            convert((value.address(), format), &copy)?;
            copy
        }
        // Bytes for products of bytes, and other forms, which nothing can be added to.
        weights::Elements::Pairs(..) | weights::Elements::Form(_) => return Ok(None),
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
        let args = Args::new()
            .pointer(to)
            .pointer(change.address())
            .float(growth.scale)
            .long(change.len() as i64);
        start(device, "add_scaled", change.len(), &args)?;
    }
    Ok(Some(sum))
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
            let args = Args::new()
                .pointer(values.address())
                .pointer(to)
                .pointer(known.address())
                .int(steps.len() as i32)
                .long(seed.cast_signed())
                .long(count as i64);
            return start(device, "round_by_chance", count, &args);
        }
        _ => {
            let reason = format!("a GPU does not write {}", dtype.name());
            return Err(TensorError::invalid(OP, reason));
        }
    };
    let kernel = Kernel {
        module: "elementwise",
        format,
        name: "from_f32",
    };
    let args = Args::new()
        .pointer(values.address())
        .pointer(to)
        .long(count as i64);
    let blocks = count.div_ceil(1024).clamp(1, 1 << 16) as u32;
    device.launch(kernel, [blocks, 1, 1], 256, 0, &args)
}
