//! Channels as pixels, and pixels as channels. Pictures are (b, h, w, c).

use fresco_tensor::Tensor;

use crate::error::Result;

/// (b, h, w, c s s) as (b, h s, w s, c): the channels of a group are a square of pixels.
pub(super) fn pixel_shuffle(x: &Tensor, s: usize) -> Result<Tensor> {
    let [b, h, w, total] = x.dims4()?;
    let c = total / (s * s).max(1);
    let cells = x.reshape([b, h, w, c, s, s])?;
    let cells = cells.permute(&[0, 1, 4, 2, 5, 3])?;
    Ok(cells.reshape([b, h * s, w * s, c])?)
}

/// (b, h s, w s, c) as (b, h, w, c s s).
pub(super) fn pixel_unshuffle(x: &Tensor, s: usize) -> Result<Tensor> {
    let [b, h, w, c] = x.dims4()?;
    let cells = x.reshape([b, h / s, s, w / s, s, c])?;
    let cells = cells.permute(&[0, 1, 3, 5, 2, 4])?;
    Ok(cells.reshape([b, h / s, w / s, c * s * s])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_and_channels() {
        let x = Tensor::from_fn([1, 1, 2, 8], |i| i as f32).unwrap();
        let y = pixel_shuffle(&x, 2).unwrap();
        assert_eq!(y.shape(), [1, 2, 4, 2]);
        // The first pixel has the first channel of each group, the one below it the third.
        assert_eq!(y.data()[..4], [0.0, 4.0, 1.0, 5.0]);
        assert_eq!(y.data()[8..12], [2.0, 6.0, 3.0, 7.0]);
        assert_eq!(pixel_unshuffle(&y, 2).unwrap(), x);
    }
}
