//! Who may talk to the program, and from where.

use fresco_tests::{Server, Socket, StartOptions, server::run_program, workflow};
use serde_json::json;

#[test]
fn other_interfaces_need_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().to_str().unwrap();
    let (status, _, log) = run_program(
        &["--base-directory", base, "--listen", "0.0.0.0"],
        folder.path(),
    );
    assert!(!status.success(), "{log}");
    assert!(log.contains("--token"), "{log}");
    // One that can be guessed is not enough, and a better one is offered.
    let short = [
        "--base-directory",
        base,
        "--listen",
        "0.0.0.0",
        "--token",
        "fifteen-letters",
    ];
    let (status, _, log) = run_program(&short, folder.path());
    assert_eq!(status.code(), Some(2), "{log}");
    assert!(
        log.contains("at least 16") && !log.contains("fifteen"),
        "{log}"
    );
    let offered = log
        .lines()
        .map(str::trim)
        .find(|line| line.len() == 32 && line.bytes().all(|b| b.is_ascii_hexdigit()));
    let offered = offered.unwrap_or_else(|| panic!("no token is offered:\n{log}"));
    let server = Server::with(&["--listen", "0.0.0.0", "--token", offered]);
    assert_eq!(server.get("/queue").status, 401);
}

#[test]
fn a_token_is_taken_from_header_cookie_and_query() {
    let server = Server::with(&["--listen", "0.0.0.0", "--token", "open-sesame-42-again"]);
    assert_eq!(server.get("/queue").status, 401);
    assert_eq!(server.get("/api/object_info").status, 401);
    let with = |headers: &[(&str, &str)]| server.request("GET", "/queue", headers, &[]).status;
    assert_eq!(
        with(&[("Authorization", "Bearer open-sesame-42-again")]),
        200
    );
    assert_eq!(with(&[("Authorization", "Bearer open-sesame-4")]), 401);
    assert_eq!(with(&[("Authorization", "Bearer ")]), 401);
    // The ready line holds an address that logs a browser in.
    let log = server.log();
    let url = log
        .split_whitespace()
        .find(|word| word.starts_with("http://") && word.contains("open-sesame-42-again"))
        .unwrap_or_else(|| panic!("no ready address in:\n{log}"));
    let path = &url["http://".len()..];
    let path = &path[path.find('/').expect("the address has a path")..];
    let answer = server.get(path);
    assert!(
        matches!(answer.status, 200 | 302 | 303 | 307),
        "{}",
        answer.status
    );
    let cookie = answer
        .header("set-cookie")
        .expect("a cookie is set")
        .to_owned();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite="),
        "{cookie}"
    );
    let pair = cookie.split(';').next().unwrap();
    assert_eq!(with(&[("Cookie", pair)]), 200);
    assert!(Socket::try_open(server.address, "/ws?clientId=a", &[]).is_err());
    let open = Socket::try_open(
        server.address,
        "/ws?clientId=a&token=open-sesame-42-again",
        &[],
    );
    assert!(open.is_ok());
    let headers = [("Authorization", "Bearer open-sesame-42-again")];
    assert!(Socket::try_open(server.address, "/ws?clientId=b", &headers).is_ok());
}

#[test]
fn a_token_can_come_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "from-a-file-123\n").unwrap();
    let server = Server::with(&["--token-file", file.to_str().unwrap()]);
    assert_eq!(server.get("/queue").status, 401);
    let headers = [("Authorization", "Bearer from-a-file-123")];
    assert_eq!(server.request("GET", "/queue", &headers, &[]).status, 200);
    assert!(!server.get("/").text().contains("from-a-file"));
}

#[test]
fn other_sites_cannot_use_a_local_server() {
    let server = Server::start();
    let body = json!({"prompt": workflow::picture(1, "origin")}).to_string();
    let post = |headers: &[(&str, &str)]| {
        server
            .request("POST", "/prompt", headers, body.as_bytes())
            .status
    };
    assert_eq!(post(&[("Origin", "http://evil.example")]), 403);
    assert_eq!(post(&[("Origin", "null")]), 403);
    assert_eq!(
        post(&[
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Fetch-Mode", "no-cors")
        ]),
        403
    );
    assert_eq!(post(&[("Host", "evil.example")]), 403, "a rebound name");
    let own = server.url();
    assert_eq!(post(&[("Origin", own.as_str())]), 200);
    let evil = [("Origin", "http://evil.example")];
    assert!(Socket::try_open(server.address, "/ws?clientId=x", &evil).is_err());
    // Following a link to the page is not an attack.
    let navigate = [
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Mode", "navigate"),
        ("Sec-Fetch-Dest", "document"),
    ];
    assert_eq!(server.request("GET", "/", &navigate, &[]).status, 200);
}

#[test]
fn an_origin_is_scheme_name_and_port() {
    let server = Server::with(&["--allow-host", "box.lan"]);
    let port = server.address.port();
    let ask = |method: &str, host: &str, origin: &str| {
        let headers = [("Host", host), ("Origin", origin)];
        server.request(method, "/interrupt", &headers, b"{}").status
    };
    let own = format!("127.0.0.1:{port}");
    for (host, origin, want) in [
        (&*own, format!("http://127.0.0.1:{port}"), 200),
        (&own, "http://127.0.0.1".to_owned(), 403),
        (&own, format!("https://127.0.0.1:{port}"), 403),
        (&own, format!("http://127.0.0.1:{}", port ^ 1), 403),
        ("127.0.0.1", "http://127.0.0.1:9".to_owned(), 403),
        (
            &format!("localhost:{port}"),
            "http://localhost".to_owned(),
            403,
        ),
        (
            &format!("192.168.7.7:{port}"),
            "http://192.168.7.7".to_owned(),
            403,
        ),
        // A proxy in front, with TLS, that passes the name on or does not.
        ("box.lan", "https://box.lan".to_owned(), 200),
        (&own, "https://box.lan".to_owned(), 200),
        (&own, "https://box.lan:8443".to_owned(), 403),
    ] {
        assert_eq!(ask("POST", host, &origin), want, "{host} {origin}");
    }
    let evil = [("Origin", "http://127.0.0.1")];
    assert!(Socket::try_open(server.address, "/ws?clientId=x", &evil).is_err());
}

#[test]
fn a_request_must_name_its_host() {
    let server = Server::start();
    let raw = |text: &str| {
        let answer = server.connect().raw(text.as_bytes());
        answer.expect("the server answers").status
    };
    assert_eq!(raw("GET /prompt HTTP/1.1\r\n\r\n"), 400);
    assert_eq!(
        raw("POST /free HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"),
        400
    );
    let two = "GET /prompt HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n";
    assert_eq!(raw(two), 400);
    assert_eq!(raw("GET /prompt HTTP/1.1\r\nHost: localhost\r\n\r\n"), 200);
    // The protocol before had no such header.
    assert_eq!(raw("GET /prompt HTTP/1.0\r\n\r\n"), 200);
}

#[test]
fn user_content_cannot_run_here() {
    let server = Server::start();
    let output = server.base.join("output");
    std::fs::create_dir_all(&output).unwrap();
    for (name, content) in [
        ("page.html", "<script>alert(1)</script>"),
        ("script.js", "alert(1)"),
        ("drawing.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>"),
    ] {
        std::fs::write(output.join(name), content).unwrap();
        let answer = server
            .get(&format!("/view?filename={name}"))
            .expect_status(200);
        assert_eq!(
            answer.header("x-content-type-options"),
            Some("nosniff"),
            "{name}"
        );
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(policy.contains("sandbox"), "{name}: {policy}");
        let kind = answer.header("content-type").unwrap();
        assert!(
            !kind.contains("html") && !kind.contains("javascript"),
            "{name}: {kind}"
        );
    }
}

#[cfg(unix)]
#[test]
fn links_do_not_lead_out_of_a_folder() {
    let server = Server::start();
    let output = server.base.join("output");
    std::fs::create_dir_all(&output).unwrap();
    std::fs::write(server.base.join("private.txt"), "secret").unwrap();
    std::os::unix::fs::symlink(server.base.join("private.txt"), output.join("a.txt")).unwrap();
    std::os::unix::fs::symlink(&server.base, output.join("up")).unwrap();
    for path in [
        "/view?filename=a.txt",
        "/view?filename=private.txt&subfolder=up",
    ] {
        let answer = server.get(path);
        assert!(
            matches!(answer.status, 400 | 403 | 404),
            "{path}: {}",
            answer.status
        );
        assert!(!answer.text().contains("secret"));
    }
}

#[test]
fn cors_is_opened_on_request_only() {
    let closed = Server::start();
    let answer = closed
        .request("OPTIONS", "/prompt", &[], &[])
        .expect_status(200);
    assert_eq!(answer.header("access-control-allow-origin"), None);
    let server = Server::start_with(StartOptions {
        arguments: vec!["--enable-cors-header", "https://app.example"],
        ..StartOptions::default()
    });
    let origin = [("Origin", "https://app.example")];
    let answer = server
        .request("GET", "/prompt", &origin, &[])
        .expect_status(200);
    assert_eq!(
        answer.header("access-control-allow-origin"),
        Some("https://app.example")
    );
}

/// Whole lines of the log are the program's own.
#[test]
fn names_from_elsewhere_cannot_write_lines_of_the_log() {
    let mut server = Server::start();
    let id = "a\nforged line\r\u{1b}[2J";
    let body = json!({"prompt": workflow::smallest(3, "log"), "prompt_id": id});
    server.post("/prompt", &body).expect_status(200);
    server.wait_for(&server.queue(&workflow::smallest(4, "log"), None));
    assert!(server.terminate().success());
    let log = server.log();
    assert!(log.contains("forged line"), "{log}");
    assert!(!log.lines().any(|line| line.starts_with("forged")), "{log}");
    assert!(!log.contains('\u{1b}') && !log.contains('\r'), "{log:?}");
}

/// A link that leads out of a folder says nothing about where it leads.
#[cfg(unix)]
#[test]
fn sizes_and_times_behind_links_are_not_told() {
    use std::os::unix::fs::symlink;
    let server = Server::start();
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret.safetensors");
    std::fs::write(&secret, vec![7; 43_217]).unwrap();
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_234_567_890);
    let file = std::fs::File::options().write(true).open(&secret).unwrap();
    file.set_modified(old).unwrap();
    let folder = |name: &str| {
        let path = server.base.join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    };
    let user = folder("user/default/notes");
    std::fs::write(user.join("own.json"), "{}").unwrap();
    symlink(&secret, user.join("link.json")).unwrap();
    symlink(outside.path(), user.join("folder")).unwrap();
    symlink(user.join("own.json"), user.join("inside.json")).unwrap();
    symlink(outside.path().join("nothing"), user.join("nothing.json")).unwrap();
    let loras = folder("models/loras");
    std::fs::write(loras.join("own.safetensors"), "x").unwrap();
    symlink(&secret, loras.join("link.safetensors")).unwrap();
    symlink(outside.path(), loras.join("folder")).unwrap();
    for name in ["input", "output", "temp"] {
        let path = folder(name);
        std::fs::write(path.join("own.png"), "x").unwrap();
        symlink(&secret, path.join("link.png")).unwrap();
    }
    for path in [
        "/userdata?dir=notes&recurse=true&full_info=true",
        "/userdata?dir=notes&recurse=true",
        "/v2/userdata?path=notes",
        "/v2/userdata",
        "/userdata/notes%2Flink.json",
        "/experiment/models/loras",
        "/internal/files/input",
        "/internal/files/output",
        "/internal/files/temp",
        "/view?filename=link.png",
        "/view?filename=link.png&preview=webp",
        "/view?filename=link.png&type=input&channel=a",
        "/view_metadata/loras?filename=link.safetensors",
    ] {
        let answer = server.get(path);
        let told = format!("{:?} {}", answer.headers, answer.text());
        for fact in ["43217", "1234567890", "13 Feb 2009"] {
            assert!(!told.contains(fact), "{path}: {told}");
        }
    }
    let list = server.get("/userdata?dir=notes&full_info=true").json();
    let names: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|e| &e["path"])
        .collect();
    assert_eq!(names, ["inside.json", "own.json"]);
    // Linked models are there to be used.
    let list = server.get("/experiment/models/loras").json();
    let of = |name: &str| {
        let all = list.as_array().unwrap();
        all.iter().find(|e| e["name"] == name).cloned().unwrap()
    };
    assert_eq!(of("own.safetensors")["size"], 1);
    for name in ["link.safetensors", "folder/secret.safetensors"] {
        assert!(of(name)["size"].is_null() && of(name)["modified"].is_null());
    }
    let files = server.get("/internal/files/input").json();
    assert_eq!(files, json!(["own.png"]));
}
