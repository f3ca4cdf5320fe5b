//! Model folder types: where models of each kind are looked for, and what is there.
//!
//! [`Folders`] is shared by the whole program and cheap to clone. Listings are remembered together with the
//! modification times of all directories they came from; a listing is reused while those are unchanged. A clone made by
//! [`Folders::pin`] reuses its first listing of each type without looking again, for as long as it lives: one
//! `/object_info` asks for the same listing dozens of times.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use indexmap::IndexMap;

use crate::dirs::Dirs;
use crate::mime::MediaClass;
use crate::walk::{self, mtime, walk};

/// Extensions of model files.
pub const MODEL_EXTENSIONS: &[&str] = &[
    ".ckpt",
    ".pt",
    ".pt2",
    ".bin",
    ".pth",
    ".safetensors",
    ".pkl",
    ".sft",
];

/// The same for networks that people also keep quantised. The reference lists those through an extension only.
const WITH_GGUF: &[&str] = &[
    ".ckpt",
    ".pt",
    ".pt2",
    ".bin",
    ".pth",
    ".safetensors",
    ".pkl",
    ".sft",
    ".gguf",
];

/// Of a type whose models are folders: no file has this extension.
const FOLDERS: &[&str] = &["folder"];

/// What makes a folder a model.
const INDEX: &str = "model_index.json";

/// Types left out of the browsing API: not models.
const NOT_BROWSABLE: &[&str] = &["configs", "custom_nodes"];

/// Type, default roots below the models directory, extensions (empty = all files), in the order clients see.
const TYPES: &[(&str, &[&str], &[&str])] = &[
    ("checkpoints", &["checkpoints"], MODEL_EXTENSIONS),
    ("configs", &["configs"], &[".yaml"]),
    ("loras", &["loras"], MODEL_EXTENSIONS),
    ("vae", &["vae"], MODEL_EXTENSIONS),
    ("text_encoders", &["text_encoders", "clip"], WITH_GGUF),
    ("diffusion_models", &["unet", "diffusion_models"], WITH_GGUF),
    ("clip_vision", &["clip_vision"], MODEL_EXTENSIONS),
    ("style_models", &["style_models"], MODEL_EXTENSIONS),
    ("embeddings", &["embeddings"], MODEL_EXTENSIONS),
    ("diffusers", &["diffusers"], FOLDERS),
    ("vae_approx", &["vae_approx"], MODEL_EXTENSIONS),
    (
        "controlnet",
        &["controlnet", "t2i_adapter"],
        MODEL_EXTENSIONS,
    ),
    ("gligen", &["gligen"], MODEL_EXTENSIONS),
    ("upscale_models", &["upscale_models"], MODEL_EXTENSIONS),
    (
        "latent_upscale_models",
        &["latent_upscale_models"],
        MODEL_EXTENSIONS,
    ),
    // Its root is beside the models directory, see `Folders::new`.
    ("custom_nodes", &[], &[]),
    ("hypernetworks", &["hypernetworks"], MODEL_EXTENSIONS),
    ("photomaker", &["photomaker"], MODEL_EXTENSIONS),
    ("classifiers", &["classifiers"], &[""]),
    ("model_patches", &["model_patches"], MODEL_EXTENSIONS),
    ("audio_encoders", &["audio_encoders"], MODEL_EXTENSIONS),
];

/// Saved models can be loaded again: folders below output that are searched too.
const OUTPUT_ROOTS: &[(&str, &str)] = &[
    ("checkpoints", "checkpoints"),
    ("clip", "clip"),
    ("vae", "vae"),
    ("diffusion_models", "diffusion_models"),
    ("loras", "loras"),
];

/// A change this recent may be followed by another one with the same time stamp, so such a listing is not kept.
const CLOCK_GRAIN: Duration = Duration::from_millis(100);

/// A model folder question that has no answer.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FolderError {
    #[error("unknown model folder type {folder:?}")]
    UnknownType { folder: String },
    #[error("Model in folder '{folder}' with filename '{name}' not found.")]
    NotFound { folder: String, name: String },
}

/// Shared handle to the folder types.
#[derive(Debug, Clone)]
pub struct Folders {
    inner: Arc<Inner>,
    /// Present in a pinned clone: what it has listed so far.
    pinned: Option<Arc<Mutex<HashMap<String, Names>>>>,
}

/// A listing, shared.
pub type Names = Arc<[String]>;

#[derive(Debug)]
struct Inner {
    types: RwLock<IndexMap<String, FolderType>>,
    cache: Mutex<HashMap<String, Arc<Cached>>>,
    elsewhere: RwLock<Arc<Elsewhere>>,
}

/// Names of models by type that other machines have, with `/` between folders and files.
pub type Elsewhere = BTreeMap<String, Vec<String>>;

#[derive(Debug, Clone)]
struct FolderType {
    roots: Vec<PathBuf>,
    /// Lower case with the dot; empty = all files; `""` = files without extension.
    extensions: &'static [&'static str],
}

#[derive(Debug)]
struct Cached {
    names: Names,
    dirs: HashMap<PathBuf, Option<SystemTime>>,
}

/// An entry of the browsing API.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFile {
    pub name: String,
    /// Index of the root it was found under.
    pub path_index: usize,
    /// Not told of what lies outside all model folders and is only linked to: its names are there to be loaded, the rest
    /// is not ours to tell.
    pub facts: Option<FileFacts>,
}

/// What the disk says of a file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FileFacts {
    pub modified: f64,
    pub created: f64,
    pub size: u64,
}

impl Folders {
    /// The default types and roots. Extra paths come next, then [`Folders::add_output_roots`].
    pub fn new(dirs: &Dirs) -> Self {
        let types = TYPES
            .iter()
            .map(|(name, roots, extensions)| {
                let roots = if *name == "custom_nodes" {
                    dirs.custom_nodes.clone()
                } else {
                    roots.iter().map(|r| dirs.models.join(r)).collect()
                };
                ((*name).to_owned(), FolderType { roots, extensions })
            })
            .collect();
        Self {
            inner: Arc::new(Inner {
                types: RwLock::new(types),
                cache: Mutex::default(),
                elsewhere: RwLock::default(),
            }),
            pinned: None,
        }
    }

    /// Appends the folders into which models are saved.
    pub fn add_output_roots(&self, dirs: &Dirs) {
        for (folder, name) in OUTPUT_ROOTS {
            self.add(folder, &dirs.output.join(name), false);
        }
    }

    /// Appends the folders of a models directory that are there, each named after its type: those of a collection that
    /// is not the user's own.
    pub fn add_models(&self, models: &Path) {
        for (folder, names, _) in TYPES {
            for name in *names {
                let root = models.join(name);
                if root.is_dir() {
                    self.add(folder, &root, false);
                }
            }
        }
    }

    /// Adds a root: at the front if `is_default`, else at the end; a known root only moves, and only to the front.
    /// An unknown type is created and lists all files.
    pub fn add(&self, folder: &str, path: &Path, is_default: bool) {
        let mut types = self
            .inner
            .types
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let entry = types
            .entry(canonical_type(folder).to_owned())
            .or_insert(FolderType {
                roots: Vec::new(),
                extensions: &[],
            });
        let known = entry.roots.iter().position(|r| r == path);
        match (known, is_default) {
            (Some(i), true) => entry.roots[..=i].rotate_right(1),
            (Some(_), false) => {}
            (None, true) => entry.roots.insert(0, path.to_path_buf()),
            (None, false) => entry.roots.push(path.to_path_buf()),
        }
    }

    /// Type names in the order they were registered.
    pub fn types(&self) -> Vec<String> {
        self.read(|t| t.keys().cloned().collect())
    }

    /// Whether this is literally a type; legacy names are not.
    pub fn is_type(&self, folder: &str) -> bool {
        self.read(|t| t.contains_key(folder))
    }

    /// Whether the models of a type are folders, of which no file is listed.
    pub fn of_folders(&self, folder: &str) -> bool {
        self.read(|t| t.get(folder).is_some_and(|t| t.extensions == FOLDERS))
    }

    /// The roots of a type (legacy names allowed), in search order.
    pub fn roots(&self, folder: &str) -> Option<Vec<PathBuf>> {
        self.read(|t| t.get(canonical_type(folder)).map(|t| t.roots.clone()))
    }

    /// Every type with its roots.
    pub fn all_roots(&self) -> Vec<(String, Vec<PathBuf>)> {
        self.read(|t| {
            t.iter()
                .map(|(n, t)| (n.clone(), t.roots.clone()))
                .collect()
        })
    }

    /// Every type with its roots and the extensions of its files, as packs are told; none means all files.
    pub fn table(&self) -> Vec<(String, Vec<PathBuf>, &'static [&'static str])> {
        self.read(|t| {
            t.iter()
                .map(|(n, t)| (n.clone(), t.roots.clone(), t.extensions))
                .collect()
        })
    }

    /// A handle that lists each type once and then remembers, until it (and its clones) are dropped.
    pub fn pin(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            pinned: Some(Arc::default()),
        }
    }

    /// Models that other machines have. They are listed beside those that are here, so that a prompt may name them; there is
    /// no path to them.
    pub fn set_elsewhere(&self, names: Elsewhere) {
        *self
            .inner
            .elsewhere
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(names);
    }

    fn elsewhere(&self) -> Arc<Elsewhere> {
        self.inner
            .elsewhere
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Own names and those of other machines, sorted, each once.
    fn with_elsewhere(&self, folder: &str, own: Names) -> Names {
        let elsewhere = self.elsewhere();
        let Some(more) = elsewhere.get(folder) else {
            return own;
        };
        let mut all: Vec<String> = more.iter().map(|name| local_name(name)).collect();
        all.extend(own.iter().cloned());
        all.sort_unstable();
        all.dedup();
        all.into()
    }

    /// The model files of a type that are on this machine, each with its path and under a name that is the same on all systems
    /// (`/` between folders and files): the first root that has a name counts. Of models that are folders all their files.
    pub fn own_files(&self, folder: &str) -> Vec<(String, PathBuf)> {
        let Some(kind) = self.read(|t| t.get(canonical_type(folder)).cloned()) else {
            return Vec::new();
        };
        let mut found = BTreeMap::new();
        for root in &kind.roots {
            let files = walk(root, &|name| name != ".git").files;
            let homes: Vec<String> = if kind.extensions == FOLDERS {
                let index = |f: &walk::Found| f.name.strip_suffix(INDEX).map(str::to_owned);
                files.iter().filter_map(index).collect()
            } else {
                Vec::new()
            };
            for file in files {
                let counts = if kind.extensions == FOLDERS {
                    homes
                        .iter()
                        .any(|home| !home.is_empty() && file.name.starts_with(home.as_str()))
                } else {
                    has_extension(&file.name, kind.extensions)
                };
                if counts {
                    found.entry(common_name(&file.name)).or_insert(file.path);
                }
            }
        }
        found.into_iter().collect()
    }

    /// Where a model of this type and name may be put: below the first root, if a file of that name would be listed. None for
    /// what is no model: nobody is handed programs this way.
    pub fn place_for(&self, folder: &str, name: &str) -> Option<(PathBuf, PathBuf)> {
        if NOT_BROWSABLE.contains(&folder) {
            return None;
        }
        let kind = self.read(|t| t.get(folder).cloned())?;
        let root = kind.roots.first()?.clone();
        let fits = if kind.extensions == FOLDERS {
            name.contains('/')
        } else {
            !kind.extensions.is_empty() && has_extension(name, kind.extensions)
        };
        let path = fits.then(|| crate::contain(&root, name))?.ok()?;
        Some((root, path))
    }

    /// File names of a type (legacy names allowed) over all its roots, relative, sorted, each once, with those of other machines.
    pub fn list(&self, folder: &str) -> Result<Names, FolderError> {
        let folder = canonical_type(folder);
        let kind =
            self.read(|t| t.get(folder).cloned())
                .ok_or_else(|| FolderError::UnknownType {
                    folder: folder.to_owned(),
                })?;
        if let Some(pinned) = &self.pinned {
            let mut pinned = lock(pinned);
            if let Some(names) = pinned.get(folder) {
                return Ok(names.clone());
            }
            let names = self.with_elsewhere(folder, self.listing(folder, &kind));
            pinned.insert(folder.to_owned(), names.clone());
            return Ok(names);
        }
        Ok(self.with_elsewhere(folder, self.listing(folder, &kind)))
    }

    fn listing(&self, folder: &str, kind: &FolderType) -> Names {
        let valid = |c: &Cached| {
            c.dirs.iter().all(|(d, t)| mtime(d) == *t)
                && kind
                    .roots
                    .iter()
                    .all(|r| c.dirs.contains_key(r) || !r.is_dir())
        };
        // The disk is asked without the lock: a slow one must not stop other types.
        let cached = lock(&self.inner.cache).get(folder).cloned();
        if let Some(cached) = cached.filter(|cached| valid(cached)) {
            return cached.names.clone();
        }
        let now = SystemTime::now();
        let mut names = Vec::new();
        let mut dirs = HashMap::new();
        for root in &kind.roots {
            let tree = walk(root, &|name| name != ".git");
            names.extend(
                tree.files
                    .into_iter()
                    .map(|f| f.name)
                    .filter(|n| has_extension(n, kind.extensions)),
            );
            dirs.extend(tree.dirs);
        }
        names.sort_unstable();
        names.dedup();
        let names: Names = names.into();
        let recent = |t: &Option<SystemTime>| t.is_none_or(|t| t + CLOCK_GRAIN > now);
        let mut cache = lock(&self.inner.cache);
        if dirs.values().any(recent) {
            cache.remove(folder);
        } else {
            let names = names.clone();
            cache.insert(folder.to_owned(), Arc::new(Cached { names, dirs }));
        }
        names
    }

    /// The file a name of this type stands for: the first root that has it. `/` at the front and `..` cannot leave a
    /// root; links may (people link to model collections on purpose). Models that are folders are found by `model_index.json`.
    pub fn full_path(&self, folder: &str, name: &str) -> Option<PathBuf> {
        let kind = self.read(|t| t.get(canonical_type(folder)).cloned())?;
        let relative = neutral(name)?;
        for root in kind.roots {
            let path = root.join(&relative);
            if path.is_file() || (kind.extensions == FOLDERS && path.join(INDEX).is_file()) {
                return Some(path);
            }
            if path.is_symlink() && !path.exists() {
                tracing::warn!(path = %path.display(), "the link leads nowhere, skipping");
            }
        }
        None
    }

    /// As [`Folders::full_path`], with an error that says what was not found.
    pub fn require(&self, folder: &str, name: &str) -> Result<PathBuf, FolderError> {
        self.full_path(folder, name)
            .ok_or_else(|| FolderError::NotFound {
                folder: folder.to_owned(),
                name: name.to_owned(),
            })
    }

    /// Models that are folders, relative, sorted, each once.
    pub fn model_folders(&self, folder: &str) -> Vec<String> {
        let mut found: Vec<String> = self
            .roots(folder)
            .unwrap_or_default()
            .iter()
            .flat_map(|root| walk(root, &|name| name != ".git").files)
            .filter_map(|file| {
                let inside = file.name.strip_suffix(INDEX)?;
                let name = inside.strip_suffix(std::path::MAIN_SEPARATOR)?;
                (!name.is_empty()).then(|| name.to_owned())
            })
            .collect();
        if let Some(more) = self.elsewhere().get(canonical_type(folder)) {
            let models = more.iter().filter_map(|name| name.strip_suffix(INDEX));
            let models = models.filter_map(|name| name.strip_suffix('/'));
            found.extend(models.map(local_name));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Types and roots of the browsing API.
    pub fn browsable(&self) -> Vec<(String, Vec<PathBuf>)> {
        let mut all = self.all_roots();
        all.retain(|(name, _)| !NOT_BROWSABLE.contains(&name.as_str()));
        all
    }

    /// Model files of a type with their sizes and times, root by root; none for what is not literally a type. Hidden
    /// files and directories are left out, and only model extensions count whatever the type.
    pub fn browse(&self, folder: &str) -> Option<Vec<ModelFile>> {
        let roots = self.read(|t| t.get(folder).map(|t| t.roots.clone()))?;
        let inside: Vec<PathBuf> = self
            .all_roots()
            .iter()
            .flat_map(|(_, roots)| roots)
            .filter_map(|root| root.canonicalize().ok())
            .collect();
        let mut out = Vec::new();
        for (path_index, root) in roots.iter().enumerate() {
            for file in walk(root, &|name| !name.starts_with('.')).files {
                let hidden = file
                    .path
                    .file_name()
                    .is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
                if hidden || !has_extension(&file.name, MODEL_EXTENSIONS) {
                    continue;
                }
                let Ok(meta) = file.path.metadata() else {
                    continue;
                };
                let (modified, created) = walk::file_times(&meta);
                let size = meta.len();
                let real = file.path.canonicalize().ok();
                let ours = |real: &PathBuf| inside.iter().any(|root| real.starts_with(root));
                out.push(ModelFile {
                    name: file.name,
                    path_index,
                    facts: real.filter(ours).map(|_| FileFacts {
                        modified,
                        created,
                        size,
                    }),
                });
            }
        }
        if let Some(more) = self.elsewhere().get(folder) {
            let here: std::collections::BTreeSet<String> =
                out.iter().map(|file| file.name.clone()).collect();
            let far = more.iter().map(|name| local_name(name));
            let far = far.filter(|n| has_extension(n, MODEL_EXTENSIONS) && !here.contains(n));
            out.extend(far.map(|name| ModelFile {
                name,
                path_index: 0,
                facts: None,
            }));
        }
        Some(out)
    }

    fn read<T>(&self, f: impl FnOnce(&IndexMap<String, FolderType>) -> T) -> T {
        f(&self
            .inner
            .types
            .read()
            .unwrap_or_else(PoisonError::into_inner))
    }
}

/// A name as it is the same on all systems.
pub fn common_name(name: &str) -> String {
    if cfg!(windows) {
        name.replace('\\', "/")
    } else {
        name.to_owned()
    }
}

/// The same with the separators of this system, as its own files are listed.
fn local_name(name: &str) -> String {
    if cfg!(windows) {
        name.replace('/', "\\")
    } else {
        name.to_owned()
    }
}

/// Files directly in the input directory of the given classes, sorted: what loader nodes offer.
pub fn input_files(dirs: &Dirs, classes: &[MediaClass]) -> Vec<String> {
    let mut names = walk::top_files(&dirs.input);
    names.retain(|n| MediaClass::of(n).is_some_and(|c| classes.contains(&c)));
    names
}

/// Old names of types, accepted on every lookup but not shown.
pub fn canonical_type(folder: &str) -> &str {
    match folder {
        "unet" => "diffusion_models",
        "clip" => "text_encoders",
        other => other,
    }
}

/// Name and last extension with its dot; leading dots do not start an extension.
pub fn split_extension(name: &str) -> (&str, &str) {
    let start = name.rfind(['/', '\\']).map_or(0, |i| i + 1);
    let file = &name[start..];
    let dots = file.len() - file.trim_start_matches('.').len();
    match file[dots..].rfind('.') {
        Some(i) => name.split_at(start + dots + i),
        None => (name, ""),
    }
}

fn has_extension(name: &str, extensions: &[&str]) -> bool {
    extensions.is_empty() || extensions.contains(&split_extension(name).1.to_lowercase().as_str())
}

/// A user's file name as a relative path below a virtual root; none if nothing is left.
fn neutral(name: &str) -> Option<PathBuf> {
    if name.contains('\0') {
        return None;
    }
    let mut parts: Vec<&str> = Vec::new();
    let separators: &[char] = if cfg!(windows) { &['/', '\\'] } else { &['/'] };
    for part in name.split(separators) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            // A drive letter would make the join absolute.
            part if cfg!(windows) && part.contains(':') => return None,
            part => parts.push(part),
        }
    }
    (!parts.is_empty()).then(|| parts.iter().collect())
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn setup(files: &[&str]) -> (tempfile::TempDir, Dirs, Folders) {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs::under(dir.path());
        for f in files {
            let p = dir.path().join(f);
            fs::create_dir_all(p.parent().unwrap()).unwrap();
            fs::write(p, "12345").unwrap();
        }
        let folders = Folders::new(&dirs);
        (dir, dirs, folders)
    }

    /// Makes the directories look as if they had not been changed for long.
    fn age(root: &Path) {
        let old = SystemTime::now() - Duration::from_secs(1000);
        for (d, _) in walk(root, &|_| true).dirs {
            fs::File::open(d).unwrap().set_modified(old).unwrap();
        }
    }

    fn list(f: &Folders, t: &str) -> Vec<String> {
        f.list(t).unwrap().to_vec()
    }

    #[test]
    fn types_in_order() {
        let (_d, dirs, f) = setup(&[]);
        assert_eq!(
            f.types().join(" "),
            "checkpoints configs loras vae text_encoders diffusion_models clip_vision style_models embeddings diffusers \
             vae_approx controlnet gligen upscale_models latent_upscale_models custom_nodes hypernetworks photomaker \
             classifiers model_patches audio_encoders"
        );
        let m = &dirs.models;
        assert_eq!(
            f.roots("text_encoders").unwrap(),
            [m.join("text_encoders"), m.join("clip")]
        );
        assert_eq!(
            f.roots("unet").unwrap(),
            [m.join("unet"), m.join("diffusion_models")]
        );
        assert_eq!(
            f.roots("controlnet").unwrap(),
            [m.join("controlnet"), m.join("t2i_adapter")]
        );
        assert_eq!(f.roots("custom_nodes").unwrap(), dirs.custom_nodes);
        assert!(f.is_type("vae") && !f.is_type("unet") && !f.is_type("clip"));
        f.add_output_roots(&dirs);
        assert_eq!(
            f.roots("checkpoints").unwrap()[1],
            dirs.output.join("checkpoints")
        );
        assert_eq!(f.roots("clip").unwrap()[2], dirs.output.join("clip"));
        assert_eq!(f.types().len(), 21);
        assert_eq!(f.browsable().len(), 19);
    }

    #[test]
    fn adding_roots() {
        let (_d, _, f) = setup(&[]);
        let (a, b) = (Path::new("/a"), Path::new("/b"));
        f.add("mine", a, false);
        f.add("mine", b, true);
        assert_eq!(f.roots("mine").unwrap(), [b, a]);
        f.add("mine", a, true);
        assert_eq!(f.roots("mine").unwrap(), [a, b]);
        f.add("mine", b, false);
        assert_eq!(f.roots("mine").unwrap(), [a, b]);
        f.add("unet", a, true);
        assert_eq!(f.roots("diffusion_models").unwrap()[0], a);
        assert!(!f.is_type("unet"));
    }

    #[test]
    fn a_second_collection_comes_last() {
        let (d, dirs, f) = setup(&[
            "models/checkpoints/a.pt",
            "more/checkpoints/a.pt",
            "more/checkpoints/b.pt",
            "more/clip/t.pt",
            "more/nonsense/x.pt",
        ]);
        f.add_output_roots(&dirs);
        let more = d.path().join("more");
        f.add_models(&more);
        assert_eq!(list(&f, "checkpoints"), ["a.pt", "b.pt"]);
        assert_eq!(
            f.full_path("checkpoints", "a.pt").unwrap(),
            dirs.models.join("checkpoints/a.pt")
        );
        assert_eq!(
            f.full_path("checkpoints", "b.pt").unwrap(),
            more.join("checkpoints/b.pt")
        );
        assert_eq!(list(&f, "text_encoders"), ["t.pt"]);
        // Nothing is searched that is not there, and no type comes into being.
        assert_eq!(f.roots("vae").unwrap().len(), 2);
        assert_eq!(f.types().len(), 21);
    }

    #[test]
    fn extensions_decide() {
        let (_d, dirs, f) = setup(&[
            "models/loras/b.safetensors",
            "models/loras/sub/a.SAFETENSORS",
            "models/loras/.git/c.safetensors",
            "models/loras/readme.txt",
            "models/loras/.safetensors",
            "models/configs/v1.yaml",
            "models/configs/v1.ckpt",
            "models/classifiers/plain",
            "models/classifiers/x.bin",
            "models/diffusers/x/model.safetensors",
            "models/diffusers/deep/y/model_index.json",
            "models/text_encoders/same.pt",
            "models/clip/same.pt",
            "models/clip/other.pt2",
            "custom_nodes/p/x.py",
        ]);
        assert_eq!(list(&f, "loras"), ["b.safetensors", "sub/a.SAFETENSORS"]);
        assert_eq!(list(&f, "configs"), ["v1.yaml"]);
        assert_eq!(list(&f, "classifiers"), ["plain"]);
        assert!(list(&f, "diffusers").is_empty());
        assert_eq!(f.model_folders("diffusers"), ["deep/y"]);
        assert!(f.full_path("diffusers", "deep/y").is_some());
        assert_eq!(f.full_path("diffusers", "x"), None);
        assert_eq!(f.full_path("loras", "sub"), None);
        assert_eq!(list(&f, "clip"), ["other.pt2", "same.pt"]);
        assert_eq!(list(&f, "custom_nodes"), ["p/x.py"]);
        assert!(list(&f, "vae").is_empty());
        assert_eq!(
            f.list("nope").unwrap_err(),
            FolderError::UnknownType {
                folder: "nope".into()
            }
        );
        f.add("anything", &dirs.models.join("loras"), false);
        assert_eq!(list(&f, "anything").len(), 4);
    }

    #[test]
    fn resolving() {
        let (_d, dirs, f) = setup(&[
            "models/text_encoders/a.pt",
            "models/clip/a.pt",
            "models/clip/s/b.pt",
            "models/x.pt",
        ]);
        let m = &dirs.models;
        assert_eq!(
            f.full_path("clip", "a.pt").unwrap(),
            m.join("text_encoders/a.pt")
        );
        assert_eq!(
            f.full_path("clip", "s/b.pt").unwrap(),
            m.join("clip/s/b.pt")
        );
        assert_eq!(
            f.full_path("clip", "/s/../s/./b.pt").unwrap(),
            m.join("clip/s/b.pt")
        );
        assert_eq!(f.full_path("clip", "../../clip/a.pt"), None);
        assert_eq!(f.full_path("clip", "../x.pt"), None);
        assert_eq!(f.full_path("clip", "s"), None);
        assert_eq!(f.full_path("clip", ""), None);
        assert_eq!(f.full_path("clip", "a\0.pt"), None);
        assert_eq!(f.full_path("nope", "a.pt"), None);
        assert_eq!(
            f.require("vae", "x").unwrap_err().to_string(),
            "Model in folder 'vae' with filename 'x' not found."
        );
    }

    #[cfg(unix)]
    #[test]
    fn dangling_links_are_skipped() {
        let (_d, dirs, f) = setup(&["models/clip/a.pt", "models/text_encoders/z"]);
        std::os::unix::fs::symlink("/nowhere/at/all", dirs.models.join("text_encoders/a.pt"))
            .unwrap();
        assert_eq!(
            f.full_path("clip", "a.pt").unwrap(),
            dirs.models.join("clip/a.pt")
        );
    }

    #[test]
    fn listings_are_reused_until_a_directory_changes() {
        let (d, dirs, f) = setup(&["models/loras/s/a.pt"]);
        age(d.path());
        let first = f.list("loras").unwrap();
        assert!(Arc::ptr_eq(&first, &f.list("loras").unwrap()));
        fs::write(dirs.models.join("loras/s/b.pt"), "").unwrap();
        assert_eq!(list(&f, "loras"), ["s/a.pt", "s/b.pt"]);
        // Just changed: not kept, so that a second change within one clock tick is seen too.
        fs::write(dirs.models.join("loras/s/c.pt"), "").unwrap();
        assert_eq!(list(&f, "loras").len(), 3);
        age(d.path());
        list(&f, "loras");
        // A root that comes into being later counts at once.
        f.add("loras", &d.path().join("more"), false);
        assert_eq!(list(&f, "loras").len(), 3);
        fs::create_dir(d.path().join("more")).unwrap();
        fs::write(d.path().join("more/x.pt"), "").unwrap();
        assert_eq!(list(&f, "loras").len(), 4);
    }

    #[test]
    fn a_pinned_handle_does_not_look_again() {
        let (_d, dirs, f) = setup(&["models/loras/a.pt"]);
        let pinned = f.pin();
        assert_eq!(list(&pinned, "loras").len(), 1);
        fs::write(dirs.models.join("loras/b.pt"), "").unwrap();
        assert_eq!(list(&pinned, "loras").len(), 1);
        assert_eq!(list(&f, "loras").len(), 2);
        assert_eq!(list(&f.pin(), "loras").len(), 2);
    }

    #[test]
    fn models_of_other_machines_are_listed_beside_ones_own() {
        let (_d, _, f) = setup(&["models/loras/a.pt", "models/diffusers/x/model_index.json"]);
        let far = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        f.set_elsewhere(Elsewhere::from([
            ("loras".to_owned(), far(&["s/b.pt", "a.pt"])),
            (
                "diffusers".to_owned(),
                far(&["y/model_index.json", "y/unet/m.safetensors"]),
            ),
        ]));
        let sep = std::path::MAIN_SEPARATOR;
        assert_eq!(
            list(&f, "loras"),
            ["a.pt".to_owned(), format!("s{sep}b.pt")]
        );
        assert_eq!(list(&f.pin(), "loras").len(), 2);
        assert_eq!(f.model_folders("diffusers"), ["x", "y"]);
        assert_eq!(f.full_path("loras", "s/b.pt"), None);
        let browsed = f.browse("loras").unwrap();
        assert!(browsed[0].facts.is_some() && browsed[1].facts.is_none());
        // What is here and what may come.
        let own: Vec<String> = f.own_files("loras").into_iter().map(|(n, _)| n).collect();
        assert_eq!(own, ["a.pt"]);
        let own: Vec<String> = f.own_files("diffusers").into_iter().map(|f| f.0).collect();
        assert_eq!(own, ["x/model_index.json"]);
        f.set_elsewhere(Elsewhere::new());
        assert_eq!(list(&f, "loras"), ["a.pt"]);
    }

    #[test]
    fn models_may_be_put_where_they_would_be_listed() {
        let (_d, dirs, f) = setup(&[]);
        let place = |folder: &str, name: &str| f.place_for(folder, name).map(|(_, path)| path);
        assert_eq!(
            place("loras", "s/b.pt"),
            Some(dirs.models.join("loras").join("s").join("b.pt"))
        );
        assert!(place("diffusers", "y/unet/config.json").is_some());
        for (folder, name) in [
            ("loras", "b.txt"),
            ("loras", "../b.pt"),
            ("loras", "/b.pt"),
            ("custom_nodes", "p/__init__.py"),
            ("configs", "x.yaml"),
            ("nope", "b.pt"),
            ("diffusers", "loose.json"),
        ] {
            assert_eq!(place(folder, name), None, "{folder}/{name}");
        }
    }

    #[test]
    fn browsing() {
        let (d, _, f) = setup(&[
            "models/loras/b.safetensors",
            "models/loras/.hidden.safetensors",
            "models/loras/.dot/x.safetensors",
            "models/loras/a/c.ckpt",
            "models/loras/x.txt",
            "more/m.pt",
        ]);
        f.add("loras", &d.path().join("more"), false);
        let found = f.browse("loras").unwrap();
        let short: Vec<_> = found
            .iter()
            .map(|m| (m.name.as_str(), m.path_index, m.facts.unwrap().size))
            .collect();
        assert_eq!(
            short,
            [("b.safetensors", 0, 5), ("a/c.ckpt", 0, 5), ("m.pt", 1, 5)]
        );
        assert!(found[0].facts.unwrap().modified > 1.6e9);
        assert!(f.browse("clip").is_none() && f.browse("nope").is_none());
    }

    #[test]
    fn inputs_by_class() {
        let (_d, dirs, _f) = setup(&[
            "input/b.png",
            "input/a.jpg",
            "input/s/c.png",
            "input/x.txt",
            "input/v.mp4",
        ]);
        assert_eq!(input_files(&dirs, &[MediaClass::Image]), ["a.jpg", "b.png"]);
        assert_eq!(input_files(&dirs, &[MediaClass::Video]), ["v.mp4"]);
    }

    #[test]
    fn last_extensions() {
        for (name, want) in [
            ("a.b.c", ("a.b", ".c")),
            ("a", ("a", "")),
            (".a", (".a", "")),
            ("..a.b", ("..a", ".b")),
            ("d.x/a", ("d.x/a", "")),
            ("d/.a", ("d/.a", "")),
            ("a.", ("a", ".")),
        ] {
            assert_eq!(split_extension(name), want);
        }
    }
}
