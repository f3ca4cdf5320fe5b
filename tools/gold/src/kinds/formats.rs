//! Formats of weights: packed tensors, what they stand for, and products with them.
//!
//! A case is a packed weight with what stands beside it. Which format it has follows from the numbers of its tensors; how its
//! columns are rotated is not in the file, and is the rotation with which it comes nearest to the weight it was made from.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use fresco_models::WeightStore;
use fresco_tensor::formats::{Levels, RowFormat, RowKind, rotate, swizzle};
use fresco_tensor::nn::Embedding;
use fresco_tensor::weights::{InMemory, with_formats};
use fresco_tensor::{Device, Dtype, Stored, Tensor, WeightFile};
use serde_json::{Value, json};

use super::Kind;
use crate::golden::Golden;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[Kind::own(
    "weight formats",
    |golden| !cases(golden).is_empty(),
    run,
)];

/// What a layer may have beside its weight.
const PARTS: [&str; 8] = [
    "weight_scale",
    "weight_scale_2",
    "weight_s_rel",
    "weight_s_channel",
    "weight_codebook",
    "weight_correction",
    "weight_zeros",
    "pre_quant_scale",
];

/// The names of the cases, with the dot behind them.
fn cases(golden: &Golden) -> Vec<String> {
    let names = golden.tensors();
    let cases = names.iter().filter_map(|name| {
        let case = name.strip_suffix("weight")?;
        let beside = names.contains(&format!("{case}weight_scale"))
            || names.contains(&format!("{case}weight_s_rel"));
        let whole = case.is_empty() || case.ends_with('.');
        (whole && beside && names.iter().any(|n| n.starts_with("y."))).then(|| case.to_owned())
    });
    cases.collect()
}

/// One packed weight.
struct Case<'a> {
    golden: &'a Golden,
    name: String,
    format: RowFormat,
    weight: Stored,
    file: Arc<dyn WeightFile>,
}

impl<'a> Case<'a> {
    fn new(golden: &'a Golden, name: &str) -> Result<Self> {
        let plain = shared(golden, name, "w")?;
        let shape = plain.shape().to_vec();
        let mut best: Option<(f64, Self)> = None;
        for marker in markers(golden, name, &shape)? {
            let file = layer_file(golden, name, &marker, true)?;
            let weight = file.read("layer.weight")?;
            let Dtype::Rows(format) = weight.dtype() else {
                bail!("{name} is read as {:?}", weight.dtype());
            };
            let off = distance(&weight.to_f32()?, &plain);
            let found = Self {
                golden,
                name: name.to_owned(),
                format,
                weight,
                file,
            };
            if best.as_ref().is_none_or(|(least, _)| off < *least) {
                best = Some((off, found));
            }
        }
        let (_, case) = best.context("no format fits")?;
        Ok(case)
    }

    /// A tensor of the case's own, if there is one.
    fn own(&self, part: &str) -> Option<String> {
        let name = format!("{}{part}", self.name);
        self.golden.has(&name).then_some(name)
    }

    /// What its layer makes of an input.
    fn product(&self, x: &Tensor, device: &Device, whole: bool, scaled: bool) -> Result<Tensor> {
        let file = if scaled {
            Arc::clone(&self.file)
        } else {
            let marker = self.file.read("layer.comfy_quant")?;
            let marker = serde_json::from_slice(marker.bytes())?;
            layer_file(self.golden, &self.name, &marker, false)?
        };
        let mut store = WeightStore::open(file, "", device.clone());
        if whole {
            store = store.full_precision();
        }
        let layer = store.linear("layer")?;
        if !device.is_cpu() {
            store.move_unit("layer", device)?;
        }
        Ok(layer.forward(&x.to(device)?)?)
    }
}

/// A tensor of the case, or one that all cases share.
fn shared(golden: &Golden, case: &str, part: &str) -> Result<Tensor> {
    let own = format!("{case}{part}");
    golden.tensor(if golden.has(&own) { &own } else { part })
}

/// What the case's marker may have been.
fn markers(golden: &Golden, case: &str, shape: &[usize]) -> Result<Vec<Value>> {
    let weight = golden.stored(&format!("{case}weight"))?;
    let has = |part: &str| golden.has(&format!("{case}{part}"));
    let sizes = |part: &str| golden.stored(&format!("{case}{part}"));
    let (columns, width) = (shape[1], weight.shape()[1]);
    let rotations: Vec<usize> = (1..6)
        .map(|power| 4usize.pow(power))
        .filter(|group| columns.is_multiple_of(*group))
        .collect();
    let turned = |format: &str, group: Option<usize>| -> Vec<Value> {
        let all = rotations.iter().map(|rotation| {
            json!({"format": format, "convrot": true, "convrot_groupsize": rotation,
                "params": {"group_size": group}})
        });
        all.collect()
    };
    Ok(match weight.dtype() {
        Dtype::F8E4M3 if sizes("weight_scale")?.dtype() == Dtype::F32 => {
            vec![json!({"format": "float8_e4m3fn"})]
        }
        Dtype::F8E4M3 => vec![json!({"format": "mxfp8", "orig_shape": shape})],
        Dtype::F8E5M2 => vec![json!({"format": "float8_e5m2"})],
        Dtype::U8 => vec![json!({"format": "nvfp4", "orig_shape": shape})],
        Dtype::I8 if has("weight_s_rel") => {
            let groups = sizes("weight_s_rel")?.shape()[1];
            turned("asym_w4a8_int8", Some(columns / groups))
        }
        Dtype::I8 if has("weight_zeros") => {
            let groups = sizes("weight_scale")?.shape()[0];
            vec![json!({"format": "awq_w4a16", "group_size": columns / groups})]
        }
        Dtype::I8 if width < columns => turned("convrot_w4a4", None),
        Dtype::I8 => {
            let mut all = turned("int8_tensorwise", None);
            all.push(json!({"format": "int8_tensorwise"}));
            all
        }
        other => bail!("a weight of format {}", other.name()),
    })
}

/// The case as a file with one layer.
fn layer_file(
    golden: &Golden,
    case: &str,
    marker: &Value,
    scaled: bool,
) -> Result<Arc<dyn WeightFile>> {
    let mut tensors = BTreeMap::new();
    for part in ["weight"].iter().chain(&PARTS) {
        let name = format!("{case}{part}");
        if golden.has(&name) && (scaled || *part != "pre_quant_scale") {
            tensors.insert(format!("layer.{part}"), golden.stored(&name)?);
        }
    }
    let bias = shared(golden, case, "bias")?;
    tensors.insert("layer.bias".to_owned(), Stored::from(&bias));
    let text = marker.to_string().into_bytes();
    let text = Stored::new(Dtype::U8, [text.len()], text)?;
    tensors.insert("layer.comfy_quant".to_owned(), text);
    let name = format!("{} {case}", golden.name);
    Ok(with_formats(Arc::new(InMemory::new(
        name,
        tensors,
        Vec::new(),
    )))?)
}

fn distance(a: &Tensor, b: &Tensor) -> f64 {
    let pairs = a.data().iter().zip(b.data());
    pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum()
}

fn run(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    for name in cases(golden) {
        let case = Case::new(golden, &name).with_context(|| format!("case {name:?}"))?;
        decoded(&case, report)?;
        written(&case, report)?;
        inside(&case, report)?;
        products(&case, device, report)?;
    }
    rotations(golden, report)?;
    marker(golden, report)?;
    // Results of devices that compute in bf16, which has other roundings.
    for name in golden.tensors() {
        if name.rsplit('.').next() == Some("bf16") || name.contains("x_bf16") {
            golden.stored(&name)?;
        }
    }
    Ok(())
}

/// What the weight stands for.
fn decoded(case: &Case<'_>, report: &mut Report<'_>) -> Result<()> {
    let name = format!("deq.{}f32", case.name);
    let expected = case.golden.tensor(&name)?;
    let found = case.weight.to_f32()?;
    // With what was filled up to whole blocks.
    let mut filled = Tensor::zeros(expected.shape())?;
    filled.paste(&[0, 0], &found)?;
    report.compare(&name, &filled, &expected)
}

/// The same bytes from the plain weight, where the format says how it is made.
fn written(case: &Case<'_>, report: &mut Report<'_>) -> Result<()> {
    let plain = shared(case.golden, &case.name, "w")?;
    let one_scale = case.format.kind() == RowKind::Int8
        && case
            .golden
            .stored(&format!("{}weight_scale", case.name))?
            .len()
            == 1;
    // Scales of levels from a table are fitted, and here rows of bytes have scales of their own.
    if matches!(case.format.kind(), RowKind::Grid(_) | RowKind::Affine(_)) || one_scale {
        return Ok(());
    }
    let found = Stored::from_f32(&plain, case.weight.dtype())?;
    let (row, codes) = (case.format.row_bytes(), case.format.code_bytes());
    let rows = found.bytes().chunks_exact(row);
    let pairs = rows.zip(case.weight.bytes().chunks_exact(row));
    let wrong = pairs
        .flat_map(|(a, b)| a[..codes].iter().zip(&b[..codes]))
        .filter(|(a, b)| a != b)
        .count();
    // In which order a rotation adds up is nobody's rule, and a sum may lie on the border between two codes.
    let allowed = match case.format.rotation() {
        0 => 0,
        _ => found.bytes().len() / 1000,
    };
    report.equal(
        &format!("{}codes that differ", case.name),
        &(wrong.saturating_sub(allowed)),
        &0,
    );
    Ok(())
}

/// Parts of the way from a weight or an input to its packed form.
fn inside(case: &Case<'_>, report: &mut Report<'_>) -> Result<()> {
    let (golden, format) = (case.golden, case.format);
    for (plain, turned) in [("w", "w_rotated"), ("x", "x_rotated")] {
        if let Some(name) = case.own(turned) {
            let mut values = shared(golden, &case.name, plain)?;
            rotate(values.data_mut(), format.rotation());
            report.check(&name, &values)?;
        }
    }
    // Inputs are rounded as rows of bytes are.
    let names = [("x_i8", "x_scale"), ("x.i8", "x.scale")];
    for (bytes, scale) in names {
        let own = case.own(bytes).zip(case.own(scale));
        let names = own.or_else(|| {
            let both = golden.has(bytes) && golden.has(scale);
            both.then(|| (bytes.to_owned(), scale.to_owned()))
        });
        let Some((bytes, scale)) = names else {
            continue;
        };
        let x = shared(golden, &case.name, "x")?;
        let rows = RowFormat::new(RowKind::Int8, x.shape()[1], format.rotation());
        let rows = rows.context("the inputs cannot be rounded")?;
        let rounded = Stored::from_f32(&x, Dtype::Rows(rows))?;
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for row in rounded.bytes().chunks_exact(rows.row_bytes()) {
            let (code, scale) = row.split_at(rows.code_bytes());
            codes.extend(code.iter().map(|c| f32::from(*c as i8)));
            scales.extend(scale.as_chunks().0.iter().map(|s| f32::from_le_bytes(*s)));
        }
        report.check(&bytes, &Tensor::from_vec(x.shape(), codes)?)?;
        let shape = [x.shape()[0], 1];
        report.check(&scale, &Tensor::from_vec(shape, scales)?)?;
    }
    if let Some(name) = case.own("int8_grid") {
        report.check(&name, &grid(case)?)?;
    }
    for plain in ["block_scale_plain", "scale_plain"] {
        if let Some(name) = case.own(plain) {
            let stored = golden.tensor(&format!("{}weight_scale", case.name))?;
            let expected = golden.tensor(&name)?;
            let columns = expected.shape()[1];
            let found = Tensor::from_fn(expected.shape(), |i| {
                stored.data()[swizzle::place(i / columns, i % columns, columns)]
            })?;
            report.compare(&name, &found, &expected)?;
        }
    }
    Ok(())
}

/// The bytes that codes of four and six bits stand for.
fn grid(case: &Case<'_>) -> Result<Tensor> {
    let mut values = case.weight.to_f32()?;
    rotate(values.data_mut(), case.format.rotation());
    let scales = case
        .golden
        .values(&format!("{}weight_s_channel", case.name))?;
    let added = match case.own("weight_correction") {
        Some(name) => Some(case.golden.tensor(&name)?),
        None => None,
    };
    let (rows, columns) = (values.shape()[0], values.shape()[1]);
    let RowKind::Grid(kind) = case.format.kind() else {
        bail!("a grid of another format");
    };
    if kind.levels == Levels::Own && kind.bits == 6 {
        bail!("six bits have no table");
    }
    for (i, value) in values.data_mut().iter_mut().enumerate() {
        let (row, group) = (i / columns, i % columns / usize::from(kind.group));
        if let Some(added) = &added {
            *value -= added.data()[group * rows + row];
        }
        *value = (*value / scales[row]).round();
    }
    Ok(values)
}

fn products(case: &Case<'_>, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let start = format!("y.{}", case.name);
    for name in case.golden.tensors() {
        let Some(way) = name.strip_prefix(&start) else {
            continue;
        };
        let ways: Vec<&str> = way.split('.').collect();
        let x = shared(case.golden, &case.name, "x")?;
        let found = match ways.as_slice() {
            ["f32"] => case.product(&x, device, false, false)?,
            ["weight_only" | "full_precision", "f32"] => case.product(&x, device, true, false)?,
            ["pre_quant", "weight_only", "f32"] => case.product(&x, device, true, true)?,
            ["scaled_mm", "f32"] => case.product(&rounded_input(case, "")?, device, true, false)?,
            ["scaled_mm", which, "f32"] => {
                let x = rounded_input(case, &format!("{which}."))?;
                case.product(&x, device, true, false)?
            }
            _ => continue,
        };
        report.check(&name, &found)?;
    }
    let name = format!("y.embed.{}f32", case.name);
    if case.golden.has(&name) {
        let ids = case.golden.tensor("embed.indices")?;
        let ids: Vec<u32> = ids.data().iter().map(|id| *id as u32).collect();
        let found = Embedding::new(&case.weight)?.lookup_on(&ids, device)?;
        let shape = case.golden.tensor(&name)?.shape().to_vec();
        report.check(&name, &found.to(&Device::cpu())?.reshape(shape)?)?;
    }
    Ok(())
}

/// An input as another device rounds it.
fn rounded_input(case: &Case<'_>, which: &str) -> Result<Tensor> {
    let golden = case.golden;
    let name = &case.name;
    let x = shared(golden, name, "x")?;
    let with_one_scale = format!("{which}x_e4m3");
    if !which.is_empty() && golden.has(&with_one_scale) {
        let scale = golden.tensor(&format!("{which}scale"))?.data()[0];
        return Ok(golden.tensor(&with_one_scale)?.mul_scalar(scale));
    }
    let (packed, format) = match case.format.kind() {
        RowKind::Nvfp4 => ("x_fp4", "nvfp4"),
        _ => ("x_e4m3", "mxfp8"),
    };
    let mut tensors = BTreeMap::new();
    for (part, from) in [
        ("weight", packed),
        ("weight_scale", "x_scale"),
        ("weight_scale_2", "x_scale_2"),
    ] {
        let from = format!("{name}{from}");
        if golden.has(&from) {
            tensors.insert(format!("x.{part}"), golden.stored(&from)?);
        }
    }
    let text = json!({"format": format, "orig_shape": x.shape()}).to_string();
    let text = Stored::new(Dtype::U8, [text.len()], text.into_bytes())?;
    tensors.insert("x.comfy_quant".to_owned(), text);
    let file = with_formats(Arc::new(InMemory::new("x", tensors, Vec::new())))?;
    Ok(file.read("x.weight")?.to_f32()?)
}

/// Rotations as matrices.
fn rotations(golden: &Golden, report: &mut Report<'_>) -> Result<()> {
    for name in golden.tensors() {
        let size = name.strip_prefix('H').and_then(|n| n.parse::<usize>().ok());
        if let Some(size) = size {
            let mut unit = Tensor::from_fn([size, size], |i| {
                f32::from(u8::from(i.is_multiple_of(size + 1)))
            })?;
            rotate(unit.data_mut(), size);
            report.check(&name, &unit)?;
        }
    }
    Ok(())
}

/// A marker as files have it.
fn marker(golden: &Golden, report: &mut Report<'_>) -> Result<()> {
    if !golden.has("marker.comfy_quant") {
        return Ok(());
    }
    let text = golden.stored("marker.comfy_quant")?;
    let said: Value = serde_json::from_slice(text.bytes())?;
    let group = said["convrot_groupsize"].as_u64().unwrap_or(0) as usize;
    let case = format!("g{group}.");
    let file = layer_file(golden, &case, &said, true)?;
    let rotation = match file.info("layer.weight").map(|info| info.dtype) {
        Some(Dtype::Rows(format)) => format.rotation(),
        _ => 0,
    };
    report.equal("marker.comfy_quant", &rotation, &group);
    Ok(())
}
