//! Files that will be read soon, brought into the system's cache beside other work.

use std::fs::File;
use std::path::Path;

/// Bytes that the system is asked for at a time.
#[cfg(target_os = "linux")]
const PART: u64 = 32 << 20;

/// Asks the system to read a file into its cache while the caller does something else. Nothing happens where it has more than
/// `most` bytes: the end of a file that the cache cannot hold would push out its beginning. Only Linux is asked.
pub fn read_ahead(path: &Path, most: u64) {
    let Ok(file) = File::open(path) else {
        return;
    };
    let len = file.metadata().map_or(0, |data| data.len());
    if len == 0 || len > most {
        return;
    }
    ask(file, len);
}

#[cfg(target_os = "linux")]
fn ask(file: File, len: u64) {
    use std::num::NonZeroU64;

    use rustix::fs::{Advice, fadvise};

    let ask = move || {
        let mut at = 0;
        while at < len {
            // The call takes as long as the disk needs to take the request.
            if fadvise(&file, at, NonZeroU64::new(PART), Advice::WillNeed).is_err() {
                return;
            }
            at += PART;
        }
    };
    let thread = std::thread::Builder::new().name("read-ahead".to_owned());
    if let Err(error) = thread.spawn(ask) {
        tracing::debug!("cannot read a file ahead: {error}");
    }
}

#[cfg(not(target_os = "linux"))]
fn ask(_: File, _: u64) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{IoSliceMut, Write};
    use std::time::{Duration, Instant};

    use rustix::fs::{Advice, fadvise};
    use rustix::io::{Errno, ReadWriteFlags, preadv2};

    use super::*;

    /// Whether a byte can be had without the disk; none where the file system does not say.
    fn is_cached(file: &File, at: u64) -> Option<bool> {
        let mut byte = [0];
        match preadv2(
            file,
            &mut [IoSliceMut::new(&mut byte)],
            at,
            ReadWriteFlags::NOWAIT,
        ) {
            Ok(_) => Some(true),
            Err(Errno::AGAIN) => Some(false),
            Err(_) => None,
        }
    }

    #[test]
    fn a_file_comes_into_the_cache() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("weights");
        let len = 3 * PART / 2;
        let mut file = File::create_new(&path).unwrap();
        for _ in 0..len >> 20 {
            file.write_all(&[7; 1 << 20]).unwrap();
        }
        file.sync_all().unwrap();
        let file = File::open(&path).unwrap();
        let forget = || fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let last = len - 1;
        forget();
        if is_cached(&file, last) != Some(false) {
            // A file system in memory, or one that does not tell.
            return;
        }
        read_ahead(&path, len - 1);
        assert_eq!(
            is_cached(&file, last),
            Some(false),
            "it is larger than allowed"
        );
        read_ahead(&path, len);
        let begin = Instant::now();
        while is_cached(&file, last) != Some(true) {
            assert!(begin.elapsed() < Duration::from_secs(60), "it did not come");
            std::thread::sleep(Duration::from_millis(5));
        }
        // Neither of these is there, and nobody minds.
        read_ahead(&dir.path().join("missing"), len);
        read_ahead(dir.path(), len);
    }
}
