//! Ours on top of the reference: event streams per job, metrics, health, the interface description; cancelling by id.

use fresco_tests::{Connection, Server, workflow};
use serde_json::{Value, json};

/// Events of a stream as (id, name), up to its end.
fn stream(server: &Server, id: &str, headers: &[(&str, &str)]) -> Vec<(u64, String)> {
    let mut connection = Connection::open(server.address).unwrap();
    let head = connection
        .raw_head(&format!("/api/jobs/{id}/events"), headers)
        .unwrap();
    assert_eq!(head.status, 200);
    let kind = head.header("content-type").unwrap();
    assert!(kind.starts_with("text/event-stream"), "{kind}");
    let mut events = Vec::new();
    let mut number = 0;
    // The stream ends with the job, and a closed connection is an error to the reader.
    while let Ok(line) = connection.next_line() {
        if let Some(id) = line.strip_prefix("id:") {
            number = id.trim().parse().unwrap();
        } else if let Some(name) = line.strip_prefix("event:") {
            events.push((number, name.trim().to_owned()));
            if matches!(
                name.trim(),
                "execution_success" | "execution_error" | "execution_interrupted"
            ) {
                break;
            }
        }
    }
    events
}

#[test]
fn a_job_can_be_followed_from_the_start_at_any_time() {
    let server = Server::start();
    let id = server.queue(&workflow::picture(1, "sse"), None);
    server.wait_for(&id);
    let events = stream(&server, &id, &[]);
    let names: Vec<&str> = events.iter().map(|(_, name)| name.as_str()).collect();
    for name in [
        "execution_start",
        "execution_cached",
        "executed",
        "execution_success",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(
        events.windows(2).all(|pair| pair[0].0 < pair[1].0),
        "{events:?}"
    );
    let middle = events[events.len() / 2].0;
    let rest = stream(&server, &id, &[("Last-Event-ID", &middle.to_string())]);
    assert_eq!(rest, events[events.len() / 2 + 1..]);
    server.get("/api/jobs/nobody/events").expect_status(404);
}

#[test]
fn health_metrics_and_the_description_answer() {
    let server = Server::start();
    server.wait_for(&server.queue(&workflow::picture(2, "metrics"), None));
    server.get("/api/health").expect_status(200);
    let metrics = server.get("/metrics").expect_status(200);
    assert!(
        metrics
            .header("content-type")
            .unwrap()
            .starts_with("text/plain")
    );
    assert!(metrics.text().contains("# TYPE "), "{}", metrics.text());
    let api = server.get("/api/openapi.json").expect_status(200).json();
    assert!(api["openapi"].as_str().unwrap().starts_with("3."));
    assert!(
        api["paths"]["/api/prompt"]["post"].is_object()
            || api["paths"]["/prompt"]["post"].is_object()
    );
}

#[test]
fn jobs_are_cancelled_by_id_and_in_bulk() {
    let server = Server::start();
    let running = server.queue(&workflow::chain(3000, 256, 3), None);
    let waiting: Vec<String> = (0..4)
        .map(|colour| server.queue(&workflow::picture(colour, "cancel"), None))
        .collect();
    let cancel = |path: &str, body: Value| server.post(path, &body).status;
    let status = cancel(&format!("/api/jobs/{}/cancel", waiting[0]), json!({}));
    assert!((200..300).contains(&status), "{status}");
    let status = cancel(
        "/api/jobs/cancel",
        json!({"job_ids": [waiting[1], running]}),
    );
    assert!((200..300).contains(&status), "{status}");
    for id in &waiting[2..] {
        assert_eq!(server.wait_for(id)["status"]["status_str"], "success");
    }
    let jobs = server
        .get("/api/jobs?status=cancelled&limit=10")
        .expect_status(200)
        .json();
    let mut cancelled: Vec<&str> = jobs["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["id"].as_str().unwrap())
        .collect();
    cancelled.sort_unstable();
    let mut expected = vec![waiting[0].as_str(), waiting[1].as_str(), running.as_str()];
    expected.sort_unstable();
    assert_eq!(cancelled, expected);
}

#[test]
fn the_queue_is_served_by_number_and_front() {
    let server = Server::start();
    let blocker = server.queue(&workflow::chain(3000, 256, 4), None);
    let post = |name: &str, extra: Value| {
        let mut body = json!({"prompt": workflow::picture(1, name), "prompt_id": name});
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        server.post("/prompt", &body).expect_status(200);
    };
    post("second", json!({}));
    post("first", json!({"front": true}));
    post("last", json!({"number": 1000}));
    post("third", json!({}));
    server
        .post("/interrupt", &json!({"prompt_id": blocker}))
        .expect_status(200);
    server.wait_for("last");
    let history = server.get("/history").json();
    let order: Vec<&String> = history.as_object().unwrap().keys().collect();
    assert_eq!(
        order,
        [blocker.as_str(), "first", "second", "third", "last"]
    );
}
