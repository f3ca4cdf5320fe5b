//! The queue and the history as Python packs see them.

use std::sync::Arc;

use fresco_engine::store::{HistoryRecord, QueueRecord};
use fresco_engine::{Engine, JobStore, StoreError, Submission};
use fresco_graph::{Map, Value, json, map};

/// Answers one question of a pack; `what` says which.
pub(crate) fn ask(engine: &Engine, asked: &Value) -> Result<Value, String> {
    let text = |key: &str| asked.get(key).and_then(Value::as_str);
    match text("what").unwrap_or("") {
        "state" => {
            let queue = stored(engine.queue().wait())?;
            let items = |records: &[QueueRecord]| records.iter().map(item).collect::<Vec<_>>();
            Ok(
                map! {"running" => items(&queue.running), "pending" => items(&queue.pending)}
                    .into(),
            )
        }
        "remaining" => Ok(engine.remaining().into()),
        "number" => {
            let front = asked.get("front").is_some_and(Value::truthy);
            Ok(engine.next_number(front).into())
        }
        "put" => put(engine, asked),
        "validate" => Ok(validate(engine, asked)),
        "wipe" => Ok(kept(engine, |store| store.clear_pending().wait())?.into()),
        "delete" => {
            let id = text("id").unwrap_or("");
            Ok(kept(engine, |store| store.delete_pending(id).wait())?.into())
        }
        "history" => {
            let records = if let Some(id) = text("id") {
                let found = kept(engine, |store| store.history_get(id).wait())?;
                found.into_iter().collect()
            } else {
                let number = |key: &str| {
                    let value = asked.get(key).and_then(Value::as_int);
                    value.and_then(|n| i64::try_from(n).ok())
                };
                let offset = number("offset").unwrap_or(-1);
                kept(engine, |store| store.history(number("max"), offset).wait())?
            };
            let entries: Map = records
                .iter()
                .map(|record| (record.prompt_id.clone(), entry(record)))
                .collect();
            Ok(entries.into())
        }
        "forget" => {
            match text("id") {
                Some(id) => {
                    kept(engine, |store| store.history_delete(vec![id.into()]).wait())?;
                }
                None => kept(engine, |store| store.history_clear().wait())?,
            }
            Ok(Value::Null)
        }
        other => Err(format!("unknown question {other:?} about the queue")),
    }
}

/// What the database answers; where jobs are kept elsewhere, nothing waits and nothing has ended.
fn kept<T: Default>(
    engine: &Engine,
    ask: impl FnOnce(&JobStore) -> Option<Result<T, StoreError>>,
) -> Result<T, String> {
    engine
        .store()
        .map_or_else(|| Ok(T::default()), |store| stored(ask(store)))
}

fn stored<T>(answer: Option<Result<T, StoreError>>) -> Result<T, String> {
    answer
        .unwrap_or(Err(StoreError::Closed))
        .map_err(|error| error.to_string())
}

/// What the database has as text.
fn parsed(text: &str) -> Value {
    json::parse(text).unwrap_or_default()
}

fn item(record: &QueueRecord) -> Value {
    let parts: Vec<Value> = vec![
        record.number.clone(),
        Value::from(&record.prompt_id),
        parsed(&record.prompt),
        parsed(&record.extra_data),
        parsed(&record.outputs),
        // Secrets stay here.
        Value::from(Map::new()),
    ];
    parts.into()
}

fn entry(record: &HistoryRecord) -> Value {
    let prompt: Vec<Value> = vec![
        record.number.clone(),
        Value::from(&record.prompt_id),
        parsed(&record.prompt),
        parsed(&record.extra_data),
        parsed(&record.outputs_to_execute),
    ];
    map! {
        "prompt" => prompt,
        "outputs" => parsed(&record.outputs),
        "meta" => parsed(&record.meta),
        "status" => map! {
            "status_str" => record.end.status_str(),
            "completed" => record.end.is_finished(),
            "messages" => parsed(&record.messages),
        },
    }
    .into()
}

fn targets(value: Option<&Value>) -> Option<Vec<Arc<str>>> {
    let list = value?.as_list()?;
    let ids = list.iter().filter_map(Value::as_str).map(Into::into);
    Some(ids.collect())
}

/// Queues an item as the reference writes it: number, id, prompt, extra data, outputs.
fn put(engine: &Engine, asked: &Value) -> Result<Value, String> {
    let Some([number, id, Value::Map(prompt), extra, outputs, ..]) =
        asked.get("item").and_then(Value::as_list)
    else {
        return Err("an item of the queue is (number, id, prompt, extra_data, outputs)".to_owned());
    };
    let targets = targets(Some(outputs));
    let valid = engine
        .validate((**prompt).clone(), targets.as_deref())
        .map_err(|error| error.to_string())?;
    let ticket = engine
        .submit_blocking(
            valid,
            Submission {
                prompt_id: id.as_str().map(Into::into),
                number: number.as_f64(),
                drawn: None,
                front: false,
                extra_data: extra.as_map().cloned().unwrap_or_default(),
                needs: None,
            },
        )
        .map_err(|error| error.to_string())?;
    Ok(Value::from(&ticket.prompt_id))
}

/// Whether a prompt would be taken: `[true, null, outputs]` or `[false, why, []]`.
fn validate(engine: &Engine, asked: &Value) -> Value {
    let prompt = asked.get("prompt").and_then(Value::as_map).cloned();
    let targets = targets(asked.get("targets"));
    match engine.validate(prompt.unwrap_or_default(), targets.as_deref()) {
        Ok(valid) => {
            let outputs: Vec<Value> = valid.outputs.iter().map(Value::from).collect();
            vec![true.into(), Value::Null, outputs.into()].into()
        }
        Err(error) => {
            let problem = map! {
                "type" => error.problem.kind,
                "message" => &*error.problem.message,
                "details" => &*error.problem.details,
                "extra_info" => error.problem.extra_info.clone(),
            };
            let nobody: Vec<Value> = Vec::new();
            let parts: Vec<Value> = vec![false.into(), problem.into(), nobody.into()];
            parts.into()
        }
    }
}
