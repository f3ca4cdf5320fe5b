//! Products of signed bytes: weights whose rows are bytes with a scale, and inputs that are rounded to bytes, each row with
//! a scale of its own.
//!
//! Sums of products of bytes are exact in 32 bits, so that all instruction sets, and any division of the work, give the same
//! bits. What differs from a product with the plain inputs is their rounding, which the formats' makers chose.

#![expect(unsafe_code, reason = "threads write disjoint parts of one output")]

use std::cell::RefCell;
use std::ops::Range;

use rayon::prelude::*;

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::finish::{Finish, Lane};
use super::integer_kernel::{IntegerEngine, MOST_ROWS, Sums};
use super::isa;
use super::kernel::{self, TilePlace};
use super::lines::{SharedPointer, Space};
use super::packed::{QUAD_STEP, WIDTH, Weight, quad_bytes};
use crate::buffer::Buffer;
use crate::cancel::Cancel;
use crate::error::Result;
use crate::formats::{RowFormat, rotation};

/// Bytes of inputs that are multiplied with one panel after the other: half of a second cache.
const CHUNK_BYTES: usize = 1 << 20;

thread_local! {
    static SPACE: RefCell<[Space; 2]> = RefCell::default();
}

/// Inputs as signed bytes.
struct RoundedInput {
    /// Rows of `pitch` bytes, filled with zeros, and zeros up to a whole block of rows.
    values: Buffer<u8>,
    pitch: usize,
    scales: Vec<f32>,
    /// The sums of the bytes of each row.
    sums: Vec<i32>,
}

impl RoundedInput {
    fn new(x: &[f32], rows: usize, format: RowFormat) -> Result<Self> {
        let columns = format.columns();
        // An odd number of lines spreads the rows of a tile over the sets of the first cache.
        let pitch = ((columns.next_multiple_of(QUAD_STEP) / 64) | 1) * 64;
        let all = rows.next_multiple_of(MOST_ROWS);
        let mut values = Buffer::filled(all * pitch, 0u8)?;
        let cancel = &Cancel::current();
        let found: Vec<(f32, i32)> = values
            .par_chunks_mut(pitch)
            .zip(x.par_chunks(columns))
            .with_min_len(8)
            .map_init(Vec::new, |turned, (to, row)| {
                cancel.stop();
                if format.rotation() == 0 {
                    return round_row(row, format.input_levels(), to);
                }
                turned.clear();
                turned.extend_from_slice(row);
                rotation::rotate(turned, format.rotation());
                round_row(turned, format.input_levels(), to)
            })
            .collect();
        let (mut scales, mut sums): (Vec<f32>, Vec<i32>) = found.into_iter().unzip();
        scales.resize(all, 0.0);
        sums.resize(all, 0);
        Ok(Self {
            values,
            pitch,
            scales,
            sums,
        })
    }
}

/// Rounds a row to whole numbers up to `levels`, and tells their scale and sum. A row with what is no number, or infinite,
/// gets a scale that is none.
fn round_row(row: &[f32], levels: f32, to: &mut [u8]) -> (f32, i32) {
    /// Adding it leaves a whole number, rounded to even, in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let size = |v: &f32| (v.to_bits() & 0x7FFF_FFFF).cast_signed();
    let most = row.iter().map(size).fold(0, i32::max);
    if most >= f32::INFINITY.to_bits().cast_signed() {
        return (f32::NAN, 0);
    }
    let most = f32::from_bits(most.cast_unsigned());
    let scale = if levels < 127.0 {
        most.max(1e-10) / levels
    } else {
        (most / levels).max(1e-30)
    };
    let mut sum = 0;
    for (to, value) in to.iter_mut().zip(row) {
        let whole = (value / scale + ROUND).to_bits() as u8;
        *to = whole;
        sum += i32::from(whole as i8);
    }
    (scale, sum)
}

struct IntegerProduct<'a> {
    weight: &'a Weight,
    format: RowFormat,
    engine: IntegerEngine,
    input: RoundedInput,
    rows: usize,
    finish: &'a Finish<'a>,
    out: SharedPointer<f32>,
    /// Length of an output row.
    width: usize,
    gated: bool,
}

/// Writes a linear layer, or one whose second half of outputs gates the first.
pub(super) fn write_rows(
    (weight, format): (&Weight, RowFormat),
    (x, rows): (&[f32], usize),
    finish: &Finish<'_>,
    gated: bool,
    out: SharedPointer<f32>,
) -> Result<()> {
    IntegerProduct {
        weight,
        format,
        engine: IntegerEngine::choose(rows),
        input: RoundedInput::new(x, rows, format)?,
        rows,
        finish,
        out,
        width: weight.out() / if gated { 2 } else { 1 },
        gated,
    }
    .run();
    Ok(())
}

impl IntegerProduct<'_> {
    fn panels(&self) -> usize {
        self.width.div_ceil(WIDTH)
    }

    fn run(&self) {
        let cancel = &Cancel::current();
        let most = (CHUNK_BYTES / self.input.pitch).clamp(64, 2048);
        let most = most.next_multiple_of(MOST_ROWS);
        let chunks = self.rows.div_ceil(most);
        let panels = self.panels();
        let wanted = (4 * rayon::current_num_threads()).div_ceil(chunks);
        let group = panels.div_ceil(wanted.clamp(1, panels));
        let groups = panels.div_ceil(group);
        (0..chunks * groups).into_par_iter().for_each(|task| {
            cancel.stop();
            let (chunk, number) = (task / groups, task % groups);
            let rows = chunk * most..self.rows.min((chunk + 1) * most);
            let panels = number * group..panels.min((number + 1) * group);
            SPACE.with_borrow_mut(|space| self.multiply(rows, panels, space));
        });
    }

    /// The bytes of a panel: where they are, or made in `space`.
    fn panel<'a>(&'a self, panel: usize, space: &'a mut Space) -> &'a [u8] {
        if let Some(quads) = self.weight.quads(panel) {
            return quads;
        }
        let bytes = quad_bytes(self.weight.channels());
        let first = space.take(bytes);
        // SAFETY: the space has room for so many bytes, which have been set, and is borrowed for as long.
        let to = unsafe {
            first.write_bytes(0, bytes);
            std::slice::from_raw_parts_mut(first, bytes)
        };
        let rows = self.weight.rows_of_panel(panel).into_iter().flatten();
        for (j, row) in rows.enumerate() {
            let columns = 0..self.format.columns();
            self.format
                .bytes_in_fours(row, columns, to, (4 * j, 4 * WIDTH));
        }
        to
    }

    fn multiply(&self, rows: Range<usize>, panels: Range<usize>, spaces: &mut [Space; 2]) {
        #[cfg(target_arch = "x86_64")]
        let tiles = (self.engine == IntegerEngine::Tiles).then(amx::Tiles::new);
        let [space, gate_space] = spaces;
        let step = self.engine.rows();
        let steps = self.weight.channels().div_ceil(QUAD_STEP);
        let isa = isa::isa();
        let mut sums: Sums = [[0; WIDTH]; MOST_ROWS];
        let mut lanes = [[0.0; WIDTH]; MOST_ROWS];
        let mut gates = [[0.0; WIDTH]; MOST_ROWS];
        for panel in panels {
            let weights = self.panel(panel, space);
            let gate_panel = panel + self.panels();
            let gate_weights = self.gated.then(|| self.panel(gate_panel, gate_space));
            for first in rows.clone().step_by(step) {
                let m = step.min(rows.end - first);
                let mut product = |weights: &[u8], panel: usize, lanes: &mut [Lane]| {
                    let a = &self.input.values[first * self.input.pitch..];
                    let row_sums = &self.input.sums[first..];
                    let b = (weights, steps);
                    let a = (a, self.input.pitch, row_sums);
                    match self.engine {
                        #[cfg(target_arch = "x86_64")]
                        IntegerEngine::Tiles => {
                            let tiles = tiles.as_ref().expect("set up for this engine");
                            amx::tile_bytes(tiles, m, a.0, a.1, b, &mut sums);
                        }
                        engine => engine.tile(m, a, b, &mut sums),
                    }
                    self.widen(&sums[..m], first, panel, lanes);
                };
                product(weights, panel, &mut lanes[..m]);
                if let Some(weights) = gate_weights {
                    product(weights, gate_panel, &mut gates[..m]);
                }
                let mut targets = [0; MOST_ROWS];
                for (i, target) in targets[..m].iter_mut().enumerate() {
                    *target = first + i;
                }
                let gates = self.gated.then_some(&gates[..m]);
                let column = panel * WIDTH;
                let place = TilePlace {
                    out: self.out.get(),
                    width: self.width,
                    column,
                    columns: WIDTH.min(self.width - column),
                };
                // SAFETY: the rows and columns lie in the output, and only this task has this part of them.
                unsafe {
                    let targets = &targets[..m];
                    kernel::write(isa, &lanes[..m], targets, gates, self.finish, place);
                }
            }
        }
    }

    /// Sums with their scales.
    fn widen(&self, sums: &[[i32; WIDTH]], first: usize, panel: usize, lanes: &mut [Lane]) {
        let scales = &self.weight.scales()[panel * WIDTH..];
        let mut of_outputs = [0.0; WIDTH];
        for (to, scale) in of_outputs.iter_mut().zip(scales) {
            *to = *scale;
        }
        for (i, (sums, lane)) in sums.iter().zip(lanes).enumerate() {
            let of_row = self.input.scales[first + i];
            for ((to, sum), scale) in lane.iter_mut().zip(sums).zip(&of_outputs) {
                *to = *sum as f32 * (of_row * scale);
            }
        }
    }
}
