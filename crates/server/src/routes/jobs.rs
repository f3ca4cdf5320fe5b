//! `/api/jobs`: the queue and the history as one list; cancelling by id.

use axum::http::StatusCode;
use fresco_engine::store::{JobBody, JobDetail, JobQuery, JobRecord, JobSort, JobStatus};
use fresco_graph::{Value, json};
use serde::Serialize;

use crate::App;
use crate::http::error::{ApiError, stored};
use crate::http::query::{NonEmpty, query_struct};
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;
use crate::services::job_json::write_status;

query_struct! {
    /// Query of `GET /api/jobs`.
    JobsQuery {
        status: String = "status", "comma list of pending, in_progress, completed, failed, cancelled";
        workflow_id: NonEmpty = "workflow_id", "only jobs of this workflow";
        workflow_prefix: NonEmpty = "workflow_prefix", "only jobs whose workflow has an id that begins so";
        sort_by: Option<String> = "sort_by", "created_at or execution_duration";
        sort_order: Option<String> = "sort_order", "desc or asc";
        limit: Option<String> = "limit", "page size";
        offset: Option<String> = "offset", "jobs to skip";
    }
}

/// The page size when the client names none; the newest front-end does not accept a missing one.
const DEFAULT_LIMIT: usize = 10_000;

fn bad(text: impl Into<String>) -> ApiError {
    ApiError::plain(StatusCode::BAD_REQUEST, text)
}

fn read_query(given: JobsQuery) -> Result<JobQuery, ApiError> {
    let mut query = JobQuery {
        descending: true,
        ..JobQuery::default()
    };
    let mut wrong = Vec::new();
    for word in given
        .status
        .split(',')
        .map(str::trim)
        .filter(|w| !w.is_empty())
    {
        let word = word.to_lowercase();
        match JobStatus::from_name(&word) {
            Some(status) if !query.statuses.contains(&status) => query.statuses.push(status),
            Some(_) => {}
            None => wrong.push(word),
        }
    }
    if !wrong.is_empty() {
        let valid: Vec<&str> = JobStatus::ALL.iter().map(|s| s.name()).collect();
        let text = format!(
            "Invalid status value(s): {}. Valid values: {}",
            wrong.join(", "),
            valid.join(", ")
        );
        return Err(bad(text));
    }
    query.workflow_id = given.workflow_id.0;
    query.workflow_prefix = given.workflow_prefix.0;
    query.sort_by = match given.sort_by.map(|s| s.to_lowercase()).as_deref() {
        None | Some("created_at") => JobSort::Created,
        Some("execution_duration") => JobSort::Duration,
        Some(_) => return Err(bad("sort_by must be 'created_at' or 'execution_duration'")),
    };
    query.descending = match given.sort_order.map(|s| s.to_lowercase()).as_deref() {
        None | Some("desc") => true,
        Some("asc") => false,
        Some(_) => return Err(bad("sort_order must be 'asc' or 'desc'")),
    };
    if let Some(text) = given.limit {
        let limit: i64 = text
            .trim()
            .parse()
            .map_err(|_| bad("limit must be an integer"))?;
        if limit <= 0 {
            return Err(bad("limit must be a positive integer"));
        }
        query.limit = usize::try_from(limit).ok();
    }
    if let Some(text) = given.offset {
        let offset: i64 = text
            .trim()
            .parse()
            .map_err(|_| bad("offset must be an integer"))?;
        query.offset = usize::try_from(offset.max(0)).unwrap_or(0);
    }
    Ok(query)
}

#[derive(Serialize)]
struct Pagination {
    offset: usize,
    limit: usize,
    total: usize,
    has_more: bool,
}

#[derive(Serialize)]
struct CancelAnswer<'a> {
    id: &'a str,
    cancelled: bool,
}

#[derive(Serialize)]
struct CancelManyAnswer {
    /// Ids of jobs.
    cancelled: Vec<String>,
}

/// `GET /api/jobs`.
pub(crate) async fn list(request: Request) -> Answer {
    let mut query = read_query(JobsQuery::of(&request))?;
    let limit = *query.limit.get_or_insert(DEFAULT_LIMIT);
    let offset = query.offset;
    let page = stored(request.app.store.jobs(query).await)?;
    let mut out = String::from("{\"jobs\":[");
    for (i, job) in page.jobs.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_job(&mut out, job);
        out.push('}');
    }
    out.push_str("],\"pagination\":");
    out.push_str(&response::wire_text(&Pagination {
        offset,
        limit,
        total: page.total,
        has_more: offset + page.jobs.len() < page.total,
    }));
    out.push('}');
    Ok(response::json_text(out))
}

/// Everything but the closing brace, so that details can follow. Absent values have no key.
fn write_job(out: &mut String, job: &JobRecord) {
    out.push_str("{\"id\":");
    json::write_string(out, &job.id, false);
    let mut field = |key: &str, text: &str| {
        out.push_str(",\"");
        out.push_str(key);
        out.push_str("\":");
        out.push_str(text);
    };
    field("status", &format!("\"{}\"", job.status.name()));
    field("priority", &json::to_string(&job.number));
    if job.held && job.status == JobStatus::Pending {
        field("held", "true");
        if let Some(reason) = &job.held_reason {
            let mut text = String::new();
            json::write_string(&mut text, reason, false);
            field("held_reason", &text);
        }
    }
    let finished = !matches!(job.status, JobStatus::Pending | JobStatus::InProgress);
    // The newest front-end rejects the whole list for one job without a time.
    field("create_time", &job.create_time.unwrap_or(0).to_string());
    if let Some(time) = job.start_time.filter(|_| finished) {
        field("execution_start_time", &time.to_string());
    }
    if let Some(time) = job.end_time.filter(|_| finished) {
        field("execution_end_time", &time.to_string());
    }
    if let Some(error) = &job.error {
        field("execution_error", error);
    }
    field("outputs_count", &job.outputs_count.to_string());
    if finished {
        field(
            "previewable_outputs_count",
            &job.previewable_count.to_string(),
        );
    }
    if let Some(preview) = &job.preview_output {
        field("preview_output", preview);
    }
    if let Some(id) = &job.workflow_id {
        field("workflow_id", id);
    }
}

pub(crate) fn not_found() -> ApiError {
    ApiError::plain(StatusCode::NOT_FOUND, "Job not found")
}

/// `GET /api/jobs/{job_id}`.
pub(crate) async fn get(request: Request) -> Answer {
    let detail = stored(request.app.store.job(request.param(0)).await)?;
    let Some(JobDetail { job, body }) = detail else {
        return Err(not_found());
    };
    let mut out = String::new();
    write_job(&mut out, &job);
    let (prompt, extra_data) = match &body {
        JobBody::Finished(record) => {
            out.push_str(",\"outputs\":");
            out.push_str(&record.outputs);
            out.push_str(",\"execution_status\":");
            write_status(&mut out, record);
            (&record.prompt, &record.extra_data)
        }
        JobBody::Queued(record) => (&record.prompt, &record.extra_data),
    };
    out.push_str(",\"workflow\":{\"prompt\":");
    out.push_str(prompt);
    out.push_str(",\"extra_data\":");
    out.push_str(extra_data);
    out.push_str("}}");
    Ok(response::json_text(out))
}

async fn cancel_one(app: &App, id: &str) -> Result<bool, ApiError> {
    let cancelled = stored(Some(app.engine.cancel(id).await))?;
    if cancelled
        && let Some(detail) = stored(app.store.job(id).await)?
        && detail.job.status == JobStatus::Cancelled
    {
        // It never ran, so no event will tell its followers.
        app.hub.jobs_left(Some(id));
    }
    Ok(cancelled)
}

/// `POST /api/jobs/{job_id}/cancel`. A job that has ended already is not an error: the wish is fulfilled.
pub(crate) async fn cancel(request: Request) -> Answer {
    let id = request.param(0);
    let cancelled = cancel_one(&request.app, id).await?;
    if !cancelled && stored(request.app.store.job(id).await)?.is_none() {
        return Err(not_found());
    }
    Ok(response::typed(&CancelAnswer { id, cancelled }))
}

/// `POST /api/jobs/cancel` with `{"job_ids": [...]}`.
pub(crate) async fn cancel_many(mut request: Request) -> Answer {
    let body = request.json_map().await?;
    let Some(list) = body.get("job_ids").and_then(Value::as_list) else {
        return Err(bad("job_ids must be an array"));
    };
    let mut cancelled = Vec::new();
    for id in list {
        let Some(id) = id.as_str() else {
            return Err(bad("job_ids must hold strings"));
        };
        if cancel_one(&request.app, id).await? {
            cancelled.push(id.to_owned());
        }
    }
    Ok(response::typed(&CancelManyAnswer { cancelled }))
}
