//! Number formats of stored tensors and their conversion to f32.

/// A number format by its name in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    Bool,
    U8,
    I8,
    F8E5M2,
    F8E4M3,
    I16,
    U16,
    F16,
    Bf16,
    I32,
    U32,
    F32,
    F64,
    I64,
    U64,
}

const NAMES: &[(&str, Dtype)] = &[
    ("BOOL", Dtype::Bool),
    ("U8", Dtype::U8),
    ("I8", Dtype::I8),
    ("F8_E5M2", Dtype::F8E5M2),
    ("F8_E4M3", Dtype::F8E4M3),
    ("I16", Dtype::I16),
    ("U16", Dtype::U16),
    ("F16", Dtype::F16),
    ("BF16", Dtype::Bf16),
    ("I32", Dtype::I32),
    ("U32", Dtype::U32),
    ("F32", Dtype::F32),
    ("F64", Dtype::F64),
    ("I64", Dtype::I64),
    ("U64", Dtype::U64),
];

impl Dtype {
    pub fn parse(name: &str) -> Option<Self> {
        NAMES.iter().find(|(n, _)| *n == name).map(|&(_, d)| d)
    }

    pub fn name(self) -> &'static str {
        NAMES
            .iter()
            .find(|&&(_, d)| d == self)
            .map_or("", |(n, _)| n)
    }

    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 | Self::F8E5M2 | Self::F8E4M3 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// Little-endian bytes as f32 values; bytes that fill no element are left out.
    pub fn to_f32(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Self::Bool => bytes.iter().map(|&b| f32::from(u8::from(b != 0))).collect(),
            Self::U8 => bytes.iter().map(|&b| f32::from(b)).collect(),
            Self::I8 => bytes.iter().map(|&b| f32::from(b as i8)).collect(),
            Self::F8E5M2 => bytes.iter().map(|&b| f16(u16::from(b) << 8)).collect(),
            Self::F8E4M3 => bytes.iter().map(|&b| f8_e4m3(b)).collect(),
            Self::I16 => words(bytes, |b| f32::from(i16::from_le_bytes(b))),
            Self::U16 => words(bytes, |b| f32::from(u16::from_le_bytes(b))),
            Self::F16 => words(bytes, |b| f16(u16::from_le_bytes(b))),
            Self::Bf16 => words(bytes, |b| {
                f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)
            }),
            Self::I32 => words(bytes, |b| i32::from_le_bytes(b) as f32),
            Self::U32 => words(bytes, |b| u32::from_le_bytes(b) as f32),
            Self::F32 => words(bytes, f32::from_le_bytes),
            Self::F64 => words(bytes, |b| f64::from_le_bytes(b) as f32),
            Self::I64 => words(bytes, |b| i64::from_le_bytes(b) as f32),
            Self::U64 => words(bytes, |b| u64::from_le_bytes(b) as f32),
        }
    }

    /// Values as little-endian bytes of this format, rounded to the nearest (ties to even); none for formats that hold
    /// no fractions.
    pub fn encode(self, values: &[f32]) -> Option<Vec<u8>> {
        Some(match self {
            Self::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::F64 => values
                .iter()
                .flat_map(|v| f64::from(*v).to_le_bytes())
                .collect(),
            Self::F16 => values
                .iter()
                .flat_map(|v| half::f16::from_f32(*v).to_le_bytes())
                .collect(),
            Self::Bf16 => values
                .iter()
                .flat_map(|v| half::bf16::from_f32(*v).to_le_bytes())
                .collect(),
            _ => return None,
        })
    }
}

fn words<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes
        .chunks_exact(N)
        .map(|chunk| f(chunk.try_into().expect("chunks have N bytes")))
        .collect()
}

/// Half precision: 1 sign, 5 exponent, 10 mantissa bits.
fn f16(bits: u16) -> f32 {
    let mantissa = u32::from(bits & 0x3FF);
    let magnitude = match (bits >> 10) & 0x1F {
        0 => mantissa as f32 * (1.0 / 16_777_216.0),
        31 => f32::from_bits(0x7F80_0000 | mantissa << 13),
        e => f32::from_bits((u32::from(e) + 112) << 23 | mantissa << 13),
    };
    magnitude.copysign(if bits & 0x8000 == 0 { 1.0 } else { -1.0 })
}

/// 1 sign, 4 exponent, 3 mantissa bits, no infinities; all ones is NaN.
fn f8_e4m3(bits: u8) -> f32 {
    let mantissa = u32::from(bits & 7);
    let magnitude = match (bits >> 3) & 0xF {
        0 => mantissa as f32 * (1.0 / 512.0),
        15 if mantissa == 7 => f32::NAN,
        e => f32::from_bits((u32::from(e) + 120) << 23 | mantissa << 20),
    };
    magnitude.copysign(if bits & 0x80 == 0 { 1.0 } else { -1.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_patterns() {
        let read = |d: Dtype, bytes: &[u8]| d.to_f32(bytes);
        assert_eq!(
            read(Dtype::F16, &[0, 0x3C, 0, 0xC0, 1, 0]),
            [1.0, -2.0, 5.960_464_5e-8]
        );
        assert_eq!(
            read(Dtype::F16, &[0, 0x7C, 0xFF, 0x7B]),
            [f32::INFINITY, 65504.0]
        );
        assert!(read(Dtype::F16, &[1, 0x7E])[0].is_nan());
        assert_eq!(read(Dtype::Bf16, &[0x80, 0x3F, 0, 0xC0]), [1.0, -2.0]);
        assert_eq!(
            read(Dtype::F8E4M3, &[0x38, 0x7E, 0x01, 0xB8]),
            [1.0, 448.0, 0.001_953_125, -1.0]
        );
        assert!(read(Dtype::F8E4M3, &[0x7F])[0].is_nan());
        assert_eq!(read(Dtype::F8E5M2, &[0x3C, 0x7B]), [1.0, 57344.0]);
        assert_eq!(read(Dtype::I8, &[0xFF]), [-1.0]);
        assert_eq!(read(Dtype::I16, &[0xFE, 0xFF]), [-2.0]);
        assert_eq!(read(Dtype::U16, &[0xFE, 0xFF]), [65534.0]);
        assert_eq!(read(Dtype::I32, &[3, 0, 0, 0]), [3.0]);
        assert_eq!(read(Dtype::I64, &(-5i64).to_le_bytes()), [-5.0]);
        assert_eq!(read(Dtype::U64, &5u64.to_le_bytes()), [5.0]);
        assert_eq!(read(Dtype::U32, &5u32.to_le_bytes()), [5.0]);
        assert_eq!(read(Dtype::F64, &0.5f64.to_le_bytes()), [0.5]);
        assert_eq!(read(Dtype::F32, &0.25f32.to_le_bytes()), [0.25]);
        assert_eq!(read(Dtype::Bool, &[0, 1]), [0.0, 1.0]);
        assert_eq!(read(Dtype::U8, &[200]), [200.0]);
        for (name, dtype) in NAMES {
            assert_eq!(Dtype::parse(name), Some(*dtype));
            assert_eq!(dtype.name(), *name);
        }
    }
}
