//! Numbers: expressions over them, their kinds, and sizes of pictures from a ratio.

mod expression;
mod number;

use std::sync::Arc;

use fresco_graph::{
    Cx, Input, Map, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Output, Value, entry,
};

use expression::{Names, both, evaluate};
use number::Number;

pub static NODES: &[NodeEntry] = &[
    entry::<MathExpression>(),
    entry::<NumberConvert>(),
    entry::<ResolutionSelector>(),
];

const LETTERS: [&str; 26] = [
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s",
    "t", "u", "v", "w", "x", "y", "z",
];

fn lettered_values() -> Input {
    let template = Input::new("value", "FLOAT,INT,BOOLEAN")
        .optional()
        .tooltip("A number that the expression may use.");
    Input::autogrow_named("values", template, &LETTERS, 1)
}

/// Computes an expression over the connected numbers, which are called a, b, c and so on.
#[derive(Node)]
#[node(
    id = "ComfyMathExpression",
    v3,
    module = "comfy_extras.nodes_math",
    display = "Math Expression",
    category = "utilities",
    outputs("FLOAT", "INT", Output::new("BOOLEAN").named("BOOL"))
)]
pub struct MathExpression {
    /// Signs and functions as in Python: + - * / // % **, comparisons, and or not, `x if c else y`, & | ^ ~ << >>,
    /// sum min max abs round pow sqrt ceil floor log log2 log10 sin cos tan int float.
    #[input(default = "a + b", multiline = true)]
    expression: String,
    /// The numbers that the expression may use, under the names a, b, c and so on.
    #[input(spec = lettered_values())]
    values: Option<Arc<Map>>,
}

impl Node for MathExpression {
    fn run(self, _: &Cx) -> NodeResult {
        let mut single = Vec::new();
        for (name, value) in self.values.iter().flat_map(|values| values.iter()) {
            if value.is_null() {
                continue;
            }
            let number = Number::of(value).ok_or_else(|| {
                let got = fresco_graph::wrong_kind("a number", value);
                NodeError::type_error(format!("values.{name}: {got}"))
            })?;
            single.push((name.to_string(), number));
        }
        let all: Vec<Number> = single.iter().map(|(_, number)| number.clone()).collect();
        let names = Names {
            single: &single,
            all: &all,
        };
        let result = evaluate(&self.expression, &names)?;
        let (float, whole) = both(&result)?;
        Ok(NodeOutput::slots(vec![
            float.into(),
            whole.into(),
            result.truthy().into(),
        ]))
    }
}

/// Turns a number, a text or yes and no into a number, as a float and as a whole one.
#[derive(Node)]
#[node(
    id = "ComfyNumberConvert",
    v3,
    module = "comfy_extras.nodes_math",
    display = "Convert Number",
    category = "utilities",
    outputs("FLOAT", "INT")
)]
pub struct NumberConvert {
    /// The number, switch or text to convert.
    #[input(ty = "INT,FLOAT,STRING,BOOLEAN")]
    value: Value,
}

impl Node for NumberConvert {
    fn run(self, _: &Cx) -> NodeResult {
        let number = match &self.value {
            Value::Str(text) => number_of_text(text)?,
            other => Number::of(other).ok_or_else(|| {
                NodeError::type_error(fresco_graph::wrong_kind("a number or a text", other))
            })?,
        };
        let (float, whole) = both(&number)?;
        Ok(NodeOutput::slots(vec![float.into(), whole.into()]))
    }
}

/// Digits alone stay exact; everything else is read as a float.
fn number_of_text(text: &str) -> Result<Number, NodeError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(NodeError::value_error("an empty text is not a number"));
    }
    // A float has at most some hundred digits before it overflows; more cannot be meant.
    let shown: String = text.chars().take(100).collect();
    let wrong = || NodeError::value_error(format!("{shown:?} is not a number"));
    if text.len() > 5000 {
        return Err(wrong());
    }
    let clean = if well_placed_underscores(text) {
        text.replace('_', "")
    } else {
        return Err(wrong());
    };
    let digits = clean.strip_prefix(['+', '-']).unwrap_or(&clean);
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        return clean.parse().map(Number::Int).map_err(|_| wrong());
    }
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(wrong());
    }
    clean.parse().map(Number::Float).map_err(|_| wrong())
}

/// Python reads `1_000`, and no other place of a `_`.
fn well_placed_underscores(text: &str) -> bool {
    let bytes = text.as_bytes();
    let digit = |i: Option<usize>| i.and_then(|i| bytes.get(i)).is_some_and(u8::is_ascii_digit);
    (0..bytes.len())
        .filter(|i| bytes[*i] == b'_')
        .all(|i| digit(i.checked_sub(1)) && digit(Some(i + 1)))
}

const RATIOS: [&str; 8] = [
    "1:1 (Square)",
    "2:3 (Portrait Photo)",
    "3:2 (Photo)",
    "3:4 (Portrait Standard)",
    "4:3 (Standard)",
    "9:16 (Portrait Widescreen)",
    "16:9 (Widescreen)",
    "21:9 (Ultrawide)",
];

/// Width and height of a picture with a given ratio and so many pixels.
#[derive(Node)]
#[node(
    id = "ResolutionSelector",
    v3,
    module = "comfy_extras.nodes_resolution",
    display = "Resolution Selector",
    category = "utilities",
    outputs(Output::new("INT").named("width"), Output::new("INT").named("height"))
)]
pub struct ResolutionSelector {
    /// Width in proportion to height.
    #[input(default = "1:1 (Square)", choices = RATIOS)]
    aspect_ratio: String,
    /// Millions of pixels, of 1024 x 1024.
    #[input(default = 1.0, min = 0.1, max = 16.0, step = 0.1)]
    megapixels: f64,
    /// Both sides are multiples of this.
    #[input(optional, or = 8, default = 8, min = 8, max = 128, step = 4)]
    multiple: i64,
    /// The drawing of the chosen size.
    #[expect(dead_code, reason = "the editor draws it")]
    #[input(optional, ty = "RESOLUTION_PREVIEW")]
    preview: Option<Value>,
}

impl Node for ResolutionSelector {
    fn run(self, _: &Cx) -> NodeResult {
        let (width, height) = resolution(&self.aspect_ratio, self.megapixels, self.multiple)?;
        Ok(NodeOutput::slots(vec![width.into(), height.into()]))
    }
}

fn resolution(label: &str, megapixels: f64, multiple: i64) -> Result<(i64, i64), NodeError> {
    let wrong = || NodeError::value_error(format!("{label:?} is not a ratio of the form 16:9"));
    let ratio = label.split_whitespace().next().unwrap_or_default();
    let (w, h) = ratio.split_once(':').ok_or_else(wrong)?;
    let (w, h): (f64, f64) = (
        w.parse().map_err(|_| wrong())?,
        h.parse().map_err(|_| wrong())?,
    );
    let sound = |x: f64| x.is_finite() && x > 0.0;
    if !sound(w) || !sound(h) || !sound(megapixels) || multiple < 1 {
        return Err(wrong());
    }
    let pixels = megapixels * 1_048_576.0;
    let side = |ratio: f64| {
        let count = crate::python_rules::round((pixels * ratio).sqrt() / multiple as f64);
        count.max(1) * multiple
    };
    Ok((side(w / h), side(h / w)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fresco_graph::{Args, NodeSchema, Resources, Slots, map};

    fn run<T: Node>(args: Map) -> Result<Vec<Value>, NodeError> {
        let cx = Cx::detached(Arc::new(Resources::default()));
        match <T as NodeSchema>::from_args(Args(args))?.run(&cx)?.slots {
            Slots::Values(values) => Ok(values),
            _ => Ok(Vec::new()),
        }
    }

    #[test]
    fn an_expression_has_three_outputs() {
        let values = map! {"a" => 7, "c" => 0.5};
        let out = run::<MathExpression>(map! {"expression" => "a * c", "values" => values});
        assert_eq!(out.unwrap(), [3.5.into(), 3.into(), true.into()]);
        let out =
            run::<MathExpression>(map! {"expression" => "a + b", "values" => map! {"a" => 7}});
        assert!(out.unwrap_err().message().contains("'b'"));
    }

    #[test]
    fn texts_become_numbers() {
        let convert = |value: Value| run::<NumberConvert>(map! {"value" => value});
        for (given, float, whole) in [
            (Value::from(" 12 "), 12.0, 12i64),
            (Value::from("-2.9"), -2.9, -2),
            (Value::from("1e3"), 1000.0, 1000),
            (Value::from("1_000"), 1000.0, 1000),
            (Value::from(true), 1.0, 1),
            (
                Value::from("9007199254740993"),
                9007199254740992.0,
                9007199254740993,
            ),
        ] {
            let wanted = vec![Value::from(float), Value::from(i128::from(whole))];
            assert_eq!(convert(given).unwrap(), wanted);
        }
        for bad in [
            "", "  ", "x", "inf", "nan", "1e400", "1__0", "_1", "--1", "0x10",
        ] {
            assert!(convert(bad.into()).is_err(), "{bad}");
        }
        assert!(convert(f64::NAN.into()).is_err());
        assert!(convert(vec![Value::from(1)].into()).is_err());
    }

    #[test]
    fn sizes_follow_the_ratio() {
        for (label, megapixels, multiple, wanted) in [
            ("1:1 (Square)", 1.0, 8, (1024, 1024)),
            ("16:9 (Widescreen)", 0.9, 32, (1280, 736)),
            ("9:16 (Portrait Widescreen)", 0.9, 32, (736, 1280)),
            ("1:1 (Square)", 0.1, 128, (384, 384)),
        ] {
            assert_eq!(resolution(label, megapixels, multiple).unwrap(), wanted);
        }
        for label in ["", "1:0 (x)", "a:b", "1", "inf:1"] {
            assert!(resolution(label, 1.0, 8).is_err(), "{label}");
        }
        assert!(resolution("1:1", f64::NAN, 8).is_err());
        assert!(resolution("1:1", 1.0, 0).is_err());
    }
}
