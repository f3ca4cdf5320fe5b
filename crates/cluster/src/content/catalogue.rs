//! Which model files this machine has, by content.
//!
//! One thread looks through the model folders, now and then and when it is told to, and hashes what is new, smallest first. The
//! list is complete after the first look; contents come as they are known. Nobody waits for it: a worker that just started is
//! asked by name, and by content from then on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fresco_files::Folders;
use fresco_files::write::write_atomic;
use fresco_graph::lock;
use serde::{Deserialize, Serialize};

use super::memo::{Facts, Memo, hash_steady};
use crate::objects::ContentHash;

/// How often folders are looked through when nobody asks: often where that is quick, and never for more than a part of the time.
const EVERY: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(30)];
const LOOKS_PART: u32 = 50;
/// News are collected for so long before they are told.
const TELL_EVERY: Duration = Duration::from_secs(2);
/// Files that are remembered.
const MOST: usize = 100_000;
/// Types that are not models.
const NO_MODELS: &[&str] = &["custom_nodes", "configs"];

/// A model file of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelEntry {
    /// The type of its folder, as `checkpoints`.
    pub folder: String,
    /// Below a folder of that type, with `/` on all systems.
    pub name: String,
    pub size: u64,
    /// None until it was hashed.
    pub hash: Option<ContentHash>,
}

/// What the thread and its askers share.
#[derive(Debug)]
struct Shared {
    folders: Folders,
    /// What was hashed before.
    memo: Mutex<Memo>,
    state: Mutex<State>,
    changed: Condvar,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    entries: Arc<Vec<ModelEntry>>,
    /// Grows with each change of the list.
    version: u64,
    /// The folders were looked through, and everything was hashed.
    settled: bool,
    /// Somebody changed the folders.
    nudged: bool,
}

/// The models of this machine. Dropping the last handle ends its thread.
#[derive(Debug)]
pub struct Catalogue {
    shared: Arc<Shared>,
}

impl Catalogue {
    /// Begins to look through the folders. What was hashed before is read from `cache`, which is kept up to date.
    pub fn start(folders: Folders, cache: PathBuf) -> Arc<Self> {
        let shared = Arc::new(Shared {
            folders,
            memo: Mutex::new(Memo::new(MOST)),
            state: Mutex::default(),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let looker = Looker {
            shared: shared.clone(),
            cache,
        };
        let spawned = std::thread::Builder::new()
            .name("catalogue".into())
            .spawn(move || looker.work());
        if let Err(error) = spawned {
            tracing::error!("model files are known by name only: cannot start a thread: {error}");
        }
        Arc::new(Self { shared })
    }

    pub fn entries(&self) -> Arc<Vec<ModelEntry>> {
        lock(&self.shared.state).entries.clone()
    }

    /// Grows whenever the list changes; 0 before the first look.
    pub fn version(&self) -> u64 {
        lock(&self.shared.state).version
    }

    /// Waits until the list is newer than that, or the time is up; gives its version then.
    pub fn wait_newer(&self, version: u64, most: Duration) -> u64 {
        let old = |state: &mut State| state.version <= version;
        self.wait(most, old).version
    }

    /// Waits until everything was looked at and hashed; false if the time was up first.
    pub fn wait_settled(&self, most: Duration) -> bool {
        self.wait(most, |state| !state.settled || state.nudged)
            .settled
    }

    fn wait(
        &self,
        most: Duration,
        while_so: impl FnMut(&mut State) -> bool,
    ) -> std::sync::MutexGuard<'_, State> {
        self.shared
            .changed
            .wait_timeout_while(lock(&self.shared.state), most, while_so)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    /// Has the folders looked through now.
    pub fn nudge(&self) {
        lock(&self.shared.state).nudged = true;
        self.shared.changed.notify_all();
    }

    /// Looks through the folders now; contents that are not known are hashed later.
    pub fn look(&self) -> Arc<Vec<ModelEntry>> {
        let found = self.shared.look();
        if self.shared.tell(&found, None) {
            self.nudge();
        }
        self.entries()
    }

    /// What is in a model file at this moment, read if that is not known. None if there is no such file, or it is being written.
    pub fn content(&self, folder: &str, name: &str) -> std::io::Result<Option<ModelEntry>> {
        let Some(path) = self.shared.folders.full_path(folder, name) else {
            return Ok(None);
        };
        let data = fs::metadata(&path)?;
        if !data.is_file() {
            return Ok(None);
        }
        let facts = Facts::of(&data);
        let known = lock(&self.shared.memo).get(&path, facts);
        let (size, hash) = if let Some(hash) = known {
            (facts.size, hash)
        } else {
            let Some((facts, hash)) = hash_steady(&path, || true)? else {
                return Ok(None);
            };
            lock(&self.shared.memo).insert(path, facts, hash);
            (facts.size, hash)
        };
        let now = ModelEntry {
            folder: folder.to_owned(),
            name: name.to_owned(),
            size,
            hash: Some(hash),
        };
        let listed = self.find(folder, name);
        if listed.is_none_or(|listed| listed.size != size || listed.hash != now.hash) {
            self.nudge();
        }
        Ok(Some(now))
    }

    /// Bytes of a model file at this moment.
    pub fn size(&self, folder: &str, name: &str) -> Option<u64> {
        let path = self.shared.folders.full_path(folder, name)?;
        let data = fs::metadata(path).ok()?;
        data.is_file().then_some(data.len())
    }

    /// The entry of a model file.
    pub fn find(&self, folder: &str, name: &str) -> Option<ModelEntry> {
        let entries = self.entries();
        let found = entries
            .iter()
            .find(|entry| entry.folder == folder && entry.name == name);
        found.cloned()
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.changed.notify_all();
    }
}

impl Drop for Catalogue {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A file that was found.
struct Found {
    entry: ModelEntry,
    path: PathBuf,
}

struct Looker {
    shared: Arc<Shared>,
    cache: PathBuf,
}

impl Shared {
    /// All model files, by type and name.
    fn look(&self) -> Vec<Found> {
        let mut found = Vec::new();
        let types = self.folders.types();
        for folder in types.iter().filter(|t| !NO_MODELS.contains(&t.as_str())) {
            for (name, path) in self.folders.own_files(folder) {
                let Ok(data) = fs::metadata(&path) else {
                    continue;
                };
                let facts = Facts::of(&data);
                let entry = ModelEntry {
                    folder: folder.clone(),
                    name,
                    size: facts.size,
                    hash: lock(&self.memo).get(&path, facts),
                };
                found.push(Found { entry, path });
            }
        }
        found
    }

    /// Shows what was found; whether that is another list than before.
    fn tell(&self, found: &[Found], settled: Option<bool>) -> bool {
        let entries: Vec<ModelEntry> = found.iter().map(|file| file.entry.clone()).collect();
        let mut state = lock(&self.state);
        let new = *state.entries != entries || state.version == 0;
        if new {
            state.entries = Arc::new(entries);
            state.version += 1;
        }
        state.settled = settled.unwrap_or(state.settled);
        drop(state);
        self.changed.notify_all();
        new
    }
}

impl Looker {
    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    fn work(self) {
        *lock(&self.shared.memo) = Memo::read(&self.cache, MOST);
        while !self.stopped() {
            {
                // Together: whoever waits for everything to be looked at waits for this look.
                let mut state = lock(&self.shared.state);
                (state.nudged, state.settled) = (false, false);
            }
            let began = Instant::now();
            let mut found = self.shared.look();
            let [least, most] = EVERY;
            let every = began
                .elapsed()
                .saturating_mul(LOOKS_PART)
                .clamp(least, most);
            let paths: BTreeSet<&Path> = found.iter().map(|file| &*file.path).collect();
            lock(&self.shared.memo).retain(|path| paths.contains(path));
            self.shared.tell(&found, Some(false));
            self.hash(&mut found);
            self.shared.tell(&found, Some(true));
            let quiet = |state: &mut State| !state.nudged && !self.stopped();
            drop(
                self.shared
                    .changed
                    .wait_timeout_while(lock(&self.shared.state), every, quiet),
            );
        }
    }

    /// Hashes what is not known yet, smallest first, and tells the news now and then.
    fn hash(&self, found: &mut [Found]) {
        let mut order: Vec<usize> = (0..found.len())
            .filter(|&at| found[at].entry.hash.is_none())
            .collect();
        order.sort_by_key(|&at| found[at].entry.size);
        if order.is_empty() {
            return;
        }
        // The same file can be in folders of several types.
        let mut now: BTreeMap<PathBuf, ContentHash> = BTreeMap::new();
        let mut told = Instant::now();
        for at in order {
            if self.stopped() {
                return;
            }
            let path = found[at].path.clone();
            if let Some(hash) = now.get(&path) {
                found[at].entry.hash = Some(*hash);
                continue;
            }
            match hash_steady(&path, || !self.stopped()) {
                Ok(Some((facts, hash))) => {
                    found[at].entry.size = facts.size;
                    found[at].entry.hash = Some(hash);
                    now.insert(path.clone(), hash);
                    lock(&self.shared.memo).insert(path, facts, hash);
                }
                // Somebody is writing it; next time.
                Ok(None) => {}
                Err(_) if self.stopped() => return,
                Err(error) => {
                    tracing::warn!(path = %path.display(), "a model file cannot be read: {error}");
                }
            }
            if told.elapsed() > TELL_EVERY {
                self.shared.tell(found, Some(false));
                self.keep();
                told = Instant::now();
            }
        }
        self.keep();
    }

    fn keep(&self) {
        let text = lock(&self.shared.memo).to_text();
        if let Err(error) = write_atomic(&self.cache, text.as_bytes()) {
            tracing::warn!(
                path = %self.cache.display(),
                "what model files contain is not kept, the next start reads them again: {error}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use fresco_files::Dirs;

    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    fn put(base: &Path, file: &str, content: &str) {
        let path = base.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        // Old enough to be remembered.
        let old = std::time::SystemTime::now() - Duration::from_secs(100);
        fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_modified(old)
            .unwrap();
    }

    fn shown(catalogue: &Catalogue) -> Vec<String> {
        let entries = catalogue.entries();
        let line = |e: &ModelEntry| {
            let hash = e
                .hash
                .map_or("?".to_owned(), |h| h.to_string()[..4].to_owned());
            format!("{}/{} {} {hash}", e.folder, e.name, e.size)
        };
        entries.iter().map(line).collect()
    }

    #[test]
    fn models_are_known_by_content_and_followed() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path();
        put(base, "models/loras/s/a.pt", "abc");
        put(base, "models/checkpoints/c.safetensors", "");
        put(base, "models/loras/readme.txt", "no");
        put(base, "custom_nodes/p/x.py", "no");
        let folders = Folders::new(&Dirs::under(base));
        let cache = base.join("user/models.json");
        let catalogue = Catalogue::start(folders.clone(), cache.clone());
        assert!(catalogue.wait_settled(LONG));
        let want = ["checkpoints/c.safetensors 0 e3b0", "loras/s/a.pt 3 ba78"];
        assert_eq!(shown(&catalogue), want);
        let version = catalogue.version();
        put(base, "models/loras/b.pt", "abc");
        catalogue.nudge();
        assert!(catalogue.wait_newer(version, LONG) > version);
        assert!(catalogue.wait_settled(LONG));
        assert_eq!(shown(&catalogue)[1], "loras/b.pt 3 ba78");
        assert!(catalogue.find("loras", "s/a.pt").is_some());
        drop(catalogue);
        // What is in the cache is believed as long as length and time are the same.
        let text = fs::read_to_string(&cache).unwrap();
        let known = ContentHash::of(b"abc").to_string();
        assert!(text.contains(&known), "{text}");
        fs::write(&cache, text.replace(&known, &"0".repeat(64))).unwrap();
        let again = Catalogue::start(folders.clone(), cache.clone());
        assert!(again.wait_settled(LONG));
        assert_eq!(shown(&again)[1], "loras/b.pt 3 0000");
        put(base, "models/loras/b.pt", "abcd");
        again.nudge();
        assert!(again.wait_settled(LONG));
        assert_eq!(shown(&again)[1], "loras/b.pt 4 88d4");
        // A cache that cannot be read is made anew.
        drop(again);
        fs::write(&cache, "{").unwrap();
        let anew = Catalogue::start(folders, cache);
        assert!(anew.wait_settled(LONG));
        assert_eq!(shown(&anew)[2], "loras/s/a.pt 3 ba78");
    }
}
