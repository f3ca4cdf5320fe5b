//! Copies model files from one machine to another, by content, through the object store.
//!
//! The receiver asks for a file part by part: the owner puts a part into the object store, the receiver takes it from there and
//! removes it, so that the store never holds more than a part of each copy. What has come stays in a hidden file next to its
//! destination; a copy that breaks off goes on from there. The whole is hashed before it gets its name.
//!
//! Requests are [`ModelRequest`]s on the control subject of a worker. Who has no such subject, as the command line that sends its own
//! files, gets one for the time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fresco_files::Folders;
use fresco_graph::lock;

use super::catalogue::{Catalogue, ModelEntry};
use super::objects::Objects;
use crate::connection::{Broker, BrokerError};
use crate::objects::{ContentHash, hash_file};
use crate::protocol::RequestResult;
use crate::protocol::control::{WorkerAnswer, WorkerRequest};
use crate::protocol::models::{CopyEnd, CopyProgress, ModelAnswer, ModelRequest, Wanted};

/// Bytes of a part.
const PART: u64 = 16 << 20;
/// How long an answer may take: a part is read and stored meanwhile.
const PATIENCE: Duration = Duration::from_mins(2);
/// A part or an answer that does not come is asked for so often, with growing pauses between.
const TRIES: u32 = 6;
/// How long the owner of a file may take to hash it.
const HASHING: Duration = Duration::from_hours(2);
/// Files up to this length are hashed while somebody waits for it.
const AT_ONCE: u64 = 256 << 20;
/// Copies that were ended and are still told of.
const MOST_COPIES: usize = 100;

/// Why a file was not copied.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    #[error(
        "{folder}/{name} cannot be put here: {folder:?} is not a folder for files of that name"
    )]
    NoPlace { folder: String, name: String },
    #[error(
        "{path} is there already and has another content; move it away, or copy with --replace"
    )]
    Different { path: PathBuf },
    #[error("cannot {action} {path}")]
    Disk {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{worker} says: {why}")]
    Refused { worker: String, why: String },
    #[error("{worker} gave an answer that cannot be understood: {what}")]
    Garbage { worker: String, what: &'static str },
    #[error(
        "what came from {worker} for {name} is not what it said: its hash is {found}; the file there may have changed, try again"
    )]
    Wrong {
        worker: String,
        name: String,
        found: ContentHash,
    },
    #[error("{worker} has not hashed {name} within {hours} hours")]
    Slow {
        worker: String,
        name: String,
        hours: u64,
    },
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// Others who can be asked, by name.
pub trait Peers: Send + Sync {
    fn ask(
        &self,
        name: &str,
        request: ModelRequest,
    ) -> Result<RequestResult<ModelAnswer>, BrokerError>;
}

impl Peers for Broker {
    fn ask(
        &self,
        name: &str,
        request: ModelRequest,
    ) -> Result<RequestResult<ModelAnswer>, BrokerError> {
        let request = WorkerRequest::Models(request);
        Ok(match self.ask_worker(name, &request, PATIENCE)? {
            Ok(WorkerAnswer::Models(answer)) => Ok(answer),
            Ok(_) => Err("something else than what was asked for".to_owned()),
            Err(why) => Err(why),
        })
    }
}

/// The models of this machine, for others to ask about and to copy, and to copy others' to.
pub struct ModelServer {
    folders: Folders,
    catalogue: Arc<Catalogue>,
    objects: Arc<dyn Objects>,
    peers: Arc<dyn Peers>,
    copies: Mutex<BTreeMap<u64, Arc<Copies>>>,
    serial: AtomicU64,
}

/// Files on their way, in order.
struct Copies {
    files: Vec<Wanted>,
    progress: Mutex<Vec<CopyProgress>>,
    ended: AtomicBool,
}

impl ModelServer {
    pub fn new(
        folders: Folders,
        catalogue: Arc<Catalogue>,
        objects: Arc<dyn Objects>,
        peers: Arc<dyn Peers>,
    ) -> Arc<Self> {
        Arc::new(Self {
            folders,
            catalogue,
            objects,
            peers,
            copies: Mutex::default(),
            serial: AtomicU64::new(1),
        })
    }

    /// Answers a request. May read and store a part of a file; copies go on by themselves.
    pub fn answer(self: &Arc<Self>, request: ModelRequest) -> RequestResult<ModelAnswer> {
        match request {
            // Not what was there at the last look: whoever asks has just put a file there.
            ModelRequest::List => Ok(ModelAnswer::List(self.catalogue.look().to_vec())),
            ModelRequest::Describe(file) => self.describe(&file),
            ModelRequest::Part { file, offset } => self.part(&file, offset),
            ModelRequest::Copy {
                from,
                files,
                replace,
            } => self.copy(from, files, replace),
            ModelRequest::Progress { copy } => self.progress(copy),
        }
    }

    /// The entry of a file that may be copied.
    fn find(&self, wanted: &Wanted) -> Result<(ModelEntry, PathBuf), String> {
        let Wanted { folder, name } = wanted;
        let known = self.catalogue.find(folder, name);
        let same_size = |entry: &ModelEntry| self.catalogue.size(folder, name) == Some(entry.size);
        let entry = known.filter(same_size).or_else(|| {
            self.catalogue.look();
            self.catalogue.find(folder, name)
        });
        let path = self.folders.full_path(folder, name);
        entry
            .zip(path)
            .ok_or_else(|| format!("there is no model file {folder}/{name} here"))
    }

    fn describe(&self, file: &Wanted) -> RequestResult<ModelAnswer> {
        let (entry, _) = self.find(file)?;
        if entry.size <= AT_ONCE {
            let now = self.catalogue.content(&entry.folder, &entry.name);
            if let Ok(Some(now)) = now {
                return Ok(ModelAnswer::Entry(now));
            }
        }
        Ok(ModelAnswer::Entry(entry))
    }

    fn part(&self, file: &Wanted, offset: u64) -> RequestResult<ModelAnswer> {
        let (_, path) = self.find(file)?;
        let read = || -> io::Result<Vec<u8>> {
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(offset))?;
            let mut bytes = Vec::new();
            file.take(PART).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|e| format!("the file cannot be read: {e}"))?;
        let hash = self.objects.put_bytes(&bytes);
        let hash = hash.map_err(|error| error.to_string())?;
        Ok(ModelAnswer::Part { hash })
    }

    /// Begins to copy files of somebody else to this machine.
    fn copy(
        self: &Arc<Self>,
        from: String,
        files: Vec<Wanted>,
        replace: bool,
    ) -> RequestResult<ModelAnswer> {
        let copies = Arc::new(Copies {
            progress: Mutex::new(vec![CopyProgress::default(); files.len()]),
            files,
            ended: AtomicBool::new(false),
        });
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        {
            let mut all = lock(&self.copies);
            let ended = |c: &Arc<Copies>| c.ended.load(Ordering::Relaxed);
            if all.len() >= MOST_COPIES {
                all.retain(|_, copies| !ended(copies));
            }
            if all.len() >= MOST_COPIES {
                return Err("too many copies are under way".to_owned());
            }
            all.insert(serial, copies.clone());
        }
        let me = self.clone();
        let work = move || {
            for (at, file) in copies.files.iter().enumerate() {
                let mut tell = |done, size| {
                    let progress = &mut lock(&copies.progress)[at];
                    (progress.done, progress.size) = (done, size);
                };
                let end = me.copy_file(&from, file, replace, &mut tell);
                if let CopyEnd::Failed(why) = &end {
                    tracing::warn!("{}/{} was not copied: {why}", file.folder, file.name);
                }
                lock(&copies.progress)[at].end = Some(end);
            }
            copies.ended.store(true, Ordering::Relaxed);
        };
        let spawned = std::thread::Builder::new()
            .name("copy models".into())
            .spawn(work);
        spawned.map_err(|e| format!("cannot start a thread: {e}"))?;
        Ok(ModelAnswer::Copy { copy: serial })
    }

    /// How far copies are.
    fn progress(&self, copy: u64) -> RequestResult<ModelAnswer> {
        let copies = lock(&self.copies).get(&copy).cloned();
        let copies = copies.ok_or_else(|| {
            format!("copy {copy} is unknown; this machine may have started again")
        })?;
        let progress = lock(&copies.progress).clone();
        Ok(ModelAnswer::Progress(progress))
    }

    /// Copies one file from somebody else, or finds it here. `tell` hears bytes and size.
    pub fn copy_file(
        &self,
        from: &str,
        file: &Wanted,
        replace: bool,
        tell: &mut dyn FnMut(u64, u64),
    ) -> CopyEnd {
        match self.try_copy(from, file, replace, tell) {
            Ok(end) => {
                self.catalogue.nudge();
                end
            }
            Err(error) => CopyEnd::Failed(crate::connection::chain(&error)),
        }
    }

    fn try_copy(
        &self,
        from: &str,
        file: &Wanted,
        replace: bool,
        tell: &mut dyn FnMut(u64, u64),
    ) -> Result<CopyEnd, SyncError> {
        let Wanted { folder, name } = file;
        let (_, place) =
            self.folders
                .place_for(folder, name)
                .ok_or_else(|| SyncError::NoPlace {
                    folder: folder.clone(),
                    name: name.clone(),
                })?;
        let (size, hash) = self.describe_at(from, file)?;
        tell(0, size);
        // Another folder of the type may have it.
        let here = self.folders.full_path(folder, name);
        if let Some(here) = &here {
            let disk = |source| SyncError::Disk {
                action: "read",
                path: here.clone(),
                source,
            };
            let data = fs::metadata(here).map_err(disk)?;
            if data.len() == size && hash_file(here, || true).map_err(disk)? == hash {
                tell(size, size);
                return Ok(CopyEnd::There);
            }
            if !replace {
                return Err(SyncError::Different { path: here.clone() });
            }
        }
        let place = here.unwrap_or(place);
        let disk = |action, path: &Path| {
            let path = path.to_path_buf();
            move |source| SyncError::Disk {
                action,
                path,
                source,
            }
        };
        let parent = place.parent().unwrap_or(&place);
        fs::create_dir_all(parent).map_err(disk("make the folder", parent))?;
        let partial = parent.join(format!(".fresco-sync-{hash}.part"));
        let mut out = File::options()
            .create(true)
            .append(true)
            .open(&partial)
            .map_err(disk("write", &partial))?;
        let mut done = out.metadata().map_err(disk("read", &partial))?.len();
        if done > size {
            out.set_len(0).map_err(disk("write", &partial))?;
            done = 0;
        }
        while done < size {
            tell(done, size);
            let bytes = self.fetch_part(from, file, done, size)?;
            out.write_all(&bytes).map_err(disk("write", &partial))?;
            done += bytes.len() as u64;
        }
        tell(done, size);
        out.sync_all().map_err(disk("write", &partial))?;
        drop(out);
        let found = hash_file(&partial, || true).map_err(disk("read", &partial))?;
        if found != hash {
            let _ = fs::remove_file(&partial);
            return Err(SyncError::Wrong {
                worker: from.to_owned(),
                name: format!("{folder}/{name}"),
                found,
            });
        }
        fs::rename(&partial, &place).map_err(disk("put the finished file at", &place))?;
        tracing::info!("copied {folder}/{name} from {from}, {size} bytes");
        Ok(CopyEnd::Copied)
    }

    /// Size and content of a file of somebody else, when it has been hashed there.
    fn describe_at(&self, from: &str, file: &Wanted) -> Result<(u64, ContentHash), SyncError> {
        let begun = Instant::now();
        let mut pause = Duration::from_millis(100);
        loop {
            let request = ModelRequest::Describe(file.clone());
            let ModelAnswer::Entry(entry) = ask(&*self.peers, from, &request)? else {
                return Err(SyncError::Garbage {
                    worker: from.to_owned(),
                    what: "no description of the file",
                });
            };
            if let Some(hash) = entry.hash {
                return Ok((entry.size, hash));
            }
            if begun.elapsed() > HASHING {
                return Err(SyncError::Slow {
                    worker: from.to_owned(),
                    name: file.name.clone(),
                    hours: HASHING.as_secs() / 3600,
                });
            }
            wait(pause);
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    fn fetch_part(
        &self,
        from: &str,
        file: &Wanted,
        offset: u64,
        size: u64,
    ) -> Result<Vec<u8>, SyncError> {
        let garbage = |what| SyncError::Garbage {
            worker: from.to_owned(),
            what,
        };
        let request = ModelRequest::Part {
            file: file.clone(),
            offset,
        };
        let mut tries = 0;
        loop {
            tries += 1;
            let ModelAnswer::Part { hash } = ask(&*self.peers, from, &request)? else {
                return Err(garbage("no hash of the part"));
            };
            let mut bytes = Vec::new();
            let mut take = |piece: &[u8]| {
                bytes.extend_from_slice(piece);
                Ok(())
            };
            match self.objects.read(&hash, PART, &mut take) {
                Ok(_) => {}
                // Somebody else copied the same part, and removed it.
                Err(_) if tries < TRIES => {
                    wait(Duration::from_millis(100 << tries));
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            if let Err(error) = self.objects.delete(&hash) {
                // It expires.
                tracing::debug!("{error}");
            }
            if bytes.is_empty() || offset + bytes.len() as u64 > size {
                return Err(garbage("a part of another length than the file has"));
            }
            return Ok(bytes);
        }
    }
}

/// Waits; nobody tells when somebody elsewhere is done.
#[expect(
    clippy::disallowed_methods,
    reason = "nobody tells when a machine elsewhere is done"
)]
fn wait(time: Duration) {
    std::thread::sleep(time);
}

/// Asks until an answer comes, or there have been enough tries; what the other side refuses is an error.
fn ask(peers: &dyn Peers, name: &str, request: &ModelRequest) -> Result<ModelAnswer, SyncError> {
    let mut tries = 0;
    let answer = loop {
        tries += 1;
        match peers.ask(name, request.clone()) {
            Ok(answer) => break answer,
            // One that is not there does not come because it is asked again.
            Err(error @ BrokerError::Nobody { .. }) => return Err(error.into()),
            Err(_) if tries < TRIES => wait(Duration::from_millis(200 << tries)),
            Err(error) => return Err(error.into()),
        }
    };
    answer.map_err(|why| SyncError::Refused {
        worker: name.to_owned(),
        why: why.chars().take(1000).collect(),
    })
}

/// The models of somebody else.
pub fn list_of(peers: &dyn Peers, name: &str) -> Result<Vec<ModelEntry>, SyncError> {
    match ask(peers, name, &ModelRequest::List)? {
        ModelAnswer::List(entries) => Ok(entries),
        _ => Err(SyncError::Garbage {
            worker: name.to_owned(),
            what: "no list of models",
        }),
    }
}

/// Has `to` copy files of `from` and tells how far it is, until all ended. `tell` hears the progress of all files.
pub fn copy_elsewhere(
    peers: &dyn Peers,
    from: &str,
    to: &str,
    files: &[Wanted],
    replace: bool,
    tell: &mut dyn FnMut(&[CopyProgress]),
) -> Result<Vec<CopyProgress>, SyncError> {
    let request = ModelRequest::Copy {
        from: from.to_owned(),
        files: files.to_vec(),
        replace,
    };
    let garbage = |what| SyncError::Garbage {
        worker: to.to_owned(),
        what,
    };
    let ModelAnswer::Copy { copy } = ask(peers, to, &request)? else {
        return Err(garbage("no number of the copy"));
    };
    loop {
        let answer = ask(peers, to, &ModelRequest::Progress { copy })?;
        let ModelAnswer::Progress(progress) = answer else {
            return Err(garbage("no progress of the copy"));
        };
        tell(&progress);
        if progress.len() == files.len() && progress.iter().all(|p| p.end.is_some()) {
            return Ok(progress);
        }
        wait(Duration::from_millis(300));
    }
}

#[cfg(test)]
mod tests;
