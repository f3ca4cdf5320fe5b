//! Frames on their way between fronts of a cluster: a client may be connected to one and post to another.
//!
//! A front tells the others which clients it has. Whoever runs a prompt of such a client carries its frames over, with the files that a
//! result names, which may have to get other names there.

use std::sync::Arc;

use axum::extract::ws::{Message, Utf8Bytes};
use bytes::Bytes;
use fresco_cluster::Front;
use fresco_cluster::content::FileRef;
use fresco_cluster::protocol::alive::ClientName;
use fresco_graph::{Value, json, typed};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use crate::App;
use crate::http::blocking::blocking;
use crate::services::frame::{Class, Frame};
use crate::services::hub::Socket;
use crate::services::outbox::Next;

/// How the text of a frame begins that may name files.
const WITH_FILES: &str = "{\"type\":\"executed\"";

/// What is in a message.
const TEXT: u8 = 0;
const BINARY: u8 = 1;
/// A text and the files that it names.
const FILES: u8 = 2;

/// A frame whose text names files.
#[derive(Serialize, Deserialize)]
struct FrameWithFiles {
    frame: Value,
    files: Vec<FileRef>,
}

/// The clients of this front, for others to know.
pub fn clients(app: &App) -> Vec<ClientName> {
    app.hub.clients()
}

/// Another front has these clients. Does not wait.
pub fn front_has(app: &App, runtime: &Handle, front: &Arc<str>, clients: Vec<ClientName>) {
    for socket in app.hub.relay(front, clients) {
        runtime.spawn(carry(app.clone(), front.clone(), socket));
    }
}

/// Sends what there is for a client to the front that has it, until that has it no more.
async fn carry(app: App, front: Arc<str>, socket: Arc<Socket>) {
    let Some(far) = app.far.clone() else {
        return;
    };
    loop {
        let (mut frames, mut until, mut closed) = (Vec::new(), None, false);
        loop {
            match socket.outbox.next() {
                Next::Frame(frame) => frames.push(frame),
                Next::Idle => break,
                Next::Wait(at) => {
                    until = Some(at.into());
                    break;
                }
                Next::Close(_) => {
                    closed = true;
                    break;
                }
            }
        }
        if !frames.is_empty() {
            let (far, front, sid) = (far.clone(), front.clone(), socket.sid.clone());
            let send = move || send(&far, &front, &sid, frames);
            let Ok(unsent) = blocking(send).await else {
                return;
            };
            if !unsent.is_empty() {
                app.hub.missed(&socket.sid, unsent);
            }
        }
        if closed {
            return;
        }
        tokio::select! {
            () = socket.outbox.changed() => {}
            () = tokio::time::sleep_until(until.unwrap_or_else(tokio::time::Instant::now)), if until.is_some() => {}
        }
    }
}

/// Hands frames over in their order. What has to arrive is waited for; from the first one on that did not, those are given back.
fn send(far: &Front, front: &str, sid: &str, frames: Vec<Frame>) -> Vec<Frame> {
    let mut unsent = Vec::new();
    for frame in frames {
        let must_arrive = frame.class == Class::Result && matches!(frame.message, Message::Text(_));
        if must_arrive && !unsent.is_empty() {
            unsent.push(frame);
            continue;
        }
        let Some(bytes) = packed(far, sid, &frame) else {
            continue;
        };
        let arrived = if must_arrive {
            far.hand_to_front(front, bytes)
        } else {
            far.tell_front(front, bytes).map(|()| true)
        };
        let arrived = arrived.unwrap_or_else(|error| {
            tracing::debug!(%front, "a client of another front was not told: {error}");
            false
        });
        if must_arrive && !arrived {
            unsent.push(frame);
        }
    }
    unsent
}

/// Kind, class, length of the client's name, the name, and what it gets.
fn message(kind: u8, class: Class, sid: &str, content: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(sid.len()).ok()?;
    let mut out = vec![kind, class.code()];
    out.extend(length.to_le_bytes());
    out.extend(sid.as_bytes());
    out.extend(content);
    Some(out)
}

fn packed(far: &Front, sid: &str, frame: &Frame) -> Option<Vec<u8>> {
    match &frame.message {
        Message::Text(text) if text.starts_with(WITH_FILES) => {
            let whole = json::parse(text).ok()?;
            match far.offer_files(&whole) {
                Ok(files) if files.is_empty() => {}
                Ok(files) => {
                    let frame_with_files = FrameWithFiles {
                        frame: whole,
                        files,
                    };
                    let both = serde_json::to_vec(&frame_with_files).ok()?;
                    return message(FILES, frame.class, sid, &both);
                }
                Err(why) => tracing::warn!("files for another front are not there: {why}"),
            }
            message(TEXT, frame.class, sid, text.as_bytes())
        }
        Message::Text(text) => message(TEXT, frame.class, sid, text.as_bytes()),
        Message::Binary(bytes) => message(BINARY, frame.class, sid, bytes),
        _ => None,
    }
}

/// The parts of what [`message`] made on another front.
struct RelayedMessage<'a> {
    kind: u8,
    class: Class,
    sid: &'a str,
    content: &'a [u8],
}

impl<'a> RelayedMessage<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (&[kind, class, low, high], rest) = bytes.split_first_chunk()?;
        let (sid, content) = rest.split_at_checked(u16::from_le_bytes([low, high]).into())?;
        Some(Self {
            kind,
            class: Class::of_code(class)?,
            sid: std::str::from_utf8(sid).ok()?,
            content,
        })
    }

    fn text(&self) -> Option<&'a str> {
        std::str::from_utf8(self.content).ok()
    }
}

/// Hands a client what another front has for it; tells whether the client is connected here. May wait for files; call it in the order in which messages came.
pub fn deliver(app: &App, bytes: &[u8]) -> bool {
    let delivered = RelayedMessage::read(bytes).and_then(|told| {
        let message = match told.kind {
            TEXT => Message::Text(told.text()?.to_owned().into()),
            BINARY => Message::Binary(Bytes::copy_from_slice(told.content)),
            FILES => Message::Text(with_files(app, told.text()?)?),
            _ => return None,
        };
        Some(app.hub.deliver(told.sid, Frame::new(message, told.class)))
    });
    if delivered.is_none() {
        tracing::debug!("another front sent what makes no sense");
    }
    delivered.unwrap_or(false)
}

/// A frame whose files are here now, by the names that they have here.
fn with_files(app: &App, text: &str) -> Option<Utf8Bytes> {
    let FrameWithFiles { mut frame, files } = typed::from_value(&json::parse(text).ok()?).ok()?;
    let far = app.far.as_ref()?;
    if let Err(why) = far.bring_files(&files, &mut frame) {
        // The history brings them when it is asked for.
        tracing::warn!("files of another front's job did not come: {why}");
    }
    Some(json::to_string(&frame).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_read_again() {
        let bytes = message(BINARY, Class::Preview, "someone", &[1, 2, 3]).unwrap();
        let told = RelayedMessage::read(&bytes).unwrap();
        assert_eq!((told.kind, told.class), (BINARY, Class::Preview));
        assert_eq!((told.sid, told.content), ("someone", &[1, 2, 3][..]));
        for end in 0..11 {
            assert!(RelayedMessage::read(&bytes[..end]).is_none(), "{end}");
        }
        assert!(RelayedMessage::read(&[TEXT, 9, 0, 0]).is_none());
        assert!(RelayedMessage::read(&[TEXT, 0, 1, 0, 0xff]).is_none());
    }
}
