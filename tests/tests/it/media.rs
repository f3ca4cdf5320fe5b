//! Films and sound with the built program: saved, served, dropped, loaded, broken.

use std::fs;
use std::path::Path;
use std::process::Command;

use fresco_tests::{Server, StartOptions, server::program};
use serde_json::{Value, json};

const FRAMES: usize = 9;

/// A batch of one colour with sound, saved as a film.
fn film(prefix: &str, size: u32) -> Value {
    json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": size, "height": size, "batch_size": FRAMES, "color": 0x0080_4020}},
        "2": {"class_type": "EmptyAudio", "inputs": {"duration": 2.0, "sample_rate": 44100, "channels": 2}},
        "3": {"class_type": "CreateVideo", "inputs": {"images": ["1", 0], "fps": 12.0, "audio": ["2", 0]}},
        "4": {"class_type": "SaveVideo", "inputs":
            {"video": ["3", 0], "filename_prefix": prefix, "format": "auto", "codec": "auto"}},
    })
}

fn succeeds(server: &Server, prompt: &Value) -> Value {
    let id = server.queue(prompt, None);
    let entry = server.wait_for(&id);
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    entry["outputs"].clone()
}

fn fails(server: &Server, prompt: &Value) -> String {
    let id = server.queue(prompt, None);
    failure(&server.wait_for(&id))
}

/// Why a prompt that ran did not run to its end.
fn failure(entry: &Value) -> String {
    assert_eq!(entry["status"]["status_str"], "error", "{entry}");
    let messages = entry["status"]["messages"].as_array().unwrap();
    let error = messages.iter().find(|m| m[0] == "execution_error").unwrap();
    error[1]["exception_message"].as_str().unwrap().to_owned()
}

/// Nothing unfinished is in a folder.
fn is_tidy(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    names.all(|name| !name.starts_with('.'))
}

#[test]
fn a_film_is_saved_served_dropped_and_loaded_again() {
    let server = Server::start();
    let outputs = succeeds(&server, &film("video/film", 64));
    assert_eq!(
        outputs["4"],
        json!({"images": [{"filename": "film_00001_.mp4", "subfolder": "video", "type": "output"}], "animated": [true]})
    );
    let path = "/view?filename=film_00001_.mp4&subfolder=video&type=output";
    let whole = server.get(path).expect_status(200);
    assert_eq!(whole.header("content-type"), Some("video/mp4"));
    assert_eq!(whole.header("accept-ranges"), Some("bytes"));
    let part = server.request("GET", path, &[("Range", "bytes=4-7")], b"");
    assert_eq!((part.status, part.body.as_slice()), (206, &b"ftyp"[..]));

    // Dropped onto the page it brings its prompt back.
    let found = server.request("POST", "/fresco/workflow", &[], &whole.body);
    let found = found.expect_status(200).json();
    assert_eq!(found["prompt"]["3"]["class_type"], "CreateVideo");

    fs::write(server.base.join("input/in.mp4"), &whole.body).unwrap();
    let prompt = json!({
        "1": {"class_type": "LoadVideo", "inputs": {"file": "in.mp4"}},
        "2": {"class_type": "GetVideoComponents", "inputs": {"video": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "frame"}},
        "4": {"class_type": "SaveAudioOpus", "inputs": {"audio": ["2", 1], "filename_prefix": "a", "quality": "64k"}},
        "5": {"class_type": "PreviewAny", "inputs": {"source": ["2", 2]}},
    });
    let outputs = succeeds(&server, &prompt);
    assert_eq!(outputs["3"]["images"].as_array().unwrap().len(), FRAMES);
    assert_eq!(outputs["4"]["audio"][0]["filename"], "a_00001_.opus");
    assert!(outputs["5"]["text"][0].as_str().unwrap().starts_with("12"));
    let sound = server
        .get("/view?filename=a_00001_.opus")
        .expect_status(200);
    assert_eq!(sound.header("content-type"), Some("audio/ogg"));
}

/// What ffprobe says of a file, if it is here; CI has it.
fn probe(path: &Path) -> Option<Value> {
    let answer = Command::new("ffprobe")
        .args([
            "-v",
            "error",
            "-count_frames",
            "-show_streams",
            "-show_format",
            "-of",
            "json",
        ])
        .arg(path)
        .output()
        .ok()?;
    assert!(
        answer.status.success(),
        "{}",
        String::from_utf8_lossy(&answer.stderr)
    );
    assert!(
        answer.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&answer.stderr)
    );
    Some(serde_json::from_slice(&answer.stdout).unwrap())
}

#[test]
fn others_read_what_is_written() {
    if Command::new("ffprobe").arg("-version").output().is_err() {
        eprintln!("skipped: there is no ffprobe");
        return;
    }
    let server = Server::start();
    succeeds(&server, &film("film", 64));
    let output = server.base.join("output");
    let found = probe(&output.join("film_00001_.mp4")).unwrap();
    let (video, sound) = (&found["streams"][0], &found["streams"][1]);
    assert_eq!(video["codec_name"], "h264");
    assert_eq!(
        (&video["nb_read_frames"], &video["avg_frame_rate"]),
        (&json!("9"), &json!("12/1"))
    );
    assert_eq!(video["duration"], "0.750000");
    assert_eq!(
        (&sound["codec_name"], &sound["duration"]),
        (&json!("aac"), &json!("0.750000"))
    );
    assert!(
        found["format"]["tags"]["prompt"]
            .as_str()
            .unwrap()
            .contains("CreateVideo")
    );
    for codec in ["vp9", "av1"] {
        let prompt = json!({
            "1": {"class_type": "EmptyImage", "inputs": {"width": 66, "height": 50, "batch_size": FRAMES, "color": 0x0020_4060}},
            "2": {"class_type": "SaveWEBM", "inputs":
                {"images": ["1", 0], "filename_prefix": codec, "codec": codec, "fps": 24.0, "crf": 32.0}},
        });
        succeeds(&server, &prompt);
        let found = probe(&output.join(format!("{codec}_00001_.webm"))).unwrap();
        let video = &found["streams"][0];
        assert_eq!(video["codec_name"], codec);
        assert_eq!(
            (&video["nb_read_frames"], &video["avg_frame_rate"]),
            (&json!("9"), &json!("24/1"))
        );
        assert_eq!(found["format"]["duration"], "0.375000");
        assert!(
            found["format"]["tags"]["PROMPT"]
                .as_str()
                .unwrap()
                .contains("SaveWEBM")
        );
    }
    for (class, ending, codec) in [
        ("SaveAudio", "flac", "flac"),
        ("SaveAudioMP3", "mp3", "mp3"),
        ("SaveAudioOpus", "opus", "opus"),
    ] {
        let mut prompt = json!({
            "1": {"class_type": "EmptyAudio", "inputs": {"duration": 1.0, "sample_rate": 48000, "channels": 2}},
            "2": {"class_type": class, "inputs": {"audio": ["1", 0], "filename_prefix": "s"}},
        });
        if class != "SaveAudio" {
            prompt["2"]["inputs"]["quality"] = json!("128k");
        }
        let outputs = succeeds(&server, &prompt);
        let name = outputs["2"]["audio"][0]["filename"].as_str().unwrap();
        assert!(name.ends_with(ending));
        let found = probe(&output.join(name)).unwrap();
        assert_eq!(found["streams"][0]["codec_name"], codec);
        let seconds: f64 = found["format"]["duration"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!((seconds - 1.0).abs() < 0.05, "{class}: {seconds}");
    }
}

#[test]
fn hostile_files_end_one_prompt_and_nothing_else() {
    let server = Server::start();
    succeeds(&server, &film("film", 64));
    let good = fs::read(server.base.join("output/film_00001_.mp4")).unwrap();
    let mut lying = good.clone();
    let at = lying.windows(4).position(|w| w == b"stsz").unwrap();
    // More frames than there can be, each of nearly all memory.
    lying[at + 12..at + 16].copy_from_slice(&0x00ff_ffffu32.to_be_bytes());
    let cases: [(&str, &[u8]); 4] = [
        ("cut.mp4", &good[..good.len() / 2]),
        ("lying.mp4", &lying),
        ("text.mp4", b"this is no film"),
        ("empty.mp4", b""),
    ];
    for (name, bytes) in cases {
        fs::write(server.base.join("input").join(name), bytes).unwrap();
        let prompt = json!({
            "1": {"class_type": "LoadVideo", "inputs": {"file": name}},
            "2": {"class_type": "GetVideoComponents", "inputs": {"video": ["1", 0]}},
            "3": {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}},
        });
        let message = fails(&server, &prompt);
        assert!(message.contains(name), "{name}: {message}");
    }
    succeeds(&server, &film("film", 32));
}

#[cfg(unix)]
#[test]
fn a_disk_that_fills_leaves_no_film_behind() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("limited.sh");
    // A limit on files stands in for a full disk.
    let text = format!(
        "#!/bin/sh\ntrap '' XFSZ\nulimit -f 3000\nexec '{}' \"$@\"\n",
        program().display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let server = Server::start_with(StartOptions {
        program: Some(&script),
        ..StartOptions::default()
    });
    // Noise: nothing makes a film of it small.
    let prompt = json!({
        "1": {"class_type": "EmptyAudio", "inputs": {"duration": 60.0, "sample_rate": 44100, "channels": 2}},
        "2": {"class_type": "EmptyImage", "inputs": {"width": 512, "height": 512, "batch_size": 24, "color": 0x0080_8080}},
        "3": {"class_type": "ImageAddNoise", "inputs": {"image": ["2", 0], "seed": 1, "strength": 1.0}},
        "4": {"class_type": "CreateVideo", "inputs": {"images": ["3", 0], "fps": 12.0, "audio": ["1", 0]}},
        "5": {"class_type": "SaveVideo", "inputs":
            {"video": ["4", 0], "filename_prefix": "full", "format": "auto", "codec": "auto"}},
    });
    let message = fails(&server, &prompt);
    assert!(message.contains("cannot write"), "{message}");
    let output = server.base.join("output");
    assert!(is_tidy(&output));
    assert!(!output.join("full_00001_.mp4").exists());
}

fn load(name: &str) -> Value {
    json!({
        "1": {"class_type": "LoadVideo", "inputs": {"file": name}},
        "2": {"class_type": "GetVideoComponents", "inputs": {"video": ["1", 0]}},
        "3": {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}},
    })
}

/// Files that claim to go on and on, or do: a film of zeros, sound of terabytes, and a pipe that nobody writes to.
#[cfg(unix)]
#[test]
fn endless_files_end_one_prompt_and_nothing_else() {
    let server = Server::start();
    succeeds(&server, &film("film", 64));
    let good = fs::read(server.base.join("output/film_00001_.mp4")).unwrap();
    let input = server.base.join("input");
    let endless = |name: &str, begin: &[u8]| {
        let path = input.join(name);
        fs::write(&path, begin).unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_len(1 << 40).unwrap();
    };
    endless("zeros.mp4", &good[..32]);
    let mut wave = b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\x01\0\x02\0".to_vec();
    wave.extend(44_100_u32.to_le_bytes());
    wave.extend(176_400_u32.to_le_bytes());
    wave.extend(b"\x04\0\x10\0data\xff\xff\xff\xff");
    endless("zeros.wav", &wave);
    let pipe = Command::new("mkfifo").arg(input.join("pipe.mp4")).status();
    assert!(pipe.unwrap().success());
    for name in ["zeros.mp4", "pipe.mp4"] {
        let message = refused(&server, &load(name));
        assert!(message.contains(name), "{name}: {message}");
    }
    let sound = json!({
        "1": {"class_type": "LoadAudio", "inputs": {"audio": "zeros.wav"}},
        "2": {"class_type": "PreviewAudio", "inputs": {"audio": ["1", 0]}},
    });
    let message = refused(&server, &sound);
    assert!(message.contains("zeros.wav"), "{message}");
    succeeds(&server, &film("film", 32));
}

/// Why a prompt does not run, whether that is said at once or when it runs.
fn refused(server: &Server, prompt: &Value) -> String {
    let body = json!({ "prompt": prompt }).to_string();
    let answer = server.request(
        "POST",
        "/prompt",
        &[("Content-Type", "application/json")],
        body.as_bytes(),
    );
    if answer.status != 200 {
        return answer.text();
    }
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    failure(&server.wait_for(answer["prompt_id"].as_str().unwrap()))
}

#[test]
fn odd_sizes_are_refused_by_codecs_that_cannot_have_them() {
    let server = Server::start();
    let message = fails(&server, &film("odd", 63));
    assert!(message.contains("63"), "{message}");
    let output = server.base.join("output");
    assert!(!output.join("odd_00001_.mp4").exists() && is_tidy(&output));
    // Of others they are as they are.
    let prompt = json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 37, "height": 21, "batch_size": 3, "color": 0x0080_4020}},
        "2": {"class_type": "SaveWEBM", "inputs":
            {"images": ["1", 0], "filename_prefix": "odd", "codec": "av1", "fps": 12.0, "crf": 32.0}},
    });
    succeeds(&server, &prompt);
    assert!(output.join("odd_00001_.webm").is_file() && is_tidy(&output));
}

/// The frames of a film of which the last ones are shown twice as long.
#[test]
fn variable_frame_rates_keep_every_frame() {
    let server = Server::start();
    succeeds(&server, &film("film", 64));
    let mut film = fs::read(server.base.join("output/film_00001_.mp4")).unwrap();
    // Boxes around the list of durations, which gets an entry more. What they say of places is before them.
    let mut at = 0;
    let mut around = Vec::new();
    for name in [b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stts"] {
        at += film[at..].windows(4).position(|w| w == name).unwrap();
        around.push(at - 4);
    }
    let number = |film: &[u8], at: usize| u32::from_be_bytes(film[at..at + 4].try_into().unwrap());
    let (entries, count, ticks) = (at + 8, at + 12, at + 16);
    assert_eq!(
        (number(&film, entries), number(&film, count)),
        (1, FRAMES as u32)
    );
    let long = number(&film, ticks) * 2;
    for place in around {
        let size = number(&film, place) + 8;
        film[place..place + 4].copy_from_slice(&size.to_be_bytes());
    }
    film[entries..entries + 4].copy_from_slice(&2_u32.to_be_bytes());
    film[count..count + 4].copy_from_slice(&3_u32.to_be_bytes());
    let more = [FRAMES as u32 - 3, long].map(u32::to_be_bytes).concat();
    drop(film.splice(ticks + 4..ticks + 4, more));
    fs::write(server.base.join("input/varied.mp4"), film).unwrap();
    let outputs = succeeds(&server, &load("varied.mp4"));
    assert_eq!(outputs["3"]["images"].as_array().unwrap().len(), FRAMES);
}

#[test]
fn films_without_sound_have_pictures_and_say_what_they_lack() {
    let server = Server::start();
    let mut prompt = film("quiet", 64);
    prompt["3"]["inputs"]
        .as_object_mut()
        .unwrap()
        .remove("audio");
    prompt.as_object_mut().unwrap().remove("2");
    succeeds(&server, &prompt);
    fs::copy(
        server.base.join("output/quiet_00001_.mp4"),
        server.base.join("input/quiet.mp4"),
    )
    .unwrap();
    let outputs = succeeds(&server, &load("quiet.mp4"));
    assert_eq!(outputs["3"]["images"].as_array().unwrap().len(), FRAMES);
    let sound = json!({
        "1": {"class_type": "LoadAudio", "inputs": {"audio": "quiet.mp4"}},
        "2": {"class_type": "PreviewAudio", "inputs": {"audio": ["1", 0]}},
    });
    let message = refused(&server, &sound);
    assert!(message.contains("quiet.mp4"), "{message}");
}

/// A disk of two megabytes, where this user may mount one.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_no_film_behind() {
    struct Mounted(std::path::PathBuf);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
    let base = tempfile::tempdir().unwrap();
    let output = base.path().join("output");
    fs::create_dir_all(&output).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=2m", "films"])
        .arg(&output)
        .output();
    if !mounted.is_ok_and(|made| made.status.success()) {
        // The test with a limit on files stands for it.
        return;
    }
    let _mounted = Mounted(output.clone());
    let server = Server::start_with(StartOptions {
        base: Some(base.path()),
        ..StartOptions::default()
    });
    let prompt = json!({
        "2": {"class_type": "EmptyImage", "inputs": {"width": 512, "height": 512, "batch_size": 24, "color": 0x0080_8080}},
        "3": {"class_type": "ImageAddNoise", "inputs": {"image": ["2", 0], "seed": 1, "strength": 1.0}},
        "4": {"class_type": "CreateVideo", "inputs": {"images": ["3", 0], "fps": 12.0}},
        "5": {"class_type": "SaveVideo", "inputs":
            {"video": ["4", 0], "filename_prefix": "full", "format": "auto", "codec": "auto"}},
    });
    let message = fails(&server, &prompt);
    assert!(message.contains("cannot write"), "{message}");
    assert!(is_tidy(&output) && !output.join("full_00001_.mp4").exists());
    // The space is there again.
    succeeds(&server, &film("small", 32));
}
