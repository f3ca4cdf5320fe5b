//! The header's JSON, read strictly: the format allows one shape of document, so nothing more general is parsed.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{Dtype, Entry, Header, Problem, TensorInfo};
use crate::elements::element_count;

type Result<T> = std::result::Result<T, Problem>;

/// Parses and checks a header for a file with `data_len` bytes after it.
pub(super) fn parse(text: &[u8], data_len: u64) -> Result<Header> {
    let text = std::str::from_utf8(text).map_err(|_| Problem::NotUtf8)?;
    let mut reader = Reader { text, at: 0 };
    let mut header = Header::default();
    let mut names = BTreeSet::new();
    // The format wants the object at the very start; blanks are allowed only behind it.
    if !text.starts_with('{') {
        return Err(Problem::Syntax { at: 0 });
    }
    reader.object(|reader, name| {
        if !names.insert(name.clone()) {
            return Err(Problem::Duplicate { name });
        }
        if name == "__metadata__" {
            let mut keys = BTreeSet::new();
            return reader.object(|reader, key| {
                if !keys.insert(key.clone()) {
                    return Err(Problem::Duplicate { name: key });
                }
                let value = reader.string()?;
                header.metadata.push((key, value));
                Ok(())
            });
        }
        header.tensors.push(tensor(reader, name)?);
        Ok(())
    })?;
    reader.blanks();
    if reader.at != text.len() {
        return Err(reader.syntax());
    }
    header.tensors.sort_by_key(|t| (t.start, t.end));
    let mut end = 0;
    for t in &header.tensors {
        if t.start != end {
            return Err(Problem::Layout {
                name: t.name.clone(),
            });
        }
        end = t.end;
    }
    if end != data_len {
        return Err(Problem::Length {
            expected: end,
            actual: data_len,
        });
    }
    Ok(header)
}

fn tensor(reader: &mut Reader<'_>, name: String) -> Result<TensorInfo> {
    let (mut dtype, mut shape, mut offsets) = (None, None, None);
    reader.object(|reader, field| {
        let duplicate = match field.as_str() {
            "dtype" => dtype.replace(reader.string()?).is_some(),
            "shape" => shape.replace(reader.numbers()?).is_some(),
            "data_offsets" => offsets.replace(reader.numbers()?).is_some(),
            _ => return Err(reader.syntax()),
        };
        if duplicate {
            return Err(Problem::Duplicate { name: field });
        }
        Ok(())
    })?;
    let (Some(dtype), Some(shape), Some(offsets)) = (dtype, shape, offsets) else {
        return Err(Problem::Incomplete { name });
    };
    let Some(dtype) = Dtype::parse(&dtype) else {
        return Err(Problem::Dtype { name, dtype });
    };
    let size = shape
        .iter()
        .try_fold(dtype.size() as u64, |n, &s| n.checked_mul(s));
    let shape: Vec<usize> = shape.into_iter().map(|s| s as usize).collect();
    // A zero among the sizes hides how large the others are.
    let size = size.filter(|&size| size > 0 || element_count(&shape).is_ok());
    match (size, &offsets[..]) {
        (Some(size), &[start, end]) if end.checked_sub(start) == Some(size) => Ok(TensorInfo {
            name,
            dtype,
            shape,
            start,
            end,
        }),
        _ => Err(Problem::Size { name }),
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn syntax(&self) -> Problem {
        Problem::Syntax { at: self.at }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Skips blanks and takes one byte if it is the wanted one.
    fn take(&mut self, wanted: u8) -> bool {
        self.blanks();
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, wanted: u8) -> Result<()> {
        if self.take(wanted) {
            Ok(())
        } else {
            Err(self.syntax())
        }
    }

    /// An object; `entry` reads the value of each key.
    fn object(&mut self, mut entry: impl FnMut(&mut Self, String) -> Result<()>) -> Result<()> {
        self.expect(b'{')?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            entry(self, key)?;
            if !self.take(b',') {
                return self.expect(b'}');
            }
        }
    }

    fn numbers(&mut self) -> Result<Vec<u64>> {
        let mut out = Vec::new();
        self.expect(b'[')?;
        if self.take(b']') {
            return Ok(out);
        }
        loop {
            out.push(self.number()?);
            if !self.take(b',') {
                self.expect(b']')?;
                return Ok(out);
            }
        }
    }

    /// A whole number without sign, fraction or leading zero.
    fn number(&mut self) -> Result<u64> {
        self.blanks();
        let rest = &self.text[self.at..];
        let digits = &rest[..rest.bytes().take_while(u8::is_ascii_digit).count()];
        if digits.len() > 1 && digits.starts_with('0') {
            return Err(self.syntax());
        }
        let value = digits.parse().map_err(|_| self.syntax())?;
        self.at += digits.len();
        Ok(value)
    }

    fn string(&mut self) -> Result<String> {
        self.expect(b'"')?;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest
                .bytes()
                .position(|b| b == b'"' || b == b'\\' || b < 0x20)
                .ok_or_else(|| self.syntax())?;
            out.push_str(&rest[..plain]);
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    out.push(self.escape()?);
                }
                _ => return Err(self.syntax()),
            }
        }
    }

    fn escape(&mut self) -> Result<char> {
        let kind = self.peek().ok_or_else(|| self.syntax())?;
        self.at += 1;
        Ok(match kind {
            b'"' | b'\\' | b'/' => char::from(kind),
            b'b' => '\u{8}',
            b'f' => '\u{C}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex4()?;
                let code = if (0xD800..0xDC00).contains(&first) {
                    if !self.text[self.at..].starts_with("\\u") {
                        return Err(self.syntax());
                    }
                    self.at += 2;
                    let second = self.hex4()?;
                    if !(0xDC00..0xE000).contains(&second) {
                        return Err(self.syntax());
                    }
                    0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00)
                } else {
                    first
                };
                char::from_u32(code).ok_or_else(|| self.syntax())?
            }
            _ => return Err(self.syntax()),
        })
    }

    fn hex4(&mut self) -> Result<u32> {
        let digits = self
            .text
            .get(self.at..self.at + 4)
            .filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))
            .ok_or_else(|| self.syntax())?;
        let value = u32::from_str_radix(digits, 16).map_err(|_| self.syntax())?;
        self.at += 4;
        Ok(value)
    }
}

/// The header text for tensors in the order of their bytes, padded so that the data is aligned to 8 bytes.
pub(super) fn render(entries: &[Entry], metadata: &[(String, String)]) -> String {
    let mut out = String::from("{");
    if !metadata.is_empty() {
        out.push_str("\"__metadata__\":{");
        for (i, (key, value)) in metadata.iter().enumerate() {
            out.push_str(if i == 0 { "" } else { "," });
            quote(&mut out, key);
            out.push(':');
            quote(&mut out, value);
        }
        out.push('}');
    }
    let mut start = 0u64;
    for entry in entries {
        if out.len() > 1 {
            out.push(',');
        }
        quote(&mut out, &entry.name);
        let shape: Vec<_> = entry.shape.iter().map(ToString::to_string).collect();
        let end = start + entry.bytes();
        let (dtype, shape) = (entry.dtype.name(), shape.join(","));
        write!(
            out,
            ":{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{start},{end}]}}"
        )
        .expect("writing to a string succeeds");
        start = end;
    }
    out.push('}');
    while out.len() % 8 != 0 {
        out.push(' ');
    }
    out
}

fn quote(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{C}' => out.push_str("\\f"),
            c if c < ' ' => {
                write!(out, "\\u{:04x}", c as u32).expect("writing to a string succeeds");
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, start: u64, end: u64) -> String {
        format!(
            "\"{name}\":{{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[{start},{end}]}}",
            end - start
        )
    }

    #[track_caller]
    fn check(text: &str, data_len: u64, problem: Problem) {
        assert_eq!(parse(text.as_bytes(), data_len), Err(problem), "{text}");
    }

    #[test]
    fn good_headers() {
        let text = format!("{{{}, {} }}  \n", entry("b", 2, 5), entry("a", 0, 2));
        let header = parse(text.as_bytes(), 5).unwrap();
        let names: Vec<_> = header.tensors.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(parse(b"{}", 0), Ok(Header::default()));
        let text = "{\"__metadata__\":{\"k\":\"\\u00e9\\ud83d\\ude00\\n\"}}";
        let metadata = parse(text.as_bytes(), 0).unwrap().metadata;
        assert_eq!(metadata, [("k".to_owned(), "é😀\n".to_owned())]);
        // Tensors without elements may share a position.
        let text = format!(
            "{{{},{},{}}}",
            entry("e", 2, 2),
            entry("a", 0, 2),
            entry("f", 2, 2)
        );
        assert_eq!(parse(text.as_bytes(), 2).unwrap().tensors.len(), 3);
    }

    #[test]
    fn layout_is_checked() {
        let name = || "b".to_owned();
        let two = |x: String, y: String| format!("{{{x},{y}}}");
        check(
            &two(entry("a", 0, 4), entry("b", 2, 6)),
            6,
            Problem::Layout { name: name() },
        );
        check(
            &two(entry("a", 0, 4), entry("b", 5, 6)),
            6,
            Problem::Layout { name: name() },
        );
        check(
            &format!("{{{}}}", entry("b", 1, 2)),
            2,
            Problem::Layout { name: name() },
        );
        let length = |actual| Problem::Length {
            expected: 4,
            actual,
        };
        check(&format!("{{{}}}", entry("a", 0, 4)), 3, length(3));
        check(&format!("{{{}}}", entry("a", 0, 4)), 5, length(5));
        check(
            &two(entry("b", 0, 4), entry("b", 4, 6)),
            6,
            Problem::Duplicate { name: name() },
        );
    }

    #[test]
    fn entries_are_checked() {
        let info = |dtype: &str, shape: &str, offsets: &str| {
            format!(
                "{{\"a\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{offsets}}}}}"
            )
        };
        let size = || Problem::Size {
            name: "a".to_owned(),
        };
        check(&info("F32", "[4611686018427387904,0]", "[0,0]"), 0, size());
        check(&info("F32", "[2]", "[0,4]"), 4, size());
        check(&info("F32", "[1]", "[4,0]"), 4, size());
        check(&info("F32", "[1]", "[0,4,8]"), 4, size());
        check(
            &info(
                "F32",
                "[18446744073709551615,18446744073709551615]",
                "[0,4]",
            ),
            4,
            size(),
        );
        check(
            &info("F31", "[1]", "[0,4]"),
            4,
            Problem::Dtype {
                name: "a".to_owned(),
                dtype: "F31".to_owned(),
            },
        );
        check(
            "{\"a\":{\"dtype\":\"F32\"}}",
            0,
            Problem::Incomplete {
                name: "a".to_owned(),
            },
        );
        for (shape, offsets) in [
            ("[-1]", "[0,4]"),
            ("[1]", "[-4,0]"),
            ("[NaN]", "[0,4]"),
            ("[1.0]", "[0,4]"),
            ("[1e3]", "[0,4]"),
            ("[01]", "[0,4]"),
            ("[99999999999999999999]", "[0,4]"),
            ("null", "[0,4]"),
        ] {
            let text = info("F32", shape, offsets);
            let result = parse(text.as_bytes(), 4);
            assert!(
                matches!(result, Err(Problem::Syntax { .. })),
                "{text} {result:?}"
            );
        }
    }

    #[test]
    fn syntax_is_checked() {
        for text in [
            "",
            " {}",
            "{",
            "{}}",
            "[]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1}",
            "{,}",
            "{} x",
            "{\"__metadata__\":{\"a\":1}}",
            "{\"__metadata__\":{\"a\":\"\\x\"}}",
            "{\"__metadata__\":{\"a\":\"\\ud800\"}}",
            "{\"__metadata__\":{\"a\":\"\n\"}}",
            "{\"__metadata__\":{\"a\":\"\\u12",
            "{\"__metadata__\":{\"a\":\"\\u+123\"}}",
            "{\"__metadata__\":{\"a\":\"\\u00é\"}}",
            "{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"x\":1}}",
        ] {
            let result = parse(text.as_bytes(), 0);
            assert!(
                matches!(result, Err(Problem::Syntax { .. })),
                "{text} {result:?}"
            );
        }
    }
}
