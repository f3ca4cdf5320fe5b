//! JSON as the reference's Python reads and writes it.
//!
//! Why not a general crate: integers and floats must stay apart, key order must survive, `NaN` and `Infinity` are legal
//! in, and text chunks of saved pictures must come out byte for byte as Python writes them.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::{Map, Value};

/// Arrays and objects may nest this deep; a hostile body of a million brackets is refused, not recursed into.
pub const MAX_DEPTH: usize = 200;

/// Bytes that the values of a text from outside may take, beside the texts in them: a few characters become many times as
/// many bytes. The largest prompt that is accepted takes less.
pub const FOREIGN_BYTES: u64 = 512 << 20;
/// Why a text whose values take more is refused.
pub const TOO_MANY_VALUES: &str = "Too many values";

/// Bytes of a value in its list or object, with the room that those keep for more.
const VALUE_BYTES: u64 = 48;
/// What a text, a list and an object take beside that, and a key.
const TEXT_BYTES: u64 = 32;
const LIST_BYTES: u64 = 64;
const OBJECT_BYTES: u64 = 160;
const KEY_BYTES: u64 = 96;

/// Where and why a text is not JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: line {line} column {column} (char {offset})")]
pub struct JsonError {
    pub reason: &'static str,
    pub line: usize,
    pub column: usize,
    pub offset: usize,
}

/// Parses one JSON text of our own.
pub fn parse(text: &str) -> Result<Value, JsonError> {
    parse_within(text, u64::MAX)
}

/// Parses one JSON text whose values may take about so many bytes beside the texts in them. They are counted while they are
/// read, so that a text of nothing but brackets does not become a hundred times its size first.
pub fn parse_within(text: &str, most: u64) -> Result<Value, JsonError> {
    let mut p = Parser {
        text,
        at: 0,
        left: most,
    };
    p.skip_space();
    let value = p.value(0)?;
    p.skip_space();
    if p.at < text.len() {
        return Err(p.error("Extra data"));
    }
    Ok(value)
}

/// Parses the JSON value that a text starts with; whatever follows it is left alone.
pub fn parse_start(text: &str) -> Result<Value, JsonError> {
    let mut p = Parser {
        text,
        at: 0,
        left: u64::MAX,
    };
    p.skip_space();
    p.value(0)
}

/// Parses bytes that should be UTF-8 JSON, with or without a byte order mark.
pub fn parse_bytes(bytes: &[u8]) -> Result<Value, JsonError> {
    parse_bytes_within(bytes, u64::MAX)
}

/// As [`parse_bytes`], with the bound of [`parse_within`].
pub fn parse_bytes_within(bytes: &[u8], most: u64) -> Result<Value, JsonError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    match std::str::from_utf8(bytes) {
        Ok(text) => parse_within(text, most),
        Err(e) => Err(JsonError {
            reason: "Body is not UTF-8",
            line: 1,
            column: 1,
            offset: e.valid_up_to(),
        }),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// Bytes that values may still take.
    left: u64,
}

impl Parser<'_> {
    fn error(&self, reason: &'static str) -> JsonError {
        let before = &self.text.as_bytes()[..self.at.min(self.text.len())];
        let line = before.split(|b| *b == b'\n').count();
        let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
        JsonError {
            reason,
            line,
            column,
            offset: self.at,
        }
    }

    fn spend(&mut self, bytes: u64) -> Result<(), JsonError> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(self.error(TOO_MANY_VALUES)),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, JsonError> {
        if self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(value)
        } else {
            Err(self.error("Expecting value"))
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, JsonError> {
        self.spend(VALUE_BYTES)?;
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => {
                self.spend(TEXT_BYTES)?;
                Ok(Value::Str(self.string()?.into()))
            }
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'n') => self.word("null", Value::Null),
            Some(b'N') => self.word("NaN", Value::Float(f64::NAN)),
            Some(b'I') => self.word("Infinity", Value::Float(f64::INFINITY)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => Err(self.error("Expecting value")),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, JsonError> {
        if depth >= MAX_DEPTH {
            return Err(self.error("Nested too deeply"));
        }
        self.spend(OBJECT_BYTES)?;
        self.at += 1;
        let mut map = Map::new();
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(map.into());
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.error("Expecting property name enclosed in double quotes"));
            }
            self.spend(KEY_BYTES)?;
            let key = self.string()?;
            self.skip_space();
            if self.peek() != Some(b':') {
                return Err(self.error("Expecting ':' delimiter"));
            }
            self.at += 1;
            self.skip_space();
            let value = self.value(depth + 1)?;
            map.insert(Arc::from(key), value);
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(map.into());
                }
                _ => return Err(self.error("Expecting ',' delimiter")),
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, JsonError> {
        if depth >= MAX_DEPTH {
            return Err(self.error("Nested too deeply"));
        }
        self.spend(LIST_BYTES)?;
        self.at += 1;
        let mut list = Vec::new();
        self.skip_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::List(Arc::new(list)));
        }
        loop {
            self.skip_space();
            list.push(self.value(depth + 1)?);
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Value::List(Arc::new(list)));
                }
                _ => return Err(self.error("Expecting ',' delimiter")),
            }
        }
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Result<Value, JsonError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
            if self.peek() == Some(b'I') {
                return self.word("Infinity", Value::Float(f64::NEG_INFINITY));
            }
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else if self.digits() == 0 {
            return Err(self.error("Expecting value"));
        }
        let mut float = false;
        let back = self.at;
        if self.peek() == Some(b'.') {
            self.at += 1;
            if self.digits() == 0 {
                self.at = back;
                return Err(self.error("Extra data"));
            }
            float = true;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(self.error("Expecting value"));
            }
            float = true;
        }
        let text = &self.text[start..self.at];
        if !float && let Ok(i) = text.parse::<i128>() {
            return Ok(Value::Int(i));
        }
        text.parse::<f64>()
            .map(Value::Float)
            .map_err(|_| self.error("Expecting value"))
    }

    fn hex4(&mut self) -> Result<u32, JsonError> {
        let digits = self
            .text
            .as_bytes()
            .get(self.at..self.at + 4)
            .ok_or_else(|| self.error("Invalid \\uXXXX escape"))?;
        let mut n = 0;
        for d in digits {
            let d = (*d as char)
                .to_digit(16)
                .ok_or_else(|| self.error("Invalid \\uXXXX escape"))?;
            n = n * 16 + d;
        }
        self.at += 4;
        Ok(n)
    }

    fn string(&mut self) -> Result<String, JsonError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let start = self.at;
            while let Some(b) = self.peek()
                && b != b'"'
                && b != b'\\'
                && b >= 0x20
            {
                self.at += 1;
            }
            out.push_str(&self.text[start..self.at]);
            match self.peek() {
                None => return Err(self.error("Unterminated string")),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    let escape = self
                        .peek()
                        .ok_or_else(|| self.error("Unterminated string"))?;
                    self.at += 1;
                    match escape {
                        b'"' => out.push('"'),
                        b'\\' => out.push('\\'),
                        b'/' => out.push('/'),
                        b'b' => out.push('\u{8}'),
                        b'f' => out.push('\u{c}'),
                        b'n' => out.push('\n'),
                        b'r' => out.push('\r'),
                        b't' => out.push('\t'),
                        b'u' => {
                            let first = self.hex4()?;
                            out.push(self.join_surrogates(first)?);
                        }
                        _ => {
                            self.at -= 1;
                            return Err(self.error("Invalid \\escape"));
                        }
                    }
                }
                Some(_) => return Err(self.error("Invalid control character")),
            }
        }
    }

    /// A lone surrogate has no place in UTF-8 and becomes the replacement character.
    fn join_surrogates(&mut self, first: u32) -> Result<char, JsonError> {
        if (0xd800..0xdc00).contains(&first) && self.text.as_bytes()[self.at..].starts_with(b"\\u")
        {
            let back = self.at;
            self.at += 2;
            let second = self.hex4()?;
            if (0xdc00..0xe000).contains(&second) {
                let joined = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(joined).unwrap_or('\u{fffd}'));
            }
            self.at = back;
        }
        Ok(char::from_u32(first).unwrap_or('\u{fffd}'))
    }
}

/// How to write a value.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// `", "` and `": "` instead of `","` and `":"`.
    pub spaces: bool,
    /// Escape everything beyond ASCII.
    pub ascii: bool,
    /// Write bare `NaN` and `Infinity`; otherwise they become `null`.
    pub bare_nan: bool,
    /// Indent by this many blanks, one member a line.
    pub indent: Option<usize>,
}

/// What goes over HTTP and WebSocket.
pub const WIRE: Style = Style {
    spaces: false,
    ascii: false,
    bare_nan: false,
    indent: None,
};
/// What goes into picture metadata: exactly Python's `json.dumps`.
pub const PYTHON: Style = Style {
    spaces: true,
    ascii: true,
    bare_nan: true,
    indent: None,
};

/// Compact JSON for the wire.
pub fn to_string(value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, value, WIRE);
    out
}

/// Python's `json.dumps(value)`.
pub fn to_python(value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, value, PYTHON);
    out
}

/// Appends `value` in the given style.
pub fn write(out: &mut String, value: &Value, style: Style) {
    write_at(out, value, style, 0);
}

fn write_at(out: &mut String, value: &Value, style: Style, level: usize) {
    match value {
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Int(i) => {
            let _ = write!(out, "{i}");
        }
        Value::Float(f) if f.is_finite() => out.push_str(&float_text(*f)),
        Value::Float(f) if style.bare_nan => {
            out.push_str(if f.is_nan() {
                "NaN"
            } else if *f > 0.0 {
                "Infinity"
            } else {
                "-Infinity"
            });
        }
        Value::Null | Value::Blocker(_) | Value::Float(_) => out.push_str("null"),
        Value::Str(s) => write_string(out, s, style.ascii),
        Value::Object(o) => write_string(out, &o.describe(), style.ascii),
        Value::List(l) => write_items(out, style, level, ['[', ']'], l.iter(), |out, v| {
            write_at(out, v, style, level + 1);
        }),
        Value::Map(m) => write_items(out, style, level, ['{', '}'], m.iter(), |out, (k, v)| {
            write_string(out, k, style.ascii);
            out.push_str(if style.spaces { ": " } else { ":" });
            write_at(out, v, style, level + 1);
        }),
    }
}

fn write_items<T>(
    out: &mut String,
    style: Style,
    level: usize,
    brackets: [char; 2],
    items: impl ExactSizeIterator<Item = T>,
    mut each: impl FnMut(&mut String, T),
) {
    out.push(brackets[0]);
    let empty = items.len() == 0;
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push_str(if style.spaces && style.indent.is_none() {
                ", "
            } else {
                ","
            });
        }
        if let Some(n) = style.indent {
            let _ = write!(out, "\n{:1$}", "", n * (level + 1));
        }
        each(out, item);
    }
    if let (Some(n), false) = (style.indent, empty) {
        let _ = write!(out, "\n{:1$}", "", n * level);
    }
    out.push(brackets[1]);
}

/// Appends a quoted, escaped string.
pub fn write_string(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ascii && (c as u32) > 0x7e) => {
                let mut units = [0u16; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A finite or other float as Python's `repr` has it: shortest round trip, always with a point or an exponent.
pub fn float_text(f: f64) -> String {
    if f.is_nan() {
        return "nan".into();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf".into() } else { "-inf".into() };
    }
    if f == 0.0 {
        return if f.is_sign_negative() {
            "-0.0".into()
        } else {
            "0.0".into()
        };
    }
    // `{:e}` gives the shortest digits; Python switches to the exponent form outside 1e-4 .. 1e16.
    let scientific = format!("{f:e}");
    let (mantissa, exponent) = scientific
        .split_once('e')
        .expect("LowerExp always writes an exponent");
    let exponent: i32 = exponent
        .parse()
        .expect("LowerExp writes a decimal exponent");
    if (-4..16).contains(&exponent) {
        let plain = format!("{f}");
        if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        }
    } else {
        format!(
            "{mantissa}e{}{:02}",
            if exponent < 0 { '-' } else { '+' },
            exponent.abs()
        )
    }
}

/// A value as Python's `str()` shows it: what `STRING` coercion and error details print.
pub fn python_text(value: &Value) -> String {
    match value {
        Value::Str(s) => s.to_string(),
        other => python_repr(other),
    }
}

/// A value as Python's `repr()` shows it.
pub fn python_repr(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(b) => if *b { "True" } else { "False" }.into(),
        Value::Int(i) => i.to_string(),
        Value::Float(f) => float_text(*f),
        Value::Str(s) => quote_python(s),
        Value::List(l) => format!(
            "[{}]",
            l.iter().map(python_repr).collect::<Vec<_>>().join(", ")
        ),
        Value::Map(m) => {
            let items: Vec<_> = m
                .iter()
                .map(|(k, v)| format!("{}: {}", quote_python(k), python_repr(v)))
                .collect();
            format!("{{{}}}", items.join(", "))
        }
        Value::Object(o) => o.describe(),
        Value::Blocker(_) => "<ExecutionBlocker>".into(),
    }
}

fn quote_python(s: &str) -> String {
    let quote = if s.contains('\'') && !s.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::with_capacity(s.len() + 2);
    out.push(quote);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || (c as u32) == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn round(text: &str, wire: &str, python: &str) {
        let value = parse(text).unwrap();
        assert_eq!(to_string(&value), wire);
        assert_eq!(to_python(&value), python);
    }

    #[test]
    fn keeps_numbers_order_and_escapes() {
        round(
            r#"{"b":1,"a":1.0}"#,
            r#"{"b":1,"a":1.0}"#,
            r#"{"b": 1, "a": 1.0}"#,
        );
        round(
            "[18446744073709551615, -18446744073709551615]",
            "[18446744073709551615,-18446744073709551615]",
            "[18446744073709551615, -18446744073709551615]",
        );
        round(
            "[NaN, Infinity, -Infinity]",
            "[null,null,null]",
            "[NaN, Infinity, -Infinity]",
        );
        round(
            "\"\\u00e9\\ud83d\\ude42\\n\"",
            "\"é🙂\\n\"",
            "\"\\u00e9\\ud83d\\ude42\\n\"",
        );
        round(r#"{"a":1,"a":2}"#, r#"{"a":2}"#, r#"{"a": 2}"#);
    }

    #[test]
    fn floats_print_as_python_does() {
        for (f, text) in [
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e15, "1000000000000000.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (2.0, "2.0"),
            (1.5e300, "1.5e+300"),
        ] {
            assert_eq!(float_text(f), text);
        }
    }

    #[test]
    fn refuses_what_python_refuses() {
        for bad in [
            "",
            "{",
            "[1,]",
            "{\"a\" 1}",
            "01",
            "1.",
            "nul",
            "\"\u{1}\"",
            "\"abc",
            "[1] 2",
            "'a'",
            "\"\\x\"",
            "-",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(parse(&deep).unwrap_err().reason, "Nested too deeply");
    }

    #[test]
    fn values_are_counted_while_they_are_read() {
        let refused = |text: &str| {
            parse_within(text, 1 << 20).err().map(|error| {
                assert_eq!(error.reason, TOO_MANY_VALUES);
                error.offset
            })
        };
        for unit in ["[],", "{},", "0,", "\"\",", "[0],", "{\"\":0},"] {
            let list = |count: usize| format!("[{}0]", unit.repeat(count));
            assert_eq!(refused(&list(1000)), None, "{unit}");
            // Long before the end of the text.
            let offset = refused(&list(1 << 20)).unwrap();
            assert!(offset < unit.len() << 15, "{unit}: {offset}");
        }
        // One long text takes what it takes.
        assert_eq!(refused(&format!("\"{}\"", "x".repeat(4 << 20))), None);
        let keys: Vec<String> = (0..100_000).map(|n| format!("\"{n}\":0,")).collect();
        let keys = keys.concat();
        assert!(refused(&format!("{{{keys}\"\":0}}")).is_some());
        // A tenth of the largest prompt that is accepted takes less than a tenth.
        let inputs = r#""name":["1000",0],"#.repeat(9);
        let node =
            |n: usize| format!(r#""{n}":{{"class_type":"X","inputs":{{{inputs}"last":1}}}}"#);
        let nodes: Vec<String> = (0..10_000).map(node).collect();
        let prompt = format!("{{{}}}", nodes.join(","));
        assert!(parse_within(&prompt, FOREIGN_BYTES / 10).is_ok());
    }

    #[test]
    fn python_forms() {
        let v = parse(r#"{"a": [null, true, "it's", 1.0]}"#).unwrap();
        assert_eq!(python_repr(&v), r#"{'a': [None, True, "it's", 1.0]}"#);
        assert_eq!(python_text(&Value::from("x")), "x");
    }
}
