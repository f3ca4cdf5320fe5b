//! Rust types read from values, through serde.
//!
//! Messages between our own processes are serde types that hold prompts and results. serde's JSON crate writes them; their text is
//! read by [`json`](crate::json), which keeps integers of any size and bounds the depth, and the types are read from its values here.

use std::fmt::Display;
use std::sync::Arc;

use serde::de::value::{BorrowedStrDeserializer, MapAccessDeserializer, SeqDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::{Deserialize, Serialize, Serializer, forward_to_deserialize_any};

use crate::{Map, Value};

/// Entries of a list in a typed message. Lists inside a [`Value`] are bounded by the size of the text alone.
pub const MOST_ENTRIES: usize = 100_000;

/// Why a value is not of a type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TypeError(String);

impl serde::de::Error for TypeError {
    fn custom<T: Display>(text: T) -> Self {
        Self(text.to_string())
    }
}

/// Reads a typed message from a value.
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, TypeError> {
    T::deserialize(value)
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null | Self::Blocker(_) => to.serialize_unit(),
            Self::Bool(is) => to.serialize_bool(*is),
            Self::Int(number) => to.serialize_i128(*number),
            Self::Float(number) => to.serialize_f64(*number),
            Self::Str(text) => to.serialize_str(text),
            Self::List(list) => to.collect_seq(list.iter()),
            Self::Map(map) => to.collect_map(map.iter()),
            Self::Object(object) => to.serialize_str(&object.describe()),
        }
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, is: bool) -> Result<Value, E> {
        Ok(is.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Int(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Int(number.into()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Value, E> {
        Ok(Value::Int(number))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Value>()? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, value)) = entries.next_entry::<Arc<str>, Value>()? {
            map.insert(key, value);
        }
        Ok(map.into())
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AnyValue)
    }
}

impl<'de> IntoDeserializer<'de, TypeError> for &'de Value {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// The entries of a map. An error says which field it is in.
struct Entries<'de> {
    left: indexmap::map::Iter<'de, Arc<str>, Value>,
    next: Option<(&'de str, &'de Value)>,
}

fn entries(map: &Map) -> Entries<'_> {
    Entries {
        left: map.iter(),
        next: None,
    }
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = TypeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, TypeError> {
        let Some((key, value)) = self.left.next() else {
            return Ok(None);
        };
        self.next = Some((key, value));
        let key: BorrowedStrDeserializer<'_, TypeError> = BorrowedStrDeserializer::new(key);
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, TypeError> {
        let Some((key, value)) = self.next.take() else {
            return Err(serde::de::Error::custom("a value without its key"));
        };
        let read = seed.deserialize(value);
        read.map_err(|TypeError(why)| TypeError(format!("{key}: {why}")))
    }
}

impl<'de> Deserializer<'de> for &'de Value {
    type Error = TypeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        match self {
            Value::Null | Value::Blocker(_) => visitor.visit_unit(),
            Value::Bool(is) => visitor.visit_bool(*is),
            Value::Int(number) => match (u64::try_from(*number), i64::try_from(*number)) {
                (Ok(number), _) => visitor.visit_u64(number),
                (_, Ok(number)) => visitor.visit_i64(number),
                _ => visitor.visit_i128(*number),
            },
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Str(text) => visitor.visit_borrowed_str(text),
            Value::List(list) => visitor.visit_seq(SeqDeserializer::new(list.iter())),
            Value::Map(map) => visitor.visit_map(entries(map)),
            Value::Object(object) => visitor.visit_string(object.describe()),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        match self {
            Value::List(list) if list.len() > MOST_ENTRIES => Err(TypeError(format!(
                "a list has {} entries, and at most {MOST_ENTRIES} are read",
                list.len()
            ))),
            _ => self.deserialize_any(visitor),
        }
    }

    /// Not-a-number may have been written as null.
    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        match self {
            Value::Null => visitor.visit_f64(f64::NAN),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        match self {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, TypeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TypeError> {
        match self {
            Value::Str(name) => visitor.visit_enum(name.as_ref().into_deserializer()),
            Value::Map(map) if map.len() == 1 => {
                visitor.visit_enum(MapAccessDeserializer::new(entries(map)))
            }
            Value::Map(map) => Err(serde::de::Error::invalid_length(map.len(), &"one variant")),
            _ => Err(serde::de::Error::invalid_type(
                Unexpected::Other(&crate::json::to_string(self)),
                &"a variant",
            )),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 char str string bytes byte_buf unit
        unit_struct tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Shape {
        Point,
        Circle(f64),
        Box { width: u64, name: Option<Arc<str>> },
    }

    #[derive(Serialize, Deserialize)]
    struct Drawing {
        shapes: Vec<Shape>,
        pair: (u8, i64),
        prompt: Arc<Map>,
        any: Value,
    }

    #[test]
    fn a_typed_message_comes_back_as_it_was() {
        let any =
            r#"{"seed": 340282366920938463463, "low": -9, "x": [1, 1.0, null, "é", {"b": true}]}"#;
        let drawing = Drawing {
            shapes: vec![
                Shape::Point,
                Shape::Circle(0.5),
                Shape::Box {
                    width: u64::MAX,
                    name: Some("n".into()),
                },
            ],
            pair: (3, -4),
            prompt: Arc::new(crate::map! {"1" => crate::map! {"class_type" => "X"}}),
            any: json::parse(any).unwrap(),
        };
        let text = serde_json::to_string(&drawing).unwrap();
        assert!(text.contains("340282366920938463463"), "{text}");
        assert!(
            text.contains(r#""box":{"width":18446744073709551615"#),
            "{text}"
        );
        let read: Drawing = from_value(&json::parse(&text).unwrap()).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert_eq!(read.shapes, drawing.shapes);
    }

    #[test]
    fn what_is_missing_unknown_or_too_long_is_named() {
        let read = |text: &str| {
            let value = json::parse(text).unwrap();
            from_value::<Shape>(&value).unwrap_err().to_string()
        };
        assert!(read(r#"{"box": {}}"#).contains("width"));
        assert!(read(r#"{"box": {"width": "x"}}"#).starts_with("box: width: invalid type"));
        assert!(read(r#""star""#).contains("star"));
        assert!(read(r#"{"point": null, "circle": 1}"#).contains("one variant"));
        assert!(read("[7]").contains("[7]"));
        let long = Value::from(vec![Value::Null; MOST_ENTRIES + 1]);
        let error = from_value::<Vec<Value>>(&long).unwrap_err().to_string();
        assert!(error.contains("100001 entries"), "{error}");
        let number: f64 = from_value(&Value::Null).unwrap();
        assert!(number.is_nan());
        // New fields may come.
        let more = json::parse(r#"{"box": {"width": 1, "depth": 2}}"#).unwrap();
        assert!(from_value::<Shape>(&more).is_ok());
    }
}
