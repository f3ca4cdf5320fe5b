//! Weights in the order in which kernels read them, in their storage format.
//!
//! The usual formats are kept in panels of [`WIDTH`] outputs: for each panel, for each tap, for each channel, the values
//! of its outputs side by side. Formats that code several values together stay as they came.

#![expect(unsafe_code, reason = "threads fill disjoint panels of one allocation")]

use std::fmt;
use std::ops::Range;

use rayon::prelude::*;

use super::lines::{self, LINE, Line, SharedPointer};
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::pages::prefer_large;
use crate::stored::Stored;

/// Outputs in a panel.
pub(crate) const WIDTH: usize = 32;

/// Weights of shape (out, channels, taps): a linear layer has one tap, a convolution one per kernel position.
pub(crate) struct Weight {
    dtype: Dtype,
    out: usize,
    channels: usize,
    taps: usize,
    layout: Layout,
    short: bool,
}

enum Layout {
    /// [panel][tap][channel][output of the panel], the last panel filled with zeros.
    Panels(Vec<Line>),
    /// The bytes as given: [output][channel][tap].
    Rows(Stored),
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (out, channels, taps) = (self.out, self.channels, self.taps);
        write!(
            f,
            "Weight({out}, {channels}, {taps}, {})",
            self.dtype.name()
        )
    }
}

impl Weight {
    pub(crate) fn new(stored: &Stored, out: usize, channels: usize, taps: usize) -> Result<Self> {
        let layout = match stored.dtype() {
            Dtype::F16 | Dtype::Bf16 => {
                Layout::Panels(pack::<2>(stored.bytes(), out, channels, taps)?)
            }
            Dtype::F8E4M3 | Dtype::F8E5M2 => {
                Layout::Panels(pack::<1>(stored.bytes(), out, channels, taps)?)
            }
            Dtype::F32 => Layout::Panels(pack::<4>(stored.bytes(), out, channels, taps)?),
            _ => {
                Self::check(stored, channels * taps)?;
                Layout::Rows(stored.clone())
            }
        };
        Ok(Self {
            dtype: stored.dtype(),
            out,
            channels,
            taps,
            layout,
            short: false,
        })
    }

    /// Refuses a weight whose rows of so many values cannot be used by themselves.
    pub(crate) fn check(stored: &Stored, row: usize) -> Result<()> {
        if stored.dtype().bytes_for(row).is_some() {
            return Ok(());
        }
        Err(TensorError::invalid(
            "weights",
            format!("rows of {row} values are not whole blocks"),
        ))
    }

    /// Lets products keep sixteen bits of an activation.
    pub(crate) fn shorten(&mut self) {
        self.short = true;
    }

    pub(crate) fn is_short(&self) -> bool {
        self.short
    }

    pub(crate) fn out(&self) -> usize {
        self.out
    }

    pub(crate) fn channels(&self) -> usize {
        self.channels
    }

    pub(crate) fn taps(&self) -> usize {
        self.taps
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The weight as it was given, (out, channels, taps).
    pub(crate) fn unpack(&self) -> Result<Stored> {
        let bytes = match &self.layout {
            Layout::Rows(stored) => return Ok(stored.clone()),
            Layout::Panels(lines) => match self.dtype.size() {
                1 => unpack::<1>(lines, self.out, self.channels, self.taps)?,
                2 => unpack::<2>(lines, self.out, self.channels, self.taps)?,
                _ => unpack::<4>(lines, self.out, self.channels, self.taps)?,
            },
        };
        Stored::new(self.dtype, [self.out, self.channels, self.taps], bytes)
    }

    /// The same weight in memory of its own.
    pub(crate) fn copied(&self) -> Result<Self> {
        let layout = match &self.layout {
            Layout::Rows(stored) => Layout::Rows(stored.copied()?),
            Layout::Panels(lines) => {
                let _claim = crate::room::claim(std::mem::size_of_val(&lines[..]) as u64)?;
                let mut copy = Vec::with_capacity(lines.len());
                prefer_large(&mut copy);
                copy.extend_from_slice(lines);
                Layout::Panels(copy)
            }
        };
        Ok(Self { layout, ..*self })
    }

    /// The values of one panel for some channels of a tap, [channel][output], where they lie in panels.
    pub(crate) fn panel(&self, panel: usize, tap: usize, channels: Range<usize>) -> Option<&[u8]> {
        let Layout::Panels(lines) = &self.layout else {
            return None;
        };
        let row = WIDTH * self.dtype.size();
        let first = (panel * self.taps + tap) * self.channels;
        Some(&lines::bytes(lines)[(first + channels.start) * row..(first + channels.end) * row])
    }

    /// The values of one output where the weight is kept in rows: [channel][tap], of all channels where there are several
    /// taps, or else of those asked for.
    pub(crate) fn row(&self, output: usize, channels: Range<usize>) -> Option<Vec<f32>> {
        let Layout::Rows(stored) = &self.layout else {
            return None;
        };
        let row = stored.bytes().len() / self.out;
        let row = &stored.bytes()[output * row..][..row];
        let (elements, bytes) = self.dtype.block();
        if self.taps > 1 || !channels.start.is_multiple_of(elements) {
            let mut values = vec![0.0; self.channels * self.taps];
            self.dtype.decode(row, &mut values);
            if self.taps == 1 {
                values.drain(..channels.start);
            }
            return Some(values);
        }
        let blocks = channels.start / elements..channels.end.div_ceil(elements);
        let mut values = vec![0.0; blocks.len() * elements];
        // Not `to_f32`, which may share work with other threads: this runs inside a task.
        self.dtype
            .decode(&row[blocks.start * bytes..blocks.end * bytes], &mut values);
        Some(values)
    }
}

/// Bytes of the panels of a weight.
fn panel_bytes(size: usize, out: usize, k: usize) -> usize {
    out.div_ceil(WIDTH) * WIDTH * k * size
}

/// Values of a panel that are turned at a time: both sides then stay in the first cache.
const TURN: usize = 32;

/// [out][channel][tap] to [panel][tap][channel][output], `S` bytes a value.
fn pack<const S: usize>(
    from: &[u8],
    out: usize,
    channels: usize,
    taps: usize,
) -> Result<Vec<Line>> {
    let k = channels * taps;
    let count = panel_bytes(S, out, k).div_ceil(LINE);
    let _claim = crate::room::claim((count * LINE) as u64)?;
    let mut to: Vec<Line> = Vec::with_capacity(count);
    prefer_large(&mut to);
    if let Some(last) = to.spare_capacity_mut()[..count].last_mut() {
        // Panels of single bytes may end in the middle of it.
        last.write(lines::EMPTY);
    }
    let (from, _) = from.as_chunks::<S>();
    let base = SharedPointer::new(to.as_mut_ptr().cast::<[[u8; S]; WIDTH]>());
    (0..out.div_ceil(WIDTH)).into_par_iter().for_each(|panel| {
        let rows = WIDTH.min(out - panel * WIDTH);
        let from = &from[panel * WIDTH * k..][..rows * k];
        let mut block = [[[0u8; S]; TURN]; WIDTH];
        for start in (0..k).step_by(TURN) {
            let len = TURN.min(k - start);
            for (block, row) in block.iter_mut().zip(from.chunks_exact(k)) {
                block[..len].copy_from_slice(&row[start..start + len]);
            }
            for i in 0..len {
                let (channel, tap) = ((start + i) / taps, (start + i) % taps);
                let mut line = [[0u8; S]; WIDTH];
                for (to, block) in line.iter_mut().zip(&block) {
                    *to = block[i];
                }
                let at = (panel * taps + tap) * channels + channel;
                // SAFETY: `at` counts rows of WIDTH values inside the reserved memory, and each is written once, by the
                // task of its panel.
                unsafe { base.get().add(at).write(line) };
            }
        }
    });
    // SAFETY: every row of every panel has been written, and the line behind them before.
    unsafe { to.set_len(count) };
    Ok(to)
}

/// The reverse of [`pack`].
fn unpack<const S: usize>(
    from: &[Line],
    out: usize,
    channels: usize,
    taps: usize,
) -> Result<Vec<u8>> {
    let k = channels * taps;
    let _claim = crate::room::claim((out * k * S) as u64)?;
    let mut to = vec![0u8; out * k * S];
    let (from, _) = lines::bytes(from).as_chunks::<S>();
    if k > 0 {
        to.par_chunks_mut(WIDTH * k * S)
            .enumerate()
            .for_each(|(panel, to)| {
                let from = &from[panel * WIDTH * k..][..WIDTH * k];
                let (to, _) = to.as_chunks_mut::<S>();
                for (j, to) in to.chunks_exact_mut(k).enumerate() {
                    for (i, to) in to.iter_mut().enumerate() {
                        *to = from[((i % taps) * channels + i / taps) * WIDTH + j];
                    }
                }
            });
    }
    Ok(to)
}
