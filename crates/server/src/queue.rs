//! `/queue`.

use std::sync::Arc;

use fresco_engine::StoreError;
use fresco_engine::store::QueueRecord;
use fresco_graph::{Value, json};

use crate::error::ApiError;
use crate::prompt::store_error;
use crate::request::Request;
use crate::response;
use crate::route::Answer;

/// An answer of the store, or why there is none.
pub(crate) fn stored<T>(answer: Option<Result<T, StoreError>>) -> Result<T, ApiError> {
    answer
        .unwrap_or(Err(StoreError::Closed))
        .map_err(|e| store_error(&e))
}

/// `[number, prompt_id, prompt, extra_data, outputs_to_execute]`, copied as stored.
pub(crate) fn write_item(
    out: &mut String,
    number: &Value,
    prompt_id: &str,
    [prompt, extra_data, outputs]: [&str; 3],
) {
    out.push('[');
    json::write(out, number, json::WIRE);
    out.push(',');
    json::write_string(out, prompt_id, false);
    for part in [prompt, extra_data, outputs] {
        out.push(',');
        out.push_str(part);
    }
    out.push(']');
}

/// `GET /queue`.
pub(crate) async fn get(request: Request) -> Answer {
    let queue = stored(request.app.engine.store().queue().await)?;
    let mut out = String::from("{\"queue_running\":");
    write_items(&mut out, &queue.running);
    out.push_str(",\"queue_pending\":");
    write_items(&mut out, &queue.pending);
    out.push('}');
    Ok(response::json_text(out))
}

fn write_items(out: &mut String, records: &[QueueRecord]) {
    out.push('[');
    for (i, r) in records.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_item(
            out,
            &r.number,
            &r.prompt_id,
            [&r.prompt, &r.extra_data, &r.outputs],
        );
    }
    out.push(']');
}

/// The ids of a `delete` list; numbers count as their text.
pub(crate) fn ids(value: Option<&Value>) -> Result<Vec<Arc<str>>, ApiError> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::List(list)) => Ok(list.iter().map(|v| json::python_text(v).into()).collect()),
        Some(_) => Err(ApiError::trouble("'delete' is not an array of ids")),
    }
}

/// `POST /queue`.
pub(crate) async fn post(mut request: Request) -> Answer {
    let body = request.json_map().await?;
    let engine = &request.app.engine;
    let delete = ids(body.get("delete"))?;
    if body.get("clear").is_some_and(Value::truthy) {
        stored(Some(engine.clear_pending().await))?;
        request.app.hub.jobs_left(None);
    }
    for id in delete {
        if stored(Some(engine.delete_pending(&id).await))? {
            request.app.hub.jobs_left(Some(&id));
        }
    }
    Ok(response::empty())
}
