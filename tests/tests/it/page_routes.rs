//! The page at `/`, and who gets which one.

use std::fs;

use fresco_tests::{Server, http::Response};

fn ask(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
    server.request(method, path, headers, &[])
}

#[test]
fn the_page_is_part_of_the_program() {
    let server = Server::start();
    let page = server.get("/").expect_status(200);
    assert!(page.text().contains("<title>Fresco</title>"));
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(page.header("cache-control"), Some("no-cache"));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    let policy = page
        .header("content-security-policy")
        .expect("there is a policy");
    let sockets = format!("connect-src 'self' ws://{0} wss://{0}", server.address);
    for part in [
        "default-src 'self'",
        "frame-ancestors 'none'",
        "img-src 'self' blob: data:",
        &sockets,
    ] {
        assert!(policy.contains(part), "{part} in {policy}");
    }
    assert!(!policy.contains("http:") && !policy.contains("unsafe-eval"));
    assert_eq!(server.get("/index.html").expect_status(200).body, page.body);

    let tag = page.header("etag").expect("there is a tag").to_owned();
    let known = ask(&server, "GET", "/", &[("If-None-Match", &tag)]).expect_status(304);
    assert!(known.body.is_empty() && known.header("etag") == Some(&tag));
    let packed = ask(&server, "GET", "/", &[("Accept-Encoding", "gzip, br")]);
    if packed.header("content-encoding") == Some("gzip") {
        assert_eq!(&packed.body[..2], [0x1f, 0x8b]);
        assert_ne!(packed.header("etag"), Some(tag.as_str()));
    }
    let head = ask(&server, "HEAD", "/", &[]).expect_status(200);
    assert!(head.body.is_empty() && head.header("etag") == Some(&tag));
    for path in [
        "/..%2FCargo.toml",
        "/assets/..%2f..%2findex.html",
        "/assets/",
        "/assets",
        "/no/such/file.js",
        "/%00",
        "//etc/passwd",
        "/%2Fetc%2Fpasswd",
    ] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
}

#[test]
fn everything_the_page_names_is_there() {
    let server = Server::start();
    let page = server.get("/").expect_status(200).text();
    let mut names: Vec<&str> = Vec::new();
    for attribute in [" src=\"", " href=\""] {
        names.extend(
            page.split(attribute)
                .skip(1)
                .filter_map(|rest| rest.split('"').next()),
        );
    }
    assert!(!names.is_empty(), "{page}");
    for name in names {
        assert!(!name.contains(':') && !name.starts_with("//"), "{name}");
        let path = format!("/{}", name.trim_start_matches("./").trim_start_matches('/'));
        let file = server.get(&path).expect_status(200);
        let kind = file.header("content-type").unwrap_or_default();
        let expected = match path.rsplit('.').next() {
            Some("js") => "application/javascript; charset=utf-8",
            Some("css") => "text/css",
            Some("svg") => "image/svg+xml",
            _ => kind,
        };
        assert_eq!(kind, expected, "{path}");
        let caching = file.header("cache-control");
        assert_eq!(caching, Some("no-cache"), "{path}");
    }
}

#[test]
fn other_pages_are_shown_when_asked_for() {
    let status = Server::with(&["--front-end", "status"]);
    let text = status.get("/").expect_status(200).text();
    assert!(text.contains("ready for workflows"));
    status.get("/index.html").expect_status(404);

    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("comfyui_frontend_package/static");
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("index.html"), "the editor").unwrap();
    let python = folder.path().to_str().unwrap();
    // An installed editor alone changes nothing.
    let ours = Server::with(&["--python", python]);
    assert!(ours.get("/").expect_status(200).text().contains("Fresco"));
    let text = ours.get("/status").expect_status(200).text();
    assert!(text.contains("ready for workflows"));
    ours.get("/api/status").expect_status(404);
    let theirs = Server::with(&["--front-end", "comfy", "--python", python]);
    assert_eq!(theirs.get("/").expect_status(200).text(), "the editor");
    let root = package.to_str().unwrap();
    let given = Server::with(&["--front-end", "fresco", "--front-end-root", root]);
    assert_eq!(given.get("/").expect_status(200).text(), "the editor");
}

#[test]
fn nothing_of_the_page_is_sent_without_the_token() {
    let server = Server::with(&["--token", "open-sesame-42"]);
    for path in ["/", "/index.html", "/assets/index.js", "/status"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    let navigate = [
        ("Sec-Fetch-Mode", "navigate"),
        ("Sec-Fetch-Dest", "document"),
        ("Sec-Fetch-Site", "none"),
    ];
    let login = ask(&server, "GET", "/", &navigate).expect_status(401);
    assert!(login.text().contains(r#"name="token""#), "{}", login.text());
    let welcome = ask(&server, "GET", "/?token=open-sesame-42", &navigate).expect_status(200);
    let cookie = welcome.header("set-cookie").expect("a cookie is set");
    let pair = cookie.split(';').next().unwrap();
    let page = ask(&server, "GET", "/", &[("Cookie", pair)]).expect_status(200);
    assert!(page.header("content-security-policy").is_some());
}
