//! Events of a run as messages. Pictures travel apart: they may be lost, nothing else may.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fresco_engine::{EventKind, Failure, NodeIds, NodeProgress, NodeState};
use fresco_graph::{Map, Preview, PreviewFormat, Value, map};

use crate::wire::{Fields, WireError, texts};

fn ids(ids: &NodeIds) -> Map {
    let mut message = map! {"node" => &ids.node, "display" => &ids.display, "real" => &ids.real};
    if let Some(parent) = &ids.parent {
        message.insert("parent".into(), parent.into());
    }
    message
}

fn read_ids(value: &Value) -> Result<NodeIds, WireError> {
    let fields = Fields(value);
    Ok(NodeIds {
        node: fields.text("node")?,
        display: fields.text("display")?,
        parent: fields.text_or_none("parent")?,
        real: fields.text("real")?,
    })
}

/// An event as JSON; none for what is the front's own affair, or a picture.
pub(crate) fn encode(kind: &EventKind) -> Option<Map> {
    Some(match kind {
        EventKind::Status { .. }
        | EventKind::Queue { .. }
        | EventKind::Ended
        | EventKind::Preview { .. } => return None,
        EventKind::Start { timestamp } => map! {"kind" => "start", "timestamp" => *timestamp},
        EventKind::Cached { nodes, timestamp } => {
            map! {"kind" => "cached", "nodes" => texts(nodes), "timestamp" => *timestamp}
        }
        EventKind::Executing { node, display } => {
            map! {"kind" => "executing", "node" => node, "display" => display}
        }
        EventKind::NodeProgress(progress) => map! {
            "kind" => "node_progress",
            "ids" => ids(&progress.ids),
            "finished" => progress.state == NodeState::Finished,
            "value" => progress.value,
            "max" => progress.max,
        },
        EventKind::Progress {
            ids: of,
            value,
            max,
            ..
        } => map! {"kind" => "progress", "ids" => ids(of), "value" => *value, "max" => *max},
        EventKind::Executed {
            node,
            display,
            output,
        } => map! {
            "kind" => "executed", "node" => node, "display" => display, "output" => output.clone(),
        },
        EventKind::Success { timestamp } => map! {"kind" => "success", "timestamp" => *timestamp},
        EventKind::Error(failure) => map! {
            "kind" => "error",
            "node" => &failure.node,
            "class" => &failure.class,
            "executed" => texts(&failure.executed),
            "message" => &failure.message,
            "type" => &failure.kind,
            "trace" => failure.trace.iter().map(Value::from).collect::<Vec<_>>(),
            "inputs" => failure.inputs.clone(),
            "outputs" => texts(&failure.outputs),
            "timestamp" => failure.timestamp,
        },
        EventKind::Blocked {
            node,
            class,
            executed,
            message,
        } => map! {
            "kind" => "blocked", "node" => node, "class" => class,
            "executed" => texts(executed), "message" => message,
        },
        EventKind::Interrupted {
            node,
            class,
            executed,
            timestamp,
        } => map! {
            "kind" => "interrupted", "node" => node, "class" => class,
            "executed" => texts(executed), "timestamp" => *timestamp,
        },
        EventKind::Downgraded { message } => map! {"kind" => "downgraded", "message" => message},
        EventKind::Text { node, text } => map! {"kind" => "text", "node" => node, "text" => text},
        EventKind::Bytes {
            event,
            bytes,
            client,
        } => {
            let text = BASE64_STANDARD.encode(bytes);
            let mut message = map! {"kind" => "bytes", "event" => *event, "bytes" => text};
            if let Some(client) = client {
                message.insert("client".into(), client.into());
            }
            message
        }
        EventKind::Custom {
            event,
            data,
            client,
        } => {
            let mut message = map! {"kind" => "custom", "event" => event, "data" => data.clone()};
            if let Some(client) = client {
                message.insert("client".into(), client.into());
            }
            message
        }
    })
}

/// `shift`: milliseconds that the front's clock is ahead of the worker's.
pub(crate) fn decode(value: &Value, shift: i64) -> Result<EventKind, WireError> {
    let fields = Fields(value);
    let timestamp = || fields.time("timestamp").map(|at| at.saturating_add(shift));
    let ids = || read_ids(&fields.value("ids"));
    Ok(match &*fields.text("kind")? {
        "start" => EventKind::Start {
            timestamp: timestamp()?,
        },
        "cached" => EventKind::Cached {
            nodes: fields.texts("nodes")?,
            timestamp: timestamp()?,
        },
        "executing" => EventKind::Executing {
            node: fields.text("node")?,
            display: fields.text("display")?,
        },
        "node_progress" => EventKind::NodeProgress(NodeProgress {
            ids: ids()?,
            state: if fields.truth("finished")? {
                NodeState::Finished
            } else {
                NodeState::Running
            },
            value: fields.number("value"),
            max: fields.number("max"),
        }),
        "progress" => EventKind::Progress {
            ids: ids()?,
            value: fields.number("value"),
            max: fields.number("max"),
            preview: None,
        },
        "executed" => EventKind::Executed {
            node: fields.text("node")?,
            display: fields.text("display")?,
            output: fields.value("output"),
        },
        "success" => EventKind::Success {
            timestamp: timestamp()?,
        },
        "error" => EventKind::Error(Arc::new(Failure {
            node: fields.text("node")?,
            class: fields.text("class")?,
            executed: fields.texts("executed")?,
            message: fields.text("message")?.to_string(),
            kind: fields.text("type")?.to_string(),
            trace: fields
                .texts("trace")?
                .iter()
                .map(ToString::to_string)
                .collect(),
            inputs: fields.value("inputs"),
            outputs: fields.texts("outputs")?,
            timestamp: timestamp()?,
        })),
        "blocked" => EventKind::Blocked {
            node: fields.text("node")?,
            class: fields.text("class")?,
            executed: fields.texts("executed")?,
            message: fields.text("message")?,
        },
        "interrupted" => EventKind::Interrupted {
            node: fields.text("node")?,
            class: fields.text("class")?,
            executed: fields.texts("executed")?,
            timestamp: timestamp()?,
        },
        "downgraded" => EventKind::Downgraded {
            message: fields.text("message")?,
        },
        "text" => EventKind::Text {
            node: fields.text("node")?,
            text: fields.text("text")?,
        },
        "bytes" => {
            let event = u32::try_from(fields.whole("event")?);
            let bytes = BASE64_STANDARD.decode(fields.text("bytes")?.as_bytes());
            let (Ok(event), Ok(bytes)) = (event, bytes) else {
                return Err(WireError("a message in bytes is garbled".into()));
            };
            EventKind::Bytes {
                event,
                bytes: bytes.into(),
                client: fields.text_or_none("client")?,
            }
        }
        "custom" => EventKind::Custom {
            event: fields.text("event")?,
            data: fields.value("data"),
            client: fields.text_or_none("client")?,
        },
        other => return Err(WireError(format!("there is no event {other:?}"))),
    })
}

/// Milliseconds between clocks that count as none.
const SAME_CLOCK: i64 = 2000;

/// What to add to a worker's times: nothing where the clocks agree well enough.
pub(crate) fn clock_shift(ahead: i64) -> i64 {
    if ahead.abs() < SAME_CLOCK { 0 } else { ahead }
}

/// Times in messages that history keeps.
pub(crate) fn shift_messages(messages: &mut [Value], shift: i64) {
    if shift == 0 {
        return;
    }
    for message in messages {
        let Some([name, Value::Map(data)]) = message.as_list() else {
            continue;
        };
        let Some(at) = data.get("timestamp").and_then(Value::as_int) else {
            continue;
        };
        let mut data = (**data).clone();
        data.insert("timestamp".into(), (at + i128::from(shift)).into());
        *message = vec![name.clone(), data.into()].into();
    }
}

/// A picture on the way: a line of JSON, then its bytes.
pub(crate) fn encode_picture(of: &NodeIds, bar: Option<(f64, f64)>, preview: &Preview) -> Vec<u8> {
    let format = match preview.format {
        PreviewFormat::Jpeg => "jpeg",
        PreviewFormat::Png => "png",
    };
    let mut head = map! {"ids" => ids(of), "format" => format};
    if let Some((value, max)) = bar {
        head.insert("value".into(), value.into());
        head.insert("max".into(), max.into());
    }
    let mut bytes = crate::wire::bytes(head);
    bytes.push(b'\n');
    bytes.extend_from_slice(&preview.bytes);
    bytes
}

pub(crate) fn decode_picture(bytes: &[u8]) -> Result<EventKind, WireError> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let end = end.ok_or_else(|| WireError("a picture without a head".to_owned()))?;
    let head = crate::wire::parse(&bytes[..end])?;
    let fields = Fields(&head);
    let ids = read_ids(&fields.value("ids"))?;
    let preview = Preview {
        format: match &*fields.text("format")? {
            "jpeg" => PreviewFormat::Jpeg,
            "png" => PreviewFormat::Png,
            _ => return Err(WireError("format is not jpeg or png".to_owned())),
        },
        bytes: bytes[end + 1..].into(),
    };
    let (value, max) = (fields.number("value"), fields.number("max"));
    if value.is_nan() {
        return Ok(EventKind::Preview { ids, preview });
    }
    Ok(EventKind::Progress {
        ids,
        value,
        max,
        preview: Some(preview),
    })
}

#[cfg(test)]
mod tests {
    use fresco_graph::json;

    use super::*;

    fn some_ids() -> NodeIds {
        NodeIds {
            node: "1.2".into(),
            display: "1".into(),
            parent: Some("1".into()),
            real: "1.2".into(),
        }
    }

    #[track_caller]
    fn check(kind: EventKind) {
        let message = Value::from(encode(&kind).expect("it is sent"));
        let text = json::to_string(&message);
        let read = decode(&json::parse(&text).unwrap(), 0).unwrap();
        let again = Value::from(encode(&read).expect("it is sent"));
        assert_eq!(json::to_string(&again), text);
    }

    #[test]
    fn every_event_comes_back_as_it_was() {
        check(EventKind::Start { timestamp: 3 });
        check(EventKind::Cached {
            nodes: vec!["1".into()],
            timestamp: 3,
        });
        check(EventKind::Executing {
            node: "1".into(),
            display: "2".into(),
        });
        for state in [NodeState::Running, NodeState::Finished] {
            check(EventKind::NodeProgress(NodeProgress {
                ids: some_ids(),
                state,
                value: 0.5,
                max: f64::NAN,
            }));
        }
        check(EventKind::Progress {
            ids: some_ids(),
            value: 1.0,
            max: 2.0,
            preview: None,
        });
        check(EventKind::Executed {
            node: "1".into(),
            display: "1".into(),
            output: Value::Null,
        });
        check(EventKind::Success { timestamp: 4 });
        check(EventKind::Error(Arc::new(Failure {
            node: "1".into(),
            class: "X".into(),
            executed: vec![],
            message: "m".into(),
            kind: "k".into(),
            trace: vec!["t".into()],
            inputs: Map::new().into(),
            outputs: vec!["o".into()],
            timestamp: 5,
        })));
        check(EventKind::Blocked {
            node: "1".into(),
            class: "X".into(),
            executed: vec!["2".into()],
            message: "m".into(),
        });
        check(EventKind::Interrupted {
            node: "1".into(),
            class: "X".into(),
            executed: vec![],
            timestamp: 6,
        });
        check(EventKind::Downgraded {
            message: "m".into(),
        });
        check(EventKind::Text {
            node: "1".into(),
            text: "t".into(),
        });
        check(EventKind::Bytes {
            event: 1000,
            bytes: Arc::from(&[0, 255, 7][..]),
            client: None,
        });
        check(EventKind::Custom {
            event: "e".into(),
            data: 5.into(),
            client: Some("c".into()),
        });
        assert!(encode(&EventKind::Ended).is_none());
        assert!(decode(&map! {"kind" => "no"}.into(), 0).is_err());
    }

    #[test]
    fn a_worker_with_another_clock_has_its_times_moved() {
        assert_eq!(clock_shift(1500), 0);
        assert_eq!(clock_shift(-60_000), -60_000);
        let start = map! {"kind" => "start", "timestamp" => 1000};
        let EventKind::Start { timestamp } = decode(&start.into(), 500).unwrap() else {
            panic!("another event");
        };
        assert_eq!(timestamp, 1500);
        let mut messages = vec![
            Value::from(vec![Value::from("x"), map! {"timestamp" => 1}.into()]),
            Value::from("no message"),
        ];
        shift_messages(&mut messages, 5);
        assert_eq!(json::to_string(&messages[0]), r#"["x",{"timestamp":6}]"#);
    }

    #[test]
    fn pictures_keep_their_bytes() {
        let preview = Preview {
            format: PreviewFormat::Png,
            bytes: vec![1, b'\n', 2].into(),
        };
        let bytes = encode_picture(&some_ids(), Some((1.0, 2.0)), &preview);
        let EventKind::Progress {
            preview: Some(read),
            value,
            ..
        } = decode_picture(&bytes).unwrap()
        else {
            panic!("another event");
        };
        assert_eq!((&*read.bytes, value), (&*preview.bytes, 1.0));
        let bytes = encode_picture(&some_ids(), None, &preview);
        assert!(matches!(
            decode_picture(&bytes),
            Ok(EventKind::Preview { .. })
        ));
        assert!(decode_picture(b"{}").is_err());
    }
}
