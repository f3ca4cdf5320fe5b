//! Patterns with the meaning Python's `re` gives them, run by `fancy-regex`.
//!
//! Where the two differ the pattern is rewritten ([`translate`]): `\Z` and `$`, braces that are no repetition, nested
//! brackets, escapes. Python's rule for empty matches is in [`Pattern::each`].

use std::fmt::Write as _;
use std::sync::Arc;

use fancy_regex::{Captures, Regex, RegexBuilder};
use fresco_graph::{Cx, NodeError};
use fresco_tensor::with_memory;

use super::GrowingText;

/// A pattern that needs more steps than this is given up, so that it cannot hold the worker for hours.
const MAX_STEPS: usize = 1_000_000;
/// Characters that all steps from one place may look at together: some tenths of a second. A step that looks ahead can go
/// through the whole text.
const MAX_LOOKED_AT: usize = 50_000_000;
/// Steps that every place gets.
const LEAST_STEPS: usize = 100;
/// A compiled pattern times the text it searches: about a second. Within these sizes any pattern has its full size.
const MAX_WORK: usize = 500_000_000_000;
const LEAST_SIZE: usize = 256 << 10;
const MOST_SIZE: usize = 10 << 20;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags {
    pub(super) ignore_case: bool,
    pub(super) multiline: bool,
    pub(super) dotall: bool,
}

/// A pattern ready to search.
pub(super) struct Pattern {
    regex: Regex,
    /// The same, but not matching nothing at the place where the search starts.
    advancing: Regex,
    /// Both for a match that begins where the search starts, if steps of the pattern can look far: then places are tried
    /// one by one, so that an interrupt is heeded between them.
    here: Option<[Regex; 2]>,
    steps: usize,
}

/// What one match holds.
pub(super) struct Found<'t>(Captures<'t, str>);

impl<'t> Found<'t> {
    /// A group's text; none if it took no part in the match.
    pub(super) fn get(&self, group: usize) -> Option<&'t str> {
        self.0.get(group).map(|m| m.as_str())
    }

    fn range(&self) -> std::ops::Range<usize> {
        self.0.get(0).map_or(0..0, |m| m.range())
    }
}

fn syntax(message: impl Into<String>) -> NodeError {
    NodeError::failed("re.error", message)
}

impl Pattern {
    /// A pattern for a text of this length; a `re.error` if Python would not take it.
    pub(super) fn new(pattern: &str, flags: Flags, length: usize) -> Result<Self, NodeError> {
        // Patterns are compiled twice, into many small pieces.
        let size = 128 * pattern.len() as u64;
        with_memory(size, || Self::compile(pattern, flags, length))?
    }

    fn compile(pattern: &str, flags: Flags, length: usize) -> Result<Self, NodeError> {
        let (flags, body) = translate(pattern, flags)?;
        let reach = reach(&body).map_or(1, |reach| reach.min(length).max(1));
        let steps = (MAX_LOOKED_AT / reach).clamp(LEAST_STEPS, MAX_STEPS);
        let size = (MAX_WORK / length.max(1)).clamp(LEAST_SIZE, MOST_SIZE);
        let build = |text: &str| {
            RegexBuilder::new(text)
                .case_insensitive(flags.ignore_case)
                .dot_matches_new_line(flags.dotall)
                .backtrack_limit(steps)
                .delegate_size_limit(size)
                .build()
                .map_err(|e| {
                    let message = e.to_string();
                    if size < MOST_SIZE && is_too_large(&e) {
                        return NodeError::runtime(format!(
                            "the pattern is too large for a text of {length} bytes; shorten the text or its repetitions"
                        ));
                    }
                    syntax(message)
                })
        };
        let advancing = format!("(?:{body})(?!\\G)");
        let here = if steps < MAX_STEPS {
            let here = |body: &str| build(&format!("\\G(?:{body})"));
            Some([here(&body)?, here(&advancing)?])
        } else {
            None
        };
        Ok(Self {
            regex: build(&body)?,
            advancing: build(&advancing)?,
            here,
            steps,
        })
    }

    /// The first match from `at` on.
    fn find<'t>(
        &self,
        text: &'t str,
        mut at: usize,
        advance: bool,
        cx: &Cx,
    ) -> Result<Option<Found<'t>>, NodeError> {
        cx.check_interrupt()?;
        let give_up = |error| give_up(error, self.steps);
        let Some(here) = &self.here else {
            let regex = if advance {
                &self.advancing
            } else {
                &self.regex
            };
            let found = regex.captures_from_pos(text, at);
            return Ok(found.map_err(give_up)?.map(Found));
        };
        // Only a match at the very start of the search could be the empty one that is not wanted.
        let mut regex = &here[usize::from(advance)];
        loop {
            if let Some(found) = regex.captures_from_pos(text, at).map_err(give_up)? {
                return Ok(Some(Found(found)));
            }
            let Some(next) = text[at..].chars().next() else {
                return Ok(None);
            };
            at += next.len_utf8();
            regex = &here[0];
            cx.check_interrupt()?;
        }
    }

    /// How many groups there are, not counting the whole match.
    pub(super) fn groups(&self) -> usize {
        self.regex.captures_len() - 1
    }

    fn group_named(&self, name: &str) -> Option<usize> {
        self.regex.capture_names().position(|n| n == Some(name))
    }

    pub(super) fn search<'t>(
        &self,
        text: &'t str,
        cx: &Cx,
    ) -> Result<Option<Found<'t>>, NodeError> {
        self.find(text, 0, false, cx)
    }

    /// Calls `with` for every match until it says no. After an empty match the next one must not be empty at that place,
    /// but may be empty right after a match that is not.
    pub(super) fn each<'t>(
        &self,
        text: &'t str,
        cx: &Cx,
        mut with: impl FnMut(Found<'t>) -> Result<bool, NodeError>,
    ) -> Result<(), NodeError> {
        let (mut at, mut advance) = (0, false);
        loop {
            let Some(found) = self.find(text, at, advance, cx)? else {
                return Ok(());
            };
            let range = found.range();
            at = range.end;
            advance = range.is_empty();
            if !with(found)? {
                return Ok(());
            }
        }
    }

    /// `re.sub`; a count of 0 replaces all.
    pub(super) fn replace(
        &self,
        text: &str,
        template: &str,
        count: usize,
        cx: &Cx,
    ) -> Result<Arc<str>, NodeError> {
        let template = self.template(template)?;
        let mut out = GrowingText::default();
        let (mut kept, mut done) = (0, 0);
        self.each(text, cx, |found| {
            let range = found.range();
            out.push(&text[kept..range.start])?;
            for part in &template {
                match part {
                    ReplacementPart::Text(t) => out.push(t)?,
                    ReplacementPart::Group(g) => out.push(found.get(*g).unwrap_or_default())?,
                }
            }
            kept = range.end;
            done += 1;
            Ok(done != count)
        })?;
        out.push(&text[kept..])?;
        out.finish()
    }

    /// Splits a replacement into text and groups.
    fn template(&self, template: &str) -> Result<Vec<ReplacementPart>, NodeError> {
        let chars: Vec<char> = template.chars().collect();
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut group = |text: &mut String, number: usize, at: usize| {
            if number > self.groups() {
                return Err(syntax(format!(
                    "invalid group reference {number} at position {at}"
                )));
            }
            parts.push(ReplacementPart::Text(std::mem::take(text)));
            parts.push(ReplacementPart::Group(number));
            Ok(())
        };
        let mut i = 0;
        while i < chars.len() {
            let c = chars[i];
            i += 1;
            if c != '\\' {
                text.push(c);
                continue;
            }
            let Some(&next) = chars.get(i) else {
                return Err(syntax(format!(
                    "bad escape (end of pattern) at position {}",
                    i - 1
                )));
            };
            i += 1;
            match next {
                'g' => {
                    let start = i + 1;
                    let close = (chars.get(i) == Some(&'<'))
                        .then(|| chars[start..].iter().position(|c| *c == '>'))
                        .ok_or_else(|| syntax(format!("missing < at position {i}")))?;
                    let Some(len) = close else {
                        return Err(syntax(format!(
                            "missing >, unterminated name at position {start}"
                        )));
                    };
                    if len == 0 {
                        return Err(syntax(format!("missing group name at position {start}")));
                    }
                    let name: String = chars[start..start + len].iter().collect();
                    let number = if name.bytes().all(|b| b.is_ascii_digit()) {
                        name.parse().unwrap_or(usize::MAX)
                    } else if is_name(&name) {
                        self.group_named(&name).ok_or_else(|| {
                            NodeError::failed("IndexError", format!("unknown group name '{name}'"))
                        })?
                    } else {
                        return Err(syntax(format!(
                            "bad character in group name '{name}' at position {start}"
                        )));
                    };
                    group(&mut text, number, start)?;
                    i = start + len + 1;
                }
                '0' => {
                    let mut value = 0;
                    for _ in 0..2 {
                        if let Some(d) = chars.get(i).and_then(|c| c.to_digit(8)) {
                            value = value * 8 + d;
                            i += 1;
                        }
                    }
                    text.extend(char::from_u32(value));
                }
                '1'..='9' => {
                    let digit = |k: usize| chars.get(k).and_then(|c| c.to_digit(10));
                    let first = next.to_digit(10).unwrap_or(0);
                    match (digit(i), digit(i + 1)) {
                        (Some(b @ 0..=7), Some(c @ 0..=7)) if first <= 7 => {
                            let value = first * 64 + b * 8 + c;
                            if value > 0o377 {
                                return Err(syntax(format!(
                                    "octal escape value \\{first}{b}{c} outside of range 0-0o377 at position {}",
                                    i - 2
                                )));
                            }
                            text.extend(char::from_u32(value));
                            i += 2;
                        }
                        (Some(b), _) => {
                            group(&mut text, (first * 10 + b) as usize, i - 1)?;
                            i += 1;
                        }
                        _ => group(&mut text, first as usize, i - 1)?,
                    }
                }
                'a' => text.push('\x07'),
                'b' => text.push('\x08'),
                'f' => text.push('\x0c'),
                'n' => text.push('\n'),
                'r' => text.push('\r'),
                't' => text.push('\t'),
                'v' => text.push('\x0b'),
                '\\' => text.push('\\'),
                c if c.is_ascii_alphabetic() => {
                    return Err(syntax(format!("bad escape \\{c} at position {}", i - 2)));
                }
                c => {
                    text.push('\\');
                    text.push(c);
                }
            }
        }
        parts.push(ReplacementPart::Text(text));
        Ok(parts)
    }
}

enum ReplacementPart {
    Text(String),
    Group(usize),
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c == '_' || c.is_alphabetic())
        && chars.all(|c| c == '_' || c.is_alphanumeric())
}

/// Whether a pattern was refused for its size alone; the engine says that only in the details.
fn is_too_large(error: &fancy_regex::Error) -> bool {
    format!("{error:?}").contains("SizeLimit")
}

/// A search that was given up; Python would go on for ever.
fn give_up(error: fancy_regex::Error, steps: usize) -> NodeError {
    NodeError::runtime(format!(
        "the pattern needs more than {steps} steps on this text: {error}"
    ))
}

/// How many characters one step of a translated pattern can look at without the engine counting them: those of a
/// look-around, and of what is repeated a given number of times. `usize::MAX` where there is no end; nothing if the pattern
/// has no look-around, because then all of it is counted or takes time in proportion to the text.
fn reach(body: &str) -> Option<usize> {
    let chars: Vec<char> = body.chars().collect();
    let (mut reach, mut looks) = (1usize, false);
    // Whether each open group is inside a look-around.
    let mut open = vec![false];
    let (mut i, mut in_class) = (0, false);
    while i < chars.len() {
        let inside = open.last().copied().unwrap_or(false);
        match chars[i] {
            '\\' => i += 1,
            '[' => in_class = true,
            ']' => in_class = false,
            _ if in_class => {}
            '(' => {
                let head: String = chars[i + 1..].iter().take(3).collect();
                let look = ["?=", "?!", "?<=", "?<!"]
                    .iter()
                    .any(|start| head.starts_with(start));
                looks |= look;
                open.push(inside || look);
            }
            ')' => {
                open.pop();
            }
            '*' | '+' if inside => reach = usize::MAX,
            '{' => {
                let end = chars[i..].iter().position(|c| *c == '}');
                let counts: String = chars[i + 1..].iter().take(end.unwrap_or(1) - 1).collect();
                let most = counts.rsplit(',').next().unwrap_or_default();
                match most.trim().parse::<usize>() {
                    Ok(count) => reach = reach.saturating_mul(count.max(1)),
                    Err(_) if inside => reach = usize::MAX,
                    Err(_) => {}
                }
            }
            _ => {}
        }
        i += 1;
    }
    looks.then_some(reach)
}

/// Rewrites a Python pattern for `fancy-regex`, or says what Python would object to.
fn translate(pattern: &str, mut flags: Flags) -> Result<(Flags, String), NodeError> {
    let chars: Vec<char> = pattern.chars().collect();
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut i = 0;
    if let Some((leading, len)) = leading_flags(&chars) {
        for flag in leading.chars() {
            match flag {
                'i' => flags.ignore_case = true,
                'm' => flags.multiline = true,
                's' => flags.dotall = true,
                'x' => out.push_str("(?x)"),
                // ASCII-only and locale classes: the wider Unicode ones serve.
                _ => {}
            }
        }
        i = len;
    }
    // Position and outer multiline flag of every group that is open.
    let mut open: Vec<(usize, bool)> = Vec::new();
    let mut multiline = flags.multiline;
    // Whether a repetition may follow, and whether one just did.
    let (mut repeatable, mut repeated) = (false, false);
    while i < chars.len() {
        let at = i;
        let c = chars[i];
        i += 1;
        match c {
            '\\' => {
                i += escape(&chars, at, false, &mut out)?;
                (repeatable, repeated) = (true, false);
            }
            '[' => {
                i = class(&chars, at, &mut out)?;
                (repeatable, repeated) = (true, false);
            }
            '(' => {
                open.push((at, multiline));
                if chars.get(i) == Some(&'?') {
                    let head: String = chars[i..].iter().take(3).collect();
                    if head.starts_with("?#") {
                        let Some(len) = chars[i..].iter().position(|c| *c == ')') else {
                            return Err(syntax(format!(
                                "missing ), unterminated comment at position {at}"
                            )));
                        };
                        i += len + 1;
                        open.pop();
                        continue;
                    }
                    let len = group_head(&chars, i, &mut multiline)?;
                    out.push('(');
                    out.extend(&chars[i..i + len]);
                    i += len;
                } else {
                    out.push('(');
                }
                (repeatable, repeated) = (false, false);
            }
            ')' => {
                let Some((_, outer)) = open.pop() else {
                    return Err(syntax(format!("unbalanced parenthesis at position {at}")));
                };
                multiline = outer;
                out.push(')');
                (repeatable, repeated) = (true, false);
            }
            '|' => {
                out.push('|');
                (repeatable, repeated) = (false, false);
            }
            '$' => {
                out.push_str(if multiline { "(?m:$)" } else { "(?=\\n?\\z)" });
                (repeatable, repeated) = (true, false);
            }
            '^' => {
                out.push_str(if multiline { "(?m:^)" } else { "^" });
                (repeatable, repeated) = (true, false);
            }
            '*' | '+' | '?' | '{' => {
                let (text, len) = match c {
                    '{' => {
                        let Some(found) = repetition(&chars, i)? else {
                            out.push_str("\\{");
                            (repeatable, repeated) = (true, false);
                            continue;
                        };
                        found
                    }
                    c => (c.to_string(), 0),
                };
                if repeated {
                    return Err(syntax(format!("multiple repeat at position {at}")));
                }
                if !repeatable {
                    return Err(syntax(format!("nothing to repeat at position {at}")));
                }
                out.push_str(&text);
                i += len;
                if let Some(mode @ ('?' | '+')) = chars.get(i) {
                    out.push(*mode);
                    i += 1;
                }
                repeated = true;
            }
            '}' | ']' => {
                out.push('\\');
                out.push(c);
                (repeatable, repeated) = (true, false);
            }
            c => {
                out.push(c);
                (repeatable, repeated) = (true, false);
            }
        }
    }
    if let Some((at, _)) = open.pop() {
        return Err(syntax(format!(
            "missing ), unterminated subpattern at position {at}"
        )));
    }
    Ok((flags, out))
}

/// `(?ims)` at the very start: the flags and how many characters they take.
fn leading_flags(chars: &[char]) -> Option<(String, usize)> {
    let rest = chars.strip_prefix(&['(', '?'])?;
    let len = rest.iter().position(|c| *c == ')')?;
    let flags: String = rest[..len].iter().collect();
    let known = !flags.is_empty() && flags.chars().all(|c| "aiLmsux".contains(c));
    known.then_some((flags, len + 3))
}

/// How many characters after `(` belong to the head of a group that starts with `?`.
fn group_head(chars: &[char], start: usize, multiline: &mut bool) -> Result<usize, NodeError> {
    let at = |k: usize| chars.get(start + k).copied();
    let until = |from: usize, end: char| -> Option<usize> {
        chars
            .get(start + from..)?
            .iter()
            .position(|c| *c == end)
            .map(|n| from + n + 1)
    };
    let unknown = |len: usize| {
        let text: String = chars[start..].iter().take(len).collect();
        syntax(format!("unknown extension {text} at position {start}"))
    };
    match (at(1), at(2)) {
        (Some(':' | '=' | '!' | '>'), _) => Ok(2),
        (Some('<'), Some('=' | '!')) => Ok(3),
        (Some('P'), Some('<')) => until(3, '>').ok_or_else(|| {
            syntax(format!(
                "missing >, unterminated name at position {}",
                start + 3
            ))
        }),
        // The closing parenthesis ends the group by itself.
        (Some('P'), Some('=')) => until(3, ')').map(|n| n - 1).ok_or_else(|| {
            syntax(format!(
                "missing ), unterminated name at position {}",
                start + 3
            ))
        }),
        (Some('('), _) => until(2, ')').ok_or_else(|| {
            syntax(format!(
                "missing ), unterminated name at position {}",
                start + 2
            ))
        }),
        (Some('i' | 'm' | 's' | 'x' | 'a' | 'u' | 'L' | '-'), _) => {
            let Some(len) = until(1, ':') else {
                return Err(syntax(format!(
                    "global flags not at the start of the expression at position {}",
                    start - 1
                )));
            };
            let text: String = chars[start + 1..start + len - 1].iter().collect();
            if !text.chars().all(|c| "imsx-".contains(c)) {
                return Err(unknown(len));
            }
            let (on, off) = text.split_once('-').unwrap_or((&text, ""));
            *multiline = (*multiline || on.contains('m')) && !off.contains('m');
            Ok(len)
        }
        (None, _) => Err(syntax("unexpected end of pattern")),
        (Some('<'), _) => Err(unknown(3)),
        _ => Err(unknown(2)),
    }
}

/// `m}`, `m,}`, `,n}` or `m,n}` after a brace, rewritten, and its length; none if the brace is just a brace.
fn repetition(chars: &[char], start: usize) -> Result<Option<(String, usize)>, NodeError> {
    let Some(len) = chars[start..].iter().position(|c| *c == '}') else {
        return Ok(None);
    };
    let inner: String = chars[start..start + len].iter().collect();
    let (low, high) = inner.split_once(',').unwrap_or((&inner, &inner));
    let number = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if !number(low) || !number(high) || inner.is_empty() {
        return Ok(None);
    }
    let value = |s: &str, empty: u64| {
        if s.is_empty() {
            empty
        } else {
            s.parse().unwrap_or(u64::MAX)
        }
    };
    if value(low, 0) > value(high, u64::MAX) {
        return Err(syntax(format!(
            "min repeat greater than max repeat at position {start}"
        )));
    }
    let low = if low.is_empty() { "0" } else { low };
    let text = if inner.contains(',') {
        format!("{{{low},{high}}}")
    } else {
        format!("{{{low}}}")
    };
    Ok(Some((text, len + 1)))
}

fn push_literal(out: &mut String, c: char) {
    // A code point in braces means itself in and outside brackets.
    let _ = write!(out, "\\x{{{:X}}}", c as u32);
}

/// Rewrites the escape at `at`; gives how many characters follow the backslash.
fn escape(chars: &[char], at: usize, in_class: bool, out: &mut String) -> Result<usize, NodeError> {
    let Some(&c) = chars.get(at + 1) else {
        return Err(syntax(format!(
            "bad escape (end of pattern) at position {at}"
        )));
    };
    let bad = |len: usize| {
        let text: String = chars[at..].iter().take(len).collect();
        syntax(format!("bad escape {text} at position {at}"))
    };
    let hex = |digits: usize| -> Option<char> {
        let text: String = chars.get(at + 2..at + 2 + digits)?.iter().collect();
        char::from_u32(u32::from_str_radix(&text, 16).ok()?)
    };
    match c {
        'd' | 'D' | 's' | 'S' | 'w' | 'W' => {
            out.push('\\');
            out.push(c);
        }
        'A' | 'B' | 'b' if !in_class => {
            out.push('\\');
            out.push(c);
        }
        'Z' if !in_class => out.push_str("\\z"),
        'b' => push_literal(out, '\x08'),
        'a' => push_literal(out, '\x07'),
        'f' => push_literal(out, '\x0c'),
        'n' => push_literal(out, '\n'),
        'r' => push_literal(out, '\r'),
        't' => push_literal(out, '\t'),
        'v' => push_literal(out, '\x0b'),
        'x' | 'u' | 'U' => {
            let digits = match c {
                'x' => 2,
                'u' => 4,
                _ => 8,
            };
            push_literal(out, hex(digits).ok_or_else(|| bad(2))?);
            return Ok(1 + digits);
        }
        '0'..='9' => {
            let octal: String = chars[at + 1..]
                .iter()
                .take(3)
                .take_while(|c| c.is_digit(8))
                .collect();
            if c == '0' || in_class || octal.len() == 3 {
                let value = u32::from_str_radix(&octal, 8).map_err(|_| bad(2))?;
                if value > 0o377 {
                    return Err(syntax(format!(
                        "octal escape value \\{octal} outside of range 0-0o377 at position {at}"
                    )));
                }
                push_literal(out, char::from_u32(value).ok_or_else(|| bad(2))?);
                return Ok(octal.len());
            }
            let number: String = chars[at + 1..]
                .iter()
                .take(2)
                .take_while(|c| c.is_ascii_digit())
                .collect();
            // A group of its own keeps digits that follow apart.
            let _ = write!(out, "(?:\\{number})");
            return Ok(number.len());
        }
        c if c.is_ascii_alphabetic() => return Err(bad(2)),
        c => push_literal(out, c),
    }
    Ok(1)
}

/// Rewrites the bracket expression at `at`; gives the place after it.
fn class(chars: &[char], at: usize, out: &mut String) -> Result<usize, NodeError> {
    let mut i = at + 1;
    out.push('[');
    if chars.get(i) == Some(&'^') {
        out.push('^');
        i += 1;
    }
    let first = i;
    loop {
        let Some(&c) = chars.get(i) else {
            return Err(syntax(format!(
                "unterminated character set at position {at}"
            )));
        };
        match c {
            ']' if i > first => {
                out.push(']');
                return Ok(i + 1);
            }
            '\\' => i += escape(chars, i, true, out)?,
            // A dash at either end is itself; between two characters it makes a range.
            '-' if i > first && chars.get(i + 1) != Some(&']') => out.push('-'),
            c if c.is_alphanumeric() => out.push(c),
            c => push_literal(out, c),
        }
        i += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fresco_graph::Resources;

    use super::*;

    fn cx() -> Cx {
        Cx::detached(Arc::new(Resources::default()))
    }

    #[track_caller]
    fn finds(pattern: &str, text: &str, wanted: &[&str]) {
        let mut found = Vec::new();
        Pattern::new(pattern, Flags::default(), 100)
            .unwrap_or_else(|e| panic!("{pattern}: {}", e.message()))
            .each(text, &cx(), |f| {
                found.push(f.get(0).unwrap_or("?"));
                Ok(true)
            })
            .unwrap();
        assert_eq!(found, wanted, "{pattern} in {text:?}");
    }

    #[test]
    fn python_meaning() {
        finds("a*?", "aaa", &["", "a", "", "a", "", "a", ""]);
        finds("a*", "baac", &["", "aa", "", ""]);
        finds("x*", "é", &["", ""]);
        finds("b$", "ab\n", &["b"]);
        finds(r"b\Z", "ab\n", &[]);
        finds("(?m)^.$", "a\nb", &["a", "b"]);
        finds("(?P<q>['\"]).*?(?P=q)", "'a' \"b\"", &["'a'", "\"b\""]);
        finds(r"(a)\1", "aaa", &["aa"]);
        finds(r"(a)\1 1", "aa 1", &["aa 1"]);
        finds("a{,2}b", "aaab", &["aab"]);
        finds("a{x}", "a{x}", &["a{x}"]);
        finds("[[a]", "[a", &["[", "a"]);
        finds("[]x]+", "x]", &["x]"]);
        finds("[a&&b]+", "a&b", &["a&b"]);
        finds(r"[\]\-x]+", "x-]", &["x-]"]);
        finds("[+--]+", "+,-", &["+,-"]);
        finds(r"\<b\>", "<b>", &["<b>"]);
        finds(r"\x41\u0042\103", "ABC", &["ABC"]);
        finds("(?#note)a", "a", &["a"]);
        finds("(?i:A)b", "ab", &["ab"]);
        finds("(?<!a)b", "ab b", &["b"]);
        finds("(?:(a)|b)(?(1)c|d)", "ac bd bc", &["ac", "bd"]);
        finds("a++b", "aab", &["aab"]);
        finds(r"\w+", "über_1 2", &["über_1", "2"]);
    }

    #[track_caller]
    fn fails(pattern: &str, wanted: &str) {
        match Pattern::new(pattern, Flags::default(), 100) {
            Err(e) => assert_eq!((e.kind(), e.message()), ("re.error", wanted), "{pattern}"),
            Ok(_) => panic!("{pattern} is accepted"),
        }
    }

    #[test]
    fn python_errors() {
        fails("(", "missing ), unterminated subpattern at position 0");
        fails("a)", "unbalanced parenthesis at position 1");
        fails("*a", "nothing to repeat at position 0");
        fails("a**", "multiple repeat at position 2");
        fails("[a", "unterminated character set at position 0");
        fails("a\\", "bad escape (end of pattern) at position 1");
        fails(r"\q", r"bad escape \q at position 0");
        fails(r"\z", r"bad escape \z at position 0");
        fails("a{3,1}", "min repeat greater than max repeat at position 2");
        assert!(Pattern::new(&"(".repeat(100_000), Flags::default(), 100).is_err());
        let deep = "(".repeat(5_000) + &")".repeat(5_000);
        assert!(Pattern::new(&deep, Flags::default(), 100).is_err());
    }

    #[track_caller]
    fn replaces(pattern: &str, template: &str, text: &str, wanted: Result<&str, &str>) {
        let given = Pattern::new(pattern, Flags::default(), 100)
            .and_then(|p| p.replace(text, template, 0, &cx()));
        match (&given, wanted) {
            (Ok(a), Ok(e)) => assert_eq!(&**a, e),
            (Err(a), Err(e)) => assert_eq!(a.message(), e),
            _ => panic!("{given:?} instead of {wanted:?}"),
        }
    }

    #[test]
    fn templates() {
        replaces("(?P<n>a)(b)?", r"[\g<n>\2\n]", "a", Ok("[a\n]"));
        replaces("a", r"\g<0>\g<0>", "a", Ok("aa"));
        replaces("a", r"\065\0", "a", Ok("5\0"));
        replaces("a", r"\.", "a", Ok(r"\."));
        replaces(
            "a",
            r"\1",
            "a",
            Err("invalid group reference 1 at position 1"),
        );
        replaces("a", r"x\q", "a", Err(r"bad escape \q at position 1"));
        replaces("a", r"\g<x>", "a", Err("unknown group name 'x'"));
        replaces(
            "a",
            r"\g<x",
            "a",
            Err("missing >, unterminated name at position 3"),
        );
        replaces(
            "a",
            "\\",
            "a",
            Err("bad escape (end of pattern) at position 0"),
        );
    }

    #[test]
    fn a_pattern_that_explodes_is_given_up() {
        let pattern = Pattern::new(r"^(?:(a+)+\1?)+$", Flags::default(), 100).unwrap();
        let text = "a".repeat(40) + "b";
        let error = pattern
            .search(&text, &cx())
            .err()
            .expect("it cannot be decided in time");
        assert_eq!(error.kind(), "RuntimeError");
    }

    #[test]
    fn how_far_a_step_looks() {
        for (pattern, far) in [
            ("a*b+", None),
            (r"(a)\1", None),
            ("(?=ab)c*", Some(1)),
            ("(?!END).", Some(1)),
            ("(?=[a*]b)", Some(1)),
            (r"(?=a\*)", Some(1)),
            ("(?=.*[0-9])x", Some(usize::MAX)),
            ("(?<=a{2,})x", Some(usize::MAX)),
            ("(?=(?:[a-z]){20})x{3}", Some(60)),
        ] {
            assert_eq!(reach(pattern), far, "{pattern}");
        }
    }

    /// Both ways to search find the same.
    #[test]
    fn looking_far_changes_the_budget_and_not_the_meaning() {
        for (pattern, text) in [
            ("(?=.*1)[a-z]?", "ab1cd"),
            ("(?<!a)b*(?=.*c)", "abbé bcb"),
            ("(?=.*$)", "ab\ncd"),
        ] {
            let all = |pattern: &Pattern| {
                let mut found = Vec::new();
                let with = |f: Found<'_>| {
                    found.push(f.range());
                    Ok(true)
                };
                pattern.each(text, &cx(), with).unwrap();
                found
            };
            let mut far = Pattern::new(pattern, Flags::default(), 1_000_000).unwrap();
            assert!(far.here.is_some());
            let found = all(&far);
            far.here = None;
            assert_eq!(found, all(&far), "{pattern}");
        }
    }

    #[test]
    fn a_pattern_that_is_large_for_its_text_is_refused_and_says_so() {
        let pattern = r"(?:\w{0,5}){0,10}!";
        assert!(Pattern::new(pattern, Flags::default(), 100).is_ok());
        let error = Pattern::new(pattern, Flags::default(), 100_000_000)
            .err()
            .unwrap();
        assert_eq!(error.kind(), "RuntimeError");
        assert!(error.message().contains("too large for a text"));
    }
}
