//! Bytes of a weight that are still in its file, in as many pieces as the file has them.

use std::sync::{Arc, Mutex};

use rayon::prelude::*;

use crate::buffer::Buffer;
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::positioned::FilePart;
use crate::row_parts::{FindParts, RowsOfParts, write_parts};
use crate::{cancel, read_buffer, traffic};

/// The bytes of a value as files have them: pieces that follow each other, and for quantised rows what stands behind each row, which
/// files keep elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct Unread {
    pieces: Vec<FilePart>,
    ends: Option<RowEnds>,
    planes: Option<Planes>,
    rounding: Option<Rounding>,
}

/// Numbers that are kept in another format than their file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounding {
    pub(crate) from: Dtype,
    pub(crate) to: Dtype,
}

impl Rounding {
    /// Bytes in the file of what takes so many when it was rounded.
    fn in_file(self, bytes: usize) -> Option<usize> {
        Some(bytes.checked_mul(self.from.size())? / self.to.size())
    }

    /// Bytes of what takes so many in the file.
    fn rounded(self, bytes: usize) -> usize {
        bytes / self.from.size() * self.to.size()
    }

    /// Does it in main memory.
    pub(crate) fn round(self, bytes: &[u8]) -> Result<Vec<u8>> {
        traffic::converted(bytes.len());
        let mut values = Buffer::filled(bytes.len() / self.from.size(), 0.0)?;
        self.from.to_f32_into(bytes, &mut values);
        let _claim = crate::room::claim(self.rounded(bytes.len()) as u64)?;
        self.to.encode(&values).ok_or_else(|| {
            TensorError::invalid("read", format!("cannot write {} values", self.to.name()))
        })
    }
}

/// Parts of runs of equal size: `len` bytes from `from` on, of every `run` bytes.
#[derive(Clone, Debug)]
struct Planes {
    run: usize,
    from: usize,
    len: usize,
    whole: Arc<SharedRead>,
}

/// All bytes of a value whose planes are read one after the other, from the first of them to the last.
#[derive(Debug)]
struct SharedRead(Mutex<SharedBytes>);

#[derive(Debug)]
struct SharedBytes {
    bytes: Option<Arc<Vec<u8>>>,
    /// Bytes of each run that were not asked for yet.
    left: usize,
}

impl SharedRead {
    fn new(run: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(SharedBytes {
            bytes: None,
            left: run,
        })))
    }

    /// The bytes for a plane of `len` bytes of each run of `run` bytes.
    fn get(
        &self,
        (run, len): (usize, usize),
        read: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Arc<Vec<u8>>> {
        // Held while reading: threads that come meanwhile need the same bytes.
        let mut waiting = cancel::lock(&self.0)?;
        let bytes = match waiting.bytes.take() {
            Some(bytes) => bytes,
            None => Arc::new(read()?),
        };
        waiting.left = waiting.left.saturating_sub(len);
        if waiting.left > 0 {
            waiting.bytes = Some(Arc::clone(&bytes));
        } else {
            // For the next time that all planes are asked for.
            waiting.left = run;
        }
        Ok(bytes)
    }
}

impl Planes {
    fn cut(&self, all: &[u8], out: &mut [u8]) {
        let runs = RUNS.div_ceil(self.run).max(1);
        let parts = out.par_chunks_mut(runs * self.len);
        let parts = parts.zip(all.par_chunks(runs * self.run));
        parts.for_each(|(out, all)| {
            let runs = all.chunks_exact(self.run);
            for (out, run) in out.chunks_exact_mut(self.len).zip(runs) {
                out.copy_from_slice(&run[self.from..self.from + self.len]);
            }
        });
    }
}

/// Bytes that a thread cuts at a time.
const RUNS: usize = 1 << 20;

/// What stands behind each row of a value, such as its scale.
#[derive(Clone, Debug)]
pub(crate) struct RowEnds {
    /// Bytes of a row in the pieces.
    pub(crate) codes: usize,
    /// Bytes behind each row.
    pub(crate) end: usize,
    /// Where those of the rows are, in order.
    pub(crate) lists: Vec<RowsOfParts>,
}

impl From<FilePart> for Unread {
    fn from(part: FilePart) -> Self {
        Self {
            pieces: vec![part],
            ends: None,
            planes: None,
            rounding: None,
        }
    }
}

impl Unread {
    /// The same numbers in another format. None where they are not as they stand in the file.
    pub(crate) fn rounded(&self, rounding: Rounding) -> Option<Self> {
        (!self.is_made()).then(|| Self {
            rounding: Some(rounding),
            ..self.clone()
        })
    }

    /// How the numbers are rounded on their way from the file.
    pub(crate) fn rounding(&self) -> Option<Rounding> {
        self.rounding
    }

    /// Rows whose codes follow each other in the file. None where there are not so many rows of that size.
    pub(crate) fn rows_with_ends(
        &self,
        (rows, codes, end): (usize, usize, usize),
        find: FindParts,
    ) -> Option<Self> {
        let ends = RowEnds {
            codes,
            end,
            lists: vec![RowsOfParts::new(rows, find)],
        };
        let plain = self.ends.is_none() && self.planes.is_none();
        let whole = rows.checked_mul(codes)? == self.len() && plain;
        whole.then(|| Self {
            pieces: self.pieces.clone(),
            ends: (end > 0).then_some(ends),
            planes: None,
            rounding: self.rounding,
        })
    }

    /// The `count` planes of runs of `run` bytes: the first bytes of every run, those behind them, and so on. None where it is not made
    /// of such runs.
    pub(crate) fn planes(&self, run: usize, count: usize) -> Option<Vec<Self>> {
        let len = run
            .checked_div(count)
            .filter(|len| *len > 0 && len * count == run)?;
        if self.is_made() || !self.in_file().is_multiple_of(run) {
            return None;
        }
        let whole = SharedRead::new(run);
        let plane = |number: usize| Self {
            pieces: self.pieces.clone(),
            ends: None,
            planes: Some(Planes {
                run,
                from: number * len,
                len,
                whole: Arc::clone(&whole),
            }),
            rounding: None,
        };
        Some((0..count).map(plane).collect())
    }

    /// Whether it is not as it stands in the file.
    fn is_made(&self) -> bool {
        self.ends.is_some() || self.planes.is_some() || self.rounding.is_some()
    }

    /// Values under each other. None where their rows differ.
    pub(crate) fn joined(parts: &[&Self]) -> Option<Self> {
        let size = |one: &Self| one.ends.as_ref().map(|ends| (ends.codes, ends.end));
        let (first, rounding) = (size(parts.first()?), parts.first()?.rounding);
        let differs = |part: &&Self| {
            size(part) != first || part.planes.is_some() || part.rounding != rounding
        };
        if parts.iter().any(differs) {
            return None;
        }
        let pieces = parts.iter().flat_map(|part| part.pieces.iter().cloned());
        let ends = first.map(|(codes, end)| {
            let all = parts.iter().filter_map(|part| part.ends.as_ref());
            let lists = all.flat_map(|ends| ends.lists.iter().cloned()).collect();
            RowEnds { codes, end, lists }
        });
        Some(Self {
            pieces: pieces.collect(),
            ends,
            planes: None,
            rounding,
        })
    }

    /// Some of the rows, of which there are `rows` in all. None where there are not as many.
    pub(crate) fn rows(&self, rows: usize, start: usize, count: usize) -> Option<Self> {
        let in_pieces = self.in_file();
        if self.planes.is_some()
            || rows == 0
            || !in_pieces.is_multiple_of(rows)
            || start.checked_add(count)? > rows
        {
            return None;
        }
        let row = in_pieces / rows;
        let ends = match &self.ends {
            None => None,
            Some(ends) => {
                // A row of the value may be several coded ones.
                let all = ends.rows();
                let each = all.checked_div(rows).filter(|n| n * rows == all)?;
                Some(ends.cut(start * each, count * each))
            }
        };
        Some(Self {
            pieces: self.range(start * row, count * row)?,
            ends,
            planes: None,
            rounding: self.rounding,
        })
    }

    /// The pieces of some of the bytes that are in the file.
    fn range(&self, from: usize, len: usize) -> Option<Vec<FilePart>> {
        let (mut at, mut left) = (from, len);
        let mut pieces = Vec::new();
        for piece in &self.pieces {
            if at >= piece.len() {
                at -= piece.len();
                continue;
            }
            let taken = left.min(piece.len() - at);
            if taken > 0 {
                pieces.push(piece.range(at, taken)?);
            }
            (at, left) = (0, left - taken);
        }
        (left == 0).then_some(pieces)
    }

    /// Bytes that the file has.
    fn in_file(&self) -> usize {
        self.pieces.iter().map(FilePart::len).sum()
    }

    /// All bytes of the value.
    pub(crate) fn len(&self) -> usize {
        if let Some(planes) = &self.planes {
            return self.in_file() / planes.run * planes.len;
        }
        let numbers = match self.rounding {
            Some(rounding) => rounding.rounded(self.in_file()),
            None => self.in_file(),
        };
        let ends = self.ends.as_ref();
        numbers + ends.map_or(0, |ends| ends.rows() * ends.end)
    }

    /// The pieces in the file, in order. None where they are not all of the value.
    pub(crate) fn plain(&self) -> Option<&[FilePart]> {
        (!self.is_made()).then_some(&self.pieces[..])
    }

    /// The pieces of the codes of rows, in order.
    pub(crate) fn codes(&self) -> &[FilePart] {
        &self.pieces
    }

    /// What stands behind the rows.
    pub(crate) fn row_ends(&self) -> Option<&RowEnds> {
        self.ends.as_ref()
    }

    /// The pieces of the codes of some rows that have ends, in order. None where there are not as many.
    pub(crate) fn codes_of(&self, start: usize, rows: usize) -> Option<Vec<FilePart>> {
        let codes = self.ends.as_ref()?.codes;
        let in_file = |rows: usize| {
            let bytes = rows.checked_mul(codes)?;
            self.rounding
                .map_or(Some(bytes), |rounding| rounding.in_file(bytes))
        };
        self.range(in_file(start)?, in_file(rows)?)
    }

    /// Whether a GPU gets all of it straight from the file.
    pub(crate) fn is_direct(&self) -> bool {
        self.planes.is_none()
    }

    /// All of it, in main memory.
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        if let ([piece], false) = (&self.pieces[..], self.is_made()) {
            return piece.read();
        }
        let _claim = crate::room::claim((self.in_file() + self.len()) as u64)?;
        let copies = self.ends.is_some() || self.planes.is_some();
        traffic::copied(if copies { self.len() } else { 0 });
        if let Some(planes) = &self.planes {
            let whole = planes
                .whole
                .get((planes.run, planes.len), || self.read_pieces())?;
            let mut plane = read_buffer::take(self.len());
            planes.cut(&whole, &mut plane);
            if let Ok(bytes) = Arc::try_unwrap(whole) {
                read_buffer::give(bytes);
            }
            return Ok(plane);
        }
        let mut codes = self.read_pieces()?;
        if let Some(rounding) = self.rounding {
            let rounded = rounding.round(&codes)?;
            read_buffer::give(std::mem::replace(&mut codes, rounded));
        }
        let Some(ends) = &self.ends else {
            return Ok(codes);
        };
        let mut all = read_buffer::take(self.len());
        let row_bytes = ends.codes + ends.end;
        let rows = all.par_chunks_exact_mut(row_bytes);
        let rows = rows.zip(codes.par_chunks_exact(ends.codes));
        rows.for_each(|(to, codes)| to[..ends.codes].copy_from_slice(codes));
        ends.write(row_bytes, ends.codes, &mut all)?;
        read_buffer::give(codes);
        Ok(all)
    }

    fn read_pieces(&self) -> Result<Vec<u8>> {
        let mut bytes = read_buffer::take(self.in_file());
        let mut at = 0;
        for piece in &self.pieces {
            bytes = piece.fill(0, bytes, at..at + piece.len())?;
            at += piece.len();
        }
        Ok(bytes)
    }
}

impl RowEnds {
    pub(crate) fn rows(&self) -> usize {
        self.lists.iter().map(RowsOfParts::rows).sum()
    }

    /// What stands behind some of the rows, which there are.
    fn cut(&self, start: usize, count: usize) -> Self {
        let (mut at, mut left) = (start, count);
        let mut lists = Vec::new();
        for list in &self.lists {
            if at >= list.rows() {
                at -= list.rows();
                continue;
            }
            let taken = left.min(list.rows() - at);
            if taken > 0 {
                lists.push(list.cut(at, taken));
            }
            (at, left) = (0, left - taken);
        }
        Self { lists, ..*self }
    }

    /// What stands behind the rows, one after the other.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>> {
        let mut all = Buffer::filled(self.rows() * self.end, 0_u8)?.into_vec();
        traffic::copied(all.len());
        self.write(self.end, 0, &mut all)?;
        Ok(all)
    }

    /// Writes what stands behind rows, from a place of each of them on.
    fn write(&self, row_bytes: usize, place: usize, all: &mut [u8]) -> Result<()> {
        let mut rest = all;
        for list in &self.lists {
            let mut parts = list.parts()?;
            for part in &mut parts {
                part.place = part.place + place - self.codes;
            }
            let (rows, behind) = rest.split_at_mut(list.rows() * row_bytes);
            write_parts(&parts, row_bytes, rows)?;
            rest = behind;
        }
        Ok(())
    }
}
