//! One workflow after the other, from the editor's file to the last node.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    files::{self, FILES},
    reduce::reduce,
};
use crate::{Connection, Response, Server, StartOptions, picture};

/// How a workflow went.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// To its end, with so many outputs, and perhaps with something in the place of a file that cannot be used yet.
    Ran {
        outputs: usize,
        stand_in: Option<&'static str>,
    },
    /// Not to its end: where, and why.
    Failed { place: String, reason: String },
    /// It needs a node or a model that is not here.
    NotHere(String),
}

/// The program with a folder of reduced models, which grows as workflows ask for them.
pub struct Runner {
    pub server: Server,
    limit: Duration,
}

impl Runner {
    pub fn start(base: &Path, limit: Duration) -> Self {
        let server = Server::start_with(StartOptions {
            base: Some(base),
            ..StartOptions::default()
        });
        Self { server, limit }
    }

    /// A new program on the same folder, if the one there was is gone. Says how it ended.
    pub fn revive(&mut self) -> Option<String> {
        let status = self.server.ended()?;
        let base = self.server.base.clone();
        *self = Self::start(&base, self.limit);
        Some(status.to_string())
    }

    /// One request. Whatever goes wrong is an error: a program that does not answer must not end the whole run.
    fn ask(&self, method: &str, path: &str, body: &[u8]) -> Result<Response> {
        let headers = [("Content-Type", "application/json")];
        let mut connection = Connection::open(self.server.address)?;
        connection.request(method, path, &headers, body)
    }

    /// Runs a workflow of the editor, or a prompt; also whose family it is, if it is known.
    pub fn run(&self, workflow: &[u8]) -> Result<(Option<&'static str>, Outcome)> {
        let found = self.ask("POST", "/fresco/workflow", workflow)?;
        if found.status != 200 {
            let outcome = Outcome::Failed {
                place: "the workflow".to_owned(),
                reason: format!("{}: {}", found.status, found.text()),
            };
            return Ok((None, outcome));
        }
        let found: Value = serde_json::from_slice(&found.body).context("/fresco/workflow")?;
        let mut prompt = found["prompt"].clone();
        let family = family(&prompt);
        if let Some(reason) = self.place(&found["missing"])? {
            return Ok((family, Outcome::NotHere(reason)));
        }
        self.paint(&prompt)?;
        reduce(&mut prompt);
        let outcome = match self.send(&prompt) {
            failed @ Outcome::Failed { .. } => self.send_with_stand_ins(&prompt, failed)?,
            outcome => outcome,
        };
        Ok((family, outcome))
    }

    /// Once more, with stand-ins for what cannot be used yet, if the prompt loads anything like that.
    fn send_with_stand_ins(&self, prompt: &Value, failed: Outcome) -> Result<Outcome> {
        let models = self.server.base.join("models");
        let nodes = prompt
            .as_object()
            .into_iter()
            .flat_map(|nodes| nodes.values());
        let inputs = nodes.filter_map(|node| node["inputs"].as_object());
        let mut changed = Vec::new();
        for name in inputs.flat_map(|i| i.values()).filter_map(Value::as_str) {
            let fitting = FILES.iter().filter(|kind| kind.stand_in.is_some());
            let kind = fitting
                .filter(|kind| files::find(kind.folder, name).is_some_and(|k| k.part == kind.part));
            for kind in kind {
                let (network, said) = kind.stand_in.expect("it was just asked for");
                files::write_network(&models, kind.folder, name, &network())?;
                changed.push((kind, name, said));
            }
        }
        let Some(&(_, _, said)) = changed.first() else {
            return Ok(failed);
        };
        let outcome = self.send(prompt);
        for (kind, name, _) in changed {
            files::write_network(&models, kind.folder, name, &kind.network())?;
        }
        Ok(match outcome {
            Outcome::Ran { outputs, .. } => Outcome::Ran {
                outputs,
                stand_in: Some(said),
            },
            other => other,
        })
    }

    /// Makes the files that are missing; what cannot be made, in words.
    fn place(&self, missing: &Value) -> Result<Option<String>> {
        let list = |name: &str| missing[name].as_array().cloned().unwrap_or_default();
        if let Some(node) = list("nodes").first() {
            return Ok(Some(format!("the node {node}")));
        }
        let models = self.server.base.join("models");
        for model in list("models") {
            let (folder, name) = (&model["folder"], &model["wanted"]);
            let (folder, name) = (folder.as_str(), name.as_str());
            let (folder, name) = (folder.context("a folder")?, name.context("a name")?);
            if files::write(&models, folder, name)?.is_none() {
                return Ok(Some(format!("{folder}/{name}")));
            }
        }
        for file in list("files") {
            let name = file["wanted"].as_str().context("a name")?;
            let path = self.server.base.join("input").join(name);
            fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
            let ending = name.rsplit('.').next().unwrap_or_default().to_lowercase();
            let content = match ending.as_str() {
                "mp4" | "webm" | "mov" | "mkv" => self.film()?,
                "wav" | "mp3" | "flac" | "ogg" | "opus" | "m4a" => sound(),
                _ => picture::sample(96, 64)?,
            };
            fs::write(path, content)?;
        }
        Ok(None)
    }

    /// Makes the temporary files of what was painted by hand.
    fn paint(&self, prompt: &Value) -> Result<()> {
        let nodes = prompt.as_object().into_iter().flatten();
        for (_, node) in nodes.filter(|(_, node)| node["class_type"] == "Painter") {
            let painted = node["inputs"]["mask"].as_str().unwrap_or_default();
            if let Some(name) = painted.strip_suffix(" [temp]") {
                let path = self.server.base.join("temp").join(name);
                fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
                fs::write(path, picture::sample(96, 64)?)?;
            }
        }
        Ok(())
    }

    /// A film of nine pictures with sound, made by the program.
    fn film(&self) -> Result<Vec<u8>> {
        let prompt = json!({
            "1": {"class_type": "EmptyImage", "inputs": {"width": 96, "height": 64, "batch_size": 9, "color": 0x40_80_c0}},
            "2": {"class_type": "EmptyAudio", "inputs": {"duration": 0.4, "sample_rate": 44100, "channels": 2}},
            "3": {"class_type": "CreateVideo", "inputs": {"images": ["1", 0], "fps": 24.0, "audio": ["2", 0]}},
            "4": {"class_type": "SaveVideo", "inputs": {
                "video": ["3", 0], "filename_prefix": "made/film", "format": "mp4", "codec": "h264"}},
        });
        let outcome = self.follow(&prompt)?;
        let folder = self.server.base.join("output/made");
        let made = fs::read_dir(&folder).with_context(|| format!("no film: {outcome:?}"))?;
        let file = made.flatten().next().context("no film")?;
        Ok(fs::read(file.path())?)
    }

    fn send(&self, prompt: &Value) -> Outcome {
        self.follow(prompt).unwrap_or_else(|error| {
            // It may still run, and would be in the way of the next one.
            let _ = self.ask("POST", "/interrupt", b"{}");
            Outcome::Failed {
                place: "the program".to_owned(),
                reason: format!("{error:#}"),
            }
        })
    }

    fn follow(&self, prompt: &Value) -> Result<Outcome> {
        let body = json!({ "prompt": prompt }).to_string();
        let answer = self.ask("POST", "/prompt", body.as_bytes())?;
        let accepted = answer.status == 200;
        let answer: Value = serde_json::from_slice(&answer.body).context("/prompt")?;
        if !accepted {
            return Ok(Outcome::Failed {
                place: "the prompt".to_owned(),
                reason: format!("{} {}", answer["error"]["message"], answer["node_errors"]),
            });
        }
        let id = answer["prompt_id"].as_str().unwrap_or_default();
        let deadline = Instant::now() + self.limit;
        loop {
            let history = self.ask("GET", &format!("/history/{id}"), &[])?;
            let history: Value = serde_json::from_slice(&history.body).context("/history")?;
            if !history[id].is_null() {
                return Ok(outcome(&history[id]));
            }
            if Instant::now() > deadline {
                self.ask("POST", "/interrupt", b"{}")?;
                return Ok(Outcome::Failed {
                    place: "the clock".to_owned(),
                    reason: format!("not done after {} s", self.limit.as_secs()),
                });
            }
            thread::park_timeout(Duration::from_millis(20));
        }
    }
}

/// Two seconds of a tone, as a WAV file.
pub fn sound() -> Vec<u8> {
    const RATE: u32 = 16_000;
    let samples = (0..2 * RATE).map(|at| {
        let angle = f64::from(at) * 440.0 * std::f64::consts::TAU / f64::from(RATE);
        (angle.sin() * 8000.0) as i16
    });
    let data: Vec<u8> = samples.flat_map(i16::to_le_bytes).collect();
    let length = data.len() as u32;
    let mut file = b"RIFF".to_vec();
    file.extend((36 + length).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16_u32.to_le_bytes());
    file.extend([1_u16, 1].iter().flat_map(|n| n.to_le_bytes()));
    file.extend([RATE, 2 * RATE].iter().flat_map(|n| n.to_le_bytes()));
    file.extend([2_u16, 16].iter().flat_map(|n| n.to_le_bytes()));
    file.extend(b"data");
    file.extend(length.to_le_bytes());
    file.extend(data);
    file
}

/// What a history entry says.
fn outcome(entry: &Value) -> Outcome {
    if entry["status"]["status_str"] == "success" {
        let outputs = entry["outputs"].as_object().map_or(0, serde_json::Map::len);
        return Outcome::Ran {
            outputs,
            stand_in: None,
        };
    }
    let messages = entry["status"]["messages"].as_array();
    let errors = messages.into_iter().flatten().filter(|message| {
        let kind = message[0].as_str().unwrap_or_default();
        kind == "execution_error" || kind == "execution_interrupted"
    });
    let error = errors.map(|message| &message[1]).next();
    let text = |name: &str| error.and_then(|e| e[name].as_str()).unwrap_or("?");
    Outcome::Failed {
        place: format!("node {} ({})", text("node_id"), text("node_type")),
        reason: format!(
            "{}: {}",
            text("exception_type"),
            text("exception_message").trim()
        ),
    }
}

/// The family of the first model that a prompt loads.
fn family(prompt: &Value) -> Option<&'static str> {
    let loads = [
        ("unet_name", "diffusion_models"),
        ("ckpt_name", "checkpoints"),
    ];
    let nodes = prompt.as_object()?.values();
    let mut found = nodes.flat_map(|node| {
        loads.iter().filter_map(|(input, folder)| {
            let name = node["inputs"][*input].as_str()?;
            let family = files::find(folder, name)?.family;
            (!family.is_empty()).then_some(family)
        })
    });
    found.next()
}
