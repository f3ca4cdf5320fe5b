//! The messages that history keeps about a prompt: `[event, data]` pairs.
//!
//! They are written when a prompt ends and read for years, so their shape is that of the store and stands here; the server
//! sends the same data in its frames.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fresco_graph::{Map, Value, map};

use crate::event::Failure;

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
