//! Memory of workers on other machines: both ends of the requests that ask for it.
//!
//! A front passes on what is about one such worker (`?worker=NAME`), and adds all of them to what `GET /memory` shows. The worker's end is
//! [`answer_memory`], over its own memory room.

use std::sync::Arc;

use fresco_graph::{Map, Value, map};
use fresco_memory::{ApiError as Refusal, Policy, Removed};

use crate::error::{ApiError, Code};
use crate::memory_json as wire;
use crate::registries::Registries;
use crate::request::Request;
use crate::route::blocking;

/// Events of each worker that an overview has.
const RECENT: u64 = 50;

/// A worker on another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarWorker {
    pub name: Arc<str>,
    /// `ready`, or why it gets no job.
    pub state: String,
    /// Of its program.
    pub version: Arc<str>,
    /// Since its last sign of life.
    pub silent_ms: Option<u64>,
}

/// The workers on other machines, and other fronts. Calls may wait, unless they say that they do not.
pub trait FarWorkers: Send + Sync {
    /// What is wrong with the way to them, if something is. Does not wait.
    fn trouble(&self) -> Option<String>;

    /// Does not wait.
    fn workers(&self) -> Vec<FarWorker>;

    /// Has a worker's [`answer_memory`] answer; an error says why it does not.
    fn ask_memory(&self, worker: &str, request: Map) -> Result<Value, String>;

    /// Whether other fronts share the workers. Does not wait.
    fn has_fronts(&self) -> bool;

    /// Has [`answer_front`](crate::answer_front) of all other fronts answer; those that do are in the list.
    fn ask_fronts(&self, question: &Map) -> Vec<Value>;

    /// Clients came or went, or said what they know: others are to hear of it. Does not wait.
    fn clients_changed(&self);

    /// Sends another front something for one of its clients; lost if it is gone.
    fn tell_front(&self, front: &str, message: Vec<u8>);

    /// Makes files that results name available to other fronts.
    fn offer_files(&self, outputs: &Value) -> Result<Value, String>;

    /// Puts what another front made available into the folders here, and its names into the results.
    fn bring_files(&self, files: &Value, outputs: &mut Value) -> Result<(), String>;
}

/// A worker's answer to a request about its memory.
pub fn answer_memory(memory: &Registries, request: &Value) -> Value {
    let text = |name: &str| {
        request
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let id = text("id");
    match text("do") {
        "overview" => {
            let last = memory.last_seq();
            let decisions = memory.events(last.saturating_sub(RECENT), &[], RECENT as usize);
            wire::overview(&memory.snapshot(), &decisions, last)
        }
        "model" => match memory.model(id) {
            Some((model, units)) => wire::detail(&model, &units),
            None => refusal(Refusal::Unknown),
        },
        "release" => match memory.release(id) {
            Ok(()) => map! {"removed" => "released"}.into(),
            Err(why) => refusal(why),
        },
        "policy" => {
            let Some(policy) = Policy::parse(text("policy")) else {
                return map! {"error" => "there is no such policy"}.into();
            };
            match memory.set_policy(id, policy) {
                Ok(model) => wire::model(&model),
                Err(why) => refusal(why),
            }
        }
        "remove" => {
            let force = request.get("force").is_some_and(Value::truthy);
            match memory.remove(id, force) {
                Ok(Removed::Done) => map! {"removed" => "released"}.into(),
                Ok(Removed::Deferred) => map! {"removed" => "deferred"}.into(),
                Err(why) => refusal(why),
            }
        }
        "check" => map! {"problems" => memory.check()}.into(),
        other => map! {"error" => format!("there is no request {other:?} about memory")}.into(),
    }
}

fn refusal(why: Refusal) -> Value {
    let word = match why {
        Refusal::Unknown => "unknown",
        Refusal::Leased => "in use",
        Refusal::Pinned => "pinned",
    };
    map! {"refused" => word}.into()
}

/// Why a worker refuses, as the registry says it here.
fn refused(answer: &Value) -> Option<Refusal> {
    match answer.get("refused")?.as_str()? {
        "in use" => Some(Refusal::Leased),
        "pinned" => Some(Refusal::Pinned),
        _ => Some(Refusal::Unknown),
    }
}

/// The worker on another machine that a request is about.
pub(crate) fn named(request: &Request) -> Option<(Arc<dyn FarWorkers>, Arc<str>)> {
    let far = request.app.far.clone()?;
    let wanted = request.query("worker").filter(|name| !name.is_empty())?;
    let known = far.workers();
    let found = known.iter().find(|one| *one.name == *wanted)?;
    Some((far, found.name.clone()))
}

/// Asks the worker that a request names; none if it names none on another machine.
pub(crate) async fn ask(
    request: &Request,
    question: Map,
) -> Result<Option<Result<Value, Refusal>>, ApiError> {
    let Some((far, worker)) = named(request) else {
        return Ok(None);
    };
    let name = worker.clone();
    let answer = blocking(move || far.ask_memory(&name, question)).await?;
    let answer = answer.map_err(|why| {
        let text = format!("worker {worker} does not answer: {why}");
        ApiError::coded(Code::WorkerSilent, text)
    })?;
    Ok(Some(match refused(&answer) {
        Some(why) => Err(why),
        None => Ok(answer),
    }))
}

/// Adds what the workers on other machines have to an overview. One that does not answer is named with what is known of it.
pub(crate) async fn add_to_overview(request: &Request, whole: &mut Value) -> Result<(), ApiError> {
    let Some(far) = request.app.far.clone() else {
        return Ok(());
    };
    if request.query("worker").is_some_and(|name| !name.is_empty()) {
        return Ok(());
    }
    let asked = blocking(move || ask_all(&*far)).await?;
    let Value::Map(whole) = whole else {
        return Ok(());
    };
    let whole = Arc::make_mut(whole);
    let mut names: Vec<Value> = Vec::new();
    for (worker, answer) in asked {
        let mut entry = map! {"worker" => &worker.name, "state" => worker.state.as_str()};
        match answer {
            Ok(answer) => {
                for list in ["devices", "models"] {
                    let items = answer
                        .get(list)
                        .and_then(Value::as_list)
                        .unwrap_or_default();
                    append(whole, list, items, &worker.name);
                }
            }
            Err(why) => {
                entry.insert("error".into(), why.into());
            }
        }
        names.push(entry.into());
    }
    whole.insert("workers".into(), names.into());
    Ok(())
}

type Asked = Vec<(FarWorker, Result<Value, String>)>;

/// All at once: one that does not answer keeps nobody waiting but whoever asked.
fn ask_all(far: &dyn FarWorkers) -> Asked {
    let workers = far.workers();
    std::thread::scope(|scope| {
        let calls: Vec<_> = workers
            .iter()
            .map(|worker| {
                scope.spawn(move || far.ask_memory(&worker.name, map! {"do" => "overview"}))
            })
            .collect();
        let answers: Vec<_> = calls
            .into_iter()
            .map(|call| {
                let failed = |_| Err("asking it failed".to_owned());
                call.join().unwrap_or_else(failed)
            })
            .collect();
        workers.iter().cloned().zip(answers).collect()
    })
}

fn append(whole: &mut Map, list: &str, items: &[Value], worker: &Arc<str>) {
    let mut all = whole
        .get(list)
        .and_then(Value::as_list)
        .unwrap_or_default()
        .to_vec();
    for item in items {
        if let Value::Map(item) = item {
            let mut item = (**item).clone();
            item.insert("worker".into(), worker.into());
            all.push(item.into());
        }
    }
    whole.insert(list.into(), all.into());
}

/// The cluster in `/system_stats`; nothing where there is none.
pub(crate) fn described(far: Option<&Arc<dyn FarWorkers>>) -> Option<Map> {
    let far = far?;
    let workers: Vec<Value> = far
        .workers()
        .into_iter()
        .map(|worker| {
            map! {
                "name" => worker.name,
                "state" => worker.state,
                "version" => worker.version,
                "silent_ms" => worker.silent_ms.map_or(Value::Null, Value::from),
            }
            .into()
        })
        .collect();
    Some(map! {
        "nats" => far.trouble().unwrap_or_else(|| "ok".to_owned()),
        "workers" => workers,
    })
}
