//! `/history`.

use fresco_engine::store::HistoryRecord;
use fresco_graph::{Value, json};

use crate::error::ApiError;
use crate::fronts;
use crate::queue::{ids, stored, write_item};
use crate::request::Request;
use crate::response;
use crate::route::Answer;

/// `GET /history`.
pub(crate) async fn get(request: Request) -> Answer {
    let integer = |key: &str| match request.query(key) {
        None => Ok(None),
        Some(text) => match text.trim().parse::<i64>() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(ApiError::trouble(format!("'{key}' is not an integer"))),
        },
    };
    let max_items = integer("max_items")?;
    let offset = integer("offset")?.unwrap_or(-1);
    let records = stored(request.app.engine.store().history(max_items, offset).await)?;
    Ok(response::json_text(render(&records)))
}

/// `GET /history/{prompt_id}`.
pub(crate) async fn get_one(request: Request) -> Answer {
    let record = stored(
        request
            .app
            .engine
            .store()
            .history_get(request.param(0))
            .await,
    )?;
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
    let store = request.app.engine.store();
    let delete = ids(body.get("delete"))?;
    if body.get("clear").is_some_and(Value::truthy) {
        stored(store.history_clear().await)?;
    }
    if !delete.is_empty() {
        stored(store.history_delete(delete).await)?;
    }
    Ok(response::empty())
}

pub(crate) fn render(records: &[HistoryRecord]) -> String {
    let mut out = String::from("{");
    for (i, r) in records.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        json::write_string(&mut out, &r.prompt_id, false);
        out.push_str(":{\"prompt\":");
        write_item(
            &mut out,
            &r.number,
            &r.prompt_id,
            [&r.prompt, &r.extra_data, &r.outputs_to_execute],
        );
        out.push_str(",\"outputs\":");
        out.push_str(&r.outputs);
        out.push_str(",\"status\":");
        write_status(&mut out, r);
        out.push_str(",\"meta\":");
        out.push_str(&r.meta);
        out.push('}');
    }
    out.push('}');
    out
}

/// The status object of an entry.
pub(crate) fn write_status(out: &mut String, record: &HistoryRecord) {
    out.push_str("{\"status_str\":");
    json::write_string(out, &record.status_str, false);
    out.push_str(",\"completed\":");
    out.push_str(if record.completed { "true" } else { "false" });
    out.push_str(",\"messages\":");
    out.push_str(&record.messages);
    out.push('}');
}
