//! Reading `multipart/form-data` bodies that are already in memory. Parts share the body's bytes.

use bytes::Bytes;
use memchr::memmem::Finder;

/// More fields than any upload has.
const MAX_PARTS: usize = 64;
/// Header bytes of one part.
const MAX_HEADERS: usize = 16 << 10;

/// One field of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub name: String,
    /// Present for files, as the client sent it.
    pub filename: Option<String>,
    pub data: Bytes,
}

/// Why a body is not a form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
}

/// Splits a body into its parts.
pub fn parse(content_type: &str, body: &Bytes) -> Result<Vec<Part>, MultipartError> {
    let boundary = boundary(content_type).ok_or(MultipartError::NotMultipart)?;
    let open = format!("--{boundary}");
    let close = format!("\r\n--{boundary}");
    let mut at = if body.starts_with(open.as_bytes()) {
        open.len()
    } else {
        Finder::new(&close)
            .find(body)
            .ok_or(MultipartError::NoBoundary)?
            + close.len()
    };
    let ends = Finder::new(&close);
    let blank = Finder::new("\r\n\r\n");
    let mut parts = Vec::new();
    loop {
        let rest = &body[at..];
        if rest.starts_with(b"--") {
            return Ok(parts);
        }
        let Some(line) = memchr::memchr(b'\n', rest) else {
            return Err(MultipartError::Truncated);
        };
        // Only blanks may follow the boundary on its line. The line break also opens the headers, so that a part
        // without any headers is found.
        if !rest[..line]
            .iter()
            .all(|b| matches!(b, b' ' | b'\t' | b'\r'))
        {
            return Err(MultipartError::Truncated);
        }
        let head = at + line.saturating_sub(1);
        let window = &body[head..body.len().min(head + MAX_HEADERS)];
        let length = blank
            .find(window)
            .ok_or(if body.len() - head > MAX_HEADERS {
                MultipartError::LongHeaders
            } else {
                MultipartError::Truncated
            })?;
        let (name, filename) =
            disposition(&body[head..head + length]).ok_or(MultipartError::NoName)?;
        let start = head + length + 4;
        // An empty part's closing boundary begins with the line break that ended its headers.
        let from = start - 2;
        let end = from + ends.find(&body[from..]).ok_or(MultipartError::Truncated)?;
        if parts.len() >= MAX_PARTS {
            return Err(MultipartError::TooManyParts);
        }
        parts.push(Part {
            name,
            filename,
            data: body.slice(start.min(end)..end),
        });
        at = end + close.len();
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
            .then(|| crate::request::decode(encoded, false))
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
    use super::*;

    const KIND: &str = "multipart/form-data; boundary=XX";

    fn read(body: &str) -> Result<Vec<Part>, MultipartError> {
        parse(KIND, &Bytes::copy_from_slice(body.as_bytes()))
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
        assert_eq!(
            parse("text/plain", &Bytes::new()),
            Err(MultipartError::NotMultipart)
        );
        assert_eq!(
            parse("multipart/form-data; boundary=", &Bytes::new()),
            Err(MultipartError::NotMultipart)
        );
        assert_eq!(read(""), Err(MultipartError::NoBoundary));
        assert_eq!(read("--XX"), Err(MultipartError::Truncated));
        assert_eq!(read("--XX\r\n"), Err(MultipartError::Truncated));
        assert_eq!(read("--XX\n\r\n\r\n"), Err(MultipartError::NoName));
        assert_eq!(
            read("--XX\r\nA: b\r\n\r\nx\r\n--XX--"),
            Err(MultipartError::NoName)
        );
        let head = "--XX\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nx";
        assert_eq!(read(head), Err(MultipartError::Truncated));
        let long = format!("--XX\r\nA: {}\r\n\r\n", "b".repeat(MAX_HEADERS));
        assert_eq!(read(&long), Err(MultipartError::LongHeaders));
        let many = "--XX\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n"
            .repeat(MAX_PARTS + 1)
            + "--XX--";
        assert_eq!(read(&many), Err(MultipartError::TooManyParts));
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
