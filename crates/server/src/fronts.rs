//! Several fronts on one NATS server: each shows what the others run, too, and passes on what is about their jobs.
//!
//! A client may post to one front and ask another, for example behind a load balancer.

use std::sync::Arc;

use fresco_graph::{Map, Value, json, map};

use crate::App;
use crate::error::ApiError;
use crate::far::FarWorkers;
use crate::history::{self, HistoryWindow};
use crate::queue::{self, write_items};
use crate::request::Request;
use crate::route::blocking;

/// The way to other fronts, if there are some.
fn others(request: &Request) -> Option<Arc<dyn FarWorkers>> {
    request.app.far.clone().filter(|far| far.has_fronts())
}

async fn ask(request: &Request, question: Map) -> Vec<Value> {
    let Some(far) = others(request) else {
        return Vec::new();
    };
    let asked = blocking(move || far.ask_fronts(&question)).await;
    asked.unwrap_or_default()
}

/// What runs and what waits elsewhere, as entries of `/queue`.
pub(crate) async fn queues(request: &Request) -> [Vec<Value>; 2] {
    let answers = ask(request, map! {"do" => "queue"}).await;
    ["running", "pending"].map(|list| {
        let lists = answers
            .iter()
            .filter_map(|answer| answer.get(list)?.as_list());
        lists.flatten().filter(|one| is_job(one)).cloned().collect()
    })
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
    let ours = request.app.engine.store().job(prompt_id).await;
    if !matches!(ours, Some(Ok(None))) {
        return None;
    }
    let question = map! {"do" => "history", "prompt_id" => prompt_id};
    let prompt_id: Arc<str> = prompt_id.into();
    let work = move || {
        let mut answers = far.ask_fronts(&question).into_iter();
        let is_it = |answer: &Value| {
            let entry = answer.get("entry");
            entry.is_some_and(|entry| is_entry_of(entry, &prompt_id))
        };
        let answer = answers.find(is_it)?;
        let mut entry = answer.get("entry")?.clone();
        let files = answer.get("files").cloned().unwrap_or_default();
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
    let question = map! {"do" => "histories"};
    let work = move || {
        let mut entries: Vec<(Arc<str>, Value)> = Vec::new();
        let own = json::parse(&own).unwrap_or_default();
        let mut wholes = vec![own];
        for answer in far.ask_fronts(&question) {
            let mut whole = answer.get("entries").cloned().unwrap_or_default();
            let files = answer.get("files").cloned().unwrap_or_default();
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
pub(crate) async fn tell(request: &Request, what: Map) {
    drop(ask(request, what).await);
}

/// This front's answer to another one.
pub async fn answer_front(app: &App, question: &Value) -> Value {
    let text = |name: &str| question.get(name).and_then(Value::as_str);
    let done = || Value::from(map! {"done" => true});
    match text("do").unwrap_or_default() {
        "queue" => {
            let Some(Ok(queue)) = app.engine.store().queue().await else {
                return failed("the queue cannot be read");
            };
            let list = |records: &[_]| {
                let mut out = String::new();
                write_items(&mut out, records, &[]);
                json::parse(&out).unwrap_or_default()
            };
            map! {"running" => list(&queue.running), "pending" => list(&queue.pending)}.into()
        }
        "history" => {
            let id = text("prompt_id").unwrap_or_default();
            let Some(Ok(record)) = app.engine.store().history_get(id).await else {
                return failed("the history cannot be read");
            };
            if record.is_none() {
                return Map::new().into();
            }
            let whole = json::parse(&history::render(record.as_slice())).unwrap_or_default();
            let Some(far) = app.far.clone() else {
                return failed("this is no front of a cluster");
            };
            let offered = whole.clone();
            let files = blocking(move || far.offer_files(&offered)).await;
            match files {
                Ok(Ok(files)) => map! {"entry" => whole, "files" => files}.into(),
                Ok(Err(why)) => failed(&why),
                Err(_) => failed("the files cannot be read"),
            }
        }
        "histories" => {
            let Some(Ok(records)) = app.engine.store().history(Some(LISTED), -1).await else {
                return failed("the history cannot be read");
            };
            let Some(far) = app.far.clone() else {
                return failed("this is no front of a cluster");
            };
            let offer = move || {
                let whole = json::parse(&history::render(&records)).unwrap_or_default();
                let files = far.offer_files(&whole)?;
                Ok::<Value, String>(map! {"entries" => whole, "files" => files}.into())
            };
            match blocking(offer).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(why)) => failed(&why),
                Err(_) => failed("the files cannot be read"),
            }
        }
        "interrupt" => {
            let found = app.engine.interrupt(text("prompt_id"));
            map! {"done" => found}.into()
        }
        "clear" => {
            let cleared = app.engine.clear_pending().await;
            app.hub.jobs_left(None);
            cleared.map_or_else(|e| failed(&e.to_string()), |_| done())
        }
        "delete" => {
            let Ok(ids) = queue::ids(question.get("prompt_ids")) else {
                return failed("the ids are no list");
            };
            for id in &ids {
                if app.engine.delete_pending(id).await.unwrap_or(false) {
                    app.hub.jobs_left(Some(id));
                }
            }
            done()
        }
        other => failed(&format!("there is no question {other:?}")),
    }
}

fn failed(why: &str) -> Value {
    map! {"error" => why}.into()
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
