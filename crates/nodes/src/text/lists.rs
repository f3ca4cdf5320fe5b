//! Text nodes of the dataset family. Their results are lists inside one value, as the reference gives them.

use std::sync::Arc;

use fresco_graph::{
    Args, Cx, Form, Input, Node, NodeError, NodeOutput, NodeResult, NodeRow, Output, Schema, Value,
};

use super::letters::is_space;
use super::{join, part, recased, replace, substring};

fn texts() -> Output {
    Output::new("STRING").named("texts").list_unset()
}

fn one(text: impl Into<Value>) -> NodeOutput {
    NodeOutput::one(vec![text.into()])
}

/// A text and the further ones to the changed text.
type Change = fn(&str, &[Arc<str>]) -> Result<Arc<str>, NodeError>;

/// A change of a text that further texts may decide: a row of the table below.
pub(super) struct TextChange {
    id: &'static str,
    display: &'static str,
    about: &'static str,
    /// Names and tooltips of the further texts.
    more: &'static [(&'static str, &'static str)],
    change: Change,
}

impl NodeRow for TextChange {
    fn schema(&self) -> Schema {
        let line = |name: &str| Input::new(name, "STRING");
        let mut schema = Schema::new(self.id, Form::V3)
            .module("comfy_extras.nodes_dataset")
            .display_name(self.display)
            .category("dataset/text")
            .description(self.about)
            .output(texts())
            .input(line("texts").option("multiline", false));
        schema.experimental = true;
        self.more.iter().fold(schema, |schema, (name, about)| {
            let input = line(name).tooltip(about).option("default", "");
            schema.input(input.option("multiline", false))
        })
    }

    fn run(&self, mut args: Args, _: &Cx) -> NodeResult {
        let text: Arc<str> = args.take("texts")?;
        let more = self.more.iter().map(|(name, _)| args.take(name));
        let more = more.collect::<Result<Vec<_>, _>>()?;
        Ok(one((self.change)(&text, &more)?))
    }
}

pub(super) static LOWERCASE: TextChange = TextChange {
    id: "TextToLowercase",
    display: "Text to Lowercase",
    about: "Turns texts to lower case.",
    more: &[],
    change: |text, _| recased(text, str::to_lowercase),
};

pub(super) static UPPERCASE: TextChange = TextChange {
    id: "TextToUppercase",
    display: "Text to Uppercase",
    about: "Turns texts to upper case.",
    more: &[],
    change: |text, _| recased(text, str::to_uppercase),
};

pub(super) static PREFIX: TextChange = TextChange {
    id: "AddTextPrefix",
    display: "Add Text Prefix",
    about: "Puts a text before others.",
    more: &[("prefix", "The text to put before it.")],
    change: |text, more| join(&[&more[0], text]),
};

pub(super) static SUFFIX: TextChange = TextChange {
    id: "AddTextSuffix",
    display: "Add Text Suffix",
    about: "Puts a text after others.",
    more: &[("suffix", "The text to put after it.")],
    change: |text, more| join(&[text, &more[0]]),
};

pub(super) static REPLACE: TextChange = TextChange {
    id: "ReplaceText",
    display: "Replace Text",
    about: "Replaces a text in others.",
    more: &[
        ("find", "The text to look for."),
        ("replace", "What takes its place."),
    ],
    change: |text, more| replace(text, &more[0], &more[1]),
};

pub(super) static STRIP: TextChange = TextChange {
    id: "StripWhitespace",
    display: "Strip Whitespace",
    about: "Removes white space around texts.",
    more: &[],
    change: |text, _| part(text.trim_matches(is_space)),
};

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
