//! Opening the database: one process at a time, forward migrations, and refusal of everything that is not ours.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::error::StoreError;
use super::file_watch::{FileWatch, beside};
use super::marks::{Left, Marks};

/// Marks a database as Fresco's ("FRSC"), so that we never write into someone else's.
pub(super) const APPLICATION_ID: i64 = 0x4652_5343;

/// A file that starts like this is for SQLite to judge; any other was never a database.
pub(super) const MAGIC: &[u8] = b"SQLite format 3\0";

/// Databases up to this size are checked page by page on opening. Larger ones would delay the start; damage there shows
/// as an error of the request that meets it.
const CHECKED_BYTES: u64 = 4 << 20;

/// Each step brings the schema from its index to the next version. Steps are never edited once released.
const MIGRATIONS: &[&str] = &[
    // A body is written once, when the job is accepted, and serves queue and history alike; `exact` repeats prompt and
    // extra data only where strict JSON cannot say them (NaN, infinities). The wide columns are kept out of the tables
    // that lists scan. `number` has no type on purpose: integers and floats stay apart in it.
    "CREATE TABLE bodies (
        seq INTEGER PRIMARY KEY,
        prompt TEXT NOT NULL,
        extra_data TEXT NOT NULL,
        outputs TEXT NOT NULL,
        exact TEXT
    );
    CREATE TABLE jobs (
        seq INTEGER PRIMARY KEY REFERENCES bodies (seq),
        number,
        prompt_id TEXT NOT NULL,
        create_time INTEGER,
        workflow_id TEXT,
        attempt INTEGER NOT NULL DEFAULT 0,
        lease_owner TEXT,
        deadline INTEGER
    );
    CREATE TABLE history (
        pos INTEGER PRIMARY KEY,
        seq INTEGER NOT NULL REFERENCES bodies (seq),
        number,
        prompt_id TEXT NOT NULL UNIQUE,
        status TEXT NOT NULL,
        create_time INTEGER,
        start_time INTEGER,
        end_time INTEGER,
        workflow_id TEXT,
        outputs_count INTEGER NOT NULL,
        previewable_count INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        preview_output TEXT,
        error TEXT
    );
    CREATE TABLE results (
        seq INTEGER PRIMARY KEY REFERENCES bodies (seq),
        status_str TEXT NOT NULL,
        completed INTEGER NOT NULL,
        outputs TEXT NOT NULL,
        meta TEXT NOT NULL,
        messages TEXT NOT NULL
    );
    CREATE TABLE kv (
        key TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) WITHOUT ROWID;",
    // A held job waits until it is released; a place decides between equal numbers after somebody ordered the queue.
    "ALTER TABLE jobs ADD COLUMN held INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE jobs ADD COLUMN place INTEGER;",
    // Why the program itself holds a job; how many bytes an entry of the history takes.
    "ALTER TABLE jobs ADD COLUMN held_reason TEXT;
    ALTER TABLE history ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
    UPDATE history SET bytes = coalesce((SELECT octet_length(b.prompt) + octet_length(b.extra_data)
            + octet_length(b.outputs) + coalesce(octet_length(b.exact), 0) FROM bodies b WHERE b.seq = history.seq), 0)
        + coalesce((SELECT octet_length(r.outputs) + octet_length(r.meta) + octet_length(r.messages)
            FROM results r WHERE r.seq = history.seq), 0)
        + coalesce(octet_length(error), 0);",
    // A lease with a deadline outlives the process. Programs before this version would take such a job for their own.
    "CREATE INDEX leases ON jobs (deadline) WHERE deadline IS NOT NULL;",
];

/// Where the database lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePath {
    File(PathBuf),
    /// Gone when the process ends.
    Memory,
}

/// An open database and the lock that keeps other processes out of it.
pub(super) struct Database {
    pub(super) connection: Connection,
    pub(super) marks: Marks,
    pub(super) left: Left,
    /// Held, never read: the operating system drops the lock with the file, however the process ends.
    pub(super) lock: Option<File>,
    /// None for a database in memory.
    pub(super) watch: Option<FileWatch>,
}

pub(super) fn open(path: &StorePath) -> Result<Database, StoreError> {
    let StorePath::File(path) = path else {
        let connection =
            Connection::open_in_memory().map_err(StoreError::sql("open a database in memory"))?;
        prepare(&connection, Path::new(":memory:"))?;
        return Ok(Database {
            connection,
            marks: Marks::none(),
            left: Left::default(),
            lock: None,
            watch: None,
        });
    };
    let (connection, lock) = open_file(path)?;
    prepare(&connection, path)?;
    // After everything that may refuse: a file that is not ours gets no company.
    let (marks, left) = Marks::open(path)?;
    let watch = FileWatch::new(path).map_err(io_error(path))?;
    Ok(Database {
        connection,
        marks,
        left,
        lock,
        watch: Some(watch),
    })
}

/// A pipe would be waited for without end.
fn refuse_other_things(path: &Path) -> Result<(), StoreError> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(StoreError::Directory { path: path.into() }),
        Ok(found) if !found.is_file() => Err(StoreError::NoFile { path: path.into() }),
        _ => Ok(()),
    }
}

fn open_file(path: &Path) -> Result<(Connection, Option<File>), StoreError> {
    refuse_other_things(path)?;
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(io_error(parent))?;
    }
    let lock = lock(path)?;
    check_magic(path)?;
    check_access(path)?;
    // No shared cache, no URI: the path is a path.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(classify(path))?;
    Ok((connection, lock))
}

/// What a database holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreContents {
    /// Waiting, and running when the process ended.
    pub jobs: usize,
    pub history: usize,
}

pub(super) fn inspect(path: &Path) -> Result<Option<StoreContents>, StoreError> {
    refuse_other_things(path)?;
    if !path.exists() {
        return Ok(None);
    }
    // Only a lock file that is there already is looked at: looking must not leave one behind.
    let _lock = if lock_path(path).exists() {
        lock(path)?
    } else {
        None
    };
    check_magic(path)?;
    check_access(path)?;
    let fail = classify(path);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(&fail)?;
    if check_ours(&connection, path)? == 0 {
        return Ok(Some(StoreContents {
            jobs: 0,
            history: 0,
        }));
    }
    let count = |sql: &str| {
        connection
            .query_row(sql, [], |row| row.get::<_, i64>(0))
            .map_err(&fail)
    };
    Ok(Some(StoreContents {
        jobs: count("SELECT COUNT(*) FROM jobs")? as usize,
        history: count("SELECT COUNT(*) FROM history")? as usize,
    }))
}

/// SQLite opens a file that may not be written as well as it can and fails later, at whatever it wants to write first.
fn check_access(path: &Path) -> Result<(), StoreError> {
    match File::options().write(true).open(path) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            Err(read_only(path)(e))
        }
        Err(e) => Err(io_error(path)(e)),
    }
}

/// SQLite takes a short file for an empty database and would write over it; look first.
fn check_magic(path: &Path) -> Result<(), StoreError> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io_error(path)(e)),
    };
    let mut head = Vec::new();
    Read::by_ref(&mut file)
        .take(MAGIC.len() as u64)
        .read_to_end(&mut head)
        .map_err(io_error(path))?;
    let length = file.metadata().map_err(io_error(path))?.len();
    if head.is_empty() {
        return Ok(());
    }
    if head != MAGIC {
        return Err(StoreError::NotADatabase { path: path.into() });
    }
    if length < 512 {
        return Err(StoreError::Corrupt {
            path: path.into(),
            problem: "it is cut off".into(),
        });
    }
    Ok(())
}

pub(super) fn lock_path(path: &Path) -> PathBuf {
    beside(path, ".lock")
}

/// Takes `<database>.lock`. A lock of the operating system, because it goes away with a killed process.
pub(super) fn lock(path: &Path) -> Result<Option<File>, StoreError> {
    let lock_path = lock_path(path);
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&lock_path)
        .map_err(io_error(&lock_path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let pid = file
                .take(16)
                .read_to_string(&mut text)
                .ok()
                .and_then(|_| text.trim().parse().ok());
            return Err(StoreError::InUse {
                path: path.into(),
                pid,
            });
        }
        Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => {
            tracing::warn!(path = %path.display(), "this file system has no locks; do not start a second Fresco on it");
            return Ok(None);
        }
        Err(TryLockError::Error(e)) => return Err(io_error(&lock_path)(e)),
    }
    // The process number is for the other one's message only; failing to write it harms nothing.
    let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| {
        write!(file, "{}", std::process::id())?;
        file.flush()
    });
    Ok(Some(file))
}

/// Refuses databases of others and of the future; gives the schema version, 0 for an empty one.
fn check_ours(connection: &Connection, path: &Path) -> Result<i64, StoreError> {
    let fail = classify(path);
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let version = number("PRAGMA user_version").map_err(&fail)?;
    let application = number("PRAGMA application_id").map_err(&fail)?;
    let tables = number("SELECT COUNT(*) FROM sqlite_schema").map_err(&fail)?;
    let fresh = tables == 0 && version == 0 && (application == 0 || application == APPLICATION_ID);
    if !fresh && application != APPLICATION_ID {
        return Err(StoreError::Foreign { path: path.into() });
    }
    let known = MIGRATIONS.len() as i64;
    if version > known {
        return Err(StoreError::Newer {
            path: path.into(),
            found: version,
            known,
        });
    }
    Ok(version)
}

fn prepare(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let fail = classify(path);
    connection
        .busy_timeout(Duration::from_secs(5))
        .map_err(&fail)?;
    // Before the first read, so that SQLite needs no shared memory: the lock file keeps other processes out anyway.
    connection
        .execute_batch("PRAGMA locking_mode = EXCLUSIVE")
        .map_err(&fail)?;
    let version = check_ours(connection, path)?;
    let fresh = version == 0;
    if connection.is_readonly(rusqlite::MAIN_DB).map_err(&fail)? {
        return Err(read_only(path)(io::ErrorKind::PermissionDenied.into()));
    }
    let size = fs::metadata(path).map_or(0, |m| m.len());
    if !fresh && size <= CHECKED_BYTES {
        let answer: String = connection
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(&fail)?;
        if answer != "ok" {
            return Err(StoreError::Corrupt {
                path: path.into(),
                problem: answer,
            });
        }
    }
    if fresh {
        // Before the first page is written; see `make_shrinkable` for databases from before.
        connection
            .execute_batch("PRAGMA auto_vacuum = INCREMENTAL")
            .map_err(&fail)?;
    }
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = FULL;
             PRAGMA foreign_keys = OFF;
             PRAGMA journal_size_limit = 16777216;
             PRAGMA wal_autocheckpoint = 4000;",
        )
        .map_err(&fail)?;
    connection.set_prepared_statement_cache_capacity(64);
    for (step, sql) in MIGRATIONS.iter().enumerate().skip(version as usize) {
        // One transaction a step: a crash in between leaves the version it reached.
        let batch = format!(
            "BEGIN IMMEDIATE; {sql}; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {}; COMMIT;",
            step + 1
        );
        connection.execute_batch(&batch).map_err(&fail)?;
    }
    make_shrinkable(connection, path, size);
    connection
        .execute_batch("PRAGMA temp_store = MEMORY")
        .map_err(&fail)
}

/// A database that was made without it gets a list of who points at which page, so that freed space can be given back.
/// That writes the whole file once; if there is no room for it, the database works as before and keeps its size.
fn make_shrinkable(connection: &Connection, path: &Path, size: u64) {
    let mode = connection.query_row("PRAGMA auto_vacuum", [], |row| row.get::<_, i64>(0));
    if mode.is_ok_and(|mode| mode == 2) {
        return;
    }
    if size > CHECKED_BYTES {
        tracing::info!(path = %path.display(), "rewriting the database ({} MB), once, so that it can shrink", size >> 20);
    }
    let rewritten = connection.execute_batch("PRAGMA auto_vacuum = INCREMENTAL; VACUUM;");
    if let Err(error) = rewritten {
        tracing::warn!(%error, path = %path.display(), "the database could not be rewritten and will not shrink; it works all the same");
    }
}

fn read_only(path: &Path) -> impl Fn(io::Error) -> StoreError {
    move |source| StoreError::ReadOnly {
        path: path.into(),
        source: Arc::new(source),
    }
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> StoreError {
    move |source| StoreError::Io {
        path: path.into(),
        source: Arc::new(source),
    }
}

fn classify(path: &Path) -> impl Fn(rusqlite::Error) -> StoreError {
    let path = path.to_owned();
    move |source| {
        let path = path.clone();
        match source.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => StoreError::NotADatabase { path },
            Some(ErrorCode::DatabaseCorrupt) => StoreError::Corrupt {
                path,
                problem: source.to_string(),
            },
            _ => StoreError::Open {
                path,
                source: Arc::new(source),
            },
        }
    }
}
