//! Exact arithmetic on bytes: what a number with a fraction is worth, never rounded through a float on the way.

/// 2^10, 2^20, 2^30.
pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

const ONE: u128 = 1_000_000_000_000_000_000;

/// The bytes of so many GiB, rounded down and ending at `u64::MAX`. None for what is no amount: negative, infinite, not a
/// number.
pub fn gib(amount: f64) -> Option<u64> {
    (amount.is_finite() && amount >= 0.0).then(|| clamp(times(GIB, amount)))
}

/// `value * factor`, rounded down, with the very value of the float (0.1 is a little more than a tenth). 0 for a factor
/// that is negative or not a number.
pub fn times(value: u64, factor: f64) -> u128 {
    if factor.is_nan() || factor <= 0.0 || value == 0 {
        return 0;
    }
    if factor.is_infinite() {
        return u128::MAX;
    }
    let bits = factor.to_bits();
    let exponent = (bits >> 52) as i32 & 0x7ff;
    let fraction = u128::from(bits & ((1 << 52) - 1));
    // Below the smallest normal number there is no hidden bit.
    let (mantissa, exponent) = if exponent == 0 {
        (fraction, -1074)
    } else {
        (fraction | 1 << 52, exponent - 1075)
    };
    // 64 and 53 bits: no overflow.
    let product = u128::from(value) * mantissa;
    if exponent < 0 {
        product.checked_shr(exponent.unsigned_abs()).unwrap_or(0)
    } else if exponent.unsigned_abs() <= product.leading_zeros() {
        product << exponent
    } else {
        u128::MAX
    }
}

/// A sum that does not fit is as good as everything.
pub(crate) fn clamp(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// A decimal number that is not negative, with 18 digits after the point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Decimal(u128);

impl Decimal {
    pub const fn whole(value: u64) -> Self {
        // 64 and 60 bits: no overflow.
        Self(value as u128 * ONE)
    }

    /// From ASCII digits before and after the point; further digits than 18 are cut off. None where the whole part does
    /// not fit 64 bits or something is no digit.
    pub(crate) fn parse(whole: &str, fraction: &str) -> Option<Self> {
        let mut value: u64 = 0;
        for digit in whole.bytes() {
            value = value.checked_mul(10)?.checked_add(digit_of(digit)?)?;
        }
        let mut places: u128 = 0;
        for i in 0..18 {
            let digit = fraction.as_bytes().get(i).copied().unwrap_or(b'0');
            places = places * 10 + u128::from(digit_of(digit)?);
        }
        Some(Self(u128::from(value) * ONE + places))
    }

    /// `self * value`, rounded down.
    pub fn of(self, value: u64) -> u128 {
        let value = u128::from(value);
        // The whole part has 64 bits, the fraction 60: neither product overflows, and neither does the sum.
        (self.0 / ONE) * value + (self.0 % ONE) * value / ONE
    }

    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// In billionths, rounded down.
    pub(crate) fn billionths(self) -> u128 {
        self.0 / 1_000_000_000
    }
}

fn digit_of(byte: u8) -> Option<u64> {
    byte.is_ascii_digit().then(|| u64::from(byte - b'0'))
}

/// Bytes as a person reads them: `3.2 GiB`, `120 MiB`, `17 bytes`.
pub fn readable(bytes: u64) -> String {
    for (size, name) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if bytes >= size {
            let tenths = u128::from(bytes) * 10 / u128::from(size);
            return if tenths % 10 == 0 {
                format!("{} {name}", tenths / 10)
            } else {
                format!("{}.{} {name}", tenths / 10, tenths % 10)
            };
        }
    }
    format!("{bytes} bytes")
}
