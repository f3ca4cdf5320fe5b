//! Who may call: the guard through the router.

use axum::body::Body;

use crate::harness::{rig, rig_with};

#[tokio::test]
async fn other_sites_get_nothing() {
    let rig = rig();
    let post =
        async |headers: &[(&str, &str)]| rig.ask("POST", "/interrupt", headers, "").await.status;
    let host = ("host", "127.0.0.1:8188");
    assert_eq!(post(&[host]).await, 200);
    assert_eq!(
        post(&[host, ("origin", "http://127.0.0.1:8188")]).await,
        200
    );
    assert_eq!(post(&[host, ("origin", "http://evil.example")]).await, 403);
    assert_eq!(post(&[host, ("origin", "null")]).await, 403);
    assert_eq!(post(&[host, ("sec-fetch-site", "cross-site")]).await, 403);
    assert_eq!(post(&[("host", "evil.example")]).await, 403);
    let got = rig
        .ask(
            "GET",
            "/prompt",
            &[host, ("origin", "http://evil.example")],
            Body::empty(),
        )
        .await
        .expect(403);
    assert!(got.body.is_empty(), "the reference's refusal is empty");
    let got = rig
        .ask("GET", "/prompt", &[("host", "evil.example")], Body::empty())
        .await
        .expect(403);
    assert!(got.text().contains("host_not_allowed"));
}

#[tokio::test]
async fn a_token_is_asked_for_everywhere() {
    let rig = rig_with(|c, _| c.token = Some("s3cret".into()));
    for path in [
        "/",
        "/prompt",
        "/api/queue",
        "/metrics",
        "/internal/logs",
        "/nothing",
    ] {
        let got = rig.get(path).await.expect(401);
        assert!(
            got.header("www-authenticate")
                .unwrap()
                .starts_with("Bearer")
        );
        assert!(!got.text().contains("s3cret"));
    }
    rig.get("/api/health").await.expect(200);
    let bearer = [("authorization", "Bearer s3cret")];
    rig.ask("GET", "/api/queue", &bearer, Body::empty())
        .await
        .expect(200);
    let page = rig
        .ask("GET", "/", &[("sec-fetch-mode", "navigate")], Body::empty())
        .await
        .expect(401);
    assert!(page.text().contains("<form"));
    let got = rig.get("/?token=s3cret").await.expect(200);
    let cookie = got
        .header("set-cookie")
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    rig.ask("GET", "/", &[("cookie", &cookie)], Body::empty())
        .await
        .expect(200);
    rig.get("/?token=wrong").await.expect(401);
}

#[tokio::test]
async fn the_status_page_stands_alone() {
    let rig = rig();
    let got = rig.get("/status").await.expect(200);
    assert_eq!(got.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(got.header("cache-control"), Some("no-cache"));
    assert_eq!(got.header("pragma"), Some("no-cache"));
    assert_eq!(got.header("expires"), Some("0"));
    assert!(
        !got.text().contains("<script")
            && !got.text().contains("http://")
            && !got.text().contains("https://")
    );
    assert!(!got.text().contains('{') || !got.text().contains("{version}"));
}
