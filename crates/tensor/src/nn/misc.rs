//! Activations and the small operations between layers.

use rayon::prelude::*;

use crate::buffer::or_raise;
use crate::cpu::isa::isa;
use crate::cpu::math::{self, Function};
use crate::device::Device;
use crate::elements::{allocate, element_count};
use crate::error::{Result, TensorError};
use crate::gpu::{Activation, Format, RopePairs};
use crate::tensor::Tensor;

/// What follows a layer, element by element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Act {
    #[default]
    None,
    /// `x * sigmoid(x)`
    Silu,
    /// The exact one, by the error function.
    Gelu,
    /// The approximation by tanh.
    GeluTanh,
    /// `x * sigmoid(1.702 x)`
    QuickGelu,
    Relu,
    /// A fifth of what is negative.
    Leaky,
}

/// Elements that one task works on: fixed, so that nothing depends on the number of threads.
const CHUNK: usize = 1 << 14;

fn map<F: Function>(mut x: Tensor, activation: Activation) -> Tensor {
    let isa = isa();
    match x.device() {
        Device::Gpu(_) => return or_raise(map_on_gpu(x, activation)),
        Device::Cpu | Device::Sim(_) => or_raise(x.values_mut())
            .par_chunks_mut(CHUNK)
            .for_each(|chunk| math::map::<F>(isa, chunk)),
    }
    x
}

fn map_on_gpu(x: Tensor, activation: Activation) -> Result<Tensor> {
    x.gpu_replaced("activate", |x, out| x.device().activate(x, out, activation))
}

/// An activation of every element; writes in place where nobody else holds the tensor.
pub fn activate(x: Tensor, act: Act) -> Tensor {
    match act {
        Act::None => x,
        Act::Silu => map::<math::Silu>(x, Activation::Silu),
        Act::Gelu => map::<math::Gelu>(x, Activation::Gelu),
        Act::GeluTanh => map::<math::GeluTanh>(x, Activation::GeluTanh),
        Act::QuickGelu => map::<math::QuickGelu>(x, Activation::QuickGelu),
        Act::Relu => map::<math::Relu>(x, Activation::Relu),
        Act::Leaky => map::<math::Leaky>(x, Activation::Leaky),
    }
}

/// `x * sigmoid(x)`
pub fn silu(x: &Tensor) -> Tensor {
    activate(x.clone(), Act::Silu)
}

/// `x` times the share of a normal distribution below it.
pub fn gelu(x: &Tensor) -> Tensor {
    activate(x.clone(), Act::Gelu)
}

/// GELU approximated by tanh.
pub fn gelu_tanh(x: &Tensor) -> Tensor {
    activate(x.clone(), Act::GeluTanh)
}

/// `x * sigmoid(1.702 x)`
pub fn quick_gelu(x: &Tensor) -> Tensor {
    activate(x.clone(), Act::QuickGelu)
}

pub fn relu(x: &Tensor) -> Tensor {
    activate(x.clone(), Act::Relu)
}

/// `x tanh(ln(1 + e^x))`
pub fn mish(x: &Tensor) -> Tensor {
    map::<math::Mish>(x.clone(), Activation::Mish)
}

pub fn tanh(x: &Tensor) -> Tensor {
    map::<math::Tanh>(x.clone(), Activation::Tanh)
}

pub fn sigmoid(x: &Tensor) -> Tensor {
    map::<math::Sigmoid>(x.clone(), Activation::Sigmoid)
}

/// The first half of the last dimension times the GELU of the second.
pub fn geglu(x: &Tensor) -> Result<Tensor> {
    let width = last(x, "geglu")?;
    if !width.is_multiple_of(2) {
        return Err(TensorError::invalid(
            "geglu",
            format!("{width} channels cannot be halved"),
        ));
    }
    let half = width / 2;
    let mut shape = x.shape().to_vec();
    shape[x.rank() - 1] = half;
    let (room, values) = match x.device() {
        Device::Gpu(_) => {
            let elements = x.on_gpu()?;
            let found = elements.device().fusions().offer_geglu(elements, half)?;
            return Ok(Tensor::from_gpu(shape, found));
        }
        Device::Cpu | Device::Sim(_) => (x.room_for(&shape)?, x.values()),
    };
    let mut out = allocate(&shape, 0.0)?;
    if half > 0 {
        let isa = isa();
        out.par_chunks_mut(half)
            .zip(values.par_chunks(width))
            .for_each(|(out, row)| {
                let (values, gates) = row.split_at(half);
                math::geglu_row(isa, values, gates, out);
            });
    }
    Ok(Tensor::kept(shape, room, out))
}

/// Softmax over the last dimension. A row of minus infinities gives NaN.
pub fn softmax_last(x: &Tensor) -> Result<Tensor> {
    let width = last(x, "softmax")?;
    let mut x = x.clone();
    if width > 0 {
        let isa = isa();
        match x.device() {
            Device::Gpu(_) if x.is_empty() => {}
            Device::Gpu(_) => {
                return x.gpu_replaced("softmax", |x, out| x.device().softmax(x, out, width));
            }
            Device::Cpu | Device::Sim(_) => x
                .values_mut()?
                .par_chunks_mut(width)
                .for_each(|row| math::softmax_row(isa, row)),
        }
    }
    Ok(x)
}

/// Joins pictures (or sequences) along the last dimension.
pub fn concat_channels(parts: &[&Tensor]) -> Result<Tensor> {
    let Some(first) = parts.first() else {
        return Err(TensorError::invalid("concat", "nothing to join"));
    };
    last(first, "concat")?;
    let outer = &first.shape()[..first.rank() - 1];
    let mut width = 0;
    for part in parts {
        first.check_device("concat", part)?;
        if part.rank() != first.rank() || part.shape()[..first.rank() - 1] != *outer {
            return Err(TensorError::mismatch("concat", first.shape(), part.shape()));
        }
        width += part.shape()[first.rank() - 1];
    }
    let mut shape = outer.to_vec();
    shape.push(width);
    let room = match first.device() {
        Device::Gpu(_) => {
            let rows = element_count(&shape[..shape.len() - 1])?;
            let joined = Tensor::cat_on_gpu("concat", rows, parts)?;
            return Ok(Tensor::from_gpu(shape, joined));
        }
        Device::Cpu | Device::Sim(_) => first.room_for(&shape)?,
    };
    let lists: Vec<(&[f32], usize)> = parts
        .iter()
        .map(|part| (part.values(), part.shape()[part.rank() - 1]))
        .collect();
    let mut out = allocate(&shape, 0.0)?;
    if !out.is_empty() {
        let rows = CHUNK.div_ceil(width);
        out.par_chunks_mut(rows * width)
            .enumerate()
            .for_each(|(block, out)| {
                for (i, out) in out.chunks_exact_mut(width).enumerate() {
                    let mut at = 0;
                    for &(values, c) in &lists {
                        let row = &values[(block * rows + i) * c..][..c];
                        out[at..at + c].copy_from_slice(row);
                        at += c;
                    }
                }
            });
    }
    Ok(Tensor::kept(shape, room, out))
}

/// (b, h, w, c) to another height and width: every target takes the source at `floor(i * in / out)`.
pub fn upsample_nearest(x: &Tensor, height: usize, width: usize) -> Result<Tensor> {
    let [b, h, w, c] = x.dims4()?;
    let shape = vec![b, height, width, c];
    let (room, values) = match x.device() {
        Device::Gpu(_) => {
            if element_count(&shape)? == 0 {
                return Tensor::zeros_on(&x.device(), shape);
            }
            if h == 0 || w == 0 {
                return Err(TensorError::mismatch("upsample", x.shape(), &shape));
            }
            let (elements, sizes) = (x.on_gpu()?, [b, h, w, c]);
            let gpu = elements.device();
            let found = gpu
                .fusions()
                .offer_upsample_nearest(elements, sizes, [height, width])?;
            return Ok(Tensor::from_gpu(shape, found));
        }
        Device::Cpu | Device::Sim(_) => (x.room_for(&shape)?, x.values()),
    };
    let mut out = allocate(&shape, 0.0)?;
    if out.is_empty() {
        return Ok(Tensor::kept(shape, room, out));
    }
    if h == 0 || w == 0 {
        return Err(TensorError::mismatch("upsample", x.shape(), &shape));
    }
    out.par_chunks_mut(width * c)
        .enumerate()
        .for_each(|(row, out)| {
            let (item, y) = (row / height, row % height);
            let source = &values[(item * h + y * h / height) * w * c..][..w * c];
            for (i, out) in out.chunks_exact_mut(c).enumerate() {
                out.copy_from_slice(&source[i * w / width * c..][..c]);
            }
        });
    Ok(Tensor::kept(shape, room, out))
}

/// Means of squares of `size` by `size` pixels, side by side; what fills no square at the edge is left out.
pub fn avg_pool2d(x: &Tensor, size: usize) -> Result<Tensor> {
    let [b, h, w, c] = x.dims4()?;
    if size == 0 {
        return Err(TensorError::invalid("avg_pool2d", "the size is 0"));
    }
    let (oh, ow) = (h / size, w / size);
    let shape = vec![b, oh, ow, c];
    let (room, values) = match x.device() {
        Device::Gpu(_) => {
            let elements = x.on_gpu()?;
            let gpu = elements.device();
            let found = gpu.avg_pool2d(elements, [b, h, w, c], size)?;
            return Ok(Tensor::from_gpu(shape, found));
        }
        Device::Cpu | Device::Sim(_) => (x.room_for(&shape)?, x.values()),
    };
    let mut out = allocate(&shape, 0.0)?;
    if out.is_empty() {
        return Ok(Tensor::kept(shape, room, out));
    }
    let share = 1.0 / (size * size) as f32;
    out.par_chunks_mut(ow * c)
        .enumerate()
        .for_each(|(row, out)| {
            let (item, y) = (row / oh, row % oh);
            for (i, out) in out.chunks_exact_mut(c).enumerate() {
                for dy in 0..size {
                    let first = ((item * h + y * size + dy) * w + i * size) * c;
                    for pixel in values[first..first + size * c].chunks_exact(c) {
                        for (o, v) in out.iter_mut().zip(pixel) {
                            *o += v;
                        }
                    }
                }
                for o in out {
                    *o *= share;
                }
            }
        });
    Ok(Tensor::kept(shape, room, out))
}

/// Turns pairs of neighbouring channels: (x0, x1) by the angle of the first pair, (x2, x3) by that of the second.
///
/// `x` is (b, n, heads * d), `cos` and `sin` are (n, d / 2) or (b, n, d / 2).
pub fn rope_interleaved(x: &Tensor, heads: usize, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let pair = |i, _| (2 * i, 2 * i + 1);
    rope(x, heads, [cos, sin], RopePairs::Neighbours, pair)
}

/// Like [`rope_interleaved`], but channel `i` of a head is paired with channel `i + d / 2`.
pub fn rope_half(x: &Tensor, heads: usize, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let pair = |i, half| (i, i + half);
    rope(x, heads, [cos, sin], RopePairs::Halves, pair)
}

fn rope(
    x: &Tensor,
    heads: usize,
    [cos, sin]: [&Tensor; 2],
    pairs: RopePairs,
    pair: impl Fn(usize, usize) -> (usize, usize) + Sync,
) -> Result<Tensor> {
    let [b, n, width] = x.dims3()?;
    x.check_device("rope", cos)?;
    x.check_device("rope", sin)?;
    if heads == 0 || !width.is_multiple_of(2 * heads) {
        return Err(TensorError::invalid(
            "rope",
            format!("{width} channels do not make pairs in {heads} heads"),
        ));
    }
    let half = width / heads / 2;
    let per_item = cos.shape() == [b, n, half];
    if (!per_item && cos.shape() != [n, half]) || cos.shape() != sin.shape() {
        return Err(TensorError::mismatch("rope", x.shape(), cos.shape()));
    }
    let room = match x.device() {
        Device::Gpu(_) => {
            if x.is_empty() {
                return Ok(x.clone());
            }
            // Angles need all their bits, whatever the format of what they turn.
            let cos = cos.gpu_in("rope", Format::F32)?;
            let sin = sin.gpu_in("rope", Format::F32)?;
            let elements = x.on_gpu()?;
            let gpu = elements.device();
            let found = gpu.rope(elements, [heads, half], [&cos, &sin], pairs)?;
            return Ok(Tensor::from_gpu(x.shape(), found));
        }
        Device::Cpu | Device::Sim(_) => x.room_for(x.shape())?,
    };
    let (values, cosines, sines) = (x.values(), cos.values(), sin.values());
    let mut out = allocate(x.shape(), 0.0)?;
    if !out.is_empty() {
        out.par_chunks_mut(width)
            .enumerate()
            .for_each(|(row, out)| {
                let angles = if per_item { row } else { row % n } * half;
                let cos = &cosines[angles..][..half];
                let sin = &sines[angles..][..half];
                let input = &values[row * width..][..width];
                for (out, input) in out
                    .chunks_exact_mut(2 * half)
                    .zip(input.chunks_exact(2 * half))
                {
                    for i in 0..half {
                        let (first, second) = pair(i, half);
                        let (u, v) = (input[first], input[second]);
                        out[first] = u * cos[i] - v * sin[i];
                        out[second] = u * sin[i] + v * cos[i];
                    }
                }
            });
    }
    Ok(Tensor::kept(x.shape(), room, out))
}

/// Size of the last dimension.
pub(super) fn last(x: &Tensor, op: &'static str) -> Result<usize> {
    x.shape()
        .last()
        .copied()
        .ok_or_else(|| TensorError::rank(op, "at least 1", x.shape()))
}
