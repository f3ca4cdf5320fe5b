//! Finished jobs: writing an outcome, trimming, paging.

use fresco_graph::{Map, json};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::Limits;
use super::bodies::{self, Number, read_number, text};
use super::error::StoreError;
use super::pending::Key;
use super::record::{HistoryRecord, JobStatus};
use super::summary::Summary;
use crate::cut;
use crate::job::{JobEnd, JobOutcome};

/// Bytes of JSON that the parts of an outcome may have. SQLite refuses a value of a thousand million bytes, escapes can
/// make a text six times as long, and whoever asks for the history gets all of it.
const OUTCOME: Parts = parts(32 << 20, 16 << 20);
/// What is kept of an outcome that the database refused.
const SHORT: Parts = parts(64 << 10, 64 << 10);
/// What is kept of one that was refused even then: that there was an end, and which.
const BARE: Parts = parts(0, 4 << 10);

#[derive(Clone, Copy)]
struct Parts {
    outputs: usize,
    messages: usize,
}

const fn parts(outputs: usize, messages: usize) -> Parts {
    Parts { outputs, messages }
}

/// An outcome as it will be written, made on the worker's thread.
pub(super) struct EncodedOutcome {
    pub(super) summary: Summary,
    outcome: JobOutcome,
    outputs: String,
    meta: String,
    messages: String,
}

impl EncodedOutcome {
    /// Parts that are too long to be kept are cut, with a mark that says so.
    pub(super) fn new(outcome: JobOutcome) -> Self {
        Self::within(outcome, OUTCOME)
    }

    fn within(outcome: JobOutcome, limit: Parts) -> Self {
        let short = |map: Map| match limit.outputs {
            0 => Map::new(),
            bytes => cut::map_to_fit(map, bytes),
        };
        let messages = cut::to_fit(&outcome.messages.into(), limit.messages);
        let outcome = JobOutcome {
            outputs: short(outcome.outputs),
            meta: short(outcome.meta),
            messages: messages.as_list().unwrap_or_default().to_vec(),
            end: outcome.end,
        };
        let text = |map: &Map| json::to_string(&map.clone().into());
        Self {
            summary: Summary::of(&outcome),
            outputs: text(&outcome.outputs),
            meta: text(&outcome.meta),
            messages: json::to_string(&messages),
            outcome,
        }
    }

    /// The same outcome with only the beginning of what is long; nothing if it is short already.
    pub(super) fn shortened(&self) -> Option<Self> {
        let limit = SHORT.outputs + SHORT.messages;
        (self.bytes() > limit).then(|| Self::within(self.outcome.clone(), SHORT))
    }

    /// The same outcome without what nodes have shown.
    pub(super) fn bare(&self) -> Self {
        Self::within(self.outcome.clone(), BARE)
    }

    pub(super) fn bytes(&self) -> usize {
        let error = self.summary.error.as_ref().map_or(0, String::len);
        self.outputs.len() + self.meta.len() + self.messages.len() + error
    }
}

/// How much the history holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) entries: usize,
    /// Of the texts in it: prompts and outcomes.
    pub(super) bytes: u64,
}

impl Totals {
    fn less(&mut self, bytes: u64) {
        self.entries = self.entries.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Moves a job from the queue to the history. Returns how much that holds then.
pub(super) fn record(
    db: &Connection,
    key: &Key,
    outcome: &EncodedOutcome,
    totals: Totals,
    limits: &Limits,
) -> Result<Totals, StoreError> {
    move_job(db, key, outcome, totals, limits)
        .map_err(StoreError::sql("record the outcome of a job"))
}

fn move_job(
    db: &Connection,
    key: &Key,
    outcome: &EncodedOutcome,
    mut totals: Totals,
    limits: &Limits,
) -> rusqlite::Result<Totals> {
    let queued = db
        .prepare_cached(
            "DELETE FROM jobs WHERE seq = ?1 RETURNING create_time, workflow_id, attempt",
        )?
        .query_row([key.seq], |row| {
            Ok((
                row.get::<_, Option<i64>>(0)?,
                row.get::<_, Option<String>>(1)?,
                row.get::<_, i64>(2)?,
            ))
        })
        .optional()?;
    // Already moved: the second report of an outcome changes nothing.
    let Some((create_time, workflow_id, attempt)) = queued else {
        return Ok(totals);
    };
    while totals.entries > limits.history && drop_oldest(db, key.seq, &mut totals)? {}
    // The same id again takes the place of its earlier entry.
    let replaced = db
        .prepare_cached("DELETE FROM history WHERE prompt_id = ?1 RETURNING pos, seq, bytes")?
        .query_row([&*key.prompt_id], |row| {
            let number = |column| row.get::<_, i64>(column);
            Ok((number(0)?, number(1)?, number(2)?))
        })
        .optional()?;
    if let Some((_, old, bytes)) = replaced {
        bodies::delete(db, old)?;
        totals.less(bytes as u64);
    }
    let bytes = outcome.bytes() as u64 + bodies::length(db, key.seq)?;
    totals.entries += 1;
    totals.bytes += bytes;
    let Summary {
        status,
        start_time,
        end_time,
        error,
        outputs_count,
        previewable_count,
        preview_output,
    } = &outcome.summary;
    db.prepare_cached(
        "INSERT INTO history (pos, seq, number, prompt_id, status, create_time, start_time, end_time, workflow_id,
            outputs_count, previewable_count, attempt, preview_output, error, bytes)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
    )?
    .execute(params![
        replaced.map(|(pos, ..)| pos),
        key.seq,
        Number(&key.number),
        &*key.prompt_id,
        status.name(),
        create_time,
        start_time,
        end_time,
        workflow_id,
        outputs_count,
        previewable_count,
        attempt,
        preview_output,
        error,
        bytes as i64,
    ])?;
    db.prepare_cached(
        "INSERT INTO results (seq, status_str, completed, outputs, meta, messages) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![
        key.seq,
        outcome.outcome.end.status_str(),
        outcome.outcome.end.is_finished(),
        outcome.outputs,
        outcome.meta,
        outcome.messages
    ])?;
    // The newest stays whatever its size: somebody waits for it.
    while totals.bytes > limits.history_bytes && drop_oldest(db, key.seq, &mut totals)? {}
    Ok(totals)
}

/// Removes the oldest entry, but not that of job `spared`; false if there was none to remove.
fn drop_oldest(db: &Connection, spared: i64, totals: &mut Totals) -> rusqlite::Result<bool> {
    let oldest = db
        .prepare_cached(
            "DELETE FROM history WHERE pos = (SELECT MIN(pos) FROM history WHERE seq <> ?1) RETURNING seq, bytes",
        )?
        .query_row([spared], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))
        .optional()?;
    let Some((oldest, bytes)) = oldest else {
        return Ok(false);
    };
    bodies::delete(db, oldest)?;
    totals.less(bytes as u64);
    Ok(true)
}

const COLUMNS: &str =
    "h.number, h.prompt_id, b.prompt, b.extra_data, b.outputs, r.outputs, r.meta, h.status,
    r.messages
    FROM history h JOIN bodies b ON b.seq = h.seq JOIN results r ON r.seq = h.seq";

fn read(row: &Row) -> rusqlite::Result<HistoryRecord> {
    Ok(HistoryRecord {
        number: read_number(row, 0)?,
        prompt_id: text(row, 1)?,
        prompt: text(row, 2)?,
        extra_data: text(row, 3)?,
        outputs_to_execute: text(row, 4)?,
        outputs: text(row, 5)?,
        meta: text(row, 6)?,
        end: JobStatus::from_name(&text(row, 7)?)
            .and_then(JobStatus::end)
            .unwrap_or(JobEnd::Failed),
        messages: text(row, 8)?,
    })
}

/// The part of `entries` that a request for `max_items` from `offset` selects, with the reference's corner cases: a
/// negative offset counts from the newest, and a limit below one still lets the first match through when an offset is
/// given.
fn window(entries: usize, max_items: Option<i64>, offset: i64) -> std::ops::Range<usize> {
    let entries = entries as i64;
    let start = match max_items {
        Some(max) if offset < 0 => entries.saturating_sub(max),
        _ => offset,
    };
    let start = start.clamp(0, entries);
    let end = max_items.map_or(entries, |max| start.saturating_add(max.max(1)).min(entries));
    start as usize..end as usize
}

/// Entries in the order they finished, oldest first.
pub(super) fn page(
    db: &Connection,
    entries: usize,
    max_items: Option<i64>,
    offset: i64,
) -> Result<Vec<HistoryRecord>, StoreError> {
    let window = window(entries, max_items, offset);
    if window.is_empty() {
        return Ok(Vec::new());
    }
    // Skipping rows costs time for each, so come from the nearer end.
    let backwards = window.start > entries / 2;
    let (order, skip) = if backwards {
        ("DESC", entries - window.end)
    } else {
        ("ASC", window.start)
    };
    let sql = format!(
        "SELECT {COLUMNS} WHERE h.pos IN (SELECT pos FROM history ORDER BY pos {order} LIMIT ?1 OFFSET ?2)
         ORDER BY h.pos"
    );
    db.prepare_cached(&sql)
        .and_then(|mut s| {
            s.query_map([window.len() as i64, skip as i64], read)?
                .collect()
        })
        .map_err(StoreError::sql("read the history"))
}

pub(super) fn get(db: &Connection, prompt_id: &str) -> Result<Option<HistoryRecord>, StoreError> {
    db.prepare_cached(&format!("SELECT {COLUMNS} WHERE h.prompt_id = ?1"))
        .and_then(|mut s| s.query_row([prompt_id], read).optional())
        .map_err(StoreError::sql("read the history"))
}

pub(super) fn totals(db: &Connection) -> Result<Totals, StoreError> {
    db.prepare_cached("SELECT COUNT(*), coalesce(SUM(bytes), 0) FROM history")
        .and_then(|mut s| {
            s.query_row([], |row| {
                Ok(Totals {
                    entries: row.get::<_, i64>(0)? as usize,
                    bytes: row.get::<_, i64>(1)? as u64,
                })
            })
        })
        .map_err(StoreError::sql("read the history"))
}

/// Removes one entry; false if there was none.
pub(super) fn delete(
    db: &Connection,
    prompt_id: &str,
    totals: &mut Totals,
) -> Result<bool, StoreError> {
    let mut delete = || {
        let deleted = db
            .prepare_cached("DELETE FROM history WHERE prompt_id = ?1 RETURNING seq, bytes")?
            .query_row([prompt_id], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
            })
            .optional()?;
        let Some((seq, bytes)) = deleted else {
            return Ok(false);
        };
        bodies::delete(db, seq)?;
        totals.less(bytes as u64);
        Ok(true)
    };
    delete().map_err(StoreError::sql("delete from the history"))
}

pub(super) fn clear(db: &Connection) -> Result<(), StoreError> {
    db.execute_batch(
        "DELETE FROM bodies WHERE seq IN (SELECT seq FROM history); DELETE FROM results; DELETE FROM history;",
    )
    .map_err(StoreError::sql("clear the history"))
}

#[cfg(test)]
mod tests {
    use super::window;

    #[test]
    fn windows_follow_the_reference() {
        for (max, offset, expected) in [
            (None, -1, 0..5),
            (None, 0, 0..5),
            (None, 2, 2..5),
            (None, 5, 5..5),
            (None, 9, 5..5),
            (Some(2), -1, 3..5),
            (Some(9), -1, 0..5),
            (Some(0), -1, 5..5),
            (Some(-3), -1, 5..5),
            (Some(2), 0, 0..2),
            (Some(2), 4, 4..5),
            (Some(2), 5, 5..5),
            (Some(0), 1, 1..2),
            (Some(-3), 1, 1..2),
            (Some(i64::MAX), 3, 3..5),
            (Some(i64::MIN), -1, 5..5),
        ] {
            assert_eq!(window(5, max, offset), expected, "{max:?} {offset}");
        }
        assert!(window(0, None, 0).is_empty());
        assert!(window(0, Some(3), -1).is_empty());
    }
}
