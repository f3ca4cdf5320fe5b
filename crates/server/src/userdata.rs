//! `/userdata`: a small file store per user.

use std::io;
use std::path::{Path, PathBuf};

use axum::http::StatusCode;
use fresco_files::mime;
use fresco_files::walk::file_times;
use fresco_files::write::{store_atomic, store_new};
use fresco_graph::{Map, Value, map};

use crate::error::{ApiError, disk_error, raised};
use crate::request::{Request, decode};
use crate::response;
use crate::route::{Answer, blocking};
use crate::static_files;
use crate::tree;
use crate::users::file_path;
use crate::view::seal;

fn root(request: &Request) -> Result<PathBuf, ApiError> {
    request
        .app
        .users
        .root(request)
        .ok_or_else(|| raised(StatusCode::UNAUTHORIZED))
}

/// Path relative to a root, with `/`.
fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root)
        .unwrap_or(path)
        .to_string_lossy()
        .replace('\\', "/")
}

fn info(name: &str, path: &Path) -> io::Result<Map> {
    let meta = path.metadata()?;
    let (modified, created) = file_times(&meta);
    Ok(map! {"path" => name, "size" => meta.len(), "modified" => modified, "created" => created})
}

/// `GET /userdata`.
pub(crate) async fn list(request: Request) -> Answer {
    let root = root(&request)?;
    let dir = request.query("dir").unwrap_or_default();
    if dir.is_empty() {
        return Err(ApiError::text(
            StatusCode::BAD_REQUEST,
            "Directory not provided",
        ));
    }
    let path = file_path(&root, &dir)
        .map_err(|_| ApiError::text(StatusCode::FORBIDDEN, "Invalid directory"))?;
    let (recurse, full, split) = (
        request.query_true("recurse"),
        request.query_true("full_info"),
        request.query_true("split"),
    );
    let list = blocking(move || {
        let missing = || ApiError::text(StatusCode::NOT_FOUND, "Directory not found");
        if !path.is_dir() {
            return Err(missing());
        }
        let items = tree::list(&root, &path, recurse, false).map_err(|_| missing())?;
        let entry = |item: tree::Item| -> Option<Value> {
            if item.is_dir || !item.path.is_file() {
                return None;
            }
            if full {
                // A file that went meanwhile is left out.
                return info(&item.name, &item.path).ok().map(Value::from);
            }
            if split {
                let parts: Vec<&str> = std::iter::once(item.name.as_str())
                    .chain(item.name.split('/'))
                    .collect();
                return Some(parts.into());
            }
            Some(item.name.into())
        };
        Ok(items.into_iter().filter_map(entry).collect::<Vec<_>>())
    })
    .await??;
    Ok(response::json(&list.into()))
}

/// `GET /v2/userdata`.
pub(crate) async fn list_v2(request: Request) -> Answer {
    let root = request.app.users.root(&request).ok_or_else(|| {
        ApiError::text(StatusCode::FORBIDDEN, "Invalid user specified in request")
    })?;
    let wanted = decode(&request.query("path").unwrap_or_default(), false);
    let path = fresco_files::contain(&root, &wanted)
        .map_err(|_| ApiError::text(StatusCode::BAD_REQUEST, "Invalid path requested"))?;
    let list = blocking(move || {
        if !path.exists() {
            if path == root {
                return Ok(Vec::new());
            }
            return Err(ApiError::text(StatusCode::NOT_FOUND, "Requested path not found"));
        }
        if !path.is_dir() {
            return Err(ApiError::text(StatusCode::BAD_REQUEST, "Requested path is not a directory"));
        }
        let mut items = tree::list(&root, &path, true, true)
            .map_err(|_| ApiError::text(StatusCode::INTERNAL_SERVER_ERROR, "Error reading directory contents"))?;
        items.sort_by_cached_key(|i| (!i.is_dir, i.file_name().to_lowercase()));
        let entry = |item: tree::Item| {
            let mut entry = map! {"name" => item.file_name(), "path" => relative(&root, &item.path)};
            if item.is_dir {
                entry.insert("type".into(), "directory".into());
            } else {
                let meta = item.path.metadata().ok()?;
                entry.extend(map! {"type" => "file", "size" => meta.len(), "modified" => file_times(&meta).0});
            }
            Some(Value::from(entry))
        };
        Ok(items.into_iter().filter_map(entry).collect::<Vec<_>>())
    })
    .await??;
    Ok(response::json(&list.into()))
}

/// The user's root and the path of a file parameter.
fn target(request: &Request, index: usize) -> Result<(PathBuf, PathBuf), ApiError> {
    let root = root(request)?;
    let path = file_path(&root, request.param(index)).map_err(|_| ApiError::FORBIDDEN)?;
    if path == root {
        return Err(ApiError::FORBIDDEN);
    }
    Ok((root, path))
}

fn existing(request: &Request) -> Result<(PathBuf, PathBuf), ApiError> {
    let (root, path) = target(request, 0)?;
    if path.is_file() {
        Ok((root, path))
    } else {
        Err(ApiError::NOT_FOUND)
    }
}

/// `GET /userdata/{file}`.
pub(crate) async fn get(request: Request) -> Answer {
    let (_, path) = existing(&request)?;
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

/// Only the text `false` keeps a file from being replaced.
fn overwrite(request: &Request) -> bool {
    request.query("overwrite").is_none_or(|v| v != "false")
}

fn done(root: &Path, path: &Path, full: bool) -> Answer {
    let name = relative(root, path);
    if !full {
        return Ok(response::json(&name.into()));
    }
    let info = info(&name, path)
        .map_err(|e| ApiError::trouble(format!("cannot read back '{name}': {e}")))?;
    Ok(response::json(&info.into()))
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
    let (root, path) = target(&request, 0)?;
    let (replace, full) = (overwrite(&request), request.query_true("full_info"));
    let body = request.body().await?;
    blocking(move || {
        let content = body.whole();
        let written = if replace {
            store_atomic(&path, &content)
        } else {
            store_new(&path, &content)
        };
        match written {
            Ok(()) => done(&root, &path, full),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && !replace => Err(conflict()),
            Err(error) if is_bad_name(&error) => {
                tracing::warn!(path = %path.display(), %error, "cannot store user data");
                let text = "Invalid filename. Please avoid special characters like :\\/*?\"<>|";
                Err(ApiError::text(StatusCode::BAD_REQUEST, text))
            }
            Err(error) => Err(disk_error("store the file", &error)),
        }
    })
    .await?
}

/// `DELETE /userdata/{file}`.
pub(crate) async fn delete(request: Request) -> Answer {
    let (_, path) = existing(&request)?;
    blocking(move || std::fs::remove_file(path))
        .await?
        .map_err(|e| ApiError::trouble(format!("cannot delete the file: {e}")))?;
    Ok(response::status(StatusCode::NO_CONTENT))
}

/// `POST /userdata/{file}/move/{dest}`.
pub(crate) async fn rename(request: Request) -> Answer {
    let (root, source) = existing(&request)?;
    let (_, dest) = target(&request, 1)?;
    let (replace, full) = (overwrite(&request), request.query_true("full_info"));
    blocking(move || {
        if dest.exists() && !replace {
            return Err(conflict());
        }
        let parent = dest.parent().map_or(Ok(()), std::fs::create_dir_all);
        let moved = parent.and_then(|()| std::fs::rename(&source, &dest));
        moved.map_err(|e| disk_error("move the file", &e))?;
        done(&root, &dest, full)
    })
    .await?
}
