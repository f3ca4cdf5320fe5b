//! Rows of quantised weights put together on a GPU: codes, scales and what else belongs to rows come over as they are in their file, and kernels write each to its
//! place in every row (`kernels/rows.cu`).

use super::device::CudaDevice;
use super::staging::Moment;
use super::weight::bring_pieces;
use super::{Address, Args, Format, Kernel, LARGE, Scratch};
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
        bring_pieces(device, from.address(), &pieces, moment)?;
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
            Number::F16 => self.write("lines_f16", from, lines),
            Number::Bf16 => self.write("lines_bf16", from, lines),
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
        let name = match bytes {
            1 => "lines_8",
            2 => "lines_16",
            _ => "lines_32",
        };
        self.write(name, from, lines)
    }

    fn write(&self, name: &'static str, from: u64, lines: Lines) -> Result<()> {
        let args = Args::new()
            .pointer(from)
            .pointer(self.to)
            .int(int(self.count)?)
            .int(int(lines.first)?)
            .int(int(lines.each)?)
            .long(lines.steps.expert as i64)
            .long(lines.steps.row as i64)
            .long(lines.steps.value as i64)
            .int(int(self.bytes)?)
            .int(int(lines.place)?)
            .int(int(lines.count)?);
        self.start(name, &args)
    }

    fn write_tiled(&self, from: u64, part: &RowPart) -> Result<()> {
        debug_assert!(matches!(part.order, Order::Tiles { .. }));
        let args = Args::new()
            .pointer(from)
            .pointer(self.to)
            .int(int(self.count)?)
            .int(int(part.first)?)
            .int(int(part.each)?)
            .long(part.tiles() as i64)
            .long(part.count.div_ceil(4) as i64)
            .int(int(self.bytes)?)
            .int(int(part.place)?)
            .int(int(part.count)?);
        self.start("lines_tiled", &args)
    }

    fn start(&self, name: &'static str, args: &Args) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let kernel = Kernel {
            module: "rows",
            format: Format::F32,
            name,
        };
        // A warp has a row.
        let blocks = self.count.div_ceil(8).min(1 << 15) as u32;
        let grid = [blocks, 1, 1];
        match self.moment {
            Moment::InTurn => self.device.launch(kernel, grid, 256, 0, args),
            Moment::Ahead => self.device.launch_ahead(kernel, grid, args),
        }
    }
}
