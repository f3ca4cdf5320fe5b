//! Rows of quantised weights put together on a GPU: codes, scales and what else belongs to rows come over as they are in their file, and kernels write each to its
//! place in every row (`kernels/rows.cu`).

use super::device::CudaDevice;
use super::launch::PlainLaunch;
use super::launches::LineTarget;
use super::launches::rows::{self as launches, LinesKernel, LinesTiled};
use super::rounded::bring_codes;
use super::staging::Moment;
use super::weight::bring_pieces;
use super::{Address, LARGE, Pointer, Scratch, Shape};
use crate::error::{Result, TensorError};
use crate::read_buffer;
use crate::row_parts::{Number, Order, RowPart, Steps};
use crate::stored::Stored;
use crate::unread::{RowEnds, Unread};

/// Bytes of codes that are on their way at a time: as much memory is taken beside that of the rows.
const MOST_CODES: usize = 64 << 20;

/// Brings rows to an address.
pub(super) fn bring_rows(
    device: &CudaDevice,
    to: u64,
    (unread, ends): (&Unread, &RowEnds),
    moment: Moment,
) -> Result<()> {
    let row_bytes = ends.codes + ends.end;
    let mut rows = Rows {
        device,
        moment,
        to,
        bytes: row_bytes,
        count: 0,
    };
    for list in &ends.lists {
        rows.count = list.rows();
        for part in list.parts()? {
            let bytes = part.values.byte_len();
            let from = rows.scratch(bytes)?;
            rows.bring_values(from.address(), &part.values)?;
            rows.write_part(from.address(), &part)?;
        }
        rows.to += (rows.count * row_bytes) as u64;
    }
    let all = ends.rows();
    let step = (MOST_CODES / ends.codes).max(1);
    rows.to = to;
    for start in (0..all).step_by(step) {
        rows.count = step.min(all - start);
        let pieces = unread.codes_of(start, rows.count);
        let pieces = pieces.ok_or_else(|| invalid("it has fewer rows than it says"))?;
        let from = rows.scratch(rows.count * ends.codes)?;
        let bring = (&pieces[..], unread.rounding());
        bring_codes(device, from.address(), bring, moment)?;
        let codes = Lines {
            first: 0,
            each: rows.count,
            steps: Steps {
                expert: 0,
                row: ends.codes,
                value: 1,
            },
            place: 0,
            count: ends.codes,
        };
        rows.write_bytes(from.address(), codes, 1)?;
        rows.to += (rows.count * row_bytes) as u64;
    }
    Ok(())
}

fn invalid(reason: impl Into<String>) -> TensorError {
    TensorError::invalid("weight", reason)
}

fn int(value: usize) -> Result<i32> {
    i32::try_from(value).map_err(|_| invalid(format!("{value} is too much for a GPU's kernels")))
}

/// Rows that are written.
struct Rows<'a> {
    device: &'a CudaDevice,
    moment: Moment,
    /// The address of the first one.
    to: u64,
    /// Of a row.
    bytes: usize,
    count: usize,
}

/// Where the values of a part are, in values, and where they go in each row.
#[derive(Clone, Copy)]
struct Lines {
    first: usize,
    each: usize,
    steps: Steps,
    /// In bytes.
    place: usize,
    /// Of a row.
    count: usize,
}

impl Lines {
    /// Values that follow each other taken several at a time; none where they do not come out even.
    fn by(self, values: usize, bytes: usize, row_bytes: usize) -> Option<Self> {
        let steps = self.steps;
        let counts = [self.count, steps.expert, steps.row];
        let places = [self.place, row_bytes];
        let even = steps.value == 1
            && counts.iter().all(|n| n.is_multiple_of(values))
            && places.iter().all(|n| n.is_multiple_of(values * bytes));
        even.then(|| Self {
            steps: Steps {
                expert: steps.expert / values,
                row: steps.row / values,
                value: 1,
            },
            count: self.count / values,
            ..self
        })
    }
}

impl Rows<'_> {
    /// Memory for what is brought, until it is written to its place.
    fn scratch(&self, bytes: usize) -> Result<Scratch> {
        match self.moment {
            Moment::InTurn => self.device.scratch(bytes),
            Moment::Ahead => self.device.scratch_ahead(bytes as u64),
        }
    }

    /// Brings a tensor of scales, or what is such. Small ones are read first: it takes less time than a piece of pinned memory.
    fn bring_values(&self, to: u64, values: &Stored) -> Result<()> {
        let Some(unread) = values.in_file() else {
            return self.upload(to, values.bytes());
        };
        match unread.plain() {
            Some(pieces) if unread.len() >= LARGE => {
                bring_pieces(self.device, to, pieces, self.moment)
            }
            _ => {
                let bytes = unread.read()?;
                self.upload(to, &bytes)?;
                read_buffer::give(bytes);
                Ok(())
            }
        }
    }

    fn upload(&self, to: u64, bytes: &[u8]) -> Result<()> {
        match self.moment {
            Moment::InTurn => self.device.upload(to, bytes),
            Moment::Ahead => self.device.upload_ahead(to, bytes),
        }
    }

    fn write_part(&self, from: u64, part: &RowPart) -> Result<()> {
        let Some(steps) = part.steps() else {
            return self.write_tiled(from, part);
        };
        let lines = Lines {
            first: part.first,
            each: part.each,
            steps,
            place: part.place,
            count: part.count,
        };
        match part.number {
            Number::Bytes(bytes) => self.write_bytes(from, lines, bytes),
            Number::F16 => self.write(LinesKernel::LinesF16, from, lines),
            Number::Bf16 => self.write(LinesKernel::LinesBf16, from, lines),
        }
    }

    /// Values of so many bytes, as many at a time as four bytes have.
    fn write_bytes(&self, from: u64, lines: Lines, bytes: usize) -> Result<()> {
        let several = [4, 2, 1].into_iter().find_map(|values| {
            let fits = values * bytes <= 4;
            let lines = lines.by(values, bytes, self.bytes).filter(|_| fits)?;
            Some((lines, values * bytes))
        });
        let (lines, bytes) = several.unwrap_or((lines, bytes));
        let kernel = match bytes {
            1 => LinesKernel::Lines8,
            2 => LinesKernel::Lines16,
            _ => LinesKernel::Lines32,
        };
        self.write(kernel, from, lines)
    }

    fn write(&self, kernel: LinesKernel, from: u64, lines: Lines) -> Result<()> {
        self.start(launches::Lines {
            kernel,
            from: Pointer::at(from),
            to: Pointer::at(self.to),
            rows: int(self.count)?,
            first: int(lines.first)?,
            each: int(lines.each)?,
            expert_step: lines.steps.expert as i64,
            row_step: lines.steps.row as i64,
            value_step: lines.steps.value as i64,
            place: self.target(lines.place, lines.count)?,
        })
    }

    fn target(&self, place: usize, count: usize) -> Result<LineTarget> {
        Ok(LineTarget {
            row_bytes: int(self.bytes)?,
            place: int(place)?,
            count: int(count)?,
        })
    }

    fn write_tiled(&self, from: u64, part: &RowPart) -> Result<()> {
        debug_assert!(matches!(part.order, Order::Tiles { .. }));
        self.start(LinesTiled {
            from: Pointer::at(from),
            to: Pointer::at(self.to),
            rows: int(self.count)?,
            first: int(part.first)?,
            each: int(part.each)?,
            expert_step: part.tiles() as i64,
            across: part.count.div_ceil(4) as i64,
            place: self.target(part.place, part.count)?,
        })
    }

    fn start(&self, launch: impl PlainLaunch) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        // A warp has a row.
        let blocks = self.count.div_ceil(8).min(1 << 15) as u32;
        let shape = Shape::row(blocks, 256);
        self.device.launch_plain(self.moment, shape, launch)
    }
}
