//! What a client sends after it became a WebSocket: frames, halves of frames, or anything else.
#![no_main]

use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tower::ServiceExt as _;

#[path = "../app.rs"]
mod app;

const UPGRADE: &[u8] = b"GET /ws?clientId=fuzz HTTP/1.1\r\nHost: 127.0.0.1:8188\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

fuzz_target!(|data: &[u8]| {
    app::run(|app| async move {
        let router = fresco_server::app(app);
        // Room for all that one input can be answered with, so that neither side waits for the other.
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            router.clone().oneshot(request.map(axum::body::Body::new))
        });
        let served = http1::Builder::new()
            .serve_connection(TokioIo::new(server), service)
            .with_upgrades();
        let served = tokio::spawn(served);
        let mut head = [0; 4096];
        client.write_all(UPGRADE).await.expect("there is room");
        let count = client.read(&mut head).await.expect("the server answers");
        assert!(head[..count].starts_with(b"HTTP/1.1 101"), "{count} bytes");
        // A server that hung up on the first half does not take the second.
        let _ = client.write_all(data).await;
        let _ = client.shutdown().await;
        // Whatever came, the socket ends with its client.
        let mut rest = Vec::new();
        let end = tokio::time::timeout(Duration::from_secs(5), client.read_to_end(&mut rest));
        end.await.expect("the socket was left open").expect("a pipe in memory");
        let _ = served.await;
    });
});
