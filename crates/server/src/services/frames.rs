//! Events as clients see them: JSON messages and binary frames.

use std::fmt::Write as _;

use bytes::{BufMut, Bytes, BytesMut};
use fresco_engine::{Event, EventKind, Failure, NodeIds, NodeProgress, NodeState, failure_data};
use fresco_graph::{Preview, PreviewFormat, Value, json, map};
use serde::Serialize;

use crate::http::response::wire_text;

/// Who gets a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The socket that submitted the prompt; nobody if it gave no id.
    Client,
    /// That socket, or everyone if the prompt gave no id.
    ClientOrAll,
    All,
}

/// A message with its address, not yet a frame.
pub(crate) struct Message {
    pub(crate) kind: std::sync::Arc<str>,
    pub(crate) data: Value,
    pub(crate) target: Target,
}

/// A number as Python prints it in these messages: whole values without a point.
pub(crate) fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        Value::Int(value as i128)
    } else {
        Value::Float(value)
    }
}

/// The JSON message an event becomes. Progress snapshots and previews have their own functions.
pub(crate) fn message(event: &Event) -> Option<Message> {
    let id = event.prompt_id.as_ref().map_or(Value::Null, Value::from);
    let list = |ids: &[std::sync::Arc<str>]| ids.iter().map(Value::from).collect::<Vec<_>>();
    let (kind, target, data) = match &event.kind {
        EventKind::Status { remaining } => ("status", Target::All, status_data(*remaining, None)),
        EventKind::Start { timestamp } => {
            ("execution_start", Target::Client, map! {"prompt_id" => id, "timestamp" => *timestamp}.into())
        }
        EventKind::Cached { nodes, timestamp } => (
            "execution_cached",
            Target::Client,
            map! {"nodes" => list(nodes), "prompt_id" => id, "timestamp" => *timestamp}.into(),
        ),
        EventKind::Executing { node, display } => (
            "executing",
            Target::Client,
            map! {"node" => node, "display_node" => display, "prompt_id" => id}.into(),
        ),
        EventKind::Ended => ("executing", Target::Client, map! {"node" => Value::Null, "prompt_id" => id}.into()),
        EventKind::Progress { ids, value, max, .. } => (
            "progress",
            Target::ClientOrAll,
            map! {
                "value" => number(value.min(*max)),
                "max" => number(*max),
                "prompt_id" => id,
                "node" => &ids.node,
            }
            .into(),
        ),
        EventKind::Executed { node, display, output } => (
            "executed",
            Target::Client,
            map! {"node" => node, "display_node" => display, "output" => output.clone(), "prompt_id" => id}.into(),
        ),
        EventKind::Success { timestamp } => {
            ("execution_success", Target::Client, map! {"prompt_id" => id, "timestamp" => *timestamp}.into())
        }
        EventKind::Error(failure) => {
            let id = event.prompt_id.as_deref().unwrap_or_default();
            ("execution_error", Target::Client, error_data(id, failure))
        }
        EventKind::Blocked { node, class, executed, message } => (
            "execution_error",
            Target::ClientOrAll,
            map! {
                "prompt_id" => id,
                "node_id" => node,
                "node_type" => class,
                "executed" => list(executed),
                "exception_message" => format!("Execution Blocked: {message}"),
                "exception_type" => "ExecutionBlocked",
                "traceback" => Vec::<Value>::new(),
                "current_inputs" => Vec::<Value>::new(),
                "current_outputs" => Vec::<Value>::new(),
            }
            .into(),
        ),
        EventKind::Interrupted { node, class, executed, timestamp } => (
            "execution_interrupted",
            Target::ClientOrAll,
            map! {
                "prompt_id" => id,
                "node_id" => node,
                "node_type" => class,
                "executed" => list(executed),
                "timestamp" => *timestamp,
            }
            .into(),
        ),
        EventKind::Custom { event: name, data, client } => {
            let target = if client.is_some() { Target::Client } else { Target::All };
            return Some(Message { kind: name.clone(), data: data.clone(), target });
        }
        EventKind::NodeProgress(_)
        | EventKind::Preview { .. }
        | EventKind::Text { .. }
        | EventKind::Bytes { .. }
        | EventKind::Downgraded { .. }
        | EventKind::Queue { .. } => return None,
    };
    Some(Message {
        kind: kind.into(),
        data,
        target,
    })
}

pub(crate) fn status_data(remaining: usize, sid: Option<&str>) -> Value {
    let mut data = map! {"status" => map! {"exec_info" => map! {"queue_remaining" => remaining}}};
    if let Some(sid) = sid {
        data.insert("sid".into(), sid.into());
    }
    data.into()
}

fn error_data(prompt_id: &str, failure: &Failure) -> Value {
    let mut data = failure_data(prompt_id, failure);
    data.insert("timestamp".into(), failure.timestamp.into());
    data.into()
}

/// `{"type":KIND,"data":DATA}`; clients tell text from pictures by the first bytes, so `type` comes first.
pub(crate) fn text_frame(kind: &str, data: &Value) -> String {
    let mut out = String::with_capacity(128);
    begin(&mut out, kind);
    json::write(&mut out, data, json::WIRE);
    out.push('}');
    out
}

/// The same with data of a wire type.
pub(crate) fn typed_frame<T: Serialize>(kind: &str, data: &T) -> String {
    let mut out = String::with_capacity(128);
    begin(&mut out, kind);
    out.push_str(&wire_text(data));
    out.push('}');
    out
}

fn begin(out: &mut String, kind: &str) {
    out.push_str("{\"type\":");
    json::write_string(out, kind, false);
    out.push_str(",\"data\":");
}

/// `progress_state`, written directly: a snapshot of a large graph is the biggest message there is.
pub(crate) fn progress_frame<'a>(
    prompt_id: &str,
    nodes: impl ExactSizeIterator<Item = &'a NodeProgress>,
) -> String {
    let mut out = String::with_capacity(64 + nodes.len() * 200);
    begin(&mut out, "progress_state");
    out.push_str("{\"prompt_id\":");
    json::write_string(&mut out, prompt_id, false);
    out.push_str(",\"nodes\":{");
    for (i, node) in nodes.enumerate() {
        if i > 0 {
            out.push(',');
        }
        let ids = &node.ids;
        json::write_string(&mut out, &ids.node, false);
        out.push_str(":{\"value\":");
        write_number(&mut out, node.value);
        out.push_str(",\"max\":");
        write_number(&mut out, node.max);
        out.push_str(match node.state {
            NodeState::Running => ",\"state\":\"running\"",
            NodeState::Finished => ",\"state\":\"finished\"",
        });
        for (key, text) in [
            (",\"node_id\":", Some(&*ids.node)),
            (",\"prompt_id\":", Some(prompt_id)),
            (",\"display_node_id\":", Some(&*ids.display)),
            (",\"parent_node_id\":", ids.parent.as_deref()),
            (",\"real_node_id\":", Some(&*ids.real)),
        ] {
            out.push_str(key);
            match text {
                Some(text) => json::write_string(&mut out, text, false),
                None => out.push_str("null"),
            }
        }
        out.push('}');
    }
    out.push_str("}}}");
    out
}

fn write_number(out: &mut String, value: f64) {
    match number(value) {
        Value::Int(i) => {
            let _ = write!(out, "{i}");
        }
        value => json::write(out, &value, json::WIRE),
    }
}

/// Frame 1: picture format and picture.
pub(crate) fn preview_frame(preview: &Preview) -> Bytes {
    let mut out = BytesMut::with_capacity(8 + preview.bytes.len());
    out.put_u32(1);
    out.put_u32(match preview.format {
        PreviewFormat::Jpeg => 1,
        PreviewFormat::Png => 2,
    });
    out.put_slice(&preview.bytes);
    out.freeze()
}

/// A frame of any kind with bytes of a pack's own.
pub(crate) fn bytes_frame(event: u32, bytes: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(4 + bytes.len());
    out.put_u32(event);
    out.put_slice(bytes);
    out.freeze()
}

/// Frame 4: what the picture belongs to, and the picture.
pub(crate) fn described_preview_frame(prompt_id: &str, ids: &NodeIds, preview: &Preview) -> Bytes {
    let meta = map! {
        "node_id" => &ids.node,
        "prompt_id" => prompt_id,
        "display_node_id" => &ids.display,
        "parent_node_id" => ids.parent.clone(),
        "real_node_id" => &ids.real,
        "image_type" => match preview.format {
            PreviewFormat::Jpeg => "image/jpeg",
            PreviewFormat::Png => "image/png",
        },
    };
    let meta = json::to_string(&meta.into());
    let mut out = BytesMut::with_capacity(8 + meta.len() + preview.bytes.len());
    out.put_u32(4);
    out.put_u32(meta.len() as u32);
    out.put_slice(meta.as_bytes());
    out.put_slice(&preview.bytes);
    out.freeze()
}

/// Frame 3: text for a node.
pub(crate) fn node_text_frame(node: &str, text: &str) -> Bytes {
    let mut out = BytesMut::with_capacity(8 + node.len() + text.len());
    out.put_u32(3);
    out.put_u32(node.len() as u32);
    out.put_slice(node.as_bytes());
    out.put_slice(text.as_bytes());
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> NodeIds {
        NodeIds {
            node: "4.0.0.2".into(),
            display: "4".into(),
            parent: Some("4".into()),
            real: "4".into(),
        }
    }

    #[test]
    fn type_comes_first_and_nan_is_null() {
        let text = text_frame("x", &map! {"a" => f64::NAN}.into());
        assert_eq!(text, r#"{"type":"x","data":{"a":null}}"#);
    }

    #[test]
    fn progress_state_is_json_of_the_right_shape() {
        let node = NodeProgress {
            ids: ids(),
            state: NodeState::Running,
            value: 2.5,
            max: 10.0,
        };
        let text = progress_frame(
            "p\"1",
            [
                node.clone(),
                NodeProgress {
                    state: NodeState::Finished,
                    ..node
                },
            ]
            .iter(),
        );
        let value = json::parse(&text).unwrap();
        assert_eq!(value.get("type").unwrap().as_str(), Some("progress_state"));
        assert!(text.contains(
            r#""4.0.0.2":{"value":2.5,"max":10,"state":"running","node_id":"4.0.0.2","prompt_id":"p\"1","display_node_id":"4","parent_node_id":"4","real_node_id":"4"}"#
        ));
    }

    #[test]
    fn binary_frames_are_big_endian() {
        let preview = Preview {
            format: PreviewFormat::Png,
            bytes: (*b"PNG").into(),
        };
        assert_eq!(&preview_frame(&preview)[..], b"\0\0\0\x01\0\0\0\x02PNG");
        assert_eq!(
            &node_text_frame("12", "hi")[..],
            b"\0\0\0\x03\0\0\0\x0212hi"
        );
        let frame = described_preview_frame("p", &ids(), &preview);
        let length = u32::from_be_bytes(frame[4..8].try_into().unwrap()) as usize;
        assert_eq!(
            std::str::from_utf8(&frame[8..8 + length]).unwrap(),
            r#"{"node_id":"4.0.0.2","prompt_id":"p","display_node_id":"4","parent_node_id":"4","real_node_id":"4","image_type":"image/png"}"#
        );
        assert_eq!(&frame[8 + length..], b"PNG");
    }
}
