//! What can go wrong between the engine and its database, with what to do about it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Clone because one failed commit is told to everyone whose write was in it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error(
        "the queue is full ({limit} jobs are waiting); wait for some to finish or raise the limit"
    )]
    QueueFull { limit: usize },
    #[error("a worker has no queue of its own; post the prompt to its front")]
    NoQueue,
    #[error(
        "{path} is in use by another Fresco{}; stop that one, or give this one its own database with --database-url",
        pid.map(|p| format!(" (process {p})")).unwrap_or_default()
    )]
    InUse { path: PathBuf, pid: Option<u32> },
    #[error("{path} is a directory, not a database; name a file with --database-url")]
    Directory { path: PathBuf },
    #[error("{path} is a pipe, socket or device, not a database; name a file with --database-url")]
    NoFile { path: PathBuf },
    #[error(
        "the database {path} is read-only, and queue and history are kept in it; make the file writable for this user, \
         or choose another with --database-url"
    )]
    ReadOnly {
        path: PathBuf,
        source: Arc<io::Error>,
    },
    #[error(
        "cannot open the database {path}; check that the folder exists and may be written, or choose another with --database-url"
    )]
    Open {
        path: PathBuf,
        source: Arc<rusqlite::Error>,
    },
    #[error(
        "cannot prepare {path} for the database; check that the folder may be written, or choose another with --database-url"
    )]
    Io {
        path: PathBuf,
        source: Arc<io::Error>,
    },
    #[error(
        "{path} is not a database; it was left as it is: move it away, or choose another file with --database-url"
    )]
    NotADatabase { path: PathBuf },
    #[error(
        "{path} is a database of another program; it was left as it is: choose another file with --database-url"
    )]
    Foreign { path: PathBuf },
    #[error(
        "{path} is damaged ({problem}); it was left as it is: restore a copy, or move it away to start with an empty one"
    )]
    Corrupt { path: PathBuf, problem: String },
    #[error(
        "{path} was written by a newer Fresco (format {found}, this one knows {known}); update Fresco, or choose \
         another file with --database-url"
    )]
    Newer {
        path: PathBuf,
        found: i64,
        known: i64,
    },
    #[error("the database {path} {problem}")]
    Lost { path: PathBuf, problem: String },
    #[error("cannot {what} in the database")]
    Sql {
        what: &'static str,
        source: Arc<rusqlite::Error>,
    },
    #[error("a stored job cannot be read back (row {row})")]
    Unreadable { row: i64 },
    #[error("cannot start the store thread")]
    Thread { source: Arc<io::Error> },
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    pub(super) fn sql(what: &'static str) -> impl Fn(rusqlite::Error) -> Self {
        move |source| Self::Sql {
            what,
            source: Arc::new(source),
        }
    }
}
