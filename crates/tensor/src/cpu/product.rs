//! Products of activations and weights: linear layers and convolutions.
//!
//! The outputs are divided into chunks of rows and groups of panels. In each, panels of weights are decoded, multiplied
//! with all rows and finished while they are in the cache. Tasks divide outputs, never sums, so that the number of
//! threads does not change a bit.

#![allow(
    clippy::cast_ptr_alignment,
    reason = "working space begins at a cache line"
)]
#![expect(unsafe_code, reason = "threads write disjoint parts of one output")]

use std::cell::RefCell;
use std::ops::Range;

use rayon::prelude::*;

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::finish::{Finish, Lane, normal_cdf};
use super::integer;
use super::kernel::{self, Rows, TilePlace};
use super::lines::{SharedPointer, Space};
use super::packed::{WIDTH, Weight};
use super::picture::{Grid, Phase, Picture};
use super::plan::{ProductEngine, ProductPlan};
use crate::buffer::Buffer;
use crate::cancel::Cancel;
use crate::elements::reserve;
use crate::error::{Result, TensorError};
use crate::formats::rotation;

/// Bytes of activations that are multiplied with one panel after the other: half of a second cache.
const CHUNK_BYTES: usize = 1 << 20;
/// Positions of small pictures that are one chunk: their weights are more than they are.
const FEW_POSITIONS: usize = 1536;
/// Most rows of any kernel.
const MOST_ROWS: usize = 32;

/// The activations.
enum Input<'a> {
    /// Rows of channels, next to each other, and how many.
    Rows(&'a [f32], usize),
    Picture(&'a Picture<'a>, Grid, Phase),
}

/// Some output rows whose activations are together: rows of a linear layer, or a band of a picture.
struct Piece {
    image: usize,
    rows: Range<usize>,
}

/// One product.
struct Product<'a> {
    weight: &'a Weight,
    engine: ProductEngine,
    input: Input<'a>,
    finish: &'a Finish<'a>,
    out: SharedPointer<f32>,
    /// Length of an output row.
    width: usize,
    /// Whether the second half of the outputs gates the first.
    gated: bool,
    plan: ProductPlan,
}

/// Activations in the form of the engine.
#[derive(Clone, Copy)]
struct Prepared {
    first: SharedPointer<u8>,
    /// From the parts of one kind to the next.
    low: usize,
    /// From one block to the next.
    block: usize,
}

/// The working spaces of a thread: activations, weights, sums, and weights half decoded.
type Spaces = [Space; 4];

thread_local! {
    static SPACES: RefCell<Spaces> = RefCell::default();
}

/// `x` holds `rows` rows of the channels of `weight`.
pub(crate) fn linear(
    weight: &Weight,
    x: &[f32],
    rows: usize,
    shape: &[usize],
    finish: &Finish<'_>,
) -> Result<Buffer<f32>> {
    run(shape, |out| {
        write_rows(weight, (x, rows), finish, false, out)
    })
}

/// Writes a linear layer, or one whose second half of outputs gates the first.
fn write_rows(
    weight: &Weight,
    (x, rows): (&[f32], usize),
    finish: &Finish<'_>,
    gated: bool,
    out: SharedPointer<f32>,
) -> Result<()> {
    if let Some(format) = weight.integer() {
        return integer::write_rows((weight, format), (x, rows), finish, gated, out);
    }
    let turned = turned(weight, x)?;
    let x = turned.as_deref().unwrap_or(x);
    multiply(weight, Input::Rows(x, rows), rows, finish, gated, out);
    Ok(())
}

/// The inputs rotated as the weight is, where it is.
fn turned(weight: &Weight, x: &[f32]) -> Result<Option<Buffer<f32>>> {
    let group = weight.rotation();
    if group == 0 {
        return Ok(None);
    }
    rotation::rotated(x, weight.channels(), group).map(Some)
}

/// `a * gelu(g)` of the halves of a linear layer.
pub(crate) fn geglu(
    weight: &Weight,
    x: &[f32],
    rows: usize,
    shape: &[usize],
    bias: Option<&[f32]>,
) -> Result<Buffer<f32>> {
    let finish = Finish::plain(bias);
    let half = weight.out() / 2;
    if half.is_multiple_of(WIDTH) {
        return run(shape, |out| {
            write_rows(weight, (x, rows), &finish, true, out)
        });
    }
    // The halves do not begin at a panel: both first.
    let both = linear(weight, x, rows, &[rows, weight.out()], &finish)?;
    let mut y = reserve(shape)?;
    for both in both.chunks_exact(2 * half) {
        let (a, g) = both.split_at(half);
        y.extend(a.iter().zip(g).map(|(a, g)| a * (g * normal_cdf(*g))));
    }
    Ok(y)
}

pub(crate) fn conv(
    weight: &Weight,
    picture: &Picture<'_>,
    shape: &[usize; 4],
    finish: &Finish<'_>,
) -> Result<Buffer<f32>> {
    run(shape, |out| {
        write_picture(weight, picture, shape, finish, out)
    })
}

/// Adds a convolution and its bias to what stands in `sum`.
pub(crate) fn conv_onto(
    weight: &Weight,
    picture: &Picture<'_>,
    shape: &[usize; 4],
    bias: Option<&[f32]>,
    sum: &mut [f32],
) -> Result<()> {
    let count: usize = shape.iter().product();
    if sum.len() != count {
        return Err(TensorError::mismatch("conv", &[sum.len()], shape));
    }
    let finish = Finish {
        onto: true,
        ..Finish::plain(bias)
    };
    if count == 0 {
        return Ok(());
    }
    let out = SharedPointer::new(sum.as_mut_ptr());
    write_picture(weight, picture, shape, &finish, out)
}

fn write_picture(
    weight: &Weight,
    picture: &Picture<'_>,
    &[batch, height, width, _]: &[usize; 4],
    finish: &Finish<'_>,
    out: SharedPointer<f32>,
) -> Result<()> {
    let rows = batch * height * width;
    let plain = picture.kernel == (1, 1)
        && picture.stride == 1
        && (picture.before, picture.behind) == ((0, 0), (0, 0))
        && picture.enlarged == picture.size;
    if plain {
        return write_rows(weight, (picture.data, rows), finish, false, out);
    }
    if weight.rotation() > 0 {
        let reason = "a rotated weight of single pixels works on all of them only";
        return Err(TensorError::invalid("conv", reason));
    }
    if picture.is_doubled() {
        for (row, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let phase = Phase {
                scale: 2,
                row,
                column,
            };
            let size = (height / 2, width / 2);
            bands(weight, &picture.halved(phase), size, phase, finish, out);
        }
    } else {
        bands(weight, picture, (height, width), Phase::ALL, finish, out);
    }
    Ok(())
}

/// A convolution in bands of whole rows that fill a chunk. `size` is that of the phase's output.
fn bands(
    weight: &Weight,
    picture: &Picture<'_>,
    (height, width): (usize, usize),
    phase: Phase,
    finish: &Finish<'_>,
    out: SharedPointer<f32>,
) {
    let rows = picture.batch * height * width;
    let engine = ProductEngine::choose(rows, weight);
    let pixel = engine.row_bytes(picture.channels) * engine.parts();
    let want = (CHUNK_BYTES / pixel).clamp(256, 2048);
    let count = (height * width).div_ceil(want).clamp(1, height.max(1));
    let band = height.div_ceil(count).max(1);
    let grid = Grid::new(picture, height, width, band);
    let input = Input::Picture(picture, grid, phase);
    multiply(weight, input, rows, finish, false, out);
}

/// A list for a shape that `write` fills.
fn run(
    shape: &[usize],
    write: impl FnOnce(SharedPointer<f32>) -> Result<()>,
) -> Result<Buffer<f32>> {
    let mut y = reserve(shape)?;
    let count: usize = shape.iter().product();
    if count > 0 {
        write(SharedPointer::new(y.storage().as_mut_ptr()))?;
    }
    // SAFETY: the space is reserved, and products write every row of every panel of every phase.
    unsafe { y.storage().set_len(count) };
    Ok(y)
}

/// Writes one product. `rows` are its output rows.
fn multiply(
    weight: &Weight,
    input: Input<'_>,
    rows: usize,
    finish: &Finish<'_>,
    gated: bool,
    out: SharedPointer<f32>,
) {
    let engine = ProductEngine::choose(rows, weight);
    let plan = match &input {
        Input::Rows(..) => ProductPlan::rows(engine, weight),
        Input::Picture(picture, grid, phase) => {
            ProductPlan::picture(engine, weight, grid, picture.kernel, *phase)
        }
    };
    Product {
        weight,
        engine,
        input,
        finish,
        out,
        width: weight.out() / if gated { 2 } else { 1 },
        gated,
        plan,
    }
    .run();
}

/// Multiplies the outputs of a panel with the scales of their rows.
fn scale(lanes: &mut [Lane], scales: &[f32]) {
    let mut by = [1.0; WIDTH];
    for (by, scale) in by.iter_mut().zip(scales) {
        *by = *scale;
    }
    for lane in lanes {
        for (value, by) in lane.iter_mut().zip(&by) {
            *value *= by;
        }
    }
}

impl Product<'_> {
    /// Panels to go through: with a gate, those of the first half.
    fn panels(&self) -> usize {
        self.width.div_ceil(WIDTH)
    }

    fn run(&self) {
        let cancel = &Cancel::current();
        let chunks = self.chunks();
        let panels = self.panels();
        if let [chunk] = chunks.as_slice() {
            // Few rows: threads divide the panels, and share the activations.
            let mut space = Space::default();
            let prepared = self.space_for(chunk, &mut space);
            (0..self.units(chunk))
                .into_par_iter()
                .with_min_len(16)
                .for_each(|unit| self.prepare(chunk, unit, prepared));
            let group = panels.div_ceil(4 * rayon::current_num_threads());
            (0..panels.div_ceil(group)).into_par_iter().for_each(|i| {
                cancel.stop();
                let group = i * group..panels.min((i + 1) * group);
                SPACES.with_borrow_mut(|spaces| self.multiply(chunk, prepared, group, spaces));
            });
            return;
        }
        chunks.par_iter().for_each(|chunk| {
            cancel.stop();
            SPACES.with_borrow_mut(|spaces| {
                let mut own = std::mem::take(&mut spaces[0]);
                let prepared = self.space_for(chunk, &mut own);
                for unit in 0..self.units(chunk) {
                    self.prepare(chunk, unit, prepared);
                }
                self.multiply(chunk, prepared, 0..panels, spaces);
                spaces[0] = own;
            });
        });
    }

    /// Divides the output rows.
    fn chunks(&self) -> Vec<Vec<Piece>> {
        let threads = rayon::current_num_threads();
        let row = self.plan.row_bytes * self.engine.parts();
        match &self.input {
            Input::Rows(_, rows) => {
                let most = (CHUNK_BYTES / row)
                    .clamp(64, 2048)
                    .next_multiple_of(MOST_ROWS);
                let few = *rows <= most && self.panels() >= threads;
                let count = if few || *rows <= MOST_ROWS {
                    1
                } else {
                    rows.div_ceil(most).next_multiple_of(threads)
                };
                let size = rows.div_ceil(count).next_multiple_of(self.engine.rows());
                let starts = (0..*rows).step_by(size);
                starts
                    .map(|r| {
                        vec![Piece {
                            image: 0,
                            rows: r..(r + size).min(*rows),
                        }]
                    })
                    .collect()
            }
            Input::Picture(picture, grid, _) => {
                let bands = grid.bands(picture.batch);
                let total = picture.batch * grid.height * grid.pitch;
                // Small pictures together, as far as they fit into a chunk and leave one to each thread.
                let together = if total <= FEW_POSITIONS && self.panels() >= 2 * threads {
                    bands.len()
                } else {
                    (CHUNK_BYTES / (grid.positions() * row)).clamp(1, bands.len().div_ceil(threads))
                };
                let piece = |(image, rows): &(usize, Range<usize>)| Piece {
                    image: *image,
                    rows: rows.clone(),
                };
                bands
                    .chunks(together)
                    .map(|bands| bands.iter().map(piece).collect())
                    .collect()
            }
        }
    }

    /// Positions of a piece in the prepared activations, and their distance from those of the next.
    fn positions(&self) -> usize {
        match &self.input {
            Input::Rows(..) => 0,
            Input::Picture(_, grid, _) => grid.positions(),
        }
    }

    /// Whether the activations are read where they are.
    fn is_direct(&self) -> bool {
        matches!(self.input, Input::Rows(..)) && self.engine.parts() == 1
    }

    /// Room for the activations of a chunk.
    fn space_for(&self, chunk: &[Piece], space: &mut Space) -> Prepared {
        let (positions, blocks) = match &self.input {
            Input::Rows(x, _) if self.is_direct() => {
                let first = &x[chunk[0].rows.start * self.weight.channels()..];
                return Prepared {
                    first: SharedPointer::new(first.as_ptr().cast_mut().cast()),
                    low: 0,
                    block: 0,
                };
            }
            Input::Rows(..) => (chunk[0].rows.len(), self.plan.blocks.len()),
            Input::Picture(..) => (chunk.len() * self.positions(), 1),
        };
        // A full block of rows may begin at the last one.
        let low = (positions + 2 * MOST_ROWS) * self.plan.row_bytes;
        let block = low * self.engine.parts();
        Prepared {
            first: SharedPointer::new(space.take(block * blocks)),
            low,
            block: if blocks == 1 { 0 } else { block },
        }
    }

    /// Pieces of work in preparing the activations of a chunk.
    fn units(&self, chunk: &[Piece]) -> usize {
        match &self.input {
            Input::Rows(..) if self.is_direct() => 0,
            Input::Rows(..) => chunk[0].rows.len(),
            Input::Picture(_, grid, _) => chunk.len() * grid.rows(),
        }
    }

    fn prepare(&self, chunk: &[Piece], unit: usize, to: Prepared) {
        let channels = self.weight.channels();
        match &self.input {
            Input::Rows(x, _) => {
                let row = &x[(chunk[0].rows.start + unit) * channels..][..channels];
                for (i, block) in self.plan.blocks.iter().enumerate() {
                    let part = &row[block.channels.clone()];
                    self.put(Some(part), unit, i * to.block, to);
                }
            }
            Input::Picture(picture, grid, _) => {
                let piece = &chunk[unit / grid.rows()];
                let first = unit / grid.rows() * grid.positions();
                let row = unit % grid.rows();
                grid.copy(picture, piece.image, piece.rows.start, row, |at, values| {
                    self.put(values, first + at, 0, to);
                });
            }
        }
    }

    /// Writes the channels of one position in the form of the engine.
    fn put(&self, values: Option<&[f32]>, position: usize, block: usize, to: Prepared) {
        let row = self.plan.row_bytes;
        // SAFETY: the position lies in the space for the chunk, which has `row` bytes for it in each part, and is
        // written once, by one task.
        unsafe {
            let first = to.first.get().add(block + position * row);
            match (values, self.engine) {
                (None, engine) => {
                    for part in 0..engine.parts() {
                        first.add(part * to.low).write_bytes(0, row);
                    }
                }
                (Some(values), ProductEngine::Vector(_)) => {
                    let first = first.cast();
                    values.as_ptr().copy_to_nonoverlapping(first, values.len());
                }
                #[cfg(target_arch = "x86_64")]
                (Some(values), ProductEngine::Tiles(parts)) => {
                    let third = (parts > 2).then(|| first.add(2 * to.low).cast());
                    amx::split(values, first.cast(), first.add(to.low).cast(), third);
                }
            }
        }
    }

    /// Multiplies the rows of a chunk with some panels and writes the results.
    fn multiply(&self, chunk: &[Piece], a: Prepared, panels: Range<usize>, spaces: &mut Spaces) {
        #[cfg(target_arch = "x86_64")]
        let tiles = matches!(self.engine, ProductEngine::Tiles(_)).then(amx::Tiles::new);
        let isa = self.engine.isa();
        let [_, weights, sums, lanes] = spaces;
        let step = self.engine.rows();
        let blocks = &self.plan.blocks;
        let halves = if self.gated { 2 } else { 1 };
        // Activations of rows are block by block; the taps of a picture need all of them in all blocks.
        let by_block = a.block > 0;
        let chunk_rows: usize = chunk
            .iter()
            .map(|piece| self.count(piece).next_multiple_of(step))
            .sum();
        // Sums live until they are finished: those of all panels, of one, or of one block of rows.
        let keep = self.gated || blocks.len() > 1;
        let half_rows = if keep { chunk_rows } else { step };
        let panel_rows = half_rows * halves;
        let kept = if by_block { panels.len() } else { 1 };
        let sums = sums.take(panel_rows * kept * size_of::<Lane>());
        let sums = sums.cast::<Lane>();
        let order: Vec<(usize, usize)> = if by_block {
            let numbers = 0..blocks.len();
            numbers
                .flat_map(|b| panels.clone().map(move |p| (p, b)))
                .collect()
        } else {
            let panels = panels.clone();
            panels
                .flat_map(|p| (0..blocks.len()).map(move |b| (p, b)))
                .collect()
        };
        // Without blocks the gate is finished before its panel begins; with them both grow side by side.
        for (panel, number) in order {
            let block = &blocks[number];
            let panel_sums = if by_block {
                (panel - panels.start) * panel_rows
            } else {
                0
            };
            for half in (0..halves).rev() {
                let last = number + 1 == blocks.len() && half == 0;
                let source = panel + half * self.panels();
                let planned = (block, self.plan.split);
                let b = self
                    .weight
                    .decode(self.engine, source, planned, weights, lanes);
                let mut done = 0;
                for (i, piece) in chunk.iter().enumerate() {
                    let positions = self.count(piece);
                    for q in (0..positions).step_by(step) {
                        let m = step.min(positions - q);
                        let at = if keep { done + q } else { 0 };
                        // SAFETY: the sums have a lane for each row of the chunk (or of one block), twice with a gate.
                        let c = unsafe { sums.add(panel_sums + half * half_rows + at) };
                        let position = i * self.positions() + q;
                        let at = number * a.block + position * self.plan.row_bytes;
                        let rows = Rows {
                            // SAFETY: the prepared activations hold the positions of all pieces in all blocks.
                            first: unsafe { a.first.get().add(at) },
                            stride: self.plan.row_bytes,
                        };
                        let mut targets = [usize::MAX; MOST_ROWS];
                        let targets = &mut targets[..m];
                        if last {
                            self.targets(piece, q, targets);
                            // They arrive while the kernel multiplies.
                            kernel::prefetch(targets, self.finish.add, self.place(panel));
                        }
                        // SAFETY: the rows and the decoded block are those of the plan; the space for the activations
                        // ends behind a full block of rows, and sums come in full blocks.
                        unsafe {
                            match self.engine {
                                ProductEngine::Vector(isa) => {
                                    let add = number > 0;
                                    kernel::tile(isa, m, &block.steps, rows, b.cast(), c, add);
                                }
                                #[cfg(target_arch = "x86_64")]
                                ProductEngine::Tiles(parts) => amx::tile(
                                    tiles.as_ref().expect("set up for this engine"),
                                    m,
                                    &block.offsets,
                                    (rows, a.low, parts > 2),
                                    (b, self.plan.split),
                                    c,
                                    number > 0,
                                ),
                            }
                        }
                        if last {
                            if !self.weight.scales().is_empty() {
                                for (half, source) in [panel, panel + self.panels()]
                                    .into_iter()
                                    .enumerate()
                                    .take(halves)
                                {
                                    // SAFETY: both sets of sums have been written, in full.
                                    let lanes = unsafe {
                                        let first = c.add(half * half_rows);
                                        std::slice::from_raw_parts_mut(first, m)
                                    };
                                    scale(lanes, &self.weight.scales()[source * WIDTH..]);
                                }
                            }
                            // SAFETY: both sets of sums have been written, in full.
                            let (lanes, gate) = unsafe {
                                let gate = self.gated.then(|| c.add(half_rows).cast_const());
                                let slice = |c| std::slice::from_raw_parts(c, m);
                                (slice(c.cast_const()), gate.map(slice))
                            };
                            let place = self.place(panel);
                            // SAFETY: the rows and columns lie in the output, and only this task has this part of them.
                            unsafe {
                                kernel::write(isa, lanes, targets, gate, self.finish, place);
                            }
                        }
                    }
                    done += positions.next_multiple_of(step);
                }
            }
        }
    }

    /// Positions of outputs in a piece, with those that are only padding.
    fn count(&self, piece: &Piece) -> usize {
        match &self.input {
            Input::Rows(..) => piece.rows.len(),
            Input::Picture(_, grid, _) => (piece.rows.len() - 1) * grid.pitch + grid.width,
        }
    }

    /// The output rows of the positions from `q`; those of padding are left as they are.
    fn targets(&self, piece: &Piece, q: usize, rows: &mut [usize]) {
        match &self.input {
            Input::Rows(..) => {
                for (i, row) in rows.iter_mut().enumerate() {
                    *row = piece.rows.start + q + i;
                }
            }
            Input::Picture(_, grid, phase) => {
                let (height, width) = (grid.height * phase.scale, grid.width * phase.scale);
                let (mut y, mut x) = (q / grid.pitch, q % grid.pitch);
                for row in rows {
                    if x < grid.width {
                        let y = (piece.rows.start + y) * phase.scale + phase.row;
                        let x = x * phase.scale + phase.column;
                        *row = (piece.image * height + y) * width + x;
                    }
                    x += 1;
                    if x == grid.pitch {
                        (y, x) = (y + 1, 0);
                    }
                }
            }
        }
    }

    /// Where the outputs of a panel go.
    fn place(&self, panel: usize) -> TilePlace {
        let column = panel * WIDTH;
        TilePlace {
            out: self.out.get(),
            width: self.width,
            column,
            columns: WIDTH.min(self.width - column),
        }
    }
}
