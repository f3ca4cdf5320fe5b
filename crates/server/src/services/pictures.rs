//! Work on pictures for requests: a few at a time, each within a time, and the small results remembered.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::http::HeaderValue;
use bytes::Bytes;
use fresco_files::{ImageError, Limits as ImageLimits};
use fresco_graph::lock;
use indexmap::IndexMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::App;
use crate::http::error::{ApiError, Code};
use crate::services::memory_guard::Share;

/// Pictures that are decoded at the same time.
const SLOTS: usize = 2;
/// How long a request waits for a place, and then for memory.
const WAIT: Duration = Duration::from_secs(20);
const WAIT_FOR_MEMORY: Duration = Duration::from_secs(10);
/// How long one picture may take. Where a decoder cannot be stopped, the client is answered and the place stays taken.
const WORK: Duration = Duration::from_mins(2);

/// Bytes of remembered results, of all and of one.
const REMEMBERED: usize = 64 << 20;
pub(crate) const LARGEST: usize = 4 << 20;

pub(crate) struct Pictures {
    slots: Arc<Semaphore>,
    cache: Mutex<Cache>,
    /// Pictures made, and given again.
    pub(crate) made: AtomicU64,
    pub(crate) repeated: AtomicU64,
}

#[derive(Default)]
struct Cache {
    /// The ones used last are at the end.
    entries: IndexMap<Key, Encoded>,
    bytes: usize,
}

/// A picture in some form: its file, the version of the file, what was made of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) path: PathBuf,
    pub(crate) version: String,
    pub(crate) form: String,
}

/// A picture for a client.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    pub(crate) kind: &'static str,
    pub(crate) bytes: Bytes,
}

impl Encoded {
    pub(crate) fn kind(&self) -> HeaderValue {
        HeaderValue::from_static(self.kind)
    }
}

impl Default for Pictures {
    fn default() -> Self {
        Self {
            slots: Arc::new(Semaphore::new(SLOTS)),
            cache: Mutex::default(),
            made: AtomicU64::default(),
            repeated: AtomicU64::default(),
        }
    }
}

impl Pictures {
    fn cache(&self) -> MutexGuard<'_, Cache> {
        lock(&self.cache)
    }

    pub(crate) fn remembered(&self, key: &Key) -> Option<Encoded> {
        let mut cache = self.cache();
        let found = cache.entries.shift_remove(key)?;
        cache.entries.insert(key.clone(), found.clone());
        self.repeated.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// A place to work, within the time that a request waits.
    async fn slot(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let slot = tokio::time::timeout(WAIT, self.slots.clone().acquire_owned()).await;
        let slot = slot.map_err(|_| {
            let details = format!(
                "{SLOTS} pictures are read at a time, and others were before this one for {} seconds",
                WAIT.as_secs()
            );
            ApiError::later(Code::PicturesBusy, details, 5)
        })?;
        slot.map_err(|e| ApiError::trouble(e.to_string()))
    }

    pub(crate) fn remember(&self, key: Key, picture: &Encoded) {
        if picture.bytes.len() > LARGEST {
            return;
        }
        let mut cache = self.cache();
        cache.bytes += picture.bytes.len();
        if let Some(old) = cache.entries.insert(key, picture.clone()) {
            cache.bytes -= old.bytes.len();
        }
        while cache.bytes > REMEMBERED {
            let Some((_, old)) = cache.entries.shift_remove_index(0) else {
                break;
            };
            cache.bytes -= old.bytes.len();
        }
    }
}

/// What work on a picture gets.
pub(crate) struct Desk {
    pub(crate) share: Share,
    pub(crate) limits: ImageLimits,
}

impl Desk {
    /// The answer when a picture could not be read.
    pub(crate) fn refusal(&self, error: &ImageError) -> ApiError {
        match error {
            ImageError::TooManyPixels { .. }
            | ImageError::TooLarge { .. }
            | ImageError::TooManyFrames { .. } => {
                ApiError::coded(Code::TooManyPixels, error.to_string())
            }
            ImageError::NoMemory(_) if let Some(short) = self.share.refused() => {
                short.for_request("this picture")
            }
            ImageError::NoMemory(_) => ApiError::later(Code::NoMemory, error.to_string(), 30),
            ImageError::TooSlow => slow(),
            ImageError::Io(e) if e.kind() == std::io::ErrorKind::NotFound => ApiError::NOT_FOUND,
            ImageError::Io(e) => ApiError::trouble(format!("{error}: {e}")),
            _ => ApiError::trouble(error.to_string()),
        }
    }

    /// Memory for something else than decoding.
    pub(crate) fn take(&self, bytes: u64) -> Result<fresco_files::MemoryClaim, ApiError> {
        self.share
            .take(bytes)
            .map_err(|short| short.for_request("this picture"))
    }
}

/// A picture's file.
pub(crate) fn open(path: &Path) -> Result<File, ApiError> {
    File::open(path).map_err(|_| ApiError::NOT_FOUND)
}

fn slow() -> ApiError {
    let details = format!(
        "it was not done within {} seconds; the picture is too large for this machine, or the machine is busy",
        WORK.as_secs()
    );
    ApiError::later(Code::PicturesBusy, details, 30)
}

/// Does work that decodes pictures off the network threads, a few at a time: a page of thumbnails cannot take all memory,
/// and whoever waits too long is told to come again.
pub(crate) async fn work<T: Send + 'static>(
    app: &App,
    job: impl FnOnce(&Desk) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let slot = app.pictures.slot().await?;
    app.pictures.made.fetch_add(1, Ordering::Relaxed);
    let memory = app.memory.clone();
    let pixels = app.config.limits.pixels;
    let task = tokio::task::spawn_blocking(move || {
        // The place goes with the work, which runs on when the client leaves.
        let _slot = slot;
        let desk = Desk {
            share: memory.share(WAIT_FOR_MEMORY),
            limits: ImageLimits {
                pixels,
                deadline: Some(Instant::now() + WORK),
                ..ImageLimits::default()
            },
        };
        job(&desk)
    });
    match tokio::time::timeout(WORK + WAIT_FOR_MEMORY, task).await {
        Ok(done) => {
            done.map_err(|e| ApiError::trouble(format!("a background task failed: {e}")))?
        }
        Err(_) => Err(slow()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Key {
        Key {
            path: PathBuf::from(format!("/{n}.png")),
            version: "1".to_owned(),
            form: "webp".to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_too_long_is_told_to_come_again() {
        let pictures = Pictures::default();
        let first = pictures.slot().await.unwrap();
        let second = pictures.slot().await.unwrap();
        let error = pictures.slot().await.unwrap_err();
        assert!(
            matches!(
                error,
                ApiError::Later {
                    code: Code::PicturesBusy,
                    ..
                }
            ),
            "{error}"
        );
        drop(first);
        let _third = pictures.slot().await.unwrap();
        drop(second);
    }

    #[test]
    fn the_least_used_results_are_forgotten() {
        let pictures = Pictures::default();
        let picture = |size: usize| Encoded {
            kind: "image/webp",
            bytes: vec![0; size].into(),
        };
        for n in 0..16 {
            pictures.remember(key(n), &picture(LARGEST));
        }
        assert!(pictures.remembered(&key(0)).is_some());
        pictures.remember(key(16), &picture(1));
        assert!(pictures.remembered(&key(0)).is_some(), "used just now");
        assert!(pictures.remembered(&key(1)).is_none());
        pictures.remember(key(17), &picture(LARGEST + 1));
        assert!(pictures.remembered(&key(17)).is_none());
        let mut other = key(0);
        other.version = "2".to_owned();
        assert!(pictures.remembered(&other).is_none(), "the file changed");
        pictures.remember(key(0), &picture(10));
        let cache = pictures.cache();
        let sum: usize = cache.entries.values().map(|e| e.bytes.len()).sum();
        assert_eq!(cache.bytes, sum);
        assert!(sum <= REMEMBERED);
    }
}
