//! Single numbers between f32 and the smaller floating-point formats.
//!
//! Written as selections between straight computations, without branches, so that loops over them become vector code on
//! every machine. Conversions to f32 are exact; the others round to the nearest, ties to even.

/// Half precision: 1 sign, 5 exponent, 10 mantissa bits.
#[inline]
pub fn f16_to_f32(half: u16) -> f32 {
    const EXPONENT: u32 = 0x1F << 23;
    // What has to be added to the exponent: the biases are 15 and 127.
    const SHIFT: u32 = (127 - 15) << 23;
    const SMALLEST: u32 = 113 << 23;
    let bits = u32::from(half & 0x7FFF) << 13;
    let exponent = bits & EXPONENT;
    // Without a leading one: put it there and take it away again, which makes the processor normalise.
    let subnormal = (f32::from_bits(bits + SMALLEST) - f32::from_bits(SMALLEST)).to_bits();
    let magnitude = if exponent == 0 {
        subnormal
    } else if exponent == EXPONENT {
        bits + 2 * SHIFT
    } else {
        bits + SHIFT
    };
    f32::from_bits(magnitude | u32::from(half & 0x8000) << 16)
}

/// The upper half of an f32.
#[inline]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// 1 sign, 5 exponent, 2 mantissa bits: the upper half of an f16.
#[inline]
pub fn f8_e5m2_to_f32(bits: u8) -> f32 {
    f16_to_f32(u16::from(bits) << 8)
}

/// 1 sign, 4 exponent, 3 mantissa bits, no infinities; all ones is NaN.
pub static F8_E4M3: [f32; 256] = f8_e4m3_table();

const fn f8_e4m3_table() -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = ((code as u32 >> 3) & 0xF, code as u32 & 7);
        let magnitude = match exponent {
            0 => (mantissa as f32 * (1.0 / 512.0)).to_bits(),
            15 if mantissa == 7 => f32::NAN.to_bits(),
            e => (e + 120) << 23 | mantissa << 20,
        };
        table[code] = f32::from_bits(magnitude | (code as u32 & 0x80) << 24);
        code += 1;
    }
    table
}

#[inline]
pub fn f8_e4m3_to_f32(bits: u8) -> f32 {
    F8_E4M3[usize::from(bits)]
}

/// A smaller format: how its numbers sit in an f32.
struct Small {
    /// Mantissa bits that are dropped.
    dropped: u32,
    bias: u32,
    /// Bits of the magnitude from which on the format has no number.
    too_large: u32,
    /// Code of what is too large, and of NaN.
    overflow: u32,
    nan: u32,
}

impl Small {
    /// The code of a number without its sign.
    #[inline]
    fn code(&self, magnitude: u32) -> u32 {
        let smallest = (128 - self.bias) << 23;
        // Below the smallest normal number the addition does the rounding: its last bit is worth the format's last bit.
        let anchor = (127 - self.bias + self.dropped + 1) << 23;
        let subnormal = (f32::from_bits(magnitude) + f32::from_bits(anchor))
            .to_bits()
            .wrapping_sub(anchor);
        let odd = (magnitude >> self.dropped) & 1;
        let half = (1 << (self.dropped - 1)) - 1;
        let normal = magnitude
            .wrapping_sub((127 - self.bias) << 23)
            .wrapping_add(half + odd)
            >> self.dropped;
        let special = if magnitude > f32::INFINITY.to_bits() {
            self.nan
        } else {
            self.overflow
        };
        if magnitude >= self.too_large {
            special
        } else if magnitude < smallest {
            subnormal
        } else {
            normal
        }
    }
}

const F16: Small = Small {
    dropped: 13,
    bias: 15,
    too_large: (127 + 16) << 23,
    overflow: 0x7C00,
    nan: 0x7E00,
};

const E5M2: Small = Small {
    dropped: 21,
    bias: 15,
    too_large: (127 + 16) << 23,
    overflow: 0x7C,
    nan: 0x7F,
};

/// From 480 on there is nothing but NaN; between 464 and 480 rounding arrives there by itself.
const E4M3: Small = Small {
    dropped: 20,
    bias: 7,
    too_large: 480.0f32.to_bits(),
    overflow: 0x7F,
    nan: 0x7F,
};

#[inline]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    F16.code(bits & 0x7FFF_FFFF) as u16 | ((bits >> 16) as u16 & 0x8000)
}

#[inline]
pub fn f32_to_f8_e5m2(value: f32) -> u8 {
    let bits = value.to_bits();
    E5M2.code(bits & 0x7FFF_FFFF) as u8 | ((bits >> 24) as u8 & 0x80)
}

#[inline]
pub fn f32_to_f8_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    E4M3.code(bits & 0x7FFF_FFFF) as u8 | ((bits >> 24) as u8 & 0x80)
}

#[inline]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
    if value.is_nan() {
        0x7FC0
    } else {
        rounded as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A format by its numbers: exact in f64.
    fn value(code: u32, exponent_bits: u32, mantissa_bits: u32, has_infinity: bool) -> f64 {
        let bias = (1 << (exponent_bits - 1)) - 1;
        let mantissa = f64::from(code & ((1 << mantissa_bits) - 1));
        let exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
        let sign = if code >> (mantissa_bits + exponent_bits) & 1 == 1 {
            -1.0
        } else {
            1.0
        };
        let one = f64::from(1u32 << mantissa_bits);
        let top = (1 << exponent_bits) - 1;
        if exponent == top && has_infinity {
            return if mantissa == 0.0 {
                sign * f64::INFINITY
            } else {
                f64::NAN
            };
        }
        if exponent == top && mantissa == one - 1.0 {
            return f64::NAN;
        }
        let scale = 2f64.powi(exponent.max(1) as i32 - bias);
        let lead = if exponent == 0 { 0.0 } else { 1.0 };
        sign * scale * (lead + mantissa / one)
    }

    #[track_caller]
    fn same(code: u32, found: f32, wanted: f64) {
        let same = if wanted.is_nan() {
            found.is_nan()
        } else {
            f64::from(found) == wanted && (found.is_sign_negative() == wanted.is_sign_negative())
        };
        assert!(same, "{code:#x}: {found} instead of {wanted}");
    }

    #[test]
    fn every_code_is_read_exactly() {
        for code in 0..=u16::MAX {
            same(
                code.into(),
                f16_to_f32(code),
                value(code.into(), 5, 10, true),
            );
            same(
                code.into(),
                bf16_to_f32(code),
                value(code.into(), 8, 7, true),
            );
        }
        for code in 0..=u8::MAX {
            same(
                code.into(),
                f8_e5m2_to_f32(code),
                value(code.into(), 5, 2, true),
            );
            same(
                code.into(),
                f8_e4m3_to_f32(code),
                value(code.into(), 4, 3, false),
            );
        }
    }

    /// Every code comes back, and so does everything between two neighbours: below the middle the lower, above it the
    /// upper, in the middle the even one.
    #[track_caller]
    fn check_rounding(
        largest: u32,
        sign: u32,
        read: impl Fn(u32) -> f32,
        write: impl Fn(f32) -> u32,
    ) {
        for code in 0..=largest {
            let low = read(code);
            assert_eq!(write(low), code, "{code:#x}");
            assert_eq!(write(-low), code | sign, "{code:#x}");
            // Behind the largest number the next one would be as far away as the one before it.
            let high = if code < largest {
                f64::from(read(code + 1))
            } else {
                f64::from(low) * 2.0 - f64::from(read(code - 1))
            };
            let middle = f64::midpoint(f64::from(low), high) as f32;
            let even = code + (code & 1);
            for (between, wanted) in [
                (low.next_up(), code),
                (middle.next_down(), code),
                (middle, even),
                (middle.next_up(), code + 1),
                ((high as f32).next_down(), code + 1),
            ] {
                assert_eq!(write(between), wanted, "{between:e} after {code:#x}");
                assert_eq!(
                    write(-between),
                    wanted | sign,
                    "{between:e} after {code:#x}"
                );
            }
        }
    }

    #[test]
    fn every_interval_is_rounded_to_the_nearest_even() {
        check_rounding(
            0x7BFF,
            0x8000,
            |c| f16_to_f32(c as u16),
            |v| f32_to_f16(v).into(),
        );
        check_rounding(
            0x7B,
            0x80,
            |c| f8_e5m2_to_f32(c as u8),
            |v| f32_to_f8_e5m2(v).into(),
        );
        check_rounding(
            0x7E,
            0x80,
            |c| f8_e4m3_to_f32(c as u8),
            |v| f32_to_f8_e4m3(v).into(),
        );
        // The largest bfloat16 has no room above it in f32, so its interval is looked at below.
        check_rounding(
            0x7F7E,
            0x8000,
            |c| bf16_to_f32(c as u16),
            |v| f32_to_bf16(v).into(),
        );
    }

    #[test]
    fn too_large_and_no_number() {
        for (value, f16, bf16, e5m2, e4m3) in [
            (f32::INFINITY, 0x7C00, 0x7F80, 0x7C, 0x7F),
            (f32::NEG_INFINITY, 0xFC00, 0xFF80, 0xFC, 0xFF),
            (f32::MAX, 0x7C00, 0x7F80, 0x7C, 0x7F),
            (1e9, 0x7C00, 0x4E6E, 0x7C, 0x7F),
            (480.0, 0x5F80, 0x43F0, 0x60, 0x7F),
            (465.0, 0x5F44, 0x43E8, 0x5F, 0x7F),
            (464.0, 0x5F40, 0x43E8, 0x5F, 0x7E),
            (0.0, 0, 0, 0, 0),
            (-0.0, 0x8000, 0x8000, 0x80, 0x80),
            (1e-40, 0, 1, 0, 0),
        ] {
            assert_eq!(f32_to_f16(value), f16, "{value}");
            assert_eq!(f32_to_bf16(value), bf16, "{value}");
            assert_eq!(f32_to_f8_e5m2(value), e5m2, "{value}");
            assert_eq!(f32_to_f8_e4m3(value), e4m3, "{value}");
        }
        assert!(f16_to_f32(f32_to_f16(f32::NAN)).is_nan());
        assert!(bf16_to_f32(f32_to_bf16(f32::NAN)).is_nan());
        assert!(f8_e5m2_to_f32(f32_to_f8_e5m2(f32::NAN)).is_nan());
        assert!(f8_e4m3_to_f32(f32_to_f8_e4m3(f32::NAN)).is_nan());
        // A payload in the last bits only must not be rounded to infinity.
        let nan = f32::from_bits(0x7F80_0001);
        assert!(f16_to_f32(f32_to_f16(nan)).is_nan());
        assert!(bf16_to_f32(f32_to_bf16(nan)).is_nan());
    }

    #[test]
    fn the_half_crate_agrees() {
        let mut bits = 12345u32;
        for _ in 0..2_000_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = f32::from_bits(bits);
            if !value.is_nan() {
                assert_eq!(f32_to_f16(value), half::f16::from_f32(value).to_bits());
                assert_eq!(f32_to_bf16(value), half::bf16::from_f32(value).to_bits());
            }
        }
    }
}
