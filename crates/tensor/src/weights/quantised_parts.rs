//! A quantised weight as the tensors that files have in its place.

use serde_json::{Map, Value, json};

use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::formats::{Levels, RowFormat, RowKind, USUAL_LEVELS, swizzle};
use crate::stored::Stored;

/// Codes and scales, each as a tensor, and the marker that says what they are, by what follows the layer's name and a dot.
/// Only formats that are written here have them.
pub fn quantised_parts(weight: &Stored) -> Result<Vec<(&'static str, Stored)>> {
    let Dtype::Rows(format) = weight.dtype() else {
        return Err(TensorError::invalid("quantised", "the weight is plain"));
    };
    if !format.is_writable() || weight.shape().first().is_none_or(|rows| *rows == 0) {
        return Err(TensorError::invalid(
            "quantised",
            format!("{} is not written", format.name()),
        ));
    }
    let rows = Rows { format, weight };
    let mut parts = rows.parts()?;
    let marker = marker(format).to_string().into_bytes();
    let marker = Stored::new(Dtype::U8, [marker.len()], marker)?;
    parts.push(("comfy_quant", marker));
    Ok(parts)
}

/// What a file says about a layer.
fn marker(format: RowFormat) -> Value {
    let name = match format.kind() {
        RowKind::F8E4M3 => "float8_e4m3fn",
        RowKind::F8E5M2 => "float8_e5m2",
        RowKind::Int8 => "int8_tensorwise",
        RowKind::Int4 { .. } => "convrot_w4a4",
        RowKind::Nvfp4 => "nvfp4",
        RowKind::Mxfp8 => "mxfp8",
        RowKind::Grid(_) => "asym_w4a8_int8",
        RowKind::Affine(_) => "awq_w4a16",
    };
    let mut fields = Map::new();
    fields.insert("format".to_owned(), json!(name));
    if format.rotation() > 0 {
        fields.insert("convrot".to_owned(), json!(true));
        fields.insert("convrot_groupsize".to_owned(), json!(format.rotation()));
    }
    if let RowKind::Grid(grid) = format.kind() {
        fields.insert("group_size".to_owned(), json!(grid.group));
    }
    Value::Object(fields)
}

struct Rows<'a> {
    format: RowFormat,
    weight: &'a Stored,
}

impl Rows<'_> {
    fn each(&self) -> impl Iterator<Item = &[u8]> {
        self.weight.bytes().chunks_exact(self.format.row_bytes())
    }

    fn count(&self) -> usize {
        self.weight.bytes().len() / self.format.row_bytes()
    }

    /// A part of every row.
    fn gathered(&self, start: usize, bytes: usize) -> Result<Vec<u8>> {
        let all = self.count() * bytes;
        let _claim = crate::room::claim(all as u64)?;
        let mut gathered = Vec::with_capacity(all);
        for row in self.each() {
            gathered.extend_from_slice(&row[start..start + bytes]);
        }
        Ok(gathered)
    }

    fn codes(&self, dtype: Dtype, shape: &[usize]) -> Result<Stored> {
        Stored::new(dtype, shape, self.gathered(0, self.format.code_bytes())?)
    }

    /// The scale behind every row.
    fn scales(&self) -> Result<Vec<u8>> {
        self.gathered(self.format.row_bytes() - 4, 4)
    }

    /// Scales of groups in the order that files keep them in, filled up with zeros.
    fn swizzled(&self, dtype: Dtype) -> Result<Stored> {
        let (groups, start) = (self.format.groups(), self.format.code_bytes());
        let (high, wide) = swizzle::stored_size(self.count(), groups);
        let _claim = crate::room::claim((high * wide) as u64)?;
        let mut stored = vec![0; high * wide];
        for (row, bytes) in self.each().enumerate() {
            for (group, scale) in bytes[start..start + groups].iter().enumerate() {
                stored[swizzle::place(row, group, groups)] = *scale;
            }
        }
        Stored::new(dtype, [high, wide], stored)
    }

    fn parts(&self) -> Result<Vec<(&'static str, Stored)>> {
        let format = self.format;
        let (rows, shape) = (self.count(), self.weight.shape());
        let width = format.code_bytes();
        let first = |scales: Vec<u8>| Stored::new(Dtype::F32, [], scales[..4].to_vec());
        Ok(match format.kind() {
            RowKind::F8E4M3 => vec![
                ("weight", self.codes(Dtype::F8E4M3, shape)?),
                ("weight_scale", first(self.scales()?)?),
            ],
            RowKind::F8E5M2 => vec![
                ("weight", self.codes(Dtype::F8E5M2, shape)?),
                ("weight_scale", first(self.scales()?)?),
            ],
            RowKind::Int8 => vec![
                ("weight", self.codes(Dtype::I8, shape)?),
                (
                    "weight_scale",
                    Stored::new(Dtype::F32, [rows, 1], self.scales()?)?,
                ),
            ],
            RowKind::Int4 { .. } => vec![
                ("weight", self.codes(Dtype::I8, &[rows, width])?),
                (
                    "weight_scale",
                    Stored::new(Dtype::F32, [rows], self.scales()?)?,
                ),
            ],
            RowKind::Nvfp4 => {
                let high = rows.next_multiple_of(16);
                let mut codes = self.gathered(0, width)?;
                codes.resize(high * width, 0);
                vec![
                    ("weight", Stored::new(Dtype::U8, [high, width], codes)?),
                    ("weight_scale", self.swizzled(Dtype::F8E4M3)?),
                    ("weight_scale_2", first(self.scales()?)?),
                ]
            }
            RowKind::Mxfp8 => vec![
                ("weight", self.codes(Dtype::F8E4M3, &[rows, width])?),
                ("weight_scale", self.swizzled(Dtype::U8)?),
            ],
            RowKind::Grid(grid) => {
                let groups = format.groups();
                let bytes = groups * grid.scale_bytes();
                let number = if grid.wide_scales {
                    Dtype::F32
                } else {
                    Dtype::F8E4M3
                };
                let of_groups = self.gathered(width, bytes)?;
                let mut parts = vec![
                    ("weight", self.codes(Dtype::I8, &[rows, width])?),
                    (
                        "weight_s_rel",
                        Stored::new(number, [rows, groups], of_groups)?,
                    ),
                    (
                        "weight_s_channel",
                        Stored::new(Dtype::F32, [rows], self.scales()?)?,
                    ),
                ];
                if grid.levels == Levels::Usual {
                    let levels = USUAL_LEVELS.iter().flat_map(|l| l.to_le_bytes()).collect();
                    parts.push(("weight_codebook", Stored::new(Dtype::F32, [16], levels)?));
                }
                parts
            }
            RowKind::Affine(_) => Vec::new(),
        })
    }
}
