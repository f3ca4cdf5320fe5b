//! Positions as angles by which pairs of channels are turned (Su et al. 2021), on several axes.

use std::collections::BTreeMap;

use fresco_tensor::nn::{HeadRope, rope_half, rope_interleaved};
use fresco_tensor::{Buffer, Device, Tensor};

use crate::error::{ModelError, Result};

/// Which channels are turned together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pairs {
    /// Neighbours in each head.
    #[default]
    Neighbours,
    /// Channels that are half a head apart.
    Halves,
    /// Neighbours, and each head by angles of its own: the tables have all heads' angles in one row.
    NeighboursByHead,
    /// Channels that are half a head apart, and each head by angles of its own: the tables have a row for each head of a token.
    HalvesByHead,
}

impl Pairs {
    /// Whether each head has angles of its own.
    fn by_head(self) -> bool {
        matches!(self, Self::NeighboursByHead | Self::HalvesByHead)
    }
}

/// Cosines and sines for a list of positions, (n, d / 2) each, and how they turn heads of d channels. Tables that are shorter
/// turn the first channels of a head and leave the others.
#[derive(Clone, Debug)]
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
    pairs: Pairs,
}

/// What one number on an axis turns pairs of channels by.
#[derive(Clone, Debug)]
struct Turn {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Turn {
    fn new(at: f64, frequencies: &[f64]) -> Self {
        Self {
            cos: frequencies.iter().map(|f| (at * f).cos() as f32).collect(),
            sin: frequencies.iter().map(|f| (at * f).sin() as f32).collect(),
        }
    }
}

impl Rope {
    /// For positions with one number for each axis, one after the other. Axis `a` has `widths[a]` of a head's channels,
    /// whose frequencies fall from 1 towards `1 / theta`. Angles are f64, as their tables need it.
    pub fn new(positions: &[f64], widths: &[usize], theta: f64) -> Result<Self> {
        let thetas = vec![theta; widths.len()];
        Self::with_thetas(positions, widths, &thetas)
    }

    /// The same with a base for each axis.
    pub fn with_thetas(positions: &[f64], widths: &[usize], thetas: &[f64]) -> Result<Self> {
        let frequencies: Vec<Vec<f64>> = widths
            .iter()
            .zip(thetas)
            .map(|(&width, theta)| {
                let exponent = |k: usize| -2.0 * k as f64 / width as f64;
                (0..width / 2).map(|k| theta.powf(exponent(k))).collect()
            })
            .collect();
        Self::with_frequencies(positions, &frequencies)
    }

    /// With the frequencies of each axis.
    pub fn with_frequencies(positions: &[f64], frequencies: &[Vec<f64>]) -> Result<Self> {
        let axes = frequencies.len();
        if axes == 0 || !positions.len().is_multiple_of(axes) {
            let reason = format!(
                "{} numbers are no positions on {axes} axes",
                positions.len()
            );
            return Err(ModelError::invalid("positions", reason));
        }
        let (rows, half) = (
            positions.len() / axes,
            frequencies.iter().map(Vec::len).sum::<usize>(),
        );
        let mut cos = Buffer::with_room(rows * half)?;
        let mut sin = Buffer::with_room(rows * half)?;
        // Tokens of one row or column have the same number on an axis, and angles of f64 take long.
        let mut known: Vec<BTreeMap<u64, Turn>> = vec![BTreeMap::new(); axes];
        for position in positions.chunks_exact(axes) {
            for ((at, frequencies), known) in position.iter().zip(frequencies).zip(&mut known) {
                let turn = known
                    .entry(at.to_bits())
                    .or_insert_with(|| Turn::new(*at, frequencies));
                cos.extend_from_slice(&turn.cos);
                sin.extend_from_slice(&turn.sin);
            }
        }
        Ok(Self {
            cos: Tensor::from_buffer([rows, half], cos)?,
            sin: Tensor::from_buffer([rows, half], sin)?,
            pairs: Pairs::default(),
        })
    }

    /// From tables that somebody else made: (n, d / 2) or (b, n, d / 2).
    pub fn from_tables(cos: Tensor, sin: Tensor) -> Self {
        Self {
            cos,
            sin,
            pairs: Pairs::default(),
        }
    }

    /// The same angles for other pairs of channels.
    #[must_use]
    pub fn pairing(self, pairs: Pairs) -> Self {
        Self { pairs, ..self }
    }

    /// The same on a device, with all bits: angles of far positions need them.
    pub fn to(&self, device: &Device) -> Result<Self> {
        let device = &device.exact();
        Ok(Self {
            cos: self.cos.to(device)?,
            sin: self.sin.to(device)?,
            pairs: self.pairs,
        })
    }

    /// Some of the positions.
    pub fn narrow(&self, start: usize, len: usize) -> Result<Self> {
        let dim = self.cos.rank() - 2;
        Ok(Self {
            cos: self.cos.narrow(dim, start, len)?,
            sin: self.sin.narrow(dim, start, len)?,
            pairs: self.pairs,
        })
    }

    /// The tables, where one pass can turn heads of `width` channels while it joins them.
    pub(super) fn joins(&self, width: usize) -> Option<HeadRope<'_>> {
        let whole = self.cos.shape().last() == Some(&(width / 2));
        (whole && !self.pairs.by_head()).then_some(HeadRope {
            cos: &self.cos,
            sin: &self.sin,
            apart: self.pairs == Pairs::Halves,
        })
    }

    /// The same angles with each head of a token as a token of one head, where heads have angles of their own.
    pub(super) fn of_heads(&self, heads: usize) -> Result<Option<Self>> {
        let pairs = match self.pairs {
            Pairs::Neighbours | Pairs::Halves => return Ok(None),
            Pairs::NeighboursByHead => Pairs::Neighbours,
            Pairs::HalvesByHead => Pairs::Halves,
        };
        let table = |table: &Tensor| -> Result<Tensor> {
            let mut shape = table.shape().to_vec();
            if let (Pairs::NeighboursByHead, [.., n, row]) = (self.pairs, shape.as_mut_slice()) {
                (*n, *row) = (*n * heads, *row / heads.max(1));
            }
            Ok(table.reshape(shape)?)
        };
        Ok(Some(Self {
            cos: table(&self.cos)?,
            sin: table(&self.sin)?,
            pairs,
        }))
    }

    /// Turns each head of (b, n, heads * d).
    pub fn turn(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        let [b, n, width] = x.dims3()?;
        let head = width / heads.max(1);
        if let Some(rope) = self.of_heads(heads)? {
            let rows = x.reshape([b, n * heads, head])?;
            return Ok(rope.turn(&rows, 1)?.reshape([b, n, width])?);
        }
        let tables = self.cos.shape().last().copied().unwrap_or(0);
        let turned = match self.pairs {
            Pairs::Halves | Pairs::HalvesByHead => Self::half,
            Pairs::Neighbours | Pairs::NeighboursByHead => Self::interleaved,
        };
        if 2 * tables >= head {
            return turned(self, x, heads);
        }
        let each = x.reshape([b, n, heads, head])?;
        let first = each.narrow(3, 0, 2 * tables)?;
        let first = turned(self, &first.reshape([b, n, heads * 2 * tables])?, heads)?;
        let first = first.reshape([b, n, heads, 2 * tables])?;
        let rest = each.narrow(3, 2 * tables, head - 2 * tables)?;
        Ok(Tensor::cat(&[&first, &rest], 3)?.reshape([b, n, width])?)
    }

    /// The tables, to turn neighbouring channels while heads are joined.
    pub fn neighbours(&self) -> HeadRope<'_> {
        HeadRope {
            cos: &self.cos,
            sin: &self.sin,
            apart: false,
        }
    }

    /// Turns neighbouring channels of each head of (b, n, heads * d).
    pub fn interleaved(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        Ok(rope_interleaved(x, heads, &self.cos, &self.sin)?)
    }

    /// Turns channels that are half a head apart.
    pub fn half(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        Ok(rope_half(x, heads, &self.cos, &self.sin)?)
    }
}

/// How far apart tokens are, and where the first one is: for frames, rows and columns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeScale {
    pub scale: [f64; 3],
    pub shift: [f64; 3],
}

impl Default for RopeScale {
    fn default() -> Self {
        Self {
            scale: [1.0; 3],
            shift: [0.0; 3],
        }
    }
}

impl RopeScale {
    /// The position of a token.
    pub fn of(&self, at: [usize; 3]) -> [f64; 3] {
        [0, 1, 2].map(|axis| self.shift[axis] + self.scale[axis] * at[axis] as f64)
    }

    /// Moves the tokens of a picture: rows and columns apart, all of it along the first axis.
    pub fn move_picture(&self, positions: &mut [[f64; 3]]) {
        for [index, row, column] in positions {
            *index += self.shift[0];
            *row = self.shift[1] + self.scale[1] * *row;
            *column = self.shift[2] + self.scale[2] * *column;
        }
    }
}

/// The positions of a picture's tokens, row by row: `[index, row, column]`, from `start` on.
pub fn grid_positions(
    index: f64,
    (rows, columns): (usize, usize),
    start: (f64, f64),
) -> impl Iterator<Item = [f64; 3]> {
    (0..rows).flat_map(move |row| {
        (0..columns).map(move |column| [index, start.0 + row as f64, start.1 + column as f64])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_axis_has_its_own_channels() {
        let rope = Rope::new(&[0.0, 1.0, 2.0, 0.0], &[2, 4], 100.0).unwrap();
        assert_eq!(rope.cos.shape(), [2, 3]);
        let cos = [1.0, 1f64.cos(), 0.1f64.cos(), 2f64.cos(), 1.0, 1.0];
        for (a, b) in rope.cos.data().iter().zip(cos) {
            assert!((f64::from(*a) - b).abs() < 1e-6);
        }
        assert!(Rope::new(&[0.0; 3], &[2, 4], 10.0).is_err());
        let grid: Vec<_> = grid_positions(1.0, (2, 2), (0.0, 5.0)).collect();
        assert_eq!(grid[2], [1.0, 1.0, 5.0]);
    }

    #[test]
    fn pairs_are_data() {
        let x = Tensor::from_fn([1, 2, 8], |i| i as f32).unwrap();
        let rope = |width: usize| Rope::new(&[1.0, 2.0], &[width], 100.0).unwrap();
        let whole = rope(4);
        assert_eq!(
            whole.turn(&x, 2).unwrap(),
            whole.interleaved(&x, 2).unwrap()
        );
        assert!(whole.joins(4).is_some_and(|tables| !tables.apart));
        let halves = whole.clone().pairing(Pairs::Halves);
        assert_eq!(halves.turn(&x, 2).unwrap(), halves.half(&x, 2).unwrap());
        // Half of the channels of a head of eight turn; the others stay.
        let partly = halves.turn(&x, 1).unwrap();
        assert!(halves.joins(8).is_none());
        assert_eq!(partly.data()[4..8], x.data()[4..8]);
        let first = Tensor::from_vec([1, 1, 4], x.data()[..4].to_vec()).unwrap();
        let first = halves.narrow(0, 1).unwrap().half(&first, 1).unwrap();
        assert_eq!(partly.data()[..4], *first.data());
        // A table for both heads turns each by angles of its own.
        let all = rope(8).pairing(Pairs::NeighboursByHead);
        assert_eq!(all.turn(&x, 2).unwrap(), all.interleaved(&x, 1).unwrap());
    }

    #[test]
    fn pictures_are_moved() {
        let scale = RopeScale {
            scale: [3.0, 0.5, 2.0],
            shift: [1.0, 0.0, -1.0],
        };
        assert_eq!(scale.of([1, 2, 3]), [4.0, 1.0, 5.0]);
        let mut places = [[7.0, 4.0, 1.0]];
        scale.move_picture(&mut places);
        assert_eq!(places, [[8.0, 2.0, 1.0]]);
        RopeScale::default().move_picture(&mut places);
        assert_eq!(places, [[8.0, 2.0, 1.0]]);
    }
}
