//! Reading parts of a file from several threads.
//!
//! Files are read, not mapped: a file that gets shorter under a mapping (an aborted download that starts again, a
//! network share) ends the process with a bus error, and a page of a mapping counts twice once the weights are packed.
//! Positioned reads need no lock, because they do not move the file's own position.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime};

use crate::error::{Result, TensorError};
use crate::{read_buffer, readers, traffic};

#[cfg(target_os = "linux")]
mod ahead;
#[cfg(target_os = "linux")]
mod probe;

#[cfg(target_os = "linux")]
use ahead::ReadAhead;
#[cfg(target_os = "linux")]
use probe::Probe;

/// From so many bytes on, all threads read.
const MANY_READERS: usize = 2 << 20;

/// Threads that read for a GPU. Copying from the system's cache is bound by main memory, which eight threads use up; more of them take
/// twice the processor time. From a disk the system is fastest with four, who do not wait for each other's pages.
const FROM_CACHE: usize = 8;
const FROM_DISK: usize = 4;

/// Reads past the system's cache begin and end at multiples of this.
#[cfg(target_os = "linux")]
const BLOCK: u64 = 4096;
/// Bytes that such a read may need beyond what is wanted.
pub(crate) const PAST_CACHE_SLACK: usize = 8192;

/// Where the bytes of a file come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSource {
    /// The system's cache.
    Cache,
    /// The disk, through the system's cache, where they stay for the next time.
    Disk,
    /// The disk alone: the file would displace everything else from the cache, and half of itself.
    DiskPastCache,
}

impl FileSource {
    /// How many threads read fastest from it, as many as there are processors at most.
    pub(crate) fn readers(self) -> usize {
        let count = match self {
            Self::Cache => FROM_CACHE,
            Self::Disk | Self::DiskPastCache => FROM_DISK,
        };
        count.min(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

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

/// An open file that any thread may read anywhere. Clones are the same file.
#[derive(Debug, Clone)]
pub(crate) struct PositionedFile {
    file: Arc<File>,
    /// Length when it was opened.
    len: u64,
    /// When it had been written last by then; none where the system does not say.
    written: Option<SystemTime>,
    /// The same file, opened for reading past the system's cache. None where the system cannot do that.
    #[cfg(target_os = "linux")]
    past_cache: Arc<OnceLock<Option<File>>>,
    #[cfg(target_os = "linux")]
    probe: Arc<Probe>,
    #[cfg(target_os = "linux")]
    ahead: ReadAhead,
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
        #[cfg(target_os = "linux")]
        {
            // Several threads read a file from its beginning to its end. It is advice: without it reading is slower.
            let whole = rustix::fs::Advice::Sequential;
            let _ = rustix::fs::fadvise(&file, 0, None, whole);
        }
        Ok(Self {
            #[cfg(target_os = "linux")]
            probe: Arc::new(Probe::new(&file)),
            #[cfg(target_os = "linux")]
            ahead: ReadAhead::default(),
            file: Arc::new(file),
            len: metadata.len(),
            written: metadata.modified().ok(),
            #[cfg(target_os = "linux")]
            past_cache: Arc::default(),
        })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `out` from a position; `UnexpectedEof` if the file ends before that.
    pub(crate) fn read_exact_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        traffic::read(out.len());
        #[cfg(target_os = "linux")]
        self.ahead
            .passed((&self.file, &self.probe), (at, out.len()), self.len);
        #[cfg(unix)]
        {
            std::os::unix::fs::FileExt::read_exact_at(&*self.file, out, at).map_err(explained)
        }
        #[cfg(windows)]
        {
            let (mut out, mut at) = (out, at);
            while !out.is_empty() {
                match std::os::windows::fs::FileExt::seek_read(&*self.file, out, at) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(n) => {
                        out = &mut out[n..];
                        at += n as u64;
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(explained(e)),
                }
            }
            Ok(())
        }
    }

    /// Whether some bytes can be had without the disk, as far as their beginning, middle and end say.
    fn is_cached(&self, at: u64, len: u64) -> bool {
        #[cfg(target_os = "linux")]
        {
            self.probe.is_cached(at, len)
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (at, len);
            true
        }
    }

    /// Where some bytes come from if they are read now.
    fn source(&self, at: u64, len: u64) -> FileSource {
        if self.is_cached(at, len) {
            FileSource::Cache
        } else if cfg!(target_os = "linux")
            && crate::room::total().is_some_and(|memory| self.len > memory / 2)
        {
            FileSource::DiskPastCache
        } else {
            #[cfg(target_os = "linux")]
            self.ahead.begin();
            FileSource::Disk
        }
    }

    /// Fills a part of `out` from a position, past the system's cache, and says which part. `out` has room for [`PAST_CACHE_SLACK`] more
    /// than is wanted. None where the system cannot do that.
    #[cfg(target_os = "linux")]
    fn read_past_cache(
        &self,
        out: &mut [u8],
        (at, len): (u64, usize),
    ) -> io::Result<Option<Range<usize>>> {
        use std::os::unix::fs::FileExt;

        let open = || {
            let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
            probe::opened_again(&self.file, direct).ok()
        };
        let Some(file) = self.past_cache.get_or_init(open) else {
            return Ok(None);
        };
        let begin = at / BLOCK * BLOCK;
        let from = (at - begin) as usize;
        let wanted = (from + len).next_multiple_of(BLOCK as usize);
        let mut read = 0;
        while read < from + len {
            match file.read_at(&mut out[read..wanted], begin + read as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => read += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(None),
                Err(error) => return Err(explained(error)),
            }
        }
        traffic::read(len);
        Ok(Some(from..from + len))
    }

    /// Fills a part of `out`, which has room for [`PAST_CACHE_SLACK`] more than is wanted, and says which part.
    fn read_from(
        &self,
        source: FileSource,
        out: &mut [u8],
        (at, len): (u64, usize),
    ) -> io::Result<Range<usize>> {
        #[cfg(target_os = "linux")]
        if source == FileSource::DiskPastCache
            && let Some(part) = self.read_past_cache(out, (at, len))?
        {
            return Ok(part);
        }
        let _ = source;
        self.read_exact_at(&mut out[..len], at)?;
        Ok(0..len)
    }

    /// Reads what the system has in its cache, where it says so without asking a disk. False where it does not, or not of all.
    pub(crate) fn read_cached(&self, out: &mut [u8], at: u64) -> bool {
        #[cfg(target_os = "linux")]
        {
            let mut parts = [io::IoSliceMut::new(out)];
            let len = parts[0].len();
            let read = rustix::io::preadv2(
                &*self.file,
                &mut parts,
                at,
                rustix::io::ReadWriteFlags::NOWAIT,
            );
            let all = read == Ok(len);
            traffic::read(if all { len } else { 0 });
            all
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (out, at);
            false
        }
    }

    /// A part of the file. The part must lie inside [`Self::len`], which bounds what is asked of the allocator; memory
    /// that is not there is an error, and so is a file that was written since it was opened.
    pub(crate) fn read_range(&self, at: u64, len: u64) -> io::Result<Vec<u8>> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // Counted until all of it was read.
        let _claim = crate::room::claim(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let bytes = read_buffer::take(usize::try_from(len).map_err(io::Error::other)?);
        let len = bytes.len();
        let count = if len < MANY_READERS {
            1
        } else {
            self.source(at, len as u64);
            rayon::current_num_threads().min(FROM_CACHE)
        };
        readers::fill((self, at), bytes, 0..len, count)
    }

    pub(crate) fn check_unchanged(&self) -> io::Result<()> {
        let now = self.file.metadata()?;
        if now.len() != self.len || now.modified().ok() != self.written {
            return Err(io::Error::other(Changed));
        }
        Ok(())
    }
}

/// A disk or a network share gave an error in place of bytes.
#[derive(Debug, thiserror::Error)]
#[error(
    "{error}: the disk or the network share that has the file gave this error; see that it works, copy the file anew if the error stays, and run the prompt again"
)]
struct Unreadable {
    error: io::Error,
}

/// The error with what a person can do about it.
fn explained(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(_) => io::Error::new(error.kind(), Unreadable { error }),
        None => error,
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

    /// Where its bytes come from if they are read now.
    pub(crate) fn source(&self) -> FileSource {
        self.file.source(self.start, self.len)
    }

    /// Fills a part of `out` with `len` bytes that begin at a place of it, on this thread, and says which part. `out` has room for
    /// [`PAST_CACHE_SLACK`] more. A file that was written since it was opened is an error.
    pub(crate) fn read_some(
        &self,
        source: FileSource,
        (from, len): (usize, usize),
        out: &mut [u8],
    ) -> Result<Range<usize>> {
        note_read();
        let at = self.start + from as u64;
        let read = self.file.read_from(source, out, (at, len));
        note_read();
        let read = read.and_then(|part| self.file.check_unchanged().map(|()| part));
        read.map_err(|error| self.unreadable(&error))
    }

    /// Fills a part of some memory with what begins at a place of it, by several threads.
    pub(crate) fn fill<S: AsMut<[u8]> + Send + 'static>(
        &self,
        from: usize,
        space: S,
        part: Range<usize>,
    ) -> Result<S> {
        let start = self.start + from as u64;
        note_read();
        let count = self.file.source(start, part.len() as u64).readers();
        let read = readers::fill((&self.file, start), space, part, count);
        note_read();
        read.map_err(|error| self.unreadable(&error))
    }

    /// What came of reading it where threads of readers did that.
    pub(crate) fn failed(&self, error: io::Error) -> TensorError {
        match error.downcast() {
            Ok(own) => own,
            Err(error) => self.unreadable(&error),
        }
    }

    fn unreadable(&self, error: &io::Error) -> TensorError {
        let (path, name) = (self.path.display(), &self.name);
        if readers::is_cancelled(error) {
            return TensorError::Cancelled;
        }
        let reason = if is_changed(error) {
            format!(
                "{path} was changed on disk after it was loaded; run the prompt again to load the new file"
            )
        } else {
            let (len, start) = (self.len, self.start);
            format!(
                "{path}: tensor {name:?}, {len} bytes from byte {start} on, cannot be read: {error}"
            )
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

    /// The system is told what comes far ahead of those who read, and what they get is right.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_is_read_from_a_disk_comes_ahead() {
        use rustix::fs::{Advice, fadvise};
        use std::io::Write as _;

        // Not in a file system in memory.
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("weights");
        let len = 96_usize << 20;
        let content: Vec<u8> = (0..=len / 4)
            .flat_map(|i| (i as u32).wrapping_mul(0x9E37_79B9).to_le_bytes())
            .take(len + 3)
            .collect();
        let mut written = File::create_new(&path).unwrap();
        written.write_all(&content).unwrap();
        written.sync_all().unwrap();
        fadvise(&written, 0, None, Advice::DontNeed).unwrap();
        let file = Arc::new(PositionedFile::open(&path).unwrap());
        let all = (1, content.len() as u64 - 1);
        let part = FilePart::new(&file, (&path, "weight"), all).unwrap();
        let source = part.source();
        if source == FileSource::Cache {
            eprintln!("skipped: the file system does not say what is in the cache");
            return;
        }
        // A page that is asked for is fetched: each is asked for once.
        let mut page = 0;
        let mut comes = || {
            page += 1;
            file.probe.is_cached((50 << 20) + 4096 * page, 1)
        };
        assert!(!comes());
        let mut out = vec![0; (1 << 20) + PAST_CACHE_SLACK];
        part.read_some(source, (0, 1 << 20), &mut out).unwrap();
        assert!(out[..1 << 20] == content[1..=1 << 20]);
        let begun = Instant::now();
        while !comes() {
            assert!(
                begun.elapsed() < Duration::from_mins(1),
                "what is wanted next does not come"
            );
            std::thread::park_timeout(Duration::from_millis(5));
        }
        assert!(part.read().unwrap() == content[1..]);
    }

    #[test]
    fn parts_are_the_same_from_every_source() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let content: Vec<u8> = (0..100_003_u32).map(|i| (i / 7) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let file = Arc::new(PositionedFile::open(&path).unwrap());
        let all = (0, content.len() as u64);
        let part = FilePart::new(&file, (&path, "weight"), all).unwrap();
        for (from, len) in [
            (0, 1),
            (0, 4096),
            (1, 4095),
            (4095, 4098),
            (99_999, 4),
            (3, 100_000),
        ] {
            let mut out = vec![0; len + PAST_CACHE_SLACK];
            for source in [
                FileSource::Cache,
                FileSource::Disk,
                FileSource::DiskPastCache,
            ] {
                let there = part.read_some(source, (from, len), &mut out).unwrap();
                assert!(
                    out[there] == content[from..from + len],
                    "{len} bytes at {from} from {source:?}"
                );
            }
        }
        std::fs::write(&path, &content[..50_000]).unwrap();
        for source in [FileSource::Disk, FileSource::DiskPastCache] {
            let mut out = vec![0; 60_000 + PAST_CACHE_SLACK];
            let error = part.read_some(source, (40_000, 30_000), &mut out);
            let error = error.unwrap_err().to_string();
            assert!(error.contains("was changed on disk"), "{error}");
        }
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
