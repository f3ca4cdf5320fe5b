//! How a convolution reads its input: copied once into rows of pixels with their padding, so that every kernel position
//! (tap) is a fixed distance and a product needs no gathered copy of the input.
//!
//! With stride s the pixels are sorted into s x s phases. Within a phase neighbouring outputs read neighbouring pixels,
//! whatever the stride.

use std::ops::Range;

/// The input of a convolution: pictures of shape (batch, size, channels), read as if enlarged by repeating pixels and
/// with zeros around.
pub(crate) struct Picture<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) batch: usize,
    pub(crate) size: (usize, usize),
    pub(crate) channels: usize,
    pub(crate) enlarged: (usize, usize),
    pub(crate) kernel: (usize, usize),
    pub(crate) stride: usize,
    /// Zeros above and at the left.
    pub(crate) before: (usize, usize),
    /// Zeros below and at the right.
    pub(crate) behind: (usize, usize),
}

/// Which part of the output a product makes: every `scale`-th row and column.
#[derive(Clone, Copy)]
pub(crate) struct Phase {
    pub(crate) scale: usize,
    pub(crate) row: usize,
    pub(crate) column: usize,
}

impl Phase {
    pub(crate) const ALL: Self = Self {
        scale: 1,
        row: 0,
        column: 0,
    };
}

impl<'a> Picture<'a> {
    /// A picture enlarged to twice its size is seen by a 3x3 kernel as pairs of equal pixels. Each of the four outputs
    /// over a pixel is then a 2x2 kernel of sums of weights over the picture as it is: less than half of the work.
    pub(crate) fn is_doubled(&self) -> bool {
        self.enlarged == (2 * self.size.0, 2 * self.size.1)
            && self.kernel == (3, 3)
            && self.stride == 1
            && self.before == (1, 1)
            && self.behind == (1, 1)
    }

    /// The picture for one of the four outputs.
    pub(crate) fn halved(&self, phase: Phase) -> Picture<'a> {
        let (y, x) = (phase.row, phase.column);
        Picture {
            enlarged: self.size,
            kernel: (2, 2),
            before: (1 - y, 1 - x),
            behind: (y, x),
            ..*self
        }
    }
}

/// The rows of a 3x3 kernel whose sum is one of the 2x2 kernel of a phase: the first, and how many.
pub(crate) fn halved_taps(phase: usize, tap: usize) -> (usize, usize) {
    match (phase, tap) {
        (0, 0) => (0, 1),
        (0, _) => (1, 2),
        (_, 0) => (0, 2),
        _ => (2, 1),
    }
}

/// Where the copied pixels of a band of output rows lie. Positions count pixels.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    /// Output height and width.
    pub(crate) height: usize,
    pub(crate) width: usize,
    /// Positions from one row of a phase to the next.
    pub(crate) pitch: usize,
    /// Output rows in a full band.
    pub(crate) band: usize,
    /// Rows of a phase below those of the outputs.
    below: usize,
    /// Positions of one phase.
    phase: usize,
    stride: usize,
}

impl Grid {
    pub(crate) fn new(picture: &Picture<'_>, height: usize, width: usize, band: usize) -> Self {
        let (kh, kw) = picture.kernel;
        let stride = picture.stride;
        // A zero at the end of a row is also the zero before the next one.
        let shared = stride == 1 && kw == 3 && picture.before.1 == 1 && picture.behind.1 == 1;
        let pitch = width + if shared { 1 } else { (kw - 1) / stride };
        let below = (kh - 1) / stride;
        Self {
            height,
            width,
            pitch,
            band,
            below,
            phase: (band + below) * pitch + usize::from(shared),
            stride,
        }
    }

    /// Positions of a band with all its phases.
    pub(crate) fn positions(&self) -> usize {
        self.phase * self.stride * self.stride
    }

    /// Positions between an output's and those of one tap.
    pub(crate) fn tap(&self, y: usize, x: usize) -> usize {
        let s = self.stride;
        (y % s * s + x % s) * self.phase + y / s * self.pitch + x / s
    }

    /// Rows to copy for a band.
    pub(crate) fn rows(&self) -> usize {
        self.stride * self.stride * (self.band + self.below)
    }

    /// Calls `pixel` with the position and the channels of each pixel of one row to copy, none for zeros, for the band
    /// of `image` that begins at output row `first`.
    pub(crate) fn copy<'a>(
        &self,
        picture: &Picture<'a>,
        image: usize,
        first: usize,
        row: usize,
        mut pixel: impl FnMut(usize, Option<&'a [f32]>),
    ) {
        let s = self.stride;
        let rows = self.band + self.below;
        let (phase, row) = (row / rows, row % rows);
        let (py, px) = (phase / s, phase % s);
        let to = phase * self.phase + row * self.pitch;
        let source = |at: usize, before: usize, size: usize, enlarged: usize| {
            let i = at.checked_sub(before)?;
            (i < enlarged).then(|| i * size / enlarged)
        };
        let y = source(
            (first + row) * s + py,
            picture.before.0,
            picture.size.0,
            picture.enlarged.0,
        );
        for column in 0..self.pitch {
            let x = source(
                column * s + px,
                picture.before.1,
                picture.size.1,
                picture.enlarged.1,
            );
            let values = y.zip(x).map(|(y, x)| {
                let at = (image * picture.size.0 + y) * picture.size.1 + x;
                &picture.data[at * picture.channels..][..picture.channels]
            });
            pixel(to + column, values);
        }
        if row + 1 == rows {
            // What is left is the shared zero of the last row.
            for rest in row * self.pitch + self.pitch..self.phase {
                pixel(phase * self.phase + rest, None);
            }
        }
    }

    /// The output rows of all pictures in groups of bands: (image, output rows).
    pub(crate) fn bands(&self, batch: usize) -> Vec<(usize, Range<usize>)> {
        (0..batch)
            .flat_map(|image| {
                (0..self.height)
                    .step_by(self.band)
                    .map(move |y| (image, y..(y + self.band).min(self.height)))
            })
            .collect()
    }
}
