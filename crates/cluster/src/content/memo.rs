//! Contents of files that were hashed before, by path, length and modification time.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::id::{ContentId, hash_reader};

/// A file that was changed this recently may be changed again without a new time stamp.
const CLOCK_GRAIN: Duration = Duration::from_secs(2);

/// What the disk says of a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    pub(super) size: u64,
    /// Nanoseconds since 1970.
    pub(super) modified: u64,
}

impl Facts {
    pub(super) fn of(data: &Metadata) -> Self {
        let modified = data.modified().unwrap_or(UNIX_EPOCH);
        let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            size: data.len(),
            modified: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    fn is_recent(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = u64::try_from(now.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX);
        now.saturating_sub(self.modified) < CLOCK_GRAIN.as_nanos() as u64
    }
}

/// What is known of one file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) facts: Facts,
    pub(super) hash: ContentId,
}

/// Files and their contents; at most so many, the rest is hashed again.
#[derive(Debug)]
pub(super) struct Memo {
    known: BTreeMap<PathBuf, Known>,
    most: usize,
}

impl Memo {
    pub(super) fn new(most: usize) -> Self {
        Self {
            known: BTreeMap::new(),
            most,
        }
    }

    pub(super) fn get(&self, path: &Path, facts: Facts) -> Option<&ContentId> {
        let known = self.known.get(path)?;
        (known.facts == facts).then_some(&known.hash)
    }

    pub(super) fn insert(&mut self, path: PathBuf, known: Known) {
        if self.known.len() >= self.most {
            self.known.clear();
        }
        self.known.insert(path, known);
    }

    /// Forgets files that `keep` does not know.
    pub(super) fn retain(&mut self, keep: impl Fn(&Path) -> bool) {
        self.known.retain(|path, _| keep(path));
    }

    /// As it is written to a file.
    pub(super) fn to_json(&self) -> Vec<u8> {
        let lines: Vec<(String, &Known)> = self
            .known
            .iter()
            .filter_map(|(path, known)| Some((path.to_str()?.to_owned(), known)))
            .collect();
        serde_json::to_vec(&lines).unwrap_or_default()
    }

    /// What was written before; nothing if that cannot be read, since it can all be made again.
    pub(super) fn read(path: &Path, most: usize) -> Self {
        let lines = fs::read(path)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Vec<(String, Known)>>(&bytes).ok());
        let known = lines.unwrap_or_default().into_iter();
        Self {
            known: known
                .take(most)
                .map(|(path, known)| (PathBuf::from(path), known))
                .collect(),
            most,
        }
    }
}

/// Hashes a file; none if it was changed meanwhile. Also says whether the answer may be remembered.
pub(super) fn hash_steady(
    path: &Path,
    stop: &AtomicBool,
) -> io::Result<Option<(Facts, ContentId, bool)>> {
    let mut file = fs::File::open(path)?;
    let before = Facts::of(&file.metadata()?);
    let (hash, bytes) = hash_reader(&mut file, stop)?;
    let after = Facts::of(&fs::metadata(path)?);
    if before != after || bytes != after.size {
        return Ok(None);
    }
    Ok(Some((after, hash, !after.is_recent())))
}
