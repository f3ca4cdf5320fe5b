//! From a request that was let in to its answer: the route, the page's files, or a pack's route.

use std::sync::atomic::Ordering;

use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::App;
use crate::http::blocking::blocking;
use crate::http::error::raised;
use crate::http::request::Request;
use crate::http::route::{Answer, Verb};
use crate::routes::pack_host;
use crate::routes::static_files;

/// Answers one request that was let in.
pub(crate) async fn dispatch(app: App, mut request: Request) -> Response {
    let path = request.head.uri.path().to_owned();
    let method = request.head.method.clone();
    let read = method == Method::GET || method == Method::HEAD;
    if read && let Some(answer) = static_files::pack_templates(&request, &path).await {
        return answer.unwrap_or_else(IntoResponse::into_response);
    }
    let starting = app.packs.is_starting();
    if starting {
        pack_host::wait_if_needed(&request, &path).await;
    }
    let mut allowed = Vec::new();
    for route in app.routes {
        let Some(params) = route.find(&path) else {
            continue;
        };
        let fits = route.verb.as_str() == method.as_str()
            || (route.verb == Verb::Get && method == Method::HEAD);
        if fits {
            request.params = params;
            let (large, memory) = (request.large.clone(), app.memory.clone());
            let answer = finish((route.handler)(request).await, &path);
            if large.load(Ordering::Relaxed) {
                // The answer does not depend on it.
                let _ = blocking(move || memory.give_back()).await;
            }
            return answer;
        }
        allowed.push(route.verb);
    }
    let internal = path == "/internal" || path.starts_with("/internal/");
    if starting && allowed.is_empty() && !internal {
        // What is there without packs is served at once; any other path may be one of theirs.
        if read {
            let answer = finish(static_files::serve(&app, &request, &path).await, &path);
            if answer.status() != StatusCode::NOT_FOUND {
                return answer;
            }
        }
        pack_host::wait_ready(&app.packs).await;
    }
    if let Some(socket) = app.packs.socket_for(method.as_str(), &path) {
        return pack_host::forward(request, &socket).await;
    }
    if read {
        if internal {
            return raised(StatusCode::NOT_FOUND).into_response();
        }
        return finish(static_files::serve(&app, &request, &path).await, &path);
    }
    if internal && allowed.is_empty() {
        return raised(StatusCode::NOT_FOUND).into_response();
    }
    if !internal {
        // The static root answers GET for every path.
        allowed.push(Verb::Get);
    }
    allowed.sort_unstable();
    allowed.dedup();
    let names: Vec<&str> = allowed
        .iter()
        .flat_map(|v| {
            if *v == Verb::Get {
                &["GET", "HEAD"][..]
            } else {
                std::slice::from_ref(verb_text(*v))
            }
        })
        .copied()
        .collect();
    let mut answer = raised(StatusCode::METHOD_NOT_ALLOWED).into_response();
    let allow =
        HeaderValue::from_str(&names.join(",")).expect("method names are header characters");
    answer.headers_mut().insert(header::ALLOW, allow);
    answer
}

fn verb_text(verb: Verb) -> &'static &'static str {
    match verb {
        Verb::Delete => &"DELETE",
        Verb::Get => &"GET",
        Verb::Patch => &"PATCH",
        Verb::Post => &"POST",
    }
}

/// Errors are logged here, once.
fn finish(answer: Answer, path: &str) -> Response {
    answer.unwrap_or_else(|error| {
        if error.status().is_server_error() {
            tracing::error!(%path, %error, "request failed");
        } else {
            tracing::debug!(%path, %error, "request refused");
        }
        error.into_response()
    })
}
