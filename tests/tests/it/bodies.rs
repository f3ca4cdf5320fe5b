//! Bodies of requests: what may come in, packed or not, and how much of it at once.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use fresco_tests::http::{PATIENCE, multipart};
use fresco_tests::{Server, workflow};
use serde_json::json;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn packed_requests_are_understood() {
    let server = Server::start();
    let post = |path: &str, encoding: &str, body: &[u8]| {
        let headers = [
            ("Content-Type", "application/json"),
            ("Content-Encoding", encoding),
        ];
        server.request("POST", path, &headers, body)
    };
    let prompt = json!({"prompt": workflow::picture(1, "packed")}).to_string();
    let answer = post("/prompt", "gzip", &gzip(prompt.as_bytes())).expect_status(200);
    let id = answer.json()["prompt_id"].as_str().unwrap().to_owned();
    assert_eq!(server.wait_for(&id)["status"]["status_str"], "success");
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
    zlib.write_all(b"{\"a\": 1}").unwrap();
    post("/settings", "deflate", &zlib.finish().unwrap()).expect_status(200);
    assert_eq!(server.get("/settings").json()["a"], 1);
    post("/settings", "identity", b"{\"a\": 2}").expect_status(200);
    for encoding in ["br", "zstd", "gzip, gzip", "nonsense"] {
        let answer = post("/prompt", encoding, prompt.as_bytes()).expect_status(415);
        assert_eq!(answer.header("accept-encoding"), Some("gzip, deflate"));
    }
    let broken = post("/prompt", "gzip", prompt.as_bytes()).expect_status(400);
    assert!(
        broken.text().contains("bad_content_encoding"),
        "{}",
        broken.text()
    );
}

#[test]
fn a_small_body_that_unpacks_to_a_large_one_is_refused() {
    let server = Server::with(&["--max-upload-size", "8"]);
    let bomb = gzip(&vec![0; 200 << 20]);
    assert!(bomb.len() < 1 << 20);
    for path in [
        "/prompt",
        "/userdata/bomb.bin",
        "/fresco/workflow",
        "/upload/image",
    ] {
        let headers = [("Content-Encoding", "gzip")];
        let answer = server.request("POST", path, &headers, &bomb);
        assert_eq!(answer.status, 413, "{path}: {}", answer.text());
    }
    assert!(!server.base.join("user/default/bomb.bin").exists());
}

/// A request whose body was announced and does not come to its end.
struct Unfinished(TcpStream);

impl Unfinished {
    fn send(server: &Server, announced: usize, sent: usize) -> Self {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!(
            "POST /userdata/x HTTP/1.1\r\nHost: {}\r\nContent-Length: {announced}\r\n\r\n",
            server.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        // The server may answer before it has read all of this.
        let _ = stream.write_all(&vec![b'x'; sent]);
        Self(stream)
    }

    /// The answer, once the rest was sent.
    fn finish(mut self, missing: usize) -> String {
        let _ = self.0.write_all(&vec![b'x'; missing]);
        let mut answer = vec![0; 4096];
        let read = self.0.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..read]).into_owned()
    }
}

fn held(server: &Server, place: &str) -> u64 {
    let wanted = format!("fresco_request_body_bytes{{place=\"{place}\"}} ");
    let text = server.get("/metrics").expect_status(200).text();
    let line = text.lines().find_map(|l| l.strip_prefix(&wanted));
    line.unwrap_or_else(|| panic!("no such figure in {text}"))
        .parse::<f64>()
        .unwrap() as u64
}

/// Asks until the figure is as it should be.
fn until(server: &Server, place: &str, what: impl Fn(u64) -> bool) {
    let begun = Instant::now();
    loop {
        let bytes = held(server, place);
        if what(bytes) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{place} stays at {bytes}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn unfinished_uploads_of_all_clients_stay_under_a_total() {
    let server = Server::with(&["--max-upload-size", "4", "--max-upload-total", "10"]);
    let size = 4 << 20;
    let open: Vec<Unfinished> = (0..2)
        .map(|_| Unfinished::send(&server, size, size - 100))
        .collect();
    until(&server, "disk", |bytes| bytes == 2 * (size as u64 - 100));
    assert_eq!(held(&server, "memory"), 0, "large ones are not in memory");
    let third = Unfinished::send(&server, size, size - 100).finish(100);
    assert!(third.starts_with("HTTP/1.1 503"), "{third}");
    assert!(third.to_lowercase().contains("retry-after"), "{third}");
    assert!(third.contains("--max-upload-total"), "{third}");
    // Small requests still come in.
    let id = server.queue(&workflow::picture(2, "small"), None);
    server.wait_for(&id);
    // Nothing of an unfinished upload can be read, or is left behind.
    let temp = std::fs::read_dir(server.base.join("temp")).unwrap();
    let names: Vec<_> = temp.flatten().map(|e| e.file_name()).collect();
    assert!(
        names
            .iter()
            .all(|n| !n.to_string_lossy().contains("fresco-")),
        "{names:?}"
    );
    for one in open {
        let answer = one.finish(100);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    until(&server, "disk", |bytes| bytes == 0);
    let stored = std::fs::read(server.base.join("user/default/x")).unwrap();
    assert!(stored.len() == size && stored.iter().all(|b| *b == b'x'));
    // Who goes away holds nothing any more.
    drop(Unfinished::send(&server, size, size / 2));
    until(&server, "disk", |bytes| bytes == 0);
}

#[test]
fn many_small_unfinished_bodies_do_not_fill_the_memory() {
    let server = Server::start();
    let size = 900 << 10;
    let open: Vec<Unfinished> = (0..120)
        .map(|_| Unfinished::send(&server, 1 << 20, size))
        .collect();
    let all = 120 * size as u64;
    let begun = Instant::now();
    while held(&server, "memory") + held(&server, "disk") < all {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let in_memory = held(&server, "memory");
    assert!(in_memory <= 64 << 20, "{in_memory} bytes in memory");
    drop(open);
    until(&server, "memory", |bytes| bytes == 0);
}

#[test]
fn large_uploads_arrive_whole() {
    let server = Server::start();
    let picture: Vec<u8> = (0..5_000_000u32).flat_map(u32::to_le_bytes).collect();
    let fields = [("subfolder", "large"), ("type", "input")];
    let (kind, body) = multipart(&fields, Some(("image", "big.bin", &picture)));
    let headers = [("Content-Type", kind.as_str())];
    for name in ["big.bin", "big.bin"] {
        let answer = server
            .request("POST", "/upload/image", &headers, &body)
            .expect_status(200);
        assert_eq!(
            answer.json()["name"],
            name,
            "the same file is not stored twice"
        );
    }
    let stored = std::fs::read(server.base.join("input/large/big.bin")).unwrap();
    assert!(stored == picture);
    let text = format!("{{\"note\": \"{}\"}}", "n".repeat(3 << 20));
    let json = [("Content-Type", "application/json")];
    server
        .request("POST", "/settings", &json, text.as_bytes())
        .expect_status(200);
    let note = server.get("/settings/note").json();
    assert_eq!(note.as_str().map(str::len), Some(3 << 20));
}

/// A few characters become many times as many bytes: that has to end while they are read, and nothing of it may stay.
#[cfg(target_os = "linux")]
#[test]
fn a_body_of_brackets_is_refused_and_leaves_nothing_behind() {
    const BODY: usize = 30 << 20;
    let server = Server::start();
    let resident = || {
        let path = format!("/proc/{}/status", server.pid());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        let kib = line.and_then(|l| l.split_whitespace().next()).unwrap();
        kib.parse::<usize>().unwrap() << 10
    };
    server.get("/prompt").expect_status(200);
    let before = resident();
    for (path, unit, open, close) in [
        ("/prompt", "[],", r#"{"prompt":["#, "0]}"),
        ("/settings", "{},", r#"{"a":["#, "0]}"),
        (
            "/fresco/workflow",
            "[],",
            r#"{"nodes":["#,
            "0],\"links\":[]}",
        ),
    ] {
        let body = format!("{open}{}{close}", unit.repeat(BODY / unit.len()));
        let headers = [("Content-Type", "application/json")];
        let answer = server.request("POST", path, &headers, body.as_bytes());
        assert_eq!(answer.status, 413, "{path}: {}", answer.text());
        assert!(answer.text().contains("Too many values"), "{path}");
        let more = resident().saturating_sub(before) >> 20;
        assert!(more < 100, "{path} leaves {more} MiB");
    }
    // What is large for other reasons is taken.
    let long = format!(r#"{{"note": "{}"}}"#, "x".repeat(BODY));
    let headers = [("Content-Type", "application/json")];
    let answer = server.request("POST", "/settings", &headers, long.as_bytes());
    answer.expect_status(200);
}
