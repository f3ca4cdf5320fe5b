//! Messages of the former version that may still wait in the stream: events and outcomes of runs, for a front that was away while it and its
//! workers were brought up to date. Nothing else of that version is read.

use std::sync::Arc;

use fresco_engine::{EventKind, JobEnd, JobOutcome};
use fresco_graph::{Map, Value, typed};
use serde::Deserialize;

use super::ProtocolError;
use super::jobs::{RunEvent, RunMessage, RunOutcome};
use crate::content::FileRef;

/// The version that is read here.
pub(super) const PROTOCOL: i64 = 1;

#[derive(Deserialize)]
struct FormerMessage {
    n: u64,
    session: Arc<str>,
    #[serde(default)]
    events: Vec<Value>,
    outcome: Option<FormerOutcome>,
}

#[derive(Deserialize)]
struct FormerOutcome {
    success: bool,
    interrupted: bool,
    outputs: Map,
    meta: Map,
    messages: Vec<Value>,
    files: Option<Vec<FileRef>>,
    offered: Option<Arc<str>>,
    returned: Option<FormerReturned>,
}

#[derive(Deserialize)]
struct FormerReturned {
    lost: bool,
    why: String,
}

pub(super) fn run_message(value: &Value) -> Result<RunMessage, ProtocolError> {
    let message: FormerMessage = typed::from_value(value).map_err(ProtocolError::garbage)?;
    let events = message.events.iter().map(event).collect::<Result<_, _>>()?;
    Ok(RunMessage {
        number: message.n,
        session: message.session,
        events,
        outcome: message.outcome.map(FormerOutcome::outcome),
    })
}

impl FormerOutcome {
    fn outcome(self) -> RunOutcome {
        RunOutcome {
            outcome: JobOutcome {
                end: match self.returned {
                    Some(FormerReturned { lost: true, why }) => JobEnd::Lost(why),
                    Some(FormerReturned { lost: false, why }) => JobEnd::Refused(why),
                    None if self.interrupted => JobEnd::Interrupted,
                    None if self.success => JobEnd::Finished,
                    None => JobEnd::Failed,
                },
                outputs: self.outputs,
                meta: self.meta,
                messages: self.messages,
            },
            files: self.files.unwrap_or_default(),
            offered: self.offered,
        }
    }
}

/// An event was one object, with its kind among its fields.
fn event(value: &Value) -> Result<RunEvent, ProtocolError> {
    let garbage = || ProtocolError::garbage("an event has no kind");
    let mut fields = value.as_map().cloned().ok_or_else(garbage)?;
    let kind = fields.shift_remove("kind");
    let kind = kind.as_ref().and_then(Value::as_str).ok_or_else(garbage)?;
    let files = fields.shift_remove("files").unwrap_or_default();
    let files: Option<Vec<FileRef>> = typed::from_value(&files).map_err(ProtocolError::garbage)?;
    if let Some(finished) = fields.shift_remove("finished") {
        let state = if finished.truthy() {
            "finished"
        } else {
            "running"
        };
        fields.insert("state".into(), state.into());
    }
    let event = Value::from(Map::from_iter([(Arc::from(kind), fields.into())]));
    let event: EventKind = typed::from_value(&event).map_err(ProtocolError::garbage)?;
    Ok(RunEvent {
        event,
        files: files.unwrap_or_default(),
    })
}
