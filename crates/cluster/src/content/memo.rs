//! Contents of files that were hashed before, by path, length and modification time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::objects::{ContentHash, hash_file};

/// A file that was changed this recently may be changed again without a new time stamp.
const CLOCK_GRAIN: Duration = Duration::from_secs(2);

/// What the disk says of a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) size: u64,
    /// Nanoseconds since 1970.
    modified: u64,
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
#[derive(Clone, Copy, Debug)]
struct Known {
    facts: Facts,
    hash: ContentHash,
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

    pub(super) fn get(&self, path: &Path, facts: Facts) -> Option<ContentHash> {
        let known = self.known.get(path)?;
        (known.facts == facts).then_some(known.hash)
    }

    /// Remembers what was just hashed, unless the file may still change unseen.
    pub(super) fn insert(&mut self, path: PathBuf, facts: Facts, hash: ContentHash) {
        if facts.is_recent() {
            return;
        }
        if self.known.len() >= self.most {
            self.known.clear();
        }
        self.known.insert(path, Known { facts, hash });
    }

    /// Forgets files that `keep` does not know.
    pub(super) fn retain(&mut self, keep: impl Fn(&Path) -> bool) {
        self.known.retain(|path, _| keep(path));
    }

    /// As it is written to a file: content, length, time and path, a line each.
    pub(super) fn to_text(&self) -> String {
        let mut text = String::new();
        for (path, Known { facts, hash }) in &self.known {
            if let Some(path) = path.to_str().filter(|path| !path.contains(['\n', '\r'])) {
                let _ = writeln!(text, "{hash} {} {} {path}", facts.size, facts.modified);
            }
        }
        text
    }

    /// What was written before, without lines that cannot be read: everything can be made again.
    pub(super) fn read(path: &Path, most: usize) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = |line: &str| {
            let mut parts = line.splitn(4, ' ');
            let hash = ContentHash::parse(parts.next()?)?;
            let size = parts.next()?.parse().ok()?;
            let modified = parts.next()?.parse().ok()?;
            let facts = Facts { size, modified };
            Some((PathBuf::from(parts.next()?), Known { facts, hash }))
        };
        Self {
            known: text.lines().filter_map(line).take(most).collect(),
            most,
        }
    }
}

/// Hashes a file; none if it was changed meanwhile.
pub(super) fn hash_steady(
    path: &Path,
    go_on: impl FnMut() -> bool,
) -> io::Result<Option<(Facts, ContentHash)>> {
    let before = Facts::of(&fs::metadata(path)?);
    let hash = hash_file(path, go_on)?;
    let after = Facts::of(&fs::metadata(path)?);
    Ok((before == after).then_some((after, hash)))
}
