//! Arithmetic element by element on a GPU.

use super::arrange::{RANK, WalkDim, gather, merged, positions, walk_words};
use super::{grid, launch_packs, pack, whole};
use crate::arrange::broadcast_strides;
use crate::cuda::launches::elementwise as launches;
use crate::cuda::{GpuBuffer, OnCard};
use crate::elementwise::{Binary, Unary};
use crate::error::Result;
use crate::gpu::Activation;

impl Unary {
    /// Number and parameters of the function in the kernel.
    fn on_gpu(self) -> (i32, f32, f32) {
        match self {
            Self::Add(by) => (0, by, 0.0),
            Self::Sub(by) => (1, by, 0.0),
            Self::Mul(by) => (2, by, 0.0),
            Self::Div(by) => (3, by, 0.0),
            Self::SubFrom(from) => (4, from, 0.0),
            Self::Abs => (5, 0.0, 0.0),
            Self::Sqrt => (6, 0.0, 0.0),
            Self::Clamp(low, high) => (7, low, high),
            Self::Round => (8, 0.0, 0.0),
        }
    }
}

impl Binary {
    /// Number and weight of the operation in the kernel.
    fn on_gpu(self) -> (i32, f32) {
        match self {
            Self::Add => (0, 0.0),
            Self::Sub => (1, 0.0),
            Self::Mul => (2, 0.0),
            Self::Div => (3, 0.0),
            Self::Min => (4, 0.0),
            Self::Max => (5, 0.0),
            Self::Lerp(weight) => (6, weight),
        }
    }
}

/// Two tensors of one format, each with its shape, stretched to the shape they have together.
pub(crate) fn binary(
    (shape_a, a): (&[usize], &GpuBuffer),
    (shape_b, b): (&[usize], &GpuBuffer),
    shape: &[usize],
    op: Binary,
) -> Result<GpuBuffer> {
    let (device, format) = (a.card(), a.format());
    let out = device.buffer(shape.iter().product(), format)?;
    if out.len() == 0 {
        return Ok(out);
    }
    let steps =
        |of: &[usize]| broadcast_strides(of, shape).expect("broadcast_shape accepted both shapes");
    let (steps_a, steps_b) = (steps(shape_a), steps(shape_b));
    let dims = shape.iter().zip(&steps_a).zip(&steps_b);
    let mut dims = merged(dims.map(|((&size, &a), &b)| WalkDim { size, a, b }));
    if dims.len() > RANK {
        // No network has so many dimensions: stretched first, both are one.
        let (a, b) = (
            gather(a, shape, &steps_a, 0)?,
            gather(b, shape, &steps_b, 0)?,
        );
        return binary((shape, &a), (shape, &b), shape, op);
    }
    let width = pack(format);
    let last = dims.len() - 1;
    let in_packs = {
        let inner = dims[last];
        let fits = |inner: isize, step: isize| inner == 0 || step % width as isize == 0;
        let outer = &dims[..last];
        matches!((inner.a, inner.b), (0 | 1, 0 | 1))
            && (outer.is_empty() || inner.size.is_multiple_of(width))
            && outer
                .iter()
                .all(|dim| fits(inner.a, dim.a) && fits(inner.b, dim.b))
    };
    let total = positions(&dims);
    let (op, weight) = op.on_gpu();
    if in_packs {
        let inner = &mut dims[last];
        inner.size = inner.size.div_ceil(width);
        inner.a *= width as isize;
        inner.b *= width as isize;
    }
    let threads = positions(&dims);
    let kernel = match (in_packs, threads >> 31) {
        (true, _) => launches::BinaryKernel::BinaryPacks,
        (false, 0) => launches::BinaryKernel::Binary,
        (false, _) => launches::BinaryKernel::BinaryWide,
    };
    let combine = launches::Binary {
        kernel,
        to: (&out).into(),
        a: a.into(),
        b: b.into(),
        total: whole(total),
        op,
        weight,
        walk: walk_words(&dims),
    };
    device.launch(format, grid(threads)?, combine)?;
    Ok(out)
}

/// A function of every element.
pub(crate) fn unary(from: &GpuBuffer, op: Unary) -> Result<GpuBuffer> {
    let out = from.card().buffer(from.len(), from.format())?;
    start_unary(&out, from, op.on_gpu())?;
    Ok(out)
}

/// An activation of every element, into a buffer that may be the same.
pub(crate) fn activate(from: &GpuBuffer, to: &GpuBuffer, activation: Activation) -> Result<()> {
    start_unary(to, from, (activation as i32, 0.0, 0.0))
}

fn start_unary(to: &GpuBuffer, from: &GpuBuffer, (op, p, q): (i32, f32, f32)) -> Result<()> {
    let unary = launches::Unary {
        to: to.into(),
        from: from.into(),
        total: whole(from.len()),
        op,
        p,
        q,
    };
    launch_packs(to, unary)
}

/// `uncond + scale * (cond - uncond)`. Both have one format and length.
pub(crate) fn guide(cond: &GpuBuffer, uncond: &GpuBuffer, scale: f32) -> Result<GpuBuffer> {
    let out = cond.card().buffer(cond.len(), cond.format())?;
    let guide = launches::Guide {
        to: (&out).into(),
        cond: cond.into(),
        uncond: uncond.into(),
        total: whole(cond.len()),
        scale,
    };
    launch_packs(&out, guide)?;
    Ok(out)
}

/// `x + (x - denoised) / sigma * change`. Both have one format and length.
pub(crate) fn euler(
    x: &GpuBuffer,
    denoised: &GpuBuffer,
    sigma: f32,
    change: f32,
) -> Result<GpuBuffer> {
    let out = x.card().buffer(x.len(), x.format())?;
    let euler = launches::Euler {
        to: (&out).into(),
        x: x.into(),
        denoised: denoised.into(),
        total: whole(x.len()),
        sigma,
        change,
    };
    launch_packs(&out, euler)?;
    Ok(out)
}
