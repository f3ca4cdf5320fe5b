//! Sequences of events over a real socket. Sub-graph expansion and asynchronous nodes (S7, S8) need nodes
//! that the program does not have yet; the engine tests them on nodes of its own.

use fresco_tests::{Frame, Server, Socket, socket::is_end, workflow};
use serde_json::{Value, json};

use crate::outline::{last_progress, outline};

/// A socket that has already taken its greeting.
pub(crate) fn greeted(server: &Server, client_id: &str) -> Socket {
    let mut socket = server.socket(client_id);
    let hello = socket.message();
    assert_eq!(hello["type"], "status");
    assert_eq!(hello["data"]["sid"], client_id);
    socket
}

#[track_caller]
fn check(server: &Server, prompt: &Value, expected: &str) -> Vec<Value> {
    let mut socket = greeted(server, "sequence");
    let id = server.queue(prompt, Some("sequence"));
    let messages = socket.run(&id);
    assert_eq!(outline(&messages), expected);
    messages
}

#[test]
fn s1_a_normal_run() {
    let server = Server::start();
    let messages = check(
        &server,
        &workflow::picture(1, "s1"),
        "status 1 | status 1 | start | cached [] | executing 1 | executing 2 | executing 3 | executed 3 \
         | success | status 0 | executing null",
    );
    assert_eq!(
        last_progress(&messages),
        "1 finished, 2 finished, 3 finished"
    );
    let executed = messages.iter().find(|m| m["type"] == "executed").unwrap();
    assert_eq!(
        executed["data"]["output"]["images"],
        json!([{"filename": "s1_00001_.png", "subfolder": "", "type": "output"}])
    );
    assert_eq!(executed["data"]["display_node"], "3");
    for message in &messages {
        let stamped = matches!(
            message["type"].as_str(),
            Some("execution_start" | "execution_cached" | "execution_success")
        );
        assert_eq!(stamped, message["data"]["timestamp"].is_i64(), "{message}");
    }
}

#[test]
fn s2_pictures_inside_a_node() {
    let server = Server::start();
    let prompt = json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 4, "batch_size": 2, "color": 255}},
        "2": {"class_type": "SaveImageWebsocket", "inputs": {"images": ["1", 0]}},
    });
    for (flags, expected) in [
        (json!({}), 1),
        (json!({"supports_preview_metadata": true}), 4),
    ] {
        let client = format!("s2-{expected}");
        let mut socket = greeted(&server, &client);
        socket.send(&json!({"type": "feature_flags", "data": flags}).to_string());
        assert_eq!(socket.message()["type"], "feature_flags");
        let id = server.queue(&prompt, Some(&client));
        let mut frames = Vec::new();
        loop {
            match socket.frame() {
                Frame::Binary(bytes) => frames.push(bytes),
                Frame::Text(message, _) if is_end(&message, &id) => break,
                Frame::Text(..) => {}
                Frame::Closed => panic!("closed in the middle of a run"),
            }
        }
        assert_eq!(frames.len(), 2, "one frame per picture");
        for frame in frames {
            let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
            assert_eq!(word(0), expected);
            let picture = if expected == 1 {
                assert_eq!(word(4), 2, "PNG");
                &frame[8..]
            } else {
                let end = 8 + word(4) as usize;
                let about: Value = serde_json::from_slice(&frame[8..end]).unwrap();
                assert_eq!(about["node_id"], "2");
                assert_eq!(about["image_type"], "image/png");
                assert_eq!(about["prompt_id"], id);
                &frame[end..]
            };
            let picture = fresco_tests::picture::read(std::io::Cursor::new(picture)).unwrap();
            assert_eq!((picture.width, picture.height), (8, 4));
        }
    }
}

#[test]
fn s3_everything_cached() {
    let server = Server::start();
    let prompt = workflow::picture(3, "s3");
    // To its very last message: the next socket must see none of them.
    let mut first = server.socket("first");
    let id = server.queue(&prompt, Some("first"));
    first.run(&id);
    let messages = check(
        &server,
        &prompt,
        "status 1 | status 1 | start | cached [1,2,3] | executed 3 | success | status 0 | executing null",
    );
    assert_eq!(last_progress(&messages), "3 finished");
    let executed = messages.iter().find(|m| m["type"] == "executed").unwrap();
    assert_eq!(
        executed["data"]["output"]["images"][0]["filename"],
        "s3_00001_.png"
    );
}

#[test]
fn s4_a_node_fails() {
    let server = Server::start();
    let prompt = json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "../escape"}},
    });
    let messages = check(
        &server,
        &prompt,
        "status 1 | status 1 | start | cached [] | executing 1 | executing 2 | error 2 | status 0 | executing null",
    );
    let error = messages
        .iter()
        .find(|m| m["type"] == "execution_error")
        .unwrap();
    let data = &error["data"];
    assert_eq!(data["node_type"], "SaveImage");
    assert_eq!(data["executed"], json!(["1"]));
    assert!(
        data["exception_message"]
            .as_str()
            .unwrap()
            .contains("outside the output folder")
    );
    assert!(data["traceback"].is_array());
    assert_eq!(
        data["current_inputs"]["filename_prefix"],
        json!(["../escape"])
    );
    assert!(data["timestamp"].is_i64());
    assert!(!server.base.join("escape_00001_.png").exists());
}

#[test]
fn s5_an_interrupt_and_the_next_prompt() {
    let server = Server::start();
    let mut socket = greeted(&server, "s5");
    // Enough work that the interrupt arrives in the middle on any machine.
    let id = server.queue(&workflow::chain(3000, 256, 5), Some("s5"));
    socket.until(|m| m["type"] == "executing" && m["data"]["node"] == "3");
    server
        .post("/interrupt", &json!({"prompt_id": id}))
        .expect_status(200);
    let messages = socket.run(&id);
    let line = outline(&messages);
    assert!(
        line.ends_with("interrupted | status 0 | executing null"),
        "{line}"
    );
    let entry = server.wait_for(&id);
    assert_eq!(entry["status"]["status_str"], "error");
    assert_eq!(entry["status"]["completed"], false);
    let next = server.queue(&workflow::picture(5, "s5"), Some("s5"));
    assert!(outline(&socket.run(&next)).contains("success"));
}

#[test]
fn s6_a_lazy_node_asks_for_one_side_only() {
    let server = Server::start();
    let image = |colour: u32| {
        json!({"class_type": "EmptyImage", "inputs":
            {"width": 8, "height": 8, "batch_size": 1, "color": colour}})
    };
    let prompt = json!({
        "1": image(1), "2": image(2),
        "3": {"class_type": "ComfySwitchNode", "inputs":
            {"switch": true, "on_false": ["1", 0], "on_true": ["2", 0]}},
        "4": {"class_type": "PreviewImage", "inputs": {"images": ["3", 0]}},
    });
    check(
        &server,
        &prompt,
        "status 1 | status 1 | start | cached [] | executing 3 | executing 2 | executing 3 | executing 4 \
         | executed 4 | success | status 0 | executing null",
    );
}

#[test]
fn s9_without_a_client_only_progress_and_status_are_sent() {
    let server = Server::start();
    let mut socket = greeted(&server, "s9");
    let id = server.queue(&workflow::picture(9, "s9"), None);
    let mut messages = socket.until(|m| {
        m["type"] == "status" && m["data"]["status"]["exec_info"]["queue_remaining"] == 0
    });
    let entry = server.wait_for(&id);
    assert_eq!(entry["status"]["status_str"], "success");
    // Whatever else was sent for the first prompt stands before the first message of the second.
    let second = server.queue(&workflow::picture(10, "s9"), Some("s9"));
    messages.extend(socket.until(|m| m["type"] == "execution_start"));
    assert_eq!(
        outline(&messages),
        "status 1 | status 1 | status 0 | status 1 | status 1 | start"
    );
    assert!(messages.iter().any(|m| m["type"] == "progress_state"));
    socket.run(&second);
}

#[test]
fn s10_clients_do_not_see_each_other() {
    let server = Server::start();
    let mut ours = greeted(&server, "ours");
    let mut theirs = greeted(&server, "theirs");
    let id = server.queue(&workflow::picture(10, "s10"), Some("ours"));
    ours.run(&id);
    let seen = theirs.until(|m| {
        m["type"] == "status" && m["data"]["status"]["exec_info"]["queue_remaining"] == 0
    });
    assert_eq!(outline(&seen), "status 1 | status 1 | status 0");
    assert!(seen.iter().all(|m| m["type"] == "status"), "{seen:?}");
}

#[test]
fn s11_an_invalid_prompt_makes_no_sound() {
    let server = Server::start();
    let mut socket = greeted(&server, "s11");
    let bad = json!({"1": {"class_type": "NoSuchNode", "inputs": {}}});
    let answer = server.post("/prompt", &json!({"prompt": bad, "client_id": "s11"}));
    assert_eq!(
        answer.expect_status(400).json()["error"]["type"],
        "invalid_prompt"
    );
    let id = server.queue(&workflow::picture(11, "s11"), Some("s11"));
    let messages = socket.run(&id);
    assert!(outline(&messages).starts_with("status 1 | status 1 | start | cached []"));
}

#[test]
fn a_client_that_comes_back_is_told_what_runs() {
    let server = Server::start();
    let mut first = greeted(&server, "back");
    let id = server.queue(&workflow::chain(3000, 256, 12), Some("back"));
    first.until(|m| m["type"] == "executing" && m["data"]["node"] == "3");
    let mut second = greeted(&server, "back");
    let message = second.message();
    assert_eq!(message["type"], "executing", "{message}");
    assert!(message["data"]["node"].is_string());
    server
        .post("/interrupt", &json!({"prompt_id": id}))
        .expect_status(200);
    second.run(&id);
}
