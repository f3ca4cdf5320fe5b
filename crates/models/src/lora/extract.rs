//! The two small matrices whose product comes nearest to a difference of weights.

use fresco_tensor::{Buffer, Result, Tensor, TensorError, synthetic};

use super::merge::matmul;

/// Directions looked at beyond those wanted, so that the last wanted ones are right.
const SPARE: usize = 8;
/// How often the directions are refined. Each time the error of one falls by the ratio of its length to the first that
/// is not looked at, squared.
const ROUNDS: usize = 12;
/// Values beyond this share of all are cut, as single large ones spoil training on the result.
const KEPT: f64 = 0.99;

/// `up` (out, rank) and `down` (rank, in), for convolutions in their shapes: (out, rank, 1, 1) and (rank, in, h, w).
pub fn extract(difference: &Tensor, rank: usize) -> Result<(Tensor, Tensor)> {
    let shape = difference.shape();
    let (&[out, input], rest) = (
        shape.first_chunk::<2>().ok_or_else(|| invalid(shape))?,
        &shape[2..],
    );
    if difference.is_empty() || difference.data().iter().any(|v| !v.is_finite()) {
        return Err(invalid(shape));
    }
    let columns = difference.len() / out;
    let rank = rank.clamp(1, out.min(input));
    let matrix = difference.reshape([out, columns])?;
    let (mut up, mut down) = largest(&matrix, rank)?;
    let bound = quantile(up.data(), down.data());
    up.map_inplace(|v| v.clamp(-bound, bound));
    down.map_inplace(|v| v.clamp(-bound, bound));
    if rest.is_empty() {
        return Ok((up, down));
    }
    let mut down_shape = vec![rank, input];
    down_shape.extend(rest);
    let mut up_shape = vec![out, rank];
    up_shape.extend(rest.iter().map(|_| 1));
    Ok((up.reshape(up_shape)?, down.reshape(down_shape)?))
}

fn invalid(shape: &[usize]) -> TensorError {
    TensorError::Invalid {
        op: "extract",
        reason: format!("a difference of shape {shape:?} has no low-rank part"),
    }
}

/// The value that this share of all values is below, between neighbours in proportion. Never negative.
fn quantile(a: &[f32], b: &[f32]) -> f32 {
    let mut all: Vec<f32> = a.iter().chain(b).copied().collect();
    all.sort_unstable_by(f32::total_cmp);
    let at = KEPT * (all.len() - 1) as f64;
    let (low, part) = (at.floor() as usize, at.fract() as f32);
    let high = all[(low + 1).min(all.len() - 1)];
    (all[low] + part * (high - all[low])).max(0.0)
}

/// The `rank` largest parts of a matrix: subspace iteration, then the exact decomposition of the small rest.
fn largest(matrix: &Tensor, rank: usize) -> Result<(Tensor, Tensor)> {
    let &[rows, columns] = matrix.shape() else {
        return Err(invalid(matrix.shape()));
    };
    let looked_at = (rank + SPARE).min(rows.min(columns));
    let turned = matrix.transpose(0, 1)?;
    // Any start that is not by accident orthogonal to a direction will do; a fixed one gives the same file every time.
    let start = synthetic::value("lora.extract", &[columns, looked_at], 1.0)?;
    let mut left = orthogonal(&matmul(matrix, &start)?)?;
    for _ in 0..ROUNDS {
        let right = orthogonal(&matmul(&turned, &left)?)?;
        left = orthogonal(&matmul(matrix, &right)?)?;
    }
    let small = matmul(&left.transpose(0, 1)?, matrix)?; // (looked at, columns)
    let gram = products(&small);
    let (values, vectors) = eigen(gram, looked_at);
    let mut order: Vec<usize> = (0..looked_at).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    // Columns of `turn` are the directions in the order of their lengths.
    let turn = Tensor::from_fn([looked_at, rank], |i| {
        vectors[(i / rank) * looked_at + order[i % rank]] as f32
    })?;
    let mut up = matmul(&left, &turn)?;
    let mut down = matmul(&turn.transpose(0, 1)?, &small)?;
    let lengths: Vec<f32> = order[..rank]
        .iter()
        .map(|&i| values[i].max(0.0).sqrt() as f32)
        .collect();
    for row in up.data_mut().chunks_exact_mut(rank) {
        for (v, length) in row.iter_mut().zip(&lengths) {
            *v *= length;
        }
    }
    for (row, length) in down.data_mut().chunks_exact_mut(columns).zip(&lengths) {
        for v in row {
            *v = if *length > 0.0 { *v / length } else { 0.0 };
        }
    }
    Ok((up, down))
}

/// Columns made orthogonal to each other and of length one; those that depend on others become zero.
fn orthogonal(matrix: &Tensor) -> Result<Tensor> {
    let turned = matrix.transpose(0, 1)?;
    let (count, length) = (turned.dim(0)?, turned.dim(1)?);
    let mut rows: Vec<Vec<f64>> = turned
        .data()
        .chunks_exact(length.max(1))
        .map(|row| row.iter().map(|&v| f64::from(v)).collect())
        .collect();
    for i in 0..count {
        let (done, rest) = rows.split_at_mut(i);
        let row = &mut rest[0];
        let before = dot(row, row).sqrt();
        // The second pass takes away what rounding left of the first.
        for _ in 0..2 {
            for other in done.iter() {
                let by = dot(row, other);
                for (v, o) in row.iter_mut().zip(other) {
                    *v -= by * o;
                }
            }
        }
        let after = dot(row, row).sqrt();
        let scale = if after > before * 1e-9 && after > 0.0 {
            1.0 / after
        } else {
            0.0
        };
        for v in row.iter_mut() {
            *v *= scale;
        }
    }
    let mut data = Buffer::with_room(count * length)?;
    data.extend(rows.iter().flatten().map(|&v| v as f32));
    Tensor::from_buffer([count, length], data)?.transpose(0, 1)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Products of all pairs of rows.
fn products(rows: &Tensor) -> Vec<f64> {
    let (count, length) = (rows.shape()[0], rows.shape()[1]);
    let row = |i: usize| &rows.data()[i * length..(i + 1) * length];
    let mut out = vec![0.0; count * count];
    for i in 0..count {
        for j in i..count {
            let pairs = row(i).iter().zip(row(j));
            let sum: f64 = pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            out[i * count + j] = sum;
            out[j * count + i] = sum;
        }
    }
    out
}

/// Eigenvalues of a symmetric matrix, and its eigenvectors as columns, by Jacobi's rotations.
fn eigen(mut m: Vec<f64>, n: usize) -> (Vec<f64>, Vec<f64>) {
    let mut vectors = vec![0.0; n * n];
    for i in 0..n {
        vectors[i * n + i] = 1.0;
    }
    let size: f64 = m.iter().map(|v| v * v).sum();
    for _ in 0..60 {
        let off: f64 = (0..n * n)
            .filter(|i| i / n != i % n)
            .map(|i| m[i] * m[i])
            .sum();
        if off <= size * 1e-26 {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                let between = m[p * n + q];
                if between == 0.0 {
                    continue;
                }
                let theta = (m[q * n + q] - m[p * n + p]) / (2.0 * between);
                let sign = if theta < 0.0 { -1.0 } else { 1.0 };
                let t = sign / (theta.abs() + (theta * theta + 1.0).sqrt());
                let c = 1.0 / (t * t + 1.0).sqrt();
                let s = t * c;
                for k in 0..n {
                    let (a, b) = (m[k * n + p], m[k * n + q]);
                    m[k * n + p] = c * a - s * b;
                    m[k * n + q] = s * a + c * b;
                }
                for k in 0..n {
                    let (a, b) = (m[p * n + k], m[q * n + k]);
                    m[p * n + k] = c * a - s * b;
                    m[q * n + k] = s * a + c * b;
                    let (a, b) = (vectors[k * n + p], vectors[k * n + q]);
                    vectors[k * n + p] = c * a - s * b;
                    vectors[k * n + q] = s * a + c * b;
                }
            }
        }
    }
    ((0..n).map(|i| m[i * n + i]).collect(), vectors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(a: &Tensor, b: &Tensor) -> f32 {
        let d = a.sub(b).unwrap();
        let norm = |t: &Tensor| t.data().iter().map(|v| v * v).sum::<f32>().sqrt();
        norm(&d) / norm(b)
    }

    #[test]
    fn a_matrix_of_low_rank_comes_back() {
        let a = synthetic::value("a", &[40, 3], 0.5).unwrap();
        let b = synthetic::value("b", &[3, 30], 0.5).unwrap();
        let whole = matmul(&a, &b).unwrap();
        let (up, down) = largest(&whole, 3).unwrap();
        assert!(error(&matmul(&up, &down).unwrap(), &whole) < 1e-5);
        // Rows of the second are of length one, as those of a singular value decomposition are.
        for row in down.data().chunks(30) {
            let length: f32 = row.iter().map(|v| v * v).sum();
            assert!((length - 1.0).abs() < 1e-4, "{length}");
        }
    }

    #[test]
    fn the_largest_part_is_the_best_there_is() {
        // Lengths 4, 2, 1 along the axes: rank two leaves exactly the last.
        let whole = Tensor::from_fn([3, 3], |i| {
            if i % 4 == 0 {
                [4.0, 2.0, 1.0][i / 4]
            } else {
                0.0
            }
        })
        .unwrap();
        let (up, down) = largest(&whole, 2).unwrap();
        let near = matmul(&up, &down).unwrap();
        let expected = Tensor::from_fn([3, 3], |i| match i {
            0 => 4.0,
            4 => 2.0,
            _ => 0.0,
        })
        .unwrap();
        assert!(error(&near, &expected) < 1e-5, "{near:?}");
    }

    #[test]
    fn shapes_and_what_has_no_answer() {
        let conv = synthetic::value("c", &[6, 5, 3, 3], 1.0).unwrap();
        let (up, down) = extract(&conv, 2).unwrap();
        assert_eq!(up.shape(), [6, 2, 1, 1]);
        assert_eq!(down.shape(), [2, 5, 3, 3]);
        let (up, _) = extract(&conv, 4096).unwrap();
        assert_eq!(up.shape(), [6, 5, 1, 1]);
        assert!(extract(&Tensor::zeros([4]).unwrap(), 1).is_err());
        assert!(extract(&Tensor::full([2, 2], f32::NAN).unwrap(), 1).is_err());
        let (up, down) = extract(&Tensor::zeros([4, 4]).unwrap(), 2).unwrap();
        assert!(up.data().iter().chain(down.data()).all(|v| *v == 0.0));
    }
}
