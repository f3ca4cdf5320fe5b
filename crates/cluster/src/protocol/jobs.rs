//! A job on its way to a worker, and what comes back about its run.

use std::sync::Arc;

use fresco_engine::{EventKind, JobOutcome, NodeIds, RunJob};
use fresco_graph::{Preview, PreviewFormat, typed};
use serde::{Deserialize, Serialize};

use super::alive::TaskName;
use super::{ProtocolError, decode, former, parse, text};
use crate::connection::is_word;
use crate::content::{FileRef, ModelEntry};

/// Front to worker: run this.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobMessage {
    pub name: TaskName,
    /// Whom it is meant for: a worker that began anew since does not take it.
    pub session: Arc<str>,
    pub job: RunJob,
    /// Files that the worker has to fetch first.
    pub inputs: Vec<FileRef>,
    /// Model files that the job names and the front has itself: a worker that has another one of such a name does not run it.
    pub models: Vec<ModelEntry>,
}

impl JobMessage {
    /// The name of the front becomes a part of subjects.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let message: Self = decode(bytes)?;
        if is_word(&message.name.front) {
            Ok(message)
        } else {
            Err(ProtocolError::garbage("front is not a name"))
        }
    }
}

/// What a worker says to a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunAnswer {
    Accepted,
    /// It runs something else, or is kept for another front, or is about to end.
    Busy(String),
    /// It cannot run this job: nodes or models are missing, or it is not understood.
    Refused(String),
}

/// Worker to front, numbered and kept in the stream: events of a run, and its end in the last message.
#[derive(Clone, Serialize, Deserialize)]
pub struct RunMessage {
    /// 1, 2, 3, ...
    pub number: u64,
    pub session: Arc<str>,
    pub events: Vec<RunEvent>,
    pub outcome: Option<RunOutcome>,
}

impl RunMessage {
    /// Also of a worker of the former version: its messages wait in the stream for a front that is newer now.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolError> {
        match decode(bytes) {
            Err(ProtocolError::Version(version)) if version.protocol == former::PROTOCOL => {
                former::run_message(&parse(bytes)?)
            }
            read => read,
        }
    }
}

/// An event of a run, and the files that it names.
#[derive(Clone, Serialize, Deserialize)]
pub struct RunEvent {
    pub event: EventKind,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileRef>,
}

/// The end of a run, the last thing that is said about it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunOutcome {
    pub outcome: JobOutcome,
    /// Files that the outcome names.
    pub files: Vec<FileRef>,
    /// The front that may have the worker next; none: whoever comes first.
    pub offered: Option<Arc<str>>,
}

/// What stands before the bytes of a picture.
#[derive(Serialize, Deserialize)]
struct PictureHead {
    ids: NodeIds,
    format: PictureFormat,
    /// How far the node is, where the picture came with that.
    bar: Option<(f64, f64)>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PictureFormat {
    Jpeg,
    Png,
}

/// A picture on the way: a line of JSON, then its bytes. None for other events.
pub fn encode_picture(kind: &EventKind) -> Option<Vec<u8>> {
    let (ids, bar, preview) = match kind {
        EventKind::Preview { ids, preview } => (ids, None, preview),
        EventKind::Progress {
            ids,
            value,
            max,
            preview: Some(preview),
        } => (ids, Some((*value, *max)), preview),
        _ => return None,
    };
    let mut bytes = text(&PictureHead {
        ids: ids.clone(),
        format: match preview.format {
            PreviewFormat::Jpeg => PictureFormat::Jpeg,
            PreviewFormat::Png => PictureFormat::Png,
        },
        bar,
    });
    bytes.push(b'\n');
    bytes.extend_from_slice(&preview.bytes);
    Some(bytes)
}

pub fn decode_picture(bytes: &[u8]) -> Result<EventKind, ProtocolError> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let end = end.ok_or_else(|| ProtocolError::garbage("a picture has no head"))?;
    let head: PictureHead =
        typed::from_value(&parse(&bytes[..end])?).map_err(ProtocolError::garbage)?;
    let ids = head.ids;
    let preview = Preview {
        format: match head.format {
            PictureFormat::Jpeg => PreviewFormat::Jpeg,
            PictureFormat::Png => PreviewFormat::Png,
        },
        bytes: bytes[end + 1..].into(),
    };
    Ok(match head.bar {
        None => EventKind::Preview { ids, preview },
        Some((value, max)) => EventKind::Progress {
            ids,
            value,
            max,
            preview: Some(preview),
        },
    })
}
