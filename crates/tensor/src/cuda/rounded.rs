//! Weights that are kept in another number format than their file's: the numbers come over as they are in the file, and are rounded here.
//!
//! The kernels round as the processor does, to the nearest and ties to even, bit by bit; what is no number stays none. Those of
//! `weights.cu` write f32, f16 and bf16. E4M3 is written by the kernel that prepares the inputs of products, which scales each row so
//! that its largest number becomes 448: 448 itself stands beside each row here, so that the scale is one, unless a row has larger
//! numbers; then, and of other formats, the processor rounds.

use super::device::CudaDevice;
use super::launches::bytes::{ToBytes, ToBytesKernel};
use super::launches::rows::{Lines, LinesKernel};
use super::launches::weights::{FromPlain, FromPlainKernel};
use super::launches::{LineTarget, WeightSizes};
use super::staging::{Moment, Origin};
use super::weight::bring_pieces;
use super::{Address, Format, Pointer, Scratch, Shape};
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::positioned::FilePart;
use crate::unread::Rounding;

/// Bytes of a file that are on their way at a time: as much memory is taken beside that of the weight.
const MOST: usize = 64 << 20;

/// Values of fewer bytes are rounded by the processor: it takes less time than a copy of their own.
pub(super) const LARGE_ROUNDED: usize = 32 << 10;

/// Columns of rows of numbers that are rounded to E4M3, however long those of the weight are, and of what stands beside each.
const COLUMNS: usize = 8184;
const BESIDE: usize = 8;

/// The largest number of E4M3 as f16 and as bf16.
const LARGEST_F16: u16 = 0x5F00;
const LARGEST_BF16: u16 = 0x43E0;

/// Brings numbers to an address, rounded where they are in another format there.
pub(super) fn bring_codes(
    device: &CudaDevice,
    to: u64,
    (pieces, rounding): (&[FilePart], Option<Rounding>),
    moment: Moment,
) -> Result<()> {
    let Some(rounding) = rounding else {
        return bring_pieces(device, to, pieces, moment);
    };
    let numbers = Numbers {
        device,
        rounding,
        moment,
    };
    let mut at = to;
    for piece in pieces {
        for from in (0..piece.len()).step_by(MOST) {
            let part = piece.range(from, MOST.min(piece.len() - from));
            let part = part.ok_or_else(|| TensorError::invalid("weight", "it has no such part"))?;
            at += numbers.bring(at, &part)?;
        }
    }
    Ok(())
}

/// Numbers of a weight on their way.
struct Numbers<'a> {
    device: &'a CudaDevice,
    rounding: Rounding,
    moment: Moment,
}

impl Numbers<'_> {
    /// Brings some of them, and says how many bytes they have become.
    fn bring(&self, to: u64, part: &FilePart) -> Result<u64> {
        let Rounding { from, to: wanted } = self.rounding;
        let count = part.len() / from.size();
        let done = if let Some((kernel, format)) = plain_kernel(self.rounding) {
            let read = self.read(part)?;
            self.write(kernel, format, (read.address(), to), count)?;
            true
        } else {
            self.bring_e4m3(to, part, count)?
        };
        if !done {
            let bytes = self.rounding.round(&part.read()?)?;
            self.device.bring(to, Origin::Memory(&bytes), self.moment)?;
        }
        Ok((count * wanted.size()) as u64)
    }

    /// Memory with what the file has.
    fn read(&self, part: &FilePart) -> Result<Scratch> {
        let read = match self.moment {
            Moment::InTurn => self.device.scratch(part.len())?,
            Moment::Ahead => self.device.scratch_ahead(part.len() as u64)?,
        };
        let pieces = std::slice::from_ref(part);
        bring_pieces(self.device, read.address(), pieces, self.moment)?;
        Ok(read)
    }

    fn write(
        &self,
        kernel: FromPlainKernel,
        format: Format,
        (from, to): (u64, u64),
        count: usize,
    ) -> Result<()> {
        // One row of so many channels, not padded, of one position, in their order.
        let sizes = WeightSizes {
            out: 1,
            channels: count as i32,
            taps: 1,
            padded: count as i32,
            all_taps: 1,
            first: 0,
        };
        let read = FromPlain {
            kernel,
            from: Pointer::at(from),
            to: Pointer::at(to),
            sizes,
            taps_first: 1,
        };
        let blocks = count.div_ceil(512).clamp(1, 1 << 15) as u32;
        let shape = Shape::row(blocks, 256);
        self.device.launch_at(self.moment, format, shape, read)
    }

    /// Rounds to E4M3. False where the device cannot do it as the processor does, and nothing was written then that stays.
    fn bring_e4m3(&self, to: u64, part: &FilePart, count: usize) -> Result<bool> {
        let format = match self.rounding {
            Rounding {
                from: Dtype::F16,
                to: Dtype::F8E4M3,
            } => Format::F16,
            Rounding {
                from: Dtype::Bf16,
                to: Dtype::F8E4M3,
            } => Format::Bf16,
            _ => return Ok(false),
        };
        let able = self.device.arch() >= 89 && self.moment == Moment::InTurn;
        if !able || !count.is_multiple_of(BESIDE) {
            return Ok(false);
        }
        let read = self.read(part)?;
        let largest = match format {
            Format::F16 => LARGEST_F16,
            _ => LARGEST_BF16,
        };
        let mut beside = [0; 2 * BESIDE];
        beside[..2].copy_from_slice(&largest.to_le_bytes());
        let largest = self.device.scratch(beside.len())?;
        self.device.upload(largest.address(), &beside)?;
        let rows = count / COLUMNS;
        let whole = (0, rows, COLUMNS);
        let rest = (rows * COLUMNS, 1, count % COLUMNS);
        for (first, rows, columns) in [whole, rest] {
            if rows * columns == 0 {
                continue;
            }
            let from = read.address() + (first * self.rounding.from.size()) as u64;
            let places = (from, largest.address(), to + first as u64);
            if !self.round_rows(format, places, rows, columns)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// False where a row has numbers that are too large, or none at all.
    fn round_rows(
        &self,
        format: Format,
        (from, largest, to): (u64, u64, u64),
        rows: usize,
        columns: usize,
    ) -> Result<bool> {
        let wide = columns + BESIDE;
        let codes = self.device.scratch(rows * wide)?;
        let scales = self.device.scratch(rows * size_of::<f32>())?;
        let to_bytes = ToBytes {
            kernel: ToBytesKernel::E4m3,
            a: Pointer::at(from),
            b: Pointer::at(largest),
            factors: Pointer::NONE,
            to: Pointer::at(codes.address()),
            scales: Pointer::at(scales.address()),
            left: columns as i32,
            right: BESIDE as i32,
            // The same for all rows.
            step: 0,
            levels: 0.0,
            group: 0,
        };
        let words_of_warps = 4 * 8;
        let shape = Shape::row(rows as u32, 256).with_shared(words_of_warps);
        self.device.launch(format, shape, to_bytes)?;
        let mut factors = vec![0; rows * size_of::<f32>()];
        self.device.download(&mut factors, scales.address())?;
        let one = 1_f32.to_le_bytes();
        if !factors.as_chunks::<4>().0.iter().all(|scale| *scale == one) {
            return Ok(false);
        }
        // Without what stands beside them.
        let lines = Lines {
            kernel: LinesKernel::Lines32,
            from: Pointer::at(codes.address()),
            to: Pointer::at(to),
            rows: rows as i32,
            first: 0,
            each: rows as i32,
            expert_step: 0,
            row_step: (wide / 4) as i64,
            value_step: 1,
            place: LineTarget {
                row_bytes: columns as i32,
                place: 0,
                count: (columns / 4) as i32,
            },
        };
        let shape = Shape::row(rows.div_ceil(8).min(1 << 15) as u32, 256);
        self.device.launch_plain(Moment::InTurn, shape, lines)?;
        Ok(true)
    }
}

/// The kernel that rounds so, element by element.
fn plain_kernel(Rounding { from, to }: Rounding) -> Option<(FromPlainKernel, Format)> {
    let kernel = match from {
        Dtype::F32 => FromPlainKernel::FromF32,
        Dtype::F16 => FromPlainKernel::FromF16,
        Dtype::Bf16 => FromPlainKernel::FromBf16,
        Dtype::F8E4M3 => FromPlainKernel::FromE4m3,
        Dtype::F8E5M2 => FromPlainKernel::FromE5m2,
        _ => return None,
    };
    let format = match to {
        Dtype::F32 => Format::F32,
        Dtype::F16 => Format::F16,
        Dtype::Bf16 => Format::Bf16,
        _ => return None,
    };
    Some((kernel, format))
}
