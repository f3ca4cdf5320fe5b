//! The weight syntax of prompts: `(more:1.3)`, `((more))`, `\(literal\)`.

use crate::error::{ModelError, Result};

/// Groups inside groups that are followed. Deeper nesting is refused: the time to read a prompt grows with it.
const MAX_DEPTH: usize = 900;

/// A stretch of prompt and how much it counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    pub text: String,
    pub weight: f64,
}

/// Escaped brackets, while the others are read.
const CLOSE: &str = "\0\u{1}";
const OPEN: &str = "\0\u{2}";

/// The segments of a prompt, in order.
pub fn parse(prompt: &str) -> Result<Vec<Segment>> {
    let escaped = prompt.replace("\\)", CLOSE).replace("\\(", OPEN);
    let mut found = Vec::new();
    group(&escaped, 1.0, 0, &mut found)?;
    for segment in &mut found {
        segment.text = segment.text.replace(CLOSE, ")").replace(OPEN, "(");
    }
    Ok(found)
}

/// All of a prompt as one segment, for networks that know no weights. Escaped brackets lose their backslash all the same.
pub fn whole(prompt: &str) -> Segment {
    Segment {
        text: prompt.replace("\\)", ")").replace("\\(", "("),
        weight: 1.0,
    }
}

fn group(text: &str, weight: f64, depth: usize, found: &mut Vec<Segment>) -> Result<()> {
    if depth > MAX_DEPTH {
        let reason = format!("its brackets are nested more than {MAX_DEPTH} deep");
        return Err(ModelError::invalid("prompt", reason));
    }
    for item in items(text) {
        match item.strip_prefix('(').and_then(|i| i.strip_suffix(')')) {
            Some(inner) => {
                let (inner, weight) = explicit(inner).unwrap_or((inner, weight * 1.1));
                group(inner, weight, depth + 1, found)?;
            }
            None => found.push(Segment {
                text: item.to_owned(),
                weight,
            }),
        }
    }
    Ok(())
}

/// The outermost groups, brackets included, and what is between them.
fn items(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut start, mut depth) = (0, 0_i64);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => {
                if depth == 0 {
                    if start < at {
                        found.push(&text[start..at]);
                    }
                    start = at;
                }
                depth += 1;
            }
            // A bracket too many makes the depth negative, so that the next opening one is plain text.
            b')' => {
                depth -= 1;
                if depth == 0 {
                    found.push(&text[start..=at]);
                    start = at + 1;
                }
            }
            _ => {}
        }
    }
    if start < text.len() {
        found.push(&text[start..]);
    }
    found
}

/// `text:1.3` apart, if it ends in a number; the text may not be empty.
fn explicit(inner: &str) -> Option<(&str, f64)> {
    let colon = inner.rfind(':').filter(|at| *at > 0)?;
    Some((&inner[..colon], python_float(&inner[colon + 1..])?))
}

/// A number as Python reads one: spaces around it, `_` between digits, `inf` and `nan`.
fn python_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_python_space);
    if !text.contains('_') {
        return text.parse().ok();
    }
    let bytes = text.as_bytes();
    let between_digits = |at: usize| {
        at > 0
            && bytes[at - 1].is_ascii_digit()
            && bytes.get(at + 1).is_some_and(u8::is_ascii_digit)
    };
    let lone = (0..bytes.len()).all(|at| bytes[at] != b'_' || between_digits(at));
    lone.then(|| text.replace('_', "").parse().ok()).flatten()
}

/// White space to Python: Unicode's, and four control characters.
pub(super) fn is_python_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(prompt: &str, expected: &[(&str, f64)]) {
        let parsed = parse(prompt).unwrap();
        let found: Vec<(&str, f64)> = parsed.iter().map(|s| (&*s.text, s.weight)).collect();
        assert_eq!(found, expected, "{prompt}");
    }

    #[test]
    fn weights_are_absolute_and_bare_brackets_multiply() {
        check(
            "(cat:1.5) dog ((x))",
            &[("cat", 1.5), (" dog ", 1.0), ("x", 1.1 * 1.1)],
        );
        check("(a (b:0.5))", &[("a ", 1.1), ("b", 0.5)]);
        check("a) (b) c", &[("a) (b) c", 1.0)]);
        check("(:1.2)", &[(":1.2", 1.1)]);
        check("()", &[]);
        check("", &[]);
        check(r"\(a\) (b\):2)", &[("(a) ", 1.0), ("b)", 2.0)]);
        check("(é:1.5)ü", &[("é", 1.5), ("ü", 1.0)]);
    }

    #[test]
    fn numbers_are_pythons() {
        for (text, value) in [("1_0", 10.0), (" 1e3\u{1f}", 1000.0), ("-.5", -0.5)] {
            assert_eq!(python_float(text), Some(value), "{text}");
        }
        assert_eq!(python_float("-Infinity"), Some(f64::NEG_INFINITY));
        assert!(python_float("NaN").unwrap().is_nan());
        for text in ["", "_1", "1_", "1__0", "1_.5", "0x10", "1 2"] {
            assert_eq!(python_float(text), None, "{text}");
        }
    }

    #[test]
    fn endless_nesting_is_refused() {
        let deep = "(".repeat(5000) + "a" + &")".repeat(5000);
        assert!(parse(&deep).unwrap_err().to_string().contains("nested"));
        let unclosed = "(".repeat(50_000);
        check(&unclosed, &[(&unclosed, 1.0)]);
    }
}
