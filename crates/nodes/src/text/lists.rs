//! Text nodes of the dataset family. Their results are lists inside one value, as the reference gives them.

use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeOutput, NodeResult, Output, Value};

use super::letters::is_space;
use super::{join, part, recased, replace, substring};

fn texts() -> Output {
    Output::new("STRING").named("texts").list_unset()
}

fn one(text: impl Into<Value>) -> NodeOutput {
    NodeOutput::one(vec![text.into()])
}

/// Turns texts to lower case.
#[derive(Node)]
#[node(
    id = "TextToLowercase",
    v3,
    module = "comfy_extras.nodes_dataset",
    display = "Text to Lowercase",
    category = "dataset/text",
    outputs(texts()),
    experimental
)]
pub struct TextToLowercase {
    /// The text to change.
    #[input(multiline = false)]
    texts: Arc<str>,
}

impl Node for TextToLowercase {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(one(recased(&self.texts, str::to_lowercase)?))
    }
}

/// Turns texts to upper case.
#[derive(Node)]
#[node(
    id = "TextToUppercase",
    v3,
    module = "comfy_extras.nodes_dataset",
    display = "Text to Uppercase",
    category = "dataset/text",
    outputs(texts()),
    experimental
)]
pub struct TextToUppercase {
    /// The text to change.
    #[input(multiline = false)]
    texts: Arc<str>,
}

impl Node for TextToUppercase {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(one(recased(&self.texts, str::to_uppercase)?))
    }
}

/// Cuts texts to a length.
#[derive(Node)]
#[node(
    id = "TruncateText",
    v3,
    module = "comfy_extras.nodes_dataset",
    display = "Truncate Text",
    category = "dataset/text",
    outputs(texts()),
    experimental
)]
pub struct TruncateText {
    /// The text to change.
    #[input(multiline = false)]
    texts: Arc<str>,
    /// The longest a text may be, in characters.
    #[input(default = 77, min = 1, max = 10000)]
    max_length: i64,
}

impl Node for TruncateText {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(one(substring(&self.texts, 0, self.max_length)?))
    }
}

/// Puts a text before others.
#[derive(Node)]
#[node(
    id = "AddTextPrefix",
    v3,
    module = "comfy_extras.nodes_dataset",
    display = "Add Text Prefix",
    category = "dataset/text",
    outputs(texts()),
    experimental
)]
pub struct AddTextPrefix {
    /// The text to change.
    #[input(multiline = false)]
    texts: Arc<str>,
    #[input(default = "", multiline = false)]
    prefix: Arc<str>,
}

impl Node for AddTextPrefix {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(one(join(&[&self.prefix, &self.texts])?))
    }
}

/// Puts a text after others.
#[derive(Node)]
#[node(
    id = "AddTextSuffix",
    v3,
    module = "comfy_extras.nodes_dataset",
    display = "Add Text Suffix",
    category = "dataset/text",
    outputs(texts()),
    experimental
)]
pub struct AddTextSuffix {
    /// The text to change.
    #[input(multiline = false)]
    texts: Arc<str>,
    #[input(default = "", multiline = false)]
    suffix: Arc<str>,
}

impl Node for AddTextSuffix {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(one(join(&[&self.texts, &self.suffix])?))
    }
}

/// Replaces a text in others.
#[derive(Node)]
#[node(
    id = "ReplaceText",
    v3,
    module = "comfy_extras.nodes_dataset",
    display = "Replace Text",
    category = "dataset/text",
    outputs(texts()),
    experimental
)]
pub struct ReplaceText {
    /// The text to change.
    #[input(multiline = false)]
    texts: Arc<str>,
    #[input(default = "", multiline = false)]
    find: Arc<str>,
    #[input(default = "", multiline = false)]
    replace: Arc<str>,
}

impl Node for ReplaceText {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(one(replace(&self.texts, &self.find, &self.replace)?))
    }
}

/// Removes white space around texts.
#[derive(Node)]
#[node(
    id = "StripWhitespace",
    v3,
    module = "comfy_extras.nodes_dataset",
    display = "Strip Whitespace",
    category = "dataset/text",
    outputs(texts()),
    experimental
)]
pub struct StripWhitespace {
    /// The text to change.
    #[input(multiline = false)]
    texts: Arc<str>,
}

impl Node for StripWhitespace {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(one(part(self.texts.trim_matches(is_space))?))
    }
}

/// Gathers texts from several lists in one.
#[derive(Node)]
#[node(
    id = "MergeTextLists",
    v3,
    module = "comfy_extras.nodes_dataset",
    display = "Merge Text Lists",
    category = "dataset/text",
    outputs(texts()),
    experimental,
    input_is_list
)]
pub struct MergeTextLists {
    /// The texts to gather.
    #[input(ty = "STRING", multiline = false)]
    texts: Vec<Value>,
}

impl Node for MergeTextLists {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(one(self.texts))
    }
}
