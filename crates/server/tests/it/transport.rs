//! Conventions every route shares.

use std::io::Read as _;

use axum::body::Body;

use crate::harness::{rig, rig_with};

#[tokio::test]
async fn every_route_exists_in_both_forms() {
    let rig = rig();
    for path in [
        "/prompt",
        "/queue",
        "/object_info",
        "/features",
        "/models",
        "/users",
        "/metrics",
        "/health",
    ] {
        let plain = rig.get(path).await.expect(200);
        let api = rig.get(&format!("/api{path}")).await.expect(200);
        assert_eq!(
            plain.header("content-type"),
            api.header("content-type"),
            "{path}"
        );
    }
    rig.get("/api/").await.expect(200);
    rig.get("/api/jobs").await.expect(200);
    rig.get("/api/api/jobs").await.expect(200);
    rig.get("/jobs").await.expect(404);
    rig.get("/internal/logs").await.expect(200);
    rig.get("/api/internal/logs").await.expect(404);
}

#[tokio::test]
async fn answers_say_what_they_are() {
    let rig = rig();
    let got = rig.get("/prompt").await.expect(200);
    assert_eq!(
        got.header("content-type"),
        Some("application/json; charset=utf-8")
    );
    assert_eq!(got.header("x-content-type-options"), Some("nosniff"));
    let got = rig.post("/interrupt", "").await.expect(200);
    assert_eq!(got.header("content-length"), Some("0"));
    assert_eq!(got.header("content-type"), None);
    let got = rig.get("/nothing/here").await.expect(404);
    assert_eq!(got.header("content-type"), Some("application/octet-stream"));
    assert!(got.body.is_empty());
    let got = rig.post("/queue", "{").await.expect(500);
    assert_eq!(
        got.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert!(
        got.text()
            .starts_with("500 Internal Server Error\n\nServer got itself in trouble")
    );
}

#[tokio::test]
async fn wrong_methods_are_told_the_right_ones() {
    let rig = rig();
    for (method, path, allow) in [
        ("POST", "/unknown", "GET,HEAD"),
        ("DELETE", "/prompt", "GET,HEAD,POST"),
        ("PUT", "/api/prompt", "GET,HEAD,POST"),
        ("PATCH", "/userdata/a.txt", "DELETE,GET,HEAD,POST"),
        ("POST", "/internal/logs", "GET,HEAD"),
    ] {
        let got = rig.ask(method, path, &[], Body::empty()).await.expect(405);
        assert_eq!(got.header("allow"), Some(allow), "{method} {path}");
        assert_eq!(got.text(), "405: Method Not Allowed");
    }
    rig.get("/interrupt").await.expect(404);
    rig.get("/internal/nothing").await.expect(404);
}

#[tokio::test]
async fn head_has_the_headers_of_get() {
    let rig = rig();
    for path in ["/prompt", "/object_info", "/", "/api/jobs"] {
        let get = rig.get(path).await.expect(200);
        let head = rig.ask("HEAD", path, &[], Body::empty()).await.expect(200);
        assert!(head.body.is_empty());
        assert_eq!(
            head.header("content-length"),
            get.header("content-length"),
            "{path}"
        );
        assert_eq!(
            head.header("content-type"),
            get.header("content-type"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn options_answers_everywhere() {
    let rig = rig();
    for path in ["/prompt", "/nothing", "/api/ws"] {
        let got = rig
            .ask("OPTIONS", path, &[], Body::empty())
            .await
            .expect(200);
        assert!(got.body.is_empty());
        assert_eq!(got.header("access-control-allow-origin"), None);
    }
}

#[tokio::test]
async fn cors_is_a_flag() {
    let rig = rig_with(|c, _| c.cors = Some("*".into()));
    for method in ["GET", "OPTIONS"] {
        let got = rig
            .ask(method, "/prompt", &[], Body::empty())
            .await
            .expect(200);
        assert_eq!(got.header("access-control-allow-origin"), Some("*"));
        assert_eq!(
            got.header("access-control-allow-methods"),
            Some("POST, GET, DELETE, PUT, OPTIONS, PATCH")
        );
        assert_eq!(
            got.header("access-control-allow-headers"),
            Some("Content-Type, Authorization")
        );
        assert_eq!(got.header("access-control-allow-credentials"), Some("true"));
    }
}

#[tokio::test]
async fn external_content_can_be_blocked() {
    let rig = rig_with(|c, _| c.block_external = true);
    let got = rig.get("/prompt").await.expect(200);
    assert_eq!(
        got.header("content-security-policy"),
        Some(
            "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' \
             'unsafe-inline'; img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; frame-src 'self'; \
             object-src 'self';"
        )
    );
}

#[tokio::test]
async fn compression_is_a_flag() {
    let plain = rig();
    let accept = [("accept-encoding", "gzip, deflate")];
    let want = plain
        .ask("GET", "/object_info", &accept, Body::empty())
        .await
        .expect(200);
    assert_eq!(want.header("content-encoding"), None);
    let rig = rig_with(|c, _| c.compress = true);
    assert_eq!(
        rig.get("/object_info").await.header("content-encoding"),
        None
    );
    let got = rig
        .ask("GET", "/object_info", &accept, Body::empty())
        .await
        .expect(200);
    assert_eq!(got.header("content-encoding"), Some("gzip"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(&got.body[..])
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, want.text());
    let empty = rig.ask("POST", "/interrupt", &accept, "").await.expect(200);
    assert_eq!(empty.header("content-encoding"), None);
}

#[tokio::test]
async fn bodies_are_limited() {
    let rig = rig_with(|c, _| c.max_upload = 1000);
    let got = rig.post("/prompt", "x".repeat(1001)).await.expect(413);
    assert_eq!(got.text(), "Maximum request body size 1000 exceeded.");
    rig.post("/userdata/a.txt", "x".repeat(1001))
        .await
        .expect(413);
    rig.post("/userdata/a.txt", "x".repeat(1000))
        .await
        .expect(200);
    let small = rig_with(|c, _| c.limits.json_bytes = 100);
    let got = small
        .post("/prompt", format!("{{\"a\":\"{}\"}}", "x".repeat(100)))
        .await
        .expect(413);
    assert!(got.text().contains("json_too_large"), "{}", got.text());
}

#[tokio::test]
async fn the_openapi_document_lists_the_table() {
    let rig = rig();
    let document = rig.get("/api/openapi.json").await.expect(200).json();
    assert!(
        document
            .get("openapi")
            .unwrap()
            .as_str()
            .unwrap()
            .starts_with("3.")
    );
    let paths = document.get("paths").unwrap();
    for path in [
        "/api/prompt",
        "/api/jobs/{job_id}/cancel",
        "/internal/logs/subscribe",
        "/api/metrics",
    ] {
        assert!(paths.get(path).is_some(), "{path}");
    }
}

#[tokio::test]
async fn metrics_count() {
    let rig = rig();
    rig.post("/prompt", "{}").await.expect(400);
    let text = rig.get("/metrics").await.expect(200);
    assert!(
        text.header("content-type")
            .unwrap()
            .starts_with("text/plain")
    );
    assert!(
        text.text()
            .contains("fresco_prompts_total{outcome=\"refused\"} 1\n")
    );
    assert!(
        text.text()
            .contains("fresco_http_answers_total{status=\"4xx\"} 1\n")
    );
}
