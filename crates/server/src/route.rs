//! Rows of the route table and how a path finds its row.

use std::pin::Pin;
use std::sync::atomic::Ordering;

use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::App;
use crate::error::{ApiError, raised};
use crate::request::{Request, decode};
use crate::{pack_host, static_files, table};

pub(crate) type Answer = Result<Response, ApiError>;
pub(crate) type Handler = fn(Request) -> Pin<Box<dyn Future<Output = Answer> + Send>>;

/// The methods the API uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    Delete,
    Get,
    Patch,
    Post,
}

impl Verb {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "DELETE",
            Self::Get => "GET",
            Self::Patch => "PATCH",
            Self::Post => "POST",
        }
    }
}

/// One row: registration, `Allow`, and the OpenAPI document all come from it.
pub(crate) struct Route {
    pub(crate) verb: Verb,
    /// `{x}` is one segment, `{x:.*}` the rest.
    pub(crate) path: &'static str,
    /// Also under `/api`.
    pub(crate) twice: bool,
    pub(crate) summary: &'static str,
    /// Query keys and what they mean.
    pub(crate) query: &'static [(&'static str, &'static str)],
    /// What the body is, if there is one.
    pub(crate) body: Option<&'static str>,
    pub(crate) answers: &'static [(u16, &'static str)],
    pub(crate) handler: Handler,
}

impl Route {
    /// Decoded parameters if `path` is this row's, in either form.
    fn find(&self, path: &str) -> Option<Vec<String>> {
        if let Some(params) = matches(self.path, path) {
            return Some(params);
        }
        matches(self.path, path.strip_prefix("/api").filter(|_| self.twice)?)
    }
}

/// Runs file work off the network threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| ApiError::trouble(format!("a background task failed: {e}")))
}

/// Parameters are decoded after matching, so an encoded slash stays inside its segment.
fn matches(pattern: &str, path: &str) -> Option<Vec<String>> {
    let mut params = Vec::new();
    let mut rest = path.strip_prefix('/')?;
    let mut pattern = pattern.strip_prefix('/')?;
    loop {
        let (want, more) = match pattern.split_once('/') {
            Some((want, after)) => (want, Some(after)),
            None => (pattern, None),
        };
        if want.ends_with(":.*}") {
            params.push(decode(rest, false));
            return Some(params);
        }
        let (have, after) = match rest.split_once('/') {
            Some((have, after)) => (have, Some(after)),
            None => (rest, None),
        };
        if want.starts_with('{') {
            if have.is_empty() {
                return None;
            }
            params.push(decode(have, false));
        } else if want != have {
            return None;
        }
        match (more, after) {
            (None, None) => return Some(params),
            (Some(more), Some(after)) => {
                pattern = more;
                rest = after;
            }
            _ => return None,
        }
    }
}

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
    for route in table::ROUTES {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let none: Option<Vec<String>> = None;
        let some = |v: &[&str]| Some(v.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
        assert_eq!(matches("/models/{folder}", "/models/vae"), some(&["vae"]));
        assert_eq!(matches("/models/{folder}", "/models/"), none);
        assert_eq!(matches("/models/{folder}", "/models/a/b"), none);
        assert_eq!(matches("/models", "/models/"), none);
        assert_eq!(
            matches("/userdata/{file}", "/userdata/workflows%2Fa.json"),
            some(&["workflows/a.json"])
        );
        assert_eq!(
            matches("/userdata/{file}/move/{dest}", "/userdata/a/move/b%20c"),
            some(&["a", "b c"])
        );
        assert_eq!(
            matches("/p/{a}/{b:.*}", "/p/x/y/z.png"),
            some(&["x", "y/z.png"])
        );
        assert_eq!(matches("/", "/"), some(&[]));
        assert_eq!(matches("/", "/x"), none);
    }
}
