//! Pictures as tokens: each a square of cells.

use std::sync::Arc;

use fresco_tensor::nn::{Conv2d, Linear, Padding};
use fresco_tensor::{Device, Tensor};

use crate::error::{ModelError, Result};
use crate::store::{Kernel, Walk};

/// In which order a token has the values of its square.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchOrder {
    /// All cells of the first channel, then those of the second.
    ChannelFirst,
    /// All channels of the first cell, then those of the second.
    ChannelLast,
}

/// Adds rows and columns from the other side until both sizes of (b, c, h, w) are multiples of `size`.
pub fn circular_pad(x: &Tensor, size: usize) -> Result<Tensor> {
    let [_, _, h, w] = x.dims4()?;
    let mut x = x.clone();
    for (dim, len) in [(2, h), (3, w)] {
        let missing = len.next_multiple_of(size) - len;
        if missing > 0 {
            if len == 0 {
                return Err(ModelError::invalid("latent", "it has no cells"));
            }
            let wrapped: Vec<usize> = (0..len + missing).map(|i| i % len).collect();
            x = x.index_select(dim, &wrapped)?;
        }
    }
    Ok(x)
}

/// (b, c, h, w) as tokens (b, h / size * w / size, c * size * size), row by row.
pub fn to_tokens(x: &Tensor, size: usize, order: PatchOrder) -> Result<Tensor> {
    let [b, c, h, w] = x.dims4()?;
    let (rows, columns) = (h / size, w / size);
    let cells = x.reshape([b, c, rows, size, columns, size])?;
    let axes = match order {
        PatchOrder::ChannelFirst => [0, 2, 4, 1, 3, 5],
        PatchOrder::ChannelLast => [0, 2, 4, 3, 5, 1],
    };
    let cells = cells.permute(&axes)?;
    Ok(cells.reshape([b, rows * columns, c * size * size])?)
}

/// Tokens back as (b, c, rows * size, columns * size).
pub fn from_tokens(
    x: &Tensor,
    (rows, columns): (usize, usize),
    size: usize,
    order: PatchOrder,
) -> Result<Tensor> {
    let [b, _, width] = x.dims3()?;
    let c = width / (size * size);
    let cells = match order {
        PatchOrder::ChannelFirst => x
            .reshape([b, rows, columns, c, size, size])?
            .permute(&[0, 3, 1, 4, 2, 5])?,
        PatchOrder::ChannelLast => x
            .reshape([b, rows, columns, size, size, c])?
            .permute(&[0, 5, 1, 3, 2, 4])?,
    };
    Ok(cells.reshape([b, c, rows * size, columns * size])?)
}

/// The convolution that makes tokens of squares of cells.
pub fn patch_conv(
    weights: &Walk<'_>,
    name: &str,
    width: usize,
    channels: usize,
    side: usize,
) -> Result<Arc<Conv2d>> {
    let kernel = Kernel {
        out: width,
        input: channels,
        side,
        bias: true,
    };
    weights.conv_with(name, kernel, side, Padding::Same(0))
}

/// Tokens (b, n, c) of a latent (b, c, h, w) by such a convolution, with how many rows and columns of them there are.
pub fn spread_tokens(cells: &Conv2d, x: &Tensor) -> Result<(Tensor, (usize, usize))> {
    let x = cells.forward(&x.nchw_to_nhwc()?)?;
    let [b, rows, columns, width] = x.dims4()?;
    Ok((x.reshape([b, rows * columns, width])?, (rows, columns)))
}

/// Frames, rows and columns of tokens.
pub type TokenGrid = [usize; 3];

/// (b, c, t, h, w) as tokens, frame by frame and row by row, each frame filled up from its other side.
pub fn video_to_tokens(x: &Tensor, size: usize, order: PatchOrder) -> Result<(Tensor, TokenGrid)> {
    let &[b, c, t, h, w] = x.shape() else {
        let reason = format!("{:?} is not the shape of a video", x.shape());
        return Err(ModelError::invalid("latent", reason));
    };
    let frames = x.permute(&[0, 2, 1, 3, 4])?.reshape([b * t, c, h, w])?;
    let frames = circular_pad(&frames, size)?;
    let [_, _, h, w] = frames.dims4()?;
    let (rows, columns) = (h / size, w / size);
    let tokens = to_tokens(&frames, size, order)?;
    let tokens = tokens.reshape([b, t * rows * columns, c * size * size])?;
    Ok((tokens, [t, rows, columns]))
}

/// Tokens back as the shape (b, c, t, h, w) they came from, whatever was filled up cut away.
pub fn video_from_tokens(
    x: &Tensor,
    [t, rows, columns]: TokenGrid,
    size: usize,
    order: PatchOrder,
    (h, w): (usize, usize),
) -> Result<Tensor> {
    let [b, _, width] = x.dims3()?;
    let frames = x.reshape([b * t, rows * columns, width])?;
    let frames = from_tokens(&frames, (rows, columns), size, order)?;
    let frames = frames.narrow(2, 0, h)?.narrow(3, 0, w)?;
    let c = width / (size * size);
    let video = frames.reshape([b, t, c, h, w])?;
    Ok(video.permute(&[0, 2, 1, 3, 4])?)
}

enum FirstLayer {
    Linear(Arc<Linear>, PatchOrder),
    /// From [`patch_conv`].
    Conv(Arc<Conv2d>),
}

/// A network's way from a latent to tokens, and back from tokens to a latent.
pub struct PictureTokens {
    first: FirstLayer,
    last: Arc<Linear>,
    size: usize,
    order: PatchOrder,
}

/// Where a latent's tokens were.
#[derive(Clone, Debug)]
pub struct TokenPlaces {
    pub grid: TokenGrid,
    /// The shape of the latent.
    shape: Vec<usize>,
}

impl PictureTokens {
    /// The layers on the values of a square of `size` cells, and the orders of these values before and behind the network.
    pub fn new(
        first: Arc<Linear>,
        last: Arc<Linear>,
        size: usize,
        orders: [PatchOrder; 2],
    ) -> Self {
        Self {
            first: FirstLayer::Linear(first, orders[0]),
            last,
            size,
            order: orders[1],
        }
    }

    /// With a convolution that makes tokens of the squares of a picture.
    pub fn convolved(
        first: Arc<Conv2d>,
        last: Arc<Linear>,
        size: usize,
        order: PatchOrder,
    ) -> Self {
        Self {
            first: FirstLayer::Conv(first),
            last,
            size,
            order,
        }
    }

    /// The tokens (b, n, width) of a picture (b, c, h, w) or a film (b, c, t, h, w), on a device.
    pub fn enter(&self, x: &Tensor, device: &Device) -> Result<(Tensor, TokenPlaces)> {
        let shape = x.shape().to_vec();
        let (tokens, grid) = match &self.first {
            FirstLayer::Linear(layer, order) => {
                let still = x.rank() == 4;
                let film = if still { x.unsqueeze(2)? } else { x.clone() };
                let (tokens, grid) = video_to_tokens(&film, self.size, *order)?;
                (layer.forward(&tokens.to(device)?)?, grid)
            }
            FirstLayer::Conv(layer) => {
                let padded = circular_pad(x, self.size)?.to(device)?;
                let (tokens, (rows, columns)) = spread_tokens(layer, &padded)?;
                (tokens, [1, rows, columns])
            }
        };
        Ok((tokens, TokenPlaces { grid, shape }))
    }

    /// Tokens back in main memory as a latent of the shape that went in, with as many channels as the last layer makes.
    pub fn leave(&self, x: &Tensor, places: &TokenPlaces) -> Result<Tensor> {
        let out = self.last.forward(x)?.to(&Device::cpu())?;
        let [.., h, w] = *places.shape else {
            return Err(ModelError::invalid("latent", "it has no rows and columns"));
        };
        let film = video_from_tokens(&out, places.grid, self.size, self.order, (h, w))?;
        Ok(if places.shape.len() == 4 {
            film.squeeze(2)?
        } else {
            film
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_back() {
        let x = Tensor::from_fn([2, 3, 4, 6], |i| i as f32).unwrap();
        for order in [PatchOrder::ChannelFirst, PatchOrder::ChannelLast] {
            let tokens = to_tokens(&x, 2, order).unwrap();
            assert_eq!(tokens.shape(), [2, 6, 12]);
            assert_eq!(from_tokens(&tokens, (2, 3), 2, order).unwrap(), x);
        }
        let first = to_tokens(&x, 2, PatchOrder::ChannelFirst).unwrap();
        assert_eq!(first.data()[..5], [0.0, 1.0, 6.0, 7.0, 24.0]);
        let last = to_tokens(&x, 2, PatchOrder::ChannelLast).unwrap();
        assert_eq!(last.data()[..4], [0.0, 24.0, 48.0, 1.0]);
    }

    #[test]
    fn videos_and_back() {
        let x = Tensor::from_fn([2, 3, 2, 3, 5], |i| i as f32).unwrap();
        let order = PatchOrder::ChannelFirst;
        let (tokens, grid) = video_to_tokens(&x, 2, order).unwrap();
        assert_eq!((tokens.shape(), grid), (&[2, 12, 12][..], [2, 2, 3]));
        assert_eq!(
            video_from_tokens(&tokens, grid, 2, order, (3, 5)).unwrap(),
            x
        );
        assert!(video_to_tokens(&x.reshape([2, 3, 6, 5]).unwrap(), 2, order).is_err());
    }

    #[test]
    fn odd_sizes_continue_on_the_other_side() {
        let x = Tensor::from_fn([1, 1, 3, 2], |i| i as f32).unwrap();
        let padded = circular_pad(&x, 2).unwrap();
        assert_eq!(padded.shape(), [1, 1, 4, 2]);
        assert_eq!(padded.data(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 1.0]);
        assert_eq!(circular_pad(&x, 1).unwrap(), x);
    }
}
