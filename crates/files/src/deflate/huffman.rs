//! Codes of a block: their lengths by how often symbols occur, and how the block lists them.

use super::bits::BitWriter;
use super::{DISTANCES, END, LITERALS};

/// Longer codes are never made, so that four of them can be written at once. The format allows one bit more.
const LONGEST_CODE: usize = 14;
/// The same for the codes that lengths are written with.
const LONGEST_TOLD: usize = 7;
/// Symbols that lengths are written with.
const TOLD: usize = 19;
/// The order in which those tell their own lengths.
const ORDER: [usize; TOLD] = [
    16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
];

/// Some bits, the first one lowest.
#[derive(Clone, Copy, Default)]
pub(super) struct Code {
    pub(super) bits: u16,
    pub(super) length: u8,
}

impl Code {
    /// The lowest bits of a number.
    pub(super) fn low_bits(value: u16, length: u32) -> Self {
        Self {
            bits: (u32::from(value) & ((1 << length) - 1)) as u16,
            length: length as u8,
        }
    }
}

/// The length of each symbol's code; 0 where it has none.
pub(super) struct Lengths<const N: usize>([u8; N]);

impl<const N: usize> Lengths<N> {
    pub(super) fn of(counts: &[u32; N]) -> Self {
        let mut lengths = [0; N];
        assign(counts, LONGEST_CODE, &mut lengths);
        Self(lengths)
    }

    /// Bits of all symbols together.
    pub(super) fn bits(&self, counts: &[u32; N]) -> u64 {
        self.bits_below(N, counts)
    }

    /// Bits of the first symbols.
    pub(super) fn bits_below(&self, end: usize, counts: &[u32; N]) -> u64 {
        let each = self.0.iter().zip(counts).take(end);
        each.map(|(length, count)| u64::from(*length) * u64::from(*count))
            .sum()
    }

    pub(super) fn codes(&self) -> [Code; N] {
        codes(&self.0)
    }

    /// All up to the last symbol that has a code, but at least so many.
    fn listed_lengths(&self, least: usize) -> &[u8] {
        let used = self.0.iter().rposition(|length| *length > 0);
        &self.0[..used.map_or(0, |last| last + 1).max(least)]
    }
}

/// The codes of a length follow each other in the order of symbols, after those of shorter ones.
fn codes<const N: usize>(lengths: &[u8; N]) -> [Code; N] {
    let mut counts = [0_u16; 16];
    for length in lengths.iter().filter(|length| **length > 0) {
        counts[usize::from(*length)] += 1;
    }
    let mut next = [0_u16; 16];
    for length in 1..16 {
        next[length] = (next[length - 1] + counts[length - 1]) << 1;
    }
    let mut codes = [Code::default(); N];
    for (code, length) in codes.iter_mut().zip(lengths) {
        if *length > 0 {
            let next = &mut next[usize::from(*length)];
            code.bits = next.reverse_bits() >> (16 - u32::from(*length));
            code.length = *length;
            *next += 1;
        }
    }
    codes
}

/// What a block says of its codes before its symbols.
pub(super) struct Header {
    literals: usize,
    distances: usize,
    /// Lengths and repetitions: a symbol, and the number after it.
    symbols: Vec<(u8, u16)>,
    lengths: [u8; TOLD],
    /// How many of [`ORDER`] are written.
    orders: usize,
}

impl Header {
    pub(super) fn new(literal: &Lengths<LITERALS>, distance: &Lengths<DISTANCES>) -> Self {
        let (literal, distance) = (literal.listed_lengths(END + 1), distance.listed_lengths(1));
        let symbols = repetitions(&[literal, distance].concat());
        let mut counts = [0; TOLD];
        for (symbol, _) in &symbols {
            counts[usize::from(*symbol)] += 1;
        }
        let mut lengths = [0; TOLD];
        assign(&counts, LONGEST_TOLD, &mut lengths);
        let last = ORDER.iter().rposition(|symbol| lengths[*symbol] > 0);
        Self {
            literals: literal.len(),
            distances: distance.len(),
            symbols,
            lengths,
            orders: last.map_or(0, |last| last + 1).max(4),
        }
    }

    pub(super) fn bits(&self) -> u64 {
        let bits = self.symbols.iter().map(|(symbol, _)| {
            u64::from(self.lengths[usize::from(*symbol)]) + u64::from(number_bits(*symbol))
        });
        17 + 3 * self.orders as u64 + bits.sum::<u64>()
    }

    /// Writes it, for which there is room.
    pub(super) fn write(&self, last: bool, bits: &mut BitWriter<'_>) {
        bits.put(Code::low_bits(u16::from(last) | 2 << 1, 3));
        bits.put(Code::low_bits((self.literals - 257) as u16, 5));
        bits.put(Code::low_bits((self.distances - 1) as u16, 5));
        bits.put(Code::low_bits((self.orders - 4) as u16, 4));
        bits.flush();
        for symbol in &ORDER[..self.orders] {
            bits.put(Code::low_bits(self.lengths[*symbol].into(), 3));
            bits.flush();
        }
        let codes = codes(&self.lengths);
        for (symbol, number) in &self.symbols {
            bits.put(codes[usize::from(*symbol)]);
            bits.put(Code::low_bits(*number, number_bits(*symbol)));
            bits.flush();
        }
    }
}

/// Bits of the number after a symbol that tells lengths.
fn number_bits(symbol: u8) -> u32 {
    match symbol {
        16 => 2,
        17 => 3,
        18 => 7,
        _ => 0,
    }
}

/// Lengths as symbols: equal ones in a row are written as one and a number.
fn repetitions(lengths: &[u8]) -> Vec<(u8, u16)> {
    let mut symbols = Vec::with_capacity(lengths.len());
    for run in lengths.chunk_by(|a, b| a == b) {
        let mut left = run.len();
        if run[0] > 0 {
            symbols.push((run[0], 0));
            left -= 1;
        }
        while left >= 3 {
            let (symbol, least, most) = match (run[0], left) {
                (0, 11..) => (18, 11, 138),
                (0, _) => (17, 3, 10),
                _ => (16, 3, 6),
            };
            let count = left.min(most);
            symbols.push((symbol, (count - least) as u16));
            left -= count;
        }
        symbols.extend((0..left).map(|_| (run[0], 0)));
    }
    symbols
}

/// Gives each symbol that occurs a length, so that all together take few bits. At least two get one: some readers want codes that leave
/// nothing over.
fn assign(counts: &[u32], most: usize, lengths: &mut [u8]) {
    let mut rare_first: Vec<(u32, u16)> = Vec::with_capacity(counts.len());
    let present = counts.iter().zip(0..).filter(|(count, _)| **count > 0);
    rare_first.extend(present.map(|(count, symbol)| (*count, symbol)));
    if rare_first.len() < 2 {
        let used = rare_first.first().map_or(0, |(_, symbol)| *symbol);
        lengths[usize::from(used)] = 1;
        lengths[usize::from(used == 0)] = 1;
        return;
    }
    rare_first.sort_unstable();
    let depths = depths(rare_first.iter().map(|(count, _)| *count).collect());
    let mut of_length = [0_u32; 33];
    for depth in depths {
        of_length[(depth as usize).min(most)] += 1;
    }
    // What was cut off is given back: a shorter code becomes two longer ones, one of which the cut one takes.
    let taken = |of_length: &[u32]| -> u64 {
        let each = of_length.iter().enumerate().take(most + 1).skip(1);
        each.map(|(length, count)| u64::from(*count) << (most - length))
            .sum()
    };
    for _ in 0..taken(&of_length).saturating_sub(1 << most) {
        let shorter = (1..most).rev().find(|length| of_length[*length] > 0);
        let shorter = shorter.expect("fewer symbols than codes of the greatest length");
        of_length[most] -= 1;
        of_length[shorter] -= 1;
        of_length[shorter + 1] += 2;
    }
    let mut symbols = rare_first.iter().rev();
    for (length, count) in of_length.iter().enumerate().take(most + 1) {
        for (_, symbol) in symbols.by_ref().take(*count as usize) {
            lengths[usize::from(*symbol)] = length as u8;
        }
    }
}

/// The depths of the leaves of a tree in which rare ones are deep, by the method of Moffat and Katajainen (1995), in place: `counts`
/// rise, and there are two at least.
fn depths(mut counts: Vec<u32>) -> Vec<u32> {
    let n = counts.len();
    // Counts of inner nodes, which become the places of their parents when they have one.
    let (mut root, mut leaf) = (0, 0);
    for next in 0..n - 1 {
        let mut take = |counts: &mut [u32]| {
            if leaf >= n || root < next && counts[root] < counts[leaf] {
                let count = std::mem::replace(&mut counts[root], next as u32);
                root += 1;
                count
            } else {
                leaf += 1;
                counts[leaf - 1]
            }
        };
        let both = take(&mut counts) + take(&mut counts);
        counts[next] = both;
    }
    // Depths of inner nodes, from the root down.
    counts[n - 2] = 0;
    for next in (0..n - 2).rev() {
        counts[next] = counts[counts[next] as usize] + 1;
    }
    // Places that inner nodes leave over on each level are leaves.
    let mut leaves = Vec::with_capacity(n);
    let (mut places, mut depth, mut inner) = (1, 0, n - 1);
    while places > 0 {
        let nodes = counts[..inner].iter().rev();
        let nodes = nodes.take_while(|of_node| **of_node == depth).count();
        inner -= nodes;
        leaves.extend((nodes..places).map(|_| depth));
        places = 2 * nodes;
        depth += 1;
    }
    leaves
}
