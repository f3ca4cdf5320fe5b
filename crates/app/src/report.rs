//! What `fresco doctor` found, as text.

use std::fmt::Write as _;

/// The report, and whether `serve` would start.
#[derive(Default)]
pub(crate) struct Report {
    text: String,
    problems: usize,
}

impl Report {
    pub(crate) fn heading(&mut self, name: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        let _ = writeln!(self.text, "{gap}{name}");
    }

    pub(crate) fn line(&mut self, what: &str, found: impl AsRef<str>) {
        let _ = writeln!(self.text, "  {what}: {}", found.as_ref());
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn problems(&self) -> usize {
        self.problems
    }

    pub(crate) fn problem(&mut self, what: &str, why: impl AsRef<str>) {
        self.problems += 1;
        self.line(what, format!("PROBLEM: {}", why.as_ref()));
    }
}
