//! Writing rows: from numbers to codes and scales.

use rayon::prelude::*;

use super::rows::{E2M1, power};
use super::{GridKind, Levels, RowFormat, RowKind, USUAL_LEVELS, rotation};
use crate::convert::{F8_E4M3, f32_to_f8_e4m3, f32_to_f8_e5m2};
use crate::dtype::Dtype;
use crate::synthetic;

/// The largest numbers of the 8-bit floats.
const F8E4M3_MAX: f32 = 448.0;
const F8E5M2_MAX: f32 = 57_344.0;
const E2M1_MAX: f32 = 6.0;

/// How often the scales of groups are fitted to the levels that were chosen with them.
const FITS: usize = 2;

/// How a number between two codes is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    Nearest,
    /// Up or down by chance, the nearer the more likely, so that on average nothing is lost: for small changes of coarse
    /// numbers. The chance follows from the seed.
    Chance(u64),
}

impl Rounding {
    /// A number in units of the codes, as a whole one.
    fn whole(self, index: usize, value: f32) -> f32 {
        match self {
            Self::Nearest => value.round_ties_even(),
            Self::Chance(seed) => (value + chance(seed, index)).floor(),
        }
    }

    /// Whether the upper one of two neighbours is taken, for a value that lies so far between them.
    fn takes_upper(self, index: usize, part: f32) -> bool {
        match self {
            Self::Nearest => part > 0.5,
            Self::Chance(seed) => chance(seed, index) < part,
        }
    }
}

fn chance(seed: u64, index: usize) -> f32 {
    f32::midpoint(synthetic::unit(seed, index), 1.0)
}

/// The positive values of an 8-bit float from zero to the largest, by their codes.
pub(crate) fn f8_steps(dtype: Dtype) -> Vec<f32> {
    let largest = if dtype == Dtype::F8E4M3 { 0x7E } else { 0x7B };
    let codes: Vec<u8> = (0..=largest).collect();
    dtype.to_f32(&codes)
}

/// Values as 8-bit floats by chance; what is too large is the largest.
pub(crate) fn f8_by_chance(dtype: Dtype, seed: u64, values: &[f32]) -> Vec<u8> {
    let steps = f8_steps(dtype);
    let indexed = values.par_iter().with_min_len(1 << 14).enumerate();
    indexed
        .map(|(index, value)| f8_code(&steps, Rounding::Chance(seed), index, *value))
        .collect()
}

fn f8_code(steps: &[f32], rounding: Rounding, index: usize, value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return 0x7F | sign;
    }
    let size = value.abs();
    let below = steps.partition_point(|s| *s <= size) - 1;
    let up = match steps.get(below + 1) {
        Some(above) => {
            let part = (size - steps[below]) / (above - steps[below]);
            u8::from(rounding.takes_upper(index, part))
        }
        None => 0,
    };
    (below as u8 + up) | sign
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, v| v.abs().max(most))
}

/// What is the same for all rows of a weight.
struct RowEncoder {
    format: RowFormat,
    rounding: Rounding,
    /// The scale of all rows, where they share one.
    scale: f32,
    steps: Vec<f32>,
}

/// Values in a row format, of as many rows as there are; none where they cannot be written so.
pub(crate) fn row_encoder(
    format: RowFormat,
    rounding: Rounding,
    values: &[f32],
) -> Option<Vec<u8>> {
    let columns = format.columns();
    if !format.is_writable() || !values.len().is_multiple_of(columns) {
        return None;
    }
    let most = match format.kind {
        RowKind::F8E4M3 => F8E4M3_MAX,
        RowKind::F8E5M2 => F8E5M2_MAX,
        RowKind::Nvfp4 => F8E4M3_MAX * E2M1_MAX,
        _ => 0.0,
    };
    let all = if most > 0.0 { largest(values) } else { 0.0 };
    let encoder = RowEncoder {
        format,
        rounding,
        scale: if all > 0.0 { all / most } else { 1.0 },
        steps: match format.kind {
            RowKind::F8E5M2 => f8_steps(Dtype::F8E5M2),
            _ => f8_steps(Dtype::F8E4M3),
        },
    };
    let mut out = vec![0; values.len() / columns * format.row_bytes()];
    out.par_chunks_mut(format.row_bytes())
        .zip(values.par_chunks(columns))
        .enumerate()
        .for_each(|(row, (out, values))| encoder.row(row * columns, values, out));
    Some(out)
}

impl RowEncoder {
    /// Writes one row; `first` is the number of its first value.
    fn row(&self, first: usize, values: &[f32], out: &mut [u8]) {
        let format = self.format;
        let mut turned = Vec::new();
        let values = if format.rotation > 0 {
            turned.extend_from_slice(values);
            rotation::rotate(&mut turned, format.rotation());
            &turned
        } else {
            values
        };
        let (codes, rest) = out.split_at_mut(format.code_bytes());
        let (groups, own) = rest.split_at_mut(format.group_bytes());
        let scale = match format.kind {
            RowKind::F8E4M3 | RowKind::F8E5M2 => self.floats(first, values, codes),
            RowKind::Int8 => {
                let scale = (largest(values) / 127.0).max(1e-30);
                for (i, (code, value)) in codes.iter_mut().zip(values).enumerate() {
                    let whole = self.rounding.whole(first + i, value / scale);
                    *code = whole.clamp(-128.0, 127.0) as i8 as u8;
                }
                scale
            }
            RowKind::Int4 { .. } => {
                let scale = largest(values).max(1e-10) / 7.0;
                for (i, value) in values.iter().enumerate() {
                    let whole = self.rounding.whole(first + i, value / scale);
                    let code = whole.clamp(-7.0, 7.0) as i8 as u8 & 0xF;
                    codes[i / 2] |= code << (i % 2 * 4);
                }
                scale
            }
            RowKind::Nvfp4 => self.fours(first, values, codes, groups),
            RowKind::Mxfp8 => {
                self.powers(first, values, codes, groups);
                return;
            }
            RowKind::Grid(grid) => self.grid(grid, first, values, codes, groups),
            RowKind::Affine(_) => return,
        };
        own.copy_from_slice(&scale.to_le_bytes());
    }

    fn floats(&self, first: usize, values: &[f32], codes: &mut [u8]) -> f32 {
        let (most, wide) = match self.format.kind {
            RowKind::F8E5M2 => (F8E5M2_MAX, true),
            _ => (F8E4M3_MAX, false),
        };
        let by = 1.0 / self.scale;
        for (i, (code, value)) in codes.iter_mut().zip(values).enumerate() {
            let value = (value * by).clamp(-most, most);
            *code = match (self.rounding, wide) {
                (Rounding::Nearest, true) => f32_to_f8_e5m2(value),
                (Rounding::Nearest, false) => f32_to_f8_e4m3(value),
                (rounding, _) => f8_code(&self.steps, rounding, first + i, value),
            };
        }
        self.scale
    }

    fn fours(&self, first: usize, values: &[f32], codes: &mut [u8], scales: &mut [u8]) -> f32 {
        for (block, (values, stored)) in values.chunks(16).zip(scales).enumerate() {
            let wanted = largest(values) / E2M1_MAX / self.scale;
            *stored = f32_to_f8_e4m3(wanted.min(F8E4M3_MAX));
            let scale = self.scale * F8_E4M3[usize::from(*stored)];
            if scale == 0.0 {
                continue;
            }
            for (i, value) in values.iter().enumerate() {
                let at = block * 16 + i;
                let value = (value / scale).clamp(-E2M1_MAX, E2M1_MAX);
                let code = e2m1_code(self.rounding, first + at, value);
                // The first of a pair is in the upper half.
                codes[at / 2] |= code << (4 - at % 2 * 4);
            }
        }
        self.scale
    }

    fn powers(&self, first: usize, values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
        let blocks = values.chunks(32).zip(codes.chunks_mut(32)).zip(scales);
        for (block, ((values, codes), stored)) in blocks.enumerate() {
            let most = largest(values);
            if most == 0.0 {
                continue;
            }
            let needed = (most / F8E4M3_MAX).max(f32::from_bits(1 << 22));
            let exponent = (needed.log2().ceil() + 127.0).clamp(1.0, 254.0);
            *stored = exponent as u8;
            let scale = power(*stored);
            for (i, (code, value)) in codes.iter_mut().zip(values).enumerate() {
                let value = (value / scale).clamp(-F8E4M3_MAX, F8E4M3_MAX);
                *code = match self.rounding {
                    Rounding::Nearest => f32_to_f8_e4m3(value),
                    rounding @ Rounding::Chance(_) => {
                        f8_code(&self.steps, rounding, first + block * 32 + i, value)
                    }
                };
            }
        }
    }

    /// The scale of a group starts at its largest value and is fitted to the levels that are chosen with it.
    fn grid(
        &self,
        grid: GridKind,
        first: usize,
        values: &[f32],
        codes: &mut [u8],
        scales: &mut [u8],
    ) -> f32 {
        let levels: [f32; 16] = match grid.levels {
            Levels::Usual => USUAL_LEVELS,
            _ => std::array::from_fn(|code| code as f32 - 8.0),
        };
        let group = usize::from(grid.group);
        let start = if grid.levels == Levels::Usual {
            1.0
        } else {
            7.0
        };
        let mut most = 0.0f32;
        let fitted: Vec<f32> = values
            .chunks(group)
            .map(|values| {
                let mut scale = (largest(values) / start).max(1e-8);
                let chosen = |scale: f32| values.iter().map(move |v| nearest(&levels, v / scale));
                if grid.levels == Levels::Usual {
                    for _ in 0..FITS {
                        let pairs = values.iter().zip(chosen(scale));
                        let (with, of) = pairs.fold((0.0, 0.0), |(with, of), (value, code)| {
                            let level = levels[code];
                            (with + value * level, of + level * level)
                        });
                        scale = (with / f32::max(of, 1e-8)).max(1e-8);
                    }
                }
                most =
                    chosen(scale).fold(most, |most, code| most.max((levels[code] * scale).abs()));
                scale
            })
            .collect();
        let whole = (most / 127.0).max(1e-8);
        for (number, (values, scale)) in values.chunks(group).zip(&fitted).enumerate() {
            let scale = scale / whole;
            let scale = if grid.wide_scales {
                scales[number * 4..][..4].copy_from_slice(&scale.to_le_bytes());
                scale
            } else {
                scales[number] = f32_to_f8_e4m3(scale.min(F8E4M3_MAX));
                F8_E4M3[usize::from(scales[number])]
            };
            let bytes = levels.map(|l| (l * scale).round_ties_even().clamp(-127.0, 127.0));
            for (i, value) in values.iter().enumerate() {
                let at = number * group + i;
                let code = self.level(&bytes, first + at, value / whole);
                codes[at / 2] |= (code as u8) << (at % 2 * 4);
            }
        }
        whole
    }

    fn level(&self, levels: &[f32; 16], index: usize, value: f32) -> usize {
        if self.rounding == Rounding::Nearest {
            return nearest(levels, value);
        }
        let above = levels.partition_point(|level| *level < value);
        let below = above.saturating_sub(1).min(14);
        let width = levels[below + 1] - levels[below];
        if width <= 0.0 {
            return below;
        }
        let part = (value - levels[below]) / width;
        below + usize::from(self.rounding.takes_upper(index, part))
    }
}

/// The number of the nearest of rising levels, the lower one of two that are as near.
fn nearest(levels: &[f32; 16], value: f32) -> usize {
    let above = levels.partition_point(|level| *level < value).min(15);
    let below = above.saturating_sub(1);
    if (levels[above] - value).abs() < (value - levels[below]).abs() {
        above
    } else {
        below
    }
}

/// The nearest four-bit float, of two that are as near the one with an even code.
fn e2m1_code(rounding: Rounding, index: usize, value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 8 } else { 0 };
    let size = value.abs();
    let below = E2M1[..8].partition_point(|step| *step <= size) - 1;
    let up = E2M1[..8].get(below + 1).is_some_and(|above| {
        let part = (size - E2M1[below]) / (above - E2M1[below]);
        let tie = rounding == Rounding::Nearest && part == 0.5;
        if tie {
            below % 2 == 1
        } else {
            rounding.takes_upper(index, part)
        }
    });
    (below as u8 + u8::from(up)) | sign
}
