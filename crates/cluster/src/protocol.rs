//! What fronts and workers say to each other: one serde type for each direction, in one version.
//!
//! | module | who to whom |
//! |---|---|
//! | [`alive`] | workers and fronts to all fronts: signs of life |
//! | [`control`] | front to worker: requests about itself, its memory and its models, with their answers |
//! | [`memory`] | what memory rooms answer, also to clients of the API |
//! | [`models`] | the part of [`control`] about model files, which the command line uses too |
//! | [`jobs`] | front to worker: a job; worker to front: what becomes of it |
//! | [`fronts`] | front to front: questions about queues and histories, with their answers |
//! | [`former`] | what a worker of the former version left in the stream |
//!
//! What comes from the other side is never trusted to be whole: each field has a type and a limit, and a message that is not understood is an
//! error that says which field. New fields may be added; a change of meaning needs another [`PROTOCOL`].

pub mod alive;
pub mod control;
pub mod former;
pub mod fronts;
pub mod jobs;
pub mod memory;
pub mod models;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fresco_graph::{Value, json, typed};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::connection::BrokerError;
use crate::content::Objects;
use crate::objects::ContentHash;

/// Both sides of a message must have the same.
pub const PROTOCOL: i64 = 2;
/// The version that wrote no number into most of its messages.
const UNNUMBERED: i64 = 1;
/// The version of this program, for people who have to bring two machines together.
pub const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// Between two signs of life of a process. All other times of who is there and who is gone are multiples of it.
pub const BEAT: Duration = Duration::from_secs(1);
/// A process that was silent for longer gets no job and is asked nothing.
pub const SILENT: Duration = BEAT.saturating_mul(4);
/// A process that was silent for longer has lost what it had: its job, its clients.
pub const LOST: Duration = BEAT.saturating_mul(10);
/// A process that was silent for longer is forgotten.
pub const GONE: Duration = BEAT.saturating_mul(30);

/// Bytes of a message that is read at all; larger ones come by content and are held against this too.
pub const LARGEST: u64 = 256 << 20;
/// No reference to a content is longer.
const LONGEST_REFERENCE: usize = 200;

/// The other side speaks another version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherVersion {
    pub protocol: i64,
    /// The version of the other side's program; empty where it does not say.
    pub program: Arc<str>,
}

impl fmt::Display for OtherVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = match &*self.program {
            "" => String::new(),
            program => format!(" (Fresco {program})"),
        };
        let older = if self.protocol < PROTOCOL {
            "the other"
        } else {
            "this"
        };
        write!(
            f,
            "the other side speaks version {}{program} of the cluster protocol and this one version {PROTOCOL} (Fresco {PROGRAM}); \
             use the same program on both: update {older} one",
            self.protocol
        )
    }
}

/// Why a message is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("{0}")]
    Garbage(String),
    #[error("{0}")]
    Version(OtherVersion),
}

impl ProtocolError {
    fn garbage(why: impl fmt::Display) -> Self {
        Self::Garbage(why.to_string())
    }
}

/// The answer of the other side, or in words why it refuses.
pub type RequestResult<T> = Result<T, String>;

/// A message with the version that it is in. The names are those that every version reads.
#[derive(Serialize)]
struct Sent<'a, T> {
    protocol: i64,
    version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

#[derive(Deserialize)]
struct Received<T> {
    body: Option<T>,
    error: Option<String>,
}

/// The part of a message that every version has, or has not.
#[derive(Deserialize)]
struct Head {
    protocol: Option<i64>,
    version: Option<Arc<str>>,
}

/// The text of a message. What is written here are own types, whose keys are texts: it does not fail.
fn text<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_else(|error| {
        tracing::error!("a message cannot be written: {error}");
        Vec::new()
    })
}

/// A message of this version.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    encode_answer::<&T>(&Ok(message))
}

/// An answer of this version. A refusal is where every version looks for it.
pub fn encode_answer<T: Serialize>(answer: &RequestResult<T>) -> Vec<u8> {
    text(&Sent {
        protocol: PROTOCOL,
        version: PROGRAM,
        body: answer.as_ref().ok(),
        error: answer.as_ref().err().map(String::as_str),
    })
}

/// A message of any version as an object.
fn parse(bytes: &[u8]) -> Result<Value, ProtocolError> {
    let value = json::parse_bytes(bytes)
        .map_err(|e| ProtocolError::Garbage(format!("it is not JSON: {e}")))?;
    match value {
        Value::Map(_) => Ok(value),
        _ => Err(ProtocolError::garbage("it is not an object")),
    }
}

/// Holds the version of a message against ours.
fn check_version(message: &Value) -> Result<(), ProtocolError> {
    let head: Head = typed::from_value(message).map_err(ProtocolError::garbage)?;
    let protocol = head.protocol.unwrap_or(UNNUMBERED);
    if protocol == PROTOCOL {
        return Ok(());
    }
    Err(ProtocolError::Version(OtherVersion {
        protocol,
        program: head.version.unwrap_or_default(),
    }))
}

fn received<T: DeserializeOwned>(bytes: &[u8]) -> Result<Received<T>, ProtocolError> {
    let message = parse(bytes)?;
    check_version(&message)?;
    typed::from_value(&message).map_err(ProtocolError::garbage)
}

/// Reads a message of this version.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ProtocolError> {
    let message = received(bytes)?;
    let none = || ProtocolError::garbage("it has no body");
    message.body.ok_or_else(none)
}

/// Reads an answer of this version.
pub fn decode_answer<T: DeserializeOwned>(bytes: &[u8]) -> Result<RequestResult<T>, ProtocolError> {
    let Received { body, error } = received(bytes)?;
    match (body, error) {
        (_, Some(why)) => Ok(Err(why)),
        (Some(body), None) => Ok(Ok(body)),
        (None, None) => Err(ProtocolError::garbage(
            "it has neither an answer nor an error",
        )),
    }
}

/// A message that is only a reference to the content that has it.
#[derive(Serialize, Deserialize)]
struct Reference {
    content: ContentHash,
}

/// The message itself, or a reference to it where it has more bytes than the server takes.
pub fn shorten(
    objects: &dyn Objects,
    message: Vec<u8>,
    longest: usize,
) -> Result<Vec<u8>, BrokerError> {
    if message.len() <= longest {
        return Ok(message);
    }
    let content = objects.put_bytes(&message)?;
    Ok(text(&Reference { content }))
}

/// The content of a message that was too large to be sent as it is; none if it is there itself.
pub fn whole(objects: &dyn Objects, payload: &[u8]) -> Result<Option<Vec<u8>>, BrokerError> {
    // Only a message that is nothing but a reference is that short.
    if payload.len() > LONGEST_REFERENCE {
        return Ok(None);
    }
    let Ok(value) = parse(payload) else {
        return Ok(None);
    };
    if value.get("content").is_none() {
        return Ok(None);
    }
    let reference: Reference =
        typed::from_value(&value).map_err(|e| BrokerError::failed("read a message", e))?;
    let mut bytes = Vec::new();
    let mut take = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    };
    objects.read(&reference.content, LARGEST, &mut take)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests;
