//! Addressing, previews, snapshots, replacement of sockets.

use fresco_cluster::protocol::alive::ClientName;
use fresco_engine::NodeState;
use fresco_graph::json;

use super::*;
use crate::services::outbox::Next;

fn hub() -> Arc<Hub> {
    Hub::new(&Limits::default(), Arc::new(Metrics::default()))
}

fn event(client: Option<&str>, kind: EventKind) -> Event {
    Event {
        prompt_id: Some("p".into()),
        client: client.map(Into::into),
        worker: None,
        kind,
    }
}

/// A node has begun, or is done.
fn progress(node: &str, state: NodeState) -> EventKind {
    let value = if state == NodeState::Finished {
        1.0
    } else {
        0.0
    };
    EventKind::NodeProgress(NodeProgress {
        ids: ids(node),
        state,
        value,
        max: 1.0,
    })
}

fn ids(node: &str) -> NodeIds {
    NodeIds {
        node: node.into(),
        display: node.into(),
        parent: None,
        real: node.into(),
    }
}

/// Types of what waits for a socket; binary frames as `#n`.
fn seen(socket: &Socket) -> Vec<String> {
    let mut out = Vec::new();
    while let Next::Frame(frame) = socket.outbox.next() {
        out.push(match frame.message {
            Message::Text(t) => {
                let value = json::parse(&t).unwrap();
                value.get("type").unwrap().as_str().unwrap().to_owned()
            }
            Message::Binary(b) => format!("#{}", b[3]),
            other => panic!("{other:?}"),
        });
    }
    out
}

fn jpeg() -> Preview {
    Preview {
        format: PreviewFormat::Jpeg,
        bytes: (*b"x").into(),
    }
}

#[test]
fn addressing_follows_the_table() {
    let hub = hub();
    let a = hub.connect("a".into(), 0).unwrap();
    let b = hub.connect("b".into(), 0).unwrap();
    seen(&a);
    seen(&b);
    let all = |client: Option<&str>| {
        for kind in [
            EventKind::Status { remaining: 1 },
            EventKind::Start { timestamp: 1 },
            EventKind::Cached {
                nodes: vec![],
                timestamp: 1,
            },
            progress("1", NodeState::Running),
            EventKind::Executing {
                node: "1".into(),
                display: "1".into(),
            },
            EventKind::Progress {
                ids: ids("1"),
                value: 1.0,
                max: 2.0,
                preview: Some(jpeg()),
            },
            EventKind::Blocked {
                node: "1".into(),
                class: "X".into(),
                executed: vec![],
                message: "m".into(),
            },
            EventKind::Executed {
                node: "1".into(),
                display: "1".into(),
                output: Value::Null,
            },
            EventKind::Success { timestamp: 1 },
            EventKind::Interrupted {
                node: "1".into(),
                class: "X".into(),
                executed: vec![],
                timestamp: 1,
            },
            EventKind::Text {
                node: "1".into(),
                text: "t".into(),
            },
            EventKind::Ended,
        ] {
            hub.emit(event(client, kind));
        }
    };
    all(Some("a"));
    let mine = seen(&a);
    assert_eq!(
        mine,
        [
            "status",
            "execution_start",
            "execution_cached",
            "progress_state",
            "executing",
            "progress",
            "#1",
            "execution_error",
            "executed",
            "execution_success",
            "execution_interrupted",
            "#3",
            "executing"
        ]
    );
    assert_eq!(seen(&b), ["status", "#3"]);
    all(None);
    let broadcast = [
        "status",
        "progress_state",
        "progress",
        "#1",
        "execution_error",
        "execution_interrupted",
        "#3",
    ];
    assert_eq!(seen(&a), broadcast);
    assert_eq!(seen(&b), broadcast);
}

#[test]
fn previews_follow_what_the_client_announced() {
    let hub = hub();
    let a = hub.connect("a".into(), 0).unwrap();
    let old = hub.connect("old".into(), 0).unwrap();
    a.set_flags(&fresco_graph::map! {"supports_preview_metadata" => true}.into());
    old.set_flags(&fresco_graph::map! {"supports_preview_metadata" => "true"}.into());
    seen(&a);
    seen(&old);
    let bar = || EventKind::Progress {
        ids: ids("1"),
        value: 1.0,
        max: 2.0,
        preview: Some(jpeg()),
    };
    let new = || EventKind::Preview {
        ids: ids("1"),
        preview: jpeg(),
    };
    for client in [Some("a"), Some("old")] {
        hub.emit(event(client, bar()));
        hub.emit(event(client, new()));
    }
    assert_eq!(seen(&a), ["#4", "progress", "#4"]);
    assert_eq!(seen(&old), ["progress", "#1"]);
}

#[test]
fn a_second_socket_replaces_the_first_and_survives_its_end() {
    let hub = hub();
    let first = hub.connect("k".into(), 0).unwrap();
    let second = hub.connect("k".into(), 3).unwrap();
    hub.disconnect(&first);
    seen(&first);
    hub.emit(event(Some("k"), EventKind::Start { timestamp: 1 }));
    assert_eq!(seen(&first), [""; 0]);
    assert_eq!(seen(&second), ["status", "execution_start"]);
}

#[test]
fn who_comes_back_is_told_the_running_node() {
    let hub = hub();
    hub.emit(event(
        Some("k"),
        EventKind::Executing {
            node: "4.0.0.1".into(),
            display: "4".into(),
        },
    ));
    let socket = hub.connect("k".into(), 1).unwrap();
    let other = hub.connect("o".into(), 1).unwrap();
    assert_eq!(seen(&other), ["status"]);
    let Next::Frame(_) = socket.outbox.next() else {
        panic!()
    };
    let Next::Frame(frame) = socket.outbox.next() else {
        panic!()
    };
    assert_eq!(
        frame.message.into_text().unwrap().as_str(),
        r#"{"type":"executing","data":{"node":"4"}}"#
    );
    hub.emit(event(Some("k"), EventKind::Ended));
    let again = hub.connect("k".into(), 0).unwrap();
    assert_eq!(seen(&again), ["status"]);
}

#[test]
fn snapshots_of_a_large_graph_stay_in_budget_and_the_last_is_sent() {
    let hub = hub();
    let socket = hub.connect("k".into(), 0).unwrap();
    for i in 0..1000 {
        let node = format!("{i}");
        for state in [NodeState::Running, NodeState::Finished] {
            hub.emit(event(Some("k"), progress(&node, state)));
        }
    }
    hub.emit(event(Some("k"), EventKind::Success { timestamp: 1 }));
    let (mut bytes, mut last) = (0, String::new());
    while let Next::Frame(frame) = socket.outbox.next() {
        let text = frame.message.into_text().unwrap();
        bytes += text.len();
        if text.contains("progress_state") {
            last = text.to_string();
        }
    }
    assert!(bytes < 5_000_000, "{bytes}");
    assert!(last.contains(r#""999":{"value":1,"max":1,"state":"finished""#));
}

#[test]
fn custom_messages_reach_their_addressee() {
    let hub = hub();
    let a = hub.connect("a".into(), 0).unwrap();
    let b = hub.connect("b".into(), 0).unwrap();
    seen(&a);
    seen(&b);
    let custom = |client: Option<&str>| EventKind::Custom {
        event: "my.event".into(),
        data: Value::Null,
        client: client.map(Into::into),
    };
    hub.emit(event(Some("a"), custom(Some("b"))));
    hub.emit(event(Some("a"), custom(None)));
    assert_eq!(seen(&a), ["my.event"]);
    assert_eq!(seen(&b), ["my.event", "my.event"]);
}

#[test]
fn a_socket_that_shows_the_jobs_of_others_gets_their_previews() {
    let hub = hub();
    let [a, looker, plain] = ["a", "looker", "plain"].map(|id| hub.connect(id.into(), 0).unwrap());
    let flags =
        fresco_graph::map! {"supports_preview_metadata" => true, "fresco_all_previews" => true};
    looker.set_flags(&flags.into());
    let progress = |client: Option<&str>| {
        for socket in [&a, &looker, &plain] {
            seen(socket);
        }
        let preview = Some(jpeg());
        let (value, max) = (1.0, 2.0);
        hub.emit(event(
            client,
            EventKind::Progress {
                ids: ids("1"),
                value,
                max,
                preview,
            },
        ));
        [&a, &looker, &plain].map(|s| seen(s).join(" "))
    };
    assert_eq!(progress(Some("a")), ["progress #1", "#4", ""]);
    // Of its own it gets one, and so it does of those that nobody in particular asked for.
    assert_eq!(progress(Some("looker")), ["", "#4 progress", ""]);
    assert_eq!(
        progress(None),
        ["progress #1", "#4 progress", "progress #1"]
    );
    assert_eq!(progress(Some("gone")), ["", "#4", ""]);
}

fn start() -> EventKind {
    EventKind::Start { timestamp: 1 }
}

#[test]
fn frames_wait_for_the_answer_and_keep_their_order() {
    let hub = hub();
    let socket = hub.connect("k".into(), 0).unwrap();
    let other = hub.connect("o".into(), 0).unwrap();
    seen(&socket);
    seen(&other);
    let answer = hub.expect_answer(&"p".into(), "k", false);
    hub.emit(event(Some("k"), start()));
    hub.emit(event(Some("k"), EventKind::Status { remaining: 1 }));
    hub.emit(event(Some("k"), EventKind::Ended));
    assert!(seen(&socket).is_empty());
    assert_eq!(seen(&other), ["status"]);
    drop(answer);
    // A moment longer, and then all of it.
    let mut got = seen(&socket);
    let give_up = Instant::now() + Duration::from_secs(20);
    while got.is_empty() && Instant::now() < give_up {
        std::thread::yield_now();
        got = seen(&socket);
    }
    assert_eq!(got, ["execution_start", "status", "executing"]);
    hub.emit(event(Some("k"), start()));
    assert_eq!(seen(&socket), ["execution_start"]);
}

#[test]
fn a_client_that_connects_after_the_answer_gets_what_it_missed() {
    let hub = hub();
    let answer = hub.expect_answer(&"p".into(), "k", true);
    hub.emit(event(Some("k"), start()));
    hub.emit(event(Some("k"), progress("1", NodeState::Running)));
    drop(answer);
    hub.emit(event(Some("k"), EventKind::Ended));
    let stranger = hub.connect("x".into(), 0).unwrap();
    assert_eq!(seen(&stranger), ["status"]);
    let late = hub.connect("k".into(), 0).unwrap();
    let mut got = seen(&late);
    let give_up = Instant::now() + Duration::from_secs(20);
    while got.len() < 4 && Instant::now() < give_up {
        std::thread::yield_now();
        got.extend(seen(&late));
    }
    let wanted = ["status", "execution_start", "progress_state", "executing"];
    assert_eq!(got, wanted);
    // Once.
    let again = hub.connect("k".into(), 0).unwrap();
    assert_eq!(seen(&again), ["status"]);
}

#[test]
fn clients_of_another_front_get_what_is_theirs() {
    let hub = hub();
    let front: Arc<str> = "other".into();
    let client = |sid: &str, described_previews: bool| ClientName {
        sid: sid.into(),
        described_previews,
    };
    let new = hub.relay(
        &front,
        vec![client("a", true), client("b", false), client("", true)],
    );
    let [a, b] = &new[..] else {
        panic!("two are new: {}", new.len());
    };
    assert_eq!((&*a.sid, &*b.sid), ("a", "b"));
    let start = |client: Option<&str>| event(client, EventKind::Start { timestamp: 1 });
    let bar = |client: &str| {
        let preview = EventKind::Progress {
            ids: ids("1"),
            value: 1.0,
            max: 2.0,
            preview: Some(jpeg()),
        };
        event(Some(client), preview)
    };
    hub.emit(start(Some("a")));
    hub.emit(start(None));
    hub.emit(event(None, EventKind::Status { remaining: 1 }));
    hub.emit(bar("a"));
    hub.emit(bar("b"));
    assert_eq!(seen(a), ["execution_start", "#4", "progress"]);
    assert_eq!(seen(b), ["progress", "#1"]);
    // The same list again makes no new client; a client that is here is not relayed from elsewhere.
    assert!(hub.relay(&front, vec![client("a", true)]).is_empty());
    assert!(b.outbox.closed().is_some());
    let here = hub.connect("a".into(), 0).unwrap();
    seen(&here);
    hub.emit(start(Some("a")));
    hub.emit(bar("a"));
    assert!(seen(a).is_empty());
    assert_eq!(seen(&here), ["execution_start", "progress", "#1"]);
    assert_eq!(hub.clients(), [client("a", false)]);
    // What it has for us.
    let message = Message::Text("{\"type\":\"x\",\"data\":1}".into());
    hub.deliver("a", Frame::new(message.clone(), Class::Result));
    hub.deliver("nobody", Frame::new(message, Class::Result));
    assert_eq!(seen(&here), ["x"]);
}
