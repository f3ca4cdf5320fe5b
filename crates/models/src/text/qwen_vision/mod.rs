//! The networks with which Qwen's language models see pictures: squares of pixels become rows, four neighbours of which
//! become one row of the text network.

mod v25;
mod v3;

use fresco_tensor::resize::{ResizeMethod, interpolate};
use fresco_tensor::{Buffer, Tensor};

use super::decoder::Eyes;
use crate::error::{ModelError, Result};
use crate::store::WeightStore;
use crate::transformer::{Pairs, Rope};

pub use v3::{Vision3, Vision3Config};
pub use v25::{Vision25, Vision25Config};

/// More layers than any of these has.
const MAX_LAYERS: usize = 256;
/// Squares side by side, and above each other, that become one row.
const MERGED: usize = 2;

/// The network in a file that brings one.
pub(super) fn find(store: &WeightStore) -> Result<Option<Box<dyn Eyes>>> {
    if store.has("visual.pos_embed.weight") {
        let config = Vision3Config::detect(store)?;
        return Ok(Some(Box::new(Vision3::new(store, &config)?)));
    }
    if store.has("visual.patch_embed.proj.weight") {
        let config = Vision25Config::detect(store)?;
        return Ok(Some(Box::new(Vision25::new(store, &config)?)));
    }
    Ok(None)
}

/// Layers of a list whose first keys are known.
fn layers(store: &WeightStore) -> usize {
    let key = |i: usize| format!("visual.blocks.{i}.attn.qkv.weight");
    (0..MAX_LAYERS).take_while(|i| store.has(&key(*i))).count()
}

/// The sizes of a matrix.
fn matrix(store: &WeightStore, key: &str) -> Result<(usize, usize)> {
    match store.shape(key) {
        Some(&[rows, columns]) => Ok((rows, columns)),
        Some(found) => Err(ModelError::Shape {
            file: store.file().to_owned(),
            key: key.to_owned(),
            expected: "a matrix".to_owned(),
            found: found.to_vec(),
        }),
        None => Err(ModelError::Missing {
            file: store.file().to_owned(),
            key: key.to_owned(),
        }),
    }
}

/// How pictures become squares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Squares {
    /// Pixels along a side.
    pub side: usize,
    /// Times that a picture counts, as if it were a film of that many frames.
    pub frames: usize,
    /// Pixels that a picture has at least and at most.
    pub pixels: (usize, usize),
    pub mean: [f32; 3],
    pub deviation: [f32; 3],
}

impl Squares {
    /// Height and width in pixels: multiples of two squares near those of the picture, within the limits.
    pub fn size(&self, height: usize, width: usize) -> (usize, usize) {
        let unit = (self.side * MERGED) as f64;
        let (h, w) = (height as f64, width as f64);
        let near = |n: f64| (n / unit).round_ties_even() * unit;
        let (least, most) = self.pixels;
        let (mut new_h, mut new_w) = (near(h), near(w));
        if new_h * new_w > most as f64 {
            let shrink = (h * w / most as f64).sqrt();
            let down = |n: f64| ((n / shrink / unit).floor() * unit).max(unit);
            (new_h, new_w) = (down(h), down(w));
        } else if new_h * new_w < least as f64 {
            let grow = (least as f64 / (h * w)).sqrt();
            let up = |n: f64| (n * grow / unit).ceil() * unit;
            (new_h, new_w) = (up(h), up(w));
        }
        (new_h.max(unit) as usize, new_w.max(unit) as usize)
    }

    /// The squares of the first picture of a batch `(b, h, w, c)`, four that become one row next to each other, and the
    /// rows and columns of the grid.
    pub fn cut(&self, picture: &Tensor) -> Result<(Tensor, (usize, usize))> {
        let [count, h, w, channels] = picture.dims4()?;
        if count == 0 || h == 0 || w == 0 || channels < 3 {
            let reason = format!("a picture of {w}x{h} with {channels} channels cannot be seen");
            return Err(ModelError::invalid("prompt", reason));
        }
        let first = picture.narrow(0, 0, 1)?.narrow(3, 0, 3)?.nhwc_to_nchw()?;
        let (height, width) = self.size(h, w);
        let resized = if (height, width) == (h, w) {
            first
        } else {
            interpolate(&first, width, height, ResizeMethod::Bilinear)?
        };
        let pixels = resized.data();
        let (rows, columns) = (height / self.side, width / self.side);
        let row = 3 * self.frames * self.side * self.side;
        let mut out = Buffer::with_room(rows * columns * row)?;
        for (top, left) in merged_order(rows, columns) {
            for c in 0..3 {
                let (mean, deviation) = (self.mean[c], self.deviation[c]);
                for _ in 0..self.frames {
                    for y in 0..self.side {
                        let at = (c * height + top * self.side + y) * width + left * self.side;
                        let line = &pixels[at..at + self.side];
                        out.extend(line.iter().map(|v| (v - mean) / deviation));
                    }
                }
            }
        }
        let squares = Tensor::from_buffer([rows * columns, row], out)?;
        Ok((squares, (rows, columns)))
    }
}

/// Rows and columns of the squares, four that become one row next to each other.
fn merged_order(rows: usize, columns: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows / MERGED).flat_map(move |row| {
        (0..columns / MERGED).flat_map(move |column| {
            (0..MERGED).flat_map(move |y| {
                (0..MERGED).map(move |x| (row * MERGED + y, column * MERGED + x))
            })
        })
    })
}

/// Angles for squares at rows and columns: half of a head's pairs by the row, half by the column.
fn grid_rope(places: impl Iterator<Item = (usize, usize)>, head: usize) -> Result<Rope> {
    let frequencies: Vec<f64> = (0..head / 4)
        .map(|k| 1e4_f64.powf(-4.0 * k as f64 / head as f64))
        .collect();
    let positions: Vec<f64> = places
        .flat_map(|(row, column)| [row as f64, column as f64])
        .collect();
    let rope = Rope::with_frequencies(&positions, &[frequencies.clone(), frequencies])?;
    Ok(rope.pairing(Pairs::Halves))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_multiples_within_limits() {
        let squares = Squares {
            side: 14,
            frames: 2,
            pixels: (3136, 12_845_056),
            mean: [0.0; 3],
            deviation: [1.0; 3],
        };
        assert_eq!(squares.size(30, 30), (56, 56));
        assert_eq!(squares.size(100, 150), (112, 140));
        assert_eq!(squares.size(40, 300), (28, 308));
        let (h, w) = squares.size(8000, 4000);
        assert!(h * w <= 12_845_056 && h % 28 == 0 && w % 28 == 0);
        let picture = Tensor::from_fn([2, 56, 56, 3], |i| i as f32).unwrap();
        let (rows, grid) = squares.cut(&picture).unwrap();
        assert_eq!((rows.shape(), grid), (&[16, 1176][..], (4, 4)));
        // The second square of four is to the right of the first, the third below.
        assert_eq!(rows.at(&[1, 0]).unwrap(), 14.0 * 3.0);
        assert_eq!(rows.at(&[2, 0]).unwrap(), 14.0 * 56.0 * 3.0);
        assert!(squares.cut(&Tensor::zeros([1, 4, 4, 1]).unwrap()).is_err());
    }
}
