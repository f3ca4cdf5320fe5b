//! Text nodes, with Python's rules for letters, white space and patterns.

pub mod lists;
pub mod pattern_nodes;
pub mod strings;

mod letters;
mod pattern;

use fresco_graph::{NodeEntry, NodeError, entry};

pub static NODES: &[NodeEntry] = &[
    entry::<strings::StringConcatenate>(),
    entry::<strings::StringSubstring>(),
    entry::<strings::StringLength>(),
    entry::<strings::CaseConverter>(),
    entry::<strings::StringTrim>(),
    entry::<strings::StringReplace>(),
    entry::<strings::StringContains>(),
    entry::<strings::StringCompare>(),
    entry::<pattern_nodes::RegexMatch>(),
    entry::<pattern_nodes::RegexExtract>(),
    entry::<pattern_nodes::RegexReplace>(),
    entry::<lists::TextToLowercase>(),
    entry::<lists::TextToUppercase>(),
    entry::<lists::TruncateText>(),
    entry::<lists::AddTextPrefix>(),
    entry::<lists::AddTextSuffix>(),
    entry::<lists::ReplaceText>(),
    entry::<lists::StripWhitespace>(),
    entry::<lists::MergeTextLists>(),
];

/// Texts longer than this are refused instead of filling the memory.
const MAX_BYTES: usize = 1 << 28;

/// The characters of a slice that counts in characters.
fn substring(text: &str, start: i64, end: i64) -> String {
    let count = text.chars().count();
    let range = crate::python_rules::slice(start, end, count);
    text.chars().skip(range.start).take(range.len()).collect()
}

/// Every `find` replaced; an empty one stands between all characters.
fn replace(text: &str, find: &str, with: &str) -> Result<String, NodeError> {
    let places = if find.is_empty() {
        text.chars().count() + 1
    } else {
        text.matches(find).count()
    };
    if places.saturating_mul(with.len()).saturating_add(text.len()) > MAX_BYTES {
        return Err(too_long());
    }
    Ok(text.replace(find, with))
}

/// Texts one after the other.
fn join(parts: &[&str]) -> Result<String, NodeError> {
    // Nodes that double a text, one after the other, would need few steps to fill any memory.
    if parts.iter().map(|p| p.len()).sum::<usize>() > MAX_BYTES {
        return Err(too_long());
    }
    Ok(parts.concat())
}

fn too_long() -> NodeError {
    NodeError::failed(
        "MemoryError",
        format!("the resulting text would be longer than {MAX_BYTES} bytes"),
    )
}
