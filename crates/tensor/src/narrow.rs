//! bf16 numbers in some 11 bits, without losing any: what is brought to a GPU again and again is a third shorter on its way.
//!
//! Weights of one layer are of similar size, so that 7 of the 256 exponents have nearly all of them. An element is a byte of
//! sign and mantissa and three bits that say which exponent it has. Those with another one have a byte more, in a list; for every
//! 512 elements an index says where in the list theirs begin.

use rayon::prelude::*;

use crate::buffer::Buffer;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::stored::{HostBytes, Stored};

/// Elements whose codes stand in three numbers of 16 bits. Each number has four codes, of four bits, whose highest are not
/// used by them: there are the last four codes, of which each number has one bit.
pub(crate) const GROUP: usize = 16;
/// Elements that have one place in the index.
const PART: usize = 512;
/// The code of elements with an exponent that has none.
const OTHER: u8 = 7;
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
    exponents: [u8; 8],
    bytes: HostBytes,
}

/// Where the parts of a value begin: signs and mantissas come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Places {
    /// The first numbers of all groups, then the second and the third ones.
    pub(crate) codes: usize,
    /// Where the others of each part begin in the list, in 32 bits.
    pub(crate) index: usize,
    /// Their exponents.
    pub(crate) list: usize,
}

impl Places {
    fn of(len: usize) -> Self {
        let index = (len + 6 * (len / GROUP)).next_multiple_of(4);
        Self {
            codes: len,
            index,
            list: index + 4 * len.div_ceil(PART),
        }
    }
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
        // Neighbours mostly have the same exponent, and a count that was just written takes a while to be read again.
        let mut counts = [[0_u32; 256]; 4];
        for four in part.chunks(8) {
            for (pair, counts) in four.chunks_exact(2).zip(&mut counts) {
                counts[usize::from(parts(pair).0)] += 1;
            }
        }
        std::array::from_fn(|exponent| counts.iter().map(|of| u64::from(of[exponent])).sum())
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
        let known = usize::from(OTHER);
        let others: u64 = order[known..].iter().map(|&e| counts[usize::from(e)]).sum();
        let places = Places::of(len);
        let all = places.list + others as usize;
        // 13 bits for each of them.
        if all > len / 8 * 13 || u32::try_from(others).is_err() {
            return Ok(None);
        }
        let mut exponents = [0; 8];
        exponents[..known].copy_from_slice(&order[..known]);
        let mut codes = [OTHER; 256];
        for (code, &exponent) in order[..known].iter().enumerate() {
            codes[usize::from(exponent)] = code as u8;
        }
        let mut bytes = Buffer::filled(all, 0_u8)?;
        let (early, list) = bytes.split_at_mut(places.list);
        let (early, index) = early.split_at_mut(places.index);
        let (low, packed) = early.split_at_mut(places.codes);
        let plane = 2 * (len / GROUP);
        let (first, rest) = packed.split_at_mut(plane);
        let (second, third) = rest.split_at_mut(plane);
        // Behind the third there may be bytes up to where the index can begin.
        let third = &mut third[..plane];
        let bytes_of_codes = CHUNK / GROUP * 2;
        let chunks = (
            low.par_chunks_mut(CHUNK),
            first.par_chunks_mut(bytes_of_codes),
            second.par_chunks_mut(bytes_of_codes),
            third.par_chunks_mut(bytes_of_codes),
            index.par_chunks_mut(CHUNK / PART * 4),
            values.par_chunks(2 * CHUNK),
        );
        let found: Vec<Vec<u8>> = chunks
            .into_par_iter()
            .map(|(low, first, second, third, index, values)| {
                split(&codes, values, low, [first, second, third], index)
            })
            .collect();
        let mut start = 0;
        for (index, found) in index.chunks_mut(CHUNK / PART * 4).zip(&found) {
            for place in index.chunks_exact_mut(4) {
                let inside = u32::from_le_bytes(place.try_into().unwrap_or_default());
                place.copy_from_slice(&(inside + start as u32).to_le_bytes());
            }
            list[start..start + found.len()].copy_from_slice(found);
            start += found.len();
        }
        Ok(Some(Self {
            shape: stored.shape().to_vec(),
            len,
            exponents,
            bytes: HostBytes::new(bytes.into_vec()),
        }))
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// What is brought over.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.values()
    }

    pub(crate) fn places(&self) -> Places {
        Places::of(self.len)
    }

    /// Lets GPUs read the bytes themselves from now on.
    pub(crate) fn pin(&self) {
        self.bytes.pin();
    }

    /// The exponents by their code, as kernels take them.
    pub(crate) fn exponents(&self) -> i64 {
        i64::from_le_bytes(self.exponents)
    }

    /// The value as it was.
    pub(crate) fn stored(&self) -> Result<Stored> {
        let mut out = Buffer::filled(2 * self.len, 0_u8)?;
        let places = self.places();
        let (early, list) = self.bytes().split_at(places.list);
        let (early, index) = early.split_at(places.index);
        let (low, packed) = early.split_at(places.codes);
        let number = |at: usize| u16::from_le_bytes([packed[2 * at], packed[2 * at + 1]]);
        let groups = self.len / GROUP;
        let parts = out
            .par_chunks_mut(2 * PART)
            .zip(low.par_chunks(PART))
            .zip(index.par_chunks(4))
            .enumerate();
        parts.for_each(|(part, ((out, low), index))| {
            let start = u32::from_le_bytes(index.try_into().unwrap_or_default());
            let mut others = list[start as usize..].iter();
            let sixteen = out.chunks_exact_mut(2 * GROUP).zip(low.chunks_exact(GROUP));
            for (group, (out, low)) in sixteen.enumerate() {
                let at = part * (PART / GROUP) + group;
                let numbers = [number(at), number(groups + at), number(2 * groups + at)];
                let elements = out.chunks_exact_mut(2).zip(low).zip(codes_of(numbers));
                for ((out, &low), code) in elements {
                    let exponent = if code == OTHER {
                        others.next().copied().unwrap_or_default()
                    } else {
                        self.exponents[usize::from(code)]
                    };
                    out.copy_from_slice(&joined(exponent, low));
                }
            }
        });
        Stored::new(Dtype::Bf16, self.shape.clone(), out.into_vec())
    }
}

/// The three numbers of a group.
fn numbers_of(codes: [u8; GROUP]) -> [u16; 3] {
    let [first, second, third, last] =
        std::array::from_fn(|at| nibbles(&codes[4 * at..4 * at + 4]));
    let bit = |number: u16| (last >> number & 0x1111) << 3;
    [first | bit(0), second | bit(1), third | bit(2)]
}

/// Four codes as one number, of which each has four bits.
fn nibbles(codes: &[u8]) -> u16 {
    let bytes = codes
        .iter()
        .rev()
        .fold(0, |all, &code| all << 8 | u32::from(code));
    let pairs = (bytes | bytes >> 4) & 0x00FF_00FF;
    (pairs | pairs >> 8) as u16
}

fn codes_of(numbers: [u16; 3]) -> [u8; GROUP] {
    std::array::from_fn(|at| {
        let nibble = |number: u16| (number >> (4 * (at % 4))) as u8;
        if let Some(&number) = numbers.get(at / 4) {
            return nibble(number) & 7;
        }
        let bits = numbers.iter().map(|&number| nibble(number) >> 3 & 1);
        bits.rev().fold(0, |code, bit| code << 1 | bit)
    })
}

/// Sign and mantissa with an exponent, as bytes of a bf16.
fn joined(exponent: u8, low: u8) -> [u8; 2] {
    let bits = u16::from(low & 0x80) << 8 | u16::from(exponent) << 7 | u16::from(low & 0x7F);
    bits.to_le_bytes()
}

/// Splits elements, and gives the exponents of those that have no code. In the index they are counted from the first one here.
fn split(
    codes: &[u8; 256],
    values: &[u8],
    low: &mut [u8],
    [first, second, third]: [&mut [u8]; 3],
    index: &mut [u8],
) -> Vec<u8> {
    let mut others = Vec::new();
    let groups = values
        .chunks_exact(2 * GROUP)
        .zip(low.chunks_exact_mut(GROUP));
    let packed = first.chunks_exact_mut(2).zip(second.chunks_exact_mut(2));
    let packed = packed.zip(third.chunks_exact_mut(2));
    for (at, ((values, low), ((first, second), third))) in groups.zip(packed).enumerate() {
        if at % (PART / GROUP) == 0 {
            let place = 4 * (at / (PART / GROUP));
            index[place..place + 4].copy_from_slice(&(others.len() as u32).to_le_bytes());
        }
        // Loops of their own over sixteen elements each, which the compiler makes into a few instructions.
        let mut exponents = [0; GROUP];
        for ((value, low), exponent) in values.chunks_exact(2).zip(low).zip(&mut exponents) {
            (*exponent, *low) = parts(value);
        }
        let of_group = exponents.map(|exponent| codes[usize::from(exponent)]);
        if of_group.contains(&OTHER) {
            let pairs = exponents.iter().zip(of_group);
            others.extend(
                pairs
                    .filter(|(_, code)| *code == OTHER)
                    .map(|(exponent, _)| exponent),
            );
        }
        let [a, b, c] = numbers_of(of_group).map(u16::to_le_bytes);
        first.copy_from_slice(&a);
        second.copy_from_slice(&b);
        third.copy_from_slice(&c);
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
        // Less than a thread takes at a time, and more than two take, with groups and parts left over.
        lossless((1 << 16) + 48);
        lossless(2 * CHUNK + 3 * PART + 48);
    }

    fn lossless(len: usize) {
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
            _ => (random() & 0x80FF) | (118 + (random() % 200).min(6 + random() % 8)) << 7,
        });
        let stored = bf16(values, len);
        let narrow = Narrow::new(&stored).unwrap().unwrap();
        let others = narrow.bytes().len() - narrow.places().list;
        assert!((len / 32..len / 4).contains(&others), "{others}");
        assert!(narrow.bytes().len() < len * 12 / 8);
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
        for code in 0..4 {
            assert_eq!(narrow.exponents() >> (8 * code) & 0xFF, 100 + code);
        }
    }

    #[test]
    fn groups_have_all_of_their_codes() {
        let codes = std::array::from_fn(|at| (at * at % 8) as u8);
        assert_eq!(codes_of(numbers_of(codes)), codes);
    }
}
