//! Squares of pixels as channels.

use fresco_tensor::Tensor;

use crate::error::Result;

/// Squares of pixels (t, h, w, c) as channels: those of each colour, column by column.
pub(super) fn patched(x: Tensor, size: usize) -> Result<Tensor> {
    if size == 1 {
        return Ok(x);
    }
    let [t, h, w, c] = x.dims4()?;
    let (rows, columns) = (h / size, w / size);
    let cells = x.reshape([t, rows, size, columns, size, c])?;
    let cells = cells.permute(&[0, 1, 3, 5, 4, 2])?;
    Ok(cells.reshape([t, rows, columns, c * size * size])?)
}

/// The reverse of [`patched`].
pub(super) fn unpatched(x: Tensor, size: usize) -> Result<Tensor> {
    if size == 1 {
        return Ok(x);
    }
    let [t, rows, columns, channels] = x.dims4()?;
    let c = channels / (size * size);
    let cells = x.reshape([t, rows, columns, c, size, size])?;
    let cells = cells.permute(&[0, 1, 5, 2, 4, 3])?;
    Ok(cells.reshape([t, rows * size, columns * size, c])?)
}
