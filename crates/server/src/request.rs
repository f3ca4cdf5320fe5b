//! One request on its way to a handler: decoded path, query, limited body.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use bytes::{Bytes, BytesMut};
use fresco_graph::{Map, Value, json};
use http_body_util::BodyExt;
use tokio::time::Instant;

use crate::App;
use crate::error::{ApiError, Code};

/// How much of a body that is refused for its size is still read, and for how long.
const DRAIN_BYTES: usize = 512 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// How long a body may take: a minute, and then as long as it arrives at a modem's speed. A client that sends a byte now
/// and then must not hold its connection for ever.
const BODY_TIME: Duration = Duration::from_mins(1);
const SLOWEST: u64 = 4096;

/// What handlers get.
pub(crate) struct Request {
    pub(crate) app: App,
    pub(crate) head: Parts,
    /// Decoded path parameters in the order of the pattern.
    pub(crate) params: Vec<String>,
    /// Never locked: the mutex only makes a shared request sendable between threads, which a bare body is not.
    pub(crate) body: Mutex<Body>,
}

impl Request {
    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    /// A path parameter; the pattern of the route guarantees how many there are.
    pub(crate) fn param(&self, index: usize) -> &str {
        self.params.get(index).map_or("", String::as_str)
    }

    /// The first value of a query key.
    pub(crate) fn query(&self, key: &str) -> Option<String> {
        query_value(self.head.uri.query().unwrap_or(""), key)
    }

    /// A query key that says `true`, in any case.
    pub(crate) fn query_true(&self, key: &str) -> bool {
        self.query(key)
            .is_some_and(|v| v.eq_ignore_ascii_case("true"))
    }

    /// The whole body, refused when larger than the upload limit.
    pub(crate) async fn bytes(&mut self) -> Result<Bytes, ApiError> {
        let limit = self.app.config.max_upload;
        let body = std::mem::take(self.body.get_mut().unwrap_or_else(PoisonError::into_inner));
        read_limited(body, &self.head.headers, limit).await
    }

    /// The body as JSON, whatever its content type says. Failing to parse is the reference's 500.
    pub(crate) async fn json(&mut self) -> Result<Value, ApiError> {
        match self.try_json().await? {
            Ok(value) => Ok(value),
            Err(error) => Err(ApiError::trouble(format!(
                "the request body is not JSON: {error}"
            ))),
        }
    }

    /// As [`Request::json`] for routes that say themselves what bad JSON means.
    pub(crate) async fn try_json(&mut self) -> Result<Result<Value, json::JsonError>, ApiError> {
        let bytes = self.bytes().await?;
        let limit = self.app.config.limits.json_bytes;
        if bytes.len() as u64 > limit {
            return Err(ApiError::coded(
                Code::JsonTooLarge,
                format!("{} bytes, the limit is {limit}", bytes.len()),
            ));
        }
        Ok(json::parse_bytes(&bytes))
    }

    /// The body as a JSON object.
    pub(crate) async fn json_map(&mut self) -> Result<Map, ApiError> {
        match self.json().await? {
            Value::Map(map) => Ok(std::sync::Arc::unwrap_or_clone(map)),
            _ => Err(ApiError::trouble("the request body is not a JSON object")),
        }
    }
}

async fn read_limited(mut body: Body, headers: &HeaderMap, limit: u64) -> Result<Bytes, ApiError> {
    let announced = headers
        .get(axum::http::header::CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse::<u64>().ok());
    if announced.is_some_and(|n| n > limit) {
        drain(body).await;
        return Err(ApiError::TooLarge { limit });
    }
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    let mut total = 0u64;
    let start = Instant::now();
    loop {
        let deadline = start + BODY_TIME + Duration::from_secs(total / SLOWEST);
        let Ok(frame) = tokio::time::timeout_at(deadline, body.frame()).await else {
            return Err(ApiError::text(
                StatusCode::REQUEST_TIMEOUT,
                format!("the request body is too slow: {total} bytes so far"),
            ));
        };
        let Some(frame) = frame else { break };
        let frame =
            frame.map_err(|e| ApiError::trouble(format!("the request body broke off: {e}")))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        total += data.len() as u64;
        if total > limit {
            drain(body).await;
            return Err(ApiError::TooLarge { limit });
        }
        // Most bodies arrive in one piece, which is then passed on without a copy.
        match (&first, rest.is_empty()) {
            (None, true) => first = Some(data),
            (Some(head), true) => {
                rest.extend_from_slice(head);
                rest.extend_from_slice(&data);
                first = None;
            }
            _ => rest.extend_from_slice(&data),
        }
    }
    Ok(first.unwrap_or_else(|| rest.freeze()))
}

/// Reads on for a while without keeping anything. A client that is still sending when the connection closes never sees
/// the answer that says why.
async fn drain(mut body: Body) {
    let mut left = DRAIN_BYTES;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let read = frame.data_ref().map_or(0, Bytes::len);
            if read > left {
                return;
            }
            left -= read;
        }
    };
    // Too slow or too much: the client has had its chance.
    let _ = tokio::time::timeout(DRAIN_TIME, reading).await;
}

/// The first value of `key` in a query string, decoded.
pub(crate) fn query_value(query: &str, key: &str) -> Option<String> {
    query.split('&').find_map(|pair| {
        let (k, v) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(k, true) == key).then(|| decode(v, true))
    })
}

/// Undoes percent encoding; bytes that are not UTF-8 become the replacement character. `plus`: `+` is a blank.
pub(crate) fn decode(text: &str, plus: bool) -> String {
    if !text.bytes().any(|b| b == b'%' || (plus && b == b'+')) {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    let hex = |b: Option<&u8>| b.and_then(|b| (*b as char).to_digit(16));
    while i < bytes.len() {
        match bytes[i] {
            b'%' => {
                if let (Some(high), Some(low)) = (hex(bytes.get(i + 1)), hex(bytes.get(i + 2))) {
                    out.push((high * 16 + low) as u8);
                    i += 2;
                } else {
                    out.push(b'%');
                }
            }
            b'+' if plus => out.push(b' '),
            other => out.push(other),
        }
        i += 1;
    }
    String::from_utf8(out).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

/// Percent-encodes one path segment.
pub(crate) fn encode_segment(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte as char);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding() {
        for (raw, plus, want) in [
            ("a%2Fb", false, "a/b"),
            ("a+b", true, "a b"),
            ("a+b", false, "a+b"),
            ("100%", false, "100%"),
            ("%zz%4", false, "%zz%4"),
            ("%C3%A9", false, "\u{e9}"),
            ("%FF", false, "\u{fffd}"),
        ] {
            assert_eq!(decode(raw, plus), want, "{raw}");
        }
        assert_eq!(
            query_value("a=1&b=x%20y&b=2&c", "b").as_deref(),
            Some("x y")
        );
        assert_eq!(query_value("a=1&c", "c").as_deref(), Some(""));
        assert_eq!(query_value("a=1", "d"), None);
        assert_eq!(encode_segment("a b/\u{e9}"), "a%20b%2F%C3%A9");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_given_up() {
        let body =
            Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        let error = read_limited(body, &HeaderMap::new(), 1000)
            .await
            .unwrap_err();
        assert!(
            matches!(error, ApiError::Text(StatusCode::REQUEST_TIMEOUT, _)),
            "{error}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_is_given_up() {
        let bytes = futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
        });
        let body = Body::from_stream(bytes);
        let error = read_limited(body, &HeaderMap::new(), 1000)
            .await
            .unwrap_err();
        assert!(
            matches!(error, ApiError::Text(StatusCode::REQUEST_TIMEOUT, _)),
            "{error}"
        );
    }
}
