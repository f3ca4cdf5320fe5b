//! When an output may feed an input, and how literals become what an input declares.

use std::sync::Arc;

use crate::json::{float_text, python_repr, python_text};
use crate::{IoType, Listings, Value};

const MATCH_TYPE: &str = "COMFY_MATCHTYPE_V3";

/// A device that a node has chosen: it may go wherever one is chosen from a list.
const DEVICE: &str = "MULTIGPUDEVICE";

/// The engine's rule for links: `received` is the source's output type, `declared` the input's.
pub fn types_match(received: &IoType, declared: &IoType, listings: &dyn Listings) -> bool {
    match (received, declared) {
        (IoType::Name(r), IoType::Name(d)) => names_match(r, d),
        // `*` and match types take anything, even a combo list.
        (IoType::List(_), IoType::Name(d)) => matches!(&**d, "*" | MATCH_TYPE | "COMBO"),
        (IoType::Name(r), IoType::List(d)) => {
            matches!(&**r, "*" | MATCH_TYPE) || (&**r == DEVICE && d.is_of("devices"))
        }
        (IoType::List(r), IoType::List(d)) => {
            let (r, d) = (r.entries(listings), d.entries(listings));
            r.len() == d.len() && r.iter().zip(d.iter()).all(|(a, b)| a.same(b))
        }
    }
}

fn names_match(received: &str, declared: &str) -> bool {
    if received == declared
        || [received, declared]
            .iter()
            .any(|t| matches!(*t, "*" | MATCH_TYPE))
    {
        return true;
    }
    let parts = |s: &str| -> Vec<String> { s.split(',').map(|t| t.trim().to_owned()).collect() };
    let (received, declared) = (parts(received), parts(declared));
    let any = |set: &[String]| set.iter().any(|t| t == "*");
    any(&received) || any(&declared) || received.iter().any(|t| declared.contains(t))
}

/// A literal that does not fit: what Python would say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoerceError(pub String);

/// Makes a literal what the declared type says. Only the four exact names convert; unions and all else pass.
pub fn coerce(declared: &str, value: &Value) -> Result<Option<Value>, CoerceError> {
    match declared {
        "INT" => to_int(value).map(|i| Some(Value::Int(i))),
        "FLOAT" => to_float(value).map(|f| Some(Value::Float(f))),
        "STRING" if matches!(value, Value::Str(_)) => Ok(None),
        "STRING" => Ok(Some(python_text(value).into())),
        "BOOLEAN" => Ok(Some(Value::Bool(value.truthy()))),
        _ => Ok(None),
    }
}

pub(crate) fn python_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Int(_) => "int",
        Value::Float(_) => "float",
        Value::Str(_) => "str",
        Value::List(_) => "list",
        Value::Map(_) => "dict",
        Value::Object(_) | Value::Blocker(_) => "object",
    }
}

fn to_int(value: &Value) -> Result<i128, CoerceError> {
    match value {
        Value::Int(i) => Ok(*i),
        Value::Bool(b) => Ok(i128::from(*b)),
        Value::Float(f) if f.is_nan() => {
            Err(CoerceError("cannot convert float NaN to integer".into()))
        }
        Value::Float(f) if f.is_infinite() => Err(CoerceError(
            "cannot convert float infinity to integer".into(),
        )),
        Value::Float(f) => Ok(f.trunc() as i128),
        Value::Str(s) => parse_python_int(s).ok_or_else(|| {
            CoerceError(format!(
                "invalid literal for int() with base 10: {}",
                python_repr(value)
            ))
        }),
        other => Err(CoerceError(format!(
            "int() argument must be a string, a bytes-like object or a real number, not '{}'",
            python_type(other)
        ))),
    }
}

fn to_float(value: &Value) -> Result<f64, CoerceError> {
    match value {
        Value::Str(s) => parse_python_float(s).ok_or_else(|| {
            CoerceError(format!(
                "could not convert string to float: {}",
                python_repr(value)
            ))
        }),
        other => other.as_f64().ok_or_else(|| {
            let kind = python_type(other);
            CoerceError(format!(
                "float() argument must be a string or a real number, not '{kind}'"
            ))
        }),
    }
}

/// Drops `_` between digits; `None` where Python would not allow one.
fn without_underscores(s: &str) -> Option<String> {
    let b = s.as_bytes();
    let digit = |i: usize| b.get(i).is_some_and(u8::is_ascii_digit);
    let misplaced = |i: usize| b[i] == b'_' && !(i > 0 && digit(i - 1) && digit(i + 1));
    if (0..b.len()).any(misplaced) {
        None
    } else {
        Some(s.replace('_', ""))
    }
}

fn parse_python_int(s: &str) -> Option<i128> {
    let s = without_underscores(s.trim())?;
    let digits = s.strip_prefix(['+', '-']).unwrap_or(&s);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    s.strip_prefix('+').unwrap_or(&s).parse().ok()
}

fn parse_python_float(s: &str) -> Option<f64> {
    let s = without_underscores(s.trim())?;
    let bare = s
        .strip_prefix(['+', '-'])
        .unwrap_or(&s)
        .to_ascii_lowercase();
    // Rust reads the same decimal forms, and `inf`, `infinity`, `nan` in any case; it must not read an empty mantissa.
    if bare.is_empty() || bare.starts_with(['+', '-']) {
        return None;
    }
    s.parse().ok()
}

/// A number for an error message: integers plain, floats with a point.
pub(crate) fn number_text(value: &Value) -> String {
    match value {
        Value::Float(f) => float_text(*f),
        other => python_text(other),
    }
}

/// `[type, options]` for `input_config`.
pub(crate) fn input_config(input: &crate::Input, listings: &dyn Listings) -> Value {
    let mut options = input.options.clone();
    if let (IoType::Name(_), Some(entries)) = (&input.ty, input.entries(listings)) {
        options.insert("options".into(), Value::List(entries));
    }
    Value::List(Arc::new(vec![input.ty.to_value(listings), options.into()]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Choices, NoListings};

    #[test]
    fn type_table_of_the_spec() {
        let rows = [
            ("STRING", "STRING,INT", true),
            ("INT,STRING", "STRING,INT", true),
            ("STRING,BOOLEAN", "STRING,INT", true),
            (" STRING , INT ", "STRING,INT", true),
            ("FLOAT,BOOLEAN", "STRING,INT", false),
            ("", "", true),
            ("STRING", "", false),
            ("*", "IMAGE", true),
            ("IMAGE", "*", true),
            ("IMAGE", "COMFY_MATCHTYPE_V3", true),
            ("IMAGE", "MASK,*", true),
        ];
        for (r, d, want) in rows {
            assert_eq!(
                types_match(&r.into(), &d.into(), &NoListings),
                want,
                "{r:?} -> {d:?}"
            );
        }
        // A chosen device goes where devices are chosen, and nowhere else.
        let listed = |source: &str| IoType::List(Choices::Listed(source.into()));
        for (source, want) in [("devices/all", true), ("models/vae", false)] {
            let found = types_match(&DEVICE.into(), &listed(source), &NoListings);
            assert_eq!(found, want, "{source}");
        }
        let list = |v: &[&str]| {
            IoType::List(Choices::Fixed(Arc::new(
                v.iter().map(|s| Value::from(*s)).collect(),
            )))
        };
        assert!(types_match(&list(&["a"]), &"COMBO".into(), &NoListings));
        assert!(types_match(&list(&["a"]), &list(&["a"]), &NoListings));
        assert!(!types_match(&list(&["a"]), &list(&["b"]), &NoListings));
        assert!(!types_match(&"COMBO".into(), &list(&["a"]), &NoListings));
        assert!(types_match(&"*".into(), &list(&["a"]), &NoListings));
    }

    #[track_caller]
    fn check(declared: &str, json: &str, want: &str) {
        let value = crate::json::parse(json).unwrap();
        let got = match coerce(declared, &value) {
            Ok(v) => python_repr(&v.unwrap_or(value)),
            Err(e) => e.0,
        };
        assert_eq!(got, want);
    }

    #[test]
    fn coercion_follows_python() {
        check("INT", "\"3\"", "3");
        check("INT", "4.7", "4");
        check("INT", "-4.7", "-4");
        check("INT", "true", "1");
        check("INT", "\" 1_000 \"", "1000");
        check(
            "INT",
            "\"5.0\"",
            "invalid literal for int() with base 10: '5.0'",
        );
        check(
            "INT",
            "\"abc\"",
            "invalid literal for int() with base 10: 'abc'",
        );
        check(
            "INT",
            "\"_1\"",
            "invalid literal for int() with base 10: '_1'",
        );
        check("INT", "NaN", "cannot convert float NaN to integer");
        check(
            "INT",
            "Infinity",
            "cannot convert float infinity to integer",
        );
        check(
            "INT",
            "null",
            "int() argument must be a string, a bytes-like object or a real number, not 'NoneType'",
        );
        check("INT", "18446744073709551615", "18446744073709551615");
        check("FLOAT", "1", "1.0");
        check("FLOAT", "\"1e3\"", "1000.0");
        check("FLOAT", "\" inf\"", "inf");
        check("FLOAT", "\"x\"", "could not convert string to float: 'x'");
        check(
            "FLOAT",
            "{}",
            "float() argument must be a string or a real number, not 'dict'",
        );
        check("STRING", "null", "'None'");
        check("STRING", "5.0", "'5.0'");
        check("STRING", "{\"a\": [1, \"b\"]}", "\"{'a': [1, 'b']}\"");
        check("BOOLEAN", "\"false\"", "True");
        check("BOOLEAN", "\"\"", "False");
        check("BOOLEAN", "0.0", "False");
        check("INT,FLOAT", "\"5\"", "'5'");
    }
}
