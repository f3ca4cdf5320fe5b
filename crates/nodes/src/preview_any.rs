//! Shows any value as text.

use fresco_graph::{Cx, Node, NodeEntry, NodeOutput, NodeResult, Value, entry, json, map};
use fresco_tensor::{Tensor, with_memory};

use crate::text::{MAX_BYTES, too_long};
use crate::types::as_tensor;

pub static NODES: &[NodeEntry] = &[entry::<PreviewAny>()];

/// Shows any value as text, and passes the text on.
#[derive(Node)]
#[node(
    id = "PreviewAny",
    v1,
    module = "comfy_extras.nodes_preview_any",
    display = "Preview as Text",
    category = "utils",
    outputs("STRING"),
    output_node
)]
pub struct PreviewAny {
    /// The value to show.
    #[input(ty = "*")]
    source: Option<Value>,
}

impl Node for PreviewAny {
    fn run(self, _: &Cx) -> NodeResult {
        let text = match self.source.unwrap_or_default() {
            Value::Str(text) => text,
            source => {
                let most = longest(&source);
                if most > MAX_BYTES {
                    return Err(too_long());
                }
                // It grows by doubling, and is copied onto its link.
                with_memory(3 * most as u64, || shown(&source).into())?
            }
        };
        let shown = map! {"text" => vec![Value::Str(text.clone())]};
        Ok(NodeOutput::one(text).with_ui(shown))
    }
}

/// Plain values as they are, structures as JSON, structures with anything else in them as Python would print them.
fn shown(value: &Value) -> String {
    match value {
        Value::List(_) | Value::Map(_) if !holds_object(value) => {
            let mut out = String::new();
            let style = json::Style {
                indent: Some(4),
                ..json::PYTHON
            };
            json::write(&mut out, value, style);
            out
        }
        other => printed(other),
    }
}

/// Bytes that a text may have with escapes for all that is not plain ASCII.
fn escaped(text: &str) -> usize {
    let byte = |b: u8| match b {
        b'"' | b'\'' | b'\\' => 2,
        b' '..=b'~' => 1,
        // Two bytes or more become one or two escapes of six.
        0x80.. => 3,
        _ => 6,
    };
    text.bytes().map(byte).sum()
}

/// Bytes that a value may have as text.
fn longest(value: &Value) -> usize {
    /// Numbers, marks between entries, and indentation by a few levels.
    const ENTRY: usize = 64;
    /// What a tensor looks like, shortened.
    const OBJECT: usize = 1 << 16;
    match value {
        Value::Str(s) => escaped(s),
        Value::List(l) => l.iter().map(|v| longest(v) + ENTRY).sum(),
        Value::Map(m) => m.iter().map(|(k, v)| escaped(k) + longest(v) + ENTRY).sum(),
        Value::Object(_) => OBJECT,
        _ => ENTRY,
    }
}

fn holds_object(value: &Value) -> bool {
    match value {
        Value::Object(_) | Value::Blocker(_) => true,
        Value::List(l) => l.iter().any(holds_object),
        Value::Map(m) => m.values().any(holds_object),
        _ => false,
    }
}

fn printed(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match value {
        Value::List(l) => format!("[{}]", list(l.iter().map(printed).collect())),
        Value::Map(m) => {
            let entry = |(k, v): (&std::sync::Arc<str>, &Value)| {
                format!("{}: {}", json::python_repr(&Value::from(k)), printed(v))
            };
            format!("{{{}}}", list(m.iter().map(entry).collect()))
        }
        Value::Object(o) => {
            as_tensor(value).map_or_else(|| format!("<{}>", o.describe()), tensor_text)
        }
        other => json::python_repr(other),
    }
}

/// Numbers of a line before it breaks, items at either end of a shortened dimension, elements before shortening.
const LINE: usize = 80;
const EDGE: usize = 3;
const SHORTEN: usize = 1000;

/// How the numbers of one tensor are written: all whole, all with four decimals, or all with an exponent.
struct Numbers {
    whole: bool,
    exponent: bool,
    width: usize,
}

impl Numbers {
    fn of(values: &[f32]) -> Self {
        let counted: Vec<f64> = values
            .iter()
            .filter(|v| v.is_finite() && **v != 0.0)
            .map(|v| f64::from(*v))
            .collect();
        let mut numbers = Self {
            whole: counted.iter().all(|v| v.fract() == 0.0),
            exponent: false,
            width: 1,
        };
        let largest = counted.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        let smallest = counted
            .iter()
            .fold(f64::INFINITY, |m: f64, v| m.min(v.abs()));
        numbers.exponent = !counted.is_empty()
            && (largest / smallest > 1000.0
                || largest > 1e8
                || (!numbers.whole && smallest < 1e-4));
        numbers.width = counted
            .iter()
            .map(|v| numbers.bare(*v).len())
            .max()
            .unwrap_or(1);
        numbers
    }

    fn bare(&self, v: f64) -> String {
        if v.is_nan() {
            "nan".into()
        } else if v.is_infinite() {
            if v > 0.0 { "inf" } else { "-inf" }.into()
        } else if self.exponent {
            let text = format!("{v:.4e}");
            let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let (sign, digits) = match exponent.strip_prefix('-') {
                Some(digits) => ('-', digits),
                None => ('+', exponent),
            };
            format!("{mantissa}e{sign}{digits:0>2}")
        } else if self.whole {
            format!("{v:.0}.")
        } else {
            format!("{v:.4}")
        }
    }

    fn write(&self, v: f32) -> String {
        format!("{:>1$}", self.bare(f64::from(v)), self.width)
    }
}

/// The places of a dimension that are written, with a gap where some are left out.
fn places(len: usize, shorten: bool) -> Vec<Option<usize>> {
    if shorten && len > 2 * EDGE {
        let head = (0..EDGE).map(Some);
        let tail = (len - EDGE..len).map(Some);
        head.chain([None]).chain(tail).collect()
    } else {
        (0..len).map(Some).collect()
    }
}

/// The part of the data that is written, which decides the number format.
fn written(shape: &[usize], data: &[f32], shorten: bool, out: &mut Vec<f32>) {
    let Some((first, rest)) = shape.split_first() else {
        out.extend(data.first());
        return;
    };
    let step: usize = rest.iter().product();
    for i in places(*first, shorten).into_iter().flatten() {
        written(rest, &data[i * step..][..step], shorten, out);
    }
}

fn block(shape: &[usize], data: &[f32], indent: usize, numbers: &Numbers, shorten: bool) -> String {
    let Some((first, rest)) = shape.split_first() else {
        return data.first().map_or_else(String::new, |v| numbers.write(*v));
    };
    let pad = " ".repeat(indent + 1);
    if rest.is_empty() {
        let per_line = (LINE.saturating_sub(indent) / (numbers.width + 2)).max(1);
        let items: Vec<String> = places(*first, shorten)
            .into_iter()
            .map(|i| i.map_or_else(|| " ...".into(), |i| numbers.write(data[i])))
            .collect();
        let lines: Vec<String> = items.chunks(per_line).map(|l| l.join(", ")).collect();
        return format!("[{}]", lines.join(&format!(",\n{pad}")));
    }
    let step: usize = rest.iter().product();
    let parts: Vec<String> = places(*first, shorten)
        .into_iter()
        .map(|i| {
            i.map_or_else(
                || "...".into(),
                |i| {
                    block(
                        rest,
                        &data[i * step..][..step],
                        indent + 1,
                        numbers,
                        shorten,
                    )
                },
            )
        })
        .collect();
    let gap = format!(",{}{pad}", "\n".repeat(rest.len()));
    format!("[{}]", parts.join(&gap))
}

/// A tensor as torch prints it.
fn tensor_text(t: &Tensor) -> String {
    const HEAD: &str = "tensor(";
    if t.is_empty() {
        let size: Vec<String> = t.shape().iter().map(ToString::to_string).collect();
        return if size.len() == 1 {
            format!("{HEAD}[])")
        } else {
            format!("{HEAD}[], size=({}))", size.join(", "))
        };
    }
    let shorten = t.len() > SHORTEN;
    let mut shown = Vec::new();
    written(t.shape(), t.data(), shorten, &mut shown);
    let numbers = Numbers::of(&shown);
    let body = block(t.shape(), t.data(), HEAD.len(), &numbers, shorten);
    format!("{HEAD}{body})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::tensor;

    #[track_caller]
    fn check(shape: &[usize], values: &[f32], wanted: &str) {
        let t = Tensor::from_vec(shape, values.to_vec()).unwrap();
        assert_eq!(tensor_text(&t), wanted);
    }

    #[test]
    fn tensors_look_like_torch() {
        check(&[3], &[1.0, 2.0, -10.0], "tensor([  1.,   2., -10.])");
        check(&[2], &[1.0, 0.5], "tensor([1.0000, 0.5000])");
        check(&[2], &[1.0, 1e-5], "tensor([1.0000e+00, 1.0000e-05])");
        check(&[2], &[0.0, 0.0], "tensor([0., 0.])");
        check(&[2], &[f32::NAN, 0.5], "tensor([   nan, 0.5000])");
        check(&[], &[2.5], "tensor(2.5000)");
        check(&[0, 3], &[], "tensor([], size=(0, 3))");
        check(
            &[2, 1],
            &[1.5, 2.5],
            "tensor([[1.5000],\n        [2.5000]])",
        );
    }

    #[test]
    fn long_tensors_are_shortened() {
        let t = Tensor::zeros([2000]).unwrap();
        assert_eq!(tensor_text(&t), "tensor([0., 0., 0.,  ..., 0., 0., 0.])");
    }

    #[test]
    fn structures_with_tensors_are_printed() {
        let value = Value::from(map! {
            "samples" => tensor(Tensor::zeros([1]).unwrap()),
            "type" => "audio",
        });
        assert_eq!(shown(&value), "{'samples': tensor([0.]), 'type': 'audio'}");
    }
}
