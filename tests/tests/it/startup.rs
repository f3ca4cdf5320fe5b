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
