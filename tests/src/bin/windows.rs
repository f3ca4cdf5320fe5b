//! Tries the program for Windows under wine: `windows [CASE...]`, started by `cargo xtask windows`, which says in the
//! environment where things are.
//!
//! Files are looked at from this side, where a folder of the program is an ordinary folder, but names, locks and paths are
//! those of Windows: wine judges them as Windows does.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a driver reports to the person who started it, and a surprise ends it"
)]

use std::{
    env,
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use fresco_tests::{
    Response, Server, StartOptions, picture,
    server::{NO_STARTER, free_port, spawn},
    workflow::{self, TextToImage},
};
use serde_json::{Value, json};

/// A name, and what must hold.
type Case = (&'static str, fn(&Windows));

const CASES: &[Case] = &[
    ("picture", a_picture_is_the_one_of_linux),
    ("crash", a_killed_program_goes_on_with_its_queue),
    ("saving", names_of_saved_files),
    ("viewing", names_in_requests),
    ("uploading", names_of_uploads),
    ("held", files_that_others_hold_open),
    ("taken", a_second_program_is_refused),
    ("memory", memory_is_asked_for),
];

fn main() -> Result<()> {
    let windows = Windows::here()?;
    let wanted: Vec<String> = env::args().skip(1).collect();
    for name in &wanted {
        let known = CASES.iter().any(|(case, _)| case == name);
        ensure!(known, "no case {name:?}");
    }
    for (name, check) in CASES {
        if wanted.is_empty() || wanted.iter().any(|case| case == name) {
            let begun = Instant::now();
            check(&windows);
            println!(
                "windows: {name}: ok in {:.1} s",
                begun.elapsed().as_secs_f64()
            );
        }
    }
    Ok(())
}

/// Where things are.
struct Windows {
    /// A script that starts the program.
    program: PathBuf,
    /// The program for this system.
    native: PathBuf,
    /// A program for Windows that holds a file open.
    hold: PathBuf,
}

impl Windows {
    fn here() -> Result<Self> {
        let path = |name: &str| {
            let value = env::var_os(name).with_context(|| format!("{name} is not set"))?;
            anyhow::Ok(PathBuf::from(value))
        };
        Ok(Self {
            program: path("FRESCO_WINE")?,
            native: path("FRESCO_BIN")?,
            hold: path("FRESCO_HOLD")?,
        })
    }

    fn start(&self, base: &Path) -> Server {
        self.start_with(base, &[])
    }

    fn start_with(&self, base: &Path, environment: &[(&'static str, &'static str)]) -> Server {
        Server::start_with(StartOptions {
            base: Some(base),
            program: Some(&self.program),
            environment: environment.to_vec(),
            ..StartOptions::default()
        })
    }

    /// Holds a file open until the value is dropped; `alone` lets nobody else open it.
    fn hold(&self, path: &Path, alone: bool) -> Held {
        let mut command = Command::new("wine");
        command.arg(&self.hold).arg(windows_path(path));
        if alone {
            command.arg("alone");
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "held");
        Held(child)
    }
}

struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// As a program for Windows knows it.
fn windows_path(path: &Path) -> String {
    format!("Z:{}", path.to_str().unwrap().replace('/', "\\"))
}

/// The search for the starter model is on, which the harness turns off.
const WITH_STARTER: (&str, &str) = (NO_STARTER, "0");

fn a_picture_is_the_one_of_linux(windows: &Windows) {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("windows");
    let here = folder.path().join("linux");
    let server = windows.start_with(&there, &[WITH_STARTER]);
    let page = server.get("/").expect_status(200);
    assert!(page.text().contains("<title>Fresco"), "{}", page.text());
    let theirs = drawn(&server);
    drop(server);
    let native = Server::start_with(StartOptions {
        base: Some(&here),
        program: Some(&windows.native),
        environment: vec![WITH_STARTER],
        ..StartOptions::default()
    });
    let ours = drawn(&native);
    assert_eq!(theirs.len(), ours.len());
    let far = theirs.iter().zip(&ours).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(far <= Some(1), "pixels differ by {far:?}");
    let more_than_one_colour = ours.chunks(3).any(|pixel| pixel != &ours[..3]);
    assert!(more_than_one_colour, "the picture is empty");
}

/// A picture of the starter model, by HTTP alone.
fn drawn(server: &Server) -> Vec<u8> {
    let models = server.get("/models/checkpoints").expect_status(200).json();
    let checkpoint = models[0].as_str().expect("the starter model is found");
    let prompt = workflow::text_to_image(&TextToImage {
        checkpoint,
        positive: "a red apple on a table",
        width: 256,
        height: 256,
        steps: 4,
        ..TextToImage::default()
    });
    let id = server.queue(&prompt, None);
    let done = server.wait_for(&id);
    assert_eq!(done["status"]["status_str"], "success", "{done}");
    let image = &done["outputs"]["9"]["images"][0];
    let path = format!(
        "/view?filename={}&subfolder={}&type=output",
        image["filename"].as_str().unwrap(),
        image["subfolder"].as_str().unwrap()
    );
    let file = server.get(&path).expect_status(200).body;
    picture::read(std::io::Cursor::new(file)).unwrap().pixels
}

fn a_killed_program_goes_on_with_its_queue(windows: &Windows) {
    let folder = tempfile::tempdir().unwrap();
    let mut accepted = Vec::new();
    let mut server = windows.start(folder.path());
    let paused = server.post("/fresco/queue", &json!({"paused": true}));
    paused.expect_status(200);
    for round in 0..3 {
        for index in 0..4 {
            let colour = round * 10 + index;
            accepted.push(server.queue(&workflow::picture(colour, "crash\\sub/x"), None));
        }
        server.kill();
        server = windows.start(folder.path());
        let queue = server.get("/queue").expect_status(200).json();
        let waiting = queue["queue_pending"].as_array().unwrap();
        assert_eq!(waiting.len(), accepted.len(), "{queue}");
    }
    let resumed = server.post("/fresco/queue", &json!({"paused": false}));
    resumed.expect_status(200);
    for id in &accepted {
        let done = server.wait_for(id);
        assert_eq!(done["status"]["status_str"], "success", "{done}");
        let image = &done["outputs"]["3"]["images"][0];
        assert_eq!(image["subfolder"], "crash\\sub");
        let name = image["filename"].as_str().unwrap();
        let file = folder.path().join("output/crash/sub").join(name);
        assert_eq!(picture::read_file(&file).unwrap().width, 64);
    }
    let left: Vec<_> = fs::read_dir(folder.path().join("output/crash/sub"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), accepted.len(), "{left:?}");
}

/// Whether a picture with this prefix is saved, and what was said if not.
fn saved(server: &Server, prefix: &str) -> Result<Value, String> {
    let id = server.queue(&workflow::smallest(7, prefix), None);
    let done = server.wait_for(&id);
    if done["status"]["status_str"] == "success" {
        return Ok(done["outputs"]["2"]["images"][0].clone());
    }
    let messages = done["status"]["messages"].as_array().unwrap();
    let error = messages.iter().find(|m| m[0] == "execution_error").unwrap();
    Err(error[1]["exception_message"].as_str().unwrap().to_owned())
}

fn names_of_saved_files(windows: &Windows) {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base");
    let server = windows.start(&base);
    for (prefix, subfolder, name) in [
        ("plain", "", "plain_00001_.png"),
        ("a\\b/c", "a\\b", "c_00001_.png"),
        ("con", "", "con_00001_.png"),
        ("dot.", "", "dot._00001_.png"),
        ("PLAIN", "", "PLAIN_00002_.png"),
        ("漢字/ü", "漢字", "ü_00001_.png"),
    ] {
        let image = saved(&server, prefix).unwrap_or_else(|e| panic!("{prefix:?}: {e}"));
        assert_eq!(image["subfolder"], subfolder, "{prefix:?}");
        assert_eq!(image["filename"], name, "{prefix:?}");
        let path = base
            .join("output")
            .join(subfolder.replace('\\', "/"))
            .join(name);
        assert!(path.is_file(), "{}", path.display());
    }
    for prefix in [
        "..\\up",
        "C:\\up",
        "c:up",
        "\\\\server\\share\\up",
        "\\\\?\\C:\\up",
        "nul/x",
        "com1\\x",
        "trailing./x",
        "space /x",
        "what?",
        "star*",
        "pipe|",
        "stream:x",
        "quote\"",
    ] {
        let error = saved(&server, prefix).expect_err(prefix);
        assert!(!error.is_empty(), "{prefix:?}");
    }
    let beside: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(beside.len(), 1, "{beside:?}");
}

fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        write!(out, "%{byte:02X}").unwrap();
    }
    out
}

fn names_in_requests(windows: &Windows) {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base");
    fs::write(folder.path().join("secret.png"), "secret").unwrap();
    let server = windows.start(&base);
    saved(&server, "sub/seen").unwrap();
    let view = |name: &str, subfolder: &str| {
        let (name, subfolder) = (encoded(name), encoded(subfolder));
        let path = format!("/view?filename={name}&subfolder={subfolder}&type=output");
        server.get(&path)
    };
    assert_eq!(view("seen_00001_.png", "sub").status, 200);
    // Names are the same in capitals.
    assert_eq!(view("SEEN_00001_.PNG", "SUB").status, 200);
    let secret = windows_path(&folder.path().join("secret.png"));
    for (name, sub) in [
        (secret.as_str(), ""),
        ("C:\\windows\\win.ini", ""),
        ("..\\..\\secret.png", ""),
        ("secret.png", "..\\.."),
        ("secret.png", "C:\\"),
        ("\\\\?\\C:\\windows\\win.ini", ""),
        ("\\\\localhost\\c$\\windows\\win.ini", ""),
        ("NUL", ""),
        ("con", ""),
        ("COM1.png", "sub"),
        ("seen_00001_.png.", "sub"),
        ("seen_00001_.png ", "sub"),
        ("seen_00001_.png::$DATA", "sub"),
        ("seen_00001_.png:stream", "sub"),
        ("seen_0000?_.png", "sub"),
        ("*", "sub"),
    ] {
        let answer = view(name, sub);
        let refused = matches!(answer.status, 400 | 403 | 404);
        assert!(refused, "{name:?} {sub:?}: {}", answer.status);
    }
}

fn upload(server: &Server, name: &str, subfolder: &str, overwrite: bool, body: &str) -> Response {
    let mut form = Vec::new();
    for (field, value) in [
        ("subfolder", subfolder),
        ("overwrite", if overwrite { "true" } else { "false" }),
    ] {
        form.extend(
            format!("--x\r\nContent-Disposition: form-data; name=\"{field}\"\r\n\r\n{value}\r\n")
                .into_bytes(),
        );
    }
    form.extend(format!(
        "--x\r\nContent-Disposition: form-data; name=\"image\"; filename=\"{name}\"\r\n\r\n{body}\r\n--x--\r\n"
    ).into_bytes());
    let headers = [("Content-Type", "multipart/form-data; boundary=x")];
    server.request("POST", "/upload/image", &headers, &form)
}

fn names_of_uploads(windows: &Windows) {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base");
    let server = windows.start(&base);
    let stored = upload(&server, "a.png", "one\\two", false, "1")
        .expect_status(200)
        .json();
    assert_eq!(stored["name"], "a.png");
    assert_eq!(
        fs::read_to_string(base.join("input/one/two/a.png")).unwrap(),
        "1"
    );
    // Another content under the same name, in capitals: both stay.
    let second = upload(&server, "A.PNG", "one/two", false, "2")
        .expect_status(200)
        .json();
    assert_ne!(second["name"], "a.png");
    assert_eq!(
        fs::read_to_string(base.join("input/one/two/a.png")).unwrap(),
        "1"
    );
    upload(&server, "a.png", "one/two", true, "3").expect_status(200);
    assert_eq!(
        fs::read_to_string(base.join("input/one/two/a.png")).unwrap(),
        "3"
    );
    for (name, sub) in [
        ("nul", ""),
        ("aux.png", ""),
        ("x.png", "..\\.."),
        ("x.png", "C:\\"),
        ("x.png", "con"),
        ("x.png.", ""),
        ("x.png:y", ""),
        ("x?.png", ""),
    ] {
        let answer = upload(&server, name, sub, false, "4");
        assert!(
            matches!(answer.status, 400 | 403),
            "{name:?} {sub:?}: {} {}",
            answer.status,
            answer.text()
        );
    }
    let beside: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(beside.len(), 1, "{beside:?}");
}

fn files_that_others_hold_open(windows: &Windows) {
    let folder = tempfile::tempdir().unwrap();
    let server = windows.start(folder.path());
    saved(&server, "held").unwrap();
    let file = folder.path().join("output/held_00001_.png");
    let delete = || {
        let wanted = json!({"filename": "held_00001_.png", "subfolder": "", "type": "output"});
        let answer = server.post("/fresco/outputs/delete", &json!({"files": [wanted]}));
        answer.expect_status(200).json()
    };
    let view = || {
        server
            .get("/view?filename=held_00001_.png&type=output")
            .status
    };

    // Who lets others read keeps it from being deleted.
    let held = windows.hold(&file, false);
    assert_eq!(view(), 200);
    let answer = delete();
    assert_eq!(answer["deleted"], json!([]), "{answer}");
    let reason = answer["failed"][0]["reason"].as_str().unwrap();
    assert!(!reason.is_empty(), "{answer}");
    assert!(file.is_file());
    drop(held);
    // Who lets nobody in keeps it from being read.
    let held = windows.hold(&file, true);
    let status = view();
    assert!((400..600).contains(&status), "{status}");
    drop(held);
    assert_eq!(view(), 200);
    assert_eq!(delete()["failed"], json!([]));
    assert!(!file.is_file());

    // An upload that would replace a held file is refused, and leaves neither half.
    upload(&server, "kept.png", "", true, "old").expect_status(200);
    let kept = folder.path().join("input/kept.png");
    let held = windows.hold(&kept, false);
    let answer = upload(&server, "kept.png", "", true, "new");
    assert!((400..600).contains(&answer.status), "{}", answer.status);
    drop(held);
    assert_eq!(fs::read_to_string(&kept).unwrap(), "old");
    upload(&server, "kept.png", "", true, "new").expect_status(200);
    assert_eq!(fs::read_to_string(&kept).unwrap(), "new");
    let names: Vec<_> = fs::read_dir(folder.path().join("input"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(".fresco-"))
        .collect();
    assert!(names.is_empty(), "{names:?}");

    // The server's own files can be read while it runs, and it goes on.
    let _held = windows.hold(&folder.path().join("input/kept.png"), true);
    saved(&server, "after").unwrap();
}

fn a_second_program_is_refused(windows: &Windows) {
    let folder = tempfile::tempdir().unwrap();
    let first = windows.start(folder.path());
    let options = StartOptions {
        program: Some(&windows.program),
        ..StartOptions::default()
    };
    let second = spawn(folder.path(), free_port(), &options)
        .wait_with_output()
        .unwrap();
    assert!(!second.status.success(), "two programs share one folder");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        said.contains("database") || said.contains("in use"),
        "{said}"
    );
    first.get("/queue").expect_status(200);
}

/// Bytes of main memory, all and free, as clients are told.
fn memory(server: &Server) -> (u64, u64) {
    let stats = server.get("/system_stats").expect_status(200).json();
    let bytes = |name: &str| stats["system"][name].as_u64().unwrap();
    (bytes("ram_total"), bytes("ram_free"))
}

fn memory_is_asked_for(windows: &Windows) {
    const GIB: u64 = 1 << 30;
    /// A latent of this width and height takes 64 MiB.
    const WIDTH: u64 = 16384;
    /// The most that one tensor may have, nearly.
    const BATCH: u64 = 511;
    let native = Server::start_with(StartOptions {
        program: Some(&windows.native),
        ..StartOptions::default()
    });
    let (here, _) = memory(&native);
    drop(native);
    // The budget of one prompt is not what is tried.
    let server = Server::start_with(StartOptions {
        program: Some(&windows.program),
        arguments: vec!["--max-prompt-memory", "1000"],
        ..StartOptions::default()
    });
    let (total, free) = memory(&server);
    // A container's limit is heeded on Linux only.
    assert!(total >= here / 100 * 99, "{total} of {here}");
    assert!(free > 0 && free <= total, "{free} of {total}");
    if free > 31 * GIB {
        println!("windows: this machine has room for the largest tensor, so none is refused");
        return;
    }
    let prompt = json!({
        "1": {"class_type": "EmptyLatentImage", "inputs":
            {"width": WIDTH, "height": WIDTH, "batch_size": BATCH}},
        "2": {"class_type": "SaveLatent", "inputs": {"samples": ["1", 0], "filename_prefix": "x"}},
    });
    let done = server.wait_for(&server.queue(&prompt, None));
    let messages = done["status"]["messages"].as_array().unwrap();
    let error = messages.iter().find(|m| m[0] == "execution_error");
    let said = error.unwrap()[1]["exception_message"].as_str().unwrap();
    assert!(said.contains("not enough memory"), "{said}");
    saved(&server, "after").unwrap();
}
