//! Everything a request can be refused with. One table holds the codes; handlers return [`ApiError`].

use std::io;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use fresco_engine::StoreError;
use fresco_graph::{Map, Value, map};

use crate::http::response;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident, $wire:literal, $status:ident, $message:literal;)*) => {
        /// Refusals that have a name on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code { $($(#[$doc])* $variant),* }

        impl Code {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The error object's `type`.
            pub const fn wire(self) -> &'static str {
                match self { $(Self::$variant => $wire),* }
            }

            pub const fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status),* }
            }

            pub const fn message(self) -> &'static str {
                match self { $(Self::$variant => $message),* }
            }
        }
    };
}

codes! {
    // variant            type                    status                 message
    /// The reference's own type for a request without a graph.
    NoPrompt,             "no_prompt",            BAD_REQUEST,           "No prompt provided";
    InvalidPrompt,        "invalid_prompt",       BAD_REQUEST,           "The request is not a prompt";
    QueueFull,            "queue_full",           TOO_MANY_REQUESTS,     "The queue is full";
    NotAccepted,          "not_accepted",         SERVICE_UNAVAILABLE,   "The prompt could not be stored";
    Stopping,             "stopping",             SERVICE_UNAVAILABLE,   "The server is stopping";
    JsonTooLarge,         "json_too_large",       PAYLOAD_TOO_LARGE,     "The JSON body is too large";
    BadHost,              "host_not_allowed",     FORBIDDEN,             "This host name is not one of the server's";
    CrossSite,            "cross_site_request",   FORBIDDEN,             "Requests from other sites are refused";
    Unauthorized,         "unauthorized",         UNAUTHORIZED,          "This server needs a token";
    TooManyGuesses,       "too_many_wrong_tokens", TOO_MANY_REQUESTS,    "Wrong tokens are slowed down; wait before the next one";
    BadEncoding,          "bad_content_encoding", BAD_REQUEST,           "The request body cannot be unpacked";
    UnknownEncoding,      "unsupported_encoding", UNSUPPORTED_MEDIA_TYPE, "The request body is packed in a way this server does not know";
    DiskFull,             "disk_full",            INSUFFICIENT_STORAGE,  "There is no room left on the disk";
    BodiesFull,           "too_many_uploads",     SERVICE_UNAVAILABLE,   "Too many request bodies are on their way at once";
    NoMemory,             "not_enough_memory",    SERVICE_UNAVAILABLE,   "There is not enough memory for this now";
    PictureTooLarge,      "picture_too_large",    PAYLOAD_TOO_LARGE,     "The picture takes too much memory";
    PicturesBusy,         "pictures_busy",        SERVICE_UNAVAILABLE,   "Too many pictures are being read at once";
    BadUpload,            "bad_upload",           BAD_REQUEST,           "The upload cannot be read";
    BadName,              "bad_name",             BAD_REQUEST,           "This file name is not allowed";
    TooManyPixels,        "too_many_pixels",      PAYLOAD_TOO_LARGE,     "The image has too many pixels";
    BadFree,              "invalid_free_request", BAD_REQUEST,           "This cannot be freed";
    BadMemoryRequest,     "invalid_memory_request", BAD_REQUEST,         "The request about memory cannot be understood";
    NoSuchModel,          "model_not_found",      NOT_FOUND,             "There is no such model in memory";
    ModelInUse,           "model_in_use",         CONFLICT,              "The model is in use";
    ModelPinned,          "model_pinned",         CONFLICT,              "The model is pinned";
    WorkerSilent,         "worker_silent",        BAD_GATEWAY,           "A worker on another machine does not answer";
    BadWorkflow,          "invalid_workflow",     BAD_REQUEST,           "This is not a workflow";
    BadQueueChange,       "invalid_queue_change", BAD_REQUEST,           "The queue cannot be changed like this";
    BadDeletion,          "invalid_deletion",     BAD_REQUEST,           "These files cannot be deleted like this";
    TooManySockets,       "too_many_sockets",     SERVICE_UNAVAILABLE,   "Too many open connections";
}

/// A request that did not succeed, in the form its client expects.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// A status and nothing else.
    #[error("{0}")]
    Empty(StatusCode),
    /// A line of plain text.
    #[error("{0}: {1}")]
    Text(StatusCode, String),
    /// `{"error": text}`.
    #[error("{0}: {1}")]
    Plain(StatusCode, String),
    /// A full JSON body.
    #[error("{0}: {1:?}")]
    Json(StatusCode, Value),
    /// One of the table, with what was wrong this time.
    #[error("{}: {details}", code.message())]
    Coded { code: Code, details: String },
    /// The same, and worth another try after so many seconds.
    #[error("{}: {details}", code.message())]
    Later {
        code: Code,
        details: String,
        seconds: u64,
    },
    /// A body over the limit; the text is the reference's.
    #[error("Maximum request body size {limit} exceeded.")]
    TooLarge { limit: u64 },
    /// What the reference answers when a handler fails.
    #[error("{0}")]
    Trouble(String),
}

impl ApiError {
    pub fn coded(code: Code, details: impl Into<String>) -> Self {
        Self::Coded {
            code,
            details: details.into(),
        }
    }

    pub fn later(code: Code, details: impl Into<String>, seconds: u64) -> Self {
        Self::Later {
            code,
            details: details.into(),
            seconds,
        }
    }

    pub fn trouble(reason: impl Into<String>) -> Self {
        Self::Trouble(reason.into())
    }

    pub fn text(status: StatusCode, text: impl Into<String>) -> Self {
        Self::Text(status, text.into())
    }

    pub fn plain(status: StatusCode, text: impl Into<String>) -> Self {
        Self::Plain(status, text.into())
    }

    pub const NOT_FOUND: Self = Self::Empty(StatusCode::NOT_FOUND);
    pub const FORBIDDEN: Self = Self::Empty(StatusCode::FORBIDDEN);
    pub const BAD_REQUEST: Self = Self::Empty(StatusCode::BAD_REQUEST);

    pub fn status(&self) -> StatusCode {
        match self {
            Self::Empty(s) | Self::Text(s, _) | Self::Plain(s, _) | Self::Json(s, _) => *s,
            Self::Coded { code, .. } | Self::Later { code, .. } => code.status(),
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Trouble(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// The error object of a refused prompt.
pub(crate) fn error_object(kind: &str, message: &str, details: &str, extra_info: Map) -> Value {
    map! {"type" => kind, "message" => message, "details" => details, "extra_info" => extra_info}
        .into()
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status();
        match self {
            Self::Empty(_) => response::status(status),
            Self::Text(_, text) => response::text(status, text),
            Self::TooLarge { .. } => response::text(status, self.to_string()),
            Self::Plain(_, text) => response::json_status(status, &map! {"error" => text}.into()),
            Self::Json(_, value) => response::json_status(status, &value),
            Self::Coded { code, details } => {
                let error = error_object(code.wire(), code.message(), &details, Map::new());
                let body = map! {"error" => error, "node_errors" => Map::new()};
                let mut answer = response::json_status(status, &body.into());
                let extra = match code {
                    Code::Unauthorized => {
                        Some((header::WWW_AUTHENTICATE, "Bearer realm=\"fresco\""))
                    }
                    Code::UnknownEncoding => Some((header::ACCEPT_ENCODING, "gzip, deflate")),
                    _ => None,
                };
                if let Some((name, value)) = extra {
                    answer
                        .headers_mut()
                        .insert(name, HeaderValue::from_static(value));
                }
                answer
            }
            Self::Later {
                code,
                details,
                seconds,
            } => {
                let mut answer = Self::Coded { code, details }.into_response();
                answer
                    .headers_mut()
                    .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
                answer
            }
            Self::Trouble(reason) => {
                // The first two lines are the reference's; the third says what went wrong.
                let text = format!(
                    "500 Internal Server Error\n\nServer got itself in trouble\n\n{reason}"
                );
                response::text(status, text)
            }
        }
    }
}

/// Something could not be written or read back; `what` is what was attempted. A disk without room is the one case a
/// person can do something about, and is told apart.
pub(crate) fn disk_error(what: &str, error: &io::Error) -> ApiError {
    let advice = match error.kind() {
        io::ErrorKind::StorageFull => "the disk is full; free some space and try again",
        io::ErrorKind::QuotaExceeded => "the disk quota of the server's user is used up",
        io::ErrorKind::FileTooLarge => "the file is larger than this system lets the server write",
        io::ErrorKind::ReadOnlyFilesystem => {
            return ApiError::text(
                StatusCode::INSUFFICIENT_STORAGE,
                format!("cannot {what}: the disk cannot be written to ({error})"),
            );
        }
        _ => return ApiError::trouble(format!("cannot {what}: {error}")),
    };
    ApiError::coded(Code::DiskFull, format!("cannot {what}: {advice} ({error})"))
}

/// What the store could not do, in the submitter's terms.
pub(crate) fn store_error(error: &StoreError) -> ApiError {
    match error {
        StoreError::QueueFull { .. } => ApiError::coded(Code::QueueFull, error.to_string()),
        StoreError::Closed => ApiError::coded(Code::Stopping, error.to_string()),
        _ => {
            let cause = std::error::Error::source(error)
                .map(|c| format!(": {c}"))
                .unwrap_or_default();
            ApiError::coded(Code::NotAccepted, format!("{error}{cause}"))
        }
    }
}

/// An answer of the store, or why there is none.
pub(crate) fn stored<T>(answer: Option<Result<T, StoreError>>) -> Result<T, ApiError> {
    answer
        .unwrap_or(Err(StoreError::Closed))
        .map_err(|e| store_error(&e))
}

/// `{code}: {reason}`, the reference's body for refusals made by its framework.
pub(crate) fn raised(status: StatusCode) -> ApiError {
    ApiError::Text(
        status,
        format!(
            "{}: {}",
            status.as_u16(),
            status.canonical_reason().unwrap_or("Error")
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_names_are_unique_and_statuses_are_errors() {
        for (i, code) in Code::ALL.iter().enumerate() {
            assert!(code.status().is_client_error() || code.status().is_server_error());
            assert!(Code::ALL[i + 1..].iter().all(|c| c.wire() != code.wire()));
        }
    }

    #[test]
    fn a_full_disk_is_told_apart() {
        for (kind, status) in [
            (io::ErrorKind::StorageFull, 507),
            (io::ErrorKind::QuotaExceeded, 507),
            (io::ErrorKind::FileTooLarge, 507),
            (io::ErrorKind::ReadOnlyFilesystem, 507),
            (io::ErrorKind::PermissionDenied, 500),
        ] {
            let error = disk_error("store the file", &io::Error::from(kind));
            assert_eq!(error.status().as_u16(), status, "{kind}");
            assert!(error.to_string().contains("store the file"), "{error}");
        }
    }

    #[test]
    fn raised_errors_read_like_the_reference() {
        assert_eq!(
            raised(StatusCode::METHOD_NOT_ALLOWED).to_string(),
            "405 Method Not Allowed: 405: Method Not Allowed"
        );
    }
}
