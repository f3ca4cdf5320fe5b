//! The block formats of GGUF files: a few scales, then small integers.
//!
//! The formulas and their order of operations are llama.cpp's (`ggml-quants.c`, MIT licence; see NOTICE), so values are equal
//! bit for bit.

use crate::convert::{F8_E4M3, f16_to_f32};
use crate::formats::E2M1;

/// Decodes as many whole blocks as both sides have; `B` bytes become `E` values.
pub(crate) fn each<const B: usize, const E: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; B], &mut [f32; E]),
) {
    let pairs = bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0);
    for (bytes, out) in pairs {
        block(bytes, out);
    }
}

fn half(bytes: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// Scale, then 32 signed bytes.
pub(crate) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (y, &q) in out.iter_mut().zip(&block[2..]) {
        *y = f32::from(q as i8) * d;
    }
}

/// Scale, then 16 bytes: the lower four bits are the first 16 values, the upper ones the rest.
pub(crate) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (j, &q) in block[2..].iter().enumerate() {
        out[j] = (f32::from(q & 0xF) - 8.0) * d;
        out[j + 16] = (f32::from(q >> 4) - 8.0) * d;
    }
}

/// Scale, 32 fifth bits, then as in [`q4_0`].
pub(crate) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half(block, 0);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for (j, &q) in block[6..].iter().enumerate() {
        let first = (high >> j << 4) as u8 & 0x10;
        let second = (high >> (j + 12)) as u8 & 0x10;
        out[j] = (f32::from(q & 0xF | first) - 16.0) * d;
        out[j + 16] = (f32::from(q >> 4 | second) - 16.0) * d;
    }
}

/// Scale and minimum of group `j`, six bits each, packed in 12 bytes: the last four groups are spread over the spare
/// bits of the first four.
fn scale_and_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (
            packed[j + 4] & 0xF | (packed[j - 4] >> 6) << 4,
            packed[j + 4] >> 4 | (packed[j] >> 6) << 4,
        )
    };
    (f32::from(scale), f32::from(min))
}

/// Two scales, 12 bytes of group scales, 128 bytes; each 32 bytes hold two groups.
pub(crate) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let (packed, quants) = block[4..].split_at(12);
    for (pair, (q, y)) in quants.chunks(32).zip(out.chunks_mut(64)).enumerate() {
        let (scale, min) = scale_and_min(packed, 2 * pair);
        let (d1, m1) = (d * scale, dmin * min);
        let (scale, min) = scale_and_min(packed, 2 * pair + 1);
        let (d2, m2) = (d * scale, dmin * min);
        for l in 0..32 {
            y[l] = d1 * f32::from(q[l] & 0xF) - m1;
            y[l + 32] = d2 * f32::from(q[l] >> 4) - m2;
        }
    }
}

/// As [`q4_k`] with 32 bytes of fifth bits before the numbers: bit `g` of byte `l` belongs to value `l` of group `g`.
pub(crate) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let (packed, rest) = block[4..].split_at(12);
    let (high, quants) = rest.split_at(32);
    for (pair, (q, y)) in quants.chunks(32).zip(out.chunks_mut(64)).enumerate() {
        let (scale, min) = scale_and_min(packed, 2 * pair);
        let (d1, m1) = (d * scale, dmin * min);
        let (scale, min) = scale_and_min(packed, 2 * pair + 1);
        let (d2, m2) = (d * scale, dmin * min);
        for l in 0..32 {
            let first = (high[l] >> (2 * pair) & 1) << 4;
            let second = (high[l] >> (2 * pair + 1) & 1) << 4;
            y[l] = d1 * f32::from((q[l] & 0xF) + first) - m1;
            y[l + 32] = d2 * f32::from((q[l] >> 4) + second) - m2;
        }
    }
}

/// 128 bytes of lower four bits, 64 bytes of upper two, 16 signed group scales, one scale.
pub(crate) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = half(block, 208);
    for (part, y) in out.chunks_mut(128).enumerate() {
        let low = &block[64 * part..][..64];
        let high = &block[128 + 32 * part..][..32];
        let scales = &block[192 + 8 * part..][..8];
        for l in 0..32 {
            let value = |group: usize, low: u8| {
                let q = low & 0xF | (high[l] >> (2 * group) & 3) << 4;
                let scale = scales[l / 16 + 2 * group] as i8;
                d * f32::from(scale) * (f32::from(q) - 32.0)
            };
            y[l] = value(0, low[l]);
            y[l + 32] = value(1, low[l + 32]);
            y[l + 64] = value(2, low[l] >> 4);
            y[l + 96] = value(3, low[l + 32] >> 4);
        }
    }
}

/// Scale and minimum, then as in [`q4_0`].
pub(crate) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    for (j, &q) in block[4..].iter().enumerate() {
        out[j] = d * f32::from(q & 0xF) + m;
        out[j + 16] = d * f32::from(q >> 4) + m;
    }
}

/// Scale, minimum, 32 fifth bits, then as in [`q4_0`].
pub(crate) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for (j, &q) in block[8..].iter().enumerate() {
        let first = (high >> j << 4) as u8 & 0x10;
        let second = (high >> (j + 12)) as u8 & 0x10;
        out[j] = d * f32::from(q & 0xF | first) + m;
        out[j + 16] = d * f32::from(q >> 4 | second) + m;
    }
}

/// 16 groups with four bits of scale and of minimum, 64 bytes of four values, two scales.
pub(crate) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (half(block, 80), half(block, 82));
    for (group, y) in out.chunks_mut(16).enumerate() {
        let (scale, min) = (
            d * f32::from(block[group] & 0xF),
            dmin * f32::from(block[group] >> 4),
        );
        let quants = &block[16 + group / 8 * 32 + group % 2 * 16..];
        let shift = group % 8 / 2 * 2;
        for (y, q) in y.iter_mut().zip(quants) {
            *y = scale * f32::from(q >> shift & 3) - min;
        }
    }
}

/// 32 bytes of third bits, 64 bytes of two lower bits, 16 scales of six bits, one scale.
pub(crate) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half(block, 108);
    let packed = &block[96..108];
    for (group, y) in out.chunks_mut(16).enumerate() {
        let low = packed[group % 8] >> (group / 8 * 4) & 0xF;
        let high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
        let scale = d * (f32::from(low | high << 4) - 32.0);
        let column = group % 2 * 16;
        let quants = &block[32 + group / 8 * 32 + column..];
        let shift = group % 8 / 2 * 2;
        for (l, y) in y.iter_mut().enumerate() {
            let low = f32::from(quants[l] >> shift & 3);
            // The bit is set where nothing is taken off.
            let third = block[column + l] >> (group / 2) & 1;
            *y = scale * (low - f32::from(4 - 4 * third));
        }
    }
}

/// Scale in f32, then 256 signed bytes; their sums follow.
pub(crate) fn q8_k(block: &[u8; 292], out: &mut [f32; 256]) {
    let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    for (y, &q) in out.iter_mut().zip(&block[4..]) {
        *y = d * f32::from(q as i8);
    }
}

/// Three-valued numbers, five in a byte (in the last four bytes, four), and a scale.
pub(crate) fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = half(block, 52);
    let mut at = 0;
    for (bytes, count) in [(0..32, 5), (32..48, 5), (48..52, 4)] {
        let mut power = 1u8;
        for _ in 0..count {
            for &q in &block[bytes.clone()] {
                let digit = (u16::from(q.wrapping_mul(power)) * 3) >> 8;
                out[at] = d * (f32::from(digit) - 1.0);
                at += 1;
            }
            power = power.wrapping_mul(3);
        }
    }
}

/// Three-valued numbers, four in a byte, and a scale.
pub(crate) fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half(block, 64);
    for (i, y) in out.iter_mut().enumerate() {
        let q = block[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        *y = d * (f32::from(q) - 1.0);
    }
}

/// An exponent, then 16 bytes of two four-bit floats.
pub(crate) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let exponent = u32::from(block[0]);
    // Half of the power, because the numbers are doubled.
    let d = f32::from_bits(if exponent < 2 {
        0x0020_0000 << exponent
    } else {
        (exponent - 1) << 23
    });
    for (j, &q) in block[1..].iter().enumerate() {
        out[j] = d * (2.0 * E2M1[usize::from(q & 0xF)]);
        out[j + 16] = d * (2.0 * E2M1[usize::from(q >> 4)]);
    }
}

/// Four scales in E4M3 without sign, then four times eight bytes of two four-bit floats.
pub(crate) fn ggml_nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    for (group, y) in out.chunks_mut(16).enumerate() {
        let code = block[group] & 0x7F;
        let scale = if code == 0x7F {
            0.0
        } else {
            F8_E4M3[usize::from(code)] * 0.5
        };
        for (j, &q) in block[4 + 8 * group..][..8].iter().enumerate() {
            y[j] = scale * (2.0 * E2M1[usize::from(q & 0xF)]);
            y[j + 8] = scale * (2.0 * E2M1[usize::from(q >> 4)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::dtype::Dtype;

    /// 0.5 and 0.25 as f16.
    const HALF: [u8; 2] = [0x00, 0x38];
    const QUARTER: [u8; 2] = [0x00, 0x34];

    #[test]
    fn blocks_of_32() {
        let mut block = HALF.to_vec();
        block.extend((0..32).map(|i| (i as i8 - 16) as u8));
        let wanted: Vec<f32> = (0..32).map(|i| (i as f32 - 16.0) * 0.5).collect();
        assert_eq!(Dtype::Q8_0.to_f32(&block), wanted);

        let mut block = HALF.to_vec();
        block.extend((0..16u8).map(|i| i | (15 - i) << 4));
        let wanted: Vec<f32> = (0..16)
            .chain((0..16).rev())
            .map(|i| (i as f32 - 8.0) * 0.5)
            .collect();
        assert_eq!(Dtype::Q4_0.to_f32(&block), wanted);

        // The fifth bit is set for the odd values.
        let mut block = HALF.to_vec();
        block.extend(0xAAAA_AAAAu32.to_le_bytes());
        block.extend((0..16u8).map(|i| i | (15 - i) << 4));
        let wanted: Vec<f32> = (0..16)
            .chain((0..16).rev())
            .enumerate()
            .map(|(at, i)| (i as f32 + (at % 2) as f32 * 16.0 - 16.0) * 0.5)
            .collect();
        assert_eq!(Dtype::Q5_0.to_f32(&block), wanted);
    }

    /// Group scales 1, 2, 3, 4, 21, 38, 55, 8 and minima 5, 6, 7, 8, 25, 10, 59, 44, packed by hand.
    const PACKED: [u8; 12] = [
        0x41, 0x82, 0xC3, 0x04, 0x45, 0x06, 0xC7, 0x88, 0x95, 0xA6, 0xB7, 0xC8,
    ];
    const SCALES: [f32; 8] = [1.0, 2.0, 3.0, 4.0, 21.0, 38.0, 55.0, 8.0];
    const MINIMA: [f32; 8] = [5.0, 6.0, 7.0, 8.0, 25.0, 10.0, 59.0, 44.0];

    #[test]
    fn blocks_with_group_scales_and_minima() {
        let mut block = [HALF, QUARTER].concat();
        block.extend(PACKED);
        let quants = (0..128u8).map(|i| (i % 16) | ((i / 16) << 4));
        let mut four = block.clone();
        four.extend(quants.clone());
        let number = |i: usize| {
            let byte = (i / 64 * 32 + i % 32) as u8;
            f32::from(if i % 64 < 32 { byte % 16 } else { byte / 16 })
        };
        let wanted: Vec<f32> = (0..256)
            .map(|i| 0.5 * SCALES[i / 32] * number(i) - 0.25 * MINIMA[i / 32])
            .collect();
        assert_eq!(Dtype::Q4K.to_f32(&four), wanted);

        // The fifth bits of value l are the bits of l, so group g has it where bit g of l is set.
        let mut five = block;
        five.extend(0..32u8);
        five.extend(quants);
        let wanted: Vec<f32> = (0..256)
            .map(|i| {
                let fifth = (((i % 32) >> (i / 32)) & 1) as f32 * 16.0;
                0.5 * SCALES[i / 32] * (number(i) + fifth) - 0.25 * MINIMA[i / 32]
            })
            .collect();
        assert_eq!(Dtype::Q5K.to_f32(&five), wanted);
    }

    #[test]
    fn blocks_of_six_bits() {
        // Values 0..64 in turn, group scales -8..8.
        let q = |i: usize| (i * 7 % 64) as u8;
        let mut low = vec![0u8; 128];
        let mut high = vec![0u8; 64];
        for i in 0..256 {
            let (part, l, group) = (i / 128, i % 32, i % 128 / 32);
            low[64 * part + l + 32 * (group % 2)] |= (q(i) & 0xF) << (4 * (group / 2));
            high[32 * part + l] |= (q(i) >> 4) << (2 * group);
        }
        let mut block = [low, high].concat();
        block.extend((0..16).map(|i| (i - 8) as i8 as u8));
        block.extend(QUARTER);
        let wanted: Vec<f32> = (0..256)
            .map(|i| 0.25 * ((i / 16) as f32 - 8.0) * (f32::from(q(i)) - 32.0))
            .collect();
        assert_eq!(Dtype::Q6K.to_f32(&block), wanted);
    }
}
