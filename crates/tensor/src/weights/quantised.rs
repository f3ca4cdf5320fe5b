//! Quantised layers of a file as one tensor each: codes and scales, which files keep apart, come together as rows. GPUs put them together themselves.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;

use super::markers::{self, Marker};
use super::{WeightError, WeightFile, WeightInfo};
use crate::dtype::Dtype;
use crate::error::TensorError;
use crate::formats::{
    AffineKind, GridKind, Levels, RowFormat, RowKind, ScaleNumber, USUAL_LEVELS, swizzle,
};
use crate::row_parts::{Number, Order, RowPart, write_parts};
use crate::stored::Stored;
use crate::unread::Unread;

/// What a layer of a known format may have beside its weight. Not among the names of the file.
const PARTS: [&str; 10] = [
    "weight_scale",
    "weight_scale_2",
    "input_scale",
    "scale_weight",
    "scale_input",
    "weight_s_rel",
    "weight_s_channel",
    "weight_codebook",
    "weight_correction",
    "weight_zeros",
];

/// Columns that are rotated together where nothing is said.
const USUAL_ROTATION: usize = 256;

/// A file with its quantised layers put together.
pub struct Quantised {
    file: Arc<dyn WeightFile>,
    names: Vec<String>,
    /// By the name of the weight.
    layers: BTreeMap<String, QuantisedLayer>,
}

/// How a weight is put together.
#[derive(Debug, Clone)]
enum Reading {
    Rows(RowFormat),
    /// Plain numbers that are multiplied with one.
    Times,
}

/// One quantised layer.
#[derive(Debug, Clone)]
struct QuantisedLayer {
    /// The weight's name without `.weight`.
    name: String,
    reading: Reading,
    dtype: Dtype,
    shape: Vec<usize>,
    /// Matrices of experts, one after the other; else one.
    experts: usize,
    /// Rows of each matrix.
    rows: usize,
    /// Rows that the file has of each.
    stored_rows: usize,
}

/// A file whose quantised layers are one tensor each; the same file where it has none.
pub fn with_formats(file: Arc<dyn WeightFile>) -> Result<Arc<dyn WeightFile>, WeightError> {
    let all = file.names();
    let found = markers::read(&*file, &all)?;
    if found.layers.is_empty() && found.names.is_empty() {
        return Ok(file);
    }
    let mut layers = BTreeMap::new();
    let mut hidden = found.names;
    for (name, marker) in &found.layers {
        hidden.extend(PARTS.iter().map(|part| format!("{name}.{part}")));
        let parts = LayerParts { file: &*file, name };
        if let Some(layer) = parts.layer(marker)? {
            layers.insert(format!("{name}.weight"), layer);
        }
    }
    hidden.sort_unstable();
    let mut names = all;
    names.retain(|name| hidden.binary_search(name).is_err());
    Ok(Arc::new(Quantised {
        file,
        names,
        layers,
    }))
}

/// A file whose plain matrices of E4M3 are layers with a scale of one for each row: a card that multiplies fp8 rounds their inputs too.
pub fn with_fp8_products(file: Arc<dyn WeightFile>) -> Arc<dyn WeightFile> {
    let names = file.names();
    let mut layers = BTreeMap::new();
    for name in &names {
        let (Some(layer), Some(info)) = (name.strip_suffix(".weight"), file.info(name)) else {
            continue;
        };
        let (Dtype::F8E4M3, &[rows, columns]) = (info.dtype, info.shape.as_slice()) else {
            continue;
        };
        let parts = LayerParts {
            file: &*file,
            name: layer,
        };
        // A scale that no marker speaks of does not count, and must not here.
        if rows == 0 || parts.info(parts.scale()).is_some() {
            continue;
        }
        if let Some(format) = RowFormat::new(RowKind::F8E4M3, columns, 0) {
            let layer = QuantisedLayer {
                name: layer.to_owned(),
                reading: Reading::Rows(format),
                dtype: Dtype::Rows(format),
                shape: info.shape,
                experts: 1,
                rows,
                stored_rows: rows,
            };
            layers.insert(name.clone(), layer);
        }
    }
    if layers.is_empty() {
        return file;
    }
    Arc::new(Quantised {
        file,
        names,
        layers,
    })
}

impl WeightFile for Quantised {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        match self.layers.get(name) {
            Some(layer) => Some(WeightInfo {
                dtype: layer.dtype,
                shape: layer.shape.clone(),
            }),
            None => self.file.info(name),
        }
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        let Some(layer) = self.layers.get(name) else {
            return self.file.read(name);
        };
        let parts = LayerParts {
            file: &*self.file,
            name: &layer.name,
        };
        match layer.reading {
            Reading::Rows(format) => parts.rows(layer, format),
            Reading::Times => parts.times(layer),
        }
    }

    fn later(&self, name: &str) -> Option<Stored> {
        let Some(layer) = self.layers.get(name) else {
            return self.file.later(name);
        };
        match layer.reading {
            Reading::Rows(format) => layer.later(&self.file, format),
            // Read to be multiplied.
            Reading::Times => None,
        }
    }

    fn metadata(&self) -> &[(String, String)] {
        self.file.metadata()
    }
}

impl QuantisedLayer {
    /// The rows of the weight, left in the file: what stands behind their codes is found when it is wanted.
    fn later(&self, file: &Arc<dyn WeightFile>, format: RowFormat) -> Option<Stored> {
        let weight = file.later(&format!("{}.weight", self.name))?;
        let mut codes = weight.in_file()?.clone();
        if self.rows != self.stored_rows {
            // Rows that fill up blocks stand behind those of each expert.
            let (all, each) = (self.experts * self.stored_rows, self.stored_rows);
            let used = (0..self.experts).map(|expert| codes.rows(all, expert * each, self.rows));
            let used: Vec<Unread> = used.collect::<Option<_>>()?;
            codes = Unread::joined(&used.iter().collect::<Vec<_>>())?;
        }
        let code_bytes = format.code_bytes();
        let end = format.row_bytes() - code_bytes;
        let rows = self.experts * self.rows;
        let (layer, file) = (self.clone(), Arc::clone(file));
        let find = move || layer.parts(&*file, format);
        let unread = codes.rows_with_ends((rows, code_bytes, end), Arc::new(find))?;
        Stored::later(self.dtype, self.shape.as_slice(), unread).ok()
    }

    /// What belongs to the rows, left in the file.
    fn parts(&self, file: &dyn WeightFile, format: RowFormat) -> Result<Vec<RowPart>, TensorError> {
        let name = &self.name;
        let parts = LayerParts { file, name }.row_parts(self, format);
        parts.map_err(|error| TensorError::invalid("read", error.to_string()))
    }
}

/// Sizes of a weight as the file has it.
#[derive(Clone, Copy)]
struct CodeSize {
    experts: usize,
    rows: usize,
    /// Values of the stored tensor in a row.
    width: usize,
}

/// The tensors of one layer.
struct LayerParts<'a> {
    file: &'a dyn WeightFile,
    name: &'a str,
}

impl LayerParts<'_> {
    fn tensor(&self, part: &str) -> String {
        format!("{}.{part}", self.name)
    }

    fn info(&self, part: &str) -> Option<WeightInfo> {
        self.file.info(&self.tensor(part))
    }

    fn count(&self, part: &str) -> Option<usize> {
        Some(self.info(part)?.shape.iter().product())
    }

    fn bad(&self, part: &str, reason: impl Into<String>) -> WeightError {
        WeightError::Quantised {
            path: self.file.path().to_path_buf(),
            name: self.tensor(part),
            reason: reason.into(),
        }
    }

    /// The name of the scale of all rows.
    fn scale(&self) -> &'static str {
        if self.info("weight_scale").is_none() && self.info("scale_weight").is_some() {
            "scale_weight"
        } else {
            "weight_scale"
        }
    }

    /// What the marker makes of the layer; none where it has no weight.
    fn layer(&self, marker: &Marker) -> Result<Option<QuantisedLayer>, WeightError> {
        let Some(info) = self.info("weight") else {
            return Ok(None);
        };
        let (size, wide) = match *info.shape.as_slice() {
            [experts, rows, width] if marker.experts => (
                CodeSize {
                    experts,
                    rows,
                    width,
                },
                true,
            ),
            [rows, ref rest @ ..] if !rest.is_empty() => (
                CodeSize {
                    experts: 1,
                    rows,
                    width: rest.iter().product(),
                },
                false,
            ),
            _ => return Err(self.bad("weight", "a quantised weight needs rows and columns")),
        };
        if size.experts * size.rows * size.width == 0 {
            return Err(self.bad("weight", "it is empty"));
        }
        let plain = matches!(info.dtype, Dtype::F16 | Dtype::Bf16 | Dtype::F32);
        if plain && marker.format.is_none() {
            return Ok(Some(self.plain_layer(size, info)?));
        }
        let (kind, rotation) = self.kind(marker, size, info.dtype)?;
        let (rows, columns) = self.logical(marker, kind, size);
        let format = RowFormat::new(kind, columns, rotation)
            .ok_or_else(|| {
                let reason = if rotation > 0 && !columns.is_multiple_of(rotation) {
                    format!("{columns} columns cannot be rotated in groups of {rotation}")
                } else {
                    format!("{columns} columns cannot have the format {kind:?}")
                };
                self.bad("weight", reason)
            })?
            .exact(marker.exact);
        if info.dtype.bytes_for(size.width) != Some(format.code_bytes()) {
            let reason = format!("rows of {} are no {}", size.width, format.name());
            return Err(self.bad("weight", reason));
        }
        self.check(format, size, rows)?;
        let shape = match (wide, kind) {
            (true, _) => vec![size.experts, rows, columns],
            // Kernels of convolutions keep their shape.
            (false, RowKind::F8E4M3 | RowKind::F8E5M2 | RowKind::Int8) => info.shape,
            (false, _) => vec![rows, columns],
        };
        Ok(Some(QuantisedLayer {
            name: self.name.to_owned(),
            reading: Reading::Rows(format),
            dtype: Dtype::Rows(format),
            shape,
            experts: size.experts,
            rows,
            stored_rows: size.rows,
        }))
    }

    /// A weight that was left as it is, with a scale all the same.
    fn plain_layer(&self, size: CodeSize, info: WeightInfo) -> Result<QuantisedLayer, WeightError> {
        if self.count(self.scale()) != Some(1) {
            return Err(self.bad(self.scale(), "a plain weight has one number for a scale"));
        }
        Ok(QuantisedLayer {
            name: self.name.to_owned(),
            reading: Reading::Times,
            dtype: info.dtype,
            shape: info.shape,
            experts: 1,
            rows: size.rows,
            stored_rows: size.rows,
        })
    }

    /// The format's kind and its rotation.
    fn kind(
        &self,
        marker: &Marker,
        size: CodeSize,
        dtype: Dtype,
    ) -> Result<(RowKind, usize), WeightError> {
        let rotation = marker.rotation.unwrap_or(USUAL_ROTATION);
        if dtype.size() != 1 || dtype.is_block() {
            let reason = format!("a quantised weight cannot have the format {}", dtype.name());
            return Err(self.bad("weight", reason));
        }
        let Some(format) = &marker.format else {
            return match dtype {
                Dtype::F8E4M3 => Ok((RowKind::F8E4M3, 0)),
                Dtype::F8E5M2 => Ok((RowKind::F8E5M2, 0)),
                _ => Err(self.bad("weight", "the file does not say its format")),
            };
        };
        Ok(match format.as_str() {
            "float8_e4m3fn" | "float8_e4m3fn_rowwise" => (RowKind::F8E4M3, 0),
            "float8_e5m2" => (RowKind::F8E5M2, 0),
            "int8_tensorwise" if marker.rotated => (RowKind::Int8, rotation),
            "int8_tensorwise" => (RowKind::Int8, 0),
            "nvfp4" => (RowKind::Nvfp4, 0),
            "mxfp8" => (RowKind::Mxfp8, 0),
            "convrot_w4a4" => {
                let wide_input = marker.wide_input;
                (RowKind::Int4 { wide_input }, rotation)
            }
            "asym_w4a8_int8" => (RowKind::Grid(self.grid(marker, size)?), rotation),
            "awq_w4a16" => (RowKind::Affine(self.affine(marker)?), 0),
            other => {
                return Err(self.bad("weight", format!("the format {other:?} is not known")));
            }
        })
    }

    fn group(&self, marker: &Marker, usual: usize) -> Result<u16, WeightError> {
        let group = marker.group.unwrap_or(usual);
        let group = u16::try_from(group).ok().filter(|group| *group > 0);
        group.ok_or_else(|| self.bad("weight", "its groups have an impossible size"))
    }

    fn grid(&self, marker: &Marker, size: CodeSize) -> Result<GridKind, WeightError> {
        let group = self.group(marker, 16)?;
        let scales = self
            .info("weight_s_rel")
            .ok_or_else(|| self.bad("weight_s_rel", "the scales of its groups are missing"))?;
        let groups = scales.shape.last().copied().unwrap_or(0);
        let columns = groups.saturating_mul(group.into());
        let bits = (size.width.saturating_mul(8))
            .checked_div(columns)
            .unwrap_or(0);
        if !matches!(bits, 4 | 6) || bits * columns != size.width * 8 {
            let reason = format!(
                "rows of {} bytes are neither four nor six bits for {columns} columns",
                size.width
            );
            return Err(self.bad("weight", reason));
        }
        let levels = match self.count("weight_codebook") {
            None => Levels::Even,
            Some(16) if bits == 4 => {
                let table = self.file.read(&self.tensor("weight_codebook"))?;
                if table.dtype().to_f32(table.bytes()) == USUAL_LEVELS {
                    Levels::Usual
                } else {
                    Levels::Own
                }
            }
            Some(count) => {
                let reason = format!("a table of {count} levels cannot be used");
                return Err(self.bad("weight_codebook", reason));
            }
        };
        Ok(GridKind {
            bits: bits as u8,
            group,
            wide_scales: match scales.dtype {
                Dtype::F32 => true,
                Dtype::F8E4M3 | Dtype::U8 => false,
                other => {
                    let reason =
                        format!("scales of groups cannot have the format {}", other.name());
                    return Err(self.bad("weight_s_rel", reason));
                }
            },
            levels,
            corrected: self.info("weight_correction").is_some(),
        })
    }

    fn affine(&self, marker: &Marker) -> Result<AffineKind, WeightError> {
        let scales = self.info("weight_scale").map(|info| info.dtype);
        Ok(AffineKind {
            group: self.group(marker, 64)?,
            scale: match scales {
                Some(Dtype::F16) => ScaleNumber::F16,
                Some(Dtype::Bf16) => ScaleNumber::Bf16,
                Some(Dtype::F32) => ScaleNumber::F32,
                _ => return Err(self.bad("weight_scale", "it is missing or no float")),
            },
        })
    }

    /// Rows and columns without what was filled up to whole blocks, as far as the file tells.
    fn logical(&self, marker: &Marker, kind: RowKind, size: CodeSize) -> (usize, usize) {
        let CodeSize { rows, width, .. } = size;
        let (columns, whole) = match kind {
            RowKind::F8E4M3 | RowKind::F8E5M2 | RowKind::Int8 => return (rows, width),
            RowKind::Int4 { .. } | RowKind::Affine(_) => return (rows, width * 2),
            RowKind::Grid(grid) => return (rows, width * 8 / usize::from(grid.bits)),
            RowKind::Nvfp4 => (width * 2, 16),
            RowKind::Mxfp8 => (width, 32),
        };
        let within = |size: usize, full: usize| {
            (size > 0 && size <= full && size.next_multiple_of(whole) == full).then_some(size)
        };
        let said = marker.shape.as_deref().unwrap_or_default();
        let said = match said {
            [.., n, k] => (Some(*n), Some(*k)),
            _ => (self.count("bias"), self.count("pre_quant_scale")),
        };
        (
            said.0.and_then(|n| within(n, rows)).unwrap_or(rows),
            said.1.and_then(|k| within(k, columns)).unwrap_or(columns),
        )
    }

    fn wants(&self, part: &str, counts: &[usize]) -> Result<(), WeightError> {
        match self.count(part) {
            None => Err(self.bad(part, "it is missing, and the weight needs it")),
            Some(count) if counts.contains(&count) => Ok(()),
            Some(count) => {
                let shape = self.info(part).map(|info| info.shape).unwrap_or_default();
                let counts: Vec<String> = counts.iter().map(usize::to_string).collect();
                let reason = format!(
                    "shape {shape:?} has {count} numbers, but the weight needs {}",
                    counts.join(" or ")
                );
                Err(self.bad(part, reason))
            }
        }
    }

    /// Whether all parts are there in the right sizes.
    fn check(&self, format: RowFormat, size: CodeSize, rows: usize) -> Result<(), WeightError> {
        let CodeSize { experts, .. } = size;
        let all = experts * rows;
        let per_row = [1, experts, all];
        let groups = format.groups();
        match format.kind() {
            RowKind::F8E4M3 | RowKind::F8E5M2 | RowKind::Int8 | RowKind::Int4 { .. } => {
                self.wants(self.scale(), &per_row)
            }
            RowKind::Nvfp4 => {
                self.wants("weight_scale_2", &[1, experts])?;
                self.check_blocks(experts, size.rows, groups)
            }
            RowKind::Mxfp8 => self.check_blocks(experts, size.rows, groups),
            RowKind::Grid(grid) => {
                self.wants("weight_s_rel", &[all * groups])?;
                self.wants("weight_s_channel", &[all])?;
                if grid.corrected {
                    self.wants("weight_correction", &[all * groups])?;
                }
                Ok(())
            }
            RowKind::Affine(_) => {
                self.wants("weight_scale", &[all * groups])?;
                self.wants("weight_zeros", &[all * groups])?;
                let zeros = self.info("weight_zeros").map(|info| info.dtype);
                if zeros != self.info("weight_scale").map(|info| info.dtype) {
                    return Err(self.bad("weight_zeros", "it has another format than the scales"));
                }
                Ok(())
            }
        }
    }

    fn check_blocks(
        &self,
        experts: usize,
        stored_rows: usize,
        groups: usize,
    ) -> Result<(), WeightError> {
        let (high, wide) = swizzle::stored_size(stored_rows, groups);
        self.wants("weight_scale", &[experts * high * wide])?;
        let dtype = self.info("weight_scale").map(|info| info.dtype);
        match dtype {
            Some(Dtype::U8 | Dtype::F8E4M3 | Dtype::F8E8M0) => Ok(()),
            _ => Err(self.bad("weight_scale", "scales of blocks must be bytes")),
        }
    }

    fn read(&self, part: &str) -> Result<Stored, WeightError> {
        self.file.read(&self.tensor(part))
    }

    /// The same with its bytes left in the file where they can be.
    fn later(&self, part: &str) -> Result<Stored, WeightError> {
        let later = self.file.later(&self.tensor(part));
        later.map_or_else(|| self.read(part), Ok)
    }

    /// A tensor of numbers that are f32 in rows.
    fn floats(&self, part: &str) -> Result<(Stored, Number), WeightError> {
        let stored = self.later(part)?;
        if let Some(number) = Number::as_float(stored.dtype()) {
            return Ok((stored, number));
        }
        let values = stored.to_f32().map_err(|e| self.unusable(e))?;
        Ok((Stored::from(&values), Number::Bytes(size_of::<f32>())))
    }

    fn numbers(&self, part: &str) -> Result<Vec<f32>, WeightError> {
        let stored = self.read(part)?;
        Ok(stored.dtype().to_f32(stored.bytes()))
    }

    fn unusable(&self, source: crate::TensorError) -> WeightError {
        WeightError::Tensor {
            path: self.file.path().to_path_buf(),
            name: self.tensor("weight"),
            source,
        }
    }

    /// The weight times its scale.
    fn times(&self, layer: &QuantisedLayer) -> Result<Stored, WeightError> {
        let weight = self.read("weight")?;
        let scale = self.numbers(self.scale())?.first().copied().unwrap_or(1.0);
        if scale == 1.0 {
            return Ok(weight);
        }
        let scaled = weight.to_f32().map(|t| t.mul_scalar(scale));
        let stored = scaled.and_then(|t| Stored::from_f32(&t, layer.dtype));
        stored.map_err(|e| self.unusable(e))
    }

    /// The rows of a weight with all that belongs to them.
    fn rows(&self, layer: &QuantisedLayer, format: RowFormat) -> Result<Stored, WeightError> {
        let weight = self.read("weight")?;
        let parts = self.row_parts(layer, format)?;
        let row_bytes = format.row_bytes();
        let bytes = layer.experts * layer.rows * row_bytes;
        let claim = crate::room::claim(bytes as u64).map_err(|e| self.unusable(e.into()))?;
        let mut all = vec![0; bytes];
        drop(claim);
        let code_bytes = format.code_bytes();
        all.par_chunks_mut(row_bytes)
            .enumerate()
            .for_each(|(row, to)| {
                let (expert, row) = (row / layer.rows, row % layer.rows);
                let stored = expert * layer.stored_rows + row;
                let codes = &weight.bytes()[stored * code_bytes..][..code_bytes];
                to[..code_bytes].copy_from_slice(codes);
            });
        write_parts(&parts, row_bytes, &mut all).map_err(|e| self.unusable(e))?;
        let dtype = Dtype::Rows(format);
        Stored::new(dtype, layer.shape.clone(), all).map_err(|e| self.unusable(e))
    }

    /// What belongs to the rows of a weight behind their codes.
    fn row_parts(
        &self,
        layer: &QuantisedLayer,
        format: RowFormat,
    ) -> Result<Vec<RowPart>, WeightError> {
        let (groups, each) = (format.groups(), layer.rows);
        let mut place = format.code_bytes();
        let mut parts = Vec::new();
        let mut add = |(values, number): (Stored, Number), order, count| {
            parts.push(RowPart {
                values,
                number,
                order,
                place,
                count,
                each,
                first: 0,
            });
            place += count * number.bytes_in_row();
        };
        // The scales of rows come last.
        let own = match format.kind() {
            // Plain numbers: see `with_fp8_products`.
            RowKind::F8E4M3 if self.info(self.scale()).is_none() => {
                let one = Stored::new(Dtype::F32, [1], 1_f32.to_le_bytes().to_vec());
                let one = one.map_err(|e| self.unusable(e))?;
                add((one, Number::Bytes(size_of::<f32>())), Order::OfAll, 1);
                None
            }
            RowKind::F8E4M3 | RowKind::F8E5M2 | RowKind::Int8 | RowKind::Int4 { .. } => {
                Some(self.scale())
            }
            RowKind::Nvfp4 | RowKind::Mxfp8 => {
                let rows = layer.stored_rows;
                let scales = (self.later("weight_scale")?, Number::Bytes(1));
                add(scales, Order::Tiles { rows }, groups);
                (format.kind() == RowKind::Nvfp4).then_some("weight_scale_2")
            }
            RowKind::Grid(grid) => {
                let number = Number::Bytes(grid.scale_bytes());
                add((self.later("weight_s_rel")?, number), Order::ByRow, groups);
                if grid.corrected {
                    // In whatever format the file has it, it is added in f32.
                    add(self.floats("weight_correction")?, Order::ByValue, groups);
                }
                if grid.levels == Levels::Own {
                    add(self.floats("weight_codebook")?, Order::OfAll, 16);
                }
                Some("weight_s_channel")
            }
            RowKind::Affine(affine) => {
                for part in ["weight_scale", "weight_zeros"] {
                    let number = Number::Bytes(affine.scale.bytes());
                    add((self.later(part)?, number), Order::ByValue, groups);
                }
                None
            }
        };
        if let Some(part) = own {
            let (scales, number) = self.floats(part)?;
            let order = match scales.len() {
                1 => Order::OfAll,
                n if n == layer.experts * layer.rows => Order::ByRow,
                _ => Order::OfExpert,
            };
            add((scales, number), order, 1);
        }
        Ok(parts)
    }
}
