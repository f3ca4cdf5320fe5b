//! Bytes that are stored later: in memory, or part of a file that has no name.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use crate::write::TempFile;

/// Something to store. It can be read more than once, but not twice at the same time.
pub trait Content: Send + Sync {
    fn size(&self) -> u64;
    fn open(&self) -> io::Result<Box<dyn Read + '_>>;
}

impl Content for &[u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn open(&self) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(*self))
    }
}

/// A part of an open file.
#[derive(Clone, Debug)]
pub struct FilePart {
    pub file: Arc<File>,
    pub start: u64,
    pub size: u64,
}

impl Content for FilePart {
    fn size(&self) -> u64 {
        self.size
    }

    fn open(&self) -> io::Result<Box<dyn Read + '_>> {
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(self.start))?;
        Ok(Box::new(file.take(self.size)))
    }
}

/// A file that nobody else can open and that goes when it is dropped, also when the process is killed (where the system
/// lets an open file lose its name; elsewhere the name goes with the value).
#[derive(Debug)]
pub struct Scratch {
    file: File,
    size: u64,
    named: Option<TempFile>,
}

impl Scratch {
    /// Makes one in `folder`, which is created.
    pub fn create(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut named = TempFile::create(folder)?;
        let file = named.file()?.try_clone()?;
        named.close();
        Ok(Self {
            file,
            size: 0,
            // Dropping it removes the name.
            named: if cfg!(unix) { None } else { Some(named) },
        })
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// All that was written, and the name it has where it must have one.
    pub fn into_part(self) -> (FilePart, Option<TempFile>) {
        let part = FilePart {
            file: Arc::new(self.file),
            start: 0,
            size: self.size,
        };
        (part, self.named)
    }
}

impl Write for Scratch {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Whether two readers give the same bytes.
pub(crate) fn same_bytes(mut a: impl Read, mut b: impl Read) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let n = fill(&mut a, &mut left)?;
        let m = fill(&mut b, &mut right)?;
        if left[..n] != right[..m] {
            return Ok(false);
        }
        if n == 0 {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or the end has come.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match from.read(&mut buffer[have..]) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_file_has_no_name_and_can_be_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("made");
        let mut scratch = Scratch::create(&folder).unwrap();
        scratch.write_all(b"hello world").unwrap();
        assert_eq!(scratch.size(), 11);
        if cfg!(unix) {
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        }
        let (mut part, _named) = scratch.into_part();
        part.start = 6;
        part.size = 5;
        for _ in 0..2 {
            let mut text = String::new();
            part.open().unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "world");
        }
        assert!(same_bytes(part.open().unwrap(), &b"world"[..]).unwrap());
        assert!(!same_bytes(part.open().unwrap(), &b"worlds"[..]).unwrap());
    }
}
