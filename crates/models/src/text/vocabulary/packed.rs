//! The vocabularies that lie in the program, compressed; `data/README.md` says how they were made.

use std::io::Read as _;

use flate2::read::ZlibDecoder;

use super::pieces::Pieces;

/// Bytes of the program's own, read from the front.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(count);
        self.0 = tail;
        head
    }

    fn number(&mut self) -> usize {
        let (bytes, tail) = self.0.split_first_chunk().expect(WHOLE);
        self.0 = tail;
        u32::from_le_bytes(*bytes) as usize
    }
}

const WHOLE: &str = "the program has its tables whole";

fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    let read = ZlibDecoder::new(packed).read_to_end(&mut data);
    read.expect(WHOLE);
    data
}

/// Pairs of tokens in the order of their merges.
pub(super) fn merges(packed: &[u8]) -> Vec<(u32, u32)> {
    let data = unpack(packed);
    let mut parts = Parts(&data);
    let count = parts.number();
    let columns: [&[u8]; 6] = std::array::from_fn(|_| parts.take(count));
    let token = |at: usize, side: usize| {
        let byte = |part: usize| columns[side + part][at];
        u32::from_le_bytes([byte(0), byte(1), byte(2), 0])
    };
    (0..count).map(|at| (token(at, 0), token(at, 3))).collect()
}

/// The pieces of a unigram model.
pub(super) struct PackedPieces {
    pub(super) pieces: Pieces,
    pub(super) scores: Vec<f32>,
    pub(super) unknown: u32,
    pub(super) charsmap: Vec<u8>,
}

pub(super) fn pieces(packed: &[u8]) -> PackedPieces {
    let data = unpack(packed);
    let mut parts = Parts(&data);
    let (count, unknown, charsmap) = (parts.number(), parts.number(), parts.number());
    let columns: [&[u8]; 4] = std::array::from_fn(|_| parts.take(count));
    let score = |at: usize| f32::from_le_bytes(columns.map(|column| column[at]));
    let lengths = parts.take(count);
    let pieces = lengths.iter().map(|len| parts.take(usize::from(*len)));
    let pieces: Vec<&[u8]> = pieces.collect();
    PackedPieces {
        pieces: Pieces::new(&pieces),
        scores: (0..count).map(score).collect(),
        unknown: unknown as u32,
        charsmap: parts.take(charsmap).to_vec(),
    }
}
