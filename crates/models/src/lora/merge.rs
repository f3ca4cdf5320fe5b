//! The arithmetic of adapters. Everything is f32; scales are multiplied in f64 first, as the reference's are.

use fresco_tensor::nn::Linear;
use fresco_tensor::{Axes, Buffer, Device, Result, Stored, Tensor, TensorError};

use super::adapter::{Adapter, Factor, Kind, glora_layout};
use crate::patch::{MergeDtype, OftStrength, Reorder};

/// Products below this many multiplications are not worth packing a matrix for.
const SMALL: usize = 1 << 15;

/// `(m, k) x (k, n)`. Every element is summed in the same order whatever the number of threads.
pub(super) fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (&[m, k], &[also, n]) = (a.shape(), b.shape()) else {
        return Err(mismatch("matmul", a, b));
    };
    if k != also {
        return Err(mismatch("matmul", a, b));
    }
    if m.saturating_mul(n).saturating_mul(k) > SMALL {
        let columns = Stored::from(&b.transpose(0, 1)?);
        return Linear::new(&columns, None, &Device::cpu())?.forward(a);
    }
    let mut out = Tensor::zeros([m, n])?;
    if n == 0 {
        return Ok(out);
    }
    for (i, row) in out.data_mut().chunks_exact_mut(n).enumerate() {
        for inner in 0..k {
            let factor = a.data()[i * k + inner];
            for (o, &v) in row.iter_mut().zip(&b.data()[inner * n..]) {
                *o += factor * v;
            }
        }
    }
    Ok(out)
}

fn mismatch(op: &'static str, a: &Tensor, b: &Tensor) -> TensorError {
    TensorError::ShapeMismatch {
        op,
        left: a.shape().to_vec(),
        right: b.shape().to_vec(),
    }
}

fn invalid(op: &'static str, reason: String) -> TensorError {
    TensorError::Invalid { op, reason }
}

/// A tensor with all dimensions after the first taken together.
fn flat(t: &Stored) -> Result<Tensor> {
    flatten(&t.to_f32()?)
}

fn flatten(t: &Tensor) -> Result<Tensor> {
    let rows = t.dim(0)?;
    t.reshape([rows, t.len() / rows.max(1)])
}

/// `core (i,j,k,l), b (j,r), a (i,p) -> (p,r,k,l)`.
fn tucker(a: &Stored, b: &Stored, core: &Stored) -> Result<Tensor> {
    let core = core.to_f32()?;
    let [i, j, k, l] = core.dims4()?;
    let (a, b) = (a.to_f32()?, b.to_f32()?);
    let (p, r) = (a.dim(1)?, b.dim(1)?);
    // Over j: (r,j) x (j, i k l).
    let by_j = core.permute(&[1, 0, 2, 3])?.reshape([j, i * k * l])?;
    let step = matmul(&b.transpose(0, 1)?, &by_j)?; // (r, i k l)
    let by_i = step
        .reshape([r, i, k, l])?
        .permute(&[1, 0, 2, 3])?
        .reshape([i, r * k * l])?;
    matmul(&a.transpose(0, 1)?, &by_i)?.reshape([p, r, k, l])
}

fn factor(f: &Factor) -> Result<Tensor> {
    match f {
        Factor::Whole(w) => w.to_f32(),
        Factor::Product { a, b, core: None } => matmul(&flat(a)?, &flat(b)?),
        Factor::Product {
            a,
            b,
            core: Some(core),
        } => tucker(a, b, core),
    }
}

/// Kronecker product of tensors of the same rank.
fn kron(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let rank = a.rank();
    let shape: Vec<usize> = a
        .shape()
        .iter()
        .zip(b.shape())
        .map(|(x, y)| x * y)
        .collect();
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for d in 0..rank {
        left.extend([a.shape()[d], 1]);
        right.extend([1, b.shape()[d]]);
    }
    a.reshape(left)?.mul(&b.reshape(right)?)?.reshape(shape)
}

/// Inverse of one square matrix, by elimination with the largest pivot.
fn inverse(matrix: &[f32], n: usize) -> Result<Vec<f32>> {
    let width = 2 * n;
    let mut rows = vec![0.0f64; n * width];
    for i in 0..n {
        for j in 0..n {
            rows[i * width + j] = f64::from(matrix[i * n + j]);
        }
        rows[i * width + n + i] = 1.0;
    }
    for column in 0..n {
        let pivot = (column..n)
            .max_by(|&x, &y| {
                let size = |row: usize| rows[row * width + column].abs();
                size(x).total_cmp(&size(y))
            })
            .expect("a column of a square matrix has rows left");
        let value = rows[pivot * width + column];
        if value == 0.0 || !value.is_finite() {
            return Err(invalid("rotation", "a block cannot be inverted".to_owned()));
        }
        for j in 0..width {
            rows.swap(pivot * width + j, column * width + j);
            rows[column * width + j] /= value;
        }
        for i in (0..n).filter(|&i| i != column) {
            let by = rows[i * width + column];
            if by != 0.0 {
                for j in 0..width {
                    rows[i * width + j] -= by * rows[column * width + j];
                }
            }
        }
    }
    Ok((0..n * n)
        .map(|at| rows[at / n * width + n + at % n] as f32)
        .collect())
}

/// The rotations `(I + Q)(I - Q)^-1` with `Q = B - B^T`, whose norm is held below alpha. Blocks are the last two
/// dimensions; the result is `(blocks, b, b)`.
fn rotations(blocks: &Stored, alpha: Option<f64>) -> Result<(Tensor, usize)> {
    let blocks = blocks.to_f32()?;
    let b = *blocks
        .shape()
        .last()
        .ok_or_else(|| invalid("rotation", "no blocks".to_owned()))?;
    let count = blocks.len() / (b * b).max(1);
    let data = blocks.data();
    let mut q = vec![0.0f32; data.len()];
    for block in 0..count {
        for i in 0..b {
            for j in 0..b {
                let at = block * b * b;
                q[at + i * b + j] = data[at + i * b + j] - data[at + j * b + i];
            }
        }
    }
    let alpha = alpha.unwrap_or(0.0);
    if alpha > 0.0 {
        let norm = q.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt() as f32 + 1e-8;
        if f64::from(norm) > alpha {
            for v in &mut q {
                *v = *v * alpha as f32 / norm;
            }
        }
    }
    let mut out = Buffer::with_room(q.len())?;
    for block in q.chunks_exact((b * b).max(1)) {
        let eye = |i: usize| f32::from(u8::from(i.is_multiple_of(b + 1)));
        let minus: Vec<f32> = block.iter().enumerate().map(|(i, v)| eye(i) - v).collect();
        let plus: Vec<f32> = block.iter().enumerate().map(|(i, v)| eye(i) + v).collect();
        let product = matmul(
            &matrix([b, b], &plus)?,
            &matrix([b, b], &inverse(&minus, b)?)?,
        )?;
        out.extend_from_slice(product.data());
    }
    Ok((Tensor::from_buffer([count, b, b], out)?, b))
}

fn matrix(shape: [usize; 2], values: &[f32]) -> Result<Tensor> {
    Tensor::from_slice(values).reshape(shape)
}

/// Adds `scale` to the diagonals of blocks.
fn add_identity(blocks: &mut Tensor, b: usize, scale: f32) {
    for block in blocks.data_mut().chunks_exact_mut((b * b).max(1)) {
        for i in 0..b {
            block[i * b + i] += scale;
        }
    }
}

/// What the blocks are scaled by before the change itself is: by the strength, which then counts twice, as in the
/// reference; or not at all.
fn inner_strength(how: &How) -> f64 {
    match how.oft {
        OftStrength::Compat => how.strength,
        OftStrength::Linear => 1.0,
    }
}

fn oft(blocks: &Stored, alpha: Option<f64>, how: &How, weight: &Tensor) -> Result<Tensor> {
    let strength = inner_strength(how);
    let (r, b) = rotations(blocks, alpha)?;
    let mut change = r.mul_scalar(strength as f32);
    add_identity(&mut change, b, -strength as f32);
    let width = weight.len() / weight.dim(0)?.max(1);
    let mut out = Buffer::with_room(weight.len())?;
    for (block, rows) in change
        .data()
        .chunks_exact(b * b)
        .zip(weight.data().chunks_exact(b * width))
    {
        // Contracted over the first index of the block, that is with its transpose.
        let block = matrix([b, b], block)?.transpose(0, 1)?;
        let rows = matrix([b, width], rows)?;
        out.extend_from_slice(matmul(&block, &rows)?.data());
    }
    Tensor::from_buffer(weight.shape(), out)
}

fn boft(
    blocks: &Stored,
    rescale: Option<&Stored>,
    alpha: Option<f64>,
    how: &How,
    weight: &Tensor,
) -> Result<Tensor> {
    let strength = inner_strength(how);
    let stages = blocks.shape().first().copied().unwrap_or(0);
    let (mut r, b) = rotations(blocks, alpha)?;
    if strength != 1.0 {
        r = r.mul_scalar(strength as f32);
        add_identity(&mut r, b, (1.0 - strength) as f32);
    }
    let rows = weight.dim(0)?;
    let width = weight.len() / rows.max(1);
    let per_stage = r.len() / stages.max(1);
    let mut current = weight.reshape([rows, width])?;
    for stage in 0..stages {
        // Rows g*k + i of a group come next to those of the other half: (groups, 2, k) to (groups, k, 2).
        let k = (1usize << stage) * (b / 2);
        let groups = rows / (2 * k);
        let shuffled = current
            .reshape([groups, 2, k, width])?
            .transpose(1, 2)?
            .reshape([rows, width])?;
        let turns = &r.data()[stage * per_stage..(stage + 1) * per_stage];
        let mut turned = Buffer::with_room(weight.len())?;
        for (block, part) in turns
            .chunks_exact(b * b)
            .zip(shuffled.data().chunks_exact(b * width))
        {
            let block = matrix([b, b], block)?;
            let part = matrix([b, width], part)?;
            turned.extend_from_slice(matmul(&block, &part)?.data());
        }
        current = Tensor::from_buffer([groups, k, 2, width], turned)?
            .transpose(1, 2)?
            .reshape([rows, width])?;
    }
    if let Some(rescale) = rescale {
        let by = rescale.to_f32()?;
        current = current.mul(&by.reshape([by.len(), 1])?)?;
    }
    current.reshape(weight.shape())?.sub(weight)
}

/// What an adapter adds for a strength of one, and the scale that alpha gives it.
fn contribution(adapter: &Adapter, how: &How, weight: &Tensor) -> Result<(Tensor, f64)> {
    let over = |rank: usize| adapter.alpha.map_or(1.0, |a| a / rank as f64);
    match &adapter.kind {
        Kind::Lora { up, down, mid, .. } => {
            let rank = down.shape().first().copied().unwrap_or(1);
            let mut low = flat(down)?;
            if let Some(mid) = mid {
                // down[a, in], mid[b, a, k, l] -> [b, in, k, l]
                let mid = mid.to_f32()?;
                let [first, second, k, l] = mid.dims4()?;
                let width = low.dim(1)?;
                let by_a = mid
                    .permute(&[1, 0, 2, 3])?
                    .reshape([second, first * k * l])?;
                low = matmul(&low.transpose(0, 1)?, &by_a)?
                    .reshape([width, first, k * l])?
                    .transpose(0, 1)?
                    .reshape([first, width * k * l])?;
            }
            Ok((matmul(&flat(up)?, &low)?, over(rank)))
        }
        Kind::Loha {
            w1_a,
            w1_b,
            w2_a,
            w2_b,
            cores,
        } => {
            let side = |a: &Stored, b: &Stored, core: Option<&Stored>| match core {
                None => matmul(&flat(a)?, &flat(b)?),
                Some(core) => tucker(a, b, core),
            };
            let one = side(w1_a, w1_b, cores.as_ref().map(|c| &c.0))?;
            let two = side(w2_a, w2_b, cores.as_ref().map(|c| &c.1))?;
            let rank = w1_b.shape().first().copied().unwrap_or(1);
            Ok((one.mul(&two)?, over(rank)))
        }
        Kind::Lokr { w1, w2 } => {
            let scale = w2.rank().or_else(|| w1.rank()).map_or(1.0, over);
            let (mut one, two) = (factor(w1)?, factor(w2)?);
            if two.rank() == 4 {
                one = one.unsqueeze(2)?.unsqueeze(2)?;
            }
            Ok((kron(&one, &two)?, scale))
        }
        Kind::Glora { a1, a2, b1, b2 } => {
            let (old, rank) = glora_layout([a1, a2, b1, b2], weight.shape())
                .map_err(|reason| invalid("glora", reason))?;
            let (a1, a2, b1, b2) = (flat(a1)?, flat(a2)?, flat(b1)?, flat(b2)?);
            let change = if old {
                let through = matmul(&matmul(&flatten(weight)?, &a2)?, &a1)?;
                matmul(&b2, &b1)?.add(&through)?
            } else {
                let own = matmul(&b1, &b2)?.reshape(weight.shape())?;
                // Over the input dimension, which is the second: last for a matrix, moved there for a convolution.
                let last = weight.rank() - 1;
                let moved = weight.movedim(1, last)?;
                let shape = moved.shape().to_vec();
                let rows = moved.reshape([moved.len() / a1.dim(0)?.max(1), a1.dim(0)?])?;
                let through = matmul(&matmul(&rows, &a1)?, &a2)?;
                own.add(&through.reshape(shape)?.movedim(last, 1)?)?
            };
            Ok((change, over(rank)))
        }
        Kind::Oft { blocks } => Ok((oft(blocks, adapter.alpha, how, weight)?, 1.0)),
        Kind::Boft { blocks, rescale } => {
            let change = boft(blocks, rescale.as_ref(), adapter.alpha, how, weight)?;
            Ok((change, 1.0))
        }
    }
}

/// Rows or columns of the changed weight brought to the lengths of `scale`.
fn decompose(
    mut weight: Tensor,
    change: &Tensor,
    scale: &Stored,
    strength: f64,
    reorder: Option<Reorder>,
) -> Result<Tensor> {
    let scale = scale.to_f32()?;
    let change = reordered(change, reorder)?;
    let mut changed = weight.add(&change)?;
    let rank = weight.rank();
    let by_output =
        scale.shape().first() == Some(&weight.dim(0)?) && scale.len() == weight.dim(0)?;
    // The reference measures rows of the weight as it was, but columns of the changed one.
    let (of, kept) = if by_output {
        (&weight, 0)
    } else {
        (&changed, 1)
    };
    let dims: Vec<usize> = (0..rank).filter(|&d| d != kept).collect();
    let norm = of.norm(&dims, Axes::Keep)?.add_scalar(f32::EPSILON);
    let mut shape = vec![1; rank];
    shape[kept] = scale.len();
    changed = changed.mul(&scale.reshape(shape)?.div(&norm)?)?;
    if strength == 1.0 {
        return Ok(changed);
    }
    let s = strength as f32;
    for (w, c) in weight.data_mut().iter_mut().zip(changed.data()) {
        *w += s * (*c - *w);
    }
    Ok(weight)
}

/// A contribution put in the order the weight has.
pub(crate) fn reordered(t: &Tensor, reorder: Option<Reorder>) -> Result<Tensor> {
    match reorder {
        None => Ok(t.clone()),
        Some(Reorder::SwapHalves) => {
            let rows = t.dim(0)?;
            let half = rows.div_ceil(2);
            let (first, second) = (t.narrow(0, 0, half)?, t.narrow(0, half, rows - half)?);
            Tensor::cat(&[&second, &first], 0)
        }
    }
}

/// A tensor with zeros added at the ends of its dimensions.
pub(crate) fn padded(t: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if t.shape() == shape {
        return Ok(t.clone());
    }
    let mut out = Tensor::zeros(shape)?;
    out.paste(&vec![0; shape.len()], t)?;
    Ok(out)
}

/// What beside the adapter decides a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) strength: f64,
    pub(crate) reorder: Option<Reorder>,
    pub(crate) oft: OftStrength,
    pub(crate) merge: MergeDtype,
}

impl Adapter {
    /// The weight with the change made.
    pub(crate) fn apply(&self, mut weight: Tensor, how: &How) -> Result<Tensor> {
        let shape = self
            .changed_shape(weight.shape())
            .map_err(|reason| invalid(self.name(), reason))?;
        weight = padded(&weight, &shape)?;
        let (change, scale) = contribution(self, how, &weight)?;
        let change = change.reshape(weight.shape())?;
        if let Some(dora) = &self.dora_scale {
            let change = how.merge.rounded(change.mul_scalar(scale as f32))?;
            let changed = decompose(weight, &change, dora, how.strength, how.reorder)?;
            return how.merge.rounded(changed);
        }
        let by = (how.strength * scale) as f32;
        if how.reorder.is_none() && how.merge != MergeDtype::Fp16 {
            for (w, c) in weight.data_mut().iter_mut().zip(change.data()) {
                *w += by * c;
            }
            return Ok(weight);
        }
        let change = how.merge.rounded(change.mul_scalar(by))?;
        how.merge
            .rounded(weight.add(&reordered(&change, how.reorder)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inverses_and_products() {
        let m = [2.0, 1.0, 0.0, 0.0, 0.0, 3.0, 1.0, 2.0, 1.0];
        let product = matmul(
            &Tensor::from_vec([3, 3], m.to_vec()).unwrap(),
            &Tensor::from_vec([3, 3], inverse(&m, 3).unwrap()).unwrap(),
        )
        .unwrap();
        for (i, v) in product.data().iter().enumerate() {
            let expected = if i % 4 == 0 { 1.0 } else { 0.0 };
            assert!((v - expected).abs() < 1e-6, "{product:?}");
        }
        assert!(inverse(&[0.0; 4], 2).is_err());
        let a = Tensor::from_fn([2, 2], |i| i as f32).unwrap();
        let b = Tensor::from_fn([1, 2], |i| i as f32 + 1.0).unwrap();
        let k = kron(&a, &b).unwrap();
        assert_eq!(k.shape(), [2, 4]);
        assert_eq!(k.data(), [0.0, 0.0, 1.0, 2.0, 2.0, 4.0, 3.0, 6.0]);
    }

    #[test]
    fn halves_are_swapped() {
        let t = Tensor::from_fn([4, 1], |i| i as f32).unwrap();
        let swapped = reordered(&t, Some(Reorder::SwapHalves)).unwrap();
        assert_eq!(swapped.data(), [2.0, 3.0, 0.0, 1.0]);
    }
}
