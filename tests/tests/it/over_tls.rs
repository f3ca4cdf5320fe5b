//! `fresco memory` and a server that speaks TLS.

use std::path::Path;

use fresco_tests::{Server, server::run_program};

const SECRET: &str = "a-secret-of-enough-characters";

#[test]
fn memory_is_shown_over_tls() {
    // Self-signed for `localhost`.
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/app/tests/data");
    let (key, certificate) = (data.join("key.pem"), data.join("cert.pem"));
    let (key, certificate) = (key.to_str().unwrap(), certificate.to_str().unwrap());
    let flags = ["--tls-keyfile", key, "--tls-certfile", certificate];
    let server = Server::with(&[&flags[..], &["--token", SECRET]].concat());
    let port = server.address.port();
    let ask = |scheme: &str, more: &[&str]| {
        let url = format!("{scheme}://localhost:{port}");
        let arguments = [&["memory", "--url", &url], more].concat();
        let (status, out, said) = run_program(&arguments, &server.base);
        (status.success(), out, said)
    };
    let trusted = ["--tls-cafile", certificate, "--token", SECRET];
    let (well, out, said) = ask("https", &[&trusted[..], &["--json"]].concat());
    assert!(well, "{said}");
    let state: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(state["devices"].is_array(), "{out}");
    let (well, out, said) = ask("https", &[&["free", "--dry-run"], &trusted[..]].concat());
    assert!(well, "{out}{said}");

    // Each way it can go wrong is told apart.
    for (scheme, more, words) in [
        ("https", &trusted[2..], "--tls-cafile"),
        ("https", &trusted[..2], "needs its secret"),
        ("http", &trusted[2..], "http://localhost"),
        ("http", &trusted[..], "of no use"),
    ] {
        let (well, out, said) = ask(scheme, more);
        assert!(!well, "{scheme} {more:?}: {out}");
        assert!(said.contains(words), "{scheme} {more:?}: {said}");
    }
}
