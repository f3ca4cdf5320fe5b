//! The queue and the job list, read from their narrow tables. What runs is known to the store thread alone and handed in
//! as `running`, the rows of those jobs.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};

use super::bodies::{read_number, text};
use super::error::StoreError;
use super::record::{JobPage, JobQuery, JobRecord, JobSort, JobStatus, QueueRecord, QueueState};

/// The order in which waiting jobs run; null stands for not-a-number, which runs last.
const RUN_ORDER: &str = "j.number IS NULL, j.number, j.place IS NULL, j.place, j.prompt_id, j.seq";

const QUEUE_COLUMNS: &str = "j.number, j.prompt_id, b.prompt, b.extra_data, b.outputs, j.seq
    FROM jobs j JOIN bodies b ON b.seq = j.seq";

fn read_queued(row: &Row) -> rusqlite::Result<(QueueRecord, i64)> {
    let record = QueueRecord {
        number: read_number(row, 0)?,
        prompt_id: text(row, 1)?,
        prompt: text(row, 2)?,
        extra_data: text(row, 3)?,
        outputs: text(row, 4)?,
    };
    Ok((record, row.get(5)?))
}

/// `first` are the waiting jobs that run before all others.
pub(super) fn queue(
    db: &Connection,
    running: &[i64],
    first: &BTreeSet<i64>,
) -> Result<QueueState, StoreError> {
    let read = || -> rusqlite::Result<QueueState> {
        let mut state = QueueState::default();
        let mut later = Vec::new();
        let mut statement =
            db.prepare_cached(&format!("SELECT {QUEUE_COLUMNS} ORDER BY {RUN_ORDER}"))?;
        for row in statement.query_map([], read_queued)? {
            let (record, seq) = row?;
            if running.contains(&seq) {
                &mut state.running
            } else if first.contains(&seq) {
                &mut state.pending
            } else {
                &mut later
            }
            .push(record);
        }
        state.pending.append(&mut later);
        Ok(state)
    };
    read().map_err(StoreError::sql("read the queue"))
}

const JOB_COLUMNS: &str = "'pending', prompt_id, number,
    create_time, NULL, NULL, NULL, 0, 0, NULL, workflow_id, held, held_reason FROM jobs j";
const HISTORY_COLUMNS: &str =
    "status, prompt_id, number, create_time, start_time, end_time, error, outputs_count,
    previewable_count, preview_output, workflow_id, 0, NULL FROM history h";

fn read_job(row: &Row) -> rusqlite::Result<JobRecord> {
    let status = row.get_ref(0)?.as_str().ok().and_then(JobStatus::from_name);
    Ok(JobRecord {
        // Only this crate writes the column; anything else would be damage, shown as a failure.
        status: status.unwrap_or(JobStatus::Failed),
        id: text(row, 1)?,
        number: read_number(row, 2)?,
        create_time: row.get(3)?,
        start_time: row.get(4)?,
        end_time: row.get(5)?,
        error: row.get(6)?,
        outputs_count: row.get(7)?,
        previewable_count: row.get(8)?,
        preview_output: row.get(9)?,
        workflow_id: row.get(10)?,
        held: row.get(11)?,
        held_reason: row.get(12)?,
    })
}

/// A filtered, sorted page. Keys are selected first and rows read after, so that sorting never carries wide columns.
pub(super) fn jobs(
    db: &Connection,
    running: &[i64],
    query: &JobQuery,
) -> Result<JobPage, StoreError> {
    read_page(db, running, query).map_err(StoreError::sql("list the jobs"))
}

fn read_page(db: &Connection, running: &[i64], query: &JobQuery) -> rusqlite::Result<JobPage> {
    let (source, parameters) = source(running, query);
    let Some(source) = source else {
        return Ok(JobPage {
            jobs: Vec::new(),
            total: 0,
        });
    };
    let total: i64 = db
        .prepare(&format!("SELECT COUNT(*) FROM ({source})"))?
        .query_row(params_from_iter(&parameters), |row| row.get(0))?;
    let key = match query.sort_by {
        JobSort::Created => "created",
        JobSort::Duration => "duration",
    };
    let direction = if query.descending { "DESC" } else { "ASC" };
    // Numbers, so nothing to escape; SQLite reads a negative limit as none.
    let limit = query
        .limit
        .map_or(-1, |l| i64::try_from(l).unwrap_or(i64::MAX));
    let offset = i64::try_from(query.offset).unwrap_or(i64::MAX);
    let keys: Vec<(bool, i64)> = db
        .prepare(&format!(
            "SELECT place = 2, key FROM ({source})
             ORDER BY {key} {direction}, place, number IS NULL, number, id, key LIMIT {limit} OFFSET {offset}"
        ))?
        .query_map(params_from_iter(&parameters), |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut queued = db.prepare_cached(&format!("SELECT {JOB_COLUMNS} WHERE seq = ?1"))?;
    let mut finished = db.prepare_cached(&format!("SELECT {HISTORY_COLUMNS} WHERE pos = ?1"))?;
    let jobs = keys
        .into_iter()
        .map(|(done, key)| {
            let statement = if done { &mut finished } else { &mut queued };
            let mut job = statement.query_row([key], read_job)?;
            if !done && running.contains(&key) {
                job.status = JobStatus::InProgress;
            }
            Ok(job)
        })
        .collect::<rusqlite::Result<_>>()?;
    Ok(JobPage {
        jobs,
        total: total as usize,
    })
}

/// The rows that match, as (place, key, created, duration, number, id): running 0, pending 1, history 2.
fn source(running: &[i64], query: &JobQuery) -> (Option<String>, Vec<Sql>) {
    let all = query.statuses.is_empty();
    let wants = |status| all || query.statuses.contains(&status);
    let mut parameters = Vec::new();
    let mut workflow = String::new();
    // Ids are kept as JSON text.
    let quoted = |id: &str| {
        let mut text = String::new();
        fresco_graph::json::write_string(&mut text, id, false);
        text
    };
    if let Some(id) = &query.workflow_id {
        parameters.push(Sql::Text(quoted(id)));
        workflow.push_str(" AND workflow_id = ?1");
    }
    if let Some(prefix) = &query.workflow_prefix {
        let mut start = quoted(prefix);
        start.pop();
        parameters.push(Sql::Text(start));
        let at = parameters.len();
        let _ = write!(
            workflow,
            " AND substr(workflow_id, 1, length(?{at})) = ?{at}"
        );
    }
    let mut parts = Vec::new();
    let running = running
        .iter()
        .map(i64::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    for (status, place, condition) in [
        (JobStatus::InProgress, 0, "IN"),
        (JobStatus::Pending, 1, "NOT IN"),
    ] {
        if wants(status) {
            parts.push(format!(
                "SELECT {place} AS place, seq AS key, coalesce(create_time, 0) AS created, 0 AS duration,
                    number AS number, prompt_id AS id
                 FROM jobs WHERE seq {condition} ({running}){workflow}"
            ));
        }
    }
    let ended: Vec<_> = [
        JobStatus::Completed,
        JobStatus::Failed,
        JobStatus::Cancelled,
    ]
    .into_iter()
    .filter(|s| wants(*s))
    .map(|s| format!("'{}'", s.name()))
    .collect();
    if !ended.is_empty() {
        parts.push(format!(
            "SELECT 2 AS place, pos AS key, coalesce(create_time, 0) AS created,
                CASE WHEN coalesce(start_time, 0) <> 0 AND coalesce(end_time, 0) <> 0
                    THEN end_time - start_time ELSE 0 END AS duration,
                0 AS number, '' AS id
             FROM history WHERE status IN ({}){workflow}",
            ended.join(", ")
        ));
    }
    (
        (!parts.is_empty()).then(|| parts.join(" UNION ALL ")),
        parameters,
    )
}

pub(super) fn finished_job(db: &Connection, id: &str) -> Result<Option<JobRecord>, StoreError> {
    db.prepare_cached(&format!("SELECT {HISTORY_COLUMNS} WHERE prompt_id = ?1"))
        .and_then(|mut s| s.query_row([id], read_job).optional())
        .map_err(StoreError::sql("read a job"))
}

pub(super) fn queued_job(
    db: &Connection,
    seq: i64,
    running: bool,
) -> Result<(JobRecord, QueueRecord), StoreError> {
    let read = || {
        let mut job = db
            .prepare_cached(&format!("SELECT {JOB_COLUMNS} WHERE seq = ?1"))?
            .query_row([seq], read_job)?;
        if running {
            job.status = JobStatus::InProgress;
        }
        let (body, _) = db
            .prepare_cached(&format!("SELECT {QUEUE_COLUMNS} WHERE j.seq = ?1"))?
            .query_row([seq], read_queued)?;
        Ok((job, body))
    };
    read().map_err(StoreError::sql("read a job"))
}
