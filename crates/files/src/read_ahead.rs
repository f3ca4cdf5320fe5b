//! Files that will be read soon, brought into the system's cache beside other work.

#[cfg(target_os = "linux")]
use std::fs::File;
#[cfg(target_os = "linux")]
use std::io::IoSliceMut;
#[cfg(target_os = "linux")]
use std::num::NonZeroU64;
#[cfg(target_os = "linux")]
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::time::Duration;

#[cfg(target_os = "linux")]
use rustix::fs::{Advice, fadvise};
#[cfg(target_os = "linux")]
use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// Bytes that are read at a time.
#[cfg(target_os = "linux")]
const PART: usize = 1 << 20;

/// How far ahead of the reader the system is told what comes: by itself it does not keep a fast disk busy.
#[cfg(target_os = "linux")]
const AHEAD: u64 = 32 << 20;

/// How long the reader waits while others read.
#[cfg(target_os = "linux")]
const PAUSE: Duration = Duration::from_millis(20);

/// Has a file read into the system's cache while the caller does something else, whenever nobody is `busy` reading what is wanted now.
/// Nothing happens where it has more than `most` bytes: the end of a file that the cache cannot hold would push out its beginning.
/// Only Linux is asked.
pub fn read_ahead(path: &Path, most: u64, busy: fn() -> bool) {
    start(path.to_path_buf(), most, busy);
}

#[cfg(target_os = "linux")]
fn start(path: PathBuf, most: u64, busy: fn() -> bool) {
    // Opened there, too: a network share may not answer.
    let read = move || {
        let Ok(file) = File::open(path) else {
            return;
        };
        let len = file.metadata().map_or(0, |data| data.len());
        if len > most {
            return;
        }
        let mut part = vec![0; PART];
        let mut told = 0;
        for at in (0..len).step_by(PART) {
            if is_cached(&file, at) != Some(false) {
                continue;
            }
            while busy() {
                std::thread::park_timeout(PAUSE);
            }
            if told < len && told < at + AHEAD / 2 {
                told = told.max(at);
                // It is advice: without it reading is slower.
                let count = NonZeroU64::new(at + AHEAD - told);
                let _ = fadvise(&file, told, count, Advice::WillNeed);
                told = at + AHEAD;
            }
            if !matches!(file.read_at(&mut part, at), Ok(1..)) {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("read-ahead".to_owned());
    if let Err(error) = thread.spawn(read) {
        tracing::debug!("cannot read a file ahead: {error}");
    }
}

/// Whether a byte can be had without the disk; none where the file system does not say.
#[cfg(target_os = "linux")]
fn is_cached(file: &File, at: u64) -> Option<bool> {
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    match preadv2(file, &mut parts, at, ReadWriteFlags::NOWAIT) {
        Ok(_) => Some(true),
        Err(Errno::AGAIN) => Some(false),
        Err(_) => None,
    }
}

#[cfg(not(target_os = "linux"))]
fn start(_: PathBuf, _: u64, _: fn() -> bool) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    static BUSY: AtomicBool = AtomicBool::new(true);
    static ASKED: AtomicUsize = AtomicUsize::new(0);

    fn busy() -> bool {
        ASKED.fetch_add(1, Ordering::Relaxed);
        BUSY.load(Ordering::Relaxed)
    }

    fn wait_until(otherwise: &str, is_so: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < Duration::from_mins(1), "{otherwise}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_file_comes_into_the_cache() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("weights");
        let len = 48 << 20;
        let mut file = File::create_new(&path).unwrap();
        for _ in 0..len >> 20 {
            file.write_all(&vec![7; 1 << 20]).unwrap();
        }
        file.sync_all().unwrap();
        let file = File::open(&path).unwrap();
        // Whoever asks whether a byte is there makes the system fetch it: with this advice its page alone, and each page is asked for once.
        fadvise(&file, 0, None, Advice::Random).unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let page = AtomicUsize::new(0);
        let end_is_cached = || {
            let page = page.fetch_add(1, Ordering::Relaxed) as u64;
            is_cached(&file, len - 1 - 4096 * page)
        };
        if end_is_cached() != Some(false) {
            // A file system in memory, or one that does not tell.
            return;
        }
        read_ahead(&path, len - 1, || false);
        assert_eq!(end_is_cached(), Some(false), "it is larger than allowed");
        read_ahead(&path, len, busy);
        wait_until("nobody asked whether others read", || {
            ASKED.load(Ordering::Relaxed) > 1
        });
        assert_eq!(end_is_cached(), Some(false), "others read");
        BUSY.store(false, Ordering::Relaxed);
        wait_until("it did not come", || end_is_cached() == Some(true));
        // Neither of these is there, and nobody minds.
        read_ahead(&dir.path().join("missing"), len, || false);
        read_ahead(dir.path(), len, || false);
    }
}
