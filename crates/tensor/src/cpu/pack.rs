//! Rows of a weight to panels: from memory, or straight from a file.

#![expect(
    unsafe_code,
    reason = "threads fill disjoint panels of one allocation, and pieces of a file go to a whole page of memory"
)]

use std::cell::RefCell;
use std::io;
use std::ops::Range;

use rayon::prelude::*;

use super::lines::{self, LINE, Line, SharedPointer};
use super::packed::WIDTH;
use super::turn::{COLUMNS, Rows, turn};
use crate::error::{Result, TensorError};
use crate::pages::{self, prefer_large};
use crate::positioned::{FilePart, FileSource, PAST_CACHE_SLACK};
use crate::readers::{self, Parts};
use crate::traffic;

/// Bytes of a file that a thread reads and turns at a time, if a panel is not more: they stay in its cache.
const PART: usize = 256 << 10;

/// Bytes that a thread keeps for the next part.
const MOST_KEPT: usize = 2 << 20;

/// A page of memory, which reads past the system's cache want.
const PAGE: usize = 4096;

/// Sizes of a weight of values of `S` bytes.
#[derive(Clone, Copy)]
pub(super) struct PanelShape<const S: usize> {
    pub(super) out: usize,
    pub(super) channels: usize,
    pub(super) taps: usize,
}

impl<const S: usize> PanelShape<S> {
    /// Values of a row.
    fn row(self) -> usize {
        self.channels * self.taps
    }

    /// Panels, the last of which may not be full.
    fn panels(self) -> usize {
        self.out.div_ceil(WIDTH)
    }

    /// The rows of a panel.
    fn rows_of(self, panel: usize) -> Range<usize> {
        panel * WIDTH..self.out.min((panel + 1) * WIDTH)
    }

    /// Bytes of a panel.
    fn panel_bytes(self) -> usize {
        WIDTH * self.row() * S
    }

    /// Memory for all panels, and a claim on it.
    fn memory(self) -> Result<(Vec<Line>, crate::room::Claim)> {
        let count = (self.panels() * self.panel_bytes()).div_ceil(LINE);
        let claim = crate::room::claim((count * LINE) as u64)?;
        let mut to: Vec<Line> = Vec::with_capacity(count);
        prefer_large(&mut to);
        if let Some(last) = to.spare_capacity_mut()[..count].last_mut() {
            // Panels of single bytes may end in the middle of it.
            last.write(lines::EMPTY);
        }
        Ok((to, claim))
    }

    /// The memory as what was written to it.
    ///
    /// # Safety
    /// Every panel has been written.
    unsafe fn written(self, mut to: Vec<Line>) -> Vec<Line> {
        let count = (self.panels() * self.panel_bytes()).div_ceil(LINE);
        // SAFETY: as promised, and the line behind the panels was written when the memory was made.
        unsafe { to.set_len(count) };
        to
    }

    /// Turns the rows of one panel, which are `step` bytes apart.
    ///
    /// # Safety
    /// `to` is where the panel begins, and nobody else uses it.
    unsafe fn turn_panel(self, from: &[u8], step: usize, to: *mut u8) {
        let bytes = self.row() * S;
        let mut rows: Rows = [[0; LINE]; WIDTH];
        let mut columns = [0; COLUMNS];
        for start in (0..bytes).step_by(LINE) {
            let len = LINE.min(bytes - start);
            for (block, row) in rows.iter_mut().zip(from.chunks(step)) {
                match row[start..].first_chunk() {
                    Some(line) if len == LINE => *block = *line,
                    _ => block[..len].copy_from_slice(&row[start..start + len]),
                }
            }
            if self.taps == 1 && len == LINE {
                // SAFETY: the panel has WIDTH values for each value of a row.
                unsafe { turn::<S>(&rows, to.add(start * WIDTH)) };
                continue;
            }
            // SAFETY: the list is as long as that.
            unsafe { turn::<S>(&rows, columns.as_mut_ptr()) };
            let (mut channel, mut tap) = (start / S / self.taps, start / S % self.taps);
            for column in columns[..len * WIDTH].chunks_exact(WIDTH * S) {
                let at = (tap * self.channels + channel) * WIDTH * S;
                // SAFETY: the channel and the tap are of the weight, whose panel has WIDTH values for each of both.
                unsafe {
                    to.add(at)
                        .copy_from_nonoverlapping(column.as_ptr(), WIDTH * S);
                }
                tap += 1;
                if tap == self.taps {
                    (channel, tap) = (channel + 1, 0);
                }
            }
        }
    }

    /// [out][channel][tap] in memory, rows `step` bytes apart, to [panel][tap][channel][output].
    pub(super) fn pack(self, from: &[u8], step: usize) -> Result<Vec<Line>> {
        let (mut to, _claim) = self.memory()?;
        let base = SharedPointer::new(to.as_mut_ptr().cast::<u8>());
        if self.row() > 0 {
            (0..self.panels()).into_par_iter().for_each(|panel| {
                let rows = self.rows_of(panel);
                let from = &from[rows.start * step..rows.end * step];
                // SAFETY: the panel is inside the reserved memory, and no other task writes to it.
                unsafe { self.turn_panel(from, step, base.get().add(panel * self.panel_bytes())) };
            });
        }
        // SAFETY: every panel was turned.
        Ok(unsafe { self.written(to) })
    }

    /// The same from pieces of a file that follow each other: read and turned by all threads, with no copy of the rows.
    pub(super) fn pack_file(self, pieces: &[FilePart]) -> Result<Vec<Line>> {
        let Some(first) = pieces.first() else {
            return self.pack(&[], self.row() * S);
        };
        let (mut to, _claim) = self.memory()?;
        let each = (PART / self.panel_bytes().max(1)).max(1);
        let work = PackedRead {
            shape: self,
            pieces: pieces.to_vec(),
            source: first.source(),
            each,
            base: SharedPointer::new(to.as_mut_ptr().cast()),
        };
        traffic::copied(self.out * self.row() * S);
        let count = self.panels().div_ceil(each);
        let readers = match work.source {
            FileSource::Cache => rayon::current_num_threads().min(readers::MOST_IDLE),
            disk => disk.readers(),
        };
        let to =
            readers::in_parts(to, (count, readers), work).map_err(|error| first.failed(error))?;
        // SAFETY: every part was done, and they have all panels.
        Ok(unsafe { self.written(to) })
    }
}

/// A weight on its way from its file to its panels.
struct PackedRead<const S: usize> {
    shape: PanelShape<S>,
    pieces: Vec<FilePart>,
    source: FileSource,
    /// Panels of a part.
    each: usize,
    base: SharedPointer<u8>,
}

thread_local! {
    /// What a thread reads into.
    static SPACE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl<const S: usize> PackedRead<S> {
    /// Reads some bytes of the whole into the beginning of `out`, which has room for more.
    fn read(&self, bytes: Range<usize>, out: &mut [u8]) -> Result<()> {
        let (mut before, mut done) = (0, 0);
        for piece in &self.pieces {
            let (from, to) = (bytes.start.max(before), bytes.end.min(before + piece.len()));
            if from < to {
                let out = &mut out[done..];
                let part = piece.read_some(self.source, (from - before, to - from), out)?;
                if part.start > 0 {
                    out.copy_within(part, 0);
                }
                done += to - from;
            }
            before += piece.len();
        }
        if done == bytes.len() {
            return Ok(());
        }
        Err(TensorError::invalid(
            "read",
            "a weight is shorter than its shape says",
        ))
    }

    fn turn_panels(&self, panels: Range<usize>, space: &mut Vec<u8>) -> Result<()> {
        let (shape, row) = (self.shape, self.shape.row() * S);
        let rows = panels.start * WIDTH..shape.out.min(panels.end * WIDTH);
        let bytes = rows.start * row..rows.end * row;
        let needed = bytes.len() + PAST_CACHE_SLACK + PAGE;
        if space.len() < needed {
            *space = vec![0; needed];
        }
        let begin = space.as_ptr().align_offset(PAGE).min(PAGE);
        let space = &mut space[begin..];
        self.read(bytes.clone(), space)?;
        let panel_bytes = shape.panel_bytes();
        // SAFETY: the panels are inside the memory that `base` was made from, which stays where it is until the last part is done, and no
        // other part has them.
        unsafe {
            let to = self.base.get().add(panels.start * panel_bytes);
            pages::populate(to, panels.len() * panel_bytes);
            for panel in panels.clone() {
                let of = shape.rows_of(panel);
                let from = (of.start - rows.start) * row..(of.end - rows.start) * row;
                let to = self.base.get().add(panel * panel_bytes);
                shape.turn_panel(&space[from], row, to);
            }
        }
        Ok(())
    }
}

impl<const S: usize> Parts for PackedRead<S> {
    fn part(&self, number: usize) -> io::Result<()> {
        let end = self.shape.panels().min((number + 1) * self.each);
        if self.shape.row() == 0 {
            return Ok(());
        }
        SPACE.with_borrow_mut(|space| {
            let done = self.turn_panels(number * self.each..end, space);
            if space.len() > MOST_KEPT {
                *space = Vec::new();
            }
            done.map_err(io::Error::other)
        })
    }

    /// Every read was followed by a look at its file.
    fn end(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::cancel;
    use crate::positioned::PositionedFile;

    /// Values by the definition of panels.
    fn by_hand<const S: usize>(shape: PanelShape<S>, from: &[u8]) -> Vec<u8> {
        let row = shape.row();
        let mut to = vec![0; shape.panels() * shape.panel_bytes()];
        for out in 0..shape.out {
            for channel in 0..shape.channels {
                for tap in 0..shape.taps {
                    let place = (out / WIDTH * shape.taps + tap) * shape.channels + channel;
                    let to = &mut to[(place * WIDTH + out % WIDTH) * S..][..S];
                    let at = (out * row + channel * shape.taps + tap) * S;
                    to.copy_from_slice(&from[at..at + S]);
                }
            }
        }
        to
    }

    /// A file of these bytes in pieces that do not end where rows do.
    fn pieces(path: &Path, content: &[u8]) -> Vec<FilePart> {
        std::fs::write(path, content).unwrap();
        let file = Arc::new(PositionedFile::open(path).unwrap());
        let part = |from: usize, to: usize| {
            let place = (from as u64, (to - from) as u64);
            FilePart::new(&file, (path, "weight"), place).unwrap()
        };
        let cut = content.len() / 3 + 1;
        vec![part(0, cut), part(cut, cut), part(cut, content.len())]
    }

    fn check<const S: usize>([out, channels, taps]: [usize; 3]) {
        let shape = PanelShape::<S> {
            out,
            channels,
            taps,
        };
        let bytes: Vec<u8> = (0..out * channels * taps * S)
            .map(|i| (i ^ (i >> 7) ^ (i >> 13)) as u8)
            .collect();
        let wanted = by_hand(shape, &bytes);
        let dir = tempfile::tempdir().unwrap();
        let pieces = pieces(&dir.path().join("x"), &bytes);
        let apart: Vec<u8> = bytes
            .chunks_exact(channels * taps * S)
            .flat_map(|row| row.iter().chain(&[1, 2, 3]))
            .copied()
            .collect();
        for found in [
            shape.pack(&bytes, channels * taps * S).unwrap(),
            shape.pack(&apart, channels * taps * S + 3).unwrap(),
            shape.pack_file(&pieces).unwrap(),
        ] {
            let found = &lines::bytes(&found)[..wanted.len()];
            assert!(found == wanted, "{out} {channels} {taps} {S}");
        }
    }

    #[test]
    fn panels_are_the_same_from_memory_and_from_a_file() {
        for size in [
            [1, 1, 1],
            [32, 64, 1],
            [33, 31, 1],
            [70, 129, 1],
            [40, 7, 9],
            [320, 33, 9],
            [1000, 600, 1],
            [3, 50, 27],
        ] {
            check::<1>(size);
            check::<2>(size);
            check::<4>(size);
        }
        assert!(
            PanelShape::<2> {
                out: 0,
                channels: 3,
                taps: 1
            }
            .pack(&[], 6)
            .unwrap()
            .is_empty()
        );
    }

    #[test]
    fn a_file_that_changes_or_is_not_wanted_is_not_packed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let shape = PanelShape::<2> {
            out: 640,
            channels: 640,
            taps: 1,
        };
        let bytes = vec![7; 640 * 640 * 2];
        let there = pieces(&path, &bytes);
        let flag = Arc::new(AtomicBool::new(true));
        let stopped = cancel::with(&flag, || shape.pack_file(&there));
        assert!(matches!(stopped, Err(TensorError::Cancelled)));
        // Fewer bytes than the shape has.
        let error = shape
            .pack_file(&there[..1])
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(error.contains("shorter than its shape"), "{error}");
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let error = shape.pack_file(&there).map(drop).unwrap_err().to_string();
        assert!(error.contains("was changed on disk"), "{error}");
    }
}
