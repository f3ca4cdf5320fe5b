//! Python packs as the server sees them, and how requests to their routes get there.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::PoisonError;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use fresco_graph::{Map, Value, map};
use http_body_util::Limited;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::http::blocking::blocking;
use crate::http::error::ApiError;
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;
use crate::services::throttle::Peer;

/// What packs add to the server. Whoever asks may have to wait, so never on a socket thread where it says so.
pub trait Packs: Send + Sync {
    /// Their states, for `/api/packs`.
    fn report(&self) -> Value {
        map! {"state" => "idle", "packs" => Vec::<Value>::new()}.into()
    }

    /// Folders with scripts for the front-end, by mount name.
    fn mounts(&self) -> Vec<(String, PathBuf)> {
        Vec::new()
    }

    /// Whether they are being loaded for the first time.
    fn is_starting(&self) -> bool {
        false
    }

    /// Waits until that is over; not on a socket thread.
    fn wait_ready(&self) {}

    /// The private socket to which a request belongs, if it is for a route of theirs.
    fn socket_for(&self, _method: &str, _path: &str) -> Option<Arc<str>> {
        None
    }

    /// Whether one of them wants to see prompts before they are checked.
    fn sees_prompts(&self) -> bool {
        false
    }

    /// Lets them change a prompt before it is checked; not on a socket thread.
    fn on_prompt(&self, _body: &Map) -> Option<Map> {
        None
    }

    /// Why packs that are there do not run, if they do not.
    fn problem(&self) -> Option<String> {
        None
    }

    /// Lets them give memory back that they keep for later.
    fn shrink(&self) {}

    /// Starts their process anew.
    fn restart(&self) {}
}

/// A program without packs.
pub struct NoPacks;

impl Packs for NoPacks {}

/// `GET /api/packs`.
pub(crate) async fn list(request: Request) -> Answer {
    Ok(response::json(&request.app.packs.report()))
}

/// `POST /fresco/packs/restart`.
pub(crate) async fn restart(request: Request) -> Answer {
    let packs = request.app.packs.clone();
    blocking(move || packs.restart()).await?;
    Ok(response::empty())
}

/// Paths whose answers are wrong without packs. `/object_info` is not among them: it answers for what there is, and packs
/// join it when they are ready. Front-ends ask for `/extensions` first, so they see packs all the same.
fn depends(path: &str) -> bool {
    let path = path.strip_prefix("/api").unwrap_or(path);
    let starts = |prefix: &str| {
        path.strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    ["/extensions", "/embeddings", "/models"]
        .iter()
        .any(|prefix| starts(prefix))
}

/// Waits for packs that are being loaded.
pub(crate) async fn wait_ready(packs: &Arc<dyn Packs>) {
    let packs = packs.clone();
    // A task that fails has waited long enough.
    let _ = blocking(move || packs.wait_ready()).await;
}

/// Waits for packs that are being loaded where the answer depends on them.
pub(crate) async fn wait_if_needed(request: &Request, path: &str) {
    if depends(path) {
        wait_ready(&request.app.packs).await;
    }
}

/// Waits for packs that are being loaded if a prompt has a node that nobody else knows.
pub(crate) async fn wait_for_classes(app: &crate::App, prompt: &Map) {
    if !app.packs.is_starting() {
        return;
    }
    let registry = app.engine.registry();
    let unknown = prompt.values().any(|node| {
        let class = node.get("class_type").and_then(Value::as_str);
        class.is_some_and(|class| registry.get(class).is_none())
    });
    if unknown {
        wait_ready(&app.packs).await;
    }
}

/// Hands a request on to the process of the packs.
pub(crate) async fn forward(request: Request, socket: &str) -> Response {
    match connect(socket).await {
        Ok(stream) => send(request, stream).await.unwrap_or_else(|error| {
            tracing::warn!("a route of a pack did not answer: {error}");
            unavailable()
        }),
        Err(error) => {
            tracing::warn!("the routes of packs cannot be reached: {error}");
            unavailable()
        }
    }
}

fn unavailable() -> Response {
    let text = "the Python process of this route does not answer; it may be restarting";
    ApiError::text(StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

#[cfg(unix)]
async fn connect(socket: &str) -> std::io::Result<tokio::net::UnixStream> {
    tokio::net::UnixStream::connect(socket).await
}

#[cfg(not(unix))]
async fn connect(socket: &str) -> std::io::Result<tokio::net::TcpStream> {
    let port = socket.parse().map_err(std::io::Error::other)?;
    tokio::net::TcpStream::connect(("127.0.0.1", port)).await
}

async fn send<S>(request: Request, stream: S) -> Result<Response, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!("the connection to a pack ended: {error}");
        }
    });
    let limit = usize::try_from(request.app.config.max_upload).unwrap_or(usize::MAX);
    let mut head = request.head;
    // A WebSocket of a pack: both ends change to it, and bytes go through as they are.
    let upgrade = crate::routes::guard::is_upgrade(&head).then(|| {
        let kind = head.headers.get(header::UPGRADE).cloned();
        (head.extensions.remove::<OnUpgrade>(), kind)
    });
    let body = request
        .body
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    if let Some(peer) = head.extensions.get::<Peer>()
        && let Ok(client) = HeaderValue::from_str(&peer.ip.to_string())
    {
        head.headers
            .insert(HeaderName::from_static("x-fresco-client"), client);
    }
    without_hops(&mut head.headers);
    head.extensions.clear();
    if let Some((_, Some(kind))) = &upgrade {
        switch_to(&mut head.headers, kind);
    }
    let mut answer = sender
        .send_request(hyper::Request::from_parts(head, Limited::new(body, limit)))
        .await?;
    let switched = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    if let (true, Some((Some(client), Some(kind)))) = (switched, upgrade) {
        let pack = hyper::upgrade::on(&mut answer);
        tokio::spawn(tunnel(client, pack));
        let mut answer = answer.map(|_| Body::empty());
        without_hops(answer.headers_mut());
        switch_to(answer.headers_mut(), &kind);
        return Ok(answer);
    }
    let mut answer = answer.map(Body::new);
    without_hops(answer.headers_mut());
    Ok(answer)
}

fn switch_to(headers: &mut HeaderMap, kind: &HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, kind.clone());
}

/// Passes bytes on in both directions until one side has enough.
async fn tunnel(client: OnUpgrade, pack: OnUpgrade) {
    let both = async {
        let (client, pack) = (client.await?, pack.await?);
        Ok::<_, hyper::Error>((TokioIo::new(client), TokioIo::new(pack)))
    };
    match both.await {
        Ok((mut client, mut pack)) => {
            if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut pack).await {
                tracing::debug!("a WebSocket of a pack ended: {error}");
            }
        }
        Err(error) => tracing::debug!("a WebSocket of a pack did not begin: {error}"),
    }
}

/// These belong to one connection only.
fn without_hops(headers: &mut HeaderMap) {
    for name in [
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::TE,
        header::TRAILER,
    ] {
        headers.remove(name);
    }
    headers.remove("keep-alive");
}
