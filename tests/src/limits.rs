//! A server in a memory group of its own, and prompts for every node that needs no model, made from `/object_info`, with
//! inputs of any size.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// A control group of Linux with a limit for memory. Its processes are ended by the kernel when they go beyond.
pub struct MemoryGroup {
    folder: PathBuf,
}

impl MemoryGroup {
    /// A group below the one this process is in; an error where groups cannot be made, as in most containers.
    pub fn new(bytes: u64) -> io::Result<Self> {
        let list = fs::read_to_string("/proc/self/cgroup")?;
        let root = Path::new("/sys/fs/cgroup");
        let mut tried = io::Error::other("this system has no memory groups");
        for line in list.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(kinds), Some(path)) = (parts.next(), parts.next()) else {
                continue;
            };
            let path = path.trim_start_matches('/');
            let (top, limits) = if kinds.split(',').any(|kind| kind == "memory") {
                (
                    root.join("memory"),
                    &["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"][..],
                )
            } else if kinds.is_empty() {
                (root.to_owned(), &["memory.max", "memory.swap.max"][..])
            } else {
                continue;
            };
            match Self::below(&top.join(path), limits, bytes) {
                Ok(group) => return Ok(group),
                Err(error) => tried = error,
            }
        }
        Err(tried)
    }

    fn below(parent: &Path, limits: &[&str], bytes: u64) -> io::Result<Self> {
        let name = format!("fresco-limit-{}-{}", std::process::id(), bytes >> 20);
        let folder = parent.join(name);
        fs::create_dir(&folder)?;
        let group = Self { folder };
        fs::write(group.folder.join(limits[0]), bytes.to_string())?;
        // Not everywhere; without it swapping would only make a failure slower.
        let swap = if limits[1].contains("swap") { 0 } else { bytes };
        let _ = fs::write(group.folder.join(limits[1]), swap.to_string());
        Ok(group)
    }

    /// A program that joins the group and becomes the given one.
    pub fn wrapper(&self, program: &Path, folder: &Path) -> io::Result<PathBuf> {
        let script = folder.join("in-group.sh");
        let text = format!(
            "#!/bin/sh\necho $$ > '{}/cgroup.procs' || exit 97\nexec '{}' \"$@\"\n",
            self.folder.display(),
            program.display()
        );
        fs::write(&script, text)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        Ok(script)
    }

    /// The most bytes that were in use at once, where the kernel says so.
    pub fn peak(&self) -> Option<u64> {
        let files = ["memory.max_usage_in_bytes", "memory.peak"];
        let read = |name: &&str| fs::read_to_string(self.folder.join(name)).ok();
        files.iter().find_map(read)?.trim().parse().ok()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Only an empty group can go; the server is ended before.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// One prompt to try.
pub struct Trial {
    pub class: String,
    /// `plain`, or `large` where numbers that set sizes are as large as they may be.
    pub variant: &'static str,
    pub prompt: Value,
}

/// Makes prompts from `/object_info`.
pub struct Trials {
    info: Map<String, Value>,
    /// Bytes of a picture, mask, latent or sound.
    size: u64,
    text: u64,
    /// Which node gives a type without a model, and in which slot.
    producers: BTreeMap<String, (String, usize)>,
}

/// Types whose values are as large as asked for.
const SOURCES: [&str; 5] = ["IMAGE", "MASK", "LATENT", "AUDIO", "STRING"];

/// Where the simplest node gives nothing by itself.
const PREFERRED: [(&str, &str); 1] = [("CONDITIONING", "LotusConditioning")];

impl Trials {
    /// Of inputs of so many bytes; texts of as many, up to what one text may have.
    pub fn new(object_info: Value, size: u64) -> Self {
        let Value::Object(info) = object_info else {
            panic!("object_info is an object");
        };
        let mut trials = Self {
            info,
            size,
            text: size.min(200 << 20),
            producers: BTreeMap::new(),
        };
        while trials.find_producers() {}
        trials
    }

    /// Adds nodes that give a new type from types that can be had; says whether there were any.
    fn find_producers(&mut self) -> bool {
        let mut names: Vec<(usize, &String)> = self
            .info
            .iter()
            .map(|(name, info)| {
                let inputs = info["input"]["required"].as_object();
                (inputs.map_or(0, Map::len), name)
            })
            .collect();
        // The simplest first.
        names.sort();
        let mut found = BTreeMap::new();
        for (io, class) in PREFERRED {
            if !self.producers.contains_key(io) && self.info.contains_key(class) {
                found.insert(io.to_owned(), (class.to_owned(), 0));
            }
        }
        for (_, name) in names {
            let outputs = self.info[name]["output"].as_array();
            for (slot, io) in outputs.into_iter().flatten().enumerate() {
                let Some(io) = io.as_str() else { continue };
                let known = SOURCES.contains(&io)
                    || io == "*"
                    || self.producers.contains_key(io)
                    || found.contains_key(io);
                if !known && self.prompt(name, false).is_some() {
                    found.insert(io.to_owned(), (name.clone(), slot));
                }
            }
        }
        let any = !found.is_empty();
        self.producers.extend(found);
        any
    }

    /// Two prompts for every node that needs no model, in the order of their names.
    pub fn all(&self) -> Vec<Trial> {
        let mut names: Vec<&String> = self.info.keys().collect();
        names.sort();
        let mut trials = Vec::new();
        for class in names {
            for variant in ["plain", "large"] {
                if let Some(prompt) = self.prompt(class, variant == "large") {
                    let class = class.clone();
                    trials.push(Trial {
                        class,
                        variant,
                        prompt,
                    });
                }
            }
        }
        // Nodes without numbers that set sizes have one variant only.
        trials.dedup_by(|b, a| a.class == b.class && a.prompt == b.prompt);
        trials
    }

    /// A prompt with one node of the class; none if it needs what only a model gives.
    pub fn prompt(&self, class: &str, large: bool) -> Option<Value> {
        let mut graph = Graph {
            trials: self,
            nodes: Map::new(),
            made: BTreeMap::new(),
            large,
        };
        graph.node("node", class)?;
        if !self.info[class]["output_node"].as_bool().unwrap_or(false) {
            let shown = json!({"class_type": "PreviewAny", "inputs": {"source": ["node", 0]}});
            graph.nodes.insert("shown".into(), shown);
        }
        Some(graph.nodes.into())
    }
}

/// A prompt in the making.
struct Graph<'a> {
    trials: &'a Trials,
    nodes: Map<String, Value>,
    /// Where a type comes from.
    made: BTreeMap<String, Value>,
    large: bool,
}

/// Numbers that decide how large a result is.
const SIZES: [&str; 14] = [
    "width",
    "height",
    "batch",
    "length",
    "amount",
    "count",
    "frames",
    "duration",
    "scale",
    "multiplier",
    "factor",
    "size",
    "times",
    "number",
];

impl Graph<'_> {
    fn node(&mut self, id: &str, class: &str) -> Option<()> {
        let required = self.trials.info.get(class)?["input"]["required"].clone();
        let mut inputs = Map::new();
        for (name, spec) in required.as_object().into_iter().flatten() {
            self.input(name, spec, &mut inputs)?;
        }
        let node = json!({"class_type": class, "inputs": inputs});
        self.nodes.insert(id.to_owned(), node);
        Some(())
    }

    fn input(&mut self, name: &str, spec: &Value, inputs: &mut Map<String, Value>) -> Option<()> {
        let options = &spec[1];
        let value = match &spec[0] {
            Value::Array(entries) => entries.first()?.clone(),
            Value::String(io) => match io.as_str() {
                "COMBO" => options["options"].as_array()?.first()?.clone(),
                "INT" | "FLOAT" => self.number(name, options),
                "BOOLEAN" => options["default"].as_bool().unwrap_or(true).into(),
                "STRING" if options["default"].as_str().is_some_and(|d| !d.is_empty()) => {
                    options["default"].clone()
                }
                "COMFY_MATCHTYPE_V3" => {
                    let allowed = options["template"]["allowed_types"].as_str()?;
                    self.link(allowed.split(',').next()?)?
                }
                "COMFY_DYNAMICCOMBO_V3" => {
                    let option = &options["options"][0];
                    for (inner, spec) in option["inputs"]["required"]
                        .as_object()
                        .into_iter()
                        .flatten()
                    {
                        self.input(&format!("{name}.{inner}"), spec, inputs)?;
                    }
                    option["key"].clone()
                }
                "COMFY_AUTOGROW_V3" => {
                    let template = &options["template"];
                    let (_, spec) = template["input"]["required"].as_object()?.iter().next()?;
                    let prefix = template["prefix"].as_str()?;
                    for i in 0..2 {
                        self.input(&format!("{name}.{prefix}{i}"), spec, inputs)?;
                    }
                    return Some(());
                }
                io => self.link(io)?,
            },
            _ => return None,
        };
        inputs.insert(name.to_owned(), value);
        Some(())
    }

    fn number(&self, name: &str, options: &Value) -> Value {
        let sets_size = SIZES.iter().any(|word| name.contains(word));
        match (&options["default"], &options["max"]) {
            (_, max) if self.large && sets_size && !max.is_null() => max.clone(),
            (Value::Null, _) => options["min"].as_i64().unwrap_or(1).max(1).into(),
            (default, _) => default.clone(),
        }
    }

    fn link(&mut self, io: &str) -> Option<Value> {
        let io = if io == "*" { "IMAGE" } else { io };
        let names: Vec<&str> = io.split(',').collect();
        for name in &names {
            if let Some(made) = self.made.get(*name) {
                return Some(made.clone());
            }
        }
        for name in &names {
            let link = if SOURCES.contains(name) {
                Some(self.source(name))
            } else {
                self.produce(name)
            };
            if let Some(link) = link {
                self.made.insert((*name).to_owned(), link.clone());
                return Some(link);
            }
        }
        None
    }

    fn produce(&mut self, io: &str) -> Option<Value> {
        let trials = self.trials;
        let (class, slot) = trials.producers.get(io)?;
        let id = format!("made-{io}");
        self.node(&id, class)?;
        Some(json!([id, slot]))
    }

    /// Nodes that make a large value.
    fn source(&mut self, io: &str) -> Value {
        let size = self.trials.size;
        let id = format!("large-{io}");
        let (class, inputs) = match io {
            "IMAGE" => {
                let batch = (size / (2048 * 2048 * 12)).max(1);
                let inputs =
                    json!({"width": 2048, "height": 2048, "batch_size": batch, "color": 0});
                ("EmptyImage", inputs)
            }
            "MASK" => {
                let height = (size / 4 / 16384).clamp(1, 16384);
                (
                    "SolidMask",
                    json!({"value": 0.5, "width": 16384, "height": height}),
                )
            }
            "LATENT" => {
                let batch = (size / (4 * 256 * 256 * 4)).clamp(1, 4096);
                (
                    "EmptyLatentImage",
                    json!({"width": 2048, "height": 2048, "batch_size": batch}),
                )
            }
            "AUDIO" => {
                let seconds = (size / (8 * 44100)).max(1);
                let inputs = json!({"duration": seconds, "sample_rate": 44100, "channels": 2});
                ("EmptyAudio", inputs)
            }
            _ => return self.text(),
        };
        let node = json!({"class_type": class, "inputs": inputs});
        self.nodes.insert(id.clone(), node);
        json!([id, 0])
    }

    /// A text that is doubled until it is long enough.
    fn text(&mut self) -> Value {
        let start = "some words, (and more) ".repeat(40);
        let mut length = start.len() as u64;
        let first = json!({"class_type": "PrimitiveStringMultiline", "inputs": {"value": start}});
        self.nodes.insert("text".into(), first);
        let mut link = json!(["text", 0]);
        let mut step = 0;
        while 2 * length <= self.trials.text {
            let id = format!("text-{step}");
            let inputs = json!({"string_a": link, "string_b": link, "delimiter": ""});
            let node = json!({"class_type": "StringConcatenate", "inputs": inputs});
            self.nodes.insert(id.clone(), node);
            link = json!([id, 0]);
            (length, step) = (2 * length, step + 1);
        }
        link
    }
}
