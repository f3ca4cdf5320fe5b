//! `/history`.

use fresco_graph::Value;

use crate::http::error::{ApiError, stored};
use crate::http::query::query_struct;
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;
use crate::routes::fronts;
use crate::routes::queue::ids;
use crate::services::job_json::{HistoryWindow, render};

query_struct! {
    /// Query of `GET /history`.
    HistoryQuery {
        max_items: Option<String> = "max_items", "at most so many";
        offset: Option<String> = "offset", "skip so many; absent: the newest max_items";
    }
}

/// `GET /history`.
pub(crate) async fn get(request: Request) -> Answer {
    let query = HistoryQuery::of(&request);
    let integer = |key: &str, given: Option<String>| match given {
        None => Ok(None),
        Some(text) => match text.trim().parse::<i64>() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(ApiError::trouble(format!("'{key}' is not an integer"))),
        },
    };
    let max_items = integer("max_items", query.max_items)?;
    let offset = integer("offset", query.offset)?.unwrap_or(-1);
    let window = HistoryWindow { max_items, offset };
    let (own_items, own_offset) = window.of_each(fronts::has_others(&request));
    let records = request.app.store.history(own_items, own_offset);
    let own = render(&stored(records.await)?);
    Ok(response::json_text(
        fronts::histories(&request, own, window).await?,
    ))
}

/// `GET /history/{prompt_id}`.
pub(crate) async fn get_one(request: Request) -> Answer {
    let record = stored(request.app.store.history_get(request.param(0)).await)?;
    if record.is_none()
        && let Some(entry) = fronts::history(&request, request.param(0)).await
    {
        return Ok(response::json_text(entry));
    }
    Ok(response::json_text(render(record.as_slice())))
}

/// `POST /history`.
pub(crate) async fn post(mut request: Request) -> Answer {
    let body = request.json_map().await?;
    let store = &request.app.store;
    let delete = ids(body.get("delete"))?;
    if body.get("clear").is_some_and(Value::truthy) {
        stored(store.history_clear().await)?;
    }
    if !delete.is_empty() {
        stored(store.history_delete(delete).await)?;
    }
    Ok(response::empty())
}
