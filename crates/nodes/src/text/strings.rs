//! Plain text: joining, cutting, comparing, letter case.

use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output};

use super::letters::{capitalize, is_space, title};
use super::{join, part, recased, replace, substring};

/// Joins two texts.
#[derive(Node)]
#[node(
    id = "StringConcatenate",
    v3,
    module = "comfy_extras.nodes_string",
    display = "Concatenate",
    category = "utils/string",
    outputs("STRING")
)]
pub struct StringConcatenate {
    #[input(multiline = true)]
    string_a: Arc<str>,
    #[input(multiline = true)]
    string_b: Arc<str>,
    /// What stands between the two.
    #[input(default = "")]
    delimiter: Arc<str>,
}

impl Node for StringConcatenate {
    fn run(self, _: &Cx) -> NodeResult {
        let parts = [&*self.string_a, &*self.delimiter, &*self.string_b];
        Ok(NodeOutput::one(join(&parts)?))
    }
}

/// Cuts a part out of a text; negative places count from the end.
#[derive(Node)]
#[node(
    id = "StringSubstring",
    v3,
    module = "comfy_extras.nodes_string",
    display = "Substring",
    category = "utils/string",
    outputs("STRING")
)]
pub struct StringSubstring {
    #[input(multiline = true)]
    string: Arc<str>,
    /// The first character to take, counted from 0.
    start: i64,
    /// The character before which to end.
    end: i64,
}

impl Node for StringSubstring {
    fn run(self, _: &Cx) -> NodeResult {
        let part = substring(&self.string, self.start, self.end)?;
        Ok(NodeOutput::one(part))
    }
}

/// Counts the characters of a text.
#[derive(Node)]
#[node(id = "StringLength", v3, module = "comfy_extras.nodes_string", display = "Length", category = "utils/string", outputs(Output::new("INT").named("length")))]
pub struct StringLength {
    #[input(multiline = true)]
    string: Arc<str>,
}

impl Node for StringLength {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.string.chars().count()))
    }
}

/// Changes the letter case of a text.
#[derive(Node)]
#[node(
    id = "CaseConverter",
    v3,
    module = "comfy_extras.nodes_string",
    display = "Case Converter",
    category = "utils/string",
    outputs("STRING")
)]
pub struct CaseConverter {
    #[input(multiline = true)]
    string: Arc<str>,
    /// How letters are written.
    #[input(choices = ["UPPERCASE", "lowercase", "Capitalize", "Title Case"])]
    mode: String,
}

impl Node for CaseConverter {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(match self.mode.as_str() {
            "UPPERCASE" => recased(&self.string, str::to_uppercase)?,
            "lowercase" => recased(&self.string, str::to_lowercase)?,
            // With the lower case beside the result.
            "Capitalize" => recased(&self.string, capitalize)?,
            "Title Case" => recased(&self.string, title)?,
            _ => self.string,
        }))
    }
}

/// Removes white space around a text.
#[derive(Node)]
#[node(
    id = "StringTrim",
    v3,
    module = "comfy_extras.nodes_string",
    display = "Trim",
    category = "utils/string",
    outputs("STRING")
)]
pub struct StringTrim {
    #[input(multiline = true)]
    string: Arc<str>,
    /// The end of the text where blanks are removed.
    #[input(choices = ["Both", "Left", "Right"])]
    mode: String,
}

impl Node for StringTrim {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(part(match self.mode.as_str() {
            "Both" => self.string.trim_matches(is_space),
            "Left" => self.string.trim_start_matches(is_space),
            "Right" => self.string.trim_end_matches(is_space),
            _ => &self.string,
        })?))
    }
}

/// Replaces every occurrence of a text by another.
#[derive(Node)]
#[node(
    id = "StringReplace",
    v3,
    module = "comfy_extras.nodes_string",
    display = "Replace",
    category = "utils/string",
    outputs("STRING")
)]
pub struct StringReplace {
    #[input(multiline = true)]
    string: Arc<str>,
    /// The text to look for.
    #[input(multiline = true)]
    find: Arc<str>,
    #[input(multiline = true)]
    replace: Arc<str>,
}

impl Node for StringReplace {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(replace(
            &self.string,
            &self.find,
            &self.replace,
        )?))
    }
}

/// Both texts, in lower case where case does not count.
fn folded(
    a: Arc<str>,
    b: Arc<str>,
    case_sensitive: bool,
) -> Result<(Arc<str>, Arc<str>), NodeError> {
    if case_sensitive {
        return Ok((a, b));
    }
    let lower = |text: &str| recased(text, str::to_lowercase);
    Ok((lower(&a)?, lower(&b)?))
}

/// Tells whether a text contains another.
#[derive(Node)]
#[node(id = "StringContains", v3, module = "comfy_extras.nodes_string", display = "Contains", category = "utils/string", outputs(Output::new("BOOLEAN").named("contains")))]
pub struct StringContains {
    #[input(multiline = true)]
    string: Arc<str>,
    /// The text to look for.
    #[input(multiline = true)]
    substring: Arc<str>,
    #[input(default = true)]
    case_sensitive: bool,
}

impl Node for StringContains {
    fn run(self, _: &Cx) -> NodeResult {
        let (text, part) = folded(self.string, self.substring, self.case_sensitive)?;
        Ok(NodeOutput::one(text.contains(&*part)))
    }
}

/// Compares two texts.
#[derive(Node)]
#[node(
    id = "StringCompare",
    v3,
    module = "comfy_extras.nodes_string",
    display = "Compare",
    category = "utils/string",
    outputs("BOOLEAN")
)]
pub struct StringCompare {
    #[input(multiline = true)]
    string_a: Arc<str>,
    #[input(multiline = true)]
    string_b: Arc<str>,
    /// Whether the first text starts with the second, ends with it, or is equal to it.
    #[input(choices = ["Starts With", "Ends With", "Equal"])]
    mode: String,
    #[input(default = true)]
    case_sensitive: bool,
}

impl Node for StringCompare {
    fn run(self, _: &Cx) -> NodeResult {
        let (a, b) = folded(self.string_a, self.string_b, self.case_sensitive)?;
        Ok(NodeOutput::one(match self.mode.as_str() {
            "Equal" => a == b,
            "Starts With" => a.starts_with(&*b),
            "Ends With" => a.ends_with(&*b),
            other => {
                return Err(NodeError::value_error(format!(
                    "unknown comparison '{other}'"
                )));
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twenty such nodes in a row, each fed twice by the one before, once filled the memory.
    #[test]
    fn a_text_cannot_be_doubled_for_ever() {
        let cx = Cx::detached(std::sync::Arc::default());
        let half = "x".repeat(super::super::MAX_BYTES / 2 + 1);
        let node = StringConcatenate {
            string_a: half.as_str().into(),
            string_b: half.into(),
            delimiter: "".into(),
        };
        let error = node.run(&cx).unwrap_err();
        assert_eq!(error.kind(), "MemoryError");
    }
}
