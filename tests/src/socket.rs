//! A WebSocket client that sees every frame in order.

use std::{
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use serde_json::Value;
use tungstenite::{Message, WebSocket, client::IntoClientRequest};

use crate::http::PATIENCE;

#[derive(Clone, Debug)]
pub enum Frame {
    /// The parsed message, and its text as it came.
    Text(Value, String),
    Binary(Vec<u8>),
    Closed,
}

pub struct Socket {
    inner: WebSocket<TcpStream>,
    /// Bytes of all messages received so far.
    pub received: usize,
}

impl Socket {
    #[track_caller]
    pub fn open(address: SocketAddr, path: &str) -> Self {
        match Self::try_open(address, path, &[]) {
            Ok(socket) => socket,
            Err(status) => panic!("no WebSocket at {path}: {status}"),
        }
    }

    /// Opens with extra headers; refused upgrades give the reason.
    pub fn try_open(
        address: SocketAddr,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<Self, String> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(|e| e.to_string())?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        stream
            .set_read_timeout(Some(PATIENCE))
            .map_err(|e| e.to_string())?;
        let mut request = format!("ws://{address}{path}")
            .into_client_request()
            .map_err(|e| e.to_string())?;
        for (name, value) in headers {
            let value = value.parse().map_err(|_| format!("bad header {value:?}"))?;
            request.headers_mut().insert(*name, value);
        }
        match tungstenite::client(request, stream) {
            Ok((inner, _)) => Ok(Self { inner, received: 0 }),
            Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(response))) => {
                Err(response.status().to_string())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    #[track_caller]
    pub fn frame(&mut self) -> Frame {
        match self.next_within(PATIENCE) {
            Some(frame) => frame,
            None => panic!("no message for {} s", PATIENCE.as_secs()),
        }
    }

    /// The next frame, or nothing if none comes in time.
    #[track_caller]
    pub fn next_within(&mut self, patience: Duration) -> Option<Frame> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = left.max(Duration::from_millis(1));
            let stream = self.inner.get_ref();
            stream
                .set_read_timeout(Some(left))
                .expect("the time left is not zero");
            match self.inner.read() {
                Ok(Message::Text(text)) => {
                    self.received += text.len();
                    let text = text.to_string();
                    let value = serde_json::from_str(&text)
                        .unwrap_or_else(|error| panic!("not JSON ({error}): {text}"));
                    return Some(Frame::Text(value, text));
                }
                Ok(Message::Binary(bytes)) => {
                    self.received += bytes.len();
                    return Some(Frame::Binary(bytes.to_vec()));
                }
                Ok(Message::Close(_)) | Err(tungstenite::Error::ConnectionClosed) => {
                    return Some(Frame::Closed);
                }
                Ok(_) => {}
                Err(tungstenite::Error::Io(error))
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) =>
                {
                    if Instant::now() >= deadline {
                        return None;
                    }
                }
                Err(_) => return Some(Frame::Closed),
            }
        }
    }

    /// The next JSON message; a binary frame or the end is a failure.
    #[track_caller]
    pub fn message(&mut self) -> Value {
        match self.frame() {
            Frame::Text(value, _) => value,
            other => panic!("expected a JSON message, got {other:?}"),
        }
    }

    /// JSON messages up to and including the first for which `last` holds.
    #[track_caller]
    pub fn until(&mut self, last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut seen = Vec::new();
        loop {
            let message = self.message();
            let done = last(&message);
            seen.push(message);
            if done {
                return seen;
            }
        }
    }

    /// All messages of a prompt's run: up to `executing` with a null node and this id.
    #[track_caller]
    pub fn run(&mut self, id: &str) -> Vec<Value> {
        self.until(|message| is_end(message, id))
    }

    pub fn send(&mut self, text: &str) {
        self.inner
            .send(Message::text(text))
            .expect("the socket is open");
    }

    pub fn send_binary(&mut self, bytes: &[u8]) {
        self.inner
            .send(Message::binary(bytes.to_vec()))
            .expect("the socket is open");
    }

    pub fn close(mut self) {
        // The other side may be faster; both ends agree then.
        let _ = self.inner.close(None);
        let _ = self.inner.flush();
    }
}

/// Whether this message ends the run of prompt `id` for its client.
pub fn is_end(message: &Value, id: &str) -> bool {
    message["type"] == "executing"
        && message["data"]["node"].is_null()
        && message["data"]["prompt_id"] == id
}
