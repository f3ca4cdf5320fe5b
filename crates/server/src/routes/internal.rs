//! `/internal`: what only the front-end uses.

use std::fmt::Write as _;

use axum::http::StatusCode;
use fresco_files::DirType;
use fresco_graph::Value;
use indexmap::IndexMap;

use crate::http::blocking::blocking;
use crate::http::error::ApiError;
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;
use crate::routes::models::path_texts;
use crate::services::logs::{LogLines, TerminalSize};
use crate::services::tree;

/// `GET /internal/logs`.
pub(crate) async fn logs(request: Request) -> Answer {
    let mut text = String::new();
    for entry in request.app.logs.entries() {
        let _ = write!(text, "{} - {}", entry.time, entry.text);
    }
    Ok(response::json(&text.into()))
}

/// `GET /internal/logs/raw`. The size is that of a terminal nobody has.
pub(crate) async fn raw_logs(request: Request) -> Answer {
    Ok(response::typed(&LogLines {
        entries: request.app.logs.entries(),
        size: Some(TerminalSize { cols: 80, rows: 24 }),
    }))
}

/// `PATCH /internal/logs/subscribe`.
pub(crate) async fn subscribe(mut request: Request) -> Answer {
    let body = request.json_map().await?;
    let Some(client) = body.get("clientId").and_then(Value::as_str) else {
        return Err(ApiError::trouble("'clientId' is missing"));
    };
    let Some(enabled) = body.get("enabled") else {
        return Err(ApiError::trouble("'enabled' is missing"));
    };
    request.app.hub.subscribe_logs(client, enabled.truthy());
    if request.app.hub.wants_logs() {
        request.app.logs.begin_watch();
    }
    Ok(response::empty())
}

/// `GET /internal/folder_paths`.
pub(crate) async fn folder_paths(request: Request) -> Answer {
    let all = request.app.folders.all_roots().into_iter();
    let all: IndexMap<_, _> = all
        .map(|(name, roots)| (name, path_texts(&roots)))
        .collect();
    Ok(response::typed(&all))
}

/// `GET /internal/files/{directory_type}`: newest first.
pub(crate) async fn files(request: Request) -> Answer {
    let Some(kind) = DirType::parse(request.param(0)) else {
        return Err(ApiError::plain(
            StatusCode::BAD_REQUEST,
            "Invalid directory type",
        ));
    };
    let dir = request.app.dirs.get(kind).to_path_buf();
    let names = blocking(move || {
        let mut files: Vec<_> = tree::list(&dir, &dir, false, false)
            .unwrap_or_default()
            .into_iter()
            .filter_map(|item| {
                let meta = item
                    .path
                    .metadata()
                    .ok()
                    .filter(std::fs::Metadata::is_file)?;
                Some((meta.modified().ok(), item.name))
            })
            .collect();
        files.sort_by_key(|f| std::cmp::Reverse(f.0));
        files
            .into_iter()
            .map(|(_, name)| Value::from(name))
            .collect::<Vec<_>>()
    })
    .await?;
    Ok(response::json(&names.into()))
}
