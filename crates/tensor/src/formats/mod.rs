//! Formats of quantised weights whose rows stand by themselves: codes, the scales of groups of them, and one scale for the
//! whole row, side by side.
//!
//! A file keeps those parts in tensors of their own (`weight`, `weight_scale`, ..); [`crate::weights`] puts them together as
//! rows when a weight is read. So one weight is one tensor everywhere else: it can be cut into rows, looked up row by row,
//! copied to a device and counted like any other, and takes what it takes in the file.
//!
//! Some weights are rotated: each group of columns was multiplied with an orthonormal matrix, which spreads outliers
//! (`rotation.rs`). Products rotate the input in its place.
//!
//! The formats are those of comfy-kitchen (Apache-2.0), which was read for facts; no code of it is here.

mod encode;
pub(crate) mod rotation;
mod rows;
pub mod swizzle;
#[cfg(test)]
mod tests;

pub(crate) use encode::{Rounding, f8_by_chance, f8_steps, row_encoder};
pub use rotation::rotate;
pub(crate) use rows::E2M1;

/// How the values of a row are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowKind {
    /// An 8-bit float each.
    F8E4M3,
    F8E5M2,
    /// A signed byte each.
    Int8,
    /// Four signed bits each, the first of a pair in the lower half. Whether inputs are rounded to eight bits and not to four.
    Int4 {
        wide_input: bool,
    },
    /// Four bits (E2M1) each, the first of a pair in the upper half, and a scale in E4M3 for every 16.
    Nvfp4,
    /// An 8-bit float (E4M3) each, and a power of two for every 32.
    Mxfp8,
    /// Four or six bits each, which together with the scale of their group make a signed byte.
    Grid(GridKind),
    /// Four unsigned bits each, and a scale and an offset for every group.
    Affine(AffineKind),
}

/// How codes of four or six bits become bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GridKind {
    pub bits: u8,
    pub group: u16,
    /// Whether scales of groups are f32 and not E4M3.
    pub wide_scales: bool,
    pub levels: Levels,
    /// Whether a number is added to each group.
    pub corrected: bool,
}

/// What a code stands for before it is scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Levels {
    /// The codes themselves, half of them below zero.
    Even,
    /// [`USUAL_LEVELS`].
    Usual,
    /// A table of 16 numbers that comes with every row.
    Own,
}

/// The levels of four-bit codes that most files have: those that lose least of a normal distribution.
pub const USUAL_LEVELS: [f32; 16] = [
    -0.980_602, -0.794_529, -0.638_165, -0.500_986, -0.377_321, -0.263_187, -0.155_21, -0.050_72,
    0.052_541, 0.156_985, 0.265_284, 0.379_533, 0.502_636, 0.638_953, 0.794_876, 0.980_671,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AffineKind {
    pub group: u16,
    /// Bytes of a scale or an offset, and whether two bytes are bf16.
    pub scale: ScaleNumber,
}

/// The number format of scales that keep the one of their file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScaleNumber {
    F16,
    Bf16,
    F32,
}

/// A format whose rows stand by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowFormat {
    kind: RowKind,
    columns: u32,
    /// Columns that were rotated together; 0 for none.
    rotation: u32,
    exact: bool,
}

/// Most columns: sums of products of bytes then stay inside 32 bits.
const MOST_COLUMNS: usize = 1 << 17;

impl RowFormat {
    /// None where rows of so many values cannot be coded so.
    pub fn new(kind: RowKind, columns: usize, rotation: usize) -> Option<Self> {
        let fits = match kind {
            RowKind::F8E4M3 | RowKind::F8E5M2 | RowKind::Nvfp4 | RowKind::Mxfp8 => true,
            RowKind::Int8 => columns <= MOST_COLUMNS,
            RowKind::Int4 { .. } => columns.is_multiple_of(2) && columns <= MOST_COLUMNS,
            RowKind::Grid(grid) => {
                let group = usize::from(grid.group);
                let quarters = grid.bits == 4 || columns.is_multiple_of(4);
                matches!(grid.bits, 4 | 6)
                    && (grid.bits == 4 || grid.levels == Levels::Even)
                    && group > 0
                    && columns.is_multiple_of(group)
                    && columns.is_multiple_of(2)
                    && quarters
                    && columns <= MOST_COLUMNS
            }
            RowKind::Affine(AffineKind { group, .. }) => {
                group > 0 && columns.is_multiple_of(group.into()) && columns.is_multiple_of(2)
            }
        };
        let turned =
            rotation == 0 || (rotation::is_possible(rotation) && columns.is_multiple_of(rotation));
        if columns == 0 || !fits || !turned {
            return None;
        }
        Some(Self {
            kind,
            columns: u32::try_from(columns).ok()?,
            rotation: u32::try_from(rotation).ok()?,
            exact: false,
        })
    }

    /// The same for layers whose inputs must not be rounded.
    #[must_use]
    pub fn exact(self, exact: bool) -> Self {
        Self { exact, ..self }
    }

    pub fn kind(self) -> RowKind {
        self.kind
    }

    /// Values of a row.
    pub fn columns(self) -> usize {
        self.columns as usize
    }

    /// Columns that were rotated together; 0 for none.
    pub fn rotation(self) -> usize {
        self.rotation as usize
    }

    pub fn name(self) -> &'static str {
        match (self.kind, self.rotation) {
            (RowKind::F8E4M3, _) => "fp8_e4m3 scaled",
            (RowKind::F8E5M2, _) => "fp8_e5m2 scaled",
            (RowKind::Int8, 0) => "int8",
            (RowKind::Int8, _) => "int8_convrot",
            (RowKind::Int4 { .. }, _) => "int4_convrot",
            (RowKind::Nvfp4, _) => "nvfp4",
            (RowKind::Mxfp8, _) => "mxfp8",
            (RowKind::Grid(GridKind { bits: 6, .. }), _) => "w6a8",
            (RowKind::Grid(_), _) => "w4a8",
            (RowKind::Affine(_), _) => "awq_w4a16",
        }
    }

    /// Whether values are signed bytes times the scale of their row, and inputs may be rounded to bytes too.
    pub(crate) fn is_integer(self) -> bool {
        !self.exact && self.has_bytes()
    }

    /// Whether inputs may be rounded as the weight was.
    pub(crate) fn may_round(self) -> bool {
        !self.exact
    }

    /// Whether values are signed bytes times the scale of their row.
    pub(crate) fn has_bytes(self) -> bool {
        match self.kind {
            RowKind::Int8 | RowKind::Int4 { .. } => true,
            RowKind::Grid(grid) => !grid.corrected,
            _ => false,
        }
    }

    /// The largest number that inputs are rounded to in products of integers.
    pub(crate) fn input_levels(self) -> f32 {
        match self.kind {
            RowKind::Int4 { wide_input: false } => 7.0,
            _ => 127.0,
        }
    }

    /// Whether bf16 holds the values before their row's scale without loss.
    pub(crate) fn is_short(self) -> bool {
        match self.kind {
            RowKind::Grid(grid) => !grid.corrected,
            RowKind::Affine(_) => false,
            _ => true,
        }
    }

    /// Whether weights can be rounded to this format again.
    pub(crate) fn is_writable(self) -> bool {
        match self.kind {
            RowKind::Grid(grid) => grid.bits == 4 && !grid.corrected && grid.levels != Levels::Own,
            RowKind::Affine(_) => false,
            _ => true,
        }
    }
}
