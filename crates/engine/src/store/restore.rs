//! What the store does when its files were deleted, replaced or overwritten under it.
//!
//! A deleted file is still open and whole: it is written anew from there, with everything in it. A file that somebody
//! wrote into is not to be trusted: what is known in memory is written anew beside it, if that is the whole queue. A file
//! that somebody put in its place may be meant: it is left alone, and prompts are refused until it is clear which one
//! counts.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::params;

use super::bodies::JobTexts;
use super::error::StoreError;
use super::file_watch::{FileWatch, Trouble, beside};
use super::history;
use super::now;
use super::pending::Key;
use super::schema::{self, Database, StorePath};
use super::thread::{PAUSED, StoreThread};

/// Larger databases are not read through because of a changed time.
const CHECKED_BYTES: u64 = 256 << 20;
/// What cannot be mended is tried again this often.
const AGAIN: Duration = Duration::from_secs(5);

/// The files cannot be used.
pub(super) struct Lost {
    pub(super) error: StoreError,
    /// The open ones still have what was written.
    pub(super) readable: bool,
    pub(super) trouble: Trouble,
    pub(super) tried: Instant,
}

impl StoreThread {
    /// Notices what happened to the files, before anything is written to them.
    pub(super) fn look_after_files(&mut self) {
        let Some(watch) = &mut self.database.watch else {
            return;
        };
        let path = watch.path().to_owned();
        let Some(trouble) = watch.look() else {
            if self.files.lost.take().is_some() {
                tracing::info!(path = %path.display(), "the database is back as it was; prompts are accepted again");
            }
            self.look_after_lock(&path);
            return;
        };
        if trouble == Trouble::Touched && self.is_sound(&path) {
            self.change.wrote = true;
            self.note_files();
            return;
        }
        let known = self
            .files
            .lost
            .as_ref()
            .filter(|lost| lost.trouble == trouble && lost.tried.elapsed() < AGAIN);
        if known.is_some() {
            return;
        }
        let first = self
            .files
            .lost
            .as_ref()
            .is_none_or(|lost| lost.trouble != trouble);
        if first {
            tracing::error!(path = %path.display(), "the database {}", describe(&trouble));
        }
        match self.restore(&path, &trouble) {
            Ok(()) => {
                self.files.lost = None;
                self.publish();
            }
            Err(problem) => {
                let error = StoreError::Lost {
                    path: path.clone(),
                    problem: format!(
                        "{}, so nothing can be stored: {problem}",
                        describe(&trouble)
                    ),
                };
                if first {
                    tracing::error!("{error}");
                }
                let readable = !matches!(
                    trouble,
                    Trouble::Overwritten | Trouble::Touched | Trouble::LogOverwritten
                );
                self.files.lost = Some(Lost {
                    error,
                    readable,
                    trouble,
                    tried: Instant::now(),
                });
            }
        }
    }

    /// After a write of our own.
    pub(super) fn note_files(&mut self) {
        if std::mem::take(&mut self.change.wrote)
            && self.files.lost.is_none()
            && let Some(watch) = &mut self.database.watch
        {
            watch.note();
        }
    }

    /// Takes the texts of jobs from before into memory, as far as there is room.
    pub(super) fn fill_shadow(&mut self) {
        if self.database.watch.is_none() {
            return;
        }
        let rows: Vec<i64> = self
            .queue
            .pending
            .by_key()
            .iter()
            .map(|key| key.seq)
            .collect();
        for row in rows {
            let Some(texts) = JobTexts::read(&self.database.connection, row) else {
                continue;
            };
            if !self.files.shadow.keep_job(row, Arc::new(texts)) {
                return;
            }
        }
    }

    /// A lock file that is gone keeps nobody out.
    fn look_after_lock(&mut self, path: &Path) {
        if self.database.lock.is_some() && !schema::lock_path(path).exists() {
            match schema::lock(path) {
                Ok(lock) => self.database.lock = lock,
                Err(error) => tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the lock of the database was deleted and cannot be taken again"
                ),
            }
        }
    }

    /// Reads the file through, past what SQLite has in memory.
    fn is_sound(&self, path: &Path) -> bool {
        let db = &self.database.connection;
        if fs::metadata(path).is_ok_and(|found| found.len() > CHECKED_BYTES) {
            return true;
        }
        db.execute_batch("PRAGMA shrink_memory").is_ok()
            && db
                .query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0))
                .is_ok_and(|answer| answer == "ok")
    }

    /// Writes the database anew where that destroys nothing.
    fn restore(&mut self, path: &Path, trouble: &Trouble) -> Result<(), String> {
        match trouble {
            Trouble::Gone | Trouble::LogGone => match self.rewrite_from_open(path) {
                Ok(()) => {
                    tracing::warn!(path = %path.display(), "the database was written anew, with queue and history as they were");
                    Ok(())
                }
                Err(error) => Err(format!("it could not be written anew ({error}); restart Fresco when there is room")),
            },
            Trouble::Replaced => Err(
                "restart Fresco to use the file that is there now, or move it away and the database is written anew"
                    .to_owned(),
            ),
            Trouble::Unreachable(error) => Err(error.clone()),
            Trouble::Overwritten | Trouble::Touched | Trouble::LogOverwritten => {
                let watch = self.database.watch.as_ref();
                if *trouble == Trouble::Overwritten && watch.is_some_and(FileWatch::is_another_of_ours) {
                    return Err(
                        "restart Fresco to use the database that is there now, or move it away and the queue is written anew"
                            .to_owned(),
                    );
                }
                let keep_old = *trouble == Trouble::LogOverwritten;
                self.rewrite_from_memory(path, keep_old).map_err(|error| {
                    format!("the queue could not be written anew ({error}); restore a copy, or move the file away, and restart Fresco")
                })
            }
        }
    }

    /// The open files have everything; they are copied to where they were.
    fn rewrite_from_open(&mut self, path: &Path) -> Result<(), String> {
        let copy = beside(path, ".restoring");
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|e| e.to_string())?;
        }
        remove(&copy)?;
        let db = &self.database.connection;
        let target = copy.to_str().ok_or("its path is not UTF-8")?;
        db.execute("VACUUM INTO ?1", [target])
            .map_err(|e| e.to_string())?;
        File::open(&copy)
            .and_then(|file| file.sync_all())
            .map_err(|e| e.to_string())?;
        // A log of the old database would be taken for one of the new.
        for ending in ["-wal", "-shm", "-journal"] {
            remove(&beside(path, ending))?;
        }
        fs::rename(&copy, path).map_err(|e| e.to_string())?;
        let database = self.reopen(path)?;
        self.take_over(database);
        self.reload().map_err(|e| e.to_string())
    }

    /// Puts the damaged files aside and writes what is known. With `keep_old` the database itself is sound but old, and
    /// is brought up to date.
    fn rewrite_from_memory(&mut self, path: &Path, keep_old: bool) -> Result<(), String> {
        let queue = self.known_queue()?;
        let aside = beside(path, &format!(".damaged-{}", now()));
        let copy = beside(path, ".restoring");
        if keep_old {
            fs::copy(path, &copy).map_err(|e| e.to_string())?;
        }
        for ending in ["-wal", ""] {
            match fs::rename(beside(path, ending), beside(&aside, ending)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.to_string()),
                _ => {}
            }
        }
        if keep_old {
            fs::rename(&copy, path).map_err(|e| e.to_string())?;
        }
        let database = self.reopen(path)?;
        let entries = self
            .write_known(&database, &queue)
            .map_err(|e| e.to_string())?;
        self.take_over(database);
        tracing::warn!(
            path = %path.display(),
            damaged = %aside.display(),
            "the database was written anew: {} jobs and the last {entries} entries of the history; the damaged file was put aside",
            queue.len()
        );
        self.reload().map_err(|e| e.to_string())
    }

    /// All jobs with their texts; an error if one is not known.
    fn known_queue(&self) -> Result<Vec<KnownJob>, String> {
        let db = &self.database.connection;
        let waiting = self.queue.pending.by_key().into_iter();
        let waiting = waiting.map(|key| (key, None));
        let running = self.queue.running.values().map(|l| (&l.key, Some(l)));
        waiting
            .chain(running)
            .map(|(key, leased)| {
                let texts = self
                    .files
                    .shadow
                    .job(key.seq)
                    .or_else(|| JobTexts::read(db, key.seq).map(Arc::new))
                    .ok_or_else(|| format!("the prompt of job {} is lost", key.prompt_id))?;
                Ok(KnownJob {
                    key: key.clone(),
                    texts,
                    attempts: leased
                        .map_or_else(|| self.queue.pending.attempts(key), |l| l.attempts),
                    lease: leased.and_then(|l| Some((l.owner.clone(), l.deadline?))),
                    held: self.queue.pending.is_held(key),
                    reason: self.queue.pending.reason(key).cloned(),
                })
            })
            .collect()
    }

    fn write_known(&self, database: &Database, queue: &[KnownJob]) -> Result<usize, StoreError> {
        let db = &database.connection;
        let fail = StoreError::sql("write the queue anew");
        db.execute_batch(
            "BEGIN IMMEDIATE;
             DELETE FROM bodies WHERE seq IN (SELECT seq FROM jobs);
             DELETE FROM jobs;",
        )
        .map_err(&fail)?;
        let mut totals = history::totals(db)?;
        let mut entries = 0;
        for ended in self.files.shadow.history() {
            let key = &ended.key;
            db.execute("DELETE FROM bodies WHERE seq = ?1", [key.seq])
                .and_then(|_| db.execute("DELETE FROM results WHERE seq = ?1", [key.seq]))
                .map_err(&fail)?;
            ended
                .texts
                .insert(db, key.seq, &key.number, &key.prompt_id)?;
            totals = history::record(db, key, &ended.outcome, totals, &self.limits)?;
            entries += 1;
        }
        for job in queue {
            let key = &job.key;
            job.texts.insert(db, key.seq, &key.number, &key.prompt_id)?;
            db.execute(
                "UPDATE jobs SET place = ?2, attempt = ?3, held = ?4, held_reason = ?5, lease_owner = ?6, deadline = ?7
                 WHERE seq = ?1",
                params![
                    key.seq,
                    key.place,
                    job.attempts,
                    job.held,
                    job.reason.as_deref(),
                    job.lease.as_ref().map(|(owner, _)| &**owner),
                    job.lease.as_ref().map(|(_, deadline)| *deadline),
                ],
            )
            .map_err(&fail)?;
        }
        let paused = if self.queue.paused {
            "INSERT OR REPLACE INTO kv (key, value) VALUES (?1, '1')"
        } else {
            "DELETE FROM kv WHERE key = ?1"
        };
        db.execute(paused, [PAUSED])
            .and_then(|_| db.execute_batch("COMMIT"))
            .map_err(&fail)?;
        Ok(entries)
    }

    /// Opens what was just written. The lock is taken again: its file may be gone too.
    fn reopen(&mut self, path: &Path) -> Result<Database, String> {
        self.database.lock = None;
        schema::open(&StorePath::File(path.to_owned())).map_err(|error| {
            self.database.lock = schema::lock(path).ok().flatten();
            match std::error::Error::source(&error) {
                Some(cause) => format!("{error}: {cause}"),
                None => error.to_string(),
            }
        })
    }

    /// From now on this is the database. The old one is closed; its files are not at their paths any more, so SQLite
    /// leaves those alone.
    fn take_over(&mut self, database: Database) {
        self.database = database;
        self.begin_marks();
        let here = self.queue.running.values().filter(|l| l.deadline.is_none());
        for row in here.map(|l| l.key.seq).collect::<Vec<_>>() {
            if let Err(error) = self.database.marks.set(row) {
                tracing::warn!(%error, "this run of a job will not count as an attempt");
            }
        }
        if let Some(watch) = &mut self.database.watch {
            watch.note();
        }
    }
}

struct KnownJob {
    key: Key,
    texts: Arc<JobTexts>,
    attempts: u32,
    lease: Option<(Arc<str>, i64)>,
    held: bool,
    reason: Option<Arc<str>>,
}

fn describe(trouble: &Trouble) -> &'static str {
    match trouble {
        Trouble::Gone => "was deleted while Fresco was running",
        Trouble::Replaced => "was replaced by another file while Fresco was running",
        Trouble::Overwritten | Trouble::Touched => "was overwritten while Fresco was running",
        Trouble::LogGone => "has lost its -wal file while Fresco was running",
        Trouble::LogOverwritten => "had its -wal file overwritten while Fresco was running",
        Trouble::Unreachable(_) => "cannot be reached",
    }
}

fn remove(path: &PathBuf) -> Result<(), String> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e.to_string()),
        _ => Ok(()),
    }
}
