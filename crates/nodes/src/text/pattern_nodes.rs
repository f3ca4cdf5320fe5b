//! Nodes that search text by pattern.

use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output, Value};

use super::pattern::{Flags, Pattern};
use super::{GrowingText, part};

/// Tells whether a pattern occurs in a text; a broken pattern does not.
#[derive(Node)]
#[node(id = "RegexMatch", v3, module = "comfy_extras.nodes_string", display = "Regex Match", category = "utils/string", outputs(Output::new("BOOLEAN").named("matches")))]
pub struct RegexMatch {
    #[input(multiline = true)]
    string: Arc<str>,
    #[input(multiline = true)]
    regex_pattern: Arc<str>,
    #[input(default = true)]
    case_insensitive: bool,
    #[input(default = false)]
    multiline: bool,
    #[input(default = false)]
    dotall: bool,
}

/// The pattern; nothing if Python would not take it, which these nodes pass over.
fn tolerant(pattern: &str, flags: Flags, text: &str) -> Result<Option<Pattern>, NodeError> {
    match Pattern::new(pattern, flags, text.len()) {
        Ok(pattern) => Ok(Some(pattern)),
        Err(error) if error.kind() == "re.error" => Ok(None),
        Err(error) => Err(error),
    }
}

impl Node for RegexMatch {
    fn run(self, cx: &Cx) -> NodeResult {
        let flags = Flags {
            ignore_case: self.case_insensitive,
            multiline: self.multiline,
            dotall: self.dotall,
        };
        let found = match tolerant(&self.regex_pattern, flags, &self.string)? {
            Some(pattern) => pattern.search(&self.string, cx)?.is_some(),
            None => false,
        };
        Ok(NodeOutput::one(found))
    }
}

/// Texts joined by line breaks.
#[derive(Default)]
struct Lines {
    text: GrowingText,
    count: usize,
}

impl Lines {
    fn add(&mut self, line: &str) -> Result<(), NodeError> {
        if self.count > 0 {
            self.text.push("\n")?;
        }
        self.count += 1;
        self.text.push(line)
    }
}

/// Takes what a pattern matches, or one of its groups, out of a text; several results are joined by line breaks.
#[derive(Node)]
#[node(
    id = "RegexExtract",
    v3,
    module = "comfy_extras.nodes_string",
    display = "Regex Extract",
    category = "utils/string",
    outputs("STRING")
)]
pub struct RegexExtract {
    #[input(multiline = true)]
    string: Arc<str>,
    #[input(multiline = true)]
    regex_pattern: Arc<str>,
    /// What to take: the first match or all, whole or one group of it.
    #[input(choices = ["First Match", "All Matches", "First Group", "All Groups"])]
    mode: String,
    #[input(default = true)]
    case_insensitive: bool,
    #[input(default = false)]
    multiline: bool,
    #[input(default = false)]
    dotall: bool,
    /// Number of the group; 0 is the whole match.
    #[input(default = 1, min = 0, max = 100)]
    group_index: i64,
}

impl Node for RegexExtract {
    fn run(self, cx: &Cx) -> NodeResult {
        let flags = Flags {
            ignore_case: self.case_insensitive,
            multiline: self.multiline,
            dotall: self.dotall,
        };
        let Some(pattern) = tolerant(&self.regex_pattern, flags, &self.string)? else {
            return Ok(NodeOutput::one(""));
        };
        let text = &*self.string;
        let group = super::super::latent::size("group_index", self.group_index)?;
        let groups = pattern.groups();
        let out: Value = match self.mode.as_str() {
            "First Match" => match pattern.search(text, cx)? {
                Some(found) => part(found.get(0).unwrap_or_default())?.into(),
                None => "".into(),
            },
            "All Matches" => {
                // Patterns with groups give their first group instead.
                let wanted = groups.min(1);
                let mut lines = Lines::default();
                pattern.each(text, cx, |found| {
                    lines.add(found.get(wanted).unwrap_or_default())?;
                    Ok(true)
                })?;
                lines.text.finish()?.into()
            }
            "First Group" => match pattern.search(text, cx)? {
                Some(found) if groups >= group => found.get(group).map(part).transpose()?.into(),
                _ => "".into(),
            },
            "All Groups" if groups > 0 && groups >= group => {
                let mut lines = Lines::default();
                pattern.each(text, cx, |found| {
                    let part = found.get(group).ok_or_else(|| {
                        NodeError::type_error(format!(
                            "sequence item {}: expected str instance, NoneType found",
                            lines.count
                        ))
                    })?;
                    lines.add(part)?;
                    Ok(true)
                })?;
                lines.text.finish()?.into()
            }
            _ => "".into(),
        };
        Ok(NodeOutput::one(out))
    }
}

/// Replaces what a pattern matches; the replacement may name groups as `\1` or `\g<name>`.
#[derive(Node)]
#[node(
    id = "RegexReplace",
    v3,
    module = "comfy_extras.nodes_string",
    display = "Regex Replace",
    category = "utils/string",
    outputs("STRING")
)]
pub struct RegexReplace {
    #[input(multiline = true)]
    string: Arc<str>,
    #[input(multiline = true)]
    regex_pattern: Arc<str>,
    #[input(multiline = true)]
    replace: Arc<str>,
    #[input(optional, default = true, or = true)]
    case_insensitive: bool,
    #[input(optional, default = false, or = false)]
    multiline: bool,
    #[input(optional, default = false, or = false)]
    dotall: bool,
    /// How many matches to replace; 0 for all.
    #[input(optional, default = 0, min = 0, max = 100, or = 0)]
    count: i64,
}

impl Node for RegexReplace {
    fn run(self, cx: &Cx) -> NodeResult {
        let flags = Flags {
            ignore_case: self.case_insensitive,
            multiline: self.multiline,
            dotall: self.dotall,
        };
        let pattern = Pattern::new(&self.regex_pattern, flags, self.string.len())?;
        let count = usize::try_from(self.count).unwrap_or(0);
        Ok(NodeOutput::one(pattern.replace(
            &self.string,
            &self.replace,
            count,
            cx,
        )?))
    }
}
