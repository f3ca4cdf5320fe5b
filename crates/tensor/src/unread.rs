//! Bytes of a weight that are still in its file, in as many pieces as the file has them.

use std::fmt;
use std::sync::{Arc, Mutex};

use rayon::prelude::*;

use crate::error::{Result, TensorError};
use crate::lock::lock;
use crate::positioned::FilePart;
use crate::{read_buffer, traffic};

/// Makes what stands behind the rows of a value, from small tensors of the file.
pub(crate) type MakeRowEnds = Arc<dyn Fn() -> Result<Vec<u8>> + Send + Sync>;

/// The bytes of a value as files have them: pieces that follow each other, and for quantised rows what stands behind each row, which
/// files keep elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct Unread {
    pieces: Vec<FilePart>,
    ends: Option<RowEnds>,
    planes: Option<Planes>,
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
struct SharedRead(Mutex<Waiting>);

#[derive(Debug)]
struct Waiting {
    bytes: Option<Arc<Vec<u8>>>,
    /// Bytes of each run that were not asked for yet.
    left: usize,
}

impl SharedRead {
    fn new(run: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Waiting {
            bytes: None,
            left: run,
        })))
    }

    /// The bytes for a plane of so many bytes of each run.
    fn get(&self, len: usize, read: impl FnOnce() -> Result<Vec<u8>>) -> Result<Arc<Vec<u8>>> {
        let mut waiting = lock(&self.0);
        let bytes = match waiting.bytes.take() {
            Some(bytes) => bytes,
            None => Arc::new(read()?),
        };
        waiting.left = waiting.left.saturating_sub(len);
        if waiting.left > 0 {
            waiting.bytes = Some(Arc::clone(&bytes));
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
#[derive(Clone)]
struct RowEnds {
    /// Bytes of a row in the pieces.
    codes: usize,
    /// Bytes behind each row.
    end: usize,
    rows: usize,
    make: MakeRowEnds,
}

impl fmt::Debug for RowEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowEnds")
            .field("codes", &self.codes)
            .field("end", &self.end)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

impl From<FilePart> for Unread {
    fn from(part: FilePart) -> Self {
        Self {
            pieces: vec![part],
            ends: None,
            planes: None,
        }
    }
}

impl Unread {
    /// Rows whose codes follow each other in the file. None where there are not so many rows of that size.
    pub(crate) fn rows_with_ends(
        &self,
        (rows, codes, end): (usize, usize, usize),
        make: MakeRowEnds,
    ) -> Option<Self> {
        let ends = RowEnds {
            codes,
            end,
            rows,
            make,
        };
        let whole = rows.checked_mul(codes)? == self.len() && !self.is_made();
        whole.then(|| Self {
            pieces: self.pieces.clone(),
            ends: (end > 0).then_some(ends),
            planes: None,
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
        };
        Some((0..count).map(plane).collect())
    }

    /// Whether it is not as it stands in the file.
    fn is_made(&self) -> bool {
        self.ends.is_some() || self.planes.is_some()
    }

    /// Values under each other. None where their rows differ.
    pub(crate) fn joined(parts: &[&Self]) -> Option<Self> {
        let size = |one: &Self| one.ends.as_ref().map(|ends| (ends.codes, ends.end));
        let first = size(parts.first()?);
        if parts
            .iter()
            .any(|part| size(part) != first || part.planes.is_some())
        {
            return None;
        }
        let pieces = parts.iter().flat_map(|part| part.pieces.iter().cloned());
        let ends = first.map(|(codes, end)| {
            let all: Vec<RowEnds> = parts.iter().filter_map(|part| part.ends.clone()).collect();
            RowEnds {
                codes,
                end,
                rows: all.iter().map(|ends| ends.rows).sum(),
                make: Arc::new(move || {
                    let mut bytes = Vec::new();
                    for ends in &all {
                        bytes.extend_from_slice(&ends.bytes()?);
                    }
                    Ok(bytes)
                }),
            }
        });
        Some(Self {
            pieces: pieces.collect(),
            ends,
            planes: None,
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
                let each = ends
                    .rows
                    .checked_div(rows)
                    .filter(|n| n * rows == ends.rows)?;
                let (from, all) = (start * each * ends.end, ends.clone());
                let bytes = count * each * ends.end;
                Some(RowEnds {
                    rows: count * each,
                    make: Arc::new(move || {
                        let made = all.bytes()?;
                        Ok(made[from..from + bytes].to_vec())
                    }),
                    ..ends.clone()
                })
            }
        };
        Some(Self {
            pieces: self.range(start * row, count * row)?,
            ends,
            planes: None,
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
        let ends = self.ends.as_ref().map_or(0, |ends| ends.rows * ends.end);
        self.in_file() + ends
    }

    /// The pieces in the file, in order. None where they are not all of the value.
    pub(crate) fn plain(&self) -> Option<&[FilePart]> {
        (!self.is_made()).then_some(&self.pieces[..])
    }

    /// The pieces of the codes of rows, in order.
    pub(crate) fn codes(&self) -> &[FilePart] {
        &self.pieces
    }

    /// Sizes of what stands behind the rows: bytes of a row in the file, and behind it.
    pub(crate) fn end_sizes(&self) -> Option<(usize, usize)> {
        self.ends.as_ref().map(|ends| (ends.codes, ends.end))
    }

    /// What stands behind the rows, one after the other.
    pub(crate) fn end_bytes(&self) -> Result<Vec<u8>> {
        self.ends.as_ref().map_or(Ok(Vec::new()), RowEnds::bytes)
    }

    /// All of it, in main memory.
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        if let ([piece], false) = (&self.pieces[..], self.is_made()) {
            return piece.read();
        }
        let _claim = crate::room::claim((self.in_file() + self.len()) as u64)?;
        traffic::copied(if self.is_made() { self.len() } else { 0 });
        if let Some(planes) = &self.planes {
            let whole = planes.whole.get(planes.len, || self.read_pieces())?;
            let mut plane = read_buffer::take(self.len());
            planes.cut(&whole, &mut plane);
            if let Ok(bytes) = Arc::try_unwrap(whole) {
                read_buffer::give(bytes);
            }
            return Ok(plane);
        }
        let codes = self.read_pieces()?;
        let Some(ends) = &self.ends else {
            return Ok(codes);
        };
        let mut all = read_buffer::take(self.len());
        let made = ends.bytes()?;
        let rows = codes
            .chunks_exact(ends.codes)
            .zip(made.chunks_exact(ends.end));
        let size = ends.codes + ends.end;
        for (to, (code, end)) in all.chunks_exact_mut(size).zip(rows) {
            to[..ends.codes].copy_from_slice(code);
            to[ends.codes..].copy_from_slice(end);
        }
        read_buffer::give(codes);
        Ok(all)
    }

    fn read_pieces(&self) -> Result<Vec<u8>> {
        let mut bytes = read_buffer::take(self.in_file());
        let mut at = 0;
        for piece in &self.pieces {
            piece.read_into(0, &mut bytes[at..at + piece.len()])?;
            at += piece.len();
        }
        Ok(bytes)
    }
}

impl RowEnds {
    fn bytes(&self) -> Result<Vec<u8>> {
        let made = (self.make)()?;
        if made.len() != self.rows * self.end {
            return Err(TensorError::invalid(
                "read",
                format!(
                    "{} rows have {} bytes of scales and not {}",
                    self.rows,
                    made.len(),
                    self.rows * self.end
                ),
            ));
        }
        Ok(made)
    }
}
