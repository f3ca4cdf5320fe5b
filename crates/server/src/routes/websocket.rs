//! `/ws`: one task per socket that reads what little clients say and writes what the hub has for them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::http::StatusCode;
use fresco_graph::{Value, json};
use futures_util::SinkExt;
use uuid::Uuid;

use crate::App;
use crate::http::error::{ApiError, Code, raised};
use crate::http::query::{NonEmpty, query_struct};
use crate::http::request::Request;
use crate::http::route::Answer;
use crate::routes::system::FeatureFlags;
use crate::services::hub::Socket;
use crate::services::outbox::Next;

query_struct! {
    /// Query of `GET /ws`.
    SocketQuery {
        client_id: NonEmpty = "clientId", "id under which events are addressed; made up if absent";
    }
}

/// Close code "try again later" of the protocol's registry.
const TRY_AGAIN: u16 = 1013;
/// How long a close frame may take to a client that does not read.
const FAREWELL: Duration = Duration::from_secs(1);
/// What is read at once. Clients say little, and the buffer is cleared before each look whether they said something.
const READ_BUFFER: usize = 4 << 10;

/// `GET /ws`.
pub(crate) async fn connect(mut request: Request) -> Answer {
    let client_id = SocketQuery::of(&request).client_id.0;
    let sid = client_id.unwrap_or_else(|| Uuid::new_v4().simple().to_string());
    if sid.len() > 1024 {
        return Err(ApiError::coded(
            Code::BadName,
            "clientId is longer than 1024 bytes",
        ));
    }
    let app = request.app.clone();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut request.head, &())
        .await
        .map_err(|_| raised(StatusCode::BAD_REQUEST))?;
    let limit = app.config.limits.socket_message;
    let upgrade = upgrade
        .max_message_size(limit)
        .max_frame_size(limit)
        .read_buffer_size(READ_BUFFER);
    Ok(upgrade.on_upgrade(move |stream| serve(app, stream, sid.into())))
}

async fn serve(app: App, mut stream: WebSocket, sid: Arc<str>) {
    let Some(socket) = app.hub.connect(sid, app.engine.remaining()) else {
        close(&mut stream, Code::TooManySockets.message()).await;
        return;
    };
    clients_changed(&app);
    let mut first = true;
    loop {
        let mut until = None;
        match write(&app, &mut stream, &socket).await {
            Written::All => {}
            Written::Until(at) => until = Some(at.into()),
            Written::Closed(reason) => {
                close(&mut stream, reason).await;
                break;
            }
            Written::Broken => break,
        }
        tokio::select! {
            () = socket.outbox.changed() => {}
            () = tokio::time::sleep_until(until.unwrap_or_else(tokio::time::Instant::now)), if until.is_some() => {}
            message = stream.recv() => match message {
                Some(Ok(Message::Text(text))) => read(&app, &socket, &text, &mut first),
                Some(Ok(Message::Close(_))) | None => break,
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!(client = %socket.sid, %error, "socket ended");
                    break;
                }
            },
        }
    }
    app.hub.disconnect(&socket);
    clients_changed(&app);
}

/// Lets other fronts know, if there are some.
fn clients_changed(app: &App) {
    if let Some(far) = app.far.as_ref().filter(|far| far.has_fronts()) {
        far.clients_changed();
    }
}

enum Written {
    All,
    /// All but what waits for this.
    Until(Instant),
    Closed(&'static str),
    Broken,
}

/// Sends everything that waits, in one go where possible.
async fn write(app: &App, stream: &mut WebSocket, socket: &Socket) -> Written {
    loop {
        let work = async {
            let mut bytes = 0;
            let mut frames = 0;
            // What the client has not got if the connection breaks now.
            let mut unsent = Vec::new();
            let mut rest = Written::All;
            loop {
                match socket.outbox.next() {
                    Next::Frame(frame) => {
                        bytes += match &frame.message {
                            Message::Text(t) => t.len(),
                            Message::Binary(b) => b.len(),
                            _ => 0,
                        };
                        frames += 1;
                        unsent.push(frame.clone());
                        if stream.feed(frame.message).await.is_err() {
                            socket.outbox.put_back(unsent);
                            return Some(Written::Broken);
                        }
                    }
                    Next::Idle => break,
                    Next::Wait(at) => {
                        rest = Written::Until(at);
                        break;
                    }
                    Next::Close(reason) => return Some(Written::Closed(reason)),
                }
            }
            if frames == 0 {
                return Some(rest);
            }
            app.metrics.frames_sent(frames, bytes);
            if stream.flush().await.is_err() {
                socket.outbox.put_back(unsent);
                return Some(Written::Broken);
            }
            None
        };
        // A client that stopped reading blocks the write; only the overflowing outbox ends that.
        let overflow = async {
            loop {
                socket.outbox.changed().await;
                if let Some(reason) = socket.outbox.closed() {
                    return reason;
                }
            }
        };
        tokio::select! {
            biased;
            done = work => if let Some(done) = done { return done },
            reason = overflow => return Written::Closed(reason),
        }
    }
}

async fn close(stream: &mut WebSocket, reason: &str) {
    let frame = CloseFrame {
        code: TRY_AGAIN,
        reason: Utf8Bytes::from(reason.to_owned()),
    };
    // Whether the client still hears it is its own affair.
    let _ = tokio::time::timeout(FAREWELL, stream.send(Message::Close(Some(frame)))).await;
}

/// Clients may introduce themselves with their very first message; everything else is ignored.
fn read(app: &App, socket: &Socket, text: &str, first: &mut bool) {
    let message = match json::parse_within(text, json::FOREIGN_BYTES) {
        Ok(message @ Value::Map(_)) => message,
        Ok(_) => {
            tracing::error!(client = %socket.sid, "a socket sent JSON that is not an object");
            return;
        }
        Err(error) => {
            tracing::warn!(client = %socket.sid, %error, "a socket sent text that is not JSON");
            return;
        }
    };
    let was_first = std::mem::replace(first, false);
    if was_first && message.get("type").and_then(Value::as_str) == Some("feature_flags") {
        socket.set_flags(message.get("data").unwrap_or(&Value::Null));
        clients_changed(app);
        app.hub
            .reply(socket, "feature_flags", &FeatureFlags::of(&app.config));
    }
}
