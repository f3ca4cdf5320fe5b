//! Pictures and references as tokens with positions.

use fresco_tensor::Tensor;

use super::config::{PATCH, ReferenceMethod};
use crate::error::{ModelError, Result};
use crate::transformer::{PatchOrder, circular_pad, from_tokens, grid_positions, to_tokens};

/// Frames, rows and columns of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenGrid {
    pub(super) frames: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl TokenGrid {
    pub(super) fn len(self) -> usize {
        self.frames * self.rows * self.columns
    }

    /// Where the prompt's positions begin: behind those of the picture around its middle.
    pub(super) fn text_start(self) -> usize {
        (self.rows / 2).max(self.columns / 2)
    }
}

/// A latent (b, c, t, h, w) as tokens (b, n, c * 4) with their grid.
pub(super) fn tokens(x: &Tensor) -> Result<(Tensor, TokenGrid)> {
    let &[b, c, t, h, w] = x.shape() else {
        let reason = format!("shape {:?} is not a latent of five dimensions", x.shape());
        return Err(ModelError::invalid("latent", reason));
    };
    let frames = x.permute(&[0, 2, 1, 3, 4])?.reshape([b * t, c, h, w])?;
    let frames = circular_pad(&frames, PATCH)?;
    let made = to_tokens(&frames, PATCH, PatchOrder::ChannelFirst)?;
    let grid = TokenGrid {
        frames: t,
        rows: h.div_ceil(PATCH),
        columns: w.div_ceil(PATCH),
    };
    Ok((made.reshape([b, grid.len(), c * PATCH * PATCH])?, grid))
}

/// Tokens back as a latent of the size that `tokens` was given.
pub(super) fn latent(tokens: &Tensor, grid: TokenGrid, size: (usize, usize)) -> Result<Tensor> {
    let [b, _, width] = tokens.dims3()?;
    let each = tokens.reshape([b * grid.frames, grid.rows * grid.columns, width])?;
    let order = PatchOrder::ChannelFirst;
    let frames = from_tokens(&each, (grid.rows, grid.columns), PATCH, order)?;
    let frames = frames.narrow(2, 0, size.0)?.narrow(3, 0, size.1)?;
    let shape = [b, grid.frames, width / (PATCH * PATCH), size.0, size.1];
    Ok(frames.reshape(shape)?.permute(&[0, 2, 1, 3, 4])?)
}

/// Adds the positions of a grid: rows and columns count from its middle. Frames of a video count from 0, whatever the index.
pub(super) fn place(positions: &mut Vec<f64>, grid: TokenGrid, index: f64, offset: (usize, usize)) {
    let start = |offset: usize, len: usize| offset as f64 - (len / 2) as f64;
    let start = (start(offset.0, grid.rows), start(offset.1, grid.columns));
    for frame in 0..grid.frames {
        let index = if grid.frames > 1 { frame as f64 } else { index };
        let grid = grid_positions(index, (grid.rows, grid.columns), start);
        positions.extend(grid.flatten());
    }
}

/// Where one reference after the other goes.
#[derive(Default)]
pub(super) struct Placement {
    index: f64,
    /// What those beside each other take so far, in cells.
    taken: (usize, usize),
}

impl Placement {
    /// The index and the offset in tokens for the next reference of so many cells.
    pub(super) fn next(
        &mut self,
        method: ReferenceMethod,
        (h, w): (usize, usize),
    ) -> (f64, (usize, usize)) {
        match method {
            ReferenceMethod::Index | ReferenceMethod::IndexTimestepZero => {
                self.index += 1.0;
                (self.index, (0, 0))
            }
            ReferenceMethod::NegativeIndex => {
                self.index -= 1.0;
                (self.index, (0, 0))
            }
            ReferenceMethod::Offset => {
                // At the shorter side of what is there.
                let offset = if h + self.taken.0 > w + self.taken.1 {
                    (0, self.taken.1)
                } else {
                    (self.taken.0, 0)
                };
                self.taken.0 = self.taken.0.max(h + offset.0);
                self.taken.1 = self.taken.1.max(w + offset.1);
                (1.0, (offset.0.div_ceil(PATCH), offset.1.div_ceil(PATCH)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn videos_become_tokens_and_back() {
        let x = Tensor::from_fn([2, 3, 2, 5, 4], |i| i as f32).unwrap();
        let (made, grid) = tokens(&x).unwrap();
        assert_eq!(made.shape(), [2, 2 * 3 * 2, 12]);
        assert_eq!(grid.text_start(), 1);
        assert_eq!(latent(&made, grid, (5, 4)).unwrap(), x);
        assert!(tokens(&Tensor::zeros([1, 3, 4, 4]).unwrap()).is_err());
    }

    #[test]
    fn references_are_placed() {
        let sizes = [(6, 4), (4, 10), (5, 5)];
        let all = |method| {
            let mut placement = Placement::default();
            sizes.map(|size| placement.next(method, size))
        };
        let index = all(ReferenceMethod::Index);
        assert_eq!(index.map(|(i, _)| i), [1.0, 2.0, 3.0]);
        let down = all(ReferenceMethod::NegativeIndex);
        assert_eq!(down.map(|(i, _)| i), [-1.0, -2.0, -3.0]);
        // Each below those before.
        let offset = all(ReferenceMethod::Offset).map(|(i, at)| (i, at));
        assert_eq!(offset, [(1.0, (0, 0)), (1.0, (3, 0)), (1.0, (5, 0))]);
    }
}
