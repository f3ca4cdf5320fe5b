//! The memory room from outside: a server with simulated devices, a workflow whose three parts are loaded by the nodes
//! that place and keep models, and what `/memory` says about it.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    Server, StartOptions,
    http::{PATIENCE, Response},
    picture,
    server::program,
    tiny::{self, Keys, Tiny},
};

pub const MIB: u64 = 1 << 20;

/// Two devices that have room for everything small, and nothing set aside for computing.
pub const ROOMY: &[&str] = &[
    "--sim-device",
    "sim:0=512MiB",
    "--sim-device",
    "sim:1=512MiB",
    "--reserve-vram",
    "0",
    "--inference-reserve",
    "0.001",
];

/// One device of this size, with as little set aside for computing as can be.
pub fn one_device(size: &str) -> Vec<String> {
    let device = format!("sim:0={size}");
    ["--sim-device", &device, "--reserve-vram", "0"]
        .into_iter()
        .chain(["--inference-reserve", "0.001"])
        .map(str::to_owned)
        .collect()
}

/// A weight file that tests link to, made by whoever needs it first: it stays next to the program for the next run.
fn made(name: &str) -> PathBuf {
    static ONE: Mutex<()> = Mutex::new(());
    let small = Tiny::default();
    let keys = match name {
        "u" => small.unet(),
        "c" => small.text(),
        "v" => small.vae(),
        "large" => large().unet(),
        "model" => small.checkpoint(),
        "lora" => lora(&small, "diffusion_model.", "attn"),
        _ => panic!("no weights are called {name}"),
    };
    // Under the name of its layout, so that a changed one is another file.
    let mut hash = DefaultHasher::new();
    keys.hash(&mut hash);
    let folder = program().with_file_name("test-weights");
    let path = folder.join(format!("{name}-{:016x}.safetensors", hash.finish()));
    // A test that failed while it wrote left nothing under the final name.
    let _guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !path.is_file() {
        fs::create_dir_all(&folder).expect("the folder of the program can be written");
        let part = folder.join(format!("{name}.{}", std::process::id()));
        tiny::write(&part, &keys).expect("the folder of the program can be written");
        fs::rename(&part, &path).expect("a file just written can be renamed");
    }
    path
}

/// About 107 MiB in its network that removes noise.
pub fn large() -> Tiny {
    Tiny {
        channels: 96,
        ..Tiny::default()
    }
}

/// Keys of a LoRA of rank 2 for every matrix of the network whose name contains `part`.
pub fn lora(tiny: &Tiny, prefix: &str, part: &str) -> Keys {
    let mut keys = Keys::new();
    for (key, shape) in tiny.unet() {
        let Some(layer) = key.strip_suffix(".weight") else {
            continue;
        };
        if key.contains(part) && shape.len() == 2 {
            keys.insert(format!("{prefix}{layer}.lora_up.weight"), vec![shape[0], 2]);
            keys.insert(
                format!("{prefix}{layer}.lora_down.weight"),
                vec![2, shape[1]],
            );
        }
    }
    keys
}

/// A base folder with the parts in it: `u`, `large` (ten times `u`), `c`, `v`, the checkpoint `model` and `lora`.
pub fn base() -> TempDir {
    let base = tempfile::tempdir().expect("a temporary folder can be made");
    for (folder, name) in [
        ("diffusion_models", "u"),
        ("diffusion_models", "large"),
        ("text_encoders", "c"),
        ("vae", "v"),
        ("checkpoints", "model"),
        ("loras", "lora"),
    ] {
        add(base.path(), folder, name, name);
    }
    base
}

/// Puts one of the made files into a model folder under a name; gives its path.
pub fn add(base: &Path, folder: &str, file: &str, name: &str) -> PathBuf {
    let folder = base.join("models").join(folder);
    fs::create_dir_all(&folder).expect("a temporary folder can be made");
    let to = folder.join(format!("{name}.safetensors"));
    let from = made(file);
    // A hard link, so that a hundred tests do not copy a hundred megabytes each: another file to everyone who looks at
    // paths. Tests that change a file put a copy there. Folders on two disks need copies too.
    fs::hard_link(&from, &to)
        .or_else(|_| fs::copy(&from, &to).map(drop))
        .expect("a temporary file can be written");
    to
}

/// How one part is loaded: the inputs of its node.
#[derive(Clone, Debug)]
pub struct Part {
    pub file: &'static str,
    /// `None`: the input is not there. Else `auto`, `keep` or `eject_after`.
    pub retention: Option<&'static str>,
    pub eject: bool,
    pub device: &'static str,
    pub virtual_gb: f64,
    pub donor: &'static str,
    pub expert: String,
    /// The plain loader, which has none of these inputs.
    pub plain: bool,
}

impl Part {
    fn new(file: &'static str) -> Self {
        Self {
            file,
            retention: None,
            eject: false,
            device: "sim:0",
            virtual_gb: 0.0,
            donor: "cpu",
            expert: String::new(),
            plain: false,
        }
    }

    fn node(&self, base: &str, inputs: Value, device: &str) -> Value {
        let mut node = json!({"class_type": base, "inputs": inputs});
        if self.plain {
            return node;
        }
        node["class_type"] = json!(format!("{base}DisTorch2MultiGPU"));
        let inputs = &mut node["inputs"];
        inputs[device] = json!(self.device);
        inputs["virtual_vram_gb"] = json!(self.virtual_gb);
        inputs["donor_device"] = json!(self.donor);
        inputs["expert_mode_allocations"] = json!(self.expert);
        inputs["eject_models"] = json!(self.eject);
        if let Some(retention) = self.retention {
            inputs["retention"] = json!(retention);
        }
        node
    }
}

/// From words to a picture with three separate files.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Node 1.
    pub u: Part,
    /// Node 2.
    pub c: Part,
    /// Node 3.
    pub v: Part,
    pub seed: u64,
    pub steps: u32,
    pub text: &'static str,
    pub size: u32,
    /// Strength of the LoRA between the model and the sampler (node 20), if there is one.
    pub lora: Option<f64>,
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            u: Part::new("u"),
            c: Part::new("c"),
            v: Part::new("v"),
            seed: 1,
            steps: 1,
            text: "a photo of a cat",
            size: 64,
            lora: None,
        }
    }
}

impl Flow {
    /// What U, C and V say about staying.
    pub fn retaining(u: &'static str, c: &'static str, v: &'static str) -> Self {
        let mut flow = Self::default();
        flow.u.retention = Some(u);
        flow.c.retention = Some(c);
        flow.v.retention = Some(v);
        flow
    }

    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Nodes 1 to 3 load, 4 is the size, 5 and 6 the words, 7 samples, 8 decodes, 9 saves, 20 is the LoRA.
    pub fn prompt(&self) -> Value {
        let file = |part: &Part| format!("{}.safetensors", part.file);
        let unet = json!({"unet_name": file(&self.u), "weight_dtype": "default"});
        let clip = json!({"clip_name": file(&self.c), "type": "stable_diffusion"});
        let vae = json!({"vae_name": file(&self.v)});
        let mut prompt = json!({
            "1": self.u.node("UNETLoader", unet, "compute_device"),
            "2": self.c.node("CLIPLoader", clip, "device"),
            "3": self.v.node("VAELoader", vae, "compute_device"),
            "4": {"class_type": "EmptyLatentImage", "inputs":
                {"width": self.size, "height": self.size, "batch_size": 1}},
            "5": {"class_type": "CLIPTextEncode", "inputs": {"text": self.text, "clip": ["2", 0]}},
            "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "blurry", "clip": ["2", 0]}},
            "7": {"class_type": "KSampler", "inputs": {
                "seed": self.seed, "steps": self.steps, "cfg": 7.0, "sampler_name": "euler",
                "scheduler": "normal", "denoise": 1.0, "model": ["1", 0], "positive": ["5", 0],
                "negative": ["6", 0], "latent_image": ["4", 0]}},
            "8": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0], "vae": ["3", 0]}},
            "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "p"}},
        });
        if let Some(strength) = self.lora {
            prompt["20"] = json!({"class_type": "LoraLoaderModelOnly", "inputs": {
                "model": ["1", 0], "lora_name": "lora.safetensors", "strength_model": strength}});
            prompt["7"]["inputs"]["model"] = json!(["20", 0]);
        }
        prompt
    }
}

/// A server with simulated devices in a base folder with the parts.
pub struct Room {
    pub server: Server,
    pub base: TempDir,
}

impl Room {
    pub fn roomy() -> Self {
        Self::with(ROOMY)
    }

    pub fn with(arguments: &[&str]) -> Self {
        Self::at(base(), arguments)
    }

    pub fn small(size: &str) -> Self {
        let arguments = one_device(size);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Self::with(&arguments)
    }

    pub fn at(base: TempDir, arguments: &[&str]) -> Self {
        let server = Server::start_with(StartOptions {
            base: Some(base.path()),
            arguments: arguments.to_vec(),
            ..StartOptions::default()
        });
        Self { server, base }
    }

    /// Runs a prompt to its end, clean-up included.
    #[track_caller]
    pub fn run(&self, prompt: &Value) -> Run {
        let id = self.server.queue(prompt, None);
        self.end(&id)
    }

    /// Waits for a prompt's end, clean-up included.
    #[track_caller]
    pub fn end(&self, id: &str) -> Run {
        let history = self.server.wait_for(id);
        self.wait_event(0, |e| {
            e["kind"] == "cleanup.completed" && e["prompt_id"] == id
        });
        Run {
            id: id.to_owned(),
            history,
        }
    }

    /// Runs a prompt that must succeed.
    #[track_caller]
    pub fn ok(&self, prompt: &Value) -> Run {
        let run = self.run(prompt);
        let status = &run.history["status"]["status_str"];
        assert_eq!(status, "success", "{}", run.history);
        run
    }

    /// The pixels of the picture that a prompt saves, which must succeed.
    #[track_caller]
    pub fn pixels(&self, prompt: &Value) -> Vec<u8> {
        self.saved(&self.ok(prompt), "9")
    }

    /// The pixels that a node of a finished prompt saved.
    #[track_caller]
    pub fn saved(&self, run: &Run, node: &str) -> Vec<u8> {
        let name = run.history["outputs"][node]["images"][0]["filename"].as_str();
        let name = name.unwrap_or_else(|| panic!("no picture in {}", run.history));
        let path = self.base.path().join("output").join(name);
        picture::read_file(&path)
            .expect("the picture is whole")
            .pixels
    }

    /// Where a file of a model folder is.
    pub fn file(&self, folder: &str, name: &str) -> PathBuf {
        let folder = self.base.path().join("models").join(folder);
        folder.join(format!("{name}.safetensors"))
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        self.server.get(path).expect_status(200).json()
    }

    #[track_caller]
    pub fn models(&self) -> Vec<Value> {
        list(self.get("/memory/models"))
    }

    /// The only model of this component: `diffusion`, `clip`, `vae`.
    #[track_caller]
    pub fn model(&self, component: &str) -> Value {
        let models = self.models();
        let mut found = models.iter().filter(|m| m["component"] == component);
        match (found.next(), found.next()) {
            (Some(model), None) => model.clone(),
            _ => panic!("not exactly one {component} in {models:#?}"),
        }
    }

    /// Components of all models, sorted.
    #[track_caller]
    pub fn components(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .models()
            .iter()
            .map(|m| text(m, "component").to_owned())
            .collect();
        names.sort();
        names
    }

    #[track_caller]
    pub fn device(&self, name: &str) -> Value {
        let devices = list(self.get("/memory/devices"));
        let found = devices.iter().find(|d| d["device"] == name);
        found
            .unwrap_or_else(|| panic!("no {name} in {devices:?}"))
            .clone()
    }

    #[track_caller]
    pub fn events(&self, since: u64) -> Vec<Value> {
        list(self.get(&format!("/memory/events?since={since}"))["events"].take())
    }

    /// The number of the newest event.
    #[track_caller]
    pub fn now(&self) -> u64 {
        let far = u64::MAX;
        number(
            &self.get(&format!("/memory/events?since={far}")),
            "last_seq",
        )
    }

    /// The first event after `since` for which this holds, once there is one.
    #[track_caller]
    pub fn wait_event(&self, since: u64, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(found) = self.events(since).into_iter().find(&wanted) {
                return found;
            }
            // Asking without a pause would take the processor from the very program that is waited for.
            thread::park_timeout(Duration::from_millis(3));
        }
        let last = self.events(since);
        panic!("that never happened; after {since} there was {last:#?}");
    }

    /// `POST /free` that answers when it is done; gives the report.
    #[track_caller]
    pub fn free(&self, mut body: Value) -> Value {
        body["wait"] = json!(true);
        self.server.post("/free", &body).expect_status(200).json()
    }

    /// A request about one model.
    #[track_caller]
    pub fn about(&self, method: &str, id: &str, query: &str, body: &Value) -> Response {
        let path = format!("/memory/models/{}{query}", encoded(id));
        let headers = [("Content-Type", "application/json")];
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        self.server
            .request(method, &path, &headers, body.as_bytes())
    }

    /// Sets the policy of the only model of a component by the API.
    #[track_caller]
    pub fn set_policy(&self, component: &str, policy: &str) {
        let model = self.model(component);
        let answer = self.about("PATCH", id(&model), "", &json!({"policy": policy}));
        answer.expect_status(200);
    }

    /// Books, stores and devices agree. The last line of every test.
    #[track_caller]
    pub fn checked(&self) {
        let answer = self.get("/memory/check");
        assert_eq!(answer["consistent"], true, "{answer:#}");
    }

    /// Main memory of the program in bytes.
    pub fn resident_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.server.pid()))
            .expect("the program runs");
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        let kib = line.and_then(|l| l.split_whitespace().next());
        let kib: u64 = kib.and_then(|k| k.parse().ok()).expect("a number of KiB");
        kib * 1024
    }
}

/// A prompt that has ended.
#[derive(Debug)]
pub struct Run {
    pub id: String,
    pub history: Value,
}

impl Run {
    /// Nodes whose results were there already.
    pub fn cached(&self) -> Vec<String> {
        let nodes = self.message("execution_cached")["nodes"].clone();
        let nodes = nodes.as_array().cloned().unwrap_or_default();
        let mut nodes: Vec<String> = nodes
            .iter()
            .filter_map(|n| n.as_str().map(str::to_owned))
            .collect();
        nodes.sort();
        nodes
    }

    /// The data of a message of this type, null if there is none.
    pub fn message(&self, kind: &str) -> Value {
        let messages = self.history["status"]["messages"].as_array();
        let found = messages
            .into_iter()
            .flatten()
            .find(|message| message[0] == kind);
        found.map_or(Value::Null, |message| message[1].clone())
    }

    /// The node that failed, by class, and why.
    #[track_caller]
    pub fn failure(&self) -> (String, String) {
        assert_eq!(
            self.history["status"]["status_str"], "error",
            "{}",
            self.history
        );
        let error = self.message("execution_error");
        (
            text(&error, "node_type").to_owned(),
            text(&error, "exception_message").to_owned(),
        )
    }
}

#[track_caller]
fn list(answer: Value) -> Vec<Value> {
    match answer {
        Value::Array(list) => list,
        other => panic!("no list but {other}"),
    }
}

#[track_caller]
pub fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    let found = object[field].as_str();
    found.unwrap_or_else(|| panic!("no text {field} in {object}"))
}

#[track_caller]
pub fn number(object: &Value, field: &str) -> u64 {
    let found = object[field].as_u64();
    found.unwrap_or_else(|| panic!("no number {field} in {object}"))
}

#[track_caller]
pub fn seq(event: &Value) -> u64 {
    number(event, "seq")
}

/// The weights id of a model or an event.
#[track_caller]
pub fn id(model: &Value) -> &str {
    text(model, "weights_id")
}

/// Bytes of a model on a device.
pub fn on(model: &Value, device: &str) -> u64 {
    model["residency"][device].as_u64().unwrap_or(0)
}

/// Events of a kind about weights, in order.
pub fn of<'a>(events: &'a [Value], kind: &str, weights: &str) -> Vec<&'a Value> {
    let wanted = |e: &&Value| e["kind"] == kind && e["weights_id"] == weights;
    events.iter().filter(wanted).collect()
}

/// Events of a kind, in order.
pub fn kind<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|e| e["kind"] == kind).collect()
}

/// Ids of the weights that were released, sorted; not what was only a variant's own.
pub fn released(events: &[Value]) -> Vec<&str> {
    let whole = |e: &&Value| e["model_id"].is_null();
    let mut ids: Vec<&str> = kind(events, "model.released")
        .into_iter()
        .filter(whole)
        .map(id)
        .collect();
    ids.sort_unstable();
    ids
}

/// Decisions about weights in plans, in order.
pub fn decisions(events: &[Value], weights: &str) -> Vec<String> {
    of(events, "plan.computed", weights)
        .iter()
        .map(|e| e["decision"].as_str().unwrap_or("?").to_owned())
        .collect()
}

/// For a path: everything but letters and digits escaped.
pub fn encoded(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes()
        .map(|b| {
            if plain(b) {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}
