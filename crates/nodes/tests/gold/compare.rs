//! Comparing what a node gave with what the golden says. Differences are sentences with the place they occur at.

use fresco_graph::{NodeError, Value, json};
use fresco_nodes::types::as_tensor;

use crate::objects;
use crate::store::{Case, Tensors, field};

/// Differences allowed: absolute, or relative to the expected value where that is above one.
pub(crate) fn tolerance(class: &str) -> f64 {
    match class {
        // Only moves, copies and comparisons, or 8-bit results.
        "ImageCrop"
        | "RepeatImageBatch"
        | "ImageFromBatch"
        | "ImageRotate"
        | "ImageFlip"
        | "RebatchImages"
        | "ImageQuantize"
        | "MaskToImage"
        | "ImageToMask"
        | "ImageColorToMask"
        | "CropMask"
        | "ThresholdMask"
        | "GrowMask"
        | "Morphology"
        | "SplitImageWithAlpha"
        | "LatentRotate"
        | "LatentFlip"
        | "LatentCrop"
        | "LatentFromBatch"
        | "RepeatLatentBatch"
        | "LatentCut"
        | "LatentCutToBatch"
        | "RebatchLatents" => 0.0,
        // Convolutions, FFT and SVD based.
        "ImageBlur"
        | "ImageSharpen"
        | "Canny"
        | "LatentApplyOperation"
        | "LatentApplyOperationCFG"
        | "FreSca"
        | "FreeU"
        | "FreeU_V2"
        | "TCFG"
        | "VAEEncodeForInpaint"
        | "AudioEqualizer3Band" => 1e-5,
        // Subtracts nearly equal cosines, which shows the last place of the cosine: 16 of 10,000 levels.
        "ModelSamplingStableCascade" => 2e-5,
        _ => 2e-6,
    }
}

pub(crate) struct Comparer<'a> {
    pub(crate) case: &'a Case,
    pub(crate) tensors: &'a Tensors,
    pub(crate) tolerance: f64,
    pub(crate) found: Vec<String>,
}

impl<'a> Comparer<'a> {
    pub(crate) fn new(case: &'a Case, tensors: &'a Tensors) -> Self {
        Self {
            case,
            tensors,
            tolerance: tolerance(&case.class),
            found: Vec::new(),
        }
    }

    fn differ(&mut self, at: &str, what: impl std::fmt::Display) {
        self.found.push(format!("{}{at}: {what}", self.case.id));
    }

    /// All slots of a node.
    pub(crate) fn outputs(&mut self, expected: &Value, actual: &[Vec<Value>]) {
        let actual: Vec<Value> = actual.iter().map(|v| Value::from(v.clone())).collect();
        if self.case.class == "FluxKontextImageScale" {
            return self.shape_and_mean(expected, &actual);
        }
        self.value("", expected, &Value::from(actual));
    }

    /// Too large to record: the golden holds `[[[shape, mean]]]`, or `[[shape, mean]]`.
    fn shape_and_mean(&mut self, expected: &Value, actual: &[Value]) {
        let picture = actual
            .first()
            .and_then(Value::as_list)
            .and_then(<[_]>::first);
        let Some(picture) = picture.and_then(as_tensor) else {
            return self.differ("", "no picture came out");
        };
        let shape = picture.shape().to_vec();
        let sum: f64 = picture.data().iter().map(|v| f64::from(*v)).sum();
        let mean = sum / picture.len() as f64;
        let Some([wanted_shape, Value::Float(wanted)]) = expected
            .as_list()
            .and_then(<[_]>::first)
            .and_then(Value::as_list)
        else {
            return self.differ("", format!("odd golden {expected:?}"));
        };
        if *wanted_shape != Value::from(shape.clone()) || (mean - wanted).abs() > 1e-5 {
            self.differ(
                "",
                format!("shape {shape:?} mean {mean}, golden {expected:?}"),
            );
        }
    }

    pub(crate) fn value(&mut self, at: &str, expected: &Value, actual: &Value) {
        // An object whose result was recorded in its stead, such as the noise that a seed makes.
        let as_result = expected.get("$ref").is_some() || expected.get("$const").is_some();
        if as_result
            && as_tensor(actual).is_none()
            && let Some(described) = objects::describe(self.case, actual)
        {
            return self.value(at, expected, &described);
        }
        if let Some(map) = expected.as_map() {
            if let Some(key) = map.get("$ref").and_then(Value::as_str) {
                let (shape, values) = self.tensors.get(key);
                return self.tensor(at, shape, |i| values[i], actual);
            }
            if let Some(constant) = map.get("$const") {
                let shape = sizes(map.get("shape"));
                let constant = match constant {
                    Value::Str(s) => s.parse().unwrap_or(f64::NAN),
                    other => other.as_f64().unwrap_or(f64::NAN),
                };
                return self.tensor(at, &shape, |_| constant, actual);
            }
            if map.contains_key("$opaque") {
                // Only that there is something was recorded; what it does is tested where it is used.
                if actual.is_null() {
                    self.differ(at, "null instead of an object");
                }
                return;
            }
            if let Some(summary) = map.get("$object") {
                return match objects::describe(self.case, actual) {
                    Some(described) => self.value(at, summary, &described),
                    None => self.value(at, summary, actual),
                };
            }
        }
        if matches!(actual, Value::Object(_)) && as_tensor(actual).is_none() {
            return match objects::describe(self.case, actual) {
                Some(described) => self.value(at, expected, &described),
                None => self.differ(
                    at,
                    format!("an object nothing describes, golden {expected:?}"),
                ),
            };
        }
        match (expected, actual) {
            (Value::Map(e), Value::Map(a)) => {
                for (key, e) in &**e {
                    match a.get(key) {
                        Some(a) => self.value(&format!("{at}.{key}"), e, a),
                        None => self.differ(at, format!("lacks `{key}`")),
                    }
                }
                for key in a.keys().filter(|k| !e.contains_key(*k)) {
                    self.differ(at, format!("has `{key}`, the golden has not"));
                }
            }
            (Value::List(e), Value::List(a)) => {
                if e.len() != a.len() {
                    return self.differ(at, format!("{} elements, golden {}", a.len(), e.len()));
                }
                for (i, (e, a)) in e.iter().zip(a.iter()).enumerate() {
                    self.value(&format!("{at}[{i}]"), e, a);
                }
            }
            // Goldens called nodes without the coercion of FLOAT inputs, so a whole number may stand for a float.
            (Value::Int(e), Value::Float(a)) if *e as f64 == *a => {}
            (Value::Float(e), Value::Float(a)) => {
                if !close(*e, *a, self.tolerance) {
                    self.differ(at, format!("{a}, golden {e}"));
                }
            }
            (Value::Str(_), Value::Str(_))
            | (Value::Int(_), Value::Int(_))
            | (Value::Bool(_), Value::Bool(_))
            | (Value::Null, Value::Null)
                if expected == actual => {}
            _ => self.differ(at, format!("{}, golden {}", show(actual), show(expected))),
        }
    }

    fn tensor(&mut self, at: &str, shape: &[usize], wanted: impl Fn(usize) -> f64, actual: &Value) {
        let Some(t) = as_tensor(actual) else {
            return self.differ(at, format!("{} instead of a tensor", show(actual)));
        };
        if t.shape() != shape {
            return self.differ(at, format!("shape {:?}, golden {shape:?}", t.shape()));
        }
        let mut wrong = 0;
        let mut worst = (0.0, 0);
        for (i, a) in t.data().iter().enumerate() {
            let (a, e) = (f64::from(*a), wanted(i));
            if !close(e, a, self.tolerance) {
                wrong += 1;
                let gap = (a - e).abs();
                if wrong == 1 || gap > worst.0 {
                    worst = (gap, i);
                }
            }
        }
        if wrong > 0 {
            let (gap, i) = worst;
            let what = format!(
                "{wrong} of {} elements differ, by up to {gap:.3e} (element {i}: {}, golden {})",
                t.len(),
                t.data()[i],
                wanted(i)
            );
            self.differ(at, what);
        }
    }
}

/// Equal, both NaN, or within the tolerance.
fn close(expected: f64, actual: f64, tolerance: f64) -> bool {
    expected == actual
        || (expected.is_nan() && actual.is_nan())
        || (expected - actual).abs() <= tolerance * expected.abs().max(1.0)
}

fn sizes(value: Option<&Value>) -> Vec<usize> {
    let list = value.and_then(Value::as_list).unwrap_or_default();
    list.iter()
        .map(|v| v.as_int().unwrap_or_default() as usize)
        .collect()
}

fn show(value: &Value) -> String {
    let text = json::to_string(value);
    let short: String = text.chars().take(120).collect();
    if short.len() < text.len() {
        format!("{short}...")
    } else {
        short
    }
}

/// Exception types a node raises itself; for the others (torch's, Pillow's) it is enough that the node fails.
const OWN: &[&str] = &[
    "ValueError",
    "Exception",
    "KeyError",
    "ZeroDivisionError",
    "re.error",
];
/// Cases whose own-looking error comes out of a library after all.
const LIBRARY: &[&str] = &["WanVaceToVideo/2"];

/// The difference between an error and the golden's, if there is one that counts.
pub(crate) fn error(case: &Case, expected: &Value, actual: &NodeError) -> Option<String> {
    let (kind, message) = (field(expected, "type"), field(expected, "message"));
    if actual.message().is_empty() && !message.is_empty() {
        return Some(format!("{}: failed without a message", case.id));
    }
    if LIBRARY.contains(&case.id.as_str()) || !OWN.contains(&&*kind) {
        return None;
    }
    if actual.kind() == &*kind && actual.message() == &*message {
        return None;
    }
    Some(format!(
        "{}: {}: {:?}, golden {kind}: {message:?}",
        case.id,
        actual.kind(),
        actual.message()
    ))
}
