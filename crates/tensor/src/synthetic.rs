//! Reproducible test values made from a name: FNV-1a of the name seeds splitmix64, 24 bits become one exact f32.
//!
//! The golden files store no inputs; every test rebuilds them from these streams.

use rayon::prelude::*;

use crate::dtype::Dtype;
use crate::elements::element_count;
use crate::error::{Result, TensorError};
use crate::stored::Stored;
use crate::tensor::Tensor;

/// FNV-1a, 64 bits.
pub fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    })
}

/// Element `index` of the stream `seed`, in [-1, 1).
pub fn unit(seed: u64, index: usize) -> f32 {
    let step = (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut z = seed.wrapping_add(step);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    (z >> 40) as f32 * (1.0 / 8_388_608.0) - 1.0
}

/// A stream times a scale: the inputs of network goldens.
pub fn value(name: &str, shape: &[usize], scale: f32) -> Result<Tensor> {
    let seed = fnv1a64(name.as_bytes());
    Tensor::from_fn(shape, |i| unit(seed, i) * scale)
}

/// Offset and scale of a synthetic weight; they follow from the rank and the last part of the key.
fn scheme(name: &str, shape: &[usize]) -> Result<(f32, f32)> {
    let last = name.rsplit('.').next().unwrap_or(name);
    Ok(match shape {
        [] => (1.0, 0.1),
        [_] if matches!(last, "weight" | "scale" | "gamma") => (1.0, 0.1),
        [_] => (0.0, 0.02),
        _ if last == "pos_embed" => (0.0, 0.5),
        [_, rest @ ..] => {
            let fan_in = element_count(rest)?;
            (0.0, (3.0 / fan_in as f64).sqrt() as f32)
        }
    })
}

/// A synthetic weight.
pub fn weight(name: &str, shape: &[usize]) -> Result<Tensor> {
    let (offset, scale) = scheme(name, shape)?;
    let stream = value(name, shape, scale)?;
    Ok(if offset == 0.0 {
        stream
    } else {
        stream.add_scalar(offset)
    })
}

/// A synthetic weight in the form of a file, made by all threads and never as a whole in f32.
pub fn stored(name: &str, shape: &[usize], dtype: Dtype) -> Result<Stored> {
    const CHUNK: usize = 1 << 15;
    let (offset, scale) = scheme(name, shape)?;
    let seed = fnv1a64(name.as_bytes());
    let count = element_count(shape)?;
    let size = dtype.size();
    if !dtype.is_float() || dtype.is_block() {
        let reason = format!("cannot make {} values", dtype.name());
        return Err(TensorError::invalid("synthetic", reason));
    }
    let _claim = crate::room::claim((count * size) as u64)?;
    let mut bytes = vec![0; count * size];
    bytes
        .par_chunks_mut(CHUNK * size)
        .enumerate()
        .for_each(|(chunk, out)| {
            let start = chunk * CHUNK;
            let values: Vec<f32> = (start..start + out.len() / size)
                .map(|i| {
                    let value = unit(seed, i) * scale;
                    if offset == 0.0 { value } else { value + offset }
                })
                .collect();
            let encoded = dtype.encode(&values);
            out.copy_from_slice(&encoded.expect("the format was checked"));
        });
    Stored::new(dtype, shape, bytes)
}

/// How the node goldens turn a stream into an input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mapping {
    /// (u + 1) / 2.
    Unit,
    /// u times the scale.
    Sym(f32),
    /// u times the scale, plus one half.
    Wide(f32),
    /// 1 where u is positive, else 0.
    Bin,
    /// Exact multiples of 1/255.
    Q8,
    /// Every element the same; no stream.
    Const(f32),
    /// Like `Unit`, but in squares of this side over dimensions 1 and 2.
    Blocks(usize),
}

impl Mapping {
    /// Reads the `map` and `scale` fields of a golden file.
    pub fn parse(map: &str, scale: Option<f32>) -> Result<Self> {
        let scale = scale.unwrap_or(1.0);
        Ok(match map {
            "unit" => Self::Unit,
            "sym" => Self::Sym(scale),
            "wide" => Self::Wide(scale),
            "bin" => Self::Bin,
            "q8" => Self::Q8,
            "const" => Self::Const(scale),
            other => match other.strip_prefix("blocks").map(str::parse) {
                Some(Ok(side)) if side > 0 => Self::Blocks(side),
                _ => {
                    return Err(TensorError::invalid(
                        "synthetic",
                        format!("unknown map {other:?}"),
                    ));
                }
            },
        })
    }
}

/// An input of a node golden.
pub fn input(name: &str, shape: &[usize], mapping: Mapping) -> Result<Tensor> {
    let seed = fnv1a64(name.as_bytes());
    let half = |i| f32::midpoint(unit(seed, i), 1.0);
    match mapping {
        Mapping::Unit => Tensor::from_fn(shape, half),
        Mapping::Sym(scale) => Tensor::from_fn(shape, |i| unit(seed, i) * scale),
        Mapping::Wide(scale) => Tensor::from_fn(shape, |i| unit(seed, i) * scale + 0.5),
        Mapping::Bin => Tensor::from_fn(shape, |i| f32::from(u8::from(unit(seed, i) > 0.0))),
        Mapping::Q8 => Tensor::from_fn(shape, |i| ((unit(seed, i) + 1.0) * 128.0).floor() / 255.0),
        Mapping::Const(scale) => Tensor::full(shape, scale),
        Mapping::Blocks(side) => {
            let (&[_, h, w], _) = shape
                .split_first_chunk::<3>()
                .ok_or_else(|| TensorError::rank("synthetic blocks", "3 or more", shape))?;
            let mut small = shape.to_vec();
            small[1] = h.div_ceil(side);
            small[2] = w.div_ceil(side);
            Tensor::from_fn(small, half)?
                .repeat_interleave(1, side)?
                .repeat_interleave(2, side)?
                .narrow(1, 0, h)?
                .narrow(2, 0, w)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_check_values() {
        assert_eq!(fnv1a64(b""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(fnv1a64(b"a"), 0xAF63_DC4C_8601_EC8C);
        assert_eq!(
            fnv1a64(b"model.diffusion_model.input_blocks.0.0.weight"),
            0x8C8A_B0AA_C9D4_9768
        );
        let a = weight("a.weight", &[4, 4]).unwrap();
        assert_eq!(
            a.data()[..4],
            [0.295_369_74, -0.469_092_3, 0.698_594_7, 0.826_672_5]
        );
        assert_eq!(
            weight("a.bias", &[4]).unwrap().data(),
            [
                0.010_215_425,
                0.010_527_694,
                0.000_976_669_7,
                -0.004_657_158_6
            ]
        );
        assert_eq!(
            weight("norm.weight", &[4]).unwrap().data(),
            [0.952_589_5, 0.905_382_93, 1.014_104_6, 0.963_466_47]
        );
    }

    #[test]
    fn stored_weights_are_the_same_values() {
        for (name, shape) in [
            ("a.weight", vec![3, 33333]),
            ("a.weight", vec![7]),
            ("x", vec![]),
        ] {
            let wanted = weight(name, &shape).unwrap();
            for dtype in [Dtype::F16, Dtype::F32] {
                let stored = stored(name, &shape, dtype).unwrap();
                assert_eq!(stored, Stored::from_f32(&wanted, dtype).unwrap());
            }
        }
        assert!(stored("a", &[32], Dtype::Q8_0).is_err());
        assert!(stored("a", &[32], Dtype::I64).is_err());
    }

    #[test]
    fn mappings() {
        let q = input("x", &[100], Mapping::Q8).unwrap();
        assert!(
            q.data()
                .iter()
                .all(|v| (v * 255.0).fract() == 0.0 && *v < 1.01)
        );
        let b = input("x", &[1, 5, 5, 2], Mapping::parse("blocks2", None).unwrap()).unwrap();
        assert_eq!(b.shape(), [1, 5, 5, 2]);
        assert_eq!(b.at(&[0, 0, 0, 1]), b.at(&[0, 1, 1, 1]));
        let small = input("x", &[1, 3, 3, 2], Mapping::Unit).unwrap();
        assert_eq!(b.at(&[0, 4, 2, 0]), small.at(&[0, 2, 1, 0]));
        assert!(Mapping::parse("blocks0", None).is_err());
        assert!(Mapping::parse("other", None).is_err());
    }
}
