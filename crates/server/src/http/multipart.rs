//! Reading `multipart/form-data` bodies that have come in whole, in memory or in a file.

use std::borrow::Cow;
use std::io::{self, Read, Seek, SeekFrom};

use bytes::Bytes;
use memchr::memmem::Finder;

/// More fields than any upload has.
const MAX_PARTS: usize = 64;
/// Header bytes of one part.
const MAX_HEADERS: usize = 16 << 10;

/// One field of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormPart {
    pub name: String,
    /// Present for files, as the client sent it.
    pub filename: Option<String>,
    pub data: Bytes,
}

/// Why a body is not a form.
#[derive(Debug, thiserror::Error)]
pub enum MultipartError {
    #[error("the content type is not multipart/form-data with a boundary")]
    NotMultipart,
    #[error("the boundary does not occur in the body")]
    NoBoundary,
    #[error("the body ends inside a part")]
    Truncated,
    #[error("a part has no name")]
    NoName,
    #[error("a part has more than {MAX_HEADERS} bytes of headers")]
    LongHeaders,
    #[error("the form has more than {MAX_PARTS} parts")]
    TooManyParts,
    #[error("the body cannot be read back")]
    Io(#[from] io::Error),
}

/// Splits a body in memory into its parts.
pub fn parse(content_type: &str, body: &Bytes) -> Result<Vec<FormPart>, MultipartError> {
    let mut source = &body[..];
    let sections = sections(content_type, &mut source)?;
    Ok(sections
        .into_iter()
        .map(|section| FormPart {
            name: section.name,
            filename: section.filename,
            data: body.slice(section.start as usize..(section.start + section.size) as usize),
        })
        .collect())
}

/// One field of a form by its place in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub name: String,
    /// Present for files, as the client sent it.
    pub filename: Option<String>,
    pub start: u64,
    pub size: u64,
}

/// A body that is looked through, wherever it is.
pub trait Source {
    /// Where `needle` is first, at or after `from`.
    fn find(&mut self, needle: &Finder, from: u64) -> io::Result<Option<u64>>;
    /// Up to `most` bytes.
    fn peek(&mut self, from: u64, most: usize) -> io::Result<Cow<'_, [u8]>>;
}

impl Source for &[u8] {
    fn find(&mut self, needle: &Finder, from: u64) -> io::Result<Option<u64>> {
        let rest = &self[(from as usize).min(self.len())..];
        Ok(needle.find(rest).map(|at| from + at as u64))
    }

    fn peek(&mut self, from: u64, most: usize) -> io::Result<Cow<'_, [u8]>> {
        let start = (from as usize).min(self.len());
        let end = start.saturating_add(most).min(self.len());
        Ok(Cow::Borrowed(&self[start..end]))
    }
}

/// A body in a file.
pub struct FileSource<F> {
    file: F,
    window: usize,
}

impl<F: Read + Seek> FileSource<F> {
    pub fn new(file: F) -> Self {
        Self {
            file,
            window: 1 << 20,
        }
    }
}

impl<F: Read + Seek> Source for FileSource<F> {
    fn find(&mut self, needle: &Finder, from: u64) -> io::Result<Option<u64>> {
        // Windows overlap, so that what lies across their edge is found.
        let overlap = needle.needle().len().saturating_sub(1);
        let mut start = from;
        loop {
            let window = self.peek(start, self.window + overlap)?;
            if let Some(at) = needle.find(&window) {
                return Ok(Some(start + at as u64));
            }
            if window.len() < self.window + overlap {
                return Ok(None);
            }
            start += self.window as u64;
        }
    }

    fn peek(&mut self, from: u64, most: usize) -> io::Result<Cow<'_, [u8]>> {
        self.file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::with_capacity(most);
        (&mut self.file).take(most as u64).read_to_end(&mut bytes)?;
        Ok(Cow::Owned(bytes))
    }
}

/// Finds the parts of a body.
pub fn sections(content_type: &str, body: &mut dyn Source) -> Result<Vec<Section>, MultipartError> {
    let boundary = boundary(content_type).ok_or(MultipartError::NotMultipart)?;
    let open = format!("--{boundary}");
    let close = format!("\r\n--{boundary}");
    let ends = Finder::new(&close);
    let blank = Finder::new("\r\n\r\n");
    let mut at = if *body.peek(0, open.len())? == *open.as_bytes() {
        open.len() as u64
    } else {
        body.find(&ends, 0)?.ok_or(MultipartError::NoBoundary)? + close.len() as u64
    };
    let mut parts = Vec::new();
    loop {
        // Only blanks may follow the boundary on its line. The line break also opens the headers, so that a part
        // without any headers is found.
        let rest = body.peek(at, MAX_HEADERS)?;
        if rest.starts_with(b"--") {
            return Ok(parts);
        }
        let Some(line) = memchr::memchr(b'\n', &rest) else {
            return Err(MultipartError::Truncated);
        };
        if !rest[..line]
            .iter()
            .all(|b| matches!(b, b' ' | b'\t' | b'\r'))
        {
            return Err(MultipartError::Truncated);
        }
        let head = at + line.saturating_sub(1) as u64;
        let window = body.peek(head, MAX_HEADERS + 1)?;
        let fits = &window[..window.len().min(MAX_HEADERS)];
        let length = blank.find(fits).ok_or(if window.len() > MAX_HEADERS {
            MultipartError::LongHeaders
        } else {
            MultipartError::Truncated
        })?;
        let (name, filename) = disposition(&fits[..length]).ok_or(MultipartError::NoName)?;
        let start = head + length as u64 + 4;
        // An empty part's closing boundary begins with the line break that ended its headers.
        let end = body
            .find(&ends, start - 2)?
            .ok_or(MultipartError::Truncated)?;
        if parts.len() >= MAX_PARTS {
            return Err(MultipartError::TooManyParts);
        }
        parts.push(Section {
            name,
            filename,
            start: start.min(end),
            size: end - start.min(end),
        });
        at = end + close.len() as u64;
    }
}

fn boundary(content_type: &str) -> Option<String> {
    let (kind, rest) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value = parameter(rest, "boundary")?;
    let fits = !value.is_empty() && value.len() <= 200 && !value.contains(['\r', '\n']);
    fits.then_some(value)
}

fn disposition(headers: &[u8]) -> Option<(String, Option<String>)> {
    let text = String::from_utf8_lossy(headers);
    let line = text.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim()
            .eq_ignore_ascii_case("content-disposition")
            .then_some(value)
    })?;
    let (_, rest) = line.split_once(';')?;
    let extended = parameter(rest, "filename*").and_then(|v| {
        let (charset, rest) = v.split_once('\'')?;
        let (_, encoded) = rest.split_once('\'')?;
        charset
            .eq_ignore_ascii_case("utf-8")
            .then(|| crate::http::uri_text::decode(encoded, false))
    });
    Some((
        parameter(rest, "name")?,
        extended.or_else(|| parameter(rest, "filename")),
    ))
}

/// The value of `key` in `key=value; key="value"`.
fn parameter(text: &str, key: &str) -> Option<String> {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ';']);
        let (name, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let (value, next) = if let Some(quoted) = after.strip_prefix('"') {
            unquote(quoted)
        } else {
            let end = after.find(';').unwrap_or(after.len());
            (after[..end].trim().to_owned(), &after[end..])
        };
        if name.trim().eq_ignore_ascii_case(key) {
            return Some(value);
        }
        rest = next;
    }
}

/// Text up to the closing quote. A backslash escapes only a quote or itself: some clients send whole Windows paths.
fn unquote(text: &str) -> (String, &str) {
    let mut out = String::new();
    let mut chars = text.char_indices().peekable();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return (out, &text[i + 1..]),
            '\\' if chars.peek().is_some_and(|(_, n)| matches!(n, '"' | '\\')) => {
                if let Some((_, next)) = chars.next() {
                    out.push(next);
                }
            }
            c => out.push(c),
        }
    }
    (out, "")
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    const KIND: &str = "multipart/form-data; boundary=XX";

    /// Reads a form in memory and through a file with a small window, which must agree.
    fn read(body: &str) -> Result<Vec<FormPart>, MultipartError> {
        let parts = parse(KIND, &Bytes::copy_from_slice(body.as_bytes()));
        let mut file = FileSource::new(Cursor::new(body.as_bytes()));
        file.window = 7;
        let found = sections(KIND, &mut file);
        match (&parts, found) {
            (Ok(parts), Ok(found)) => {
                let same = |(p, s): (&FormPart, &Section)| {
                    (&p.name, &p.filename, p.data.len() as u64) == (&s.name, &s.filename, s.size)
                };
                assert!(parts.len() == found.len() && parts.iter().zip(&found).all(same));
            }
            (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string()),
            (a, b) => panic!("{a:?} {b:?}"),
        }
        parts
    }

    #[track_caller]
    fn refused(result: Result<Vec<FormPart>, MultipartError>, why: &MultipartError) {
        assert_eq!(result.unwrap_err().to_string(), why.to_string());
    }

    #[test]
    fn a_browser_upload() {
        let body = "--XX\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a \\\"b\\\".png\"\r\n\
            Content-Type: image/png\r\n\r\n\x01\r\n--X\r\n\r\n--XX\r\ncontent-disposition: form-data; name=type\r\n\r\n\
            input\r\n--XX--\r\n";
        let parts = read(body).unwrap();
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[0].name, "image");
        assert_eq!(parts[0].filename.as_deref(), Some("a \"b\".png"));
        assert_eq!(&parts[0].data[..], b"\x01\r\n--X\r\n");
        assert_eq!(
            (parts[1].name.as_str(), &parts[1].data[..]),
            ("type", &b"input"[..])
        );
    }

    #[test]
    fn extended_names_and_empty_parts() {
        let body = "preamble\r\n--XX\r\nContent-Disposition: form-data; name=\"f\"; filename=\"x\"; \
            filename*=UTF-8''%C3%A9.png\r\n\r\n\r\n--XX--";
        let parts = read(body).unwrap();
        assert_eq!(parts[0].filename.as_deref(), Some("\u{e9}.png"));
        assert!(parts[0].data.is_empty());
        let quoted = parse(
            "Multipart/Form-Data; charset=x; boundary=\"a b\"",
            &Bytes::from_static(b"--a b--"),
        )
        .unwrap();
        assert!(quoted.is_empty());
    }

    #[test]
    fn a_line_feed_does_not_cut_a_name() {
        let body = "--XX\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a\nb.png\"\r\n\r\n\r\n--XX--";
        assert_eq!(read(body).unwrap()[0].filename.as_deref(), Some("a\nb.png"));
    }

    #[test]
    fn hostile_bodies_are_errors() {
        use MultipartError as Error;
        refused(parse("text/plain", &Bytes::new()), &Error::NotMultipart);
        let unnamed = parse("multipart/form-data; boundary=", &Bytes::new());
        refused(unnamed, &Error::NotMultipart);
        refused(read(""), &Error::NoBoundary);
        refused(read("--XX"), &Error::Truncated);
        refused(read("--XX\r\n"), &Error::Truncated);
        refused(read("--XX\n\r\n\r\n"), &Error::NoName);
        refused(read("--XX\r\nA: b\r\n\r\nx\r\n--XX--"), &Error::NoName);
        let head = "--XX\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nx";
        refused(read(head), &Error::Truncated);
        let long = format!("--XX\r\nA: {}\r\n\r\n", "b".repeat(MAX_HEADERS));
        refused(read(&long), &Error::LongHeaders);
        let many = "--XX\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n"
            .repeat(MAX_PARTS + 1)
            + "--XX--";
        refused(read(&many), &Error::TooManyParts);
    }

    #[test]
    fn every_prefix_of_a_form_is_survived() {
        let body = "--XX\r\nContent-Disposition: form-data; name=\"a\"; filename=\"\\\r\n\r\nx\r\n--XX\r\n\r\n--XX--";
        for end in 0..body.len() {
            let _ = read(&body[..end]);
            let _ = parse(
                "multipart/form-data; boundary=\r\n",
                &Bytes::copy_from_slice(&body.as_bytes()[..end]),
            );
        }
    }
}
