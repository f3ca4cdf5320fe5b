//! Our own page: the files of `web/dist`, embedded by `build.rs`. They are found by exact name in a fixed list, so no path
//! leads anywhere else.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use fresco_files::mime;

use crate::http::response::{self, FromFile, accepts_gzip, has_tag};

include!(concat!(env!("OUT_DIR"), "/page_files.rs"));

/// The first page's name.
pub(crate) const INDEX: &str = "index.html";

/// One file of the bundle.
pub(crate) struct Embedded {
    /// Relative, with `/`.
    name: &'static str,
    /// Changes with the content.
    tag: &'static str,
    plain: &'static [u8],
    /// Absent where packing saves nothing.
    gzip: Option<&'static [u8]>,
}

pub(crate) fn find(name: &str) -> Option<&'static Embedded> {
    let index = FILES.binary_search_by(|file| file.name.cmp(name)).ok()?;
    FILES.get(index)
}

/// Sends a file of the bundle: packed where the client takes that, or only the news that nothing changed.
pub(crate) fn answer(file: &Embedded, headers: &HeaderMap) -> Response {
    let packed = file.gzip.filter(|_| accepts_gzip(headers));
    // Two encodings are two representations and need two tags.
    let tag = match packed {
        Some(_) => format!("\"{}-gz\"", file.tag),
        None => format!("\"{}\"", file.tag),
    };
    let mut answer = if has_tag(headers, &tag) == Some(true) {
        response::status(StatusCode::NOT_MODIFIED)
    } else {
        let kind = match mime::media_type(file.name) {
            "text/html" => response::HTML,
            kind => HeaderValue::from_static(kind),
        };
        response::bytes(StatusCode::OK, kind, packed.unwrap_or(file.plain))
    };
    let out = answer.headers_mut();
    if packed.is_some() {
        out.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        out.insert(header::ETAG, tag);
    }
    out.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    // Names stay the same from version to version, so every use asks whether the file is still the same.
    out.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    out.insert(header::CONTENT_SECURITY_POLICY, policy(headers));
    out.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    );
    answer.extensions_mut().insert(FromFile);
    answer
}

/// Nothing from elsewhere, nothing to elsewhere, in nobody's frame. Older browsers do not count a WebSocket to the same
/// host as "self", so it is named where the request names the host.
fn policy(headers: &HeaderMap) -> HeaderValue {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b".-:[]".contains(&b);
    let host = headers
        .get(header::HOST)
        .and_then(|v| v.to_str().ok())
        .filter(|host| !host.is_empty() && host.bytes().all(plain));
    let sockets = host.map_or(String::new(), |host| format!(" ws://{host} wss://{host}"));
    let text = format!(
        "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' blob: data:; \
         media-src 'self' blob:; connect-src 'self'{sockets}; object-src 'none'; base-uri 'none'; form-action 'self'; \
         frame-ancestors 'none'"
    );
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("default-src 'self'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_for_the_search() {
        assert!(FILES.is_sorted_by_key(|file| file.name));
        assert!(find(INDEX).is_some() && find("../Cargo.toml").is_none() && find("").is_none());
    }

    #[test]
    fn a_strange_host_stays_out_of_the_policy() {
        let text = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
            policy(&headers).to_str().unwrap().to_owned()
        };
        assert!(text("[::1]:8188").contains("ws://[::1]:8188 "));
        for host in ["a; script-src *", "a b", "", "*"] {
            assert!(text(host).contains("connect-src 'self';"), "{host}");
        }
    }

    #[test]
    fn packed_only_where_taken() {
        static FILE: Embedded = Embedded {
            name: "assets/a.js",
            tag: "t",
            plain: b"plain",
            gzip: Some(b"packed"),
        };
        let ask = |name: header::HeaderName, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            headers
        };
        for (accepts, tag, length) in [
            ("gzip, br", "\"t-gz\"", "6"),
            ("br", "\"t\"", "5"),
            ("gzip;q=0", "\"t\"", "5"),
            ("x-gzip", "\"t\"", "5"),
        ] {
            let got = answer(&FILE, &ask(header::ACCEPT_ENCODING, accepts));
            assert_eq!(got.headers()[header::ETAG], tag, "{accepts}");
            assert_eq!(got.headers()[header::CONTENT_LENGTH], length, "{accepts}");
        }
        let known = answer(&FILE, &ask(header::IF_NONE_MATCH, "W/\"t\", \"x\""));
        assert_eq!(known.status(), StatusCode::NOT_MODIFIED);
        let other = answer(&FILE, &ask(header::IF_NONE_MATCH, "\"t-gz\""));
        assert_eq!(other.status(), StatusCode::OK);
    }
}
