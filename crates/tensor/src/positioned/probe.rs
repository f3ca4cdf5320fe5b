//! Whether bytes of a file can be had without the disk that has it.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// Asks the system's cache. It has a descriptor of its own: a byte that is asked for and is not there is fetched, with as much behind
/// it as the system reads ahead for this descriptor, and the system forgets that others read the file from its beginning to its end.
#[derive(Debug)]
pub(super) struct Probe(Option<File>);

/// The file that was opened once more, whatever has its name now.
pub(super) fn opened_again(file: &File, flags: i32) -> io::Result<File> {
    let number = file.as_raw_fd();
    let mut options = File::options();
    options.read(true).custom_flags(flags);
    options.open(format!("/proc/self/fd/{number}"))
}

impl Probe {
    pub(super) fn new(file: &File) -> Self {
        let own = opened_again(file, 0).ok();
        // Of what is asked for and is not there, a page is fetched and no more.
        Self(own.filter(|own| fadvise(own, 0, None, Advice::Random).is_ok()))
    }

    /// Whether some bytes are in the cache, as far as their beginning, middle and end say. Where the system does not know (its file
    /// systems in memory do not), they are.
    pub(super) fn is_cached(&self, at: u64, len: u64) -> bool {
        let Some(file) = &self.0 else {
            return true;
        };
        let places = [at, at + len / 2, at + len.saturating_sub(1)];
        places.into_iter().all(|place| {
            let mut byte = [0];
            let mut parts = [IoSliceMut::new(&mut byte)];
            let read = preadv2(file, &mut parts, place, ReadWriteFlags::NOWAIT);
            read != Err(Errno::AGAIN)
        })
    }
}
