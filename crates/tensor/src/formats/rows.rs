//! Reading rows: where their parts are, and what the codes stand for.
//!
//! A row is its codes, then the scales of its groups, then what else belongs to groups, then its own scale in f32.

use std::ops::Range;

use super::{
    AffineKind, GridKind, Levels, RowFormat, RowKind, ScaleNumber, USUAL_LEVELS, rotation,
};
use crate::convert::{F8_E4M3, bf16_to_f32, f8_e5m2_to_f32, f16_to_f32};

/// The values of four bits as floats with two bits of exponent and one of mantissa.
pub(crate) const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// A power of two from its exponent; none of them is zero but the first, which stands for empty blocks.
pub(crate) fn power(exponent: u8) -> f32 {
    f32::from_bits(u32::from(exponent) << 23)
}

impl ScaleNumber {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    fn read(self, bytes: &[u8], at: usize) -> f32 {
        let at = at * self.bytes();
        match self {
            Self::F16 => f16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]])),
            Self::Bf16 => bf16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]])),
            Self::F32 => float(bytes, at),
        }
    }
}

fn float(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The part of a pair of nibbles that a column is; the first of a pair is in the lower half.
fn nibble(bytes: &[u8], column: usize) -> u8 {
    bytes[column / 2] >> (column % 2 * 4) & 0xF
}

impl GridKind {
    fn code_bytes(self, columns: usize) -> usize {
        columns * usize::from(self.bits) / 8
    }

    pub(crate) fn scale_bytes(self) -> usize {
        if self.wide_scales { 4 } else { 1 }
    }

    /// The code of a column.
    fn code(self, codes: &[u8], columns: usize, column: usize) -> u8 {
        let low = nibble(codes, column);
        if self.bits == 4 {
            return low;
        }
        let high = codes[columns / 2 + column / 4] >> (column % 4 * 2) & 3;
        low | high << 4
    }
}

impl RowFormat {
    /// Bytes of the codes of a row.
    pub fn code_bytes(self) -> usize {
        let columns = self.columns();
        match self.kind {
            RowKind::F8E4M3 | RowKind::F8E5M2 | RowKind::Int8 => columns,
            RowKind::Int4 { .. } | RowKind::Affine(_) => columns / 2,
            RowKind::Nvfp4 => self.padded_columns() / 2,
            RowKind::Mxfp8 => self.padded_columns(),
            RowKind::Grid(grid) => grid.code_bytes(columns),
        }
    }

    /// The columns that files keep: whole blocks.
    pub fn padded_columns(self) -> usize {
        match self.kind {
            RowKind::Nvfp4 => self.columns().next_multiple_of(16),
            RowKind::Mxfp8 => self.columns().next_multiple_of(32),
            _ => self.columns(),
        }
    }

    /// Groups of a row with scales of their own; none where there is only that of the row.
    pub fn groups(self) -> usize {
        match self.kind {
            RowKind::Nvfp4 => self.padded_columns() / 16,
            RowKind::Mxfp8 => self.padded_columns() / 32,
            RowKind::Grid(grid) => self.columns() / usize::from(grid.group),
            RowKind::Affine(affine) => self.columns() / usize::from(affine.group),
            _ => 0,
        }
    }

    /// Bytes of the scales of groups, and of what else belongs to them.
    pub(crate) fn group_bytes(self) -> usize {
        let groups = self.groups();
        match self.kind {
            RowKind::Grid(grid) => {
                let corrections = if grid.corrected { 4 * groups } else { 0 };
                let table = if grid.levels == Levels::Own { 64 } else { 0 };
                groups * grid.scale_bytes() + corrections + table
            }
            RowKind::Affine(affine) => 2 * groups * affine.scale.bytes(),
            _ => groups,
        }
    }

    fn has_row_scale(self) -> bool {
        !matches!(self.kind, RowKind::Mxfp8 | RowKind::Affine(_))
    }

    /// Bytes of a row with all that belongs to it.
    pub fn row_bytes(self) -> usize {
        self.code_bytes() + self.group_bytes() + if self.has_row_scale() { 4 } else { 0 }
    }

    /// The scale that stands at the end of a row.
    pub(crate) fn stored_scale(self, row: &[u8]) -> f32 {
        if self.has_row_scale() {
            float(row, self.code_bytes() + self.group_bytes())
        } else {
            1.0
        }
    }

    /// What all values of [`Self::plain`] are multiplied with.
    pub(crate) fn row_scale(self, row: &[u8]) -> f32 {
        match self.kind {
            // What is added to a group comes after the scale.
            RowKind::Grid(grid) if grid.corrected => 1.0,
            _ => self.stored_scale(row),
        }
    }

    /// Some values of a row before its scale and, if it is rotated, as it is stored.
    pub(crate) fn plain(self, row: &[u8], range: Range<usize>, out: &mut [f32]) {
        let (codes, rest) = row.split_at(self.code_bytes());
        let columns = range.clone();
        let values = out.iter_mut();
        match self.kind {
            RowKind::F8E4M3 => {
                for (value, code) in values.zip(&codes[range]) {
                    *value = F8_E4M3[usize::from(*code)];
                }
            }
            RowKind::F8E5M2 => {
                for (value, code) in values.zip(&codes[range]) {
                    *value = f8_e5m2_to_f32(*code);
                }
            }
            RowKind::Int8 => {
                for (value, code) in values.zip(&codes[range]) {
                    *value = f32::from(*code as i8);
                }
            }
            RowKind::Int4 { .. } => {
                for (value, column) in values.zip(columns) {
                    *value = f32::from(signed(nibble(codes, column)));
                }
            }
            RowKind::Nvfp4 => {
                for (value, column) in values.zip(columns) {
                    let code = nibble(codes, column ^ 1);
                    *value = E2M1[usize::from(code)] * F8_E4M3[usize::from(rest[column / 16])];
                }
            }
            RowKind::Mxfp8 => {
                for (value, column) in values.zip(columns) {
                    *value = F8_E4M3[usize::from(codes[column])] * power(rest[column / 32]);
                }
            }
            RowKind::Grid(grid) => self.plain_grid(grid, (codes, rest), range, out),
            RowKind::Affine(affine) => self.plain_affine(affine, (codes, rest), range, out),
        }
    }

    fn plain_grid(
        self,
        grid: GridKind,
        (codes, rest): (&[u8], &[u8]),
        range: Range<usize>,
        out: &mut [f32],
    ) {
        let group = usize::from(grid.group);
        let corrections = grid.corrected.then(|| {
            let scale = float(rest, self.group_bytes());
            (&rest[self.groups() * grid.scale_bytes()..], scale)
        });
        self.each_level(grid, (codes, rest), range, |at, column, level| {
            out[at] = match corrections {
                None => level,
                Some((added, scale)) => level * scale + float(added, column / group * 4),
            };
        });
    }

    /// Calls with the place, the column and the byte of each code.
    fn each_level(
        self,
        grid: GridKind,
        (codes, rest): (&[u8], &[u8]),
        range: Range<usize>,
        mut use_level: impl FnMut(usize, usize, f32),
    ) {
        let table: [f32; 64] = std::array::from_fn(|code| match grid.levels {
            Levels::Even => code as f32 - if grid.bits == 4 { 8.0 } else { 32.0 },
            Levels::Usual => USUAL_LEVELS[code % 16],
            Levels::Own => float(rest, self.group_bytes() - 64 + code % 16 * 4),
        });
        let (columns, group) = (self.columns(), usize::from(grid.group));
        let mut column = range.start;
        while column < range.end {
            let end = range.end.min((column / group + 1) * group);
            let scale = grid_scale(grid, rest, column / group);
            // The bytes of all codes, once for the group.
            let mut levels = [0.0; 64];
            let count = 1 << grid.bits;
            for (level, plain) in levels.iter_mut().zip(&table).take(count) {
                *level = (plain * scale).round_ties_even().clamp(-127.0, 127.0);
            }
            for column in column..end {
                let code = grid.code(codes, columns, column);
                use_level(column - range.start, column, levels[usize::from(code)]);
            }
            column = end;
        }
    }

    fn plain_affine(
        self,
        affine: AffineKind,
        (codes, rest): (&[u8], &[u8]),
        range: Range<usize>,
        out: &mut [f32],
    ) {
        let (group, groups) = (usize::from(affine.group), self.groups());
        for (value, column) in out.iter_mut().zip(range) {
            let code = f32::from(nibble(codes, column)) - 8.0;
            let at = column / group;
            let (scale, zero) = (
                affine.scale.read(rest, at),
                affine.scale.read(rest, groups + at),
            );
            *value = code * scale + zero;
        }
    }

    /// Some values of a row as signed bytes, of formats that have them, and four bytes apart from `at` on: `step` bytes from
    /// one group of four to the next.
    pub(crate) fn bytes_in_fours(
        self,
        row: &[u8],
        range: Range<usize>,
        to: &mut [u8],
        (at, step): (usize, usize),
    ) {
        let (codes, rest) = row.split_at(self.code_bytes());
        let mut put = |i: usize, byte: i8| to[at + i / 4 * step + i % 4] = byte as u8;
        match self.kind {
            RowKind::Int8 => {
                for (i, code) in codes[range].iter().enumerate() {
                    put(i, *code as i8);
                }
            }
            RowKind::Int4 { .. } => {
                for (i, column) in range.enumerate() {
                    put(i, signed(nibble(codes, column)));
                }
            }
            RowKind::Grid(grid) => {
                self.each_level(grid, (codes, rest), range, |i, _, level| {
                    put(i, level as i8);
                });
            }
            _ => unreachable!("only formats with bytes are asked for them"),
        }
    }

    /// All values of a row.
    fn decode_row(self, row: &[u8], out: &mut [f32]) {
        if self.kind == RowKind::Nvfp4 {
            // The scales first: the order of the format's own code, to the last bit.
            let (codes, rest) = row.split_at(self.code_bytes());
            let whole = self.stored_scale(row);
            for (column, value) in out.iter_mut().enumerate() {
                let scale = whole * F8_E4M3[usize::from(rest[column / 16])];
                *value = E2M1[usize::from(nibble(codes, column ^ 1))] * scale;
            }
            return;
        }
        self.plain(row, 0..self.columns(), out);
        let scale = self.row_scale(row);
        if scale != 1.0 {
            for value in &mut *out {
                *value *= scale;
            }
        }
        if self.rotation > 0 {
            rotation::rotate(out, self.rotation());
        }
    }

    /// As many whole rows as both sides have.
    pub(crate) fn decode(self, bytes: &[u8], out: &mut [f32]) {
        let rows = bytes.chunks_exact(self.row_bytes());
        for (row, out) in rows.zip(out.chunks_exact_mut(self.columns())) {
            self.decode_row(row, out);
        }
    }
}

fn grid_scale(grid: GridKind, rest: &[u8], group: usize) -> f32 {
    if grid.wide_scales {
        float(rest, group * 4)
    } else {
        F8_E4M3[usize::from(rest[group])]
    }
}

/// Four bits as a number with a sign.
fn signed(code: u8) -> i8 {
    (code << 4) as i8 >> 4
}
