//! Rows of the route table and how a path finds its row.

use std::pin::Pin;

use axum::response::Response;

use crate::http::error::ApiError;
use crate::http::query::QueryKeys;
use crate::http::request::Request;
use crate::http::uri_text::decode;

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
    /// Query keys and what they mean; each list is one struct's.
    pub(crate) query: &'static [QueryKeys],
    /// What the body is, if there is one.
    pub(crate) body: Option<&'static str>,
    pub(crate) answers: &'static [(u16, &'static str)],
    pub(crate) handler: Handler,
}

impl Route {
    /// Decoded parameters if `path` is this row's, in either form.
    pub(crate) fn find(&self, path: &str) -> Option<Vec<String>> {
        if let Some(params) = matches(self.path, path) {
            return Some(params);
        }
        matches(self.path, path.strip_prefix("/api").filter(|_| self.twice)?)
    }
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
