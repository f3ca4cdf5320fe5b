//! The other things the program does: run, convert, nodes, doctor.

use std::{fs, path::Path};

use fresco_tests::{picture, server::run_program, workflow};

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
