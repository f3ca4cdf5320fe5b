//! A file that somebody drops on the page: a workflow, a prompt, a picture with one inside, or anything else.
#![no_main]

use axum::body::{Body, to_bytes};
use axum::http::Request;
use fresco_graph::{Value, json};
use libfuzzer_sys::fuzz_target;
use tower::ServiceExt as _;

#[path = "../app.rs"]
mod app;

fuzz_target!(|data: &[u8]| {
    app::run(|app| async {
        let request = Request::post("/fresco/workflow")
            .header("host", "127.0.0.1:8188")
            .body(Body::from(data.to_vec()))
            .expect("a fixed head is a request");
        let answer = fresco_server::app(app).oneshot(request).await;
        let answer = answer.expect("the service has no errors of its own");
        let status = answer.status().as_u16();
        assert!(status == 200 || (400..500).contains(&status), "{status}");
        let body = to_bytes(answer.into_body(), usize::MAX).await;
        let text = body.expect("an answer in memory is whole");
        let value = json::parse_bytes(&text).expect("answers are JSON");
        if status == 200 {
            assert!(value.get("prompt").and_then(Value::as_map).is_some());
        }
    });
});
