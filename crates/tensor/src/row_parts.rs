//! Rows of a quantised weight whose codes and scales are in different tensors of a file: where each part of a row comes from. Main memory and GPUs put rows
//! together by the same description.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use rayon::prelude::*;

use crate::convert::{bf16_to_f32, f16_to_f32};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::formats::swizzle;
use crate::stored::Stored;
use crate::unread::Unread;

/// What a value is in a file, and in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Number {
    /// As many bytes in both: one, two or four.
    Bytes(usize),
    /// An f16 of the file, an f32 of the row.
    F16,
    Bf16,
}

impl Number {
    /// The number of a tensor whose values are f32 in rows; none where they are neither that nor of 16 bits.
    pub(crate) fn as_float(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::Bytes(4)),
            Dtype::F16 => Some(Self::F16),
            Dtype::Bf16 => Some(Self::Bf16),
            _ => None,
        }
    }

    /// Bytes of a value in the file.
    pub(crate) fn bytes_in_file(self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Bytes of a value in a row.
    pub(crate) fn bytes_in_row(self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::F16 | Self::Bf16 => 4,
        }
    }

    fn write(self, from: &[u8], to: &mut [u8]) {
        let bits = || u16::from_le_bytes([from[0], from[1]]);
        match self {
            Self::Bytes(_) => to.copy_from_slice(from),
            Self::F16 => to.copy_from_slice(&f16_to_f32(bits()).to_le_bytes()),
            Self::Bf16 => to.copy_from_slice(&bf16_to_f32(bits()).to_le_bytes()),
        }
    }
}

/// The order of values in a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// (rows, values)
    ByRow,
    /// (values, rows) for each expert
    ByValue,
    /// The same values for all rows of an expert.
    OfExpert,
    /// The same values for all rows.
    OfAll,
    /// Tiles of bytes ([`swizzle`]) for each expert, of so many rows and what fills up tiles.
    Tiles { rows: usize },
}

/// Distances between values that follow each other in a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Steps {
    pub(crate) expert: usize,
    pub(crate) row: usize,
    pub(crate) value: usize,
}

/// A part of every row, and the tensor that has it.
#[derive(Debug, Clone)]
pub(crate) struct RowPart {
    /// Whose shape says nothing.
    pub(crate) values: Stored,
    pub(crate) number: Number,
    pub(crate) order: Order,
    /// Where in a row it begins, in bytes.
    pub(crate) place: usize,
    /// Values of a row.
    pub(crate) count: usize,
    /// Rows of each expert.
    pub(crate) each: usize,
    /// The row, counted through all experts, that is the first one here.
    pub(crate) first: usize,
}

impl RowPart {
    /// None for tiles.
    pub(crate) fn steps(&self) -> Option<Steps> {
        let (expert, row, value) = match self.order {
            Order::ByRow => (self.each * self.count, self.count, 1),
            Order::ByValue => (self.each * self.count, 1, self.each),
            Order::OfExpert => (self.count, 0, 1),
            Order::OfAll => (0, 0, 1),
            Order::Tiles { .. } => return None,
        };
        Some(Steps { expert, row, value })
    }

    /// Bytes of the tiles of an expert; none in other orders.
    pub(crate) fn tiles(&self) -> usize {
        let Order::Tiles { rows } = self.order else {
            return 0;
        };
        let (high, wide) = swizzle::stored_size(rows, self.count);
        high * wide
    }

    fn bytes(&self) -> Result<Cow<'_, [u8]>> {
        Ok(match self.values.in_file() {
            Some(unread) => Cow::Owned(unread.read()?),
            None => Cow::Borrowed(self.values.bytes()),
        })
    }

    /// Writes the part of a row to its place.
    fn write(&self, from: &[u8], row: usize, to: &mut [u8]) {
        let row = self.first + row;
        let (expert, row) = (row / self.each, row % self.each);
        let (size, wide) = (self.number.bytes_in_file(), self.number.bytes_in_row());
        let to = &mut to[self.place..][..self.count * wide];
        let Some(steps) = self.steps() else {
            let tiles = &from[expert * self.tiles()..];
            for (value, to) in to.iter_mut().enumerate() {
                *to = tiles[swizzle::place(row, value, self.count)];
            }
            return;
        };
        let start = expert * steps.expert + row * steps.row;
        if steps.value == 1 && size == wide {
            to.copy_from_slice(&from[start * size..][..self.count * size]);
            return;
        }
        for (value, to) in to.chunks_exact_mut(wide).enumerate() {
            let at = (start + value * steps.value) * size;
            self.number.write(&from[at..at + size], to);
        }
    }

    /// The same for some of the rows, with no more of the tensor than those need where it is still in its file.
    fn cut(mut self, first: usize, rows: usize) -> Self {
        self.first += first;
        let narrow = self.values.in_file().and_then(|all| self.narrow(all, rows));
        let Some((part, start)) = narrow else {
            return self;
        };
        let values = part.len() / self.number.bytes_in_file();
        let Ok(values) = Stored::later(self.values.dtype(), [values], part) else {
            return self;
        };
        (self.values, self.first) = (values, self.first - start);
        match &mut self.order {
            Order::Tiles { rows } => {
                *rows = self.values.len() / swizzle::stored_size(1, self.count).1;
                self.each = *rows;
            }
            _ => self.each = rows.max(1),
        }
        self
    }

    /// What some of the rows need of a tensor, and the row that comes first in it. None where all of it is needed, or may be.
    fn narrow(&self, all: &Unread, rows: usize) -> Option<(Unread, usize)> {
        let (size, end) = (self.number.bytes_in_file(), self.first + rows);
        match self.order {
            Order::ByRow => {
                let count = all.len().checked_div(self.count * size)?;
                Some((all.rows(count, self.first, rows)?, self.first))
            }
            // A piece of each line.
            Order::ByValue if all.len() == self.each * self.count * size => {
                let line =
                    |value| all.rows(self.each * self.count, value * self.each + self.first, rows);
                let lines: Vec<Unread> = (0..self.count).map(line).collect::<Option<_>>()?;
                let lines: Vec<&Unread> = lines.iter().collect();
                Some((Unread::joined(&lines)?, self.first))
            }
            Order::Tiles { .. } if all.len() == self.tiles() => {
                let (from, to) = (self.first / swizzle::ROWS, end.div_ceil(swizzle::ROWS));
                let high = all.len() / swizzle::stored_size(1, self.count).1 / swizzle::ROWS;
                Some((all.rows(high, from, to - from)?, from * swizzle::ROWS))
            }
            _ => None,
        }
    }
}

/// Finds what belongs to the rows of a weight.
pub(crate) type FindParts = Arc<dyn Fn() -> Result<Vec<RowPart>> + Send + Sync>;

/// Some rows of a weight, of which a file has all but the codes elsewhere.
#[derive(Clone)]
pub(crate) struct RowsOfParts {
    find: FindParts,
    first: usize,
    rows: usize,
}

impl fmt::Debug for RowsOfParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowsOfParts")
            .field("first", &self.first)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

impl RowsOfParts {
    pub(crate) fn new(rows: usize, find: FindParts) -> Self {
        Self {
            find,
            first: 0,
            rows,
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Some of these rows, which they have.
    pub(crate) fn cut(&self, from: usize, rows: usize) -> Self {
        Self {
            find: Arc::clone(&self.find),
            first: self.first + from,
            rows,
        }
    }

    pub(crate) fn parts(&self) -> Result<Vec<RowPart>> {
        let parts = (self.find)()?;
        let cut = |part: RowPart| part.cut(self.first, self.rows);
        Ok(parts.into_iter().map(cut).collect())
    }
}

/// Writes parts of rows of so many bytes to their places.
pub(crate) fn write_parts(parts: &[RowPart], row_bytes: usize, all: &mut [u8]) -> Result<()> {
    let sources = parts.iter().map(RowPart::bytes);
    let sources: Vec<Cow<'_, [u8]>> = sources.collect::<Result<_>>()?;
    all.par_chunks_mut(row_bytes)
        .enumerate()
        .for_each(|(row, to)| {
            for (part, from) in parts.iter().zip(&sources) {
                part.write(from, row, to);
            }
        });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;
    use crate::weights::open_weights;

    const ROWS: usize = 300;

    fn part(name: &str, (values, number): (Stored, Number), order: Order, count: usize) -> RowPart {
        assert!(values.in_file().is_some(), "{name}");
        RowPart {
            values,
            number,
            order,
            place: 3,
            count,
            each: ROWS,
            first: 0,
        }
    }

    /// Rows that are cut ask for no more of a tensor than they need, and are the same.
    #[test]
    fn parts_of_some_rows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let value = |count| {
            let plain = Tensor::from_fn([count], |i| (i * 7 % 1001) as f32 / 8.0).unwrap();
            Stored::from_f32(&plain, Dtype::F16).unwrap()
        };
        let codes: Vec<u8> = (0..384 * 8).map(|i| (i * 13 % 251) as u8).collect();
        let tensors = [
            ("tiles", Stored::new(Dtype::U8, [384, 8], codes).unwrap()),
            ("lines", value(5 * ROWS)),
            ("one", value(5)),
        ];
        let tensors: Vec<_> = tensors.iter().map(|(name, value)| (*name, value)).collect();
        crate::safetensors::write(&path, &tensors, &[]).unwrap();
        let file = open_weights(&path).unwrap();
        let get = |name: &str| file.later(name).unwrap();
        let tiles = Order::Tiles { rows: ROWS };
        // What rows 130 to 149 need, in bytes.
        let cases = [
            ("tiles", Number::Bytes(1), tiles, 6, 128 * 8),
            ("lines", Number::Bytes(2), Order::ByRow, 5, 20 * 5 * 2),
            ("lines", Number::F16, Order::ByValue, 5, 20 * 5 * 2),
            ("one", Number::F16, Order::OfAll, 5, 10),
            ("one", Number::Bytes(2), Order::OfExpert, 5, 10),
        ];
        for (name, number, order, count, needed) in cases {
            let all = part(name, (get(name), number), order, count);
            let cut = all.clone().cut(130, 20);
            assert_eq!(cut.values.byte_len(), needed, "{name} {order:?}");
            let size = 4 + count * number.bytes_in_row();
            let (mut whole, mut some) = (vec![0; ROWS * size], vec![0; 20 * size]);
            write_parts(&[all], size, &mut whole).unwrap();
            write_parts(std::slice::from_ref(&cut), size, &mut some).unwrap();
            assert!(some.iter().any(|byte| *byte != 0), "{name} {order:?}");
            assert_eq!(some, whole[130 * size..150 * size], "{name} {order:?}");
            let again = cut.cut(5, 2);
            write_parts(&[again], size, &mut some[..2 * size]).unwrap();
            assert_eq!(some[..2 * size], whole[135 * size..137 * size]);
        }
    }
}
