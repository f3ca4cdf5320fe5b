//! Prompts that are wrong or hostile: the right error, nothing written, the worker alive.

use fresco_tests::{Server, http::multipart, workflow};
use serde_json::{Value, json};

#[track_caller]
fn refuse(server: &Server, prompt: &Value, kind: &str) -> Value {
    let answer = server.post("/prompt", &json!({ "prompt": prompt }));
    let answer = answer.expect_status(400).json();
    assert_eq!(answer["error"]["type"], kind, "{answer}");
    answer
}

#[test]
fn every_top_level_error_has_its_name() {
    let server = Server::start();
    let answer = server.post("/prompt", &json!({})).expect_status(400).json();
    assert_eq!(answer["error"]["type"], "no_prompt");
    assert_eq!(answer["error"]["message"], "No prompt provided");
    refuse(&server, &json!({"1": {"inputs": {}}}), "invalid_prompt");
    refuse(
        &server,
        &json!({"1": {"class_type": "Nope", "inputs": {}}}),
        "invalid_prompt",
    );
    refuse(&server, &json!({}), "prompt_no_outputs");
    let missing = json!({"1": {"class_type": "SaveImage", "inputs": {"filename_prefix": "x"}}});
    let answer = refuse(&server, &missing, "prompt_outputs_failed_validation");
    assert_eq!(
        answer["node_errors"]["1"]["errors"][0]["type"],
        "required_input_missing"
    );
    assert_eq!(answer["node_errors"]["1"]["class_type"], "SaveImage");
    assert_eq!(
        answer["node_errors"]["1"]["dependent_outputs"],
        json!(["1"])
    );
}

#[test]
fn values_out_of_range_are_named() {
    let server = Server::start();
    let mut prompt = workflow::picture(0, "range");
    prompt["1"]["inputs"]["width"] = json!(0);
    let answer = refuse(&server, &prompt, "prompt_outputs_failed_validation");
    assert_eq!(
        answer["node_errors"]["1"]["errors"][0]["type"],
        "value_smaller_than_min"
    );
    prompt["1"]["inputs"]["width"] = json!("wide");
    let answer = refuse(&server, &prompt, "prompt_outputs_failed_validation");
    assert_eq!(
        answer["node_errors"]["1"]["errors"][0]["type"],
        "invalid_input_type"
    );
}

#[test]
fn a_cycle_is_refused() {
    let server = Server::start();
    let prompt = json!({
        "1": {"class_type": "ImageInvert", "inputs": {"image": ["2", 0]}},
        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "3": {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}},
    });
    refuse(&server, &prompt, "prompt_outputs_failed_validation");
}

#[test]
fn hostile_json_is_answered_and_survived() {
    let server = Server::start();
    let deep = format!(
        "{{\"prompt\": {}{}}}",
        "[".repeat(200_000),
        "]".repeat(200_000)
    );
    for body in [
        "",
        "{",
        "null",
        "[]",
        "\u{0}",
        "{\"prompt\": 5}",
        "{\"prompt\": []}",
        &deep,
    ] {
        let answer = server.request("POST", "/prompt", &[], body.as_bytes());
        let shown: String = body.chars().take(20).collect();
        assert!(
            (400..=500).contains(&answer.status),
            "{shown:?}: {}",
            answer.status
        );
    }
    let id = server.queue(&workflow::picture(1, "alive"), None);
    assert_eq!(server.wait_for(&id)["status"]["status_str"], "success");
}

#[test]
fn a_body_over_the_limit_is_refused_by_size() {
    let server = Server::with(&["--max-upload-size", "1"]);
    let body = vec![b' '; 1_200_000];
    let answer = server.request("POST", "/prompt", &[], &body);
    assert_eq!(answer.status, 413);
    assert!(answer.text().contains("1048576"), "{}", answer.text());
    server.get("/prompt").expect_status(200);
}

#[test]
fn a_chain_of_thousands_is_no_problem() {
    let server = Server::start();
    let id = server.queue(&workflow::chain(3000, 1, 1), None);
    let entry = server.wait_for(&id);
    assert_eq!(entry["status"]["status_str"], "success");
}

#[test]
fn uploads_stay_in_their_folder() {
    let server = Server::start();
    let before: Vec<_> = listing(&server.base);
    for (name, fields) in [
        ("../q.png", vec![]),
        ("q.png", vec![("subfolder", "..")]),
        ("q.png", vec![("subfolder", "/etc")]),
        ("", vec![]),
        ("q.png", vec![("type", "elsewhere")]),
        ("a\u{7}b.png", vec![]),
    ] {
        let (kind, body) = multipart(&fields, Some(("image", name, b"data")));
        let headers = [("Content-Type", kind.as_str())];
        let answer = server.request("POST", "/upload/image", &headers, &body);
        assert_eq!(answer.status, 400, "{name:?} {fields:?}: {}", answer.text());
    }
    assert_eq!(before, listing(&server.base), "something was written");
    let (kind, body) = multipart(&[], Some(("image", "a.png", b"one")));
    let headers = [("Content-Type", kind.as_str())];
    let names: Vec<Value> = (0..2)
        .map(|_| {
            let answer = server.request("POST", "/upload/image", &headers, &body);
            answer.expect_status(200).json()
        })
        .collect();
    assert_eq!(
        names[0],
        json!({"name": "a.png", "subfolder": "", "type": "input"})
    );
    assert_eq!(names[0], names[1], "the same bytes are not stored twice");
    let (kind, body) = multipart(&[], Some(("image", "a.png", b"two")));
    let headers = [("Content-Type", kind.as_str())];
    let answer = server.request("POST", "/api/upload/image", &headers, &body);
    assert_eq!(answer.expect_status(200).json()["name"], "a (1).png");
}

fn listing(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "png") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn what_was_saved_can_be_looked_at() {
    let server = Server::start();
    let id = server.queue(&workflow::picture(0xff_0000, "look"), None);
    let entry = server.wait_for(&id);
    let image = &entry["outputs"]["3"]["images"][0];
    let path = format!(
        "/view?filename={}&type=output&subfolder=",
        image["filename"].as_str().unwrap()
    );
    let answer = server.get(&path).expect_status(200);
    assert_eq!(answer.header("content-type"), Some("image/png"));
    let picture = fresco_tests::picture::read(std::io::Cursor::new(&answer.body)).unwrap();
    assert_eq!(&picture.pixels[..3], &[0, 255, 255], "red, inverted");
    let part = server.request("GET", &path, &[("Range", "bytes=0-7")], &[]);
    assert_eq!(part.expect_status(206).body, b"\x89PNG\r\n\x1a\n");
    let tag = answer.header("etag").unwrap().to_owned();
    let same = server.request("GET", &path, &[("If-None-Match", &tag)], &[]);
    assert_eq!(same.status, 304);
    let webp = server
        .get(&format!("{path}&preview=webp;90"))
        .expect_status(200);
    assert_eq!(webp.header("content-type"), Some("image/webp"));
    server.get("/view?filename=..%2Fuser").expect_status(400);
    server
        .get("/view?filename=a.png&subfolder=../..")
        .expect_status(403);
}

/// A PNG that claims a size and has next to nothing inside.
fn bomb(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 1, 1);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&[1, 2, 3]).unwrap();
    drop(writer);
    // The header chunk: length, "IHDR", width, height, five bytes, checksum.
    bytes[16..20].copy_from_slice(&width.to_be_bytes());
    bytes[20..24].copy_from_slice(&height.to_be_bytes());
    let sum = checksum(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// The cyclic redundancy check of PNG chunks, bit by bit.
fn checksum(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 {
                (sum >> 1) ^ 0xedb8_8320
            } else {
                sum >> 1
            };
        }
    }
    !sum
}

#[test]
fn hostile_pictures_end_their_own_prompt_only() {
    let server = Server::start();
    let whole = bomb(1, 1);
    let cases: [(&str, Vec<u8>); 5] = [
        ("bomb.png", bomb(60_000, 60_000)),
        ("wide.png", bomb(u32::MAX / 4, 1)),
        ("empty.png", Vec::new()),
        ("cut.png", whole[..whole.len() / 2].to_vec()),
        ("text.png", b"this is no picture at all".to_vec()),
    ];
    for (name, bytes) in cases {
        let (kind, body) = multipart(&[], Some(("image", name, &bytes)));
        let headers = [("Content-Type", kind.as_str())];
        server
            .request("POST", "/upload/image", &headers, &body)
            .expect_status(200);
        let prompt = json!({
            "1": {"class_type": "LoadImage", "inputs": {"image": name}},
            "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
        });
        let entry = server.wait_for(&server.queue(&prompt, None));
        assert_eq!(entry["status"]["status_str"], "error", "{name}");
        let preview = server.get(&format!("/view?filename={name}&type=input&preview=webp"));
        assert!(preview.status >= 400, "{name}: {}", preview.status);
    }
    let id = server.queue(&workflow::picture(2, "alive"), None);
    assert_eq!(server.wait_for(&id)["status"]["status_str"], "success");
}

#[test]
fn hostile_names_are_refused_and_nothing_is_written() {
    let server = Server::start();
    let long = format!("{}.png", "n".repeat(4096));
    let before = listing(&server.base);
    for name in [
        "CON.png",
        "a/../../b.png",
        "..\\b.png",
        "x\u{1}.png",
        "/abs.png",
        &long,
    ] {
        let (kind, body) = multipart(&[("overwrite", "1")], Some(("image", name, b"data")));
        let headers = [("Content-Type", kind.as_str())];
        let answer = server.request("POST", "/upload/image", &headers, &body);
        let shown: String = name.chars().take(20).collect();
        assert_eq!(answer.status, 400, "{shown:?}: {}", answer.text());
        let prompt = json!({
            "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0}},
            "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": name}},
        });
        let entry = server.wait_for(&server.queue(&prompt, None));
        assert_eq!(entry["status"]["status_str"], "error", "{shown:?}");
    }
    assert_eq!(before, listing(&server.base), "something was written");
}
