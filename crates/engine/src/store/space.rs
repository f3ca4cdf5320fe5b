//! Giving the space of deleted jobs back to the file system.
//!
//! SQLite keeps freed pages for later use. After somebody cleared something they are given back, a slice at a time
//! between batches, so that nobody waits for it; then the log is cut too.

use rusqlite::Connection;

use super::thread::StoreThread;

/// Pages of one slice: 16 MB with pages of 4 KB.
const SLICE: i64 = 4096;
/// While the history is at its limit, new entries use the pages of dropped ones. Only what is far beyond that is given
/// back unasked.
const UNASKED: i64 = 16 * SLICE;

impl StoreThread {
    /// One slice, if there is something to give back.
    pub(super) fn give_back(&mut self) {
        let db = &self.database.connection;
        if !self.shrinking || self.files.lost.is_some() || !db.is_autocommit() {
            return;
        }
        match slice(db) {
            Ok(left) => {
                self.shrinking = left;
                self.change.wrote = true;
                self.note_files();
            }
            Err(error) => {
                // The space is not lost: SQLite uses it again.
                tracing::warn!(%error, "the database keeps its size");
                self.shrinking = false;
            }
        }
    }

    /// After an outcome that dropped many old entries.
    pub(super) fn notice_free_space(&mut self) {
        let db = &self.database.connection;
        // For every outcome, so the statements are kept.
        let count = |sql: &str| {
            db.prepare_cached(sql)
                .and_then(|mut s| s.query_row([], |row| row.get::<_, i64>(0)))
        };
        let free = count("PRAGMA freelist_count").unwrap_or(0);
        let all = count("PRAGMA page_count").unwrap_or(0);
        self.shrinking |= free > UNASKED && free > all / 2;
    }
}

/// Gives some pages back; true if there are more.
fn slice(db: &Connection) -> rusqlite::Result<bool> {
    let count = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0));
    let before = count("PRAGMA freelist_count")?;
    if before > 0 {
        // Each step frees one page; only asking for every row frees them all.
        let mut statement = db.prepare(&format!("PRAGMA incremental_vacuum({SLICE})"))?;
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {}
        let after = count("PRAGMA freelist_count")?;
        if 0 < after && after < before {
            return Ok(true);
        }
    }
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(false)
}
