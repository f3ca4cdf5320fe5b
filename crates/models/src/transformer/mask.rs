//! Which tokens are seen.

use fresco_tensor::nn::Mask;
use fresco_tensor::{Device, Tensor};

use crate::error::Result;

/// A mask (b, n) of ones and zeros as what is added to scores, (b, 1, 1, n + seen): tokens with a zero are hidden, and
/// `seen` ones that follow are not.
pub fn hide(mask: &Tensor, seen: usize) -> Result<Tensor> {
    let items = mask.dim(0)?;
    let n = mask.len() / items.max(1);
    let mut added = Tensor::zeros([items, n + seen])?;
    // Any that is not zero counts as one.
    let hidden = mask
        .reshape([items, n])?
        .eq_scalar(0.0)
        .mul_scalar(-f32::MAX);
    added.paste(&[0, 0], &hidden)?;
    Ok(added.reshape([items, 1, 1, n + seen])?)
}

/// Which words of a prompt are seen, where attention computes.
pub struct TokenMask(Option<Tensor>);

impl TokenMask {
    /// From a mask of ones and zeros, if there is one; `seen` tokens that follow are not hidden.
    pub fn new(mask: Option<&Tensor>, seen: usize, device: &Device) -> Result<Self> {
        let hidden = mask.map(|mask| -> Result<Tensor> { Ok(hide(mask, seen)?.to(device)?) });
        Ok(Self(hidden.transpose()?))
    }

    pub fn mask(&self) -> Mask<'_> {
        self.0.as_ref().map_or(Mask::None, Mask::Add)
    }
}

/// Whether a mask hides anything.
pub fn hides(mask: &Tensor) -> bool {
    mask.data().contains(&0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_hidden() {
        let mask = Tensor::from_vec([1, 3], vec![1.0, 0.0, 1.0]).unwrap();
        assert!(hides(&mask));
        let added = hide(&mask, 1).unwrap();
        assert_eq!(added.shape(), [1, 1, 1, 4]);
        assert_eq!(added.data(), [0.0, -f32::MAX, 0.0, 0.0]);
    }
}
