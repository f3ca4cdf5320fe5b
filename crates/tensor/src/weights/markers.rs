//! What a file says about the formats of its quantised layers: JSON in its metadata, or in a small tensor beside each.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{WeightError, WeightFile};
use crate::dtype::Dtype;

/// The metadata that lists all layers.
const METADATA: &str = "_quantization_metadata";
/// The tensor beside a layer.
const BESIDE: &str = ".comfy_quant";
/// The tensor that says that a file is of the first kind of scaled 8-bit floats.
const SCALED_F8: &str = "scaled_fp8";
/// Longest text of a layer.
const MAX_TEXT: usize = 1 << 16;

/// What is said about one layer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Marker {
    /// None where it follows from the weight.
    pub(super) format: Option<String>,
    pub(super) exact: bool,
    pub(super) rotated: bool,
    pub(super) rotation: Option<usize>,
    pub(super) group: Option<usize>,
    /// Whether inputs of four-bit weights have eight bits.
    pub(super) wide_input: bool,
    pub(super) experts: bool,
    /// The shape without what was filled up.
    pub(super) shape: Option<Vec<usize>>,
}

impl Marker {
    fn named(format: &str) -> Self {
        Self {
            format: Some(format.to_owned()),
            ..Self::default()
        }
    }

    fn parse(value: &Value) -> Option<Self> {
        if let Value::String(format) = value {
            return Some(Self::named(format));
        }
        let fields = value.as_object()?;
        let inner = fields.get("params").and_then(Value::as_object);
        let field = |name: &str| {
            let outer = fields.get(name).filter(|v| !v.is_null());
            outer.or_else(|| inner.and_then(|inner| inner.get(name)))
        };
        let is = |name: &str| field(name).and_then(Value::as_bool).unwrap_or(false);
        let size = |name: &str| {
            let number = field(name).and_then(Value::as_u64);
            number.and_then(|n| usize::try_from(n).ok())
        };
        let shape = field("orig_shape").and_then(Value::as_array).map(|sizes| {
            let sizes = sizes.iter().map(|s| s.as_u64().unwrap_or(0) as usize);
            sizes.collect()
        });
        let text = |name: &str| field(name).and_then(Value::as_str).map(str::to_owned);
        Some(Self {
            // An older maker's files say only how their bytes are rotated.
            format: text("format").or_else(|| {
                let old = fields.contains_key("convrot") || fields.contains_key("per_row");
                old.then(|| "int8_tensorwise".to_owned())
            }),
            exact: is("full_precision_matrix_mult"),
            rotated: is("convrot"),
            rotation: size("convrot_groupsize"),
            group: size("group_size"),
            wide_input: text("linear_dtype").as_deref() == Some("int8"),
            experts: size("num_experts").is_some(),
            shape,
        })
    }
}

/// What was found in a file.
#[derive(Default)]
pub(super) struct Markers {
    /// By the name of the layer, which is that of its weight without `.weight`.
    pub(super) layers: BTreeMap<String, Marker>,
    /// Tensors that only say so.
    pub(super) names: Vec<String>,
}

fn bad(file: &dyn WeightFile, name: &str, reason: impl Into<String>) -> WeightError {
    WeightError::Quantised {
        path: file.path().to_path_buf(),
        name: name.to_owned(),
        reason: reason.into(),
    }
}

/// Reads all markers of a file.
pub(super) fn read(file: &dyn WeightFile, names: &[String]) -> Result<Markers, WeightError> {
    let mut found = Markers::default();
    if let Some((_, text)) = file.metadata().iter().find(|(key, _)| key == METADATA) {
        listed(file, names, text, &mut found)?;
    }
    for name in names {
        if let Some(layer) = name.strip_suffix(BESIDE) {
            let marker = beside(file, name)?;
            found.layers.insert(layer.to_owned(), marker);
            found.names.push(name.clone());
        }
    }
    for name in names {
        let last = name.rsplit('.').next();
        if last == Some(SCALED_F8) {
            scaled_f8(file, names, name, &mut found);
            found.names.push(name.clone());
        }
    }
    unmarked(file, names, &mut found);
    Ok(found)
}

fn listed(
    file: &dyn WeightFile,
    names: &[String],
    text: &str,
    found: &mut Markers,
) -> Result<(), WeightError> {
    let value: Value = serde_json::from_str(text)
        .map_err(|e| bad(file, METADATA, format!("its JSON cannot be read: {e}")))?;
    let Some(layers) = value.get("layers").and_then(Value::as_object) else {
        return Err(bad(file, METADATA, "it has no list of layers"));
    };
    for (layer, value) in layers {
        let marker = Marker::parse(value)
            .ok_or_else(|| bad(file, layer, "its format is neither a name nor an object"))?;
        // The list may leave out what stands before the names of a whole checkpoint.
        let weight = format!("{layer}.weight");
        let has = |name: &String| names.binary_search(name).is_ok();
        let full = ["", "model.diffusion_model.", "model."]
            .into_iter()
            .find(|prefix| has(&format!("{prefix}{weight}")));
        if let Some(prefix) = full {
            found.layers.insert(format!("{prefix}{layer}"), marker);
        }
    }
    Ok(())
}

fn beside(file: &dyn WeightFile, name: &str) -> Result<Marker, WeightError> {
    let size = file
        .info(name)
        .map_or(0, |info| info.shape.iter().product());
    if size > MAX_TEXT {
        return Err(bad(file, name, format!("{size} bytes are too many for it")));
    }
    let stored = file.read(name)?;
    let value: Value = serde_json::from_slice(stored.bytes())
        .map_err(|e| bad(file, name, format!("its JSON cannot be read: {e}")))?;
    Marker::parse(&value).ok_or_else(|| bad(file, name, "its JSON is not an object"))
}

/// The layers of the first kind of scaled files: all that have a scale.
fn scaled_f8(file: &dyn WeightFile, names: &[String], marker: &str, found: &mut Markers) {
    let prefix = marker.strip_suffix(SCALED_F8).unwrap_or_default();
    let exact = file
        .info(marker)
        .is_some_and(|info| info.shape.iter().product::<usize>() == 2);
    for name in names.iter().filter(|n| n.starts_with(prefix)) {
        let layer = name
            .strip_suffix(".scale_weight")
            .or_else(|| name.strip_suffix(".weight_scale"));
        if let Some(layer) = layer {
            found.layers.entry(layer.to_owned()).or_insert(Marker {
                exact,
                ..Marker::default()
            });
        }
    }
}

/// 8-bit floats with a scale beside them, of files that say nothing else.
fn unmarked(file: &dyn WeightFile, names: &[String], found: &mut Markers) {
    for name in names {
        let layer = name
            .strip_suffix(".scale_weight")
            .or_else(|| name.strip_suffix(".weight_scale"));
        let Some(layer) = layer.filter(|layer| !found.layers.contains_key(*layer)) else {
            continue;
        };
        let weight = file.info(&format!("{layer}.weight"));
        if let Some(Dtype::F8E4M3 | Dtype::F8E5M2) = weight.map(|info| info.dtype) {
            found.layers.insert(layer.to_owned(), Marker::default());
        }
    }
}
