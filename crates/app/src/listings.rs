//! Entries of combos that follow the disk.
//!
//! A disk or a network share that does not answer must not keep those waiting who want something else: `/object_info` lists every
//! folder, and a prompt is checked against one. So folders are asked on threads that can be left, and while one of them owes an answer,
//! the entries that it gave last are given.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use fresco_files::mime::MediaClass;
use fresco_files::{Dirs, Folders, folders, walk};
use fresco_graph::{Listings, lock};
use fresco_tensor::{Device, answer_within};

/// How long a folder may take that was never listed: a large one on a slow disk takes some seconds.
const FIRST: Duration = Duration::from_secs(5);
/// How long one may take whose entries are known.
const AGAIN: Duration = Duration::from_millis(400);
/// The same while another folder owes an answer: they are often on the same share, and one request asks for all of them.
const FIRST_BESIDE: Duration = Duration::from_millis(100);
const AGAIN_BESIDE: Duration = Duration::from_millis(20);

/// Extensions of 3-D files that the loaders offer.
const SCENES: [&str; 5] = [".gltf", ".glb", ".obj", ".fbx", ".stl"];

/// Combos that follow the disk.
pub(crate) struct DiskListings {
    shared: Arc<Shared>,
}

struct Shared {
    disk: Disk,
    known: Mutex<BTreeMap<String, Known>>,
    /// An overdue question has ended.
    ended: Condvar,
}

/// What is known of a list.
#[derive(Default)]
struct Known {
    /// The entries that the disk gave last.
    names: Option<Vec<String>>,
    /// Questions that nobody waits for any more and that were not answered yet.
    overdue: usize,
}

/// A question to the disk, from its beginning to its end.
struct Question {
    shared: Arc<Shared>,
    source: String,
    state: Arc<Mutex<QuestionState>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum QuestionState {
    Asked,
    /// The one who asked has left.
    Overdue,
    Ended,
}

impl Drop for Question {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut *state, QuestionState::Ended) == QuestionState::Overdue {
            let mut known = lock(&self.shared.known);
            let known = known.entry(self.source.clone()).or_default();
            known.overdue -= 1;
            self.shared.ended.notify_all();
        }
    }
}

impl Question {
    fn ask(self) -> Vec<String> {
        let names = self.shared.disk.list(&self.source);
        let mut known = lock(&self.shared.known);
        known.entry(self.source.clone()).or_default().names = Some(names.clone());
        names
    }
}

impl DiskListings {
    pub(crate) fn new(dirs: Arc<Dirs>, folders: Folders) -> Self {
        Self {
            shared: Arc::new(Shared {
                disk: Disk { dirs, folders },
                known: Mutex::default(),
                ended: Condvar::new(),
            }),
        }
    }

    /// How long to wait for the answer about a list; none where an earlier question about it is overdue.
    fn patience(&self, source: &str) -> Option<Duration> {
        let known = lock(&self.shared.known);
        let own = known.get(source);
        if own.is_some_and(|own| own.overdue > 0) {
            return None;
        }
        let trouble = known.values().any(|other| other.overdue > 0);
        let seen = own.is_some_and(|own| own.names.is_some());
        Some(match (seen, trouble) {
            (false, false) => FIRST,
            (true, false) => AGAIN,
            (false, true) => FIRST_BESIDE,
            (true, true) => AGAIN_BESIDE,
        })
    }

    fn last_names(&self, source: &str) -> Vec<String> {
        let known = lock(&self.shared.known);
        let own = known.get(source).and_then(|own| own.names.clone());
        own.unwrap_or_default()
    }

    fn ask(&self, source: &str, patience: Duration) -> Option<Vec<String>> {
        let state = Arc::new(Mutex::new(QuestionState::Asked));
        let question = Question {
            shared: Arc::clone(&self.shared),
            source: source.to_owned(),
            state: Arc::clone(&state),
        };
        if let Some(names) = answer_within(patience, move || question.ask()) {
            return Some(names);
        }
        let mut state = lock(&state);
        if *state == QuestionState::Asked {
            *state = QuestionState::Overdue;
            tracing::warn!(list = source, "the disk does not say what files there are");
            let mut known = lock(&self.shared.known);
            known.entry(source.to_owned()).or_default().overdue += 1;
        }
        None
    }
}

impl Listings for DiskListings {
    fn list(&self, source: &str) -> Vec<String> {
        if is_devices(source) {
            return Device::all().iter().map(Device::name).collect();
        }
        let names = self
            .patience(source)
            .and_then(|patience| self.ask(source, patience));
        names.unwrap_or_else(|| self.last_names(source))
    }

    fn renewed(&self, source: &str) -> Option<Vec<String>> {
        let known = lock(&self.shared.known);
        let overdue = |known: &Known| known.overdue > 0;
        if !known.get(source).is_some_and(overdue) {
            return None;
        }
        let waiting = |all: &mut BTreeMap<String, Known>| all.get(source).is_some_and(overdue);
        let waited = self.shared.ended.wait_timeout_while(known, FIRST, waiting);
        let (known, _) = waited.unwrap_or_else(PoisonError::into_inner);
        known.get(source)?.names.clone()
    }

    fn trouble(&self, source: &str) -> Option<String> {
        let known = lock(&self.shared.known);
        let own = known.get(source).filter(|own| own.overdue > 0)?;
        let list = match own.names {
            Some(_) => "this is what it had when it answered last",
            None => "it was never listed",
        };
        Some(format!(
            "the disk or the network share with this folder does not answer, {list}; see that it answers again"
        ))
    }

    /// Device inputs start with the first accelerator.
    fn preset(&self, source: &str) -> Option<String> {
        let devices = is_devices(source).then(Device::all)?;
        devices.get(1).or(devices.first()).map(Device::name)
    }
}

fn is_devices(source: &str) -> bool {
    source == "devices/all"
}

/// What is on the disk.
struct Disk {
    dirs: Arc<Dirs>,
    folders: Folders,
}

impl Disk {
    fn list(&self, source: &str) -> Vec<String> {
        match source.split_once('/') {
            Some(("models", "diffusers")) => self.folders.model_folders("diffusers"),
            Some(("models", folder)) => match self.folders.list(folder) {
                Ok(names) => names.iter().map(ToString::to_string).collect(),
                Err(_) => Vec::new(),
            },
            Some(("input", kind)) => self.inputs(kind),
            Some(("vae", _)) => self.vaes(),
            Some(("gguf", folder)) => {
                let mut names = self.list(&format!("models/{folder}"));
                names.retain(|name| name.to_lowercase().ends_with(".gguf"));
                names
            }
            _ => Vec::new(),
        }
    }

    /// Autoencoders: files, small approximations whose both halves are there, and none at all.
    fn vaes(&self) -> Vec<String> {
        let mut names = self.list("models/vae");
        let parts = self.list("models/vae_approx");
        for (name, ..) in fresco_models::taesd::KINDS {
            let has = |half: &str| {
                let start = format!("{name}_{half}.");
                parts.iter().any(|part| part.starts_with(&start))
            };
            if has("encoder") && has("decoder") {
                names.push(name.to_owned());
            }
        }
        let films = parts.iter();
        let films = films.filter(|part| fresco_models::taehv::is_published(part));
        names.extend(films.cloned());
        names.push("pixel_space".to_owned());
        names
    }

    fn inputs(&self, kind: &str) -> Vec<String> {
        let of = |classes: &[MediaClass]| folders::input_files(&self.dirs, classes);
        match kind {
            "image" => of(&[MediaClass::Image]),
            "video" => of(&[MediaClass::Video]),
            // A film has sound too.
            "audio" => of(&[MediaClass::Audio, MediaClass::Video]),
            "latent" => {
                let mut names = walk::top_files(&self.dirs.input);
                names.retain(|name| name.ends_with(".latent"));
                names
            }
            "folders" => walk::subfolders(&self.dirs.input),
            "3d" => scenes(&self.dirs.input),
            _ => walk::top_files(&self.dirs.input),
        }
    }
}

/// 3-D files in `3d` and below, relative to the input folder.
fn scenes(input: &Path) -> Vec<String> {
    let root = input.join("3d");
    let below = walk::subfolders(&root)
        .into_iter()
        .map(|folder| format!("3d/{folder}"));
    let mut found: Vec<String> = std::iter::once("3d".to_owned())
        .chain(below)
        .flat_map(|folder| {
            let names = walk::top_files(&input.join(&folder));
            names
                .into_iter()
                .map(move |name| format!("{folder}/{name}"))
        })
        .filter(|name| SCENES.iter().any(|end| name.to_lowercase().ends_with(end)))
        .collect();
    found.sort_unstable();
    found
}
