//! What the workers of a cluster have, joined: for the lists that clients see, and for who may run what.
//!
//! Models are called by folder and name, whatever the paths of a machine are. A model is the same by
//! its name; if the front has a file of that name too, and both contents are known and differ, the worker does not have it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use fresco_files::Folders;
use fresco_files::folders::{
    Elsewhere, MODEL_EXTENSIONS, canonical_type, common_name, split_extension,
};
use fresco_graph::{Declared, Map, NodeRegistry, Value, lock};
use fresco_placement::{Inventory, JobNeeds, ModelNeed, NeedKey, Resident, WorkerView};

use super::catalogue::ModelEntry;
use crate::objects::ContentHash;

/// What makes a folder a model.
const INDEX: &str = "model_index.json";
/// Longer texts name no models.
const LONGEST: usize = 1024;

/// The key of a model in needs, views and inventories.
pub fn model_key(folder: &str, name: &str) -> NeedKey {
    NeedKey::model(canonical_type(folder), &common_name(name))
}

/// What is known of one file of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Has {
    size: u64,
    hash: Option<ContentHash>,
}

type ByKey = BTreeMap<NeedKey, Has>;

#[derive(Debug)]
struct WorkerHas {
    entries: Arc<Vec<ModelEntry>>,
    models: ByKey,
    classes: Vec<NeedKey>,
    inventory: Inventory,
}

#[derive(Debug, Default)]
struct State {
    own: ByKey,
    workers: BTreeMap<Arc<str>, WorkerHas>,
}

/// The models of this machine and of all workers. Clones share it.
#[derive(Clone, Debug)]
pub struct ClusterModels {
    folders: Folders,
    state: Arc<Mutex<State>>,
}

fn by_key(entries: &[ModelEntry]) -> ByKey {
    let has = |entry: &ModelEntry| {
        let has = Has {
            size: entry.size,
            hash: entry.hash,
        };
        (model_key(&entry.folder, &entry.name), has)
    };
    let mut all: ByKey = entries.iter().map(has).collect();
    // A model that is a folder is named by the folder.
    for entry in entries {
        let home = entry.name.strip_suffix(INDEX);
        if let Some(home) = home.and_then(|home| home.strip_suffix('/')) {
            let inside = |e: &&ModelEntry| {
                let below = e.name.strip_prefix(home);
                e.folder == entry.folder && below.is_some_and(|rest| rest.starts_with('/'))
            };
            let size = entries.iter().filter(inside).map(|e| e.size).sum();
            all.insert(model_key(&entry.folder, home), Has { size, hash: None });
        }
    }
    all
}

/// Both contents are known and differ.
fn differ(own: Option<&Has>, has: &Has) -> bool {
    let known = own.and_then(|own| own.hash).zip(has.hash);
    known.is_some_and(|(own, theirs)| own != theirs)
}

fn inventory(own: &ByKey, models: &ByKey, classes: &[NeedKey]) -> Inventory {
    let models = models.iter();
    let same = models.filter(|(key, has)| !differ(own.get(*key), has));
    let keys = same.map(|(key, _)| key.clone());
    Inventory::new(keys.chain(classes.iter().cloned()).collect())
}

impl ClusterModels {
    /// Lists of these folders show from now on what workers have too.
    pub fn new(folders: Folders) -> Self {
        Self {
            folders,
            state: Arc::default(),
        }
    }

    /// What this machine has, to compare contents with.
    pub fn set_own(&self, entries: &[ModelEntry]) {
        let mut state = lock(&self.state);
        let State { own, workers } = &mut *state;
        *own = by_key(entries);
        for worker in workers.values_mut() {
            worker.inventory = inventory(own, &worker.models, &worker.classes);
        }
    }

    /// What this machine itself can run, for workers of its own.
    pub fn own_inventory(&self, classes: impl IntoIterator<Item = Arc<str>>) -> Inventory {
        let state = lock(&self.state);
        let classes = classes.into_iter().map(NeedKey::Class);
        Inventory::new(state.own.keys().cloned().chain(classes).collect())
    }

    /// A worker came, or has other models or classes than before.
    pub fn set_worker(
        &self,
        name: &Arc<str>,
        entries: Arc<Vec<ModelEntry>>,
        classes: impl IntoIterator<Item = Arc<str>>,
    ) {
        let models = by_key(&entries);
        let classes: Vec<NeedKey> = classes.into_iter().map(NeedKey::Class).collect();
        let mut state = lock(&self.state);
        let other: Vec<&NeedKey> = models
            .iter()
            .filter(|(key, has)| differ(state.own.get(*key), has))
            .map(|(key, _)| key)
            .collect();
        for key in other.iter().take(10) {
            tracing::warn!(
                worker = %name,
                "has a different file {key} than this machine; prompts that name it do not go there"
            );
        }
        let worker = WorkerHas {
            inventory: inventory(&state.own, &models, &classes),
            entries,
            models,
            classes,
        };
        state.workers.insert(name.clone(), worker);
        self.tell(&state);
    }

    pub fn remove_worker(&self, name: &str) {
        let mut state = lock(&self.state);
        if state.workers.remove(name).is_some() {
            self.tell(&state);
        }
    }

    /// Has the lists show what all workers have.
    fn tell(&self, state: &State) {
        let mut all: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for worker in state.workers.values() {
            for entry in worker.entries.iter() {
                let folder = canonical_type(&entry.folder).to_owned();
                all.entry(folder).or_default().insert(&entry.name);
            }
        }
        let names = all.into_iter().map(|(folder, names)| {
            let names = names.into_iter().map(str::to_owned).collect();
            (folder, names)
        });
        self.folders.set_elsewhere(names.collect::<Elsewhere>());
    }

    /// What a worker can load, for its view; none of one that is not known.
    pub fn inventory(&self, name: &str) -> Option<Inventory> {
        let state = lock(&self.state);
        state.workers.get(name).map(|has| has.inventory.clone())
    }

    /// What a prompt needs from its worker: the models that its inputs name and the classes of its nodes.
    pub fn needs(&self, prompt: &Map, registry: &NodeRegistry, devices: Vec<Arc<str>>) -> JobNeeds {
        let state = lock(&self.state);
        let mut needs: BTreeMap<NeedKey, u64> = BTreeMap::new();
        for node in prompt.values() {
            let Some(id) = node.get("class_type").and_then(Value::as_str) else {
                continue;
            };
            needs.insert(NeedKey::class(id), 0);
            let inputs = node.get("inputs").and_then(Value::as_map);
            let (Some(inputs), Some(class)) = (inputs, registry.get(id)) else {
                continue;
            };
            let schema = class.schema();
            for input in Declared::new(&schema, inputs).inputs() {
                let Some(name) = inputs.get(&input.name).and_then(Value::as_str) else {
                    continue;
                };
                let keys = match input.source().and_then(|source| source.split_once('/')) {
                    Some(("models" | "gguf", folder)) => vec![model_key(folder, name)],
                    Some(("vae", _)) => state.autoencoder(name),
                    // What packs list they do not say.
                    None if class.owner().is_some() => state.anywhere(name).into_iter().collect(),
                    _ => Vec::new(),
                };
                for key in keys {
                    let size = state.size(&key);
                    needs.insert(key, size);
                }
            }
        }
        let need = |(key, bytes)| ModelNeed { key, bytes };
        JobNeeds::new(needs.into_iter().map(need).collect(), devices)
    }
}

impl State {
    fn machines(&self) -> impl Iterator<Item = &ByKey> {
        let workers = self.workers.values().map(|worker| &worker.models);
        std::iter::once(&self.own).chain(workers)
    }

    fn size(&self, key: &NeedKey) -> u64 {
        self.machines()
            .filter_map(|models| models.get(key))
            .map(|has| has.size)
            .max()
            .unwrap_or(0)
    }

    fn is_known(&self, key: &NeedKey) -> bool {
        self.machines().any(|models| models.contains_key(key))
    }

    /// An autoencoder is a file, an approximation of one file or of two halves, or nothing at all.
    fn autoencoder(&self, name: &str) -> Vec<NeedKey> {
        let file = model_key("vae", name);
        let small = model_key("vae_approx", name);
        if self.is_known(&small) && !self.is_known(&file) {
            return vec![small];
        }
        if self.is_known(&file) || MODEL_EXTENSIONS.contains(&split_extension(name).1) {
            return vec![file];
        }
        let half = |which: &str| {
            let start = format!("{name}_{which}.");
            let of = |models: &ByKey| {
                let first = NeedKey::model("vae_approx", &start);
                let (key, _) = models.range(first..).next()?;
                let NeedKey::Model { folder, name } = key else {
                    return None;
                };
                let found = &**folder == "vae_approx" && name.starts_with(&start);
                found.then(|| key.clone())
            };
            self.machines().find_map(of)
        };
        [half("encoder"), half("decoder")]
            .into_iter()
            .flatten()
            .collect()
    }

    /// A model of this name in whichever folder.
    fn anywhere(&self, name: &str) -> Option<NeedKey> {
        let extension = split_extension(name).1.to_lowercase();
        let like = MODEL_EXTENSIONS.contains(&extension.as_str()) || extension == ".gguf";
        if name.len() > LONGEST || !like {
            return None;
        }
        let wanted = common_name(name);
        let of = |models: &ByKey| {
            let mut keys = models.keys();
            let found =
                keys.find(|key| matches!(key, NeedKey::Model { name, .. } if **name == *wanted));
            found.cloned()
        };
        self.machines().find_map(of)
    }
}

/// A worker's view with its weights under the names that all machines know. Views of this process have them by path.
pub fn neutral_view(view: &WorkerView, folders: &Folders) -> WorkerView {
    let roots = folders.all_roots();
    let mut resident = Vec::new();
    for one in view.resident() {
        let NeedKey::Files(paths) = &one.key else {
            resident.push(one.clone());
            continue;
        };
        let of = |path: &PathBuf| {
            let size = std::fs::metadata(path).map_or(0, |data| data.len());
            (neutral_key(path, &roots), size)
        };
        let files: Vec<(NeedKey, u64)> = paths.iter().map(of).collect();
        let total: u64 = files.iter().map(|(_, size)| size).sum();
        let count = files.len().max(1) as u64;
        for (key, size) in files {
            // Their shares of what is there.
            let bytes = if total == 0 {
                one.bytes / count
            } else {
                (u128::from(one.bytes) * u128::from(size) / u128::from(total)) as u64
            };
            resident.push(Resident {
                key,
                bytes,
                kept: one.kept,
            });
        }
    }
    view.with_resident(resident)
}

fn neutral_key(path: &Path, roots: &[(String, Vec<PathBuf>)]) -> NeedKey {
    for (folder, roots) in roots {
        for root in roots {
            if let Ok(rest) = path.strip_prefix(root)
                && let Some(name) = rest.to_str().filter(|name| !name.is_empty())
            {
                return model_key(folder, name);
            }
        }
    }
    NeedKey::files(&[path.to_owned()])
}

#[cfg(test)]
mod tests {
    use fresco_files::Dirs;
    use fresco_graph::{Cx, Node, NodeOutput, NodeResult, entry, map};

    use super::*;

    /// Loads a model.
    #[derive(Node)]
    #[node(id = "Load", outputs("INT"))]
    struct Load {
        #[input(listed = "models/loras")]
        lora: String,
        #[input(listed = "vae/all")]
        vae: String,
    }

    impl Node for Load {
        fn run(self, _: &Cx) -> NodeResult {
            Ok(NodeOutput::one((self.lora.len() + self.vae.len()) as i64))
        }
    }

    fn registry() -> NodeRegistry {
        let mut registry = NodeRegistry::new();
        registry.add(&[entry::<Load>()]);
        registry
    }

    /// Entries as `folder/name=content`; `?` for a content that is not known.
    fn entries(text: &str) -> Arc<Vec<ModelEntry>> {
        let one = |word: &str| {
            let (file, content) = word.split_once('=').unwrap();
            let (folder, name) = file.split_once('/').unwrap();
            ModelEntry {
                folder: folder.into(),
                name: name.into(),
                size: 10,
                hash: (content != "?").then(|| ContentHash::of(content.as_bytes())),
            }
        };
        Arc::new(text.split_whitespace().map(one).collect())
    }

    fn cluster() -> (tempfile::TempDir, Folders, ClusterModels) {
        let dir = tempfile::tempdir().unwrap();
        let folders = Folders::new(&Dirs::under(dir.path()));
        let models = ClusterModels::new(folders.clone());
        (dir, folders, models)
    }

    fn keys(models: &ClusterModels, worker: &str) -> String {
        let inventory = models.inventory(worker).unwrap();
        shown(inventory.keys())
    }

    fn shown(keys: &[NeedKey]) -> String {
        let all: Vec<String> = keys.iter().map(ToString::to_string).collect();
        all.join(" ")
    }

    #[test]
    fn lists_are_the_union_and_inventories_compare_contents() {
        let (_dir, folders, models) = cluster();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        models.set_worker(
            &a,
            entries("loras/x.pt=1 loras/y.pt=?"),
            [Arc::from("Load")],
        );
        models.set_worker(&b, entries("loras/x.pt=2 vae/v.pt=3"), []);
        assert_eq!(folders.list("loras").unwrap()[..], ["x.pt", "y.pt"]);
        assert_eq!(keys(&models, "a"), "the node Load loras/x.pt loras/y.pt");
        assert_eq!(keys(&models, "b"), "loras/x.pt vae/v.pt");
        // This machine knows what is meant by x and y.
        models.set_own(&entries("loras/x.pt=1 loras/y.pt=9"));
        assert_eq!(keys(&models, "a"), "the node Load loras/x.pt loras/y.pt");
        assert_eq!(keys(&models, "b"), "vae/v.pt");
        assert_eq!(
            shown(models.own_inventory([Arc::from("X")]).keys()),
            "the node X loras/x.pt loras/y.pt"
        );
        models.remove_worker("a");
        assert_eq!(folders.list("loras").unwrap()[..], ["x.pt"]);
        assert!(models.inventory("a").is_none());
    }

    #[test]
    fn needs_are_models_and_classes() {
        let (_dir, _, models) = cluster();
        let has = "vae_approx/tae_encoder.pt=? vae_approx/tae_decoder.pt=? vae_approx/film.pt=? vae/v.pt=?";
        models.set_worker(&"a".into(), entries(has), []);
        models.set_own(&entries("loras/s/l.pt=?"));
        let needs = |lora: &str, vae: &str| {
            let inputs = map! {"lora" => lora, "vae" => vae};
            let node = map! {"class_type" => "Load", "inputs" => inputs};
            let other = map! {"class_type" => "Unknown"};
            let prompt = map! {"1" => node, "2" => other};
            let needs = models.needs(&prompt, &registry(), Vec::new());
            let found = needs.models().iter();
            let found = found.filter(|need| matches!(need.key, NeedKey::Model { .. }));
            let text = |need: &ModelNeed| format!("{}={}", need.key, need.bytes);
            assert_eq!(needs.models()[0].key, NeedKey::class("Load"));
            found.map(text).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(needs("s/l.pt", "v.pt"), "loras/s/l.pt=10 vae/v.pt=10");
        assert_eq!(
            needs("none.pt", "film.pt"),
            "loras/none.pt=0 vae_approx/film.pt=10"
        );
        assert_eq!(
            needs("s/l.pt", "tae"),
            "loras/s/l.pt=10 vae_approx/tae_decoder.pt=10 vae_approx/tae_encoder.pt=10"
        );
        assert_eq!(needs("s/l.pt", "pixel_space"), "loras/s/l.pt=10");
        assert_eq!(needs("s/l.pt", "gone.pt"), "loras/s/l.pt=10 vae/gone.pt=0");
    }

    #[test]
    fn models_that_are_folders_are_named_by_the_folder() {
        let (_dir, folders, models) = cluster();
        let has =
            "diffusers/d/model_index.json=1 diffusers/d/unet/m.safetensors=2 diffusers/dd/x.json=3";
        models.set_worker(&"a".into(), entries(has), []);
        assert_eq!(folders.model_folders("diffusers"), ["d"]);
        assert!(keys(&models, "a").contains("diffusers/d "));
        assert_eq!(
            lock(&models.state).size(&NeedKey::model("diffusers", "d")),
            20
        );
    }

    #[test]
    fn views_name_models_as_everybody_does() {
        let (dir, folders, _) = cluster();
        let models = dir.path().join("models");
        for (file, size) in [("clip/a.pt", 30), ("text_encoders/b.pt", 10)] {
            let path = models.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, vec![0; size]).unwrap();
        }
        let key = NeedKey::files(&[models.join("clip/a.pt"), models.join("text_encoders/b.pt")]);
        let one = |key: &NeedKey, bytes, kept| Resident {
            key: key.clone(),
            bytes,
            kept,
        };
        let elsewhere = NeedKey::files(&["/elsewhere/c.pt".into()]);
        let encoder = |name: &str| NeedKey::model("text_encoders", name);
        let resident = vec![one(&key, 400, true), one(&elsewhere, 5, false)];
        let view = WorkerView::new(resident, vec!["sim:0".into()], 7);
        let neutral = neutral_view(&view, &folders);
        assert_eq!(
            neutral.resident(),
            [
                one(&encoder("a.pt"), 300, true),
                one(&encoder("b.pt"), 100, true),
                one(&elsewhere, 5, false),
            ]
        );
        assert_eq!((neutral.room(), neutral.devices().len()), (7, 1));
    }
}
