//! Bits that become bytes, the lowest first.

use super::huffman::Code;

/// Appends bits to a file in memory.
pub(super) struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Bytes of `out` that are written; those after it are room.
    written: usize,
    held: u64,
    count: u32,
}

/// Bytes that are written at once, whatever of them is bits so far.
const SPARE: usize = 8;

impl<'a> BitWriter<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        let written = out.len();
        Self {
            out,
            written,
            held: 0,
            count: 0,
        }
    }

    /// Makes room for so many bytes and a few more.
    pub(super) fn reserve(&mut self, bytes: usize) {
        let wanted = self.written + bytes + 2 * SPARE;
        if self.out.len() < wanted {
            self.out.resize(wanted, 0);
        }
    }

    /// Adds bits; with those since the last [`Self::flush`] they may be 57 at most.
    #[inline(always)]
    pub(super) fn put(&mut self, code: Code) {
        self.held |= u64::from(code.bits) << self.count;
        self.count += u32::from(code.length);
    }

    /// Writes whole bytes, for which there is room.
    #[inline(always)]
    pub(super) fn flush(&mut self) {
        self.out[self.written..self.written + SPARE].copy_from_slice(&self.held.to_le_bytes());
        let bytes = self.count >> 3;
        self.written += bytes as usize;
        self.held >>= bytes * 8;
        self.count &= 7;
    }

    /// Fills the last byte with zeros.
    pub(super) fn align(&mut self) {
        self.count = self.count.next_multiple_of(8);
        self.flush();
    }

    /// Adds bytes, for which there is room, at a whole byte.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.out[self.written..self.written + bytes.len()].copy_from_slice(bytes);
        self.written += bytes.len();
    }

    /// Ends at a whole byte.
    pub(super) fn finish(mut self) {
        self.reserve(SPARE);
        self.align();
        self.out.truncate(self.written);
    }
}
