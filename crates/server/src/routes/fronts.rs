//! Several fronts on one NATS server: each shows what the others run, too, and passes on what is about their jobs.
//!
//! A client may post to one front and ask another, for example behind a load balancer.

use std::sync::Arc;

use fresco_cluster::Front;
use fresco_cluster::protocol::RequestResult;
use fresco_cluster::protocol::fronts::{FrontAnswer, FrontRequest};
use fresco_engine::JobSource;
use fresco_engine::store::HistoryRecord;
use fresco_graph::{Map, Value, json};

use crate::App;
use crate::http::blocking::blocking;
use crate::http::error::ApiError;
use crate::http::request::Request;
use crate::services::job_json::{HistoryWindow, render, write_items};

/// The way to other fronts, if there are some.
fn others(request: &Request) -> Option<Arc<Front>> {
    request.app.far.clone().filter(|far| far.has_fronts())
}

async fn ask(request: &Request, question: FrontRequest) -> Vec<FrontAnswer> {
    let Some(far) = others(request) else {
        return Vec::new();
    };
    let asked = blocking(move || far.ask_fronts(&question)).await;
    asked.unwrap_or_default()
}

/// What runs and what waits elsewhere, as entries of `/queue`.
pub(crate) async fn queues(request: &Request) -> [Vec<Value>; 2] {
    let mut lists = [Vec::new(), Vec::new()];
    for answer in ask(request, FrontRequest::Queue).await {
        if let FrontAnswer::Queue { running, pending } = answer {
            lists[0].extend(running.into_iter().filter(is_job));
            lists[1].extend(pending.into_iter().filter(is_job));
        }
    }
    lists
}

/// Whether a client can read this entry of another front's queue. One bad entry would spoil the whole list.
fn is_job(entry: &Value) -> bool {
    match entry.as_list() {
        Some(
            [
                number,
                Value::Str(_),
                Value::Map(_),
                Value::Map(_),
                Value::List(_),
            ],
        ) => number.as_f64().is_some(),
        _ => false,
    }
}

/// Whether another front's answer is an entry of the history, and of this job.
fn is_entry_of(entry: &Value, prompt_id: &str) -> bool {
    let Value::Map(entry) = entry else {
        return false;
    };
    let only = entry.get(prompt_id).filter(|_| entry.len() == 1);
    only.is_some_and(|job| is_entry(job, prompt_id))
}

fn is_entry(job: &Value, prompt_id: &str) -> bool {
    let prompt = job.get("prompt").filter(|prompt| is_job(prompt));
    let id = prompt.and_then(|prompt| prompt.as_list()?.get(1)?.as_str());
    id == Some(prompt_id)
        && matches!(job.get("outputs"), Some(Value::Map(_)))
        && matches!(job.get("status"), Some(Value::Map(_)))
}

/// A job of another front as `/history/{prompt_id}` shows it, with its files brought here.
pub(crate) async fn history(request: &Request, prompt_id: &str) -> Option<String> {
    let far = others(request)?;
    // Whoever waits for a job of ours asks again and again.
    let ours = request.app.store.job(prompt_id).await;
    if !matches!(ours, Some(Ok(None))) {
        return None;
    }
    let prompt_id: Arc<str> = prompt_id.into();
    let work = move || {
        let question = FrontRequest::History {
            prompt_id: prompt_id.clone(),
        };
        let mut answers = far.ask_fronts(&question).into_iter();
        let (mut entry, files) = answers.find_map(|answer| match answer {
            FrontAnswer::Records { records, files } if is_entry_of(&records, &prompt_id) => {
                Some((records, files))
            }
            _ => None,
        })?;
        if let Err(why) = far.bring_files(&files, &mut entry) {
            // They are where they were made; another try may bring them.
            tracing::warn!("files of another front's job did not come: {why}");
            return None;
        }
        Some(json::to_string(&entry))
    };
    blocking(work).await.ok().flatten()
}

/// Entries that another front gives to a list: their files come with them.
const LISTED: i64 = 200;

/// Whether others may have entries of the history.
pub(crate) fn has_others(request: &Request) -> bool {
    others(request).is_some()
}

/// When a job ended, for the order of a list.
fn ended(entry: &Value) -> i128 {
    let messages = entry
        .get("status")
        .and_then(|status| status.get("messages"));
    let messages = messages.and_then(Value::as_list).unwrap_or_default().iter();
    let times =
        messages.filter_map(|message| message.as_list()?.get(1)?.get("timestamp")?.as_int());
    times.max().unwrap_or(0)
}

/// Entries of this front's history, with the newest ones of all others: in the order in which they ended, with their files here. What a
/// front that does not answer has is left out.
pub(crate) async fn histories(
    request: &Request,
    own: String,
    window: HistoryWindow,
) -> Result<String, ApiError> {
    let Some(far) = others(request) else {
        return Ok(own);
    };
    let work = move || {
        let mut entries: Vec<(Arc<str>, Value)> = Vec::new();
        let own = json::parse(&own).unwrap_or_default();
        let mut wholes = vec![own];
        for answer in far.ask_fronts(&FrontRequest::Histories) {
            let FrontAnswer::Records {
                records: mut whole,
                files,
            } = answer
            else {
                continue;
            };
            match far.bring_files(&files, &mut whole) {
                Ok(()) => wholes.push(whole),
                Err(why) => {
                    tracing::warn!("files of another front's jobs did not come: {why}");
                }
            }
        }
        for (at, whole) in wholes.iter().enumerate() {
            for (id, entry) in whole.as_map().into_iter().flatten() {
                let known = at > 0 && entries.iter().any(|(known, _)| known == id);
                if !known && (at == 0 || is_entry(entry, id)) {
                    entries.push((id.clone(), entry.clone()));
                }
            }
        }
        // Those of one front stay in its order where they ended at once.
        entries.sort_by_key(|(_, entry)| ended(entry));
        let range = window.range(entries.len());
        let shown: Map = entries.drain(range).collect();
        json::to_string(&shown.into())
    };
    blocking(work).await
}

/// Passes on what is to be done, whoever has the job.
pub(crate) async fn tell(request: &Request, what: FrontRequest) {
    drop(ask(request, what).await);
}

/// This front's answer to another one.
pub async fn answer_front(app: &App, request: FrontRequest) -> RequestResult<FrontAnswer> {
    let store = &app.store;
    match request {
        FrontRequest::Queue => {
            let Some(Ok(queue)) = store.queue().await else {
                return Err("the queue cannot be read".to_owned());
            };
            let list = |records: &[_]| {
                let mut out = String::new();
                write_items(&mut out, records, &[]);
                let list = json::parse(&out).unwrap_or_default();
                list.as_list().unwrap_or_default().to_vec()
            };
            Ok(FrontAnswer::Queue {
                running: list(&queue.running),
                pending: list(&queue.pending),
            })
        }
        FrontRequest::History { prompt_id } => {
            let Some(Ok(record)) = store.history_get(&prompt_id).await else {
                return Err("the history cannot be read".to_owned());
            };
            records(app, record.into_iter().collect()).await
        }
        FrontRequest::Histories => {
            let Some(Ok(found)) = store.history(Some(LISTED), -1).await else {
                return Err("the history cannot be read".to_owned());
            };
            records(app, found).await
        }
        FrontRequest::Interrupt { prompt_id } => {
            app.engine.interrupt(prompt_id.as_deref());
            Ok(FrontAnswer::Done)
        }
        FrontRequest::Clear => {
            let cleared = app.engine.clear_pending().await;
            app.hub.jobs_left(None);
            cleared.map_or_else(|e| Err(e.to_string()), |_| Ok(FrontAnswer::Done))
        }
        FrontRequest::Delete { prompt_ids } => {
            for id in &prompt_ids {
                if app.engine.delete_pending(id).await.unwrap_or(false) {
                    app.hub.jobs_left(Some(id));
                }
            }
            Ok(FrontAnswer::Done)
        }
    }
}

/// Records as `/history` shows them, with their files made available.
async fn records(app: &App, records: Vec<HistoryRecord>) -> RequestResult<FrontAnswer> {
    let Some(far) = app.far.clone() else {
        return Err("this program is not a front of a cluster".to_owned());
    };
    let offer = move || {
        let records = json::parse(&render(&records)).unwrap_or_default();
        let files = far.offer_files(&records).map_err(|e| e.to_string())?;
        Ok(FrontAnswer::Records { records, files })
    };
    let failed = |_| Err("the files cannot be read".to_owned());
    blocking(offer).await.unwrap_or_else(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        json::parse(text).expect("a test has JSON")
    }

    #[test]
    fn what_is_no_job_is_left_out() {
        assert!(is_job(&value(r#"[3, "a", {}, {}, ["9"]]"#)));
        assert!(is_job(&value(r#"[-0.5, "a", {"1": {}}, {}, []]"#)));
        for bad in [
            "7",
            "[]",
            r#"["3", "a", {}, {}, []]"#,
            "[3, 4, {}, {}, []]",
            r#"[3, "a", [], {}, []]"#,
            r#"[3, "a", {}, {}, {}]"#,
            r#"[3, "a", {}, {}, [], 1]"#,
        ] {
            assert!(!is_job(&value(bad)), "{bad}");
        }
    }

    #[test]
    fn an_entry_is_of_the_job_that_was_asked_for() {
        let entry =
            r#"{"a": {"prompt": [3, "a", {}, {}, []], "outputs": {}, "status": {}, "meta": {}}}"#;
        assert!(is_entry_of(&value(entry), "a"));
        assert!(!is_entry_of(&value(entry), "b"));
        for bad in [
            "7",
            "{}",
            r#"{"a": 7}"#,
            r#"{"a": {"prompt": 3, "outputs": {}, "status": {}}}"#,
            r#"{"a": {"prompt": [3, "a", {}, {}, []], "outputs": [], "status": {}}}"#,
        ] {
            assert!(!is_entry_of(&value(bad), "a"), "{bad}");
        }
    }
}
