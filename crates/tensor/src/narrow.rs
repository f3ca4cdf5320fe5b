//! bf16 numbers in 12 bits, without losing any: what is brought to a GPU again and again is a quarter shorter on its way.
//!
//! Weights of one layer are of similar size, so that 15 of the 256 exponents have nearly all of them. An element is a byte of
//! sign and mantissa and half a byte that says which exponent it has; those with another one stand in a list.

use rayon::prelude::*;

use crate::buffer::Buffer;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::stored::{HostBytes, Stored};

/// Elements that are taken together.
pub(crate) const GROUP: usize = 16;
/// The code of elements with an exponent that has none.
const OTHER: u8 = 15;
/// Fewer elements are not worth it.
const LEAST: usize = 1 << 16;
/// Elements of which each thread takes a part at a time.
const CHUNK: usize = 1 << 20;

/// A value in this form.
#[derive(Debug)]
pub(crate) struct Narrow {
    shape: Vec<usize>,
    len: usize,
    /// The exponents by their code.
    exponents: [u8; 16],
    /// All bytes of signs and mantissas, all codes, and the list of the others.
    bytes: HostBytes,
    others: usize,
}

fn parts(pair: &[u8]) -> (u8, u8) {
    let bits = u16::from_le_bytes([pair[0], pair[1]]);
    let exponent = (bits >> 7) as u8;
    let low = ((bits >> 8) as u8 & 0x80) | (bits as u8 & 0x7F);
    (exponent, low)
}

/// How many of the elements have each exponent.
fn counts(values: &[u8]) -> [u64; 256] {
    let of = |part: &[u8]| {
        let mut counts = [0_u64; 256];
        for pair in part.chunks_exact(2) {
            counts[usize::from(parts(pair).0)] += 1;
        }
        counts
    };
    let add = |mut a: [u64; 256], b: [u64; 256]| {
        for (a, b) in a.iter_mut().zip(b) {
            *a += b;
        }
        a
    };
    values
        .par_chunks(2 * CHUNK)
        .map(of)
        .reduce(|| [0; 256], add)
}

impl Narrow {
    /// None where it is no bf16, has too few elements, or is not shorter by much.
    pub(crate) fn new(stored: &Stored) -> Result<Option<Self>> {
        let len = stored.len();
        if stored.dtype() != Dtype::Bf16 || len < LEAST || !len.is_multiple_of(GROUP) {
            return Ok(None);
        }
        let values = stored.bytes();
        let counts = counts(values);
        let mut order: Vec<u8> = (0..=255).collect();
        order.sort_by_key(|&exponent| std::cmp::Reverse(counts[usize::from(exponent)]));
        let others: u64 = order[15..].iter().map(|&e| counts[usize::from(e)]).sum();
        if others > len as u64 / 64 {
            return Ok(None);
        }
        let mut exponents = [0; 16];
        exponents[..15].copy_from_slice(&order[..15]);
        let mut codes = [OTHER; 256];
        for (code, &exponent) in order[..15].iter().enumerate() {
            codes[usize::from(exponent)] = code as u8;
        }
        let others = others as usize;
        let mut bytes = Buffer::filled(len + len / 2 + 8 * others, 0_u8)?;
        let (low, rest) = bytes.split_at_mut(len);
        let (packed, list) = rest.split_at_mut(len / 2);
        let chunks = low
            .par_chunks_mut(CHUNK)
            .zip(packed.par_chunks_mut(CHUNK / 2));
        let found: Vec<Vec<u64>> = chunks
            .zip(values.par_chunks(2 * CHUNK))
            .enumerate()
            .map(|(chunk, ((low, packed), values))| {
                split(&codes, chunk * CHUNK, values, low, packed)
            })
            .collect();
        let entries = found.iter().flatten();
        for (out, entry) in list.chunks_exact_mut(8).zip(entries) {
            out.copy_from_slice(&entry.to_le_bytes());
        }
        Ok(Some(Self {
            shape: stored.shape().to_vec(),
            len,
            exponents,
            bytes: HostBytes::new(bytes.into_vec()),
            others,
        }))
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// What is brought over: signs and mantissas, codes, the list.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.values()
    }

    /// Lets GPUs read the bytes themselves from now on.
    pub(crate) fn pin(&self) {
        self.bytes.pin();
    }

    /// The exponents by their code, as kernels take them.
    pub(crate) fn exponents(&self) -> [i64; 2] {
        let word = |part: &[u8]| {
            let word = part
                .iter()
                .rev()
                .fold(0_u64, |word, &e| word << 8 | u64::from(e));
            word.cast_signed()
        };
        [word(&self.exponents[..8]), word(&self.exponents[8..])]
    }

    /// Elements in the list.
    pub(crate) fn others(&self) -> usize {
        self.others
    }

    /// The value as it was.
    pub(crate) fn stored(&self) -> Result<Stored> {
        let mut out = Buffer::filled(2 * self.len, 0_u8)?;
        let (low, rest) = self.bytes().split_at(self.len);
        let (packed, list) = rest.split_at(self.len / 2);
        let sources = low.par_chunks(CHUNK).zip(packed.par_chunks(CHUNK / 2));
        let chunks = out.par_chunks_mut(2 * CHUNK).zip(sources);
        chunks.for_each(|(out, (low, packed))| {
            for (at, (out, &low)) in out.chunks_exact_mut(2).zip(low).enumerate() {
                let code = packed[at / 2] >> (4 * (at % 2)) & 0xF;
                out.copy_from_slice(&joined(self.exponents[usize::from(code)], low));
            }
        });
        for entry in list.chunks_exact(8) {
            let entry = u64::from_le_bytes(entry.try_into().unwrap_or_default());
            let at = (entry >> 8) as usize;
            out[2 * at..2 * at + 2].copy_from_slice(&joined(entry as u8, low[at]));
        }
        Stored::new(Dtype::Bf16, self.shape.clone(), out.into_vec())
    }
}

/// Sign and mantissa with an exponent, as bytes of a bf16.
fn joined(exponent: u8, low: u8) -> [u8; 2] {
    let bits = u16::from(low & 0x80) << 8 | u16::from(exponent) << 7 | u16::from(low & 0x7F);
    bits.to_le_bytes()
}

/// Splits elements, and says which of them have an exponent without a code.
fn split(
    codes: &[u8; 256],
    start: usize,
    values: &[u8],
    low: &mut [u8],
    packed: &mut [u8],
) -> Vec<u64> {
    let mut others = Vec::new();
    let pairs = values
        .chunks_exact(4)
        .zip(low.chunks_exact_mut(2))
        .zip(packed);
    for (at, ((four, low), packed)) in pairs.enumerate() {
        let mut both = 0;
        for k in 0..2 {
            let (exponent, rest) = parts(&four[2 * k..]);
            low[k] = rest;
            let code = codes[usize::from(exponent)];
            both |= code << (4 * k);
            if code == OTHER {
                others.push(((start + 2 * at + k) as u64) << 8 | u64::from(exponent));
            }
        }
        *packed = both;
    }
    others
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bf16(values: impl Iterator<Item = u16>, len: usize) -> Stored {
        let bytes: Vec<u8> = values.take(len).flat_map(u16::to_le_bytes).collect();
        Stored::new(Dtype::Bf16, [len / 16, 16], bytes).unwrap()
    }

    #[test]
    fn nothing_is_lost() {
        let len = (1 << 16) + 48;
        let mut state = 1_u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            (state >> 40) as u16
        };
        // Most within a few powers of two; some are anything, also infinite, no number, zero, or very small.
        let values = (0..).map(|i| match i % 997 {
            0 => random(),
            1 => [0x7F80, 0xFF80, 0x7FC1, 0, 0x8000, 1, 0x807F][i / 997 % 7],
            _ => (random() & 0x80FF) | (118 + random() % 12) << 7,
        });
        let stored = bf16(values, len);
        let narrow = Narrow::new(&stored).unwrap().unwrap();
        assert!(narrow.others() > 20, "{}", narrow.others());
        assert_eq!(narrow.bytes().len(), len * 3 / 2 + 8 * narrow.others());
        assert_eq!(narrow.stored().unwrap(), stored);
    }

    #[test]
    fn what_would_not_be_shorter_stays() {
        let mut state = 5_u32;
        let any = (0..).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as u16
        });
        assert!(Narrow::new(&bf16(any, 1 << 16)).unwrap().is_none());
        let few = bf16((0..).map(|_| 0x3F80), 1024);
        assert!(Narrow::new(&few).unwrap().is_none());
        let ones = Stored::new(Dtype::F16, [1 << 16], vec![0; 2 << 16]).unwrap();
        assert!(Narrow::new(&ones).unwrap().is_none());
    }

    #[test]
    fn exponents_are_in_the_order_of_their_codes() {
        let stored = bf16((0..).map(|i: u32| (100 + (i % 4) as u16) << 7), 1 << 16);
        let narrow = Narrow::new(&stored).unwrap().unwrap();
        let [first, _] = narrow.exponents();
        for code in 0..4 {
            assert_eq!(first >> (8 * code) & 0xFF, 100 + code);
        }
    }
}
