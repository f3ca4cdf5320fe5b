//! The built program, as a person at a shell meets it.
#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test may panic"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A base directory of its own and nothing of this machine's environment.
struct BaseFolder(tempfile::TempDir);

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl BaseFolder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fresco"));
        let ours = std::env::vars_os()
            .map(|(k, _)| k)
            .filter(|k| k.to_string_lossy().starts_with("FRESCO_"));
        for name in ours.collect::<Vec<_>>() {
            command.env_remove(name);
        }
        command
            .args(arguments)
            .current_dir(self.path())
            .env("FRESCO_BASE_DIRECTORY", self.path())
            .env("FRESCO_PYTHON", self.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let output = self.command(arguments).output().unwrap();
        Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

const PROMPT: &str = r#"{
    "1": {"class_type": "EmptyImage", "inputs": {"width": 32, "height": 16, "batch_size": 1, "color": 255}},
    "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "made/x"}}
}"#;

#[test]
fn runs_a_prompt_and_lists_its_picture() {
    let place = BaseFolder::new();
    let file = place.write("p.json", PROMPT);
    let ran = place.run(&[
        "run",
        file.to_str().unwrap(),
        "--set",
        "1.width=48",
        "--set",
        "SaveImage.filename_prefix=made/y",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let picture = place.path().join("output/made/y_00001_.png");
    assert_eq!(ran.out, format!("{}\n", picture.display()));
    let bytes = std::fs::read(&picture).unwrap();
    let image = fresco_files::decode(&bytes, &fresco_files::Limits::default()).unwrap();
    assert_eq!((image.first().width, image.first().height), (48, 16));

    // The picture runs again, from what it carries.
    let again = place.run(&["run", picture.to_str().unwrap()]);
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert!(again.out.contains("y_00002_.png"), "{}", again.out);
}

#[test]
fn run_says_what_is_wrong_and_ends_with_1() {
    let place = BaseFolder::new();
    let fails = |name: &str, text: &str, more: &[&str], expected: &str| {
        let file = place.write(name, text);
        let mut arguments = vec!["run", file.to_str().unwrap()];
        arguments.extend(more);
        let ran = place.run(&arguments);
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (Some(1), ""),
            "{name}: {}",
            ran.err
        );
        assert!(ran.err.contains(expected), "{name}: {}", ran.err);
    };
    fails("a.json", "{", &[], "neither JSON nor a picture");
    fails("b.json", "{}", &[], "neither a workflow nor a prompt");
    fails(
        "c.json",
        r#"{"1":{"class_type":"Nowhere","inputs":{}}}"#,
        &[],
        "Nowhere",
    );
    fails("d.json", &PROMPT.replace("32", "\"wide\""), &[], "width");
    fails(
        "e.json",
        PROMPT,
        &["--set", "7.width=1"],
        "unknown node '7'",
    );
    fails("f.json", PROMPT, &["--set", "1.wide=1"], "no input 'wide'");
    let missing = place.run(&["run", "/does/not/exist.json"]);
    assert_eq!(missing.code, Some(1));
    assert!(
        missing.err.contains("cannot open /does/not/exist.json"),
        "{}",
        missing.err
    );
    assert!(
        !place.path().join("output/made").exists(),
        "nothing was written"
    );
}

#[test]
fn converts_editor_files() {
    let place = BaseFolder::new();
    let editor = r#"{"nodes":[
        {"id":1,"type":"EmptyImage","inputs":[],"outputs":[{"name":"IMAGE","type":"IMAGE","links":[7]}],"widgets_values":[64,64,1,0]},
        {"id":2,"type":"SaveImage","inputs":[{"name":"images","type":"IMAGE","link":7}],"outputs":[],"widgets_values":["x"]}],
        "links":[[7,1,0,2,0,"IMAGE"]],"version":0.4}"#;
    let file = place.write("w.json", editor);
    let ran = place.run(&["convert", file.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let prompt = fresco_graph::json::parse(&ran.out).unwrap();
    let link = prompt
        .get("2")
        .and_then(|n| n.get("inputs"))
        .and_then(|i| i.get("images"))
        .unwrap();
    assert_eq!(fresco_graph::json::to_string(link), r#"["1",0]"#);
    let into = place.path().join("api.json");
    let ran = place.run(&[
        "convert",
        file.to_str().unwrap(),
        "-o",
        into.to_str().unwrap(),
    ]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""), "{}", ran.err);
    let ran = place.run(&["run", into.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let ran = place.run(&["run", file.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
}

#[test]
fn lists_and_shows_nodes() {
    let place = BaseFolder::new();
    let all = place.run(&["nodes"]);
    assert_eq!(all.code, Some(0));
    assert!(all.out.lines().count() > 100 && all.out.contains("SaveImage"));
    let one = place.run(&["nodes", "EmptyImage"]);
    assert!(one.out.contains("width: INT"), "{}", one.out);
    let json = place.run(&["nodes", "EmptyImage", "--json"]);
    let info = fresco_graph::json::parse(&json.out).unwrap();
    assert!(
        info.get("EmptyImage")
            .and_then(|i| i.get("input_order"))
            .is_some()
    );
    let none = place.run(&["nodes", "EmptyImag"]);
    assert_eq!(none.code, Some(1));
    assert!(none.err.contains("did you mean"), "{}", none.err);
}

#[test]
fn usage_errors_end_with_2() {
    let place = BaseFolder::new();
    for arguments in [
        &["--nonsense"][..],
        &["--lowvram", "--highvram"],
        &["--listen", "0.0.0.0"],
        &["--front-end-root", "/does/not/exist"],
        &["--port", "70000"],
    ] {
        let ran = place.run(arguments);
        assert_eq!(ran.code, Some(2), "{arguments:?}: {}", ran.err);
        assert!(!ran.err.is_empty());
    }
    place.write("fresco.yaml", "port: many\n");
    assert_eq!(place.run(&[]).code, Some(2));
    place.write("fresco.yaml", "port: [");
    let ran = place.run(&[]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("settings file"), "{}", ran.err);
}

#[test]
fn the_doctor_finds_a_fresh_place_healthy() {
    let place = BaseFolder::new();
    let ran = place.run(&["doctor", "--port", "0"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains(&place.path().display().to_string()));
}

#[test]
fn a_quick_test_prepares_everything_and_ends() {
    let place = BaseFolder::new();
    place.write("temp/old.png", "x");
    let ran = place.run(&[
        "--quick-test-for-ci",
        "--lowvram",
        "--force-channels-last",
        "--sim-device",
        "sim:0=3GiB",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    for part in [
        "--force-channels-last has no effect: channels are always last\n",
        "Total VRAM 3072 MB, total RAM ",
        "Set vram state to: LOW_VRAM",
        "Device: sim:0, beside cpu; of models that do not fit, 2 layers are fetched ahead",
    ] {
        assert!(ran.err.contains(part), "{part} is not in {}", ran.err);
    }
    assert!(!ran.err.contains("To see the GUI"));
    assert!(!place.path().join("temp").exists());
    assert!(place.path().join("user/fresco.db").exists());
}

#[test]
fn a_damaged_database_is_refused_and_kept() {
    let place = BaseFolder::new();
    let file = place.write("user/fresco.db", "precious, but no database");
    let kept = place.write("temp/kept.png", "x");
    let ran = place.run(&["--quick-test-for-ci"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("is not a database"), "{}", ran.err);
    assert_eq!(
        std::fs::read_to_string(file).unwrap(),
        "precious, but no database"
    );
    assert!(
        kept.exists(),
        "a start that fails must not empty the temp folder"
    );
}

/// A server on a port of its own choice.
struct Serving {
    child: Running,
    address: String,
    lines: BufReader<std::process::ChildStderr>,
}

/// A process that ends with the test, however that ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Serving {
    fn start(place: &BaseFolder, more: &[&str]) -> Self {
        let mut arguments = vec!["serve", "--port", "0"];
        arguments.extend(more);
        let mut command = place.command(&arguments);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = Running(command.spawn().unwrap());
        let mut lines = BufReader::new(child.0.stderr.take().unwrap());
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            assert!(lines.read_line(&mut line).unwrap() > 0, "it ended:\n{seen}");
            if let Some(url) = line.trim().strip_prefix("To see the GUI go to: ") {
                assert!(seen.contains("Starting server"), "{seen}");
                let address = url.split_once("://").unwrap().1.to_owned();
                return Self {
                    child,
                    address,
                    lines,
                };
            }
            seen += &line;
        }
    }

    fn get(&self, path: &str, headers: &str) -> String {
        let host = self.address.split('/').next().unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Ctrl-C, then what it says until it ends.
    fn stop(mut self) -> String {
        let status = Command::new("kill")
            .args(["-INT", &self.child.0.id().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        assert!(self.child.0.wait().unwrap().success(), "{rest}");
        rest
    }
}

#[test]
fn serves_and_stops_in_order() {
    let place = BaseFolder::new();
    let serving = Serving::start(&place, &[]);
    assert!(
        serving
            .get("/prompt", "")
            .contains(r#""queue_remaining":0"#)
    );
    assert!(serving.get("/system_stats", "").starts_with("HTTP/1.1 200"));
    assert!(
        serving
            .get("/internal/logs", "")
            .contains("Starting server")
    );
    assert!(place.path().join("temp").is_dir());
    let second = place.run(&["serve", "--port", "0"]);
    assert_eq!(second.code, Some(1));
    assert!(
        second.err.contains("in use by another Fresco"),
        "{}",
        second.err
    );
    assert!(serving.stop().contains("Stopped server"));
    assert!(!place.path().join("temp").exists());
}

#[test]
fn a_token_guards_the_interface() {
    let place = BaseFolder::new();
    let token = place.write("token", "open-sesame\n");
    let serving = Serving::start(&place, &["--token-file", token.to_str().unwrap()]);
    assert!(
        serving.address.ends_with("/?token=open-sesame"),
        "{}",
        serving.address
    );
    assert!(
        serving.get("/prompt", "").starts_with("HTTP/1.1 401"),
        "{}",
        serving.get("/prompt", "")
    );
    assert!(
        serving
            .get("/prompt", "Authorization: Bearer open-sesame\r\n")
            .starts_with("HTTP/1.1 200")
    );
    serving.stop();
}

#[test]
fn memory_of_a_running_server_is_shown_and_freed() {
    let place = BaseFolder::new();
    let serving = Serving::start(
        &place,
        &[
            "--token",
            "s3cret",
            "--sim-device",
            "sim:0=1GiB",
            "--memory-log",
            "memory.jsonl",
        ],
    );
    let url = format!("http://{}", serving.address.split('/').next().unwrap());
    let memory = |more: &[&str]| {
        let mut arguments = vec!["memory"];
        arguments.extend(more);
        arguments.extend(["--url", &url]);
        place.run(&arguments)
    };
    let denied = memory(&[]);
    assert_eq!(denied.code, Some(1));
    assert!(denied.err.contains("--token-file"), "{}", denied.err);

    let shown = memory(&["--token", "s3cret"]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    for part in [
        "devices\n  cpu",
        "sim:0  [........................]  0 of 1.0 GiB used",
        "models\n  none in memory",
        "last decisions",
    ] {
        assert!(shown.out.contains(part), "{part} is not in\n{}", shown.out);
    }
    assert!(!shown.out.contains('\x1b'), "no terminal, no control codes");
    let json = memory(&["--json", "--token", "s3cret"]);
    let state = fresco_graph::json::parse(&json.out).unwrap();
    assert!(state.get("last_seq").is_some());

    let freed = memory(&["free", "--all", "--token", "s3cret"]);
    assert_eq!(freed.code, Some(0), "{}", freed.err);
    assert!(
        freed.out.contains("results of nodes were forgotten"),
        "{}",
        freed.out
    );
    let shown = memory(&["--token", "s3cret"]);
    assert!(shown.out.contains("free.applied"), "{}", shown.out);
    let none = memory(&["keep", "sd15", "--token", "s3cret"]);
    assert_eq!(none.code, Some(1));
    assert!(none.err.contains("unknown model \"sd15\""), "{}", none.err);

    let mut command = place.command(&[
        "memory", "--watch", "0.05", "--token", "s3cret", "--url", &url,
    ]);
    let mut watching = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(watching.0.stdout.take().unwrap());
    let mut tables = 0;
    while tables < 2 {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended");
        tables += usize::from(line == "devices\n");
    }
    // Its answer to Ctrl-C must not wait for somebody to read.
    let drain = std::thread::spawn(move || lines.read_to_string(&mut String::new()));
    let pid = watching.0.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert!(watching.0.wait().unwrap().success());
    drain.join().unwrap().unwrap();

    let stopped = serving.stop();
    assert!(stopped.contains("Stopped server"), "{stopped}");
    let log = std::fs::read_to_string(place.path().join("memory.jsonl")).unwrap();
    assert!(
        log.lines()
            .any(|line| line.contains("\"kind\":\"free.applied\"")),
        "{log}"
    );
    let gone = memory(&[]);
    assert_eq!(gone.code, Some(1));
    assert!(gone.err.contains("no server answers"), "{}", gone.err);
}

mod quantize {
    use std::collections::BTreeMap;

    use fresco_tensor::nn::Linear;
    use fresco_tensor::{
        Device, Dtype, Stored, Tensor, WeightFile, open_weights, safetensors, synthetic,
    };

    use super::BaseFolder;

    const TENSORS: [(&str, &[usize], Dtype); 6] = [
        ("blocks.0.attn.qkv.weight", &[96, 256], Dtype::Bf16),
        ("blocks.0.attn.qkv.bias", &[96], Dtype::Bf16),
        ("blocks.0.mlp.weight", &[64, 512], Dtype::F32),
        ("blocks.0.norm.weight", &[64], Dtype::F32),
        ("final.weight", &[48, 40], Dtype::F16),
        ("x_embedder.weight", &[64, 256], Dtype::F16),
    ];

    fn write_model(place: &BaseFolder) {
        let stored: BTreeMap<&str, Stored> = TENSORS
            .iter()
            .map(|(name, shape, dtype)| {
                let plain = synthetic::weight(name, shape).unwrap();
                (*name, Stored::from_f32(&plain, *dtype).unwrap())
            })
            .collect();
        let pairs: Vec<_> = stored
            .iter()
            .map(|(name, stored)| (*name, stored))
            .collect();
        let metadata = [("modelspec.title".to_owned(), "Small".to_owned())];
        safetensors::write(place.path().join("in.safetensors"), &pairs, &metadata).unwrap();
    }

    fn distance(a: &Tensor, b: &Tensor) -> f64 {
        assert_eq!(a.shape(), b.shape());
        let pairs = a.data().iter().zip(b.data());
        let (off, of) = pairs.fold((0.0, 0.0), |(off, of), (a, b)| {
            let (a, b) = (f64::from(*a), f64::from(*b));
            (off + (a - b).powi(2), of + b * b)
        });
        (off / of).sqrt()
    }

    fn tensor(file: &dyn WeightFile, name: &str) -> Tensor {
        file.read(name).unwrap().to_f32().unwrap()
    }

    /// Every format reads back as the same model, a little off, and layers compute with it.
    #[test]
    fn every_format_is_read_back() {
        let place = BaseFolder::new();
        write_model(&place);
        let before = open_weights(place.path().join("in.safetensors")).unwrap();
        // The format, the most that a layer may be off, and what the layers are then.
        for (format, bound, [qkv, mlp, last]) in [
            ("fp8_e4m3", 0.03, ["fp8_e4m3 scaled"; 3]),
            ("fp8_e5m2", 0.06, ["fp8_e5m2 scaled"; 3]),
            ("int8", 0.01, ["int8"; 3]),
            (
                "int8_convrot",
                0.01,
                ["int8_convrot", "int8_convrot", "int8"],
            ),
            ("nvfp4", 0.12, ["nvfp4", "nvfp4", "F16"]),
            ("mxfp8", 0.03, ["mxfp8", "mxfp8", "F16"]),
            ("w4a8", 0.09, ["w4a8", "w4a8", "F16"]),
            ("int4", 0.16, ["int4_convrot", "int4_convrot", "F16"]),
            ("Q8_0", 0.01, ["Q8_0", "Q8_0", "F16"]),
            ("Q4_0", 0.1, ["Q4_0", "Q4_0", "F16"]),
            ("Q4_1", 0.09, ["Q4_1", "Q4_1", "F16"]),
            ("Q5_0", 0.05, ["Q5_0", "Q5_0", "F16"]),
            ("Q5_1", 0.05, ["Q5_1", "Q5_1", "F16"]),
            ("Q4_K", 0.09, ["Q4_K", "Q4_K", "F16"]),
            ("Q5_K", 0.05, ["Q5_K", "Q5_K", "F16"]),
            ("q6_k", 0.03, ["Q6_K", "Q6_K", "F16"]),
        ] {
            let ending = if format.contains("_K") || format.starts_with(['Q', 'q']) {
                "gguf"
            } else {
                "safetensors"
            };
            let out = format!("out-{format}.{ending}");
            let ran = place.run(&["quantize", "in.safetensors", &out, "--format", format]);
            assert_eq!(ran.code, Some(0), "{format}: {}", ran.err);
            let head = ran.out.lines().next().unwrap();
            assert!(
                head.starts_with("error ") && head.contains("0.01 is 1 %"),
                "{head}"
            );
            let after = open_weights(place.path().join(&out)).unwrap();
            assert_eq!(after.names(), before.names(), "{format}");
            let names = [
                "blocks.0.attn.qkv.weight",
                "blocks.0.mlp.weight",
                "final.weight",
            ];
            for (name, wanted) in names.into_iter().zip([qkv, mlp, last]) {
                let found = after.info(name).unwrap();
                assert_eq!(found.dtype.name(), wanted, "{format} {name}");
                let off = distance(&tensor(&*after, name), &tensor(&*before, name));
                assert!(off < bound, "{format} {name}: {off}");
                // The line about the layer tells the same.
                let line = ran.out.lines().find(|line| line.contains(name));
                match line {
                    Some(line) => {
                        let told: f64 = line.split(' ').next().unwrap().parse().unwrap();
                        assert!((told - off).abs() < 1e-4, "{line}: {off}");
                    }
                    None => assert_eq!((off, wanted), (0.0, "F16"), "{format} {name}"),
                }
                let layer = |file: &dyn WeightFile| {
                    let weight = file.read(name).unwrap();
                    let layer = Linear::new(&weight, None, &Device::cpu()).unwrap();
                    let x = synthetic::value("x", &[9, found.shape[1]], 1.0).unwrap();
                    layer.forward(&x).unwrap()
                };
                let off = distance(&layer(&*after), &layer(&*before));
                assert!(off < 2.0 * bound, "{format} {name}: {off}");
            }
            for name in [
                "blocks.0.attn.qkv.bias",
                "blocks.0.norm.weight",
                "x_embedder.weight",
            ] {
                assert_eq!(
                    after.read(name).unwrap(),
                    before.read(name).unwrap(),
                    "{format}"
                );
            }
            let title = ("modelspec.title".to_owned(), "Small".to_owned());
            assert!(after.metadata().contains(&title), "{format}");
            assert!(
                ran.out.lines().last().unwrap().contains("of 6 tensors"),
                "{}",
                ran.out
            );
        }
        let left = std::fs::read_dir(place.path()).unwrap();
        let drafts = left.filter(|e| {
            e.as_ref()
                .unwrap()
                .path()
                .extension()
                .is_some_and(|e| e == "tmp")
        });
        assert_eq!(drafts.count(), 0);
    }

    #[test]
    fn what_cannot_be_is_said() {
        let place = BaseFolder::new();
        write_model(&place);
        let fails = |arguments: &[&str], code: i32, message: &str| {
            let ran = place.run(arguments);
            assert_eq!(
                (ran.code, ran.out.as_str()),
                (Some(code), ""),
                "{}",
                ran.err
            );
            assert!(ran.err.contains(message), "{}", ran.err);
        };
        let call = |output: &'static str, format: &'static str| {
            ["quantize", "in.safetensors", output, "--format", format]
        };
        fails(&call("out.safetensors", "int3"), 2, "int8_convrot");
        fails(&call("out.gguf", "int8"), 2, "must end in .safetensors");
        fails(&call("out.safetensors", "Q4_K"), 2, "must end in .gguf");
        fails(&call("in.safetensors", "int8"), 1, "over itself");
        let mut forced = call("in.safetensors", "int8").to_vec();
        forced.push("--force");
        fails(&forced, 1, "over itself");
        place.write("there.safetensors", "kept");
        fails(&call("there.safetensors", "int8"), 1, "--force replaces it");
        fails(
            &[
                "quantize",
                "none.safetensors",
                "o.safetensors",
                "--format",
                "int8",
            ],
            1,
            "none.safetensors",
        );
        assert_eq!(
            std::fs::read(place.path().join("there.safetensors")).unwrap(),
            b"kept"
        );
        let mut forced = call("there.safetensors", "int8").to_vec();
        forced.extend(["--force", "--keep", "mlp"]);
        let ran = place.run(&forced);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let file = open_weights(place.path().join("there.safetensors")).unwrap();
        assert_eq!(file.info("blocks.0.mlp.weight").unwrap().dtype, Dtype::F32);
        // What is small already is not made smaller.
        let again = [
            "quantize",
            "there.safetensors",
            "b.safetensors",
            "--format",
            "nvfp4",
        ];
        fails(&again, 1, "has the format int8 already");
        let bias = Tensor::ones([4]).unwrap();
        safetensors::write(place.path().join("b.safetensors"), &[("b", &bias)], &[]).unwrap();
        fails(
            &[
                "quantize",
                "b.safetensors",
                "c.safetensors",
                "--format",
                "int8",
            ],
            1,
            "no matrix",
        );
        assert!(!place.path().join("c.safetensors").exists());
    }
}
