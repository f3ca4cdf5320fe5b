//! Attention without a score matrix.

use rayon::prelude::*;

use crate::cancel::Cancel;
use crate::cpu::attention::{self as kernel, Masking, Sizes};
use crate::cpu::isa::{isa, tiles};
use crate::cpu::math;
use crate::device::Device;
use crate::elements::allocate;
use crate::error::{Result, TensorError};
use crate::gpu::GpuMask;
use crate::tensor::Tensor;

/// Which keys a query may look at.
#[derive(Debug, Clone, Copy)]
pub enum Mask<'a> {
    None,
    /// Only those at its own position and before.
    Causal,
    /// Added to the scores: (b or 1, heads or 1, nq or 1, nk), or (nq or 1, nk).
    Add(&'a Tensor),
}

fn sizes(q: &Tensor, k: &Tensor, heads: usize) -> Result<Sizes> {
    let ([batch, queries, width], [b, keys, w]) = (q.dims3()?, k.dims3()?);
    q.check_device("attention", k)?;
    if b != batch || w != width {
        return Err(TensorError::mismatch("attention", q.shape(), k.shape()));
    }
    if heads == 0 || !width.is_multiple_of(heads) {
        return Err(TensorError::invalid(
            "attention",
            format!("{width} channels do not make {heads} heads"),
        ));
    }
    Ok(Sizes {
        batch,
        queries,
        keys,
        heads,
        d: width / heads,
    })
}

/// Steps of a mask over items, heads and queries; keys are next to each other.
fn mask_steps(mask: &Tensor, s: &Sizes) -> Result<[usize; 3]> {
    let shape = match *mask.shape() {
        [nq, nk] => [1, 1, nq, nk],
        [b, h, nq, nk] => [b, h, nq, nk],
        _ => return Err(TensorError::rank("attention mask", "2 or 4", mask.shape())),
    };
    let full = [s.batch, s.heads, s.queries, s.keys];
    let fits = shape[3] == full[3] && (0..3).all(|i| shape[i] == full[i] || shape[i] == 1);
    if !fits {
        return Err(TensorError::mismatch("attention", mask.shape(), &full));
    }
    let step = |dim: usize, size: usize| if shape[dim] == 1 { 0 } else { size };
    Ok([
        step(0, shape[1] * shape[2] * s.keys),
        step(1, shape[2] * s.keys),
        step(2, s.keys),
    ])
}

/// Softmax of `q k^T * scale + mask`, times `v`, head by head.
///
/// `q` is (b, nq, heads * d), `k` and `v` are (b, nk, heads * d); the result has the shape of `q`. `scale` is one over
/// the root of `d` unless given. A query that may look at nothing gives NaN; without any key the result is zero.
pub fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    heads: usize,
    mask: Mask<'_>,
    scale: Option<f32>,
) -> Result<Tensor> {
    let s = sizes(q, k, heads)?;
    q.check_device("attention", v)?;
    if v.shape() != k.shape() {
        return Err(TensorError::mismatch("attention", k.shape(), v.shape()));
    }
    let steps = match mask {
        Mask::None | Mask::Causal => [0; 3],
        Mask::Add(mask) => {
            q.check_device("attention", mask)?;
            mask_steps(mask, &s)?
        }
    };
    if q.is_empty() || s.keys == 0 {
        return Tensor::zeros_on(&q.device(), q.shape());
    }
    let scale = scale.unwrap_or_else(|| 1.0 / (s.d as f32).sqrt());
    match q.device() {
        Device::Gpu(_) => gpu_attention(s, [q, k, v], scale, (mask, steps)),
        Device::Cpu | Device::Sim(_) => {
            let masking = match mask {
                Mask::None => Masking::None,
                Mask::Causal => Masking::Causal,
                Mask::Add(mask) => Masking::Add {
                    data: mask.values(),
                    steps,
                },
            };
            let room = q.room_for(q.shape())?;
            let tiles = tiles() && kernel::suits_tiles(s);
            let out = kernel::attention((isa(), tiles), s, [q, k, v], scale, masking)?;
            Ok(Tensor::kept(q.shape(), room, out))
        }
    }
}

fn gpu_attention(
    s: Sizes,
    [q, k, v]: [&Tensor; 3],
    scale: f32,
    (mask, steps): (Mask<'_>, [usize; 3]),
) -> Result<Tensor> {
    const OP: &str = "attention";
    let queries = q.gpu_on(OP)?;
    let format = queries.format();
    let (keys, values) = (k.gpu_in(OP, format)?, v.gpu_in(OP, format)?);
    let added = match mask {
        Mask::None | Mask::Causal => None,
        Mask::Add(mask) => Some(mask.gpu_in(OP, format)?),
    };
    let mask = match (mask, &added) {
        (_, Some(data)) => GpuMask::Add { data, steps },
        (Mask::Causal, None) => GpuMask::Causal,
        (Mask::None | Mask::Add(_), None) => GpuMask::None,
    };
    let gpu = queries.device();
    let out = gpu.attention(s, [queries, &keys, &values], scale, mask)?;
    Ok(Tensor::from_gpu(q.shape(), out))
}

/// The softmax of `q k^T / sqrt(d)` itself, (b * heads, nq, nk).
pub fn attention_probabilities(q: &Tensor, k: &Tensor, heads: usize) -> Result<Tensor> {
    let s = sizes(q, k, heads)?;
    let shape = vec![s.batch * s.heads, s.queries, s.keys];
    let scale = 1.0 / (s.d as f32).sqrt();
    let (queries, all_keys) = match q.device() {
        Device::Gpu(_) => {
            let queries = q.gpu_on("attention")?;
            let keys = k.gpu_in("attention", queries.format())?;
            let gpu = queries.device();
            let out = gpu.probabilities(s, [queries, &keys], scale)?;
            return Ok(Tensor::from_gpu(shape, out));
        }
        Device::Cpu | Device::Sim(_) => (q.values(), k.values()),
    };
    let room = q.room_for(&shape)?;
    let mut out = allocate(&shape, 0.0)?;
    if !out.is_empty() {
        let isa = isa();
        let width = s.heads * s.d;
        let cancel = &Cancel::current();
        out.par_chunks_mut(s.keys)
            .enumerate()
            .for_each(|(row, out)| {
                cancel.stop();
                let (item, head) = (row / s.queries / s.heads, row / s.queries % s.heads);
                let query = item * s.queries + row % s.queries;
                let q = &queries[query * width + head * s.d..][..s.d];
                for (key, o) in out.iter_mut().enumerate() {
                    let first = (item * s.keys + key) * width + head * s.d;
                    *o = kernel::dot(isa, q, &all_keys[first..first + s.d]) * scale;
                }
                math::softmax_row(isa, out);
            });
    }
    Ok(Tensor::kept(shape, room, out))
}
