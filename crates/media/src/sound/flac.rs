//! FLAC of 16 bits: prediction from the last samples with fixed weights, the rest in Rice codes.

use super::vorbis_comments;
use crate::error::{MediaError, Result};
use crate::packet::{Sound, Tags};

/// Samples of a block: about a tenth of a second at usual rates.
const BLOCK: usize = 4608;
const BITS: u32 = 16;

/// Bits, the highest first.
#[derive(Default)]
struct Bits {
    out: Vec<u8>,
    word: u64,
    count: u32,
}

impl Bits {
    fn put(&mut self, value: u64, count: u32) {
        debug_assert!(count <= 32);
        self.word = self.word << count | value & ((1u64 << count) - 1);
        self.count += count;
        while self.count >= 8 {
            self.count -= 8;
            self.out.push((self.word >> self.count) as u8);
        }
    }

    fn signed(&mut self, value: i32, count: u32) {
        self.put(value as u32 as u64, count);
    }

    /// So many zeros, then a one.
    fn unary(&mut self, mut zeros: u32) {
        while zeros >= 32 {
            self.put(0, 32);
            zeros -= 32;
        }
        self.put(1, zeros + 1);
    }

    fn align(&mut self) {
        if !self.count.is_multiple_of(8) {
            self.put(0, 8 - self.count % 8);
        }
    }
}

fn crc8(data: &[u8]) -> u8 {
    data.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ byte, |s, _| {
            s << 1 ^ if s & 0x80 != 0 { 0x07 } else { 0 }
        })
    })
}

fn crc16(data: &[u8]) -> u16 {
    data.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ u16::from(*byte) << 8, |s, _| {
            s << 1 ^ if s & 0x8000 != 0 { 0x8005 } else { 0 }
        })
    })
}

/// Rounds half to even, and keeps what is louder than possible at the limit.
fn to_integer(sample: f32) -> i32 {
    let scaled = (sample * 32768.0).round_ties_even();
    // Not a number counts as silence.
    scaled.clamp(-32768.0, 32767.0) as i32
}

pub(super) fn encode(sound: &Sound, tags: &Tags) -> Result<Vec<u8>> {
    if sound.channels > 8 || sound.rate > 655_350 {
        return Err(MediaError::encode(format!(
            "FLAC knows no sound of {} channels and {} samples a second",
            sound.channels, sound.rate
        )));
    }
    let mut out = b"fLaC".to_vec();
    out.extend([0, 0, 0, 34]);
    let mut info = Bits::default();
    info.put(BLOCK as u64, 16);
    info.put(BLOCK as u64, 16);
    // Sizes of frames are not known.
    info.put(0, 24);
    info.put(0, 24);
    info.put(sound.rate.into(), 20);
    info.put(sound.channels as u64 - 1, 3);
    info.put(u64::from(BITS) - 1, 5);
    let total = sound.len() as u64;
    info.put(total >> 32 & 0xf, 4);
    info.put(total & 0xffff_ffff, 32);
    out.extend(info.out);
    // No checksum of the samples.
    out.extend([0; 16]);
    let comments = vorbis_comments(tags);
    if comments.len() >= 1 << 24 {
        return Err(MediaError::encode(
            "the workflow is larger than a FLAC file can carry",
        ));
    }
    out.push(0x84);
    out.extend(&(comments.len() as u32).to_be_bytes()[1..]);
    out.extend(comments);
    let mut planes = vec![Vec::with_capacity(BLOCK); sound.channels];
    for (number, block) in sound.samples.chunks(BLOCK * sound.channels).enumerate() {
        planes.iter_mut().for_each(Vec::clear);
        for moment in block.chunks_exact(sound.channels) {
            for (plane, sample) in planes.iter_mut().zip(moment) {
                plane.push(to_integer(*sample));
            }
        }
        out.extend(frame(&planes, number as u32, sound.rate));
    }
    Ok(out)
}

/// How two channels are written.
fn stereo(left: &[i32], right: &[i32]) -> (u64, [(Plan, Vec<i32>, u32); 2]) {
    let side: Vec<i32> = left.iter().zip(right).map(|(l, r)| l - r).collect();
    let mid: Vec<i32> = left.iter().zip(right).map(|(l, r)| (l + r) >> 1).collect();
    let l = (Plan::of(left), left.to_vec(), BITS);
    let r = (Plan::of(right), right.to_vec(), BITS);
    let s = (Plan::of(&side), side, BITS + 1);
    let m = (Plan::of(&mid), mid, BITS);
    let cost = |a: &(Plan, Vec<i32>, u32), b: &(Plan, Vec<i32>, u32)| a.0.bits + b.0.bits;
    let ways = [
        (cost(&l, &r), 1),
        (cost(&l, &s), 8),
        (cost(&s, &r), 9),
        (cost(&m, &s), 10),
    ];
    match ways.iter().min().map_or(1, |way| way.1) {
        8 => (8, [l, s]),
        9 => (9, [s, r]),
        10 => (10, [m, s]),
        _ => (1, [l, r]),
    }
}

/// How a frame says its rate: a code, and what follows the header. Players take the time of a frame from here, not from the
/// header of the file.
fn rate_code(rate: u32) -> (u64, Option<u32>) {
    const KNOWN: [u32; 11] = [
        88_200, 176_400, 192_000, 8000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000,
    ];
    match KNOWN.iter().position(|known| *known == rate) {
        Some(at) => (at as u64 + 1, None),
        None if rate < 1 << 16 => (13, Some(rate)),
        None if rate.is_multiple_of(10) && rate / 10 < 1 << 16 => (14, Some(rate / 10)),
        None => (0, None),
    }
}

fn frame(planes: &[Vec<i32>], number: u32, rate: u32) -> Vec<u8> {
    let length = planes[0].len();
    let (assignment, parts): (u64, Vec<(Plan, Vec<i32>, u32)>) = match planes {
        [left, right] => {
            let (way, parts) = stereo(left, right);
            (way, parts.into())
        }
        planes => (
            planes.len() as u64 - 1,
            planes
                .iter()
                .map(|p| (Plan::of(p), p.clone(), BITS))
                .collect(),
        ),
    };
    let mut bits = Bits::default();
    bits.put(0xfff8, 16);
    // The size follows the number.
    let (code, said) = rate_code(rate);
    bits.put(0x70 | code, 8);
    bits.put(assignment << 4 | 4 << 1, 8);
    for byte in frame_number(number) {
        bits.put(byte.into(), 8);
    }
    bits.put(length as u64 - 1, 16);
    if let Some(said) = said {
        bits.put(said.into(), 16);
    }
    let sum = crc8(&bits.out);
    bits.put(sum.into(), 8);
    for (plan, samples, width) in &parts {
        subframe(&mut bits, plan, samples, *width);
    }
    bits.align();
    let sum = crc16(&bits.out);
    bits.put(sum.into(), 16);
    bits.out
}

/// In the form of UTF-8, with up to 31 bits.
fn frame_number(number: u32) -> Vec<u8> {
    if number < 0x80 {
        return vec![number as u8];
    }
    let mut tail = Vec::new();
    let mut rest = number;
    let mut room = 0x3f;
    while rest > room {
        tail.push(0x80 | (rest & 0x3f) as u8);
        rest >>= 6;
        room >>= 1;
    }
    let marks = !((room << 1) | 1) as u8;
    let mut out = vec![marks | rest as u8];
    out.extend(tail.into_iter().rev());
    out
}

/// How one channel of a block is predicted.
struct Plan {
    order: usize,
    bits: u64,
}

/// What is left of the samples after prediction.
fn residual(samples: &[i32], order: usize) -> impl Iterator<Item = i64> + '_ {
    const WEIGHTS: [&[i64]; 5] = [&[], &[1], &[2, -1], &[3, -3, 1], &[4, -6, 4, -1]];
    (order..samples.len()).map(move |i| {
        let predicted: i64 = WEIGHTS[order]
            .iter()
            .enumerate()
            .map(|(k, w)| w * i64::from(samples[i - 1 - k]))
            .sum();
        i64::from(samples[i]) - predicted
    })
}

/// Differences with their sign in the lowest bit.
fn folded(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

/// The best parameter for the sum of so many values, and the bits they take with it.
fn rice(sum: u64, count: u64) -> (u32, u64) {
    let mut best = (0, u64::MAX);
    for parameter in 0..15 {
        let bits = count * (u64::from(parameter) + 1) + (sum >> parameter);
        if bits < best.1 {
            best = (parameter, bits);
        }
    }
    best
}

impl Plan {
    fn of(samples: &[i32]) -> Self {
        (0..=4usize.min(samples.len().saturating_sub(1)))
            .map(|order| {
                let sum = residual(samples, order).map(folded).sum();
                let warm = order as u64 * 17;
                let bits = rice(sum, (samples.len() - order) as u64).1 + warm;
                Self { order, bits }
            })
            .min_by_key(|plan| plan.bits)
            .unwrap_or(Self { order: 0, bits: 0 })
    }
}

fn subframe(bits: &mut Bits, plan: &Plan, samples: &[i32], width: u32) {
    if samples.iter().all(|s| *s == samples[0]) {
        bits.put(0, 8);
        bits.signed(samples[0], width);
        return;
    }
    if plan.bits > samples.len() as u64 * u64::from(width) {
        bits.put(1 << 1, 8);
        for sample in samples {
            bits.signed(*sample, width);
        }
        return;
    }
    bits.put((8 | plan.order as u64) << 1, 8);
    for sample in &samples[..plan.order] {
        bits.signed(*sample, width);
    }
    let rest: Vec<u64> = residual(samples, plan.order).map(folded).collect();
    // Partitions have equal sizes, the first one without what was not predicted.
    let split = |order: u32| -> Option<(u64, Vec<u32>)> {
        let size = samples.len() >> order;
        if size << order != samples.len() || size <= plan.order {
            return None;
        }
        let mut bits = 0;
        let mut parameters = Vec::new();
        let (mut start, mut end) = (0, size - plan.order);
        while start < rest.len() {
            let part = &rest[start..end];
            let (parameter, cost) = rice(part.iter().sum(), part.len() as u64);
            parameters.push(parameter);
            bits += cost + 4;
            (start, end) = (end, end + size);
        }
        Some((bits, parameters))
    };
    let best = (0..=6)
        .filter_map(|order| split(order).map(|(bits, p)| (bits, order, p)))
        .min_by_key(|way| way.0);
    let Some((_, order, parameters)) = best else {
        return;
    };
    bits.put(0, 2);
    bits.put(order.into(), 4);
    let size = samples.len() >> order;
    let (mut start, mut end) = (0, size - plan.order);
    for parameter in parameters {
        bits.put(parameter.into(), 4);
        for value in &rest[start..end] {
            bits.unary((value >> parameter) as u32);
            bits.put(value & ((1 << parameter) - 1), parameter);
        }
        (start, end) = (end, end + size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let sound = |channels: usize, length: usize, f: &dyn Fn(usize) -> f32| Sound {
            rate: 44_100,
            channels,
            samples: (0..length * channels).map(f).collect(),
        };
        let noise = |i: usize| ((i * 7919 % 65_521) as f32 / 32_760.0 - 1.0) * 1.2;
        let tone = |i: usize| (i as f32 * 0.01).sin() * 0.7;
        for (channels, length) in [
            (1, 1),
            (1, 4608),
            (2, 10_000),
            (2, 4609),
            (6, 5000),
            (8, 17),
        ] {
            for wave in [&noise as &dyn Fn(usize) -> f32, &tone, &|_| 0.25, &|_| {
                f32::NAN
            }] {
                let sound = sound(channels, length, wave);
                let file = encode(&sound, &vec![("prompt".into(), "{}".into())]).unwrap();
                let mut reader = claxon::FlacReader::new(file.as_slice()).unwrap();
                let found: Vec<i32> = reader.samples().map(Result::unwrap).collect();
                let wanted: Vec<i32> = sound.samples.iter().map(|s| to_integer(*s)).collect();
                assert_eq!(found, wanted, "{channels} channels, {length} samples");
                assert_eq!(reader.get_tag("prompt").next(), Some("{}"));
            }
        }
    }

    #[test]
    fn numbers_of_frames_are_coded_as_characters_are() {
        for number in [0, 0x7f, 0x80, 0x7ff, 0x800, 0xffff, 0x1_0000, 0x10_ffff] {
            let Some(character) = char::from_u32(number) else {
                continue;
            };
            assert_eq!(frame_number(number), character.to_string().as_bytes());
        }
    }

    #[test]
    fn frames_of_any_rate_can_be_read() {
        for rate in [8000, 11_025, 44_100, 88_200, 96_000, 123_450, 200_001] {
            let sound = Sound {
                rate,
                channels: 1,
                samples: (0..6000).map(|i| (i as f32 * 0.01).sin()).collect(),
            };
            let file = encode(&sound, &Vec::new()).unwrap();
            let mut reader = claxon::FlacReader::new(file.as_slice()).unwrap();
            assert_eq!(reader.streaminfo().sample_rate, rate);
            assert_eq!(reader.samples().map(Result::unwrap).count(), 6000);
        }
    }

    #[test]
    fn rounding_is_that_of_the_reference() {
        let cases = [
            (0.0, 0),
            (1.0, 32767),
            (-1.0, -32768),
            (1.5, 32767),
            (0.5 / 32768.0, 0),
            (1.5 / 32768.0, 2),
        ];
        for (sample, want) in cases {
            assert_eq!(to_integer(sample), want);
        }
    }
}
