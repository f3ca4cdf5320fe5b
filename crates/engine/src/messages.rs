//! The messages that history keeps about a prompt: `[event, data]` pairs.
//!
//! They are written when a prompt ends and read for years, so their shape is that of the store and stands here; the server
//! sends the same data in its frames.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fresco_graph::{Map, Value, map};

use crate::event::{EventKind, Failure};
use crate::job::JobEnd;
use crate::watch::Watch;

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as i64)
}

fn strings(ids: &[Arc<str>]) -> Vec<Value> {
    ids.iter().map(Value::from).collect()
}

fn message(event: &str, data: Map) -> Value {
    vec![Value::from(event), data.into()].into()
}

pub(crate) fn started(prompt_id: &Arc<str>, timestamp: i64) -> Value {
    let data = map! {"prompt_id" => prompt_id, "timestamp" => timestamp};
    message("execution_start", data)
}

pub(crate) fn cached(prompt_id: &Arc<str>, nodes: &[Arc<str>], timestamp: i64) -> Value {
    let data = map! {"nodes" => strings(nodes), "prompt_id" => prompt_id, "timestamp" => timestamp};
    message("execution_cached", data)
}

pub(crate) fn succeeded(prompt_id: &Arc<str>, timestamp: i64) -> Value {
    let data = map! {"prompt_id" => prompt_id, "timestamp" => timestamp};
    message("execution_success", data)
}

pub(crate) fn failed(prompt_id: &str, failure: &Failure) -> Value {
    let mut data = failure_data(prompt_id, failure);
    data.insert("timestamp".into(), failure.timestamp.into());
    message("execution_error", data)
}

pub(crate) fn interrupted(
    prompt_id: &str,
    node: &str,
    class: &str,
    executed: &[Arc<str>],
    timestamp: i64,
) -> Value {
    let data = map! {
        "prompt_id" => prompt_id,
        "node_id" => node,
        "node_type" => class,
        "executed" => strings(executed),
        "timestamp" => timestamp,
    };
    message("execution_interrupted", data)
}

/// `execution_error` without its timestamp.
pub fn failure_data(prompt_id: &str, failure: &Failure) -> Map {
    map! {
        "prompt_id" => prompt_id,
        "node_id" => &failure.node,
        "node_type" => &failure.class,
        "executed" => strings(&failure.executed),
        "exception_message" => failure.message.as_str(),
        "exception_type" => failure.kind.as_str(),
        "traceback" => failure.trace.clone(),
        "current_inputs" => failure.inputs.clone(),
        "current_outputs" => strings(&failure.outputs),
    }
}

/// The messages of one run, each also an event.
pub(crate) struct RunMessages {
    watch: Arc<Watch>,
    pub(crate) list: Vec<Value>,
}

impl RunMessages {
    pub(crate) fn begin(watch: &Arc<Watch>) -> Self {
        let timestamp = now_ms();
        let mut messages = Self {
            watch: watch.clone(),
            list: Vec::new(),
        };
        let message = started(&watch.prompt_id, timestamp);
        messages.record(message, EventKind::Start { timestamp });
        messages
    }

    fn record(&mut self, message: Value, kind: EventKind) {
        self.list.push(message);
        self.watch.emit(kind);
    }

    pub(crate) fn cached(&mut self, nodes: Vec<Arc<str>>) {
        let timestamp = now_ms();
        let message = cached(&self.watch.prompt_id, &nodes, timestamp);
        self.record(message, EventKind::Cached { nodes, timestamp });
    }

    pub(crate) fn finished(&mut self) -> JobEnd {
        let timestamp = now_ms();
        let message = succeeded(&self.watch.prompt_id, timestamp);
        self.record(message, EventKind::Success { timestamp });
        JobEnd::Finished
    }

    pub(crate) fn failed(&mut self, failure: Failure) -> JobEnd {
        let message = failed(&self.watch.prompt_id, &failure);
        self.record(message, EventKind::Error(Arc::new(failure)));
        JobEnd::Failed
    }

    pub(crate) fn interrupted(
        &mut self,
        node: Arc<str>,
        class: Arc<str>,
        executed: Vec<Arc<str>>,
    ) -> JobEnd {
        let timestamp = now_ms();
        let prompt_id = &self.watch.prompt_id;
        let message = interrupted(prompt_id, &node, &class, &executed, timestamp);
        let kind = EventKind::Interrupted {
            node,
            class,
            executed,
            timestamp,
        };
        self.record(message, kind);
        JobEnd::Interrupted
    }
}
