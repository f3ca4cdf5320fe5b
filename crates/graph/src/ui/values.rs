//! Small values of a file, however they are spelled.

use std::sync::Arc;

use super::options::{MAX_ID, MAX_TYPE};
use crate::Value;

/// The id of the node inside a subgraph that stands for its inputs.
pub(super) const INPUT_NODE: &str = "-10";

/// An id as text: files have numbers, texts and now and then a whole float.
pub(super) fn id_text(value: Option<&Value>) -> Option<Arc<str>> {
    let text: Arc<str> = match value? {
        Value::Str(s) => s.clone(),
        Value::Int(i) => i.to_string().into(),
        Value::Float(f) if f.is_finite() && f.fract() == 0.0 && f.abs() < 1e15 => {
            (*f as i64).to_string().into()
        }
        _ => return None,
    };
    (!text.is_empty() && text.len() <= MAX_ID).then_some(text)
}

/// A slot number or mode; anything absurd is as if it were not there.
pub(super) fn small_int(value: Option<&Value>) -> Option<i64> {
    match value? {
        Value::Int(i) => i64::try_from(*i).ok(),
        Value::Float(f) if f.fract() == 0.0 && f.abs() < 1e15 => Some(*f as i64),
        Value::Str(s) => s.parse().ok(),
        _ => None,
    }
}

pub(super) fn text(value: Option<&Value>) -> Option<Arc<str>> {
    match value? {
        Value::Str(s) => Some(s.clone()),
        _ => None,
    }
}

pub(super) fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_list).unwrap_or(&[])
}

/// A slot's type as text; lists and numbers occur in old files.
pub(super) fn type_text(value: Option<&Value>) -> Arc<str> {
    match value {
        Some(Value::Str(s)) if s.len() <= MAX_TYPE => s.clone(),
        Some(Value::List(_)) => "COMBO".into(),
        // The editor writes its "any type" as 0 or -1 in places.
        _ => "*".into(),
    }
}

/// A value as JavaScript writes it into a text.
pub(super) fn js_text(value: &Value) -> String {
    match value {
        Value::Str(s) => s.to_string(),
        Value::Float(f) if f.fract() == 0.0 && f.abs() < 1e15 => (*f as i64).to_string(),
        Value::Float(f) => format!("{f}"),
        Value::Bool(b) => b.to_string(),
        other => crate::json::to_string(other),
    }
}
