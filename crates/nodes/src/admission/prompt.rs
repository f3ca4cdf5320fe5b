//! Which models a prompt loads: its loader nodes, plain and with devices, and what their inputs say.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use fresco_files::Folders;
use fresco_graph::{Args, Map, NodeError, NodeSchema as _, Value};
use fresco_memory::ModelRegistry;
use fresco_models::detect::Families;
use fresco_models::{taehv, taesd};
use fresco_tensor::{Device, on_reader_thread};

use super::files::{self, FileKind, FilePart};
use super::room::Latent;
use super::{AdmissionQuery, ModelPlan};
use crate::loaders::{CheckpointOptions, Reading};
use crate::multigpu::advanced::{CheckpointAdvanced, CheckpointAdvancedDisTorch2};
use crate::multigpu::bases::{self, Loader};
use crate::multigpu::family::{DisTorch2, Known, Legacy, LoaderForm, OnDevice};
use crate::resident::{Component, LoadOptions};

/// Inputs that models come through. A result that is there already still needs its model if it is one.
const MODEL_INPUTS: [&str; 6] = ["model", "clip", "vae", "control", "unet", "style"];

/// How a class says where its models go.
#[derive(Clone, Copy)]
enum Style {
    Plain,
    OnDevice,
    DisTorch2,
    Legacy,
    Advanced,
    AdvancedDisTorch2,
}

/// A loader node of a prompt.
pub(super) struct LoaderNode<'a> {
    id: &'a Arc<str>,
    class: &'a str,
    /// The class of the plain node.
    base: &'static str,
    style: Style,
    inputs: &'a Map,
}

/// What a class is, if it loads models.
fn loader_of(class: &str) -> Option<(&'static str, Style)> {
    let checkpoint = bases::ALL[0].id;
    match class {
        "CheckpointLoader" => return Some((checkpoint, Style::Plain)),
        "UNetLoaderLP" => return Some(("UNETLoader", Style::Plain)),
        "CheckpointLoaderAdvancedMultiGPU" => return Some((checkpoint, Style::Advanced)),
        "CheckpointLoaderAdvancedDisTorch2MultiGPU" => {
            return Some((checkpoint, Style::AdvancedDisTorch2));
        }
        _ => {}
    }
    // Most classes of a prompt end here.
    if !class.contains("Loader") {
        return None;
    }
    let endings = [
        (DisTorch2::SUFFIX, Style::DisTorch2),
        (Legacy::SUFFIX, Style::Legacy),
        (OnDevice::SUFFIX, Style::OnDevice),
        ("", Style::Plain),
    ];
    let (plain, style) = endings
        .into_iter()
        .find_map(|(ending, style)| Some((class.strip_suffix(ending)?, style)))?;
    let base = bases::ALL.iter().find(|loader| loader.id == plain)?;
    Some((base.id, style))
}

fn class_of(node: &Value) -> &str {
    node.get("class_type")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// The loaders whose models are needed, in prompt order.
pub(super) fn loader_nodes<'a>(asked: &AdmissionQuery<'a>) -> Vec<LoaderNode<'a>> {
    let loader = |(id, node): (&'a Arc<str>, &'a Value)| {
        let class = class_of(node);
        let (base, style) = loader_of(class)?;
        Some(LoaderNode {
            id,
            class,
            base,
            style,
            inputs: node.get("inputs")?.as_map()?,
        })
    };
    let mut found: Vec<LoaderNode<'_>> = asked.prompt.iter().filter_map(loader).collect();
    if let (Some(outputs), false) = (asked.outputs, found.is_empty()) {
        let used = used(asked, outputs);
        found.retain(|node| used.contains(&**node.id));
    }
    found
}

/// Nodes whose results or models are still needed for these outputs.
fn used<'a>(asked: &AdmissionQuery<'a>, outputs: &'a [Arc<str>]) -> BTreeSet<&'a str> {
    let cached: BTreeSet<&str> = asked.cached.iter().map(|id| &**id).collect();
    let mut seen = BTreeSet::new();
    let mut todo: Vec<(&str, bool)> = outputs.iter().map(|id| (&**id, false)).collect();
    while let Some((id, as_model)) = todo.pop() {
        if cached.contains(id) && !as_model {
            continue;
        }
        let Some((id, node)) = asked.prompt.get_key_value(id) else {
            continue;
        };
        if !seen.insert(&**id) {
            continue;
        }
        let inputs = node.get("inputs").and_then(Value::as_map);
        for (name, value) in inputs.into_iter().flatten() {
            let Some(link) = value.as_link() else {
                continue;
            };
            let model = MODEL_INPUTS.iter().any(|start| name.starts_with(start));
            if let Some((id, _)) = asked.prompt.get_key_value(&link.node) {
                todo.push((&**id, model));
            }
        }
    }
    seen
}

/// One network to load.
pub(super) struct PlannedLoad {
    pub(super) node: Arc<str>,
    pub(super) class: Arc<str>,
    pub(super) files: Vec<PathBuf>,
    pub(super) component: Component,
    pub(super) options: LoadOptions,
    /// What is in the files, or why nobody knows.
    pub(super) part: Result<FilePart, String>,
}

/// What the loader nodes load.
pub(super) fn loads(
    nodes: &[LoaderNode<'_>],
    folders: &Folders,
    families: &Families,
    registry: &ModelRegistry,
) -> Vec<PlannedLoad> {
    let known = Known::new(registry);
    let mut loads = Vec::new();
    for node in nodes {
        node.loads(folders, families, &known, &mut loads);
    }
    loads
}

impl LoaderNode<'_> {
    /// The inputs that are written in the prompt itself.
    fn literals(&self) -> Args {
        let literal = |(name, value): (&Arc<str>, &Value)| {
            let link = value.as_link().is_some();
            (!link).then(|| (name.clone(), value.clone()))
        };
        Args(self.inputs.iter().filter_map(literal).collect())
    }

    fn text(&self, input: &str) -> Option<&str> {
        self.inputs.get(input)?.as_str()
    }

    fn loads(
        &self,
        folders: &Folders,
        families: &Families,
        known: &Known,
        loads: &mut Vec<PlannedLoad>,
    ) {
        // What is wrong with inputs, its node says; names that come over links are not known yet.
        let Ok(parts) = self.parts(known) else {
            return;
        };
        let Some((kind, files, missing)) = self.files(folders) else {
            return;
        };
        let load = |component, options: &LoadOptions, part| PlannedLoad {
            node: self.id.clone(),
            class: self.class.into(),
            files: files.clone(),
            component,
            options: options.clone(),
            part,
        };
        let options = |component| match component {
            Component::Text => &parts.clip,
            Component::Vae => &parts.vae,
            _ => &parts.model,
        };
        let found = match missing {
            Some(why) => Err(why),
            None => files::parts(kind, &files, families),
        };
        match found {
            Ok(found) => loads.extend(
                found
                    .iter()
                    .map(|part| load(part.component, options(part.component), Ok(part.clone()))),
            ),
            Err(why) => {
                let component = kind.component();
                loads.push(load(component, options(component), Err(why)));
            }
        }
    }

    /// Which file it loads, what is expected in it, and which one is not there. None: nothing that counts.
    fn files(&self, folders: &Folders) -> Option<(FileKind, Vec<PathBuf>, Option<String>)> {
        let (kind, folder, inputs): (FileKind, &str, &[&str]) = match self.base {
            "CheckpointLoaderSimple" => (FileKind::Checkpoint, "checkpoints", &["ckpt_name"]),
            "DiffusersLoader" => (FileKind::Diffusers, "diffusers", &["model_path"]),
            "UNETLoader" | "UnetLoaderGGUF" | "UnetLoaderGGUFAdvanced" => {
                let reading = Reading::chosen(self.text("weight_dtype").unwrap_or_default());
                (
                    FileKind::Diffusion(reading),
                    "diffusion_models",
                    &["unet_name"],
                )
            }
            "CLIPLoader" | "CLIPLoaderGGUF" => (FileKind::Text, "text_encoders", &["clip_name"]),
            "DualCLIPLoader" | "DualCLIPLoaderGGUF" => (
                FileKind::Text,
                "text_encoders",
                &["clip_name1", "clip_name2"],
            ),
            "TripleCLIPLoader" | "TripleCLIPLoaderGGUF" => (
                FileKind::Text,
                "text_encoders",
                &["clip_name1", "clip_name2", "clip_name3"],
            ),
            "QuadrupleCLIPLoader" | "QuadrupleCLIPLoaderGGUF" => (
                FileKind::Text,
                "text_encoders",
                &["clip_name1", "clip_name2", "clip_name3", "clip_name4"],
            ),
            "CLIPVisionLoader" => (FileKind::Vision, "clip_vision", &["clip_name"]),
            "AudioEncoderLoader" => (FileKind::Hearing, "audio_encoders", &["audio_encoder_name"]),
            "ControlNetLoader" | "DiffControlNetLoader" => {
                (FileKind::Control, "controlnet", &["control_net_name"])
            }
            "ModelPatchLoader" => (FileKind::ModelPatch, "model_patches", &["name"]),
            "UpscaleModelLoader" => (FileKind::Upscale, "upscale_models", &["model_name"]),
            "VAELoader" => {
                let name = self.text("vae_name")?;
                // Neither is a network that needs room.
                if name == "pixel_space" || taesd::KINDS.iter().any(|kind| kind.0 == name) {
                    return None;
                }
                if taehv::is_published(name) && find_file(folders, "vae", name).ok()?.is_none() {
                    return None;
                }
                (FileKind::Vae, "vae", &["vae_name"])
            }
            _ => return None,
        };
        let (mut paths, mut missing) = (Vec::new(), None);
        for input in inputs {
            let name = self.text(input)?;
            let found = find_file(folders, folder, name).ok()?;
            paths.push(found.unwrap_or_else(|| {
                // A name without a file stays a name: nothing outside the folders is looked at.
                missing = Some(format!("{name} is not in the folder {folder}"));
                PathBuf::from(name)
            }));
        }
        Some((kind, paths, missing))
    }

    /// The files it loads, if they are there.
    pub(super) fn present_files(&self, folders: &Folders) -> Option<Vec<PathBuf>> {
        let (_, files, missing) = self.files(folders)?;
        missing.is_none().then_some(files)
    }

    /// What its inputs say for each part.
    fn parts(&self, known: &Known) -> Result<CheckpointOptions, NodeError> {
        let mut args = self.literals();
        let options = match self.style {
            Style::Advanced => return Ok(CheckpointAdvanced::from_args(args)?.parts(known)?.1),
            Style::AdvancedDisTorch2 => {
                return Ok(CheckpointAdvancedDisTorch2::from_args(args)?
                    .parts(known)?
                    .1);
            }
            Style::Plain if self.text("device") == Some("cpu") => LoadOptions {
                compute: Some(Device::cpu()),
                offload: Some(Device::cpu()),
                ..LoadOptions::default()
            },
            Style::Plain => LoadOptions::default(),
            Style::OnDevice => OnDevice::options(self.loader(), &mut args, known)?,
            Style::DisTorch2 => DisTorch2::options(self.loader(), &mut args, known)?,
            Style::Legacy => Legacy::options(self.loader(), &mut args, known)?,
        };
        if self.loader().encoder {
            return Ok(CheckpointOptions {
                clip: options.clone(),
                model: options,
                ..CheckpointOptions::default()
            });
        }
        let mut parts = bases::parts(options);
        if self.base == "VAELoader" {
            parts.vae = parts.model.clone();
        }
        Ok(parts)
    }

    fn loader(&self) -> &'static Loader {
        let found = bases::ALL.iter().find(|loader| loader.id == self.base);
        found.expect("the base was found in this table")
    }
}

/// The largest empty latent that a prompt makes with sizes of its own.
pub(super) fn largest_latent(prompt: &Map) -> Option<Latent> {
    let number = |inputs: &Map, name: &str| {
        let number = inputs.get(name).and_then(Value::as_int)?;
        u64::try_from(number).ok().filter(|n| *n > 0)
    };
    let latent = |node: &Value| {
        let class = class_of(node);
        if !(class.starts_with("Empty") && class.contains("Latent")) {
            return None;
        }
        let inputs = node.get("inputs")?.as_map()?;
        Some(Latent {
            batch: number(inputs, "batch_size").unwrap_or(1),
            width: number(inputs, "width")?,
            height: number(inputs, "height")?,
        })
    };
    let latents = prompt.values().filter_map(latent);
    latents.max_by_key(Latent::cells)
}

/// A plan with what is known before room is looked for.
pub(super) fn plan(load: &PlannedLoad, compute: String) -> ModelPlan {
    let part = load.part.as_ref();
    ModelPlan {
        node: load.node.clone(),
        class: load.class.clone(),
        component: load.component.name(),
        files: load.files.clone(),
        what: part.map_or_else(|_| String::new(), |part| part.what.clone()),
        bytes: part.map_or(0, |part| part.bytes),
        largest: part.map_or(0, |part| part.largest),
        layers: part.map_or(0, |part| part.units.len()),
        compute,
        placement: None,
        places: Vec::new(),
        shards: Vec::new(),
        required: 0,
        minimum: 0,
        policy: load.options.policy,
        outcome: super::Outcome::Fits,
        warnings: Vec::new(),
    }
}

/// Where a file of a name is, as loaders name it. An error: the prompt was interrupted while its network share did not answer.
fn find_file(folders: &Folders, folder: &str, name: &str) -> io::Result<Option<PathBuf>> {
    let (folders, folder, name) = (folders.clone(), folder.to_owned(), name.to_owned());
    let find = move || {
        let path = folders.full_path(&folder, &name)?;
        Some(path.canonicalize().unwrap_or(path))
    };
    on_reader_thread(find)
}
