//! What clients are told when the disk has no room.
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt as _;

use fresco_tests::http::multipart;
use fresco_tests::{Server, StartOptions, server::program};
use serde_json::json;

/// A program that may write files of a few megabytes only. The limit stands in for a full disk: both are errors of the
/// same calls, and this one needs no rights.
fn limited(folder: &std::path::Path) -> std::path::PathBuf {
    let script = folder.join("limited.sh");
    let text = format!(
        "#!/bin/sh\ntrap '' XFSZ\nulimit -f 6000\nexec '{}' \"$@\"\n",
        program().display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    script
}

#[test]
fn a_write_that_finds_no_room_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let script = limited(folder.path());
    let server = Server::start_with(StartOptions {
        program: Some(&script),
        ..StartOptions::default()
    });
    let large = vec![b'x'; 12 << 20];
    let (kind, form) = multipart(&[], Some(("image", "large.png", &large)));
    let settings = json!({"note": "n".repeat(12 << 20)}).to_string();
    let requests: [(&str, &str, &[u8]); 3] = [
        ("/userdata/large.json", "application/json", &large),
        ("/upload/image", &kind, &form),
        ("/settings", "application/json", settings.as_bytes()),
    ];
    for (path, kind, body) in requests {
        let headers = [("Content-Type", kind)];
        let answer = server.request("POST", path, &headers, body);
        assert_eq!(answer.status, 507, "{path}: {}", answer.text());
        let error = &answer.json()["error"];
        assert_eq!(error["type"], "disk_full", "{path}");
        assert!(
            error["details"].as_str().unwrap().contains("cannot "),
            "{error}"
        );
    }
    // A file that grows too large in small steps.
    let refused = (0..8).find_map(|n| {
        let part = json!({ format!("note-{n}"): "n".repeat(1 << 20) });
        let answer = server.post("/settings", &part);
        (answer.status != 200).then_some(answer)
    });
    let refused = refused.unwrap().expect_status(507).text();
    assert!(refused.contains("save the settings"), "{refused}");
    assert!(server.get("/settings").json().is_object());
    // Nothing half written is left, and what fits is stored.
    for name in ["user/default/large.json", "input/large.png"] {
        assert!(!server.base.join(name).exists(), "{name}");
    }
    let small = [("Content-Type", "application/json")];
    server
        .request("POST", "/userdata/small.json", &small, b"{}")
        .expect_status(200);
    // A name that cannot be is still another thing.
    let answer = server.request("POST", "/userdata/small.json%2Fbelow", &small, b"{}");
    assert_eq!(answer.status, 400, "{}", answer.text());
}
