//! What happens around every handler: the guard before it, headers and compression after it.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;
use fresco_graph::lock;
use http_body_util::BodyExt;

use crate::App;
use crate::http::request::Request;
use crate::http::response;
use crate::http::response::{FromFile, accepts_gzip};
use crate::routes::dispatch;
use crate::routes::guard;

/// The whole life of a request.
pub(crate) async fn handle(State(app): State<App>, request: axum::extract::Request) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let method = head.method.clone();
    let gzip = app.config.compress && accepts_gzip(&head.headers);
    deprecation(&path);
    app.metrics.request();

    let mut answer = match guard::admit(&app, &head).await {
        Err(answer) => *answer,
        Ok(()) if method == Method::OPTIONS => response::empty(),
        Ok(()) => {
            let request = Request {
                app: app.clone(),
                head,
                params: Vec::new(),
                body: Mutex::new(body),
                large: Arc::default(),
            };
            dispatch::dispatch(app.clone(), request).await
        }
    };
    if gzip {
        answer = compress(answer).await;
    }
    let status = answer.status();
    let headers = answer.headers_mut();
    if let Some(value) = cache_control(&path, status)
        && !headers.contains_key(header::CACHE_CONTROL)
    {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(value));
    }
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    if let Some(origin) = &app.config.cors {
        cors(headers, origin);
    }
    if app.config.block_external {
        headers.append(
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(LOCAL_ONLY),
        );
    }
    app.metrics.answer(status, headers);
    if method == Method::HEAD {
        *answer.body_mut() = Body::empty();
    }
    answer
}

const LOCAL_ONLY: &str = "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; \
style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; frame-src 'self'; \
object-src 'self';";

fn cors(headers: &mut HeaderMap, origin: &str) {
    let fixed: [(HeaderName, &'static str); 3] = [
        (
            header::ACCESS_CONTROL_ALLOW_METHODS,
            "POST, GET, DELETE, PUT, OPTIONS, PATCH",
        ),
        (
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            "Content-Type, Authorization",
        ),
        (header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true"),
    ];
    if let Ok(origin) = HeaderValue::from_str(origin) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// `Cache-Control` by path and status; none means no header.
fn cache_control(path: &str, status: StatusCode) -> Option<&'static str> {
    const IMAGES: &[&str] = &[
        ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp",
    ];
    let last = path.rsplit('/').next().unwrap_or(path);
    let ends = |suffix: &str| path.as_bytes().ends_with(suffix.as_bytes());
    if ends(".js") || ends(".css") || (last.starts_with("index") && ends(".json")) {
        return Some("no-cache");
    }
    let lower = path.to_lowercase();
    if !IMAGES.iter().any(|i| lower.ends_with(i)) {
        return None;
    }
    match status.as_u16() {
        404 => Some("public, max-age=3600"),
        200..=206 | 301 | 308 => Some("public, max-age=86400"),
        302 | 303 | 307 => Some("no-cache"),
        _ => None,
    }
}

/// Old script paths still work; each is mentioned once in the log.
fn deprecation(path: &str) {
    static SEEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if !path.starts_with("/scripts/ui") && !path.starts_with("/extensions/core/") {
        return;
    }
    let mut seen = lock(&SEEN);
    // A client can invent paths; the list does not grow with them.
    if seen.len() < 1000 && seen.insert(path.to_owned()) {
        tracing::warn!(%path, "this script path is deprecated and only kept for old extensions");
    }
}

/// Compresses JSON and plain text that is in memory anyway.
async fn compress(answer: Response) -> Response {
    let kind = answer
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .unwrap_or("");
    let kind = kind.split(';').next().unwrap_or("").trim();
    let text = kind == "application/json" || kind == "text/plain";
    let sized = answer
        .headers()
        .get(header::CONTENT_LENGTH)
        .is_some_and(|v| v != "0");
    if !text || !sized || answer.extensions().get::<FromFile>().is_some() {
        return answer;
    }
    let (mut head, body) = answer.into_parts();
    let Ok(collected) = body.collect().await else {
        return response::status(StatusCode::INTERNAL_SERVER_ERROR);
    };
    let plain = collected.to_bytes();
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 4), Compression::fast());
    let packed = encoder.write_all(&plain).and_then(|()| encoder.finish());
    let Ok(packed) = packed else {
        return Response::from_parts(head, Body::from(plain));
    };
    head.headers
        .insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    head.headers
        .insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    head.headers
        .insert(header::CONTENT_LENGTH, HeaderValue::from(packed.len()));
    Response::from_parts(head, Body::from(packed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_rules() {
        let day = Some("public, max-age=86400");
        for (path, status, want) in [
            ("/test.jpg", 200, day),
            ("/test.webp", 206, day),
            ("/image.JPG", 200, day),
            ("/missing.jpg", 404, Some("public, max-age=3600")),
            ("/moved.png", 301, day),
            ("/moved.png", 308, day),
            ("/moved.png", 302, Some("no-cache")),
            ("/moved.png", 303, Some("no-cache")),
            ("/moved.png", 307, Some("no-cache")),
            ("/same.png", 304, None),
            ("/broken.png", 500, None),
            ("/a/index.zh.json", 200, Some("no-cache")),
            ("/index.json", 404, Some("no-cache")),
            ("/a.js", 200, Some("no-cache")),
            ("/a.css", 404, Some("no-cache")),
            ("/a.JS", 200, None),
            ("/index.html", 200, None),
            ("/data.txt", 200, None),
            ("/api/endpoint", 200, None),
            ("/file.pdf", 200, None),
        ] {
            assert_eq!(
                cache_control(path, StatusCode::from_u16(status).unwrap()),
                want,
                "{path} {status}"
            );
        }
    }
}
