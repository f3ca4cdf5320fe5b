//! Listening: one loop per address, one task per connection, an orderly end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, Version, header};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tower_service::Service;

use crate::App;
use crate::http::response;
use crate::services::throttle::Peer;

/// A client must send a request head within this time, counted from the connection or from the last answer. The
/// reference keeps idle connections as long.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// Bytes of a request head.
const HEAD_BYTES: usize = 128 << 10;
/// How long open requests may take to end after the server was told to stop.
const FAREWELL: Duration = Duration::from_secs(3);

/// Wraps an accepted connection, for TLS.
pub trait Wrap: Send + Sync {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    fn wrap(&self, stream: TcpStream) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// No wrapping: plain HTTP.
pub struct Plain;

impl Wrap for Plain {
    type Stream = TcpStream;

    async fn wrap(&self, stream: TcpStream) -> io::Result<TcpStream> {
        Ok(stream)
    }
}

/// Serves until `shutdown` resolves; then sockets are closed with a reason, open requests get a moment to finish.
pub async fn serve<W: Wrap + 'static>(
    listeners: Vec<TcpListener>,
    wrap: Arc<W>,
    app: App,
    shutdown: impl Future<Output = ()> + Send,
) {
    let (stop, stopped) = watch::channel(false);
    let router = crate::app(app.clone());
    let open = Arc::new(Semaphore::new(app.config.limits.connections));
    let loops: Vec<_> = listeners
        .into_iter()
        .map(|listener| {
            let accept = Accept {
                router: router.clone(),
                wrap: wrap.clone(),
                headers: app.config.limits.headers,
                open: open.clone(),
                stopped: stopped.clone(),
            };
            tokio::spawn(accept.run(listener))
        })
        .collect();
    drop(stopped);
    shutdown.await;
    stop.send_replace(true);
    app.hub.close_all("the server is stopping");
    // Every connection holds a receiver; the sender knows when the last one is gone.
    let _ = tokio::time::timeout(FAREWELL, stop.closed()).await;
    for accept in loops {
        accept.abort();
    }
}

struct Accept<W> {
    router: Router,
    wrap: Arc<W>,
    headers: usize,
    open: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
}

impl<W: Wrap + 'static> Accept<W> {
    async fn run(mut self, listener: TcpListener) {
        loop {
            // A place first, then a connection: too many clients wait in the kernel instead of using memory here.
            let Ok(place) = self.open.clone().acquire_owned().await else {
                return;
            };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = told_to_stop(&mut self.stopped) => return,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors, most likely; a pause lets some close.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            // Events are small and must not wait for company.
            let _ = stream.set_nodelay(true);
            let (router, wrap, headers) = (self.router.clone(), self.wrap.clone(), self.headers);
            let stopped = self.stopped.clone();
            tokio::spawn(async move {
                match tokio::time::timeout(HEAD_TIMEOUT, wrap.wrap(stream)).await {
                    Ok(Ok(stream)) => connection(stream, peer, router, headers, stopped).await,
                    Ok(Err(error)) => {
                        tracing::debug!(%peer, %error, "the connection could not be set up");
                    }
                    Err(_) => tracing::debug!(%peer, "the connection was not set up in time"),
                }
                drop(place);
            });
        }
    }
}

async fn told_to_stop(stopped: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which is the same.
    let _ = stopped.wait_for(|s| *s).await;
}

/// HTTP/1.1 wants exactly one `Host`; a proxy that reads another one than we do would guard another server.
fn without_host<B>(request: &hyper::Request<B>) -> Option<Response> {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    if hosts == 1 || (hosts == 0 && request.version() != Version::HTTP_11) {
        return None;
    }
    let mut answer = response::text(
        StatusCode::BAD_REQUEST,
        "400: Bad Request: an HTTP/1.1 request must have one Host header",
    );
    // What was meant with the rest of the bytes is not known either.
    answer
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    Some(answer)
}

async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: SocketAddr,
    router: Router,
    headers: usize,
    mut stopped: watch::Receiver<bool>,
) {
    let other_end = Peer::new(peer.ip());
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        // A router is always ready, so the call needs no waiting.
        let mut router = router.clone();
        request.extensions_mut().insert(other_end.clone());
        async move {
            if let Some(answer) = without_host(&request) {
                return Ok(answer);
            }
            router.call(request.map(Body::new)).await
        }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES)
        .max_headers(headers)
        .half_close(true);
    let connection = builder
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told_to_stop(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended");
    }
}
