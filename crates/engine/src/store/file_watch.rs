//! Whether the files of the database are still the ones that were opened, as they were left.
//!
//! Nobody else may write them: a lock file keeps other Frescos out. But a person, a backup program or a full-disk clean-up
//! can delete, replace or overwrite them, and SQLite would go on writing into a file that nobody will ever read. What the
//! files looked like after our own last write is compared with what they look like now.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::schema::{APPLICATION_ID, MAGIC};

/// How often the files are looked at when nothing else happens.
const INTERVAL: Duration = Duration::from_millis(800);
/// The header of a database.
const HEADER: usize = 100;
/// The header of a log, with the numbers that tell one log from the next.
const LOG_HEADER: usize = 32;

/// What happened to the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// There is no database any more. The one that is open still has everything.
    Gone,
    /// There is another file in its place. The one that is open still has everything.
    Replaced,
    /// Somebody wrote into it.
    Overwritten,
    /// Its time changed and nothing else that can be seen from outside.
    Touched,
    /// There is no log any more. The one that is open still has everything.
    LogGone,
    /// Somebody wrote into the log, or put another one in its place.
    LogOverwritten,
    Unreachable(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    id: (u64, u64),
    length: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(found: &Metadata) -> Self {
        Self {
            id: id(found),
            length: found.len(),
            modified: found.modified().ok(),
        }
    }
}

#[cfg(unix)]
fn id(found: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    (found.dev(), found.ino())
}

/// Elsewhere an open file can be neither deleted nor replaced.
#[cfg(not(unix))]
fn id(_: &Metadata) -> (u64, u64) {
    (0, 0)
}

pub(super) struct FileWatch {
    path: PathBuf,
    log: PathBuf,
    /// Stays open as long as the database: closing any handle of a file drops the locks that SQLite has on it.
    handle: File,
    database: Stamp,
    header: [u8; HEADER],
    log_seen: Option<(Stamp, Vec<u8>)>,
    /// The log, as long as it is the same file: it is looked at several times for each prompt.
    log_file: Option<((u64, u64), File)>,
    looked: Instant,
}

impl FileWatch {
    /// For a database that was just opened.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let handle = File::open(path)?;
        let database = Stamp::of(&handle.metadata()?);
        let mut watch = Self {
            path: path.to_owned(),
            log: beside(path, "-wal"),
            handle,
            database,
            header: [0; HEADER],
            log_seen: None,
            log_file: None,
            looked: Instant::now(),
        };
        watch.note();
        Ok(watch)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// When to look again.
    pub(super) fn next_look(&self) -> Instant {
        self.looked + INTERVAL
    }

    /// Takes the files as they are now for ours: right after a write of our own.
    pub(super) fn note(&mut self) {
        if let Ok(found) = self.handle.metadata() {
            self.database = Stamp::of(&found);
        }
        if let Ok(header) = self.read_header() {
            self.header = header;
        }
        self.log_seen = self.read_log().ok();
    }

    pub(super) fn look(&mut self) -> Option<Trouble> {
        self.looked = Instant::now();
        let found = match fs::metadata(&self.path) {
            Ok(found) => Stamp::of(&found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(Trouble::Gone),
            Err(error) => return Some(Trouble::Unreachable(error.to_string())),
        };
        if found.id != self.database.id {
            return Some(Trouble::Replaced);
        }
        let header = match self.read_header() {
            Ok(header) => header,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Some(Trouble::Overwritten);
            }
            Err(error) => return Some(Trouble::Unreachable(error.to_string())),
        };
        if header != self.header || found.length != self.database.length {
            return Some(Trouble::Overwritten);
        }
        if let Some((seen, header)) = &self.log_seen {
            match read_log(&self.log, &mut self.log_file) {
                Ok((now, bytes)) => {
                    if now.id != seen.id || now.length < seen.length || bytes != *header {
                        return Some(Trouble::LogOverwritten);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Some(Trouble::LogGone);
                }
                Err(error) => return Some(Trouble::Unreachable(error.to_string())),
            }
        }
        (found.modified != self.database.modified).then_some(Trouble::Touched)
    }

    /// Whether what stands in the file now is a database of ours, but not the one that was opened.
    pub(super) fn is_another_of_ours(&self) -> bool {
        let id = APPLICATION_ID as u32;
        self.read_header().is_ok_and(|h| {
            h != self.header && h.starts_with(MAGIC) && h[68..72] == id.to_be_bytes()
        })
    }

    fn read_log(&mut self) -> io::Result<(Stamp, Vec<u8>)> {
        read_log(&self.log, &mut self.log_file)
    }

    fn read_header(&self) -> io::Result<[u8; HEADER]> {
        let mut header = [0; HEADER];
        read_start(&self.handle, &mut header)?;
        Ok(header)
    }
}

#[cfg(unix)]
fn read_start(file: &File, bytes: &mut [u8]) -> io::Result<()> {
    use std::os::unix::fs::FileExt as _;
    file.read_exact_at(bytes, 0)
}

#[cfg(not(unix))]
fn read_start(mut file: &File, bytes: &mut [u8]) -> io::Result<()> {
    use std::io::{Read as _, Seek as _};
    file.rewind()?;
    file.read_exact(bytes)
}

/// The log that is there now, and its header as far as it goes. `open` is the one that was there last time.
fn read_log(path: &Path, open: &mut Option<((u64, u64), File)>) -> io::Result<(Stamp, Vec<u8>)> {
    let stamp = Stamp::of(&fs::metadata(path)?);
    let same = open.as_ref().is_some_and(|(id, _)| *id == stamp.id);
    // Where files have no number of their own, it cannot be told whether it is the same.
    if !same || cfg!(not(unix)) {
        *open = Some((stamp.id, File::open(path)?));
    }
    let Some((_, file)) = open else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let mut header = vec![0; LOG_HEADER.min(usize::try_from(stamp.length).unwrap_or(LOG_HEADER))];
    match read_start(file, &mut header) {
        Ok(()) => {}
        // Somebody has made it shorter meanwhile: it is not what it was.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => header.clear(),
        Err(error) => return Err(error),
    }
    Ok((stamp, header))
}

/// The path of a file that belongs to this one.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
