//! Files sent as they are: the front-end, packs' web directories, templates, docs; and the file answer `/view` and user
//! data share (ranges, validators).

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use fresco_files::{PathError, contain_file, mime};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncSeekExt, ReadBuf};

use crate::App;
use crate::http::blocking::blocking;
use crate::http::body::{BodyPart, Stored};
use crate::http::error::ApiError;
use crate::http::range::{self, Range};
use crate::http::request::Request;
use crate::http::response::{self, FromFile, has_tag, header_text};
use crate::http::route::Answer;
use crate::http::uri_text::decode;
use crate::routes::page;
use crate::routes::status_page;
use crate::services::config::{FrontEnd, Templates};

/// Files up to this size are read at once; larger ones in pieces while they are sent.
const WHOLE: u64 = 256 << 10;
const PIECE: usize = 64 << 10;

/// Sends a file: conditional requests, ranges, validators.
pub(crate) async fn file(path: &Path, headers: &HeaderMap, kind: &str) -> Answer {
    let open = async {
        let file = tokio::fs::File::open(path).await?;
        let meta = file.metadata().await?;
        Ok::<_, io::Error>((file, meta))
    };
    let (mut file, meta) = open.await.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => ApiError::NOT_FOUND,
        io::ErrorKind::PermissionDenied => ApiError::FORBIDDEN,
        _ => ApiError::trouble(format!("cannot open a file: {e}")),
    })?;
    if !meta.is_file() {
        return Err(ApiError::NOT_FOUND);
    }
    let size = meta.len();
    let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let etag = format!("\"{}\"", version(&meta));
    let date = httpdate::fmt_http_date(modified);

    let mut answer = if unchanged(headers, &etag, modified) {
        response::status(StatusCode::NOT_MODIFIED)
    } else {
        match requested_range(headers, &etag, &date, size) {
            Range::Unsatisfiable => {
                let mut answer = response::status(StatusCode::RANGE_NOT_SATISFIABLE);
                answer
                    .headers_mut()
                    .insert(header::CONTENT_RANGE, value(&format!("bytes */{size}")));
                answer
            }
            range => {
                let (status, start, length) = match range {
                    Range::Part { start, length } => (StatusCode::PARTIAL_CONTENT, start, length),
                    _ => (StatusCode::OK, 0, size),
                };
                let gone = |e: io::Error| ApiError::trouble(format!("cannot read a file: {e}"));
                if start > 0 {
                    file.seek(io::SeekFrom::Start(start)).await.map_err(gone)?;
                }
                let body = if length <= WHOLE {
                    let mut content = Vec::with_capacity(length as usize);
                    file.take(length)
                        .read_to_end(&mut content)
                        .await
                        .map_err(gone)?;
                    Body::from(content)
                } else {
                    Body::new(FileBody {
                        file,
                        left: length,
                        _of: None,
                    })
                };
                let mut answer = Response::new(body);
                *answer.status_mut() = status;
                let out = answer.headers_mut();
                out.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
                if status == StatusCode::PARTIAL_CONTENT {
                    let end = start + length - 1;
                    out.insert(
                        header::CONTENT_RANGE,
                        value(&format!("bytes {start}-{end}/{size}")),
                    );
                }
                answer
            }
        }
    };
    let out = answer.headers_mut();
    out.insert(header::CONTENT_TYPE, value(kind));
    out.insert(header::ETAG, value(&etag));
    out.insert(header::LAST_MODIFIED, value(&date));
    out.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    answer.extensions_mut().insert(FromFile);
    Ok(answer)
}

/// Changes when a file does.
pub(crate) fn version(meta: &Metadata) -> String {
    let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let nanos = modified
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos());
    format!("{nanos:x}-{:x}", meta.len())
}

fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(mime::OCTET_STREAM))
}

/// An entity tag decides alone; the date only counts without one.
fn unchanged(headers: &HeaderMap, etag: &str, modified: SystemTime) -> bool {
    if let Some(known) = has_tag(headers, etag) {
        return known;
    }
    let since = header_text(headers, header::IF_MODIFIED_SINCE)
        .and_then(|d| httpdate::parse_http_date(d).ok());
    // Dates have whole seconds.
    let seconds = |t: SystemTime| {
        t.duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs())
    };
    since.is_some_and(|since| seconds(modified) <= seconds(since))
}

fn requested_range(headers: &HeaderMap, etag: &str, date: &str, size: u64) -> Range {
    let Some(text) = header_text(headers, header::RANGE) else {
        return Range::Whole;
    };
    match header_text(headers, header::IF_RANGE) {
        Some(validator) if validator != etag && validator != date => Range::Whole,
        _ => range::parse(text, size),
    }
}

/// A file read while it is sent.
struct FileBody {
    file: tokio::fs::File,
    left: u64,
    /// What the file belongs to.
    _of: Option<Stored>,
}

/// An answer that was made on disk; it is gone when it was sent.
pub(crate) async fn made(stored: Stored, kind: HeaderValue) -> Answer {
    if let Some(bytes) = stored.in_memory() {
        return Ok(response::bytes(StatusCode::OK, kind, bytes.clone()));
    }
    let failed = |e: io::Error| ApiError::trouble(format!("cannot read the answer back: {e}"));
    let BodyPart::Disk(part) = stored.whole() else {
        return Err(ApiError::trouble("the answer is nowhere"));
    };
    let mut file = tokio::fs::File::from_std(part.file.try_clone().map_err(failed)?);
    file.seek(io::SeekFrom::Start(part.start))
        .await
        .map_err(failed)?;
    let mut answer = Response::new(Body::new(FileBody {
        file,
        left: part.size,
        _of: Some(stored),
    }));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(part.size));
    Ok(answer)
}

impl http_body::Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let mut piece = vec![0; PIECE.min(usize::try_from(self.left).unwrap_or(PIECE))];
        let mut buffer = ReadBuf::new(&mut piece);
        ready!(Pin::new(&mut self.file).poll_read(cx, &mut buffer))?;
        let read = buffer.filled().len();
        if read == 0 {
            // The file shrank meanwhile; breaking off tells the client.
            return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
        }
        piece.truncate(read);
        self.left -= read as u64;
        Poll::Ready(Some(Ok(Frame::data(piece.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// A static file below `root`; `rest` is still percent-encoded.
async fn below(root: &Path, rest: &str, request: &Request) -> Answer {
    let name = decode(rest, false);
    let (root, wanted) = (root.to_path_buf(), name.clone());
    let path = match blocking(move || contain_file(&root, &wanted)).await? {
        Ok(path) => path,
        Err(PathError::NotAFile { .. } | PathError::Escape { .. }) => {
            return Err(ApiError::FORBIDDEN);
        }
        Err(_) => return Ok(missing()),
    };
    file(&path, request.headers(), mime::media_type(&name)).await
}

/// The static handler's 404: no body, no guess about its type.
pub(crate) fn missing() -> Response {
    let mut answer = response::status(StatusCode::NOT_FOUND);
    answer.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(mime::OCTET_STREAM),
    );
    answer
}

/// Everything that is no route: `/extensions/PACK`, `/templates`, `/docs`, then the front-end.
pub(crate) async fn serve(app: &App, request: &Request, path: &str) -> Answer {
    let config = &app.config;
    if let Some(rest) = path.strip_prefix("/extensions/")
        && let Some((name, rest)) = rest.split_once('/')
    {
        let name = decode(name, false);
        let mounts = app.packs.mounts();
        let mut all = config.extensions.iter().chain(&mounts);
        if let Some((_, root)) = all.find(|(n, _)| *n == name) {
            return below(root, rest, request).await;
        }
    }
    if let Some(rest) = path.strip_prefix("/templates/") {
        match &config.templates {
            Templates::None => {}
            Templates::Directory(root) => return below(root, rest, request).await,
            Templates::Files(files) => {
                let name = decode(rest, false);
                let Some(path) = files.get(&name) else {
                    return Ok(missing());
                };
                return file(path, request.headers(), mime::media_type(&name)).await;
            }
        }
    }
    if let Some(rest) = path.strip_prefix("/docs/")
        && let Some(root) = &config.docs
    {
        return below(root, rest, request).await;
    }
    match (&config.front_end, path.strip_prefix('/')) {
        (FrontEnd::Folder(root), Some(rest)) => below(root, rest, request).await,
        (FrontEnd::Page, Some(rest)) => {
            let found = page::find(&decode(rest, false));
            Ok(found.map_or_else(missing, |file| page::answer(file, request.headers())))
        }
        _ => Ok(missing()),
    }
}

/// Folders in which packs keep example workflows.
pub(crate) const EXAMPLE_FOLDERS: &[&str] = &[
    "example_workflows",
    "example",
    "examples",
    "workflow",
    "workflows",
];

/// `/api/workflow_templates/PACK/...`, which exists only for loaded packs that have examples.
pub(crate) async fn pack_templates(request: &Request, path: &str) -> Option<Answer> {
    let (pack, rest) = path
        .strip_prefix("/api/workflow_templates/")?
        .split_once('/')?;
    let pack = decode(pack, false);
    let app = &request.app;
    if !app.config.loaded_packs.contains(&pack) {
        return None;
    }
    let name = decode(rest, false);
    let (app, wanted) = (app.clone(), name.clone());
    let found = blocking(move || find_example(&app, &pack, &wanted)).await;
    Some(match found.ok().flatten() {
        Some(path) => file(&path, request.headers(), mime::media_type(&name)).await,
        None => Ok(missing()),
    })
}

fn find_example(app: &App, pack: &str, name: &str) -> Option<PathBuf> {
    let roots = app.folders.roots("custom_nodes").unwrap_or_default();
    roots
        .iter()
        .flat_map(|root| EXAMPLE_FOLDERS.iter().map(|f| root.join(pack).join(f)))
        .find_map(|folder| contain_file(&folder, name).ok())
}

/// `/`: our page, another front-end's first page, or the status page.
pub(crate) async fn index(request: Request) -> Answer {
    let mut answer = match &request.app.config.front_end {
        FrontEnd::Folder(root) => {
            file(&root.join("index.html"), request.headers(), "text/html").await?
        }
        FrontEnd::Page if let Some(page) = page::find(page::INDEX) => {
            return Ok(page::answer(page, request.headers()));
        }
        FrontEnd::Page | FrontEnd::Status => status_page::page(&request),
    };
    uncached(&mut answer);
    Ok(answer)
}

/// `/status`.
pub(crate) async fn status(request: Request) -> Answer {
    let mut answer = status_page::page(&request);
    uncached(&mut answer);
    Ok(answer)
}

fn uncached(answer: &mut Response) {
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
    headers.insert(header::EXPIRES, HeaderValue::from_static("0"));
}
