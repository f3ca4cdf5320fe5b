//! Texts that hold JSON.

use std::sync::Arc;

use fresco_graph::json::{self, PYTHON, Style, python_text};
use fresco_graph::{Cx, Map, Node, NodeError, NodeOutput, NodeResult, Value, wrong_kind};
use fresco_tensor::with_memory;

use super::made;

/// Braces that are tried; language models write a few.
const MAX_BRACES: usize = 10_000;

/// The value of a key in the first JSON object that a text holds; what stands around it does not matter.
#[derive(Node)]
#[node(
    id = "JsonExtractString",
    v3,
    module = "comfy_extras.nodes_string",
    display = "Extract Text from JSON",
    category = "utils/string",
    outputs("STRING")
)]
pub struct JsonExtractString {
    /// The text that has a JSON object in it.
    #[input(default = "", multiline = true)]
    json_string: Arc<str>,
    /// Name of the value to take.
    #[input(default = "")]
    key: Arc<str>,
}

impl Node for JsonExtractString {
    fn run(self, _: &Cx) -> NodeResult {
        // A number of one digit becomes a value of many bytes.
        let most = self.json_string.len();
        let object = with_memory(16 * most as u64, || first_object(&self.json_string))?;
        let found = object.as_ref().and_then(|o| o.get(&*self.key));
        // Escapes are at most six letters for two bytes.
        let text = made(3 * most, || match found {
            None | Some(Value::Null) => String::new(),
            Some(value @ (Value::List(_) | Value::Map(_))) => json::to_python(value),
            Some(value) => python_text(value),
        })?;
        Ok(NodeOutput::one(text))
    }
}

fn first_object(text: &str) -> Option<Map> {
    let braces = text.match_indices('{').take(MAX_BRACES);
    braces
        .filter_map(|(at, _)| json::parse_start(&text[at..]).ok())
        .find_map(|value| value.as_map().cloned())
}

fn indented(value: &Value, indent: i64) -> String {
    let mut out = String::new();
    let style = Style {
        // Without indentation Python still breaks the lines.
        indent: Some(usize::try_from(indent).unwrap_or(0).min(8)),
        ascii: false,
        ..PYTHON
    };
    json::write(&mut out, value, style);
    out
}

/// Writes a dictionary as JSON.
#[derive(Node)]
#[node(
    id = "ConvertDictionaryToString",
    v3,
    module = "comfy_extras.nodes_string",
    display = "Convert Dictionary to String",
    category = "utils/string",
    outputs("STRING")
)]
pub struct ConvertDictionaryToString {
    /// The dictionary.
    #[input(ty = "DICT")]
    dictionary: Value,
    /// Blanks before each level.
    #[input(optional, or = 2, default = 2, min = 0, max = 8)]
    indent: i64,
}

impl Node for ConvertDictionaryToString {
    fn run(self, _: &Cx) -> NodeResult {
        if self.dictionary.as_map().is_none() {
            return Err(NodeError::type_error(wrong_kind(
                "a dictionary",
                &self.dictionary,
            )));
        }
        Ok(NodeOutput::one(indented(&self.dictionary, self.indent)))
    }
}

/// Writes an array as JSON.
#[derive(Node)]
#[node(
    id = "ConvertArrayToString",
    v3,
    module = "comfy_extras.nodes_string",
    display = "Convert Array to String",
    category = "utils/string",
    outputs("STRING")
)]
pub struct ConvertArrayToString {
    /// The array.
    #[input(ty = "ARRAY")]
    array: Value,
    /// Blanks before each level.
    #[input(optional, or = 2, default = 2, min = 0, max = 8)]
    indent: i64,
}

impl Node for ConvertArrayToString {
    fn run(self, _: &Cx) -> NodeResult {
        if self.array.as_list().is_none() {
            return Err(NodeError::type_error(wrong_kind("an array", &self.array)));
        }
        Ok(NodeOutput::one(indented(&self.array, self.indent)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fresco_graph::{Resources, Slots, map};

    #[track_caller]
    fn check(text: &str, key: &str, wanted: &str) {
        let node = JsonExtractString {
            json_string: text.into(),
            key: key.into(),
        };
        let cx = Cx::detached(Arc::new(Resources::default()));
        let Slots::Values(found) = node.run(&cx).unwrap().slots else {
            panic!("no value");
        };
        assert_eq!(found, [Value::from(wanted)], "{text}");
    }

    #[test]
    fn the_first_object_counts() {
        check(r#"Sure: ```{"a": "x", "b": 1}``` {"a": "y"}"#, "a", "x");
        check(r#"{not} {"a": "x"}"#, "a", "x");
        check(r#"{"b": {"a": "inner"}}"#, "a", "");
        check(r#"{"a": null}"#, "a", "");
        check(r#"{"a": 1.0}"#, "a", "1.0");
        check(r#"{"a": true}"#, "a", "True");
        check(
            r#"{"a": {"b": [1, "é"]}}"#,
            "a",
            "{\"b\": [1, \"\\u00e9\"]}",
        );
        check("[1, 2]", "a", "");
        check(r#"{"a": "unclosed"#, "a", "");
        check("", "", "");
        check(&"{\"a\":".repeat(100_000), "a", "");
    }

    #[test]
    fn dictionaries_are_indented() {
        let value: Value = map! {"a" => vec![1, 2], "b" => "é"}.into();
        let wanted = "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": \"é\"\n}";
        assert_eq!(indented(&value, 2), wanted);
    }
}
