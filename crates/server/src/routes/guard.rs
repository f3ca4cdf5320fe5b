//! Who may talk to this server: token, host names, and where a browser's request comes from.
//!
//! Three questions, in this order. Does the request carry the token, if there is one? Is it addressed to a name that is
//! ours? (A page on the internet can point its own name at 127.0.0.1 and would otherwise be "same origin" with us.)
//! Was it caused by our own pages, or at least by a person following a link?

use std::net::IpAddr;
use std::time::{Duration, Instant};

use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};

use crate::App;
use crate::http::error::{ApiError, Code};
use crate::http::origin::{HostPort, Origin, Scheme, allows_host};
use crate::http::response;
use crate::http::uri_text::{decode, query_value};
use crate::services::config::Config;
use crate::services::sign_in;
use crate::services::throttle::{Digest, Peer, Turn};

/// Name of the cookie that stands for the token.
pub const COOKIE: &str = "fresco_token";

/// Lets a request pass, or answers it; tokens that may be guesses wait for their turn first.
pub(crate) async fn admit(app: &App, head: &Parts) -> Result<(), Box<Response>> {
    if let Some(token) = &app.config.token
        && needs_token(head)
        && let Some((digest, count)) = guesses(head)
    {
        let peer = head.extensions.get::<Peer>();
        let ip = peer.map_or(IpAddr::from([0; 4]), |p| p.ip);
        let proven = peer.is_some_and(Peer::is_proven);
        let right = credentials(token, head) != Credentials::Missing;
        if !(proven && right) {
            match app.throttle.turn(ip, &digest, count, Instant::now()) {
                Turn::Now | Turn::KnownWrong => {}
                Turn::After(wait) => tokio::time::sleep(wait).await,
                Turn::Refused(wait) => return Err(Box::new(refuse_guess(wait))),
            }
            if right {
                app.throttle.right(ip, count);
            } else {
                app.throttle.wrong(ip, digest);
            }
        }
        if let Some(peer) = peer {
            peer.set_proven(right);
        }
    }
    check(&app.config, head)
}

fn refuse_guess(wait: Duration) -> Response {
    let details = "many wrong tokens came from this address";
    let seconds = wait.as_secs() + 1;
    ApiError::later(Code::TooManyGuesses, details, seconds).into_response()
}

/// `/health` answers everyone, and a browser asks with `OPTIONS` before it may send the token.
fn needs_token(head: &Parts) -> bool {
    !matches!(head.uri.path(), "/health" | "/api/health") && head.method != Method::OPTIONS
}

/// A digest of everything in a request that may be the token, and how many such things there are.
fn guesses(head: &Parts) -> Option<(Digest, u32)> {
    let mut digest = Sha256::new();
    let mut count = 0;
    let mut add = |kind: &[u8], text: &str| {
        digest.update(kind);
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text.as_bytes());
        count += 1;
    };
    if let Some(given) = bearer(head) {
        add(b"bearer", given);
    }
    for given in cookies(head) {
        add(b"cookie", given);
    }
    if let Some(given) = query_value(head.uri.query().unwrap_or(""), "token") {
        add(b"query", &given);
    }
    (count > 0).then(|| (digest.finalize().into(), count))
}

/// Lets a request pass, or answers it.
fn check(config: &Config, head: &Parts) -> Result<(), Box<Response>> {
    let mut authorised = false;
    if let Some(token) = &config.token
        && needs_token(head)
    {
        match credentials(token, head) {
            Credentials::Valid => authorised = true,
            Credentials::InAddress if opens_socket(head) => authorised = true,
            Credentials::InAddress if is_navigation(head) || opens_start_page(head) => {
                return Err(Box::new(welcome(config, token, head)));
            }
            _ => return Err(Box::new(refuse_token(head))),
        }
    }
    if unclear(head, header::HOST) {
        return Err(Box::new(bad_host("the host is not one readable name")));
    }
    if !authorised {
        let in_address = head.uri.authority().map(Authority::as_str);
        for host in text(head, header::HOST).into_iter().chain(in_address) {
            check_host(config, host)?;
        }
    }
    if unclear(head, header::ORIGIN) {
        return Err(Box::new(cross_site("the origin is not one readable name")));
    }
    check_origin(config, head)
}

/// A header that says nothing or two things. What cannot be read must not pass for absent.
fn unclear(head: &Parts, name: header::HeaderName) -> bool {
    let mut values = head.headers.get_all(name).iter();
    let unreadable = values.next().is_some_and(|v| v.to_str().is_err());
    unreadable || values.next().is_some()
}

#[derive(Debug, PartialEq, Eq)]
enum Credentials {
    Valid,
    /// Right, but in the query, where it is only taken from browsers that cannot send it otherwise.
    InAddress,
    Missing,
}

fn credentials(token: &str, head: &Parts) -> Credentials {
    if bearer(head).is_some_and(|given| same_secret(given, token)) {
        return Credentials::Valid;
    }
    let cookie = cookie_value(token);
    if cookies(head).any(|given| same_secret(given, &cookie)) {
        return Credentials::Valid;
    }
    match query_value(head.uri.query().unwrap_or(""), "token") {
        Some(given) if same_secret(&given, token) => Credentials::InAddress,
        _ => Credentials::Missing,
    }
}

fn bearer(head: &Parts) -> Option<&str> {
    let (scheme, given) = text(head, header::AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| given.trim())
}

/// Cookies that may stand for the token. A browser has two at most, of a path and of the whole server; a list of them
/// would be many guesses in one request.
fn cookies(head: &Parts) -> impl Iterator<Item = &str> {
    head.headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|c| c.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(name, _)| *name == COOKIE)
        .map(|(_, value)| value)
        .take(2)
}

/// Compares digests, all bytes of them, so that the time taken says nothing about the secret, not even its length.
fn same_secret(given: &str, secret: &str) -> bool {
    let a = Sha256::digest(given.as_bytes());
    let b = Sha256::digest(secret.as_bytes());
    let difference = a.iter().zip(b.iter()).fold(0u8, |d, (x, y)| d | (x ^ y));
    std::hint::black_box(difference) == 0
}

/// The cookie holds a digest: a stolen cookie jar does not give away the token itself.
fn cookie_value(token: &str) -> String {
    let digest = Sha256::new()
        .chain_update(b"fresco cookie\0")
        .chain_update(token.as_bytes())
        .finalize();
    hex::encode(digest)
}

/// Stores the cookie and goes to the same address without the token. A redirect would not do: after a link from another
/// site the browser withholds a strict cookie until a page of ours has been shown.
fn welcome(config: &Config, token: &str, head: &Parts) -> Response {
    let rest: Vec<&str> = head
        .uri
        .query()
        .unwrap_or("")
        .split('&')
        .filter(|p| !p.is_empty() && decode(p.split('=').next().unwrap_or(p), true) != "token")
        .collect();
    // Two slashes at the start would name another host.
    let path = head.uri.path().trim_start_matches(['/', '\\']);
    let mut target = format!("/{path}");
    if !rest.is_empty() {
        target = format!("{target}?{}", rest.join("&"));
    }
    let target = escape_html(&target);
    let page = format!(
        "<!doctype html><meta charset=utf-8><title>Fresco</title>\
         <meta http-equiv=refresh content=\"0;url={target}\"><p><a href=\"{target}\">Continue</a>"
    );
    let mut answer = response::html(StatusCode::OK, page);
    let secure = if config.tls { "; Secure" } else { "" };
    let cookie = format!(
        "{COOKIE}={}; Path=/; Max-Age=31536000; HttpOnly; SameSite=Strict{secure}",
        cookie_value(token)
    );
    let headers = answer.headers_mut();
    headers.insert(
        header::SET_COOKIE,
        HeaderValue::from_str(&cookie).expect("hex and fixed text are header characters"),
    );
    close(headers);
    answer
}

/// For the two pages around the token: they are kept nowhere, shown in nobody's frame, and run nothing.
fn close(headers: &mut HeaderMap) {
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

fn refuse_token(head: &Parts) -> Response {
    let details =
        "send it as 'Authorization: Bearer TOKEN', or open the address printed at start-up";
    let mut answer = ApiError::coded(Code::Unauthorized, details).into_response();
    if is_navigation(head) {
        let headers = std::mem::take(answer.headers_mut());
        let wrong = query_value(head.uri.query().unwrap_or(""), "token").is_some();
        answer = response::html(StatusCode::UNAUTHORIZED, sign_in::page(wrong));
        if let Some(value) = headers.get(header::WWW_AUTHENTICATE) {
            answer
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, value.clone());
        }
        close(answer.headers_mut());
    }
    answer
}

fn check_host(config: &Config, host: &str) -> Result<(), Box<Response>> {
    let place = HostPort::parse(host);
    let known = place.is_address()
        || place.is_loopback()
        || config.hosts.iter().any(|h| allows_host(h, &place));
    if known {
        return Ok(());
    }
    tracing::warn!(%host, "request for a host name that is not ours");
    let name = place.name;
    let details =
        format!("'{name}' is not localhost, an IP address or a name given with --allow-host");
    Err(Box::new(bad_host(&details)))
}

fn bad_host(details: &str) -> Response {
    ApiError::coded(Code::BadHost, details).into_response()
}

fn check_origin(config: &Config, head: &Parts) -> Result<(), Box<Response>> {
    if config.cors.as_deref() == Some("*") {
        return Ok(());
    }
    let origin = text(head, header::ORIGIN);
    if let (Some(origin), Some(cors)) = (origin, &config.cors)
        && origin.eq_ignore_ascii_case(cors)
    {
        return Ok(());
    }
    let changes =
        !matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS) || is_upgrade(head);
    if let (Some(origin), Some(host)) = (origin, text(head, header::HOST))
        && !is_own_origin(config, origin, host)
    {
        let loopback = HostPort::parse(host).is_loopback();
        // The reference's own rule: an empty 403, for loopback hosts only. Ours: nothing may change from elsewhere.
        if loopback && Origin::parse(origin).is_some() {
            tracing::warn!(%host, %origin, "request with a foreign origin");
            return Err(Box::new(response::status(StatusCode::FORBIDDEN)));
        }
        if changes {
            tracing::warn!(%host, %origin, "change requested with a foreign origin");
            let own = Scheme::of(config.tls).as_str();
            return Err(Box::new(cross_site(&format!(
                "the request comes from '{origin}', and this server is '{own}://{host}'; a proxy in front of it is \
                 named with --allow-host"
            ))));
        }
    }
    if header_is(head, "sec-fetch-site", "cross-site")
        && !is_top_level(head)
        && head.method != Method::OPTIONS
    {
        return Err(Box::new(cross_site(
            "a page of another site caused this request",
        )));
    }
    Ok(())
}

fn cross_site(details: &str) -> Response {
    ApiError::coded(Code::CrossSite, details).into_response()
}

/// The origin is this server under the name it was asked by, or a proxy that was named.
fn is_own_origin(config: &Config, origin: &str, host: &str) -> bool {
    let host = HostPort::parse(host);
    Origin::parse(origin).is_some_and(|origin| {
        origin.is(Scheme::of(config.tls), &host)
            || config.hosts.iter().any(|h| origin.is_allowed(h, &host))
    })
}

pub(crate) fn is_upgrade(head: &Parts) -> bool {
    text(head, header::UPGRADE).is_some_and(|v| v.eq_ignore_ascii_case("websocket"))
}

/// Only the socket takes the token from its address; the header alone can be put on any request.
fn opens_socket(head: &Parts) -> bool {
    is_upgrade(head) && matches!(head.uri.path(), "/ws" | "/api/ws")
}

/// A person opens a page: said by the browser, or guessed for clients that do not say.
fn is_navigation(head: &Parts) -> bool {
    if head.method != Method::GET {
        return false;
    }
    match text_named(head, "sec-fetch-mode") {
        Some(mode) => mode.eq_ignore_ascii_case("navigate"),
        None => text(head, header::ACCEPT).is_some_and(|a| a.contains("text/html")),
    }
}

/// The address printed at start-up, opened by something that does not say what it is.
fn opens_start_page(head: &Parts) -> bool {
    head.method == Method::GET
        && head.uri.path() == "/"
        && text_named(head, "sec-fetch-mode").is_none()
}

/// A link or a typed address, not a frame and not a form that posts.
fn is_top_level(head: &Parts) -> bool {
    matches!(head.method, Method::GET | Method::HEAD)
        && header_is(head, "sec-fetch-mode", "navigate")
        && text_named(head, "sec-fetch-dest").is_none_or(|d| d.eq_ignore_ascii_case("document"))
}

fn header_is(head: &Parts, name: &str, value: &str) -> bool {
    text_named(head, name).is_some_and(|v| v.eq_ignore_ascii_case(value))
}

fn text(head: &Parts, name: header::HeaderName) -> Option<&str> {
    head.headers.get(name)?.to_str().ok()
}

fn text_named<'a>(head: &'a Parts, name: &str) -> Option<&'a str> {
    head.headers.get(name)?.to_str().ok()
}

pub(crate) fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn head(method: &str, uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut builder = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).unwrap().into_parts().0
    }

    #[track_caller]
    fn status(config: &Config, method: &str, uri: &str, headers: &[(&str, &str)]) -> u16 {
        check(config, &head(method, uri, headers)).map_or_else(|r| r.status().as_u16(), |()| 0)
    }

    #[test]
    fn same_origin_guard_of_the_reference() {
        let c = Config::default();
        let local = "127.0.0.1:8188";
        for (host, origin, want) in [
            (local, "http://127.0.0.1:8188", 0),
            (local, "http://localhost:8188", 403),
            (local, "http://127.0.0.1:9", 403),
            (local, "http://127.0.0.1", 403),
            (local, "https://127.0.0.1:8188", 403),
            ("127.0.0.1", "http://127.0.0.1:9", 403),
            (local, "null", 0),
            ("[::1]:8188", "http://[::1]:8188", 0),
            ("localhost:8188", "https://evil.example", 403),
            ("192.168.1.4:8188", "https://evil.example", 0),
        ] {
            assert_eq!(
                status(&c, "GET", "/", &[("host", host), ("origin", origin)]),
                want,
                "{host} {origin}"
            );
        }
    }

    #[test]
    fn changes_from_elsewhere_are_refused() {
        let c = Config::default();
        let host = ("host", "192.168.1.4:8188");
        assert_eq!(
            status(
                &c,
                "POST",
                "/prompt",
                &[host, ("origin", "https://evil.example")]
            ),
            403
        );
        assert_eq!(
            status(&c, "POST", "/prompt", &[host, ("origin", "null")]),
            403
        );
        assert_eq!(
            status(
                &c,
                "POST",
                "/prompt",
                &[("host", "localhost"), ("origin", "null")]
            ),
            403
        );
        assert_eq!(
            status(
                &c,
                "GET",
                "/ws",
                &[host, ("origin", "null"), ("upgrade", "websocket")]
            ),
            403
        );
        assert_eq!(
            status(
                &c,
                "POST",
                "/prompt",
                &[host, ("origin", "http://192.168.1.4:8188")]
            ),
            0
        );
        assert_eq!(status(&c, "POST", "/prompt", &[host]), 0);
        let cross = ("sec-fetch-site", "cross-site");
        let navigate = ("sec-fetch-mode", "navigate");
        assert_eq!(status(&c, "GET", "/view", &[host, cross]), 403);
        assert_eq!(
            status(
                &c,
                "GET",
                "/",
                &[host, cross, navigate, ("sec-fetch-dest", "document")]
            ),
            0
        );
        assert_eq!(
            status(
                &c,
                "GET",
                "/",
                &[host, cross, navigate, ("sec-fetch-dest", "iframe")]
            ),
            403
        );
        assert_eq!(status(&c, "POST", "/free", &[host, cross, navigate]), 403);
    }

    #[test]
    fn cors_flag_opens_what_it_names() {
        let host = ("host", "localhost:1");
        let all = Config {
            cors: Some("*".into()),
            ..Config::default()
        };
        assert_eq!(
            status(
                &all,
                "POST",
                "/prompt",
                &[host, ("origin", "https://a.example")]
            ),
            0
        );
        let one = Config {
            cors: Some("https://a.example".into()),
            ..Config::default()
        };
        assert_eq!(
            status(
                &one,
                "POST",
                "/prompt",
                &[host, ("origin", "https://a.example")]
            ),
            0
        );
        assert_eq!(
            status(
                &one,
                "POST",
                "/prompt",
                &[host, ("origin", "https://b.example")]
            ),
            403
        );
    }

    #[test]
    fn foreign_host_names_are_refused() {
        let c = Config {
            hosts: vec!["box.lan".into()],
            ..Config::default()
        };
        for (host, want) in [
            ("localhost:8188", 0),
            ("a.localhost", 0),
            ("127.0.0.1", 0),
            ("[::1]:8188", 0),
            ("10.0.0.7:8188", 0),
            ("BOX.lan:8188", 0),
            ("evil.example", 403),
            ("localhost.evil.example:8188", 403),
            ("", 403),
            ("[127.0.0.1].evil.example", 403),
            ("[::1]evil.example:8188", 403),
            ("\u{e9}vil.example", 403),
        ] {
            assert_eq!(status(&c, "GET", "/", &[("host", host)]), want, "{host}");
        }
        let local = ("host", "localhost");
        assert_eq!(
            status(&c, "GET", "/", &[local, ("host", "evil.example")]),
            403
        );
        assert_eq!(status(&c, "GET", "http://evil.example/", &[local]), 403);
        assert_eq!(status(&c, "GET", "http://localhost/", &[local]), 0);
    }

    #[test]
    fn an_origin_that_cannot_be_read_is_foreign() {
        let c = Config::default();
        let host = ("host", "localhost:8188");
        let own = ("origin", "http://localhost:8188");
        assert_eq!(status(&c, "POST", "/free", &[host, own]), 0);
        let odd = ("origin", "http://\u{e9}vil.example");
        assert_eq!(status(&c, "POST", "/free", &[host, odd]), 403);
        let evil = ("origin", "http://evil.example");
        assert_eq!(status(&c, "POST", "/free", &[host, own, evil]), 403);
    }

    #[tokio::test]
    async fn the_welcome_page_stays_here() {
        let c = Config {
            token: Some("s3cret".into()),
            ..Config::default()
        };
        for path in ["//evil.example/x", "/\\evil.example/x"] {
            let uri = format!("{path}?token=s3cret");
            let answer = check(&c, &head("GET", &uri, &[("accept", "text/html")])).unwrap_err();
            let body = axum::body::to_bytes(answer.into_body(), 10_000)
                .await
                .unwrap();
            let body = String::from_utf8_lossy(&body);
            assert!(body.contains("url=/evil.example/x\""), "{body}");
        }
    }

    #[test]
    fn token_by_header_cookie_and_address() {
        let c = Config {
            token: Some("s3cret".into()),
            ..Config::default()
        };
        assert_eq!(status(&c, "GET", "/queue", &[]), 401);
        assert_eq!(status(&c, "GET", "/api/health", &[]), 0);
        assert_eq!(status(&c, "OPTIONS", "/queue", &[]), 0);
        assert_eq!(
            status(&c, "GET", "/queue", &[("authorization", "Bearer s3cret")]),
            0
        );
        assert_eq!(
            status(&c, "GET", "/queue", &[("authorization", "bearer s3cret")]),
            0
        );
        assert_eq!(
            status(&c, "GET", "/queue", &[("authorization", "Bearer s3cre")]),
            401
        );
        assert_eq!(
            status(&c, "GET", "/queue?token=s3cret", &[]),
            401,
            "not for plain requests"
        );
        assert_eq!(
            status(&c, "GET", "/ws?token=s3cret", &[("upgrade", "websocket")]),
            0
        );
        assert_eq!(
            status(&c, "GET", "/ws?token=x", &[("upgrade", "websocket")]),
            401
        );
        assert_eq!(
            status(
                &c,
                "GET",
                "/queue?token=s3cret",
                &[("upgrade", "websocket")]
            ),
            401
        );
        let answer = check(
            &c,
            &head("GET", "/a?token=s3cret&b=1", &[("accept", "text/html")]),
        )
        .unwrap_err();
        assert_eq!(answer.status(), 200);
        let cookie = answer.headers()[header::SET_COOKIE]
            .to_str()
            .unwrap()
            .to_owned();
        assert!(
            cookie.contains("HttpOnly")
                && cookie.contains("SameSite=Strict")
                && !cookie.contains("s3cret")
        );
        let page = [("accept", "text/html")];
        let login = check(&c, &head("GET", "/a?token=wrong", &page)).unwrap_err();
        assert_eq!(login.status(), 401);
        let (wrong, first) = (sign_in::page(true), sign_in::page(false));
        assert!(
            wrong.contains("not the token of this server") && !first.contains("role=\"alert\"")
        );
        for page in [&answer, &login] {
            let policy = page.headers()[header::CONTENT_SECURITY_POLICY].to_str();
            assert!(policy.unwrap().contains("frame-ancestors 'none'"));
            assert_eq!(page.headers()[header::CACHE_CONTROL], "no-store");
            assert_eq!(page.headers()[header::REFERRER_POLICY], "no-referrer");
        }
        let pair = cookie.split(';').next().unwrap();
        assert_eq!(
            status(&c, "GET", "/queue", &[("cookie", &format!("x=1; {pair}"))]),
            0
        );
        assert_eq!(
            status(&c, "GET", "/queue", &[("cookie", "fresco_token=s3cret")]),
            401
        );
    }
}
