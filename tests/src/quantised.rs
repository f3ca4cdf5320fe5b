//! Files of quantised networks whose weights are a hole, in every way in which files keep codes and scales.

use std::{fs::File, io::Write, path::Path};

use anyhow::Result;
use serde_json::{Value, json};

use crate::tiny::{self, Format, Keys};

const I8: Format = ("I8", 1);
const U8: Format = ("U8", 1);

/// A way to keep a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Int8,
    /// `convrot_w4a4`
    Int4,
    Nvfp4,
    Mxfp8,
    /// `asym_w4a8_int8` with scales of groups in fp8
    Grid,
    /// The same in six bits, with scales in f32 and numbers that are added to groups.
    CorrectedGrid,
    /// `awq_w4a16`
    Affine,
}

impl Kind {
    /// What a file says of a layer.
    fn marker(self) -> Value {
        match self {
            Self::Int8 => json!({"format": "int8_tensorwise"}),
            Self::Int4 => json!({"format": "convrot_w4a4", "convrot": true}),
            Self::Nvfp4 => json!({"format": "nvfp4"}),
            Self::Mxfp8 => json!({"format": "mxfp8"}),
            Self::Grid | Self::CorrectedGrid => {
                json!({"format": "asym_w4a8_int8", "convrot": true, "group_size": 16})
            }
            Self::Affine => json!({"format": "awq_w4a16", "group_size": 64}),
        }
    }

    /// The tensors of a matrix.
    fn tensors(self, rows: usize, columns: usize) -> Vec<(&'static str, Vec<usize>, Format)> {
        let tiles = |groups: usize| vec![rows.next_multiple_of(128), groups.next_multiple_of(4)];
        let weight = |format, width| ("weight", vec![rows, width], format);
        let channel = ("weight_s_channel", vec![rows], tiny::F32);
        match self {
            Self::Int8 => vec![
                weight(I8, columns),
                ("weight_scale", vec![rows, 1], tiny::F32),
            ],
            Self::Int4 => vec![
                weight(I8, columns / 2),
                ("weight_scale", vec![rows], tiny::F32),
            ],
            Self::Nvfp4 => vec![
                weight(U8, columns / 2),
                ("weight_scale", tiles(columns / 16), tiny::F8),
                ("weight_scale_2", Vec::new(), tiny::F32),
            ],
            Self::Mxfp8 => vec![
                weight(tiny::F8, columns),
                ("weight_scale", tiles(columns / 32), U8),
            ],
            Self::Grid => vec![
                weight(I8, columns / 2),
                ("weight_s_rel", vec![rows, columns / 16], tiny::F8),
                channel,
            ],
            Self::CorrectedGrid => vec![
                weight(I8, columns / 4 * 3),
                ("weight_s_rel", vec![rows, columns / 16], tiny::F32),
                ("weight_correction", vec![columns / 16, rows], tiny::F16),
                channel,
            ],
            Self::Affine => vec![
                weight(I8, columns / 2),
                ("weight_scale", vec![columns / 64, rows], tiny::BF16),
                ("weight_zeros", vec![columns / 64, rows], tiny::BF16),
            ],
        }
    }
}

/// Writes a safetensors file of these shapes in bf16, with the matrices of blocks in some kind.
pub fn write_hollow(path: &Path, keys: &Keys, kind: Kind) -> Result<()> {
    let (mut all, mut formats) = (Keys::new(), std::collections::BTreeMap::new());
    let mut layers = serde_json::Map::new();
    for (key, shape) in keys {
        match (is_matrix(key, shape), &shape[..]) {
            (Some(layer), &[rows, columns]) => {
                layers.insert(layer.to_owned(), kind.marker());
                for (part, shape, format) in kind.tensors(rows, columns) {
                    let name = format!("{layer}.{part}");
                    all.insert(name.clone(), shape);
                    formats.insert(name, format);
                }
            }
            _ => {
                all.insert(key.clone(), shape.clone());
            }
        }
    }
    let about = json!({"format_version": "1.0", "layers": layers}).to_string();
    let metadata = [("_quantization_metadata", about)];
    let format = |key: &str| formats.get(key).copied().unwrap_or(tiny::BF16);
    tiny::write_hollow_with(path, &all, format, &metadata)
}

/// The layer of a matrix that files quantise.
fn is_matrix<'a>(key: &'a str, shape: &[usize]) -> Option<&'a str> {
    let layer = key.strip_suffix(".weight")?;
    (key.contains("blocks.") && shape.len() == 2).then_some(layer)
}

/// Writes a GGUF of these shapes in f32, with the matrices of blocks in blocks of so many elements and bytes, by the number of their type.
pub fn write_hollow_gguf(
    path: &Path,
    keys: &Keys,
    (number, elements, bytes): (u32, usize, usize),
) -> Result<()> {
    const ALIGNMENT: usize = 32;
    const TEXT: u32 = 8;
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let mut out = b"GGUF".to_vec();
    out.extend(3_u32.to_le_bytes());
    out.extend((keys.len() as u64).to_le_bytes());
    out.extend(1_u64.to_le_bytes());
    text(&mut out, "general.architecture");
    out.extend(TEXT.to_le_bytes());
    text(&mut out, "flux");
    let mut at = 0;
    for (key, shape) in keys {
        let count: usize = shape.iter().product();
        let (number, size) = match is_matrix(key, shape) {
            Some(_) => (number, count / elements * bytes),
            None => (0, 4 * count),
        };
        text(&mut out, key);
        out.extend((shape.len() as u32).to_le_bytes());
        for size in shape.iter().rev() {
            out.extend((*size as u64).to_le_bytes());
        }
        out.extend(number.to_le_bytes());
        out.extend((at as u64).to_le_bytes());
        at += size.next_multiple_of(ALIGNMENT);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    let mut file = File::create(path)?;
    file.write_all(&out)?;
    file.set_len((out.len() + at) as u64)?;
    Ok(())
}
