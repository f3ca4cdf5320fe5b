//! The other things the program does: run, convert, nodes, doctor.

use std::{fs, path::Path};

use fresco_tests::{
    picture,
    server::{NO_STARTER, program, run_program},
    tiny::Tiny,
    workflow::{self, TextToImage},
};

fn write_workflow(folder: &Path) -> String {
    let path = folder.join("workflow.json");
    fs::write(&path, workflow::picture(7, "ran").to_string()).unwrap();
    path.to_string_lossy().into_owned()
}

#[test]
fn run_needs_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().to_str().unwrap();
    let file = write_workflow(folder.path());
    let (status, listed, log) =
        run_program(&["run", &file, "--base-directory", base], folder.path());
    assert!(status.success(), "{log}");
    assert!(listed.contains("ran_00001_.png"), "{listed}\n{log}");
    let saved = folder.path().join("output/ran_00001_.png");
    assert_eq!(picture::read_file(&saved).unwrap().width, 64);
    // The picture carries its workflow and can be run again, with a value changed.
    let again = [
        "run",
        saved.to_str().unwrap(),
        "--base-directory",
        base,
        "--set",
        "1.width=32",
    ];
    let (status, _, log) = run_program(&again, folder.path());
    assert!(status.success(), "{log}");
    let second = picture::read_file(&folder.path().join("output/ran_00002_.png")).unwrap();
    assert_eq!((second.width, second.height), (32, 64));
}

#[test]
fn a_run_that_fails_ends_with_one() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().to_str().unwrap();
    let file = write_workflow(folder.path());
    for more in [
        vec!["--set", "3.filename_prefix=../x"],
        vec!["--set", "1.width=0"],
    ] {
        let mut arguments = vec!["run", &file, "--base-directory", base];
        arguments.extend(more);
        let (status, _, log) = run_program(&arguments, folder.path());
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(!log.is_empty());
    }
    let (status, _, log) = run_program(&["run", "missing.json"], folder.path());
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("missing.json"), "{log}");
}

#[test]
fn a_saved_editor_file_is_converted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("editor.json");
    let graph = serde_json::json!({
        "version": 0.4, "last_node_id": 2, "last_link_id": 1,
        "nodes": [
            {"id": 1, "type": "EmptyImage", "mode": 0, "inputs": [],
             "outputs": [{"name": "IMAGE", "type": "IMAGE", "links": [1]}],
             "widgets_values": [64, 32, 1, 0]},
            {"id": 2, "type": "PreviewImage", "mode": 0,
             "inputs": [{"name": "images", "type": "IMAGE", "link": 1}], "outputs": []},
        ],
        "links": [[1, 1, 0, 2, 0, "IMAGE"]],
    });
    fs::write(&file, graph.to_string()).unwrap();
    let (status, converted, log) = run_program(&["convert", file.to_str().unwrap()], folder.path());
    assert!(status.success(), "{log}");
    let prompt: serde_json::Value = serde_json::from_str(&converted).unwrap();
    assert_eq!(prompt["1"]["inputs"]["height"], 32);
    assert_eq!(prompt["2"]["inputs"]["images"], serde_json::json!(["1", 0]));
}

#[test]
fn nodes_and_doctor_tell_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let (status, nodes, log) = run_program(&["nodes"], folder.path());
    assert!(status.success(), "{log}");
    assert!(
        nodes.contains("EmptyImage") && nodes.contains("SaveImage"),
        "{nodes}"
    );
    let base = folder.path().to_str().unwrap();
    let (status, report, log) = run_program(&["doctor", "--base-directory", base], folder.path());
    assert!(status.success(), "{log}");
    assert!(report.contains(base), "{report}");
}

#[test]
fn a_quiet_run_says_nothing_but_its_results() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().to_str().unwrap();
    let file = write_workflow(folder.path());
    let run = |more: &[&str]| {
        let arguments = [&["run", &file, "--base-directory", base][..], more].concat();
        let (status, listed, log) = run_program(&arguments, folder.path());
        assert!(status.success(), "{log}");
        (listed, log)
    };
    let (listed, log) = run(&["-q"]);
    assert!(listed.trim().ends_with("ran_00001_.png"), "{listed}");
    assert_eq!(log, "");
    let (_, log) = run(&[]);
    assert!(
        log.contains("Device: cpu; no accelerator is used\n"),
        "{log}"
    );
    // Whoever asks for more gets it.
    let (_, log) = run(&["-q", "--verbose", "DEBUG"]);
    assert!(!log.is_empty());
}

#[test]
fn unknown_nodes_of_an_editor_file_are_named_as_the_editor_names_them() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().to_str().unwrap();
    let file = folder.path().join("editor.json");
    let graph = serde_json::json!({
        "version": 0.4, "last_node_id": 7, "last_link_id": 1,
        "nodes": [
            {"id": 7, "type": "FaceDetailer", "title": "Mend faces", "mode": 0, "inputs": [],
             "outputs": [{"name": "IMAGE", "type": "IMAGE", "links": [1]}], "widgets_values": [64]},
            {"id": 2, "type": "PreviewImage", "mode": 0,
             "inputs": [{"name": "images", "type": "IMAGE", "link": 1}], "outputs": []},
        ],
        "links": [[1, 7, 0, 2, 0, "IMAGE"]],
    });
    fs::write(&file, graph.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let expected = "node 7 \"Mend faces\" (FaceDetailer)";
    let run = ["run", file, "--base-directory", base];
    let (status, _, log) = run_program(&run, folder.path());
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(
        log.contains(expected) && !log.contains("class_type"),
        "{log}"
    );
    let doctor = ["doctor", file, "--base-directory", base, "--port", "0"];
    let (status, report, log) = run_program(&doctor, folder.path());
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(report.contains(expected), "{report}");
}

/// A picture that takes hours on a processor.
fn write_large(folder: &Path) -> String {
    Tiny::default().write(folder, "model.safetensors").unwrap();
    let prompt = workflow::text_to_image(&TextToImage {
        width: 16384,
        height: 16384,
        ..TextToImage::default()
    });
    let path = folder.join("large.json");
    fs::write(&path, prompt.to_string()).unwrap();
    path.to_string_lossy().into_owned()
}

#[test]
fn a_very_large_picture_on_a_processor_is_asked_about() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().to_str().unwrap();
    let file = write_large(folder.path());
    let run = ["run", &file, "--base-directory", base, "-q"];
    let (status, _, log) = run_program(&run, folder.path());
    assert_eq!(status.code(), Some(1), "{log}");
    for part in ["16384 x 16384", "at least ", "of memory", "--yes"] {
        assert!(log.contains(part), "{part} is not in {log}");
    }
    // A small one is nobody's question.
    let small = ["--set", "5.width=64", "--set", "5.height=64"];
    let (status, _, log) = run_program(&[&run[..], &small].concat(), folder.path());
    assert!(status.success(), "{log}");
}

#[cfg(unix)]
#[test]
fn a_run_that_is_told_to_stop_ends_with_a_word() {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::process::{Command, Stdio};
    let folder = tempfile::tempdir().unwrap();
    let file = write_large(folder.path());
    for (signal, word, code) in [("-INT", "interrupted", 130), ("-TERM", "terminated", 143)] {
        let mut child = Command::new(program())
            .args(["run", &file, "--yes", "--base-directory"])
            .arg(folder.path())
            .env(NO_STARTER, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        // It hears signals from then on.
        while !said.contains("at least ") {
            assert!(log.read_line(&mut said).unwrap() > 0, "{said}");
        }
        let told = Command::new("kill")
            .args([signal, &child.id().to_string()])
            .status();
        assert!(told.unwrap().success());
        log.read_to_string(&mut said).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(code), "{said}");
        assert!(said.contains(&format!("{word}: stopping")), "{said}");
    }
}
