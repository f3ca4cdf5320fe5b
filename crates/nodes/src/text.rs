//! Text nodes, with Python's rules for letters, white space and patterns.

pub mod lists;
pub mod pattern_nodes;
pub mod strings;

pub mod json_nodes;
mod layout_prompt;
mod letters;
mod pattern;

use std::sync::Arc;

use fresco_graph::{NodeEntry, NodeError, entry, row};
use fresco_tensor::with_memory;

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
    entry::<json_nodes::JsonExtractString>(),
    entry::<json_nodes::ConvertDictionaryToString>(),
    entry::<json_nodes::ConvertArrayToString>(),
    row(&lists::LOWERCASE),
    row(&lists::UPPERCASE),
    entry::<lists::TruncateText>(),
    row(&lists::PREFIX),
    row(&lists::SUFFIX),
    row(&lists::REPLACE),
    row(&lists::STRIP),
    entry::<lists::MergeTextLists>(),
    entry::<layout_prompt::Flux3LayoutPrompt>(),
];

/// Texts longer than this are refused instead of filling the memory.
pub(crate) const MAX_BYTES: usize = 1 << 28;

/// Makes a text of at most so many bytes, and the copy of it that goes onto a link.
fn made(most: usize, make: impl FnOnce() -> String) -> Result<Arc<str>, NodeError> {
    Ok(with_memory(2 * most as u64, || make().into())?)
}

/// A part of a text that goes onto a link.
fn part(text: &str) -> Result<Arc<str>, NodeError> {
    Ok(with_memory(text.len() as u64, || text.into())?)
}

/// A text with the case of its letters changed. A letter may become three times as long, and texts grow by doubling.
fn recased(text: &str, change: impl FnOnce(&str) -> String) -> Result<Arc<str>, NodeError> {
    let most = if text.is_ascii() { 1 } else { 4 };
    made(text.len() * most, || change(text))
}

/// A text whose length shows only at its end. Asks whenever it has to grow.
#[derive(Default)]
struct GrowingText(String);

impl GrowingText {
    fn push(&mut self, part: &str) -> Result<(), NodeError> {
        let len = self.0.len() + part.len();
        if len > MAX_BYTES {
            return Err(too_long());
        }
        if len > self.0.capacity() {
            let room = len.max(2 * self.0.len());
            with_memory(room as u64, || {
                self.0.reserve_exact(room - self.0.len());
            })?;
        }
        self.0.push_str(part);
        Ok(())
    }

    fn finish(self) -> Result<Arc<str>, NodeError> {
        part(&self.0)
    }
}

/// The characters of a slice that counts in characters.
fn substring(text: &str, start: i64, end: i64) -> Result<Arc<str>, NodeError> {
    let count = text.chars().count();
    let range = crate::python_rules::slice(start, end, count);
    let mut places = text.char_indices().map(|(at, _)| at);
    let mut place = |skip: usize| places.nth(skip).unwrap_or(text.len());
    let (first, last) = if range.is_empty() {
        (0, 0)
    } else {
        let first = place(range.start);
        (first, place(range.len() - 1))
    };
    part(&text[first..last])
}

/// Every `find` replaced; an empty one stands between all characters.
fn replace(text: &str, find: &str, with: &str) -> Result<Arc<str>, NodeError> {
    let places = if find.is_empty() {
        text.chars().count() + 1
    } else {
        text.matches(find).count()
    };
    let kept = text.len() - places.saturating_mul(find.len()).min(text.len());
    let length = places.saturating_mul(with.len()).saturating_add(kept);
    if length > MAX_BYTES {
        return Err(too_long());
    }
    made(length, || {
        // Not `str::replace`, which grows by doubling.
        let mut out = String::with_capacity(length);
        let mut last = 0;
        for (at, found) in text.match_indices(find) {
            out.push_str(&text[last..at]);
            out.push_str(with);
            last = at + found.len();
        }
        out.push_str(&text[last..]);
        out
    })
}

/// Texts one after the other.
fn join(parts: &[&str]) -> Result<Arc<str>, NodeError> {
    // Nodes that double a text, one after the other, would need few steps to fill any memory.
    let total = parts.iter().map(|p| p.len()).sum::<usize>();
    if total > MAX_BYTES {
        return Err(too_long());
    }
    made(total, || parts.concat())
}

pub(crate) fn too_long() -> NodeError {
    NodeError::failed(
        "MemoryError",
        format!("the resulting text would be longer than {MAX_BYTES} bytes"),
    )
}
