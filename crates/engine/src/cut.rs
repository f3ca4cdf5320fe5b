//! Shortening values that are too long to be kept: what is cut says so, and how long it was.
//!
//! A node's UI output and the inputs that an error report shows can be of any size; the database and whoever reads the
//! history cannot take any size.

use std::sync::Arc;

use fresco_graph::{Map, Value, json};

/// How long texts and lists may be.
#[derive(Clone, Copy)]
struct Caps {
    text: usize,
    items: usize,
}

/// Tried in this order until the whole is short enough.
const STEPS: [Caps; 6] = [
    caps(1 << 20, usize::MAX),
    caps(64 << 10, usize::MAX),
    caps(64 << 10, 10_000),
    caps(4 << 10, 1_000),
    caps(256, 100),
    caps(64, 10),
];

const fn caps(text: usize, items: usize) -> Caps {
    Caps { text, items }
}

/// Room for a mark, in lengths that are computed before cutting.
const MARK: usize = 80;

/// A value whose JSON text has about `limit` bytes at most; the same value if it has already.
pub(crate) fn to_fit(value: &Value, limit: usize) -> Value {
    let whole = Caps {
        text: usize::MAX,
        items: usize::MAX,
    };
    let Some(length) = length(value, whole, usize::MAX) else {
        return Value::Null;
    };
    if length <= limit {
        return value.clone();
    }
    for caps in STEPS {
        if self::length(value, caps, limit).is_some() {
            return shorten(value, caps);
        }
    }
    let mark = format!("(not kept: about {length} bytes)");
    match value {
        Value::Map(_) => Map::from_iter([("cut".into(), mark.into())]).into(),
        Value::List(_) => vec![Value::from(mark)].into(),
        _ => mark.into(),
    }
}

/// A map that fits, by the same rules.
pub(crate) fn map_to_fit(map: Map, limit: usize) -> Map {
    let value = Value::from(map);
    match to_fit(&value, limit) {
        Value::Map(map) => Arc::unwrap_or_clone(map),
        _ => Map::new(),
    }
}

/// A text of at most `limit` bytes, with its true length where it was cut.
pub(crate) fn text(text: &str, limit: usize) -> Arc<str> {
    if text.len() <= limit {
        return text.into();
    }
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}… (cut: {} bytes in all)", &text[..end], text.len()).into()
}

/// The values of one input for an error report: plain ones as they are, all else in text form, `limit` bytes at most.
pub(crate) fn shown_input(values: &[Value], limit: usize) -> Value {
    let mut shown = Vec::new();
    let mut left = limit;
    for (at, value) in values.iter().enumerate() {
        if left == 0 {
            shown.push(format!("… (cut: {} values in all)", values.len()).into());
            break;
        }
        let value = match value {
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => value.clone(),
            Value::Str(s) => text(s, left).into(),
            other => text(&json::python_text(&to_fit(other, left)), left).into(),
        };
        // The first value is shown however little room there is.
        let used = 8 + value.as_str().map_or(0, str::len);
        left = left.saturating_sub(used.max(usize::from(at == 0)));
        shown.push(value);
    }
    shown.into()
}

/// About how long the JSON text of a value will be under these caps; nothing if that is beyond `limit`.
fn length(value: &Value, caps: Caps, limit: usize) -> Option<usize> {
    let mut sum = 0_usize;
    // Not by recursion: how deep a node nests what it makes is not known here.
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        sum = sum.saturating_add(match value {
            Value::Str(s) => text_length(s, caps),
            Value::List(list) => {
                open.extend(list.iter().take(caps.items));
                2 + list.len().min(caps.items) + if list.len() > caps.items { MARK } else { 0 }
            }
            Value::Map(map) => {
                let keys = map.keys().take(caps.items);
                open.extend(map.values().take(caps.items));
                keys.map(|key| text_length(key, caps) + 2).sum::<usize>()
                    + if map.len() > caps.items { MARK } else { 2 }
            }
            _ => 12,
        });
        if sum > limit {
            return None;
        }
    }
    Some(sum)
}

fn text_length(text: &str, caps: Caps) -> usize {
    if text.len() > caps.text {
        caps.text + MARK
    } else {
        text.len() + 2
    }
}

fn shorten(value: &Value, caps: Caps) -> Value {
    match value {
        Value::Str(s) if s.len() > caps.text => text(s, caps.text).into(),
        Value::List(list) => {
            let mut short: Vec<Value> = list
                .iter()
                .take(caps.items)
                .map(|item| shorten(item, caps))
                .collect();
            if list.len() > caps.items {
                short.push(format!("… (cut: {} entries in all)", list.len()).into());
            }
            short.into()
        }
        Value::Map(map) => {
            let mut short: Map = map
                .iter()
                .take(caps.items)
                .map(|(key, item)| (text(key, caps.text), shorten(item, caps)))
                .collect();
            if map.len() > caps.items {
                short.insert(
                    "…".into(),
                    format!("(cut: {} entries in all)", map.len()).into(),
                );
            }
            short.into()
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use fresco_graph::map;

    use super::*;

    #[test]
    fn what_fits_stays_and_what_does_not_says_its_length() {
        let small = Value::from(map! {"a" => vec![Value::from("text")]});
        assert_eq!(
            json::to_string(&to_fit(&small, 1000)),
            json::to_string(&small)
        );
        let long = "é".repeat(2 << 20);
        let value = Value::from(map! {"long" => long.as_str(), "short" => "kept"});
        let cut = to_fit(&value, 2 << 20);
        assert_eq!(cut.get("short"), Some(&Value::from("kept")));
        let text = cut.get("long").unwrap().as_str().unwrap();
        assert!(text.len() < (1 << 20) + 100);
        assert!(text.ends_with("… (cut: 4194304 bytes in all)"));
    }

    #[test]
    fn every_shape_of_too_much_gets_short() {
        let many: Value = (0..200_000).map(Value::from).collect::<Vec<_>>().into();
        let keys: Map = (0..50_000)
            .map(|i| (format!("key {i}").into(), "x".repeat(50).into()))
            .collect();
        let square: Value = (0..400)
            .map(|_| {
                (0..400)
                    .map(|_| "text".into())
                    .collect::<Vec<Value>>()
                    .into()
            })
            .collect::<Vec<Value>>()
            .into();
        let flat: Value = "x".repeat(1 << 20).into();
        for value in [many, keys.into(), square, flat] {
            for limit in [100_000, 10_000, 2_000] {
                let text = json::to_string(&to_fit(&value, limit));
                assert!(text.len() <= limit * 2, "{} for {limit}", text.len());
                assert!(
                    text.contains("cut: ") || text.contains("not kept: "),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn an_input_is_shown_within_its_limit() {
        let long: Value = "x".repeat(1000).into();
        let shown = shown_input(&[long.clone(), Value::Int(3)], 100);
        let list = shown.as_list().unwrap();
        assert!(
            list[0]
                .as_str()
                .unwrap()
                .ends_with("… (cut: 1000 bytes in all)")
        );
        assert_eq!(list[1].as_str(), Some("… (cut: 2 values in all)"));
        let list = vec![long; 3];
        let nested = shown_input(&[list.into()], 200);
        assert!(nested.as_list().unwrap()[0].as_str().unwrap().len() < 300);
        let plain = shown_input(&[Value::Int(1), "a".into()], 1000);
        assert_eq!(plain, vec![Value::Int(1), "a".into()].into());
    }
}
