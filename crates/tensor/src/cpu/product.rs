//! Products of activations and weights: linear layers and convolutions.
//!
//! The outputs are divided into chunks of rows. For a chunk, each panel of weights is decoded (once for all chunks,
//! where that is cheap), multiplied with all rows and finished while it is in the cache. Tasks divide outputs, never
//! sums, so that the number of threads does not change a bit.

#![expect(unsafe_code, reason = "threads write disjoint parts of one output")]

use std::cell::RefCell;
use std::ops::Range;
use std::sync::OnceLock;

use rayon::prelude::*;

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::finish::{Finish, Lane};
use super::isa::{self, Isa};
use super::kernel::{self, Place, Rows, Step};
use super::lines::{Shared, Space};
use super::packed::{WIDTH, Weight};
use super::picture::{Grid, Picture};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::nn::Act;
use crate::tensor::{Tensor, reserve};

/// Sums are cut after about so many channels, so that a decoded panel stays in the second cache.
const BLOCK: usize = 4096;
/// Bytes of activations that are multiplied with one panel after the other: most of a second cache.
const CHUNK_BYTES: usize = 1 << 20;
/// Decoded weights up to this size are decoded before the chunks, once.
const SHARED_BYTES: usize = 0;
/// Fewer rows than this are not worth the padding of tiles.
const TILE_ROWS: usize = 9;

/// What multiplies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Engine {
    /// f32 vectors.
    Vector(Isa),
    /// Tiles of bf16 parts.
    #[cfg(target_arch = "x86_64")]
    Tiles,
}

impl Engine {
    fn choose(rows: usize) -> Self {
        #[cfg(target_arch = "x86_64")]
        if rows >= TILE_ROWS && isa::tiles() {
            return Self::Tiles;
        }
        let _ = rows;
        Self::Vector(isa::isa())
    }

    /// The instruction set for what is not a product.
    fn isa(self) -> Isa {
        match self {
            Self::Vector(isa) => isa,
            #[cfg(target_arch = "x86_64")]
            Self::Tiles => Isa::Avx512,
        }
    }

    /// Rows of a block of the kernel.
    fn rows(self) -> usize {
        match self {
            Self::Vector(isa) => kernel::rows(isa),
            #[cfg(target_arch = "x86_64")]
            Self::Tiles => amx::ROWS,
        }
    }

    /// Bytes from one copied pixel or row to the next; in tiles for each of the two parts.
    fn row_bytes(self, channels: usize) -> usize {
        let bytes = match self {
            Self::Vector(_) => channels * 4,
            #[cfg(target_arch = "x86_64")]
            Self::Tiles => channels.next_multiple_of(amx::DEPTH) * 2,
        };
        // An odd number of lines spreads the rows of a tile over the sets of the first cache.
        (bytes.div_ceil(64) | 1) * 64
    }

    fn parts(self) -> usize {
        match self {
            Self::Vector(_) => 1,
            #[cfg(target_arch = "x86_64")]
            Self::Tiles => 2,
        }
    }
}

/// The activations.
enum Input<'a> {
    /// Rows of channels, next to each other.
    Rows(&'a [f32], usize),
    Picture(&'a Picture<'a>, Grid),
}

/// Some output rows whose activations are together: the rows of a linear layer, or the bands of a picture.
struct Piece {
    image: usize,
    rows: Range<usize>,
}

/// A step of the sum and the weights it takes.
#[derive(Clone, Copy)]
struct Part {
    tap: usize,
    channel: usize,
    step: Step,
    /// Where its decoded weights begin in those of the panel, in bytes.
    at: usize,
}

/// One product.
struct Product<'a> {
    weight: &'a Weight,
    engine: Engine,
    input: Input<'a>,
    finish: &'a Finish<'a>,
    out: Shared<f32>,
    /// Length of an output row.
    width: usize,
    /// Whether the second half of the outputs gates the first.
    gated: bool,
    parts: Vec<Part>,
    /// The steps again, as the kernels read them.
    steps: Vec<Step>,
    offsets: Vec<usize>,
    blocks: Vec<Range<usize>>,
    /// Bytes of a decoded panel.
    panel_bytes: usize,
    row_bytes: usize,
}

/// Activations in the form of the engine.
#[derive(Clone, Copy)]
struct Prepared {
    first: Shared<u8>,
    stride: usize,
    low: usize,
}

thread_local! {
    static SPACES: RefCell<[Space; 4]> = RefCell::default();
}

/// `x` holds `rows` rows of the channels of `weight`.
pub(crate) fn linear(
    weight: &Weight,
    x: &[f32],
    rows: usize,
    shape: &[usize],
    finish: &Finish<'_>,
) -> Result<Tensor> {
    run(weight, Input::Rows(x, rows), rows, shape, finish, false)
}

/// `a * gelu(g)` of the halves of a linear layer.
pub(crate) fn geglu(
    weight: &Weight,
    x: &[f32],
    rows: usize,
    shape: &[usize],
    bias: Option<&[f32]>,
) -> Result<Tensor> {
    let finish = Finish {
        bias,
        per_item: None,
        rows_per_item: rows,
        act: Act::None,
        add: None,
    };
    let half = weight.out() / 2;
    if half.is_multiple_of(WIDTH) {
        return run(weight, Input::Rows(x, rows), rows, shape, &finish, true);
    }
    // The halves do not begin at a panel: both first.
    let both = linear(weight, x, rows, &[rows, weight.out()], &finish)?;
    let mut y = reserve(shape)?;
    for both in both.data().chunks_exact(2 * half) {
        let (a, g) = both.split_at(half);
        y.extend(
            a.iter()
                .zip(g)
                .map(|(a, g)| a * (g * super::finish::normal_cdf(*g))),
        );
    }
    Ok(Tensor::raw(shape.to_vec(), y))
}

pub(crate) fn conv(
    weight: &Weight,
    picture: &Picture<'_>,
    shape: &[usize; 4],
    finish: &Finish<'_>,
) -> Result<Tensor> {
    let [batch, height, width, _] = *shape;
    let rows = batch * height * width;
    let plain = picture.kernel == (1, 1)
        && picture.stride == 1
        && picture.before + picture.behind == 0
        && picture.enlarged == picture.size;
    if plain {
        return run(
            weight,
            Input::Rows(picture.data, rows),
            rows,
            shape,
            finish,
            false,
        );
    }
    let engine = Engine::choose(rows);
    let row = engine.row_bytes(picture.channels) * engine.parts();
    // Bands of whole rows; where all is small, one band a picture.
    let want = (CHUNK_BYTES / row).clamp(256, 2048);
    let count = (height * width).div_ceil(want).clamp(1, height.max(1));
    let band = height.div_ceil(count);
    let grid = Grid::new(picture, height, width, band.max(1));
    run(
        weight,
        Input::Picture(picture, grid),
        rows,
        shape,
        finish,
        false,
    )
}

fn run(
    weight: &Weight,
    input: Input<'_>,
    rows: usize,
    shape: &[usize],
    finish: &Finish<'_>,
    gated: bool,
) -> Result<Tensor> {
    let mut y = reserve(shape)?;
    let count: usize = shape.iter().product();
    if count > 0 {
        let product = Product::new(weight, input, rows, finish, y.as_mut_ptr(), gated);
        product.run();
    }
    // SAFETY: the space is reserved, and the product has written every row of every panel.
    unsafe { y.set_len(count) };
    Ok(Tensor::raw(shape.to_vec(), y))
}

impl<'a> Product<'a> {
    fn new(
        weight: &'a Weight,
        input: Input<'a>,
        rows: usize,
        finish: &'a Finish<'a>,
        out: *mut f32,
        gated: bool,
    ) -> Self {
        let engine = Engine::choose(rows);
        let row_bytes = match (&input, engine) {
            (Input::Rows(..), Engine::Vector(_)) => weight.channels() * 4,
            _ => engine.row_bytes(weight.channels()),
        };
        let mut product = Self {
            weight,
            engine,
            input,
            finish,
            out: Shared::new(out),
            width: weight.out() / if gated { 2 } else { 1 },
            gated,
            parts: Vec::new(),
            steps: Vec::new(),
            offsets: Vec::new(),
            blocks: Vec::new(),
            panel_bytes: 0,
            row_bytes,
        };
        product.plan();
        product
    }

    /// Lays down the order of the sum.
    fn plan(&mut self) {
        let channels = self.weight.channels();
        let (most, size, lane) = match self.engine {
            Engine::Vector(_) => (2048, 4, WIDTH * 4),
            #[cfg(target_arch = "x86_64")]
            Engine::Tiles => (amx::DEPTH, 2, amx::step_bytes(self.split()) / amx::DEPTH),
        };
        let (kh, kw) = match &self.input {
            Input::Rows(..) => (1, 1),
            Input::Picture(picture, _) => picture.kernel,
        };
        for y in 0..kh {
            // Neighbouring taps of a row read almost the same pixels: in tiles they take turns.
            let order: Vec<(usize, usize)> = match self.engine {
                Engine::Vector(_) => (0..kw)
                    .flat_map(|x| (0..channels).step_by(most).map(move |c| (x, c)))
                    .collect(),
                #[cfg(target_arch = "x86_64")]
                Engine::Tiles => (0..channels)
                    .step_by(most)
                    .flat_map(|c| (0..kw).map(move |x| (x, c)))
                    .collect(),
            };
            for (x, channel) in order {
                let pixels = match &self.input {
                    Input::Rows(..) => 0,
                    Input::Picture(_, grid) => grid.tap(y, x),
                };
                let len = most.min(channels - channel);
                let step = Step {
                    offset: pixels * self.row_bytes + channel * size,
                    len,
                };
                self.parts.push(Part {
                    tap: y * kw + x,
                    channel,
                    step,
                    at: self.panel_bytes,
                });
                let taken = match self.engine {
                    Engine::Vector(_) => len,
                    #[cfg(target_arch = "x86_64")]
                    Engine::Tiles => most,
                };
                self.panel_bytes += taken * lane;
            }
        }
        self.steps = self.parts.iter().map(|p| p.step).collect();
        self.offsets = self.parts.iter().map(|p| p.step.offset).collect();
        let (mut start, mut sum) = (0, 0);
        for (i, part) in self.parts.iter().enumerate() {
            if sum > 0 && sum + part.step.len > BLOCK {
                self.blocks.push(start..i);
                (start, sum) = (i, 0);
            }
            sum += part.step.len;
        }
        self.blocks.push(start..self.parts.len());
    }

    /// Whether the weights have second parts.
    fn split(&self) -> bool {
        !matches!(
            self.weight.dtype(),
            Dtype::Bf16 | Dtype::F8E4M3 | Dtype::F8E5M2
        )
    }

    /// Panels to go through: with a gate, those of the first half.
    fn panels(&self) -> usize {
        self.width.div_ceil(WIDTH)
    }

    fn run(&self) {
        let chunks = self.chunks();
        let panels = self.panels();
        let all = self.weight.panels();
        if let [chunk] = chunks.as_slice() {
            // Few rows: threads divide the panels, and share the activations.
            let mut space = Space::default();
            let prepared = self.space_for(chunk, &mut space);
            let units = self.units(chunk);
            (0..units)
                .into_par_iter()
                .with_min_len(16)
                .for_each(|unit| self.prepare(chunk, unit, prepared));
            (0..panels).into_par_iter().for_each(|panel| {
                self.with_spaces(|spaces| {
                    self.multiply(chunk, prepared, panel..panel + 1, None, spaces)
                });
            });
            return;
        }
        let mut space = Space::default();
        let decoded = (self.panel_bytes * all <= SHARED_BYTES && !self.is_direct()).then(|| {
            let base = Shared::new(space.take(self.panel_bytes * all));
            (0..all).into_par_iter().for_each(|panel| {
                self.with_spaces(|[.., lanes]| {
                    for block in &self.blocks {
                        let at = panel * self.panel_bytes + self.parts[block.start].at;
                        // SAFETY: the space has room for all panels, and each task writes its own.
                        unsafe { self.decode(panel, block.clone(), base.get().add(at), lanes) };
                    }
                });
            });
            base
        });
        chunks.par_iter().for_each(|chunk| {
            self.with_spaces(|spaces| {
                let mut own = std::mem::take(&mut spaces[0]);
                let prepared = self.space_for(chunk, &mut own);
                for unit in 0..self.units(chunk) {
                    self.prepare(chunk, unit, prepared);
                }
                self.multiply(chunk, prepared, 0..panels, decoded, spaces);
                spaces[0] = own;
            });
        });
    }

    fn with_spaces<T>(&self, f: impl FnOnce(&mut [Space; 4]) -> T) -> T {
        SPACES.with_borrow_mut(f)
    }

    /// Divides the output rows.
    fn chunks(&self) -> Vec<Vec<Piece>> {
        let threads = rayon::current_num_threads();
        let row = self.row_bytes * self.engine.parts();
        match &self.input {
            Input::Rows(_, rows) => {
                let most = (CHUNK_BYTES / row)
                    .clamp(64, 2048)
                    .next_multiple_of(amx_rows());
                let few = *rows <= most && self.panels() >= threads;
                let count = if few || *rows <= amx_rows() {
                    1
                } else {
                    rows.div_ceil(most).next_multiple_of(threads)
                };
                let size = rows.div_ceil(count).next_multiple_of(self.engine.rows());
                (0..*rows)
                    .step_by(size)
                    .map(|r| {
                        vec![Piece {
                            image: 0,
                            rows: r..(r + size).min(*rows),
                        }]
                    })
                    .collect()
            }
            Input::Picture(picture, grid) => {
                let bands: Vec<Piece> = grid
                    .bands(picture.batch)
                    .into_iter()
                    .map(|(image, rows)| Piece { image, rows })
                    .collect();
                let total = picture.batch * grid.height * grid.pitch;
                if total <= 1536 && self.panels() >= 2 * threads {
                    return vec![bands];
                }
                // Small pictures together, as far as they fit into a chunk and leave one to each thread.
                let bytes = grid.positions() * row;
                let together = (CHUNK_BYTES / bytes).clamp(1, bands.len().div_ceil(threads));
                let mut chunks = Vec::new();
                let mut bands = bands.into_iter().peekable();
                while bands.peek().is_some() {
                    chunks.push(bands.by_ref().take(together).collect());
                }
                chunks
            }
        }
    }

    /// Positions of a piece in the prepared activations.
    fn positions(&self) -> usize {
        match &self.input {
            Input::Rows(..) => 0,
            Input::Picture(_, grid) => grid.positions(),
        }
    }

    /// Room for the activations of a chunk.
    fn space_for(&self, chunk: &[Piece], space: &mut Space) -> Prepared {
        let positions = match &self.input {
            Input::Rows(x, _) => {
                if self.engine.parts() == 1 {
                    return Prepared {
                        first: Shared::new(
                            x[chunk[0].rows.start * self.weight.channels()..]
                                .as_ptr()
                                .cast_mut()
                                .cast(),
                        ),
                        stride: self.row_bytes,
                        low: 0,
                    };
                }
                chunk[0].rows.len()
            }
            Input::Picture(..) => chunk.len() * self.positions(),
        };
        // A full block of rows may begin at the last one.
        let bytes = (positions + 2 * amx_rows()) * self.row_bytes;
        Prepared {
            first: Shared::new(space.take(bytes * self.engine.parts())),
            stride: self.row_bytes,
            low: bytes,
        }
    }

    /// Pieces of work in preparing the activations of a chunk.
    fn units(&self, chunk: &[Piece]) -> usize {
        match &self.input {
            Input::Rows(..) if self.engine.parts() == 1 => 0,
            Input::Rows(..) => chunk[0].rows.len(),
            Input::Picture(_, grid) => chunk.len() * grid.rows(),
        }
    }

    fn prepare(&self, chunk: &[Piece], unit: usize, to: Prepared) {
        let channels = self.weight.channels();
        match &self.input {
            Input::Rows(x, _) => {
                let row = chunk[0].rows.start + unit;
                self.put(Some(&x[row * channels..][..channels]), unit, to);
            }
            Input::Picture(picture, grid) => {
                let piece = &chunk[unit / grid.rows()];
                let first = unit / grid.rows() * grid.positions();
                grid.copy(
                    picture,
                    piece.image,
                    piece.rows.start,
                    unit % grid.rows(),
                    |at, values| {
                        self.put(values, first + at, to);
                    },
                );
            }
        }
    }

    /// Writes the channels of one position in the form of the engine.
    fn put(&self, values: Option<&[f32]>, position: usize, to: Prepared) {
        // SAFETY: the position lies in the space for the chunk, which has `row_bytes` for it in each part, and is
        // written once, by one task.
        unsafe {
            let first = to.first.get().add(position * self.row_bytes);
            match (values, self.engine) {
                (None, _) => {
                    first.write_bytes(0, self.row_bytes);
                    if self.engine.parts() == 2 {
                        first.add(to.low).write_bytes(0, self.row_bytes);
                    }
                }
                (Some(values), Engine::Vector(_)) => {
                    values
                        .as_ptr()
                        .copy_to_nonoverlapping(first.cast(), values.len());
                }
                #[cfg(target_arch = "x86_64")]
                (Some(values), Engine::Tiles) => {
                    amx::split(values, first.cast(), first.add(to.low).cast());
                }
            }
        }
    }

    /// Multiplies the rows of a chunk with some panels and writes the results.
    fn multiply(
        &self,
        chunk: &[Piece],
        a: Prepared,
        panels: Range<usize>,
        decoded: Option<Shared<u8>>,
        spaces: &mut [Space; 4],
    ) {
        #[cfg(target_arch = "x86_64")]
        let tiles = (self.engine == Engine::Tiles).then(amx::Tiles::new);
        let [_, weights, sums, lanes] = spaces;
        let step = self.engine.rows();
        let block_rows: usize = chunk
            .iter()
            .map(|p| self.count(p).next_multiple_of(step))
            .sum();
        let keep = self.gated || self.blocks.len() > 1;
        let count = if keep { block_rows } else { step };
        let sums = sums
            .take(count * size_of::<Lane>() * if self.gated { 2 } else { 1 })
            .cast::<Lane>();
        for panel in panels {
            for half in (0..=usize::from(self.gated)).rev() {
                // The gate first.
                let source = panel + half * self.panels();
                // SAFETY: the space holds a second set of sums where there is a gate.
                let c = unsafe { sums.add(if half == 1 { count } else { 0 }) };
                for (number, block) in self.blocks.iter().enumerate() {
                    let last = number + 1 == self.blocks.len() && half == 0;
                    let at = self.parts.get(block.start).map_or(0, |p| p.at);
                    let b = if let Some(decoded) = decoded {
                        // SAFETY: all panels are there.
                        unsafe {
                            decoded
                                .get()
                                .add(source * self.panel_bytes + at)
                                .cast_const()
                        }
                    } else if let Some(direct) = self.direct(source, block) {
                        direct
                    } else {
                        let to = weights.take(self.block_bytes(block));
                        // SAFETY: there is room for the block.
                        unsafe { self.decode(source, block.clone(), to, lanes) };
                        to.cast_const()
                    };
                    let mut done = 0;
                    for (i, piece) in chunk.iter().enumerate() {
                        let positions = self.count(piece);
                        for q in (0..positions).step_by(step) {
                            let m = step.min(positions - q);
                            // SAFETY: the sums have a lane for each row of the chunk, or for one block of rows.
                            let c = unsafe { c.add(if keep { done + q } else { 0 }) };
                            let rows = Rows {
                                // SAFETY: the prepared activations hold the positions of all pieces.
                                first: unsafe {
                                    a.first.get().add((i * self.positions() + q) * a.stride)
                                },
                                stride: a.stride,
                            };
                            // SAFETY: the rows and the decoded block are those of the plan; the space for the
                            // activations ends behind a full block of rows, and sums come in full blocks.
                            unsafe {
                                match self.engine {
                                    Engine::Vector(isa) => {
                                        kernel::tile(
                                            isa,
                                            m,
                                            &self.steps[block.clone()],
                                            rows,
                                            b.cast(),
                                            c,
                                            number > 0,
                                        );
                                    }
                                    #[cfg(target_arch = "x86_64")]
                                    Engine::Tiles => {
                                        let tiles = tiles.as_ref().expect("set up for this engine");
                                        let offsets = &self.offsets[block.clone()];
                                        amx::tile(
                                            tiles,
                                            m,
                                            offsets,
                                            rows,
                                            a.low,
                                            b,
                                            self.split(),
                                            c,
                                            number > 0,
                                        );
                                    }
                                }
                                if last {
                                    let gate = self
                                        .gated
                                        .then(|| std::slice::from_raw_parts(c.add(count), m));
                                    self.write(
                                        piece,
                                        q,
                                        std::slice::from_raw_parts(c, m),
                                        gate,
                                        panel,
                                    );
                                }
                            }
                        }
                        done += positions.next_multiple_of(step);
                    }
                }
            }
        }
    }

    /// Positions of outputs in a piece, with those that are only padding.
    fn count(&self, piece: &Piece) -> usize {
        match &self.input {
            Input::Rows(..) => piece.rows.len(),
            Input::Picture(_, grid) => (piece.rows.len() - 1) * grid.pitch + grid.width,
        }
    }

    /// Finishes the lanes of the positions from `q` and writes them.
    fn write(&self, piece: &Piece, q: usize, lanes: &[Lane], gate: Option<&[Lane]>, panel: usize) {
        let mut rows = [usize::MAX; MOST_ROWS];
        match &self.input {
            Input::Rows(..) => {
                for (i, row) in rows[..lanes.len()].iter_mut().enumerate() {
                    *row = piece.rows.start + q + i;
                }
            }
            Input::Picture(_, grid) => {
                let (mut y, mut x) = (q / grid.pitch, q % grid.pitch);
                for row in &mut rows[..lanes.len()] {
                    if x < grid.width {
                        *row = (piece.image * grid.height + piece.rows.start + y) * grid.width + x;
                    }
                    x += 1;
                    if x == grid.pitch {
                        (y, x) = (y + 1, 0);
                    }
                }
            }
        }
        let column = panel * WIDTH;
        let place = Place {
            out: self.out.get(),
            width: self.width,
            column,
            columns: WIDTH.min(self.width - column),
        };
        // SAFETY: the rows and columns lie in the output, and only this task has this part of them.
        unsafe {
            kernel::write(
                self.engine.isa(),
                lanes,
                &rows[..lanes.len()],
                gate,
                self.finish,
                place,
            )
        };
    }

    /// Bytes of the decoded weights of a block.
    fn block_bytes(&self, block: &Range<usize>) -> usize {
        let at = |i: usize| self.parts.get(i).map_or(self.panel_bytes, |p| p.at);
        at(block.end) - at(block.start)
    }

    /// Whether panels need no decoding.
    fn is_direct(&self) -> bool {
        self.engine.parts() == 1
            && self.weight.dtype() == Dtype::F32
            && cfg!(target_endian = "little")
    }

    /// The weights of a block where they are stored as the kernel reads them.
    fn direct(&self, panel: usize, block: &Range<usize>) -> Option<*const u8> {
        if !self.is_direct() {
            return None;
        }
        // Taps and channels are in the order of the panel.
        let first = self.parts.get(block.start)?;
        let values = self
            .weight
            .panel(panel, first.tap, first.channel..self.weight.channels())?;
        Some(values.as_ptr())
    }

    /// Decodes the weights of a block of a panel for the kernel.
    ///
    /// # Safety
    /// `to` has room for the block.
    unsafe fn decode(&self, panel: usize, block: Range<usize>, to: *mut u8, lanes: &mut Space) {
        let parts = &self.parts[block];
        #[cfg(target_arch = "x86_64")]
        if self.engine == Engine::Tiles {
            if self.weight.dtype() == Dtype::F16 {
                let first = parts[0].at;
                for part in parts {
                    let range = part.channel..part.channel + part.step.len;
                    let values = self
                        .weight
                        .panel(panel, part.tap, range)
                        .expect("f16 is kept in panels");
                    // SAFETY: a step has its room at its place.
                    unsafe { amx::split_f16(lanes_of(values), to.add(part.at - first)) };
                }
                return;
            }
            let count: usize = parts.iter().map(|p| p.step.len).sum();
            let wide = lanes.take(count * size_of::<Lane>()).cast::<Lane>();
            // SAFETY: the space has room for the lanes of the block, which are read after they are written; a step has
            // its room at its place.
            unsafe {
                self.widen(panel, parts, wide);
                let (mut done, first) = (0, parts[0].at);
                for part in parts {
                    let lanes = std::slice::from_raw_parts(wide.add(done), part.step.len);
                    amx::split_f32(lanes, self.split(), to.add(part.at - first));
                    done += part.step.len;
                }
            }
            return;
        }
        let _ = lanes;
        // SAFETY: as promised by the caller.
        unsafe { self.widen(panel, parts, to.cast()) };
    }

    /// The weights of some steps of a panel as f32, a lane for each channel.
    ///
    /// # Safety
    /// `to` has room for the lanes.
    unsafe fn widen(&self, panel: usize, parts: &[Part], mut to: *mut Lane) {
        let Some(first) = parts.first() else { return };
        if self.weight.panel(panel, first.tap, 0..0).is_none() {
            // SAFETY: as promised by the caller.
            unsafe { self.widen_rows(panel, parts, to) };
            return;
        }
        for part in parts {
            let range = part.channel..part.channel + part.step.len;
            let values = self
                .weight
                .panel(panel, part.tap, range)
                .expect("kept in panels");
            // SAFETY: the caller has room for the lanes, and the engine's instruction set is there.
            unsafe {
                match self.weight.dtype() {
                    Dtype::F16 => kernel::widen_f16(self.engine.isa(), lanes_of(values), to),
                    Dtype::Bf16 => {
                        for (i, lane) in lanes_of(values).iter().enumerate() {
                            to.add(i)
                                .write(lane.map(|b| f32::from_bits(u32::from(b) << 16)));
                        }
                    }
                    Dtype::F32 => values
                        .as_ptr()
                        .copy_to_nonoverlapping(to.cast(), values.len()),
                    dtype => {
                        let table = bytes_as_f32(dtype);
                        let (values, _) = values.as_chunks::<WIDTH>();
                        for (i, lane) in values.iter().enumerate() {
                            to.add(i).write(lane.map(|b| table[usize::from(b)]));
                        }
                    }
                }
                to = to.add(part.step.len);
            }
        }
    }

    /// The same from weights that are kept in rows.
    ///
    /// # Safety
    /// As [`Self::widen`].
    unsafe fn widen_rows(&self, panel: usize, parts: &[Part], to: *mut Lane) {
        let taps = self.weight.taps();
        let to = to.cast::<f32>();
        for j in 0..WIDTH {
            let row = (panel * WIDTH + j < self.weight.out())
                .then(|| self.weight.row(panel * WIDTH + j))
                .flatten();
            let mut done = 0;
            for part in parts {
                for i in 0..part.step.len {
                    let value = row
                        .as_ref()
                        .map_or(0.0, |row| row[(part.channel + i) * taps + part.tap]);
                    // SAFETY: the caller has room for the lanes.
                    unsafe { to.add((done + i) * WIDTH + j).write(value) };
                }
                done += part.step.len;
            }
        }
    }
}

/// Most rows of any kernel.
const MOST_ROWS: usize = 32;

/// Rows that chunks are multiples of.
const fn amx_rows() -> usize {
    MOST_ROWS
}

/// Panel bytes of two-byte values as lanes.
fn lanes_of(values: &[u8]) -> &[[u16; WIDTH]] {
    // SAFETY: panels begin at lines and rows of two-byte values are whole lines, so this is aligned; any bits are u16.
    let (before, lanes, _) = unsafe { values.align_to::<[u16; WIDTH]>() };
    debug_assert!(before.is_empty());
    lanes
}

/// The values of all bytes of an 8-bit format.
fn bytes_as_f32(dtype: Dtype) -> &'static [f32; 256] {
    static TABLES: [OnceLock<[f32; 256]>; 2] = [OnceLock::new(), OnceLock::new()];
    TABLES[usize::from(dtype == Dtype::F8E5M2)].get_or_init(|| {
        let all: Vec<u8> = (0..=255).collect();
        dtype
            .to_f32(&all)
            .try_into()
            .expect("256 bytes are 256 values")
    })
}
