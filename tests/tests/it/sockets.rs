//! What a socket may send, and what happens to it.

use fresco_tests::{Frame, Server, Socket, workflow};
use serde_json::{Value, json};

use crate::{outline::last_progress, sequences::greeted};

const FLAGS: &str = r#"{"type": "feature_flags", "data": {"supports_preview_metadata": true}}"#;

/// Sends a prompt through and says which messages came before its start.
fn types_until_start(server: &Server, socket: &mut Socket, client: &str) -> Vec<String> {
    server.queue(&workflow::picture(1, "sockets"), Some(client));
    socket
        .until(|message| message["type"] == "execution_start")
        .iter()
        .map(|message| message["type"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_socket_without_a_name_gets_one() {
    let server = Server::start();
    for path in ["/ws", "/api/ws", "/ws?clientId="] {
        let mut socket = Socket::open(server.address, path);
        let hello = socket.message();
        assert_eq!(hello["type"], "status");
        let sid = hello["data"]["sid"].as_str().unwrap();
        assert_eq!(sid.len(), 32, "{sid}");
        assert!(
            sid.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')),
            "{sid}"
        );
    }
}

#[test]
fn only_the_first_message_introduces_a_client() {
    let server = Server::start();
    let mut socket = greeted(&server, "first");
    socket.send(FLAGS);
    let reply = socket.message();
    assert_eq!(reply["type"], "feature_flags");
    assert_eq!(reply["data"], server.get("/features").json());
    socket.send(FLAGS);
    let seen = types_until_start(&server, &mut socket, "first");
    assert_eq!(seen, ["status", "status", "execution_start"]);
}

#[test]
fn another_first_message_uses_up_the_chance() {
    let server = Server::start();
    let mut socket = greeted(&server, "other");
    socket.send(r#"{"type": "hello"}"#);
    socket.send(FLAGS);
    let seen = types_until_start(&server, &mut socket, "other");
    assert_eq!(seen, ["status", "status", "execution_start"]);
}

#[test]
fn rubbish_is_ignored_and_does_not_count() {
    let server = Server::start();
    let mut socket = greeted(&server, "rubbish");
    for text in [
        "",
        "not json",
        "[1, 2]",
        "5",
        "null",
        "\"text\"",
        "{\"type\": ",
    ] {
        socket.send(text);
    }
    socket.send_binary(&[0, 1, 2, 255]);
    socket.send(FLAGS);
    assert_eq!(socket.message()["type"], "feature_flags");
}

#[test]
fn a_message_over_the_limit_ends_its_socket_only() {
    let server = Server::start();
    let mut other = greeted(&server, "other");
    let mut socket = greeted(&server, "large");
    let text = format!("{{\"type\": \"{}\"}}", "x".repeat(5 << 20));
    // The server may hang up before it has taken all of it.
    let sent = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| socket.send(&text)));
    if sent.is_ok() {
        assert!(matches!(socket.frame(), Frame::Closed));
    }
    let id = server.queue(&workflow::picture(2, "sockets"), Some("other"));
    assert!(
        other
            .run(&id)
            .iter()
            .any(|m| m["type"] == "execution_success")
    );
}

#[test]
fn the_last_progress_is_always_sent() {
    let server = Server::start();
    let mut socket = greeted(&server, "progress");
    let id = server.queue(&workflow::chain(1000, 1, 3), Some("progress"));
    let messages = socket.run(&id);
    let last = last_progress(&messages);
    assert_eq!(last.matches(" finished").count(), 1000);
    assert!(!last.contains("running"));
    assert!(socket.received < 5_000_000, "{} bytes", socket.received);
}

#[test]
fn logs_go_to_those_who_asked() {
    let server = Server::start();
    let mut asked = greeted(&server, "asked");
    let body = json!({"clientId": "asked", "enabled": true}).to_string();
    let answer = server.request("PATCH", "/internal/logs/subscribe", &[], body.as_bytes());
    assert_eq!(answer.status, 200);
    server.queue(&workflow::picture(4, "sockets"), None);
    let logs = asked.until(|message| message["type"] == "logs");
    let entries: &Value = &logs.last().unwrap()["data"]["entries"];
    assert!(
        entries[0]["m"].is_string() && entries[0]["t"].is_string(),
        "{entries}"
    );
    let text = server.get("/internal/logs").json();
    assert!(text.as_str().unwrap().contains("Starting server"));
}
