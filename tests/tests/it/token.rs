//! The token: who learns it, and how fast it can be guessed.

use std::time::Instant;

use fresco_tests::{Server, StartOptions};

const TOKEN: &str = "a-token-of-some-length-7";

/// What a browser has after it opened the address with the token.
fn cookie(server: &Server, token: &str) -> String {
    let answer = server.get(&format!("/?token={token}")).expect_status(200);
    let cookie = answer.header("set-cookie").expect("a cookie is set");
    cookie.split(';').next().unwrap_or_default().to_owned()
}

#[test]
fn who_came_in_with_a_cookie_cannot_read_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    let file = file.to_str().unwrap();
    for (arguments, environment) in [
        (vec!["--token", TOKEN, "--verbose", "DEBUG"], vec![]),
        (vec!["--token-file", file, "--verbose", "DEBUG"], vec![]),
        (vec!["--verbose", "DEBUG"], vec![("FRESCO_TOKEN", TOKEN)]),
    ] {
        let server = Server::start_with(StartOptions {
            arguments,
            environment,
            ..StartOptions::default()
        });
        let cookie = cookie(&server, TOKEN);
        // The terminal still has the address that logs in.
        assert!(server.log().contains(&format!("?token={TOKEN}")));
        let get = |path: &str| server.request("GET", path, &[("Cookie", &cookie)], &[]);
        let odd = format!("/no/such/place/{TOKEN}?token={TOKEN}");
        assert_eq!(get(&odd).status, 404);
        for path in [
            "/internal/logs",
            "/internal/logs/raw",
            "/system_stats",
            "/metrics",
            "/settings",
            "/userdata?dir=.&recurse=true",
            "/internal/folder_paths",
            "/features",
            "/openapi.json",
            "/status",
            "/",
        ] {
            let text = get(path).text();
            assert!(!text.contains(TOKEN), "{path}: {text}");
        }
        let log = get("/internal/logs").expect_status(200).text();
        assert!(log.contains("?token=***"), "{log}");
    }
}

#[test]
fn a_token_file_is_not_kept_where_clients_read() {
    let base = tempfile::tempdir().unwrap();
    let file = base.path().join("input/token.txt");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, TOKEN).unwrap();
    let file = file.to_str().unwrap();
    let base = base.path().to_str().unwrap();
    let arguments = ["--base-directory", base, "--token-file", file];
    let folder = std::path::Path::new(base);
    let (status, _, log) = fresco_tests::server::run_program(&arguments, folder);
    assert_eq!(status.code(), Some(2), "{log}");
    assert!(log.contains("clients can read"), "{log}");
}

#[test]
fn guesses_are_slowed_down_and_the_right_token_still_works() {
    let server = Server::with(&["--token", TOKEN]);
    let status = |token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str())];
        server.request("GET", "/queue", &headers, &[])
    };
    let begun = Instant::now();
    // Some at once: a typing error costs nothing.
    for n in 0..5 {
        assert_eq!(status(&format!("wrong-{n}")).status, 401);
    }
    assert_eq!(status(TOKEN).status, 200);
    // Many at the same time: all wait for their turn, or are told to.
    let answers: Vec<_> = std::thread::scope(|scope| {
        let status = &status;
        let workers: Vec<_> = (0..40)
            .map(|n| scope.spawn(move || status(&format!("guess-{n}"))))
            .collect();
        workers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    let refused: Vec<_> = answers.iter().filter(|a| a.status == 429).collect();
    assert!(answers.iter().all(|a| matches!(a.status, 401 | 429)));
    assert!(!refused.is_empty(), "40 guesses at once were all looked at");
    let first = refused[0];
    assert!(first.header("retry-after").is_some());
    assert!(
        first.text().contains("too_many_wrong_tokens"),
        "{}",
        first.text()
    );
    let looked_at = 5 + answers.len() - refused.len();
    let allowed = 10 + begun.elapsed().as_secs() as usize + 1;
    assert!(looked_at <= allowed, "{looked_at} of {allowed}");
    // One that was wrong before is no new guess, and the right one gets in without much ado.
    assert_eq!(status("wrong-4").status, 401);
    let right = loop {
        let answer = status(TOKEN);
        if answer.status != 429 {
            break answer;
        }
        assert!(begun.elapsed() < fresco_tests::http::PATIENCE, "locked out");
    };
    assert_eq!(right.status, 200);
    // A connection that has shown the token waits no more.
    let mut connection = server.connect();
    connection.headers = vec![("Authorization".into(), format!("Bearer {TOKEN}"))];
    for _ in 0..20 {
        connection.get("/queue").unwrap().expect_status(200);
    }
}

#[test]
fn one_request_is_not_many_guesses() {
    let server = Server::with(&["--token", TOKEN]);
    let right = cookie(&server, TOKEN);
    let mut list: Vec<String> = (0..50).map(|n| format!("fresco_token={n:064x}")).collect();
    list.push(right.clone());
    let all = list.join("; ");
    let ask = |cookie: &str| server.request("GET", "/queue", &[("Cookie", cookie)], &[]);
    assert_eq!(ask(&all).status, 401);
    assert_eq!(ask(&right).status, 200);
}
