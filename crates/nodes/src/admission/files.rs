//! What is in weight files, told from their headers and remembered until they change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use fresco_memory::{FileStamp, Unit};
use fresco_models::control::ControlStore;
use fresco_models::denoise::ModelFacts;
use fresco_models::detect::{Checkpoint, Families, text_stores};
use fresco_models::model_patch::PatchStore;
use fresco_models::store::WeightStore;
use fresco_models::text::{TextEncoder, TextKind};
use fresco_models::upscale::UpscaleStore;
use fresco_models::vae::{VaeConfig, VaeFacts};
use fresco_models::{ModelError, audio_encoder, vae, vision};
use fresco_tensor::{Device, WeightFile, open_weights};

use crate::loaders::{NETWORK_PARTS, Reading, TEXT_PARTS, diffusers_part};
use crate::resident::Component;

/// Files that are remembered.
const REMEMBERED: usize = 64;

/// What a loader expects in its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Checkpoint,
    Diffusers,
    /// In the format of the file, or in this one.
    Diffusion(Reading),
    Text,
    Vae,
    Vision,
    Hearing,
    Control,
    ModelPatch,
    Upscale,
}

impl FileKind {
    /// What it is mainly.
    pub(super) fn component(self) -> Component {
        match self {
            Self::Checkpoint | Self::Diffusers | Self::Diffusion(_) => Component::Diffusion,
            Self::Text => Component::Text,
            Self::Vae => Component::Vae,
            Self::Vision => Component::Vision,
            Self::Hearing => Component::Hearing,
            Self::Control | Self::ModelPatch => Component::Control,
            Self::Upscale => Component::Upscale,
        }
    }
}

/// One network in a file.
#[derive(Clone)]
pub(super) struct FilePart {
    pub(super) component: Component,
    /// Names the weights: two nodes that load the same count once.
    pub(super) id: String,
    pub(super) what: String,
    pub(super) units: Arc<[Unit]>,
    pub(super) bytes: u64,
    /// Bytes that a GPU takes straight from the file.
    pub(super) late: u64,
    /// The bytes of its largest unit that must be where it computes; of tables only some rows must.
    pub(super) largest: u64,
    pub(super) pass: Pass,
}

/// What says how much memory a pass takes.
#[derive(Clone)]
pub(super) enum Pass {
    Diffusion(Box<ModelFacts>),
    Vae(VaeFacts),
    Unknown,
}

impl FilePart {
    fn new(component: Component, what: String, id: &str, stores: &[Arc<WeightStore>]) -> Self {
        let mut units = Vec::new();
        for (number, store) in stores.iter().enumerate() {
            for unit in store.units() {
                let name: Arc<str> = if stores.len() == 1 {
                    unit.name.into()
                } else {
                    format!("{number}.{}", unit.name).into()
                };
                units.push(Unit {
                    name,
                    bytes: unit.bytes,
                    cost: unit.bytes,
                    embedding: unit.embedding,
                    biased: unit.biased,
                    castable: unit.castable,
                    own: unit.own,
                    block: unit.block,
                });
            }
        }
        Self {
            component,
            id: format!("{id}#{}", component.name()),
            what,
            bytes: units.iter().map(|unit| unit.bytes).sum(),
            late: stores.iter().map(|store| store.late_bytes()).sum(),
            largest: units
                .iter()
                .filter(|unit| !unit.embedding)
                .map(|unit| unit.bytes)
                .max()
                .unwrap_or(0),
            units: units.into(),
            pass: Pass::Unknown,
        }
    }
}

type Found = Arc<[FilePart]>;

/// What decides what is found: another program may know other families.
#[derive(PartialEq, Eq)]
struct Question {
    kind: FileKind,
    families: Vec<&'static str>,
    stamps: Vec<FileStamp>,
}

type Remembered = Vec<(Question, Found)>;

static SEEN: LazyLock<Mutex<Remembered>> = LazyLock::new(Mutex::default);

/// The networks in these files. The text of an error is for people: the loader itself will fail with its own.
pub(super) fn parts(
    kind: FileKind,
    files: &[PathBuf],
    families: &Families,
) -> Result<Found, String> {
    let paths = match kind {
        FileKind::Diffusers => diffusers(&files[0])?,
        _ => files.to_vec(),
    };
    let question = Question {
        kind,
        families: families.0.iter().flat_map(|f| f.names()).copied().collect(),
        stamps: paths
            .iter()
            .map(|path| stamp(path))
            .collect::<Result<_, _>>()?,
    };
    // Nothing is left half done under this lock.
    let lock = || SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = |seen: &Remembered| {
        let found = seen.iter().find(|(asked, _)| *asked == question);
        found.map(|(_, parts)| parts.clone())
    };
    if let Some(parts) = known(&lock()) {
        return Ok(parts);
    }
    let found: Found = read(kind, &paths, families)
        .map_err(|e| e.to_string())?
        .into();
    let mut seen = lock();
    if seen.len() >= REMEMBERED {
        seen.remove(0);
    }
    seen.push((question, found.clone()));
    Ok(found)
}

fn stamp(path: &Path) -> Result<FileStamp, String> {
    let unreadable = |e: std::io::Error| format!("cannot read {}: {e}", path.display());
    let data = path.metadata().map_err(unreadable)?;
    Ok(FileStamp {
        path: path.to_path_buf(),
        size: data.len(),
        modified: data.modified().ok(),
    })
}

/// The files of a folder in the layout of diffusers: network, VAE, text encoder.
fn diffusers(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let stem = "diffusion_pytorch_model";
    let wanted: [(&[&str], &[&str], usize); 3] = [
        (&NETWORK_PARTS, &[stem], 1),
        (&["vae"], &[stem], 1),
        (&TEXT_PARTS, &["model", "pytorch_model"], TEXT_PARTS.len()),
    ];
    let mut all = Vec::new();
    for (names, stems, most) in wanted {
        let each = names.iter().filter_map(|name| {
            let mut found = stems.iter();
            found.find_map(|stem| diffusers_part(folder, name, stem))
        });
        let before = all.len();
        all.extend(each.take(most));
        if all.len() == before {
            let names = names.join(" or ");
            return Err(format!("{} has no weights in {names}", folder.display()));
        }
    }
    Ok(all)
}

fn read(
    kind: FileKind,
    paths: &[PathBuf],
    families: &Families,
) -> Result<Vec<FilePart>, ModelError> {
    let files: Vec<Arc<dyn WeightFile>> = paths
        .iter()
        .map(open_weights)
        .collect::<Result<_, _>>()
        .map_err(|e| ModelError::unsupported(name_of(&paths[0]), e.to_string()))?;
    let file = &files[0];
    let id: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let id = id.join("+");
    let cpu = Device::cpu();
    Ok(match kind {
        FileKind::Checkpoint => {
            let found = families.detect(file)?;
            let mut parts = vec![diffusion(&found, file, &id)?];
            if let Some(stack) = found.text
                && let Some(encoder) = TextEncoder::from_checkpoint(file, stack, &cpu)?
            {
                parts.push(text(&encoder, &id));
            }
            if let Some(store) = found.vae_store(file, cpu) {
                parts.push(vae_part(store, &id));
            }
            parts
        }
        FileKind::Diffusers => {
            let found = families.detect(file)?;
            let store = vae::names::store(&files[1], "", cpu.clone());
            vec![
                diffusion(&found, file, &id)?,
                text(&TextEncoder::from_files(&files[2..], &cpu)?, &id),
                vae_part(store, &id),
            ]
        }
        FileKind::Diffusion(reading) => {
            let file = reading.network(file);
            let id = match reading.name() {
                name if name.is_empty() => id,
                name => format!("{id} as {name}"),
            };
            vec![diffusion(&families.detect(&file)?, &file, &id)?]
        }
        FileKind::Text => match TextEncoder::from_files(&files, &cpu) {
            Ok(encoder) => vec![text(&encoder, &id)],
            // What they are used for is the loader's business.
            Err(_) => vec![texts(&text_stores(&files, &cpu)?, &id)],
        },
        FileKind::Vae => {
            let store = vae::names::store(file, "", cpu);
            vec![vae_part(store, &id)]
        }
        FileKind::Vision => {
            let store = vision::store(file, cpu);
            let what = "vision encoder".into();
            vec![FilePart::new(Component::Vision, what, &id, &[store])]
        }
        FileKind::Hearing => {
            let store = audio_encoder::store(file, cpu);
            let what = "audio encoder".into();
            vec![FilePart::new(Component::Hearing, what, &id, &[store])]
        }
        FileKind::Control => {
            let store = ControlStore::find(file, &cpu)?.store;
            let what = "control net".into();
            vec![FilePart::new(Component::Control, what, &id, &[store])]
        }
        FileKind::Upscale => {
            let store = UpscaleStore::find(file)?.store;
            let what = "upscale model".into();
            vec![FilePart::new(Component::Upscale, what, &id, &[store])]
        }
        FileKind::ModelPatch => {
            let found = PatchStore::find(file, &cpu)?;
            let what = found.kind.trim_start_matches("a ").to_owned();
            vec![FilePart::new(Component::Control, what, &id, &[found.store])]
        }
    })
}

fn name_of(path: &Path) -> String {
    path.display().to_string()
}

fn diffusion(
    found: &Checkpoint,
    file: &Arc<dyn WeightFile>,
    id: &str,
) -> Result<FilePart, ModelError> {
    let store = found.store(file, Device::cpu());
    let what = found.family.to_owned();
    let part = FilePart::new(Component::Diffusion, what, id, std::slice::from_ref(&store));
    Ok(FilePart {
        pass: Pass::Diffusion(Box::new(found.network.facts())),
        ..part
    })
}

fn vae_part(store: Arc<WeightStore>, id: &str) -> FilePart {
    let facts = VaeConfig::detect(&store).map(|config| config.facts());
    let part = FilePart::new(Component::Vae, "VAE".into(), id, &[store]);
    FilePart {
        pass: facts.map_or(Pass::Unknown, Pass::Vae),
        ..part
    }
}

fn text(encoder: &TextEncoder, id: &str) -> FilePart {
    let stores: Vec<Arc<WeightStore>> = encoder.stores().map(|(_, _, s)| s.clone()).collect();
    let names: Vec<&str> = encoder.stores().map(|(part, _, _)| part.name).collect();
    let what = format!("text encoder {}", names.join(" + "));
    FilePart::new(Component::Text, what, id, &stores)
}

fn texts(found: &[(&'static TextKind, Arc<WeightStore>)], id: &str) -> FilePart {
    let stores: Vec<Arc<WeightStore>> = found.iter().map(|(_, s)| s.clone()).collect();
    let names: Vec<&str> = found.iter().map(|(kind, _)| kind.name).collect();
    let what = format!("text encoder {}", names.join(" + "));
    FilePart::new(Component::Text, what, id, &stores)
}
