//! Which jobs are running, in a small file beside the database: after a crash it tells which ones to count an attempt for.
//!
//! Not in the database, because it is written for every job and needs to survive the death of the process only, not a loss
//! of power: one write of eight bytes instead of a transaction. The first eight bytes name the run of the program that
//! wrote the file; each eight bytes after them hold a job's row plus one, or zero. A row that is not in the queue any more
//! means nothing, so finishing a job needs no write at all.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::StoreError;

const SLOT: usize = 8;

/// What an earlier run left.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    /// The run that wrote it; 0 if there was none.
    pub(super) run: u64,
    pub(super) rows: Vec<i64>,
}

pub(super) struct Marks {
    /// None for a database in memory.
    file: Option<File>,
    /// Slot by row.
    used: BTreeMap<i64, usize>,
}

impl Marks {
    /// For a database that does not outlive the process.
    pub(super) fn none() -> Self {
        Self {
            file: None,
            used: BTreeMap::new(),
        }
    }

    /// Opens or makes the file; also gives what is in it, which stays there until [`Marks::begin`].
    pub(super) fn open(database: &Path) -> Result<(Self, Left), StoreError> {
        let mut name = database.as_os_str().to_owned();
        name.push(".running");
        let path = PathBuf::from(name);
        let fail = |source| StoreError::Io {
            path: path.clone(),
            source: Arc::new(source),
        };
        let mut file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(fail)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(fail)?;
        Ok((
            Self {
                file: Some(file),
                used: BTreeMap::new(),
            },
            read(&bytes),
        ))
    }

    /// Starts this run's marks.
    pub(super) fn begin(&mut self, run: u64) -> io::Result<()> {
        self.used.clear();
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        // Some slots at once, so that marking a job later needs no new space on a full disk.
        let mut bytes = vec![0; 512];
        bytes[..SLOT].copy_from_slice(&run.to_le_bytes());
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(&bytes)
    }

    /// Notes that a job runs.
    pub(super) fn set(&mut self, row: i64) -> io::Result<()> {
        let slot = (1..=self.used.len() + 1)
            .find(|slot| !self.used.values().any(|s| s == slot))
            .expect("of one more slot than users one is free");
        self.used.insert(row, slot);
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        file.seek(SeekFrom::Start((slot * SLOT) as u64))?;
        file.write_all(&(row as u64 + 1).to_le_bytes())
    }

    /// The job is out of the queue; its slot may be used again.
    pub(super) fn forget(&mut self, row: i64) {
        self.used.remove(&row);
    }
}

fn read(bytes: &[u8]) -> Left {
    let mut words = bytes
        .chunks_exact(SLOT)
        .map(|word| u64::from_le_bytes(word.try_into().expect("chunks are eight bytes long")));
    let run = words.next().unwrap_or(0);
    let rows = words
        .filter(|row| *row > 0)
        .map(|row| (row - 1) as i64)
        .collect();
    Left { run, rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_survive_and_slots_are_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let (mut marks, left) = Marks::open(&path).unwrap();
        assert_eq!(left, Left::default());
        marks.begin(7).unwrap();
        for row in [0, 5, 9] {
            marks.set(row).unwrap();
        }
        marks.forget(5);
        marks.set(12).unwrap();
        let (_, left) = Marks::open(&path).unwrap();
        assert_eq!(
            left,
            Left {
                run: 7,
                rows: vec![0, 12, 9]
            }
        );
        let (mut marks, _) = Marks::open(&path).unwrap();
        marks.begin(8).unwrap();
        assert_eq!(
            Marks::open(&path).unwrap().1,
            Left {
                run: 8,
                rows: Vec::new()
            }
        );
    }

    #[test]
    fn rubbish_is_not_believed_beyond_its_words() {
        assert_eq!(read(b"abc"), Left::default());
        assert_eq!(read(&[0xff; 20]).rows.len(), 1);
    }
}
