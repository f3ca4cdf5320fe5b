//! Reading parts of a file from several threads.
//!
//! Files are read, not mapped: a file that gets shorter under a mapping (an aborted download that starts again, a
//! network share) ends the process with a bus error, and a page of a mapping counts twice once the weights are packed.
//! Positioned reads need no lock, because they do not move the file's own position.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant, SystemTime};

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Result, TensorError};
use crate::lock::lock;
use crate::{read_buffer, traffic};

/// From so many bytes on, all threads read.
const MANY_READERS: usize = 2 << 20;

/// What each thread reads at a time where all of them do.
const READ_PART: usize = 512 << 10;

/// Threads that read for a GPU. Copying from the system's cache is bound by main memory, which eight threads use up; more of them take
/// twice the processor time. From a disk the system is fastest with four, who do not wait for each other's pages.
const FROM_CACHE: usize = 8;
const FROM_DISK: usize = 4;

/// Threads of their own, as many of them as there are processors at most. None where the system gives no threads.
fn readers(count: usize) -> Option<ThreadPool> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = ThreadPoolBuilder::new().num_threads(count.min(processors));
    let named = threads.thread_name(|number| format!("read-{number}"));
    named.build().ok()
}

static CACHE_READERS: LazyLock<Option<ThreadPool>> = LazyLock::new(|| readers(FROM_CACHE));
static DISK_READERS: LazyLock<Option<ThreadPool>> = LazyLock::new(|| readers(FROM_DISK));

/// When weights were read last, in milliseconds after [`STARTED`].
static LAST_READ: AtomicU64 = AtomicU64::new(0);
static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Whether a GPU's weights were read within some time: whoever reads files for later should wait.
pub fn weights_were_read_within(time: Duration) -> bool {
    let last = Duration::from_millis(LAST_READ.load(Ordering::Relaxed));
    !last.is_zero() && STARTED.elapsed() < last + time
}

fn note_read() {
    let now = STARTED.elapsed().as_millis() as u64;
    LAST_READ.store(now.max(1), Ordering::Relaxed);
}

/// An open file that any thread may read anywhere.
#[derive(Debug)]
pub(crate) struct PositionedFile {
    file: File,
    /// Length when it was opened.
    len: u64,
    /// When it had been written last by then; none where the system does not say.
    written: Option<SystemTime>,
}

/// The file was written after it was opened: what its header said no longer holds.
///
/// This is about the opened file itself. One that was deleted, or replaced by another of its name, stays readable.
#[derive(Debug, thiserror::Error)]
#[error("the file was changed on disk")]
struct Changed;

/// Whether reading failed because the file is no longer the one that was opened. What was read lay inside the file then, so
/// its end is a change, too.
pub(crate) fn is_changed(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    matches!(cause, Some(Changed)) || error.kind() == io::ErrorKind::UnexpectedEof
}

impl PositionedFile {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        Ok(Self {
            file,
            len: metadata.len(),
            written: metadata.modified().ok(),
        })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `out` from a position; `UnexpectedEof` if the file ends before that.
    pub(crate) fn read_exact_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        traffic::read(out.len());
        #[cfg(unix)]
        {
            std::os::unix::fs::FileExt::read_exact_at(&self.file, out, at)
        }
        #[cfg(windows)]
        {
            let (mut out, mut at) = (out, at);
            while !out.is_empty() {
                match std::os::windows::fs::FileExt::seek_read(&self.file, out, at) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(n) => {
                        out = &mut out[n..];
                        at += n as u64;
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(())
        }
    }

    /// Whether some bytes can be had without the disk, as far as their beginning, middle and end say. Where the system does not know
    /// (its file systems in memory do not), they can.
    fn is_cached(&self, at: u64, len: u64) -> bool {
        #[cfg(target_os = "linux")]
        {
            use rustix::io::{Errno, ReadWriteFlags, preadv2};

            let places = [at, at + len / 2, at + len.saturating_sub(1)];
            places.into_iter().all(|place| {
                let mut byte = [0];
                let mut parts = [io::IoSliceMut::new(&mut byte)];
                let read = preadv2(&self.file, &mut parts, place, ReadWriteFlags::NOWAIT);
                read != Err(Errno::AGAIN)
            })
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (at, len);
            true
        }
    }

    /// A part of the file. The part must lie inside [`Self::len`], which bounds what is asked of the allocator; memory
    /// that is not there is an error, and so is a file that was written since it was opened.
    pub(crate) fn read_range(&self, at: u64, len: u64) -> io::Result<Vec<u8>> {
        let bytes = self.read_as_it_is(at, len);
        // Looked at afterwards, this covers the time of the reading as well.
        self.check_unchanged()?;
        bytes
    }

    fn check_unchanged(&self) -> io::Result<()> {
        let now = self.file.metadata()?;
        if now.len() != self.len || now.modified().ok() != self.written {
            return Err(io::Error::other(Changed));
        }
        Ok(())
    }

    fn read_as_it_is(&self, at: u64, len: u64) -> io::Result<Vec<u8>> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // Counted until all of it was read.
        let _claim = crate::room::claim(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut bytes = read_buffer::take(usize::try_from(len).map_err(io::Error::other)?);
        if bytes.len() < MANY_READERS {
            self.read_exact_at(&mut bytes, at)?;
        } else {
            self.read_by_all(&mut bytes, at)?;
        }
        Ok(bytes)
    }

    /// Each thread takes the next part that nobody reads yet, so that the system sees one read after the other and reads ahead of all.
    fn read_in_order(&self, readers: &ThreadPool, out: &mut [u8], at: u64) -> io::Result<()> {
        let parts = Mutex::new(out.chunks_mut(READ_PART).enumerate());
        let ends = readers.broadcast(|_| -> io::Result<()> {
            loop {
                let next = lock(&parts).next();
                let Some((number, part)) = next else {
                    return Ok(());
                };
                self.read_exact_at(part, at + (number * READ_PART) as u64)?;
            }
        });
        ends.into_iter().collect()
    }

    /// From the system's cache it is copying, which several threads do faster.
    fn read_by_all(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        let parts = out.par_chunks_mut(READ_PART).enumerate();
        parts.try_for_each(|(number, part)| {
            self.read_exact_at(part, at + (number * READ_PART) as u64)
        })
    }
}

/// A tensor of a file that was not read yet.
#[derive(Debug, Clone)]
pub(crate) struct FilePart {
    file: Arc<PositionedFile>,
    path: PathBuf,
    /// What the tensor is called there.
    name: String,
    start: u64,
    len: u64,
}

impl FilePart {
    /// None where the part does not lie inside the file.
    pub(crate) fn new(
        file: &Arc<PositionedFile>,
        (path, name): (&Path, &str),
        (start, len): (u64, u64),
    ) -> Option<Self> {
        let end = start.checked_add(len)?;
        (end <= file.len()).then(|| Self {
            file: Arc::clone(file),
            path: path.to_path_buf(),
            name: name.to_owned(),
            start,
            len,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Some of its bytes; none where it has not as many.
    pub(crate) fn range(&self, from: usize, len: usize) -> Option<Self> {
        (from.checked_add(len)? <= self.len()).then(|| Self {
            start: self.start + from as u64,
            len: len as u64,
            ..self.clone()
        })
    }

    /// All of it.
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        let read = self.file.read_range(self.start, self.len);
        read.map_err(|error| self.unreadable(&error))
    }

    /// Fills `out` with what begins at a place of it, by several threads.
    pub(crate) fn read_into(&self, from: usize, out: &mut [u8]) -> Result<()> {
        let start = self.start + from as u64;
        note_read();
        let readers = if self.file.is_cached(start, out.len() as u64) {
            &*CACHE_READERS
        } else {
            &*DISK_READERS
        };
        let read = match readers {
            Some(readers) => self.file.read_in_order(readers, out, start),
            None => self.file.read_by_all(out, start),
        };
        note_read();
        let read = read.and_then(|()| self.file.check_unchanged());
        read.map_err(|error| self.unreadable(&error))
    }

    fn unreadable(&self, error: &io::Error) -> TensorError {
        let (path, name) = (self.path.display(), &self.name);
        let reason = if is_changed(error) {
            format!(
                "{path} was changed on disk after it was loaded; run the prompt again to load the new file"
            )
        } else {
            format!("{path}: tensor {name:?} cannot be read: {error}")
        };
        TensorError::invalid("read", reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = PositionedFile::open(&path).unwrap();
        assert_eq!(file.len(), 10);
        assert_eq!(file.read_range(3, 4).unwrap(), b"3456");
        assert_eq!(file.read_range(10, 0).unwrap(), b"");
        for (at, len) in [(3, 8), (11, 0), (u64::MAX, 2), (0, u64::MAX)] {
            let error = file.read_range(at, len).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
        std::fs::write(&path, b"0123").unwrap();
        for at in [0, 3] {
            assert!(is_changed(&file.read_range(at, 4).unwrap_err()));
        }
        assert!(PositionedFile::open(dir.path()).is_err());
    }

    #[test]
    fn large_parts_are_read_by_all_threads_into_used_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let content: Vec<u8> = (0..3 * MANY_READERS).map(|i| (i / 7) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let file = PositionedFile::open(&path).unwrap();
        for (at, len) in [
            (0, 3 * MANY_READERS),
            (5, MANY_READERS + 1),
            (1, 2 * MANY_READERS),
        ] {
            let part = file.read_range(at as u64, len as u64).unwrap();
            assert!(part == content[at..at + len], "{len} bytes at {at}");
            read_buffer::give(part);
        }
        // One half is still there, the other is not.
        std::fs::write(&path, &content[..2 * MANY_READERS]).unwrap();
        let error = file.read_range(0, 3 * MANY_READERS as u64).unwrap_err();
        assert!(is_changed(&error), "{error}");
    }
}
