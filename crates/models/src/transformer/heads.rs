//! Heads of attention.

use fresco_tensor::Tensor;

use crate::error::Result;

/// Keys or values (b, n, heads * d) with every head as often as queries look at it, next to each other.
pub fn repeat_heads(x: &Tensor, heads: usize, times: usize) -> Result<Tensor> {
    if times == 1 {
        return Ok(x.clone());
    }
    let [b, n, width] = x.dims3()?;
    let each = x.reshape([b, n, heads, width / heads.max(1)])?;
    let all = each.repeat_interleave(2, times)?;
    Ok(all.reshape([b, n, width * times])?)
}

/// Some of the last dimension's values.
pub fn part(x: &Tensor, start: usize, len: usize) -> Result<Tensor> {
    Ok(x.narrow(x.rank().saturating_sub(1), start, len)?)
}

/// The last dimension in parts of equal size.
pub fn chunks<const N: usize>(x: &Tensor) -> Result<[Tensor; N]> {
    x.split_last(N)?
        .try_into()
        .map_err(|_| crate::error::ModelError::invalid("chunks", "a tensor has no such parts"))
}
