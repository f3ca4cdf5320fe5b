//! `/userdata`: a small file store per user.

use std::io;
use std::path::{Path, PathBuf};

use axum::http::StatusCode;
use fresco_files::mime;
use fresco_files::walk::file_times;
use fresco_files::write::{store_atomic, store_new};
use serde::Serialize;

use crate::http::error::{ApiError, disk_error, raised};
use crate::http::query::{SaysTrue, UnlessFalse, query_struct};
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;
use crate::http::uri_text::decode;
use crate::routes::static_files;
use crate::routes::view::seal;
use crate::services::tree;
use crate::services::users::{User, file_path};

query_struct! {
    /// Query of `GET /userdata`.
    ListQuery {
        dir: String = "dir", "folder";
        recurse: SaysTrue = "recurse", "true: also below";
        full_info: SaysTrue = "full_info", "true: with sizes and times";
        split: SaysTrue = "split", "true: paths in parts";
    }
}

query_struct! {
    /// Query of `GET /v2/userdata`.
    FolderQuery {
        path: String = "path", "folder";
    }
}

query_struct! {
    /// Query of requests that store a file.
    StoreQuery {
        overwrite: UnlessFalse = "overwrite", "false: keep an existing file";
        full_info: SaysTrue = "full_info", "true: answer with size and times";
    }
}

fn user(request: &Request) -> Result<User, ApiError> {
    User::of(request).ok_or_else(|| raised(StatusCode::UNAUTHORIZED))
}

/// Path relative to a root, with `/`.
fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root)
        .unwrap_or(path)
        .to_string_lossy()
        .replace('\\', "/")
}

fn info(name: &str, path: &Path) -> io::Result<FileInfo> {
    let meta = path.metadata()?;
    let (modified, created) = file_times(&meta);
    Ok(FileInfo {
        path: name.to_owned(),
        size: meta.len(),
        modified,
        created,
    })
}

#[derive(Serialize)]
struct FileInfo {
    path: String,
    size: u64,
    modified: f64,
    created: f64,
}

/// A file in a list, in the form that was asked for.
#[derive(Serialize)]
#[serde(untagged)]
enum ListEntry {
    Name(String),
    /// The whole name, and what it is made of.
    Parts(Vec<String>),
    Info(FileInfo),
}

/// A file or a folder.
#[derive(Serialize)]
struct FolderEntry {
    name: String,
    path: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<f64>,
}

/// `GET /userdata`.
pub(crate) async fn list(request: Request) -> Answer {
    let user = user(&request)?;
    let ListQuery {
        dir,
        recurse: SaysTrue(recurse),
        full_info: SaysTrue(full),
        split: SaysTrue(split),
    } = ListQuery::of(&request);
    if dir.is_empty() {
        return Err(ApiError::text(
            StatusCode::BAD_REQUEST,
            "Directory not provided",
        ));
    }
    let work = move |root: &Path| {
        let path = file_path(root, &dir)
            .map_err(|_| ApiError::text(StatusCode::FORBIDDEN, "Invalid directory"))?;
        let missing = || ApiError::text(StatusCode::NOT_FOUND, "Directory not found");
        if !path.is_dir() {
            return Err(missing());
        }
        let items = tree::list(root, &path, recurse, false).map_err(|_| missing())?;
        let entry = |item: tree::Item| -> Option<ListEntry> {
            if item.is_dir || !item.path.is_file() {
                return None;
            }
            if full {
                // A file that went meanwhile is left out.
                return info(&item.name, &item.path).ok().map(ListEntry::Info);
            }
            if split {
                let parts = std::iter::once(item.name.as_str()).chain(item.name.split('/'));
                return Some(ListEntry::Parts(parts.map(str::to_owned).collect()));
            }
            Some(ListEntry::Name(item.name))
        };
        Ok(items.into_iter().filter_map(entry).collect::<Vec<_>>())
    };
    Ok(response::typed(&user.in_folder(work).await?))
}

/// `GET /v2/userdata`.
pub(crate) async fn list_v2(request: Request) -> Answer {
    let user = User::of(&request).ok_or_else(|| {
        ApiError::text(StatusCode::FORBIDDEN, "Invalid user specified in request")
    })?;
    let wanted = decode(&FolderQuery::of(&request).path, false);
    let work = move |root: &Path| {
        let path = fresco_files::contain(root, &wanted)
            .map_err(|_| ApiError::text(StatusCode::BAD_REQUEST, "Invalid path requested"))?;
        if !path.exists() {
            if path == root {
                return Ok(Vec::new());
            }
            return Err(ApiError::text(
                StatusCode::NOT_FOUND,
                "Requested path not found",
            ));
        }
        if !path.is_dir() {
            return Err(ApiError::text(
                StatusCode::BAD_REQUEST,
                "Requested path is not a directory",
            ));
        }
        let mut items = tree::list(root, &path, true, true).map_err(|_| {
            ApiError::text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "Error reading directory contents",
            )
        })?;
        items.sort_by_cached_key(|i| (!i.is_dir, i.file_name().to_lowercase()));
        let entry = |item: tree::Item| {
            let mut entry = FolderEntry {
                name: item.file_name().to_owned(),
                path: relative(root, &item.path),
                kind: "directory",
                size: None,
                modified: None,
            };
            if !item.is_dir {
                let meta = item.path.metadata().ok()?;
                entry.kind = "file";
                entry.size = Some(meta.len());
                entry.modified = Some(file_times(&meta).0);
            }
            Some(entry)
        };
        Ok(items.into_iter().filter_map(entry).collect::<Vec<_>>())
    };
    Ok(response::typed(&user.in_folder(work).await?))
}

/// The path of a file parameter.
fn target(root: &Path, name: &str) -> Result<PathBuf, ApiError> {
    let path = file_path(root, name).map_err(|_| ApiError::FORBIDDEN)?;
    if path == root {
        return Err(ApiError::FORBIDDEN);
    }
    Ok(path)
}

fn existing(root: &Path, name: &str) -> Result<PathBuf, ApiError> {
    let path = target(root, name)?;
    if path.is_file() {
        Ok(path)
    } else {
        Err(ApiError::NOT_FOUND)
    }
}

/// `GET /userdata/{file}`.
pub(crate) async fn get(request: Request) -> Answer {
    let wanted = request.param(0).to_owned();
    let path = user(&request)?
        .in_folder(move |root| existing(root, &wanted))
        .await?;
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let mut answer = static_files::file(&path, request.headers(), mime::media_type(&name)).await?;
    seal(&mut answer, &name);
    Ok(answer)
}

fn conflict() -> ApiError {
    ApiError::text(StatusCode::CONFLICT, "File already exists")
}

fn done(root: &Path, path: &Path, full: bool) -> Answer {
    let name = relative(root, path);
    if !full {
        return Ok(response::typed(&name));
    }
    let info = info(&name, path)
        .map_err(|e| ApiError::trouble(format!("cannot read back '{name}': {e}")))?;
    Ok(response::typed(&info))
}

/// The name is what the disk objects to, as far as can be told: it is a folder, goes through a file, or has characters
/// that this file system does not have.
fn is_bad_name(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::NotFound
            | Kind::AlreadyExists
            | Kind::NotADirectory
            | Kind::IsADirectory
            | Kind::DirectoryNotEmpty
            | Kind::InvalidInput
            | Kind::InvalidFilename
    )
}

/// `POST /userdata/{file}`.
pub(crate) async fn post(mut request: Request) -> Answer {
    let wanted = request.param(0).to_owned();
    let name = wanted.clone();
    // A bad name is refused before a large body was sent.
    user(&request)?
        .in_folder(move |root| target(root, &name))
        .await?;
    let user = user(&request)?;
    let StoreQuery {
        overwrite: UnlessFalse(replace),
        full_info: SaysTrue(full),
    } = StoreQuery::of(&request);
    let body = request.body().await?;
    user.in_folder(move |root| {
        let path = target(root, &wanted)?;
        let content = body.whole();
        let written = if replace {
            store_atomic(&path, &content)
        } else {
            store_new(&path, &content)
        };
        match written {
            Ok(()) => done(root, &path, full),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && !replace => Err(conflict()),
            Err(error) if is_bad_name(&error) => {
                tracing::warn!(path = %path.display(), %error, "cannot store user data");
                let text = "Invalid filename. Please avoid special characters like :\\/*?\"<>|";
                Err(ApiError::text(StatusCode::BAD_REQUEST, text))
            }
            Err(error) => Err(disk_error("store the file", &error)),
        }
    })
    .await
}

/// `DELETE /userdata/{file}`.
pub(crate) async fn delete(request: Request) -> Answer {
    let wanted = request.param(0).to_owned();
    let work = move |root: &Path| {
        std::fs::remove_file(existing(root, &wanted)?)
            .map_err(|e| ApiError::trouble(format!("cannot delete the file: {e}")))
    };
    user(&request)?.in_folder(work).await?;
    Ok(response::status(StatusCode::NO_CONTENT))
}

/// `POST /userdata/{file}/move/{dest}`.
pub(crate) async fn rename(request: Request) -> Answer {
    let (source, dest) = (request.param(0).to_owned(), request.param(1).to_owned());
    let StoreQuery {
        overwrite: UnlessFalse(replace),
        full_info: SaysTrue(full),
    } = StoreQuery::of(&request);
    let work = move |root: &Path| {
        let (source, dest) = (existing(root, &source)?, target(root, &dest)?);
        if dest.exists() && !replace {
            return Err(conflict());
        }
        let parent = dest.parent().map_or(Ok(()), std::fs::create_dir_all);
        let moved = parent.and_then(|()| std::fs::rename(&source, &dest));
        moved.map_err(|e| disk_error("move the file", &e))?;
        done(root, &dest, full)
    };
    user(&request)?.in_folder(work).await
}
