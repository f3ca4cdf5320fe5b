//! Small values read one after the other from a part of a file, without trusting any length in it.

use std::io;

use crate::positioned::PositionedFile;

const BUFFER: u64 = 1 << 16;

/// Reads forward. Every answer is checked against the end of the part before memory is asked for.
pub(crate) struct Input<'a> {
    file: &'a PositionedFile,
    /// Position in the file of the next byte.
    at: u64,
    end: u64,
    buffer: Vec<u8>,
    /// Position in the file of the first byte of the buffer.
    buffered: u64,
}

impl<'a> Input<'a> {
    pub(crate) fn new(file: &'a PositionedFile, start: u64, end: u64) -> Self {
        Self {
            file,
            at: start,
            end: end.min(file.len()),
            buffer: Vec::new(),
            buffered: start,
        }
    }

    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn left(&self) -> u64 {
        self.end.saturating_sub(self.at)
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        if self.left() < N as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let start = (self.at - self.buffered) as usize;
        if let Some(bytes) = self.buffer.get(start..start + N) {
            self.at += N as u64;
            return Ok(bytes.try_into().expect("the slice has N bytes"));
        }
        let size = BUFFER.max(N as u64).min(self.left());
        self.buffer = self.file.read_range(self.at, size)?;
        self.buffered = self.at;
        self.at += N as u64;
        Ok(self.buffer[..N].try_into().expect("the slice has N bytes"))
    }

    /// The next `len` bytes, if there are that many.
    pub(crate) fn bytes(&mut self, len: u64) -> io::Result<Vec<u8>> {
        if self.left() < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let start = (self.at - self.buffered) as usize;
        let bytes = match self.buffer.get(start..start.saturating_add(len as usize)) {
            Some(bytes) => bytes.to_vec(),
            None if len < BUFFER => {
                let size = BUFFER.min(self.left());
                self.buffer = self.file.read_range(self.at, size)?;
                self.buffered = self.at;
                self.buffer[..len as usize].to_vec()
            }
            None => self.file.read_range(self.at, len)?,
        };
        self.at += len;
        Ok(bytes)
    }

    /// Passes over bytes.
    pub(crate) fn skip(&mut self, len: u64) -> io::Result<()> {
        if self.left() < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += len;
        if self.at - self.buffered > self.buffer.len() as u64 {
            self.buffer.clear();
            self.buffered = self.at;
        }
        Ok(())
    }

    pub(crate) fn u8(&mut self) -> io::Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> io::Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> io::Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_across_buffers_and_stops_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let content: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(&path, &content).unwrap();
        let file = PositionedFile::open(&path).unwrap();
        let mut input = Input::new(&file, 4, 700_000);
        for i in 1..30_000 {
            assert_eq!(input.u32().unwrap(), i);
        }
        assert_eq!(input.at(), 120_000);
        assert_eq!(input.bytes(100_000).unwrap(), content[120_000..220_000]);
        assert_eq!(input.bytes(7).unwrap(), content[220_000..220_007]);
        input.skip(3).unwrap();
        assert_eq!(input.u16().unwrap(), 0, "the upper half of 55,002");
        input.skip(400_000).unwrap();
        assert_eq!(input.u8().unwrap(), content[620_012]);
        assert_eq!(input.bytes(0).unwrap(), b"");
        assert!(input.bytes(u64::MAX).is_err() && input.skip(u64::MAX).is_err());
        assert!(input.bytes(79_988).is_err());
        input.skip(79_980).unwrap();
        assert!(input.u64().is_err());
        assert_eq!(input.left(), 7);
        assert_eq!(input.array::<7>().unwrap(), content[699_993..700_000]);
    }
}
