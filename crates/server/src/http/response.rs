//! Answers in the few forms the API has.

use std::io::{self, Write};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use fresco_graph::{Value, json};
use serde::Serialize;

use crate::http::uri_text::encode_segment;

pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");
pub(crate) const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
pub(crate) const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// 200 with a JSON value.
pub(crate) fn json(value: &Value) -> Response {
    json_status(StatusCode::OK, value)
}

pub(crate) fn json_status(status: StatusCode, value: &Value) -> Response {
    bytes(status, JSON, json::to_string(value))
}

/// Writes numbers as [`json::to_string`] does.
struct WireNumbers;

impl serde_json::ser::Formatter for WireNumbers {
    fn write_f64<W: Write + ?Sized>(&mut self, to: &mut W, number: f64) -> io::Result<()> {
        to.write_all(json::float_text(number).as_bytes())
    }
}

/// Text of a wire type. What is written are own types, whose keys are texts: it does not fail.
pub(crate) fn wire_text<T: Serialize>(message: &T) -> String {
    let mut text = Vec::with_capacity(128);
    let mut to = serde_json::Serializer::with_formatter(&mut text, WireNumbers);
    let written = message.serialize(&mut to).map_err(|e| e.to_string());
    let written = written.and_then(|()| String::from_utf8(text).map_err(|e| e.to_string()));
    written.unwrap_or_else(|error| {
        tracing::error!("an answer cannot be written: {error}");
        "null".to_owned()
    })
}

/// 200 with a wire type.
pub(crate) fn typed<T: Serialize>(message: &T) -> Response {
    typed_status(StatusCode::OK, message)
}

pub(crate) fn typed_status<T: Serialize>(status: StatusCode, message: &T) -> Response {
    bytes(status, JSON, wire_text(message))
}

/// 200 with text that is JSON already.
pub(crate) fn json_text(text: impl Into<bytes::Bytes>) -> Response {
    bytes(StatusCode::OK, JSON, text)
}

pub(crate) fn text(status: StatusCode, text: impl Into<bytes::Bytes>) -> Response {
    bytes(status, TEXT, text)
}

pub(crate) fn html(status: StatusCode, text: impl Into<bytes::Bytes>) -> Response {
    bytes(status, HTML, text)
}

pub(crate) fn bytes(
    status: StatusCode,
    kind: HeaderValue,
    content: impl Into<bytes::Bytes>,
) -> Response {
    let content = content.into();
    let length = HeaderValue::from(content.len());
    let mut answer = Response::new(Body::from(content));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer.headers_mut().insert(header::CONTENT_LENGTH, length);
    answer
}

/// 200, no body, no content type.
pub(crate) fn empty() -> Response {
    status(StatusCode::OK)
}

/// A status without body.
pub(crate) fn status(status: StatusCode) -> Response {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = status;
    if status != StatusCode::NO_CONTENT && status != StatusCode::NOT_MODIFIED {
        answer
            .headers_mut()
            .insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    answer
}

/// Marks answers made from files, which are never compressed.
#[derive(Clone, Copy)]
pub(crate) struct FromFile;

/// Named, and not with a weight of nothing.
pub(crate) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let named = |part: &str| {
        let (name, weight) = part.split_once(';').unwrap_or((part, ""));
        let weight = weight.trim().strip_prefix("q=");
        let refused = weight.is_some_and(|w| w.trim().parse() == Ok(0.0));
        name.trim().eq_ignore_ascii_case("gzip") && !refused
    };
    headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .any(|v| v.split(',').any(named))
}

pub(crate) fn header_text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Whether the client has this version already; nothing if it does not say by a tag.
pub(crate) fn has_tag(headers: &HeaderMap, etag: &str) -> Option<bool> {
    let tags = header_text(headers, header::IF_NONE_MATCH)?;
    let mut tags = tags.split(',').map(str::trim);
    Some(tags.any(|t| t == "*" || t.trim_start_matches("W/") == etag))
}

/// `Content-Disposition` for a file name that came from outside: the plain form for old clients, the encoded form for
/// everything beyond ASCII.
pub(crate) fn disposition(kind: Option<&str>, name: &str) -> HeaderValue {
    use std::fmt::Write as _;

    let plain: String = name
        .chars()
        .map(|c| {
            if (' '..='~').contains(&c) && c != '"' && c != '\\' {
                c
            } else {
                '_'
            }
        })
        .collect();
    let mut value = kind.map(|k| format!("{k}; ")).unwrap_or_default();
    let _ = write!(value, "filename=\"{plain}\"");
    if plain != name {
        value.push_str("; filename*=UTF-8''");
        value.push_str(&encode_segment(name));
    }
    HeaderValue::from_str(&value).unwrap_or(HeaderValue::from_static("attachment"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disposition_cannot_be_broken_out_of() {
        assert_eq!(disposition(None, "a.png"), "filename=\"a.png\"");
        let value = disposition(Some("attachment"), "a\"\r\nX: y\u{e9}.png");
        assert_eq!(
            value,
            "attachment; filename=\"a___X: y_.png\"; filename*=UTF-8''a%22%0D%0AX%3A%20y%C3%A9.png"
        );
    }
}
