//! One request on its way to a handler: decoded path, query, limited body.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use fresco_graph::{Map, Value, json};

use crate::App;
use crate::http::blocking::blocking;
use crate::http::body::{self, Stored};
use crate::http::error::{ApiError, Code, disk_error};
use crate::http::uri_text::query_value;

/// A value takes about so many times the bytes of its text.
pub(crate) const JSON_GROWS: u64 = 8;

/// What handlers get.
pub(crate) struct Request {
    pub(crate) app: App,
    pub(crate) head: Parts,
    /// Decoded path parameters in the order of the pattern.
    pub(crate) params: Vec<String>,
    /// Never locked: the mutex only makes a shared request sendable between threads, which a bare body is not.
    pub(crate) body: Mutex<Body>,
    /// Whether the body was so large that what was made of it may have left much memory with the allocator.
    pub(crate) large: Arc<AtomicBool>,
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

    /// The whole body, refused when larger than the upload limit.
    pub(crate) async fn body(&mut self) -> Result<Stored, ApiError> {
        let limit = self.app.config.max_upload;
        let body = std::mem::take(self.body.get_mut().unwrap_or_else(PoisonError::into_inner));
        let stored = body::read(body, &self.head.headers, limit, &self.app.bodies).await?;
        if stored.in_memory().is_none() {
            self.large.store(true, Ordering::Relaxed);
        }
        Ok(stored)
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
        let body = self.body().await?;
        let limit = self.app.config.limits.json_bytes;
        if body.size() > limit {
            return Err(ApiError::coded(
                Code::JsonTooLarge,
                format!("{} bytes, the limit is {limit}", body.size()),
            ));
        }
        if let Some(bytes) = body.in_memory() {
            return too_many(json::parse_bytes_within(bytes, json::FOREIGN_BYTES));
        }
        let room = self.app.memory.take(body.size().saturating_mul(JSON_GROWS));
        let room = room.map_err(|short| short.for_request("reading so much JSON"))?;
        blocking(move || {
            let _room = room;
            let bytes = body
                .whole()
                .load()
                .map_err(|e| disk_error("read the request body back", &e))?;
            too_many(json::parse_bytes_within(&bytes, json::FOREIGN_BYTES))
        })
        .await?
    }

    /// The body as a JSON object.
    pub(crate) async fn json_map(&mut self) -> Result<Map, ApiError> {
        match self.json().await? {
            Value::Map(map) => Ok(Arc::unwrap_or_clone(map)),
            _ => Err(ApiError::trouble("the request body is not a JSON object")),
        }
    }
}

/// A body of too many values is refused as one that is too large, whatever its route says of bad JSON.
pub(crate) fn too_many(
    parsed: Result<Value, json::JsonError>,
) -> Result<Result<Value, json::JsonError>, ApiError> {
    match parsed {
        Err(error) if error.reason == json::TOO_MANY_VALUES => Err(ApiError::coded(
            Code::JsonTooLarge,
            format!(
                "its values take more than {} MiB of memory: {error}",
                json::FOREIGN_BYTES >> 20
            ),
        )),
        other => Ok(other),
    }
}
