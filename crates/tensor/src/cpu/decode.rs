//! Panels of weights in the form that kernels multiply: f32, or tiles of bf16 parts.

#![allow(
    clippy::cast_ptr_alignment,
    reason = "working space begins at a cache line"
)]
#![expect(unsafe_code, reason = "writes into the working space of a thread")]

use std::ops::Range;
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::finish::Lane;
use super::isa::Isa;
use super::kernel;
use super::lines::Space;
use super::packed::{WIDTH, Weight};
use super::plan::{Block, ProductEngine, ProductPart};
use crate::dtype::Dtype;
use crate::formats::RowFormat;

impl Weight {
    /// Whether bf16 is too short for the values.
    pub(super) fn is_split(&self) -> bool {
        match self.dtype() {
            Dtype::Bf16 | Dtype::F8E4M3 | Dtype::F8E5M2 => false,
            Dtype::Rows(format) => !self.is_plain(format),
            _ => true,
        }
    }

    /// Whether bf16 holds all values before the scales of their rows.
    pub(super) fn is_plain(&self, format: RowFormat) -> bool {
        format.is_short() && (format.rotation() == 0 || self.taps() == 1)
    }

    /// The weights of a block as the kernel reads them: where they are stored, if they are stored so, or decoded into
    /// `space`. `lanes` is more space.
    pub(super) fn decode(
        &self,
        engine: ProductEngine,
        panel: usize,
        (block, split): (&Block, bool),
        space: &mut Space,
        lanes: &mut Space,
    ) -> *const u8 {
        let _ = (&lanes, split);
        let [first, ..] = block.parts.as_slice() else {
            return space.take(0);
        };
        match engine {
            ProductEngine::Vector(isa) => {
                let stored_so = self.dtype() == Dtype::F32 && cfg!(target_endian = "little");
                if stored_so && block.is_plain() {
                    // Taps and channels are in the order of the panel.
                    let rest = first.channel..self.channels();
                    let stored = self.panel(panel, first.tap, rest);
                    return stored.expect("f32 is kept in panels").as_ptr();
                }
                let to = space.take(block.bytes);
                // SAFETY: there is room for the block, and the machine has the instruction set.
                unsafe { self.widen(isa, panel, &block.parts, to.cast()) };
                to
            }
            #[cfg(target_arch = "x86_64")]
            ProductEngine::Tiles(_) => {
                let to = space.take(block.bytes);
                // SAFETY: there is room for the block, and the machine has the tiles.
                unsafe { self.split(panel, block, split, to, lanes) };
                to
            }
        }
    }

    /// The weights of some steps of a panel as tiles.
    ///
    /// # Safety
    /// `to` has room for the steps at their places, and the machine has the tiles.
    #[cfg(target_arch = "x86_64")]
    unsafe fn split(
        &self,
        panel: usize,
        block: &Block,
        split: bool,
        to: *mut u8,
        lanes: &mut Space,
    ) {
        let parts = &block.parts;
        if self.dtype() == Dtype::F16 && block.is_plain() {
            for part in parts {
                let range = part.channel..part.channel + part.len;
                let values = self.panel(panel, part.tap, range);
                let values = lanes_of(values.expect("f16 is kept in panels"));
                // SAFETY: a step has its room at its place.
                unsafe { amx::split_f16(values, to.add(part.at)) };
            }
            return;
        }
        let count: usize = parts.iter().map(|p| p.len).sum();
        let wide = lanes.take(count * size_of::<Lane>()).cast::<Lane>();
        // SAFETY: the space has room for the lanes of the block, which are read after they are written; a step has its
        // room at its place.
        unsafe {
            self.widen(Isa::Avx512, panel, parts, wide);
            let mut done = 0;
            for part in parts {
                let lanes = std::slice::from_raw_parts(wide.add(done), part.len);
                amx::split_f32(lanes, split, to.add(part.at));
                done += part.len;
            }
        }
    }

    /// The weights of some steps of a panel as f32, a lane for each channel.
    ///
    /// # Safety
    /// `to` has room for the lanes, and the machine has `isa`.
    unsafe fn widen(&self, isa: Isa, panel: usize, parts: &[ProductPart], mut to: *mut Lane) {
        /// Channels whose taps are added up at a time.
        const SOME: usize = 16;
        if let Some(quads) = self.quads(panel) {
            // SAFETY: as promised by the caller.
            unsafe { widen_quads(quads, parts, to) };
            return;
        }
        if parts.is_empty() || self.panel(panel, 0, 0..0).is_none() {
            // SAFETY: as promised by the caller.
            unsafe { self.widen_rows(panel, parts, to) };
            return;
        }
        for part in parts {
            let (down, right) = part.sum;
            let taps = (0..down).flat_map(|y| (0..right).map(move |x| part.tap + y * 3 + x));
            for (number, tap) in taps.enumerate() {
                let range = part.channel..part.channel + part.len;
                if number == 0 {
                    // SAFETY: the caller has room for the lanes, and the instruction set is there.
                    unsafe { self.widen_tap(isa, panel, tap, range, to) };
                    continue;
                }
                let mut some = [[0.0; WIDTH]; SOME];
                for start in (0..part.len).step_by(SOME) {
                    let len = SOME.min(part.len - start);
                    let first = part.channel + start;
                    // SAFETY: there is room for `len` lanes in `some`, and those from `to` have been written.
                    let sums = unsafe {
                        self.widen_tap(isa, panel, tap, first..first + len, some.as_mut_ptr());
                        std::slice::from_raw_parts_mut(to.add(start), len)
                    };
                    for (sum, more) in sums.as_flattened_mut().iter_mut().zip(some.as_flattened()) {
                        *sum += more;
                    }
                }
            }
            // SAFETY: the caller has room for the lanes of all parts.
            to = unsafe { to.add(part.len) };
        }
    }

    /// Some channels of one tap of a panel as f32.
    ///
    /// # Safety
    /// The weight is kept in panels, `to` has room for the lanes, and the machine has `isa`.
    unsafe fn widen_tap(
        &self,
        isa: Isa,
        panel: usize,
        tap: usize,
        channels: Range<usize>,
        to: *mut Lane,
    ) {
        let values = self.panel(panel, tap, channels);
        let values = values.expect("the caller says so");
        // SAFETY: the caller has room for the lanes, and the instruction set is there.
        unsafe {
            match self.number() {
                Dtype::F16 => kernel::widen_f16(isa, lanes_of(values), to),
                Dtype::Bf16 => {
                    for (i, lane) in lanes_of(values).iter().enumerate() {
                        let wide = lane.map(|b| f32::from_bits(u32::from(b.to_le()) << 16));
                        to.add(i).write(wide);
                    }
                }
                Dtype::F32 => {
                    let (values, _) = values.as_chunks::<4>();
                    let to = to.cast::<f32>();
                    for (i, value) in values.iter().enumerate() {
                        to.add(i).write(f32::from_le_bytes(*value));
                    }
                }
                dtype => {
                    let table = bytes_as_f32(dtype);
                    let (values, _) = values.as_chunks::<WIDTH>();
                    for (i, lane) in values.iter().enumerate() {
                        to.add(i).write(lane.map(|b| table[usize::from(b)]));
                    }
                }
            }
        }
    }

    /// Some channels of weights of one tap that are kept in rows. Pieces of the rows are decoded and then turned, so that
    /// both stay in the first cache.
    ///
    /// # Safety
    /// `to` has room for the lanes of the channels.
    unsafe fn widen_channels(&self, panel: usize, channels: Range<usize>, to: *mut Lane) {
        /// Whole blocks of all formats.
        const PIECE: usize = 256;
        let mut lanes = vec![[0.0; WIDTH]; PIECE];
        let mut start = channels.start;
        while start < channels.end {
            let end = channels.end.min((start / PIECE + 1) * PIECE);
            for j in 0..WIDTH {
                let output = panel * WIDTH + j;
                let row = (output < self.out()).then(|| self.row(output, start..end));
                match row.flatten() {
                    Some(row) => {
                        for (lane, value) in lanes.iter_mut().zip(&row[..end - start]) {
                            lane[j] = *value;
                        }
                    }
                    None => lanes.iter_mut().for_each(|lane| lane[j] = 0.0),
                }
            }
            for (i, lane) in lanes[..end - start].iter().enumerate() {
                // SAFETY: the caller has room for the lanes.
                unsafe { to.add(start - channels.start + i).write(*lane) };
            }
            start = end;
        }
    }

    /// The same from weights that are kept in rows.
    ///
    /// # Safety
    /// As [`Self::widen`].
    unsafe fn widen_rows(&self, panel: usize, parts: &[ProductPart], to: *mut Lane) {
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
            return;
        };
        let taps = self.taps();
        if taps == 1 {
            // SAFETY: as promised by the caller.
            unsafe { self.widen_channels(panel, first.channel..last.channel + last.len, to) };
            return;
        }
        // Of one tap only the channels of the parts are decoded.
        let (range, skip) = if taps == 1 {
            (first.channel..last.channel + last.len, first.channel)
        } else {
            (0..self.channels(), 0)
        };
        let to = to.cast::<f32>();
        for j in 0..WIDTH {
            let output = panel * WIDTH + j;
            let row = (output < self.out()).then(|| self.row(output, range.clone()));
            let row = row.flatten();
            let mut done = 0;
            for part in parts {
                for i in 0..part.len {
                    let at = (part.channel - skip + i) * taps + part.tap;
                    let value = row.as_ref().map_or(0.0, |row| {
                        let (down, right) = part.sum;
                        let taps = (0..down).flat_map(|y| (0..right).map(move |x| y * 3 + x));
                        taps.map(|tap| row[at + tap]).sum()
                    });
                    // SAFETY: the caller has room for the lanes.
                    unsafe { to.add((done + i) * WIDTH + j).write(value) };
                }
                done += part.len;
            }
        }
    }
}

/// Lanes from signed bytes, four channels at a time.
///
/// # Safety
/// `to` has room for the lanes of the parts.
unsafe fn widen_quads(quads: &[u8], parts: &[ProductPart], to: *mut Lane) {
    let (quads, _) = quads.as_chunks::<{ 4 * WIDTH }>();
    let channels = parts.iter().flat_map(|p| p.channel..p.channel + p.len);
    for (i, channel) in channels.enumerate() {
        let (quad, at) = (&quads[channel / 4], channel % 4);
        let lane: Lane = std::array::from_fn(|j| f32::from(quad[4 * j + at] as i8));
        // SAFETY: the caller has room for the lanes.
        unsafe { to.add(i).write(lane) };
    }
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
