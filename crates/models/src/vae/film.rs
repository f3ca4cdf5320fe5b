//! What autoencoders of films have in common.

use fresco_tensor::{Device, Tensor};

use crate::error::{ModelError, Result};

/// Runs a network on each item of (b, c, t, h, w), as frames (t, h, w, c) in main memory, and joins what it makes.
pub(crate) fn each_film(
    what: &'static str,
    x: &Tensor,
    mut f: impl FnMut(Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    if x.rank() != 5 || x.is_empty() {
        let reason = format!("shape {:?} is not a batch of films", x.shape());
        return Err(ModelError::invalid(what, reason));
    }
    let mut made = Vec::new();
    for item in 0..x.dim(0)? {
        let film = x.select(0, item)?.permute(&[1, 2, 3, 0])?;
        let out = f(film)?.to(&Device::cpu())?;
        made.push(out.permute(&[3, 0, 1, 2])?.unsqueeze(0)?);
    }
    if made.len() == 1 {
        return Ok(made.remove(0));
    }
    Ok(Tensor::cat(&made.iter().collect::<Vec<_>>(), 0)?)
}
