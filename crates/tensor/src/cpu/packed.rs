//! Weights in the order in which kernels read them, in their storage format.
//!
//! The usual formats are kept in panels of [`WIDTH`] outputs: for each panel, for each tap, for each channel, the values
//! of its outputs side by side; signed bytes four channels at a time, as products of integers read them. Formats that code
//! several values together stay as they came. What a whole row is scaled with is kept apart and multiplied to the sums.

use std::fmt;
use std::ops::Range;

use rayon::prelude::*;

use super::lines::{self, LINE, Line};
use super::pack::PanelShape;
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::formats::{RowFormat, RowKind};
use crate::pages::prefer_large;
use crate::stored::Stored;
use crate::unread::Unread;

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
    exact: bool,
    /// Of the outputs, where rows have them.
    scales: Vec<f32>,
}

enum Layout {
    /// [panel][tap][channel][output of the panel], the last panel filled with zeros.
    Panels(Vec<Line>),
    /// Signed bytes: [panel][channel / 4][output of the panel][channel % 4], filled with zeros to whole steps of
    /// [`QUAD_STEP`] channels.
    Quads(Vec<Line>),
    /// The bytes as given: [output][channel][tap].
    Rows(Stored),
}

/// What has fewer bytes is read by the thread that packs it: others would take longer to begin.
const PACKED_FROM_FILE: usize = 512 << 10;

/// Channels of one step of products of integers.
pub(crate) const QUAD_STEP: usize = 64;

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
        let mut weight = Self {
            dtype: stored.dtype(),
            out,
            channels,
            taps,
            layout: Layout::Rows(stored.clone()),
            short: false,
            exact: false,
            scales: Vec::new(),
        };
        weight.layout = match stored.dtype() {
            Dtype::F16 | Dtype::Bf16 => weight.panels::<2>(stored)?,
            Dtype::F8E4M3 | Dtype::F8E5M2 => weight.panels::<1>(stored)?,
            Dtype::F32 => weight.panels::<4>(stored)?,
            Dtype::Rows(format) => weight.rows_of(format, stored)?,
            _ => {
                Self::check(stored, channels * taps)?;
                stored.read()?;
                Layout::Rows(stored.clone())
            }
        };
        Ok(weight)
    }

    fn panel_shape<const S: usize>(&self) -> PanelShape<S> {
        PanelShape {
            out: self.out,
            channels: self.channels,
            taps: self.taps,
        }
    }

    /// Panels of plain values. What is still in a file goes straight from there to its place.
    fn panels<const S: usize>(&self, stored: &Stored) -> Result<Layout> {
        let shape = self.panel_shape::<S>();
        let large = stored.byte_len() >= PACKED_FROM_FILE;
        let pieces = stored.in_file().filter(|_| large);
        let pieces = pieces.and_then(Unread::plain);
        Ok(Layout::Panels(match pieces {
            Some(pieces) => shape.pack_file(pieces)?,
            None => shape.pack(stored.read()?, self.channels * self.taps * S)?,
        }))
    }

    /// The order for a row format, and its scales.
    fn rows_of(&mut self, format: RowFormat, stored: &Stored) -> Result<Layout> {
        let row = self.channels * self.taps;
        let bytes = stored.read()?;
        if format.columns() != row || bytes.len() != self.out * format.row_bytes() {
            return Err(TensorError::invalid(
                "weights",
                format!("rows of {row} values, but {} were coded", format.columns()),
            ));
        }
        if format.rotation() > 0 && self.taps > 1 {
            // Inputs of a kernel's positions cannot be rotated together: every row is turned back when it is decoded.
            return Ok(Layout::Rows(stored.clone()));
        }
        let rows = bytes.chunks_exact(format.row_bytes());
        self.scales = rows.map(|row| format.row_scale(row)).collect();
        match format.kind() {
            RowKind::F8E4M3 | RowKind::F8E5M2 => {
                // The codes of a row come first.
                let shape = self.panel_shape::<1>();
                Ok(Layout::Panels(shape.pack(bytes, format.row_bytes())?))
            }
            RowKind::Int8 if self.taps == 1 => {
                let lines = pack_quads(format, bytes, self.out)?;
                Ok(Layout::Quads(lines))
            }
            _ => Ok(Layout::Rows(stored.clone())),
        }
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

    #[cfg(target_arch = "x86_64")] // Matrix tiles, which ask for it, are an Intel processor's.
    pub(crate) fn is_short(&self) -> bool {
        self.short
    }

    /// Keeps inputs from being rounded to integers.
    pub(crate) fn set_exact(&mut self) {
        self.exact = true;
    }

    /// The format, where inputs may be rounded and products of integers taken.
    pub(crate) fn integer(&self) -> Option<RowFormat> {
        match self.dtype {
            Dtype::Rows(format) if self.taps == 1 && !self.exact && format.is_integer() => {
                Some(format)
            }
            _ => None,
        }
    }

    /// Columns of an input that are rotated together before it is multiplied; 0 for none.
    pub(crate) fn rotation(&self) -> usize {
        match self.dtype {
            Dtype::Rows(format) if self.taps == 1 => format.rotation(),
            _ => 0,
        }
    }

    /// What the sums of the outputs are multiplied with; empty where nothing is.
    pub(crate) fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The numbers that kernels multiply, before scales of rows.
    pub(crate) fn number(&self) -> Dtype {
        match self.dtype {
            Dtype::Rows(format) => match format.kind() {
                RowKind::F8E4M3 => Dtype::F8E4M3,
                RowKind::F8E5M2 => Dtype::F8E5M2,
                _ => self.dtype,
            },
            dtype => dtype,
        }
    }

    /// Whether the whole panel is signed bytes, four channels at a time, and then those.
    pub(crate) fn quads(&self, panel: usize) -> Option<&[u8]> {
        let Layout::Quads(lines) = &self.layout else {
            return None;
        };
        let bytes = quad_bytes(self.channels);
        Some(&lines::bytes(lines)[panel * bytes..][..bytes])
    }

    /// The rows of a panel as they were given, those that there are.
    pub(crate) fn rows_of_panel(&self, panel: usize) -> Option<impl Iterator<Item = &[u8]>> {
        let Layout::Rows(stored) = &self.layout else {
            return None;
        };
        let row = stored.bytes().len() / self.out;
        let rows = stored.bytes().chunks_exact(row);
        Some(rows.skip(panel * WIDTH).take(WIDTH))
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
            Layout::Quads(lines) => {
                self.with_scales(&unpack_quads(lines, self.out, self.channels)?)?
            }
            Layout::Panels(lines) => match self.number().size() {
                1 => {
                    let codes = unpack::<1>(lines, self.out, self.channels, self.taps)?;
                    if self.scales.is_empty() {
                        codes
                    } else {
                        self.with_scales(&codes)?
                    }
                }
                2 => unpack::<2>(lines, self.out, self.channels, self.taps)?,
                _ => unpack::<4>(lines, self.out, self.channels, self.taps)?,
            },
        };
        Stored::new(self.dtype, [self.out, self.channels, self.taps], bytes)
    }

    /// Rows of codes with their scales behind them.
    fn with_scales(&self, codes: &[u8]) -> Result<Vec<u8>> {
        let row = self.channels * self.taps;
        let bytes = codes.len() + 4 * self.out;
        let _claim = crate::room::claim(bytes as u64)?;
        let mut rows = Vec::with_capacity(bytes);
        for (codes, scale) in codes.chunks_exact(row).zip(&self.scales) {
            rows.extend_from_slice(codes);
            rows.extend_from_slice(&scale.to_le_bytes());
        }
        Ok(rows)
    }

    /// The same weight in memory of its own.
    pub(crate) fn copied(&self) -> Result<Self> {
        let copied = |lines: &Vec<Line>| -> Result<Vec<Line>> {
            let _claim = crate::room::claim(std::mem::size_of_val(&lines[..]) as u64)?;
            let mut copy = Vec::with_capacity(lines.len());
            prefer_large(&mut copy);
            copy.extend_from_slice(lines);
            Ok(copy)
        };
        let layout = match &self.layout {
            Layout::Rows(stored) => Layout::Rows(stored.copied()?),
            Layout::Panels(lines) => Layout::Panels(copied(lines)?),
            Layout::Quads(lines) => Layout::Quads(copied(lines)?),
        };
        Ok(Self {
            layout,
            scales: self.scales.clone(),
            ..*self
        })
    }

    /// The values of one panel for some channels of a tap, [channel][output], where they lie in panels.
    pub(crate) fn panel(&self, panel: usize, tap: usize, channels: Range<usize>) -> Option<&[u8]> {
        let Layout::Panels(lines) = &self.layout else {
            return None;
        };
        let row = WIDTH * self.number().size();
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
        if let Dtype::Rows(format) = self.dtype
            && self.taps == 1
        {
            let mut values = vec![0.0; channels.len()];
            format.plain(row, channels, &mut values);
            return Some(values);
        }
        let (elements, bytes) = self.dtype.block();
        if self.taps > 1 || !channels.start.is_multiple_of(elements) {
            let mut values = vec![0.0; self.channels * self.taps];
            match self.dtype {
                // With the scale apart, as in all that is not rotated.
                Dtype::Rows(format) if format.rotation() == 0 => {
                    format.plain(row, 0..format.columns(), &mut values);
                }
                dtype => dtype.decode(row, &mut values),
            }
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

/// Bytes of a panel of signed bytes, four channels at a time.
pub(crate) fn quad_bytes(channels: usize) -> usize {
    channels.next_multiple_of(QUAD_STEP) * WIDTH
}

/// Rows of signed bytes to panels, four channels at a time.
fn pack_quads(format: RowFormat, rows: &[u8], out: usize) -> Result<Vec<Line>> {
    let columns = format.columns();
    let panel_lines = quad_bytes(columns) / LINE;
    let count = out.div_ceil(WIDTH) * panel_lines;
    let _claim = crate::room::claim((count * LINE) as u64)?;
    let mut to = Vec::with_capacity(count);
    prefer_large(&mut to);
    to.resize(count, lines::EMPTY);
    let row_bytes = format.row_bytes();
    to.par_chunks_mut(panel_lines)
        .enumerate()
        .for_each(|(panel, to)| {
            let rows = rows.chunks_exact(row_bytes).skip(panel * WIDTH).take(WIDTH);
            let to = lines::bytes_mut(to);
            for (j, row) in rows.enumerate() {
                let (quads, rest) = row[..columns].as_chunks::<4>();
                for (i, quad) in quads.iter().enumerate() {
                    to[(i * WIDTH + j) * 4..][..4].copy_from_slice(quad);
                }
                let at = (quads.len() * WIDTH + j) * 4;
                if !rest.is_empty() {
                    to[at..at + rest.len()].copy_from_slice(rest);
                }
            }
        });
    Ok(to)
}

/// The reverse of [`pack_quads`], without scales.
fn unpack_quads(from: &[Line], out: usize, channels: usize) -> Result<Vec<u8>> {
    let _claim = crate::room::claim((out * channels) as u64)?;
    let mut to = vec![0; out * channels];
    let from = lines::bytes(from);
    let panel_bytes = quad_bytes(channels);
    to.par_chunks_mut(channels)
        .enumerate()
        .for_each(|(output, to)| {
            let from = &from[output / WIDTH * panel_bytes..][..panel_bytes];
            let j = output % WIDTH;
            for (i, quad) in to.chunks_mut(4).enumerate() {
                let at = (i * WIDTH + j) * 4;
                quad.copy_from_slice(&from[at..at + quad.len()]);
            }
        });
    Ok(to)
}

/// Panels to [out][channel][tap].
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
