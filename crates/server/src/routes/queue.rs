//! `/queue`, and `/fresco/queue`: pausing, holding and ordering what waits.

use std::collections::BTreeSet;
use std::sync::Arc;

use fresco_cluster::protocol::fronts::FrontRequest;
use fresco_engine::JobSource;
use fresco_engine::store::{QueueChange, QueueOutline};
use fresco_graph::{Value, json};
use indexmap::IndexMap;
use serde::Serialize;

use crate::http::error::{ApiError, Code, stored};
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;
use crate::routes::fronts;
use crate::services::job_json::write_items;

/// `GET /queue`.
pub(crate) async fn get(request: Request) -> Answer {
    let queue = stored(request.app.store.queue().await)?;
    let [running, pending] = fronts::queues(&request).await;
    let mut out = String::from("{\"queue_running\":");
    write_items(&mut out, &queue.running, &running);
    out.push_str(",\"queue_pending\":");
    write_items(&mut out, &queue.pending, &pending);
    out.push('}');
    Ok(response::json_text(out))
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
        fronts::tell(&request, FrontRequest::Clear).await;
    }
    let mut elsewhere = Vec::new();
    for id in delete {
        if stored(Some(engine.delete_pending(&id).await))? {
            request.app.hub.jobs_left(Some(&id));
        } else {
            elsewhere.push(id);
        }
    }
    if !elsewhere.is_empty() {
        let what = FrontRequest::Delete {
            prompt_ids: elsewhere,
        };
        fronts::tell(&request, what).await;
    }
    Ok(response::empty())
}

/// `GET /fresco/queue`.
pub(crate) async fn outline(request: Request) -> Answer {
    let outline = stored(request.app.store.outline().await)?;
    Ok(response::typed(&OutlineAnswer::from(outline)))
}

/// `POST /fresco/queue`. Jobs that do not wait any more are passed over: they may have begun since the client looked.
pub(crate) async fn change(mut request: Request) -> Answer {
    let body = request.try_json().await?;
    let change = body
        .map_err(|e| format!("the request body is not JSON: {e}"))
        .and_then(|body| read_change(&body))
        .map_err(|text| ApiError::coded(Code::BadQueueChange, text))?;
    let outline = stored(Some(request.app.engine.change_queue(change).await))?;
    Ok(response::typed(&OutlineAnswer::from(outline)))
}

/// Ids in one list, each counted once; more cannot wait by default.
const MAX_IDS: usize = 100_000;

fn read_change(body: &Value) -> Result<QueueChange, String> {
    let Some(body) = body.as_map() else {
        return Err("the request body is not a JSON object".to_owned());
    };
    let mut change = QueueChange::default();
    for (key, value) in body {
        let list = match &**key {
            "paused" => {
                let paused = value.as_bool();
                change.paused = Some(paused.ok_or("'paused' is neither true nor false")?);
                continue;
            }
            "order" => &mut change.order,
            "hold" => &mut change.hold,
            "release" => &mut change.release,
            other => {
                return Err(format!(
                    "'{}' is none of paused, order, hold, release",
                    other.chars().take(100).collect::<String>()
                ));
            }
        };
        let ids = value.as_list().map(|ids| ids.iter().map(Value::as_str));
        let ids: Option<Vec<&str>> = ids.and_then(Iterator::collect);
        let ids = ids.ok_or_else(|| format!("'{key}' is not an array of ids"))?;
        // Here and not in the store: its thread has the whole server waiting.
        let mut seen = BTreeSet::new();
        let ids = ids.into_iter().filter(|id| seen.insert(*id));
        *list = ids.map(Arc::from).collect();
        if list.len() > MAX_IDS {
            return Err(format!("'{key}' has more than {MAX_IDS} ids"));
        }
    }
    if body.is_empty() {
        return Err("there is nothing to change: name paused, order, hold or release".to_owned());
    }
    Ok(change)
}

/// How the queue stands. Reasons are by id.
#[derive(Serialize)]
struct OutlineAnswer {
    paused: bool,
    order: Vec<Arc<str>>,
    held: Vec<Arc<str>>,
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    held_reasons: IndexMap<Arc<str>, Arc<str>>,
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    waiting_reasons: IndexMap<Arc<str>, Arc<str>>,
}

impl From<QueueOutline> for OutlineAnswer {
    fn from(outline: QueueOutline) -> Self {
        Self {
            paused: outline.paused,
            order: outline.order,
            held: outline.held,
            held_reasons: outline.reasons.into_iter().collect(),
            waiting_reasons: outline.waiting.into_iter().collect(),
        }
    }
}
