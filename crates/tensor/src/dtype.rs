//! Number formats of stored tensors.

use rayon::prelude::*;

use crate::convert;
use crate::formats::{Rounding, RowFormat, row_encoder};
use crate::weights::{block_encode, blocks, iq};

/// A number format. Ordered as safetensors orders them when it lays out a file: by size, then as listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dtype {
    Bool,
    U8,
    I8,
    F8E5M2,
    F8E4M3,
    /// A power of two, as scales of blocks are.
    F8E8M0,
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
    /// GGUF: 32 signed bytes with one scale.
    Q8_0,
    /// GGUF: 32 numbers of 4 bits with one scale.
    Q4_0,
    /// GGUF: 32 numbers of 5 bits with one scale.
    Q5_0,
    /// GGUF: 8 groups of 32 numbers of 4 bits, each group with a scale and a minimum.
    Q4K,
    /// GGUF: like `Q4K` with 5 bits.
    Q5K,
    /// GGUF: 16 groups of 16 numbers of 6 bits, each group with a scale.
    Q6K,
    /// GGUF: like `Q4_0` with a minimum.
    Q4_1,
    /// GGUF: like `Q5_0` with a minimum.
    Q5_1,
    /// GGUF: 16 groups of 16 numbers of 2 bits, each group with a scale and a minimum.
    Q2K,
    /// GGUF: 16 groups of 16 numbers of 3 bits, each group with a scale.
    Q3K,
    /// GGUF: 256 signed bytes with one scale and sums.
    Q8K,
    /// GGUF: numbers from grids.
    Iq1S,
    Iq1M,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq3Xxs,
    Iq3S,
    /// GGUF: four bits that are denser near zero.
    Iq4Nl,
    Iq4Xs,
    /// GGUF: numbers of three values.
    Tq1_0,
    Tq2_0,
    /// GGUF: four-bit floats with a power of two, or with scales in E4M3.
    Mxfp4,
    GgmlNvfp4,
    /// Quantised rows with all that belongs to them. A block is a row.
    Rows(RowFormat),
}

/// The formats of safetensors files, by their names in the header.
const PLAIN: &[(&str, Dtype)] = &[
    ("BOOL", Dtype::Bool),
    ("U8", Dtype::U8),
    ("I8", Dtype::I8),
    ("F8_E5M2", Dtype::F8E5M2),
    ("F8_E4M3", Dtype::F8E4M3),
    ("F8_E8M0", Dtype::F8E8M0),
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

/// The formats that only GGUF files have.
const BLOCKS: &[(&str, Dtype)] = &[
    ("Q8_0", Dtype::Q8_0),
    ("Q4_0", Dtype::Q4_0),
    ("Q5_0", Dtype::Q5_0),
    ("Q4_K", Dtype::Q4K),
    ("Q5_K", Dtype::Q5K),
    ("Q6_K", Dtype::Q6K),
    ("Q4_1", Dtype::Q4_1),
    ("Q5_1", Dtype::Q5_1),
    ("Q2_K", Dtype::Q2K),
    ("Q3_K", Dtype::Q3K),
    ("Q8_K", Dtype::Q8K),
    ("IQ1_S", Dtype::Iq1S),
    ("IQ1_M", Dtype::Iq1M),
    ("IQ2_XXS", Dtype::Iq2Xxs),
    ("IQ2_XS", Dtype::Iq2Xs),
    ("IQ2_S", Dtype::Iq2S),
    ("IQ3_XXS", Dtype::Iq3Xxs),
    ("IQ3_S", Dtype::Iq3S),
    ("IQ4_NL", Dtype::Iq4Nl),
    ("IQ4_XS", Dtype::Iq4Xs),
    ("TQ1_0", Dtype::Tq1_0),
    ("TQ2_0", Dtype::Tq2_0),
    ("MXFP4", Dtype::Mxfp4),
    ("NVFP4", Dtype::GgmlNvfp4),
];

/// Elements that one task converts: small enough for the caches, large enough to be worth handing over.
const CHUNK: usize = 1 << 16;

impl Dtype {
    /// A format of safetensors files by its name there.
    pub fn parse(name: &str) -> Option<Self> {
        PLAIN.iter().find(|(n, _)| *n == name).map(|&(_, d)| d)
    }

    pub fn name(self) -> &'static str {
        if let Self::Rows(format) = self {
            return format.name();
        }
        PLAIN
            .iter()
            .chain(BLOCKS)
            .find(|&&(_, d)| d == self)
            .map_or("", |(n, _)| n)
    }

    /// A block format of GGUF files by its name there.
    pub fn parse_block(name: &str) -> Option<Self> {
        BLOCKS.iter().find(|(n, _)| *n == name).map(|&(_, d)| d)
    }

    /// Elements and bytes of the smallest piece that can be read alone: one element, except for GGUF blocks and rows.
    pub fn block(self) -> (usize, usize) {
        match self {
            Self::Bool | Self::U8 | Self::I8 | Self::F8E5M2 | Self::F8E4M3 | Self::F8E8M0 => (1, 1),
            Self::I16 | Self::U16 | Self::F16 | Self::Bf16 => (1, 2),
            Self::I32 | Self::U32 | Self::F32 => (1, 4),
            Self::F64 | Self::I64 | Self::U64 => (1, 8),
            Self::Q8_0 => (32, 34),
            Self::Q4_0 | Self::Iq4Nl => (32, 18),
            Self::Q5_0 => (32, 22),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
            Self::Q4_1 => (32, 20),
            Self::Q5_1 => (32, 24),
            Self::Q2K => (256, 84),
            Self::Q3K | Self::Iq3S => (256, 110),
            Self::Q8K => (256, 292),
            Self::Iq1S => (256, 50),
            Self::Iq1M => (256, 56),
            Self::Iq2Xxs | Self::Tq2_0 => (256, 66),
            Self::Iq2Xs => (256, 74),
            Self::Iq2S => (256, 82),
            Self::Iq3Xxs => (256, 98),
            Self::Iq4Xs => (256, 136),
            Self::Tq1_0 => (256, 54),
            Self::Mxfp4 => (32, 17),
            Self::GgmlNvfp4 => (64, 36),
            Self::Rows(format) => (format.columns(), format.row_bytes()),
        }
    }

    /// Bytes of one element; of a GGUF format, bytes of one block.
    pub fn size(self) -> usize {
        self.block().1
    }

    pub fn is_block(self) -> bool {
        matches!(self, Self::Rows(_)) || self.block().0 > 1
    }

    /// Whether values have fractions, so that patches and casts make sense.
    pub fn is_float(self) -> bool {
        match self {
            Self::F8E5M2
            | Self::F8E4M3
            | Self::F8E8M0
            | Self::F16
            | Self::Bf16
            | Self::F32
            | Self::F64 => true,
            _ => self.is_block(),
        }
    }

    /// Bytes of so many elements; none if they fill no whole number of blocks or are too many to count.
    pub fn bytes_for(self, elements: usize) -> Option<usize> {
        let (per_block, size) = self.block();
        elements
            .is_multiple_of(per_block)
            .then_some(elements / per_block)?
            .checked_mul(size)
    }

    /// Little-endian bytes as f32 values; bytes that fill no element are left out.
    pub fn to_f32(self, bytes: &[u8]) -> Vec<f32> {
        let (per_block, size) = self.block();
        let mut out = vec![0.0; bytes.len() / size * per_block];
        self.to_f32_into(bytes, &mut out);
        out
    }

    /// Writes as many values as both sides have. Runs on all threads when there are many.
    pub fn to_f32_into(self, bytes: &[u8], out: &mut [f32]) {
        if out.len() <= CHUNK {
            return self.decode(bytes, out);
        }
        let (per_block, size) = self.block();
        let blocks = (CHUNK / per_block).max(1);
        out.par_chunks_mut(blocks * per_block)
            .zip(bytes.par_chunks(blocks * size))
            .for_each(|(out, bytes)| self.decode(bytes, out));
    }

    /// [`Self::to_f32_into`] on this thread only.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        use convert::*;
        match self {
            Self::Bool => words(bytes, out, |[b]| f32::from(u8::from(b != 0))),
            Self::U8 => words(bytes, out, |[b]| f32::from(b)),
            Self::I8 => words(bytes, out, |[b]| f32::from(b as i8)),
            Self::F8E5M2 => words(bytes, out, |[b]| f8_e5m2_to_f32(b)),
            Self::F8E4M3 => words(bytes, out, |[b]| F8_E4M3[usize::from(b)]),
            Self::F8E8M0 => words(bytes, out, |[b]| f32::from_bits(u32::from(b) << 23)),
            Self::I16 => words(bytes, out, |b| f32::from(i16::from_le_bytes(b))),
            Self::U16 => words(bytes, out, |b| f32::from(u16::from_le_bytes(b))),
            Self::F16 => words(bytes, out, |b| f16_to_f32(u16::from_le_bytes(b))),
            Self::Bf16 => words(bytes, out, |b| bf16_to_f32(u16::from_le_bytes(b))),
            Self::I32 => words(bytes, out, |b| i32::from_le_bytes(b) as f32),
            Self::U32 => words(bytes, out, |b| u32::from_le_bytes(b) as f32),
            Self::F32 => words(bytes, out, f32::from_le_bytes),
            Self::F64 => words(bytes, out, |b| f64::from_le_bytes(b) as f32),
            Self::I64 => words(bytes, out, |b| i64::from_le_bytes(b) as f32),
            Self::U64 => words(bytes, out, |b| u64::from_le_bytes(b) as f32),
            Self::Q8_0 => blocks::each(bytes, out, blocks::q8_0),
            Self::Q4_0 => blocks::each(bytes, out, blocks::q4_0),
            Self::Q5_0 => blocks::each(bytes, out, blocks::q5_0),
            Self::Q4K => blocks::each(bytes, out, blocks::q4_k),
            Self::Q5K => blocks::each(bytes, out, blocks::q5_k),
            Self::Q6K => blocks::each(bytes, out, blocks::q6_k),
            Self::Q4_1 => blocks::each(bytes, out, blocks::q4_1),
            Self::Q5_1 => blocks::each(bytes, out, blocks::q5_1),
            Self::Q2K => blocks::each(bytes, out, blocks::q2_k),
            Self::Q3K => blocks::each(bytes, out, blocks::q3_k),
            Self::Q8K => blocks::each(bytes, out, blocks::q8_k),
            Self::Iq1S => blocks::each(bytes, out, iq::iq1_s),
            Self::Iq1M => blocks::each(bytes, out, iq::iq1_m),
            Self::Iq2Xxs => blocks::each(bytes, out, iq::iq2_xxs),
            Self::Iq2Xs => blocks::each(bytes, out, iq::iq2_xs),
            Self::Iq2S => blocks::each(bytes, out, iq::iq2_s),
            Self::Iq3Xxs => blocks::each(bytes, out, iq::iq3_xxs),
            Self::Iq3S => blocks::each(bytes, out, iq::iq3_s),
            Self::Iq4Nl => blocks::each(bytes, out, iq::iq4_nl),
            Self::Iq4Xs => blocks::each(bytes, out, iq::iq4_xs),
            Self::Tq1_0 => blocks::each(bytes, out, blocks::tq1_0),
            Self::Tq2_0 => blocks::each(bytes, out, blocks::tq2_0),
            Self::Mxfp4 => blocks::each(bytes, out, blocks::mxfp4),
            Self::GgmlNvfp4 => blocks::each(bytes, out, blocks::ggml_nvfp4),
            Self::Rows(format) => format.decode(bytes, out),
        }
    }

    /// Whether [`Self::encode`] can write it.
    pub fn is_writable(self) -> bool {
        match self {
            Self::F8E5M2 | Self::F8E4M3 | Self::F16 | Self::Bf16 | Self::F32 | Self::F64 => true,
            Self::Rows(format) => format.is_writable(),
            _ => block_encode::is_writable(self),
        }
    }

    /// Values as little-endian bytes of this format, rounded to the nearest (ties to even); none for formats that hold
    /// no fractions, for those that nothing here writes, and for values that do not fill whole blocks.
    ///
    /// What is too large becomes infinite, or NaN in `F8E4M3`, which has no infinities: what torch does.
    pub fn encode(self, values: &[f32]) -> Option<Vec<u8>> {
        if !self.is_writable() {
            return None;
        }
        if let Self::Rows(format) = self {
            return row_encoder(format, Rounding::Nearest, values);
        }
        if self.is_block() {
            return block_encode::encode(self, values);
        }
        let mut out = vec![0; values.len() * self.size()];
        if values.len() <= CHUNK {
            self.encode_into(values, &mut out);
        } else {
            out.par_chunks_mut(CHUNK * self.size())
                .zip(values.par_chunks(CHUNK))
                .for_each(|(out, values)| self.encode_into(values, out));
        }
        Some(out)
    }

    fn encode_into(self, values: &[f32], out: &mut [u8]) {
        use convert::*;
        match self {
            Self::F8E5M2 => to_words(values, out, |v| [f32_to_f8_e5m2(v)]),
            Self::F8E4M3 => to_words(values, out, |v| [f32_to_f8_e4m3(v)]),
            Self::F16 => to_words(values, out, |v| f32_to_f16(v).to_le_bytes()),
            Self::Bf16 => to_words(values, out, |v| f32_to_bf16(v).to_le_bytes()),
            Self::F32 => to_words(values, out, f32::to_le_bytes),
            Self::F64 => to_words(values, out, |v| f64::from(v).to_le_bytes()),
            _ => unreachable!("encode asks for floating-point formats only"),
        }
    }
}

fn words<const N: usize>(bytes: &[u8], out: &mut [f32], f: impl Fn([u8; N]) -> f32) {
    for (value, &word) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *value = f(word);
    }
}

fn to_words<const N: usize>(values: &[f32], out: &mut [u8], f: impl Fn(f32) -> [u8; N]) {
    for (word, &value) in out.as_chunks_mut::<N>().0.iter_mut().zip(values) {
        *word = f(value);
    }
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
        assert_eq!(
            read(Dtype::F16, &[0, 0x3C, 0]),
            [1.0],
            "half an element is left out"
        );
    }

    #[test]
    fn names_and_sizes() {
        for (name, dtype) in PLAIN {
            assert_eq!(Dtype::parse(name), Some(*dtype));
            assert_eq!(dtype.name(), *name);
            assert!(!dtype.is_block());
        }
        for (name, dtype) in BLOCKS {
            assert_eq!(Dtype::parse(name), None, "not a format of safetensors");
            assert_eq!(dtype.name(), *name);
            assert!(dtype.is_block() && dtype.is_float());
            let (elements, bytes) = dtype.block();
            assert_eq!(dtype.bytes_for(3 * elements), Some(3 * bytes));
            assert_eq!(dtype.bytes_for(elements + 1), None);
            let written = dtype.encode(&vec![0.0; elements]);
            assert_eq!(written.is_some(), dtype.is_writable());
            assert!(dtype.encode(&vec![0.0; elements + 1]).is_none());
        }
        assert_eq!(Dtype::F64.bytes_for(usize::MAX), None);
    }

    #[test]
    fn many_values_are_the_same_as_few() {
        let values: Vec<f32> = (0..CHUNK * 2 + 77)
            .map(|i| i as f32 * 0.37 - 900.0)
            .collect();
        for dtype in [
            Dtype::F8E5M2,
            Dtype::F16,
            Dtype::Bf16,
            Dtype::F32,
            Dtype::F64,
        ] {
            let bytes = dtype.encode(&values).unwrap();
            let mut one_by_one = Vec::new();
            for value in &values {
                one_by_one.extend(dtype.encode(&[*value]).unwrap());
            }
            assert!(bytes == one_by_one, "{dtype:?}");
            let back = dtype.to_f32(&bytes);
            assert_eq!(back.len(), values.len());
            let mut serial = vec![0.0; values.len()];
            dtype.decode(&bytes, &mut serial);
            assert!(back == serial, "{dtype:?}");
        }
        let bytes: Vec<u8> = (0..144 * 600).map(|i| (i % 57) as u8).collect();
        let mut serial = vec![0.0; 256 * 600];
        Dtype::Q4K.decode(&bytes, &mut serial);
        assert!(Dtype::Q4K.to_f32(&bytes) == serial);
    }
}
