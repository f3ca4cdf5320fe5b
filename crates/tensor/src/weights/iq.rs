//! The IQ formats of GGUF files: numbers looked up in grids, four or eight at a time, with their signs apart.
//!
//! Layouts, formulas and their order of operations are llama.cpp's (`ggml-quants.c`, MIT licence; see NOTICE), so values are
//! equal bit for bit.

use super::iq_tables as grids;
use crate::convert::f16_to_f32;

const TWO_BITS: [f32; 4] = [8.0, 25.0, 43.0, 0.0];
const THREE_BITS: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
const ODD: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];
const SIGNS_OF_ONE: [f32; 4] = [-1.0, 0.0, 1.0, 0.0];

/// The numbers of four bits in IQ4: denser near zero.
const FOUR_BITS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

fn half(bytes: &[u8], at: usize) -> f32 {
    f16_to_f32(short(bytes, at))
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Seven signs and an eighth that makes their number even.
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 0x7F) as u8;
    seven | ((seven.count_ones() % 2) as u8) << 7
}

/// Half a byte: the lower of each first.
fn nibble(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 2] >> (at % 2 * 4) & 0xF
}

fn signed(value: f32, signs: u8, at: usize) -> f32 {
    if signs >> at & 1 == 0 { value } else { -value }
}

/// Eight values of an entry of two bits each.
fn eight(entry: u16, scale: f32, signs: u8, out: &mut [f32]) {
    for (i, y) in out.iter_mut().enumerate() {
        let value = TWO_BITS[usize::from(entry >> (2 * i) & 3)];
        *y = signed(scale * value, signs, i);
    }
}

/// Four values of an entry of three bits each; their signs begin at `first`.
fn four(entry: u16, levels: [f32; 8], scale: f32, (signs, first): (u8, usize), out: &mut [f32]) {
    for (i, y) in out.iter_mut().enumerate() {
        let value = levels[usize::from(entry >> (3 * i) & 7)];
        *y = signed(scale * value, signs, first + i);
    }
}

/// Scale; for each 32 values four grid numbers, then four times seven signs and four bits of scale.
pub(crate) fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (group, y) in out.chunks_mut(32).enumerate() {
        let at = 2 + 8 * group;
        let signs = word(block, at + 4);
        let scale = d * (0.5 + (signs >> 28) as f32) * 0.25;
        for (l, y) in y.chunks_mut(8).enumerate() {
            let entry = grids::IQ2_XXS[usize::from(block[at + l])];
            eight(entry, scale, even_signs(signs >> (7 * l)), y);
        }
    }
}

/// Scale; 32 times nine bits of grid and seven signs; 16 scales of four bits.
pub(crate) fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (i, y) in out.chunks_mut(8).enumerate() {
        let code = short(block, 2 + 2 * i);
        let scale = d * (0.5 + f32::from(nibble(&block[66..], i / 2))) * 0.25;
        let entry = grids::IQ2_XS[usize::from(code & 511)];
        eight(entry, scale, even_signs(u32::from(code >> 9)), y);
    }
}

/// Scale; 32 bytes of grid; 32 bytes of signs; upper bits of the grid; 16 scales of four bits.
pub(crate) fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (i, y) in out.chunks_mut(8).enumerate() {
        let high = u16::from(block[66 + i / 4] >> (2 * (i % 4)) & 3);
        let entry = grids::IQ2_S[usize::from(u16::from(block[2 + i]) | high << 8)];
        let scale = d * (0.5 + f32::from(nibble(&block[74..], i / 2))) * 0.25;
        eight(entry, scale, block[34 + i], y);
    }
}

/// Scale; 64 bytes of grid; for each 32 values four times seven signs and four bits of scale.
pub(crate) fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (i, y) in out.chunks_mut(4).enumerate() {
        let signs = word(block, 66 + 4 * (i / 8));
        let scale = d * (0.5 + (signs >> 28) as f32) * 0.5;
        let entry = grids::IQ3_XXS[usize::from(block[2 + i])];
        let signs = even_signs(signs >> (7 * (i / 2 % 4)));
        four(entry, THREE_BITS, scale, (signs, i % 2 * 4), y);
    }
}

/// Scale; 64 bytes of grid; their ninth bits; 32 bytes of signs; eight scales of four bits.
pub(crate) fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (i, y) in out.chunks_mut(4).enumerate() {
        let high = u16::from(block[66 + i / 8] >> (i % 8) & 1);
        let entry = grids::IQ3_S[usize::from(u16::from(block[2 + i]) | high << 8)];
        let scale = d * (1.0 + 2.0 * f32::from(nibble(&block[106..], i / 8)));
        four(entry, ODD, scale, (block[74 + i / 2], i % 2 * 4), y);
    }
}

/// Eight values of -1, 0 and 1, moved up or down.
fn moved(entry: u16, scale: f32, down: bool, out: &mut [f32]) {
    let delta = if down { -0.125 } else { 0.125 };
    for (i, y) in out.iter_mut().enumerate() {
        *y = scale * (SIGNS_OF_ONE[usize::from(entry >> (2 * i) & 3)] + delta);
    }
}

/// Scale; 32 bytes of grid; for each 32 values their upper bits, three bits of scale and one for the direction.
pub(crate) fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (i, y) in out.chunks_mut(8).enumerate() {
        let more = short(block, 34 + 2 * (i / 4));
        let scale = d * f32::from(2 * (more >> 12 & 7) + 1);
        let high = more >> (3 * (i % 4)) & 7;
        let entry = grids::IQ1_S[usize::from(u16::from(block[2 + i]) | high << 8)];
        moved(entry, scale, more & 0x8000 != 0, y);
    }
}

/// 32 bytes of grid; upper bits and directions; 16 scales of three bits, between which the scale of the block lies.
pub(crate) fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let scales: [u16; 4] = std::array::from_fn(|i| short(block, 48 + 2 * i));
    let bits = (0..4).map(|i| scales[i] >> 12 << (4 * i));
    let d = f16_to_f32(bits.fold(0, |all, part| all | part));
    for (i, y) in out.chunks_mut(8).enumerate() {
        let more = nibble(&block[32..], i);
        let group = i / 2;
        let scale = d * f32::from(2 * (scales[group / 4] >> (3 * (group % 4)) & 7) + 1);
        let at = u16::from(block[i]) | u16::from(more & 7) << 8;
        moved(grids::IQ1_S[usize::from(at)], scale, more & 8 != 0, y);
    }
}

/// 16 bytes of two values: the lower halves are the first 16.
fn sixteen(quants: &[u8], scale: f32, out: &mut [f32]) {
    for (j, &q) in quants.iter().enumerate() {
        out[j] = scale * FOUR_BITS[usize::from(q & 0xF)];
        out[j + 16] = scale * FOUR_BITS[usize::from(q >> 4)];
    }
}

/// Scale, then 16 bytes.
pub(crate) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    sixteen(&block[2..], half(block, 0), out);
}

/// Scale; upper and lower bits of eight scales; 128 bytes.
pub(crate) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = half(block, 0);
    let high = short(block, 2);
    for (group, y) in out.chunks_mut(32).enumerate() {
        let low = nibble(&block[4..8], group);
        let scale = f32::from(low) + 16.0 * f32::from(high >> (2 * group) & 3) - 32.0;
        sixteen(&block[8 + 16 * group..][..16], d * scale, y);
    }
}
