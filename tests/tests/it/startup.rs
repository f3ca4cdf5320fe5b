//! Start, stop, flags, and the folder the program works in.

use std::{fs, net::TcpListener};

use fresco_tests::{
    Connection, Server, StartOptions,
    server::{free_port, run_program},
    workflow,
};

#[test]
fn the_ready_line_names_the_address() {
    let server = Server::start();
    let log = server.log();
    let expected = format!(
        "To see the GUI go to: http://127.0.0.1:{}",
        server.address.port()
    );
    let starting = log.find("Starting server");
    let ready = log.find(&expected);
    assert!(ready.is_some(), "{log}");
    assert!(starting.is_some() && starting < ready, "{log}");
}

#[test]
fn a_fresh_folder_gets_the_usual_layout() {
    let server = Server::start();
    server.get("/system_stats").expect_status(200);
    let id = server.queue(&workflow::picture(1, "layout"), None);
    server.wait_for(&id);
    assert!(server.base.join("output/layout_00001_.png").is_file());
    assert!(server.base.join("temp").is_dir());
}

#[test]
fn quick_test_starts_everything_and_ends_well() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().to_str().unwrap();
    let (status, _, log) = run_program(
        &["--base-directory", base, "--quick-test-for-ci"],
        folder.path(),
    );
    assert!(status.success(), "{log}");
    assert!(!log.contains("To see the GUI"), "{log}");
}

#[test]
fn wrong_usage_ends_with_two() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        vec!["--no-such-flag"],
        vec!["--port", "many"],
        vec!["--cache-none", "--cache-classic"],
        vec!["--lowvram", "--highvram"],
        vec!["--front-end-root", "/no/such/folder"],
    ] {
        let (status, _, log) = run_program(&arguments, folder.path());
        assert_eq!(status.code(), Some(2), "{arguments:?}: {log}");
        assert!(log.contains(arguments[0]), "{arguments:?}: {log}");
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().to_str().unwrap();
    let (status, _, log) = run_program(&["--base-directory", base, "--port", &port], folder.path());
    assert!(!status.success());
    assert!(log.contains(&port), "{log}");
}

#[test]
fn flags_of_the_reference_are_understood() {
    let server = Server::with(&[
        "--disable-auto-launch",
        "--preview-method",
        "auto",
        "--lowvram",
        "--fast",
        "--reserve-vram",
        "1.5",
        "--disable-xformers",
        "--use-pytorch-cross-attention",
        "--verbose",
        "DEBUG",
    ]);
    let stats = server.get("/system_stats").expect_status(200).json();
    let arguments: Vec<&str> = stats["system"]["argv"]
        .as_array()
        .unwrap()
        .iter()
        .map(|argument| argument.as_str().unwrap())
        .collect();
    assert!(arguments.contains(&"--lowvram"), "{arguments:?}");
}

#[test]
fn directories_can_be_moved_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("pictures");
    let temp = folder.path().join("scratch");
    let server = Server::with(&[
        "--output-directory",
        output.to_str().unwrap(),
        "--temp-directory",
        temp.to_str().unwrap(),
    ]);
    let id = server.queue(&workflow::picture(2, "moved"), None);
    server.wait_for(&id);
    assert!(output.join("moved_00001_.png").is_file());
    assert!(temp.join("temp").is_dir());
}

#[test]
fn stopping_clears_the_temp_folder_and_keeps_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let options = || StartOptions {
        base: Some(folder.path()),
        ..StartOptions::default()
    };
    let mut server = Server::start_with(options());
    let id = server.queue(&workflow::chain(3, 16, 3), None);
    let entry = server.wait_for(&id);
    let name = entry["outputs"]["3"]["images"][0]["filename"]
        .as_str()
        .unwrap();
    assert!(folder.path().join("temp").join(name).is_file());
    server.interrupt();
    assert!(server.log().contains("Stopped server"), "{}", server.log());
    assert!(!folder.path().join("temp").exists());
    // The history is still there after a restart.
    let server = Server::start_with(options());
    let history = server.get(&format!("/history/{id}")).json();
    assert_eq!(history[&id]["status"]["status_str"], "success");
}

#[test]
fn a_broken_database_is_reported_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let options = || StartOptions {
        base: Some(folder.path()),
        ..StartOptions::default()
    };
    let mut server = Server::start_with(options());
    server.wait_for(&server.queue(&workflow::picture(4, "db"), None));
    server.kill();
    drop(server);
    let database = find_database(folder.path()).expect("the program keeps a database");
    for file in [
        database.with_extension("db-wal"),
        database.with_extension("db-shm"),
    ] {
        if file.exists() {
            fs::remove_file(file).unwrap();
        }
    }
    let junk = b"this is not a database, whatever its name says".repeat(100);
    fs::write(&database, &junk).unwrap();
    let Err((status, log)) = Server::try_start(&options()) else {
        panic!("it started on a broken database");
    };
    assert!(!status.success());
    let log = log.join("\n");
    let name = database.file_name().unwrap().to_string_lossy();
    assert!(log.contains(&*name), "{log}");
    assert_eq!(fs::read(&database).unwrap(), junk, "it was overwritten");
}

#[test]
fn the_doctor_finds_what_keeps_a_server_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "no folder").unwrap();
    let mut bases = vec![(file.to_str().unwrap(), "is not a folder")];
    // Nobody makes files there, whoever it is.
    if cfg!(target_os = "linux") {
        bases.push(("/sys/kernel", "cannot write to the folder"));
    }
    for (base, expected) in bases {
        let doctor = ["doctor", "--base-directory", base, "--port", "0"];
        let (status, report, log) = run_program(&doctor, folder.path());
        assert_eq!(status.code(), Some(1), "{report}{log}");
        let problem = report.lines().find(|line| line.contains("PROBLEM"));
        let problem = problem.unwrap_or_else(|| panic!("{base} is fine?\n{report}{log}"));
        assert!(
            problem.contains(base) && problem.contains(expected),
            "{problem}"
        );
        // The server says the same.
        let serve = ["--base-directory", base, "--quick-test-for-ci"];
        let (status, _, log) = run_program(&serve, folder.path());
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.contains(base) && log.contains(expected), "{log}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn folders_that_cannot_be_written_are_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().to_str().unwrap();
    for flag in ["--output-directory", "--temp-directory"] {
        let start = [
            "--base-directory",
            base,
            flag,
            "/sys/kernel",
            "--quick-test-for-ci",
        ];
        let (status, _, log) = run_program(&start, folder.path());
        assert_eq!(status.code(), Some(1), "{flag}: {log}");
        assert!(log.contains(flag) && log.contains("/sys/kernel"), "{log}");
        assert!(
            !folder.path().join("user").exists(),
            "a start that is refused leaves nothing behind"
        );
    }
    // What only reads files may be where nobody can write.
    let start = [
        "--base-directory",
        base,
        "--input-directory",
        "/sys/kernel",
        "--quick-test-for-ci",
    ];
    let (status, _, log) = run_program(&start, folder.path());
    assert!(status.success(), "{log}");
}

/// As somebody who may not write the file: whoever runs the tests may be allowed everything.
#[cfg(unix)]
#[test]
fn a_read_only_database_is_named_with_what_to_do() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::os::unix::process::CommandExt as _;
    const NOBODY: u32 = 65534;
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(StartOptions {
        base: Some(folder.path()),
        ..StartOptions::default()
    });
    server.interrupt();
    drop(server);
    let database = find_database(folder.path()).unwrap();
    let mode = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for place in [folder.path(), database.parent().unwrap()] {
        mode(place, 0o777);
        for entry in fs::read_dir(place).unwrap() {
            let path = entry.unwrap().path();
            let all = if path.is_dir() { 0o777 } else { 0o666 };
            mode(&path, all);
        }
    }
    mode(&database, 0o444);
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(fresco_tests::server::program());
        command
            .args(arguments)
            .arg("--base-directory")
            .arg(folder.path())
            .current_dir(folder.path())
            .env(fresco_tests::server::NO_STARTER, "1");
        if folder.path().metadata().unwrap().uid() == 0 {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    for arguments in [&["--quick-test-for-ci"][..], &["doctor", "--port", "0"]] {
        let (code, text) = run(arguments);
        assert_eq!(code, Some(1), "{text}");
        for part in [database.to_str().unwrap(), "is read-only", "--database-url"] {
            assert!(
                text.contains(part),
                "{arguments:?}: {part} is not in\n{text}"
            );
        }
    }
}

#[cfg(unix)]
#[test]
fn a_second_signal_to_an_idle_server_is_no_alarm() {
    use fresco_tests::socket::Frame;
    let mut server = Server::start();
    let mut socket = server.socket("watcher");
    // A request that does not end holds the orderly end up for a while.
    let mut half = std::net::TcpStream::connect(server.address).unwrap();
    std::io::Write::write_all(
        &mut half,
        b"POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    )
    .unwrap();
    server.get("/prompt").expect_status(200);
    let told = std::process::Command::new("kill")
        .args(["-TERM", &server.pid().to_string()])
        .status();
    assert!(told.unwrap().success());
    while !matches!(socket.frame(), Frame::Closed) {}
    let status = server.terminate();
    let log = server.log();
    assert!(status.success(), "{status}: {log}");
    assert!(log.contains("Stopped server"), "{log}");
    assert!(!log.contains("running prompt"), "{log}");
}

fn find_database(folder: &std::path::Path) -> Option<std::path::PathBuf> {
    for entry in fs::read_dir(folder).ok()? {
        let path = entry.ok()?.path();
        if path.is_dir() {
            if let Some(found) = find_database(&path) {
                return Some(found);
            }
        } else if path.extension().is_some_and(|extension| extension == "db") {
            return Some(path);
        }
    }
    None
}

#[test]
fn the_port_stays_open_after_rubbish() {
    let server = Server::start();
    let mut rubbish = Connection::open(server.address).unwrap();
    // Any answer is fine, also none: the next client must not notice.
    let _ = rubbish.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n");
    let mut half = Connection::open(server.address).unwrap();
    half.raw_head("/prompt", &[]).unwrap();
    drop(half);
    server.get("/prompt").expect_status(200);
}
