//! Memory of workers on other machines: both ends of the requests that ask for it.
//!
//! A front passes on what is about one such worker (`?worker=NAME`), and adds all of them to what `GET /memory` shows. The worker's end is
//! [`answer_memory`], over its own memory room.

use std::sync::Arc;
use std::time::Duration;

use fresco_cluster::protocol::control::{WorkerAnswer, WorkerRequest};
use fresco_cluster::{Front, WorkerFacts};
use fresco_graph::{Map, Value, map};
use fresco_memory::{MemoryCommand, Refusal, Registries};

use crate::error::{ApiError, Code};
use crate::memory_json as wire;
use crate::request::Request;
use crate::route::blocking;

/// How long a worker's memory room may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Events of each worker that an overview has.
const RECENT: usize = 50;
/// Everything that a worker has.
pub(crate) const OVERVIEW: MemoryCommand = MemoryCommand::Overview { recent: RECENT };

/// A worker's answer about its memory, as the API shows it; the error is its room's refusal.
type Answered = Result<Value, Refusal>;

/// Has a worker carry a command out; an error says why it does not answer. Waits: not for threads that serve sockets.
fn carry_out(front: &Front, worker: &str, command: &MemoryCommand) -> Result<Answered, String> {
    let request = WorkerRequest::Memory(command.clone());
    match front.ask(worker, &request, PATIENCE) {
        Ok(WorkerAnswer::Memory(answer)) => Ok(answer),
        Ok(_) => Err("it answers something else than what was asked".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// A worker's answer to a command of a front.
pub fn answer_memory(memory: &Registries, command: &MemoryCommand) -> Answered {
    memory
        .carry_out(command)
        .map(|answer| wire::answer(&answer))
}

/// The worker on another machine that a request is about.
pub(crate) fn named(request: &Request) -> Option<(Arc<Front>, Arc<str>)> {
    let far = request.app.far.clone()?;
    let wanted = request.query("worker").filter(|name| !name.is_empty())?;
    let known = far.workers();
    let found = known.iter().find(|one| *one.name == *wanted)?;
    Some((far, found.name.clone()))
}

/// Asks the worker that a request names; none if it names none on another machine.
pub(crate) async fn ask(
    request: &Request,
    command: &MemoryCommand,
) -> Result<Option<Answered>, ApiError> {
    let Some((far, worker)) = named(request) else {
        return Ok(None);
    };
    let (name, command) = (worker.clone(), command.clone());
    let answer = blocking(move || carry_out(&far, &name, &command)).await?;
    let silent = |why| {
        let text = format!("worker {worker} does not answer: {why}");
        ApiError::coded(Code::WorkerSilent, text)
    };
    answer.map(Some).map_err(silent)
}

/// Adds what the workers on other machines have to an overview. One that does not answer is named with what is known of it.
pub(crate) async fn add_to_overview(request: &Request, whole: &mut Value) -> Result<(), ApiError> {
    let Some(asked) = ask_all(request, &OVERVIEW).await? else {
        return Ok(());
    };
    let Value::Map(whole) = whole else {
        return Ok(());
    };
    let whole = Arc::make_mut(whole);
    let mut names: Vec<Value> = Vec::new();
    for (worker, answer) in asked {
        let mut entry = map! {"worker" => &worker.name, "state" => worker.state.as_str()};
        match answer {
            Ok(Ok(answer)) => {
                for list in ["devices", "models", "decisions"] {
                    append(whole, list, &answer, &worker.name);
                }
            }
            Ok(Err(refusal)) => {
                entry.insert("error".into(), refusal.to_string().into());
            }
            Err(why) => {
                entry.insert("error".into(), why.into());
            }
        }
        names.push(entry.into());
    }
    if let Some(Value::List(decisions)) = whole.get_mut("decisions") {
        in_time(Arc::make_mut(decisions), RECENT);
    }
    whole.insert("workers".into(), names.into());
    Ok(())
}

/// Adds a list of all workers' overviews to the same list of this process.
pub(crate) async fn add_list(
    request: &Request,
    list: &'static str,
    own: Value,
) -> Result<Value, ApiError> {
    let Some(asked) = ask_all(request, &OVERVIEW).await? else {
        return Ok(own);
    };
    let mut whole = map! {list => own};
    for (worker, answer) in asked {
        if let Ok(Ok(answer)) = answer {
            append(&mut whole, list, &answer, &worker.name);
        }
    }
    Ok(whole.get(list).cloned().unwrap_or_default())
}

/// Adds the events of all workers, in the order of their times; each says whose it is, and numbers are each worker's own.
pub(crate) async fn add_events(
    request: &Request,
    command: &MemoryCommand,
    limit: usize,
    whole: &mut Map,
) -> Result<(), ApiError> {
    let Some(asked) = ask_all(request, command).await? else {
        return Ok(());
    };
    let number = |value: &Value| value.get("last_seq").and_then(Value::as_int);
    let mut last = whole.get("last_seq").and_then(Value::as_int).unwrap_or(0);
    let mut numbers = Map::new();
    for (worker, answer) in asked {
        let Ok(Ok(answer)) = answer else { continue };
        append(whole, "events", &answer, &worker.name);
        if let Some(seq) = number(&answer) {
            last = last.max(seq);
            numbers.insert(worker.name.clone(), Value::Int(seq));
        }
    }
    if let Some(Value::List(events)) = whole.get_mut("events") {
        in_time(Arc::make_mut(events), limit);
    }
    whole.insert("last_seq".into(), Value::Int(last));
    whole.insert("last_seqs".into(), numbers.into());
    Ok(())
}

/// Adds what all workers would do.
pub(crate) async fn add_plans(
    request: &Request,
    command: &MemoryCommand,
    own: Value,
) -> Result<Value, ApiError> {
    let mut whole = map! {"plan" => own};
    if let Some((_, worker)) = named(request) {
        if let Some(Ok(answer)) = ask(request, command).await? {
            whole.insert("plan".into(), Vec::<Value>::new().into());
            append(&mut whole, "plan", &answer, &worker);
        }
    } else if let Some(asked) = ask_all(request, command).await? {
        for (worker, answer) in asked {
            if let Ok(Ok(answer)) = answer {
                append(&mut whole, "plan", &answer, &worker.name);
            }
        }
    }
    Ok(whole.get("plan").cloned().unwrap_or_default())
}

/// How a load would go at the worker that a request names, or at the first that can have it; none where nobody elsewhere can.
pub(crate) async fn load_plan(
    request: &Request,
    command: &MemoryCommand,
) -> Result<Option<Value>, ApiError> {
    let with_worker = |mut plan: Value, worker: &Arc<str>| {
        if let Value::Map(map) = &mut plan {
            Arc::make_mut(map).insert("worker".into(), worker.into());
        }
        plan
    };
    if let Some((_, worker)) = named(request) {
        let answer = ask(request, command).await?;
        return Ok(answer.and_then(Result::ok).map(|p| with_worker(p, &worker)));
    }
    let asked = ask_all(request, command).await?.unwrap_or_default();
    let mut plans = asked
        .into_iter()
        .filter_map(|(worker, answer)| Some(with_worker(answer.ok()?.ok()?, &worker.name)));
    Ok(plans.next())
}

/// Asks all workers about a model and gives the answer of the one that has most of it on its devices; if none has it, why.
pub(crate) async fn at_its_worker(
    request: &Request,
    command: &MemoryCommand,
) -> Result<Answered, ApiError> {
    let asked = ask_all(request, command).await?.unwrap_or_default();
    let mut why = Refusal::Unknown;
    let mut best: Option<(i128, Value)> = None;
    for (worker, answer) in asked {
        let mut answer = match answer {
            Ok(Ok(answer)) => answer,
            Err(_) | Ok(Err(Refusal::Unknown)) => continue,
            Ok(Err(other)) => {
                why = other;
                continue;
            }
        };
        let places = answer.get("residency").and_then(Value::as_map);
        let there = places.into_iter().flatten();
        let there: i128 = there.filter_map(|(_, bytes)| bytes.as_int()).sum();
        if let Value::Map(map) = &mut answer {
            Arc::make_mut(map).insert("worker".into(), (&worker.name).into());
        }
        if best.as_ref().is_none_or(|(most, _)| there > *most) {
            best = Some((there, answer));
        }
    }
    Ok(best.map(|(_, answer)| answer).ok_or(why))
}

/// Names of the devices that workers have.
pub(crate) async fn devices(request: &Request) -> Result<Vec<String>, ApiError> {
    let devices = add_list(request, "devices", Vec::<Value>::new().into()).await?;
    let devices = devices.as_list().unwrap_or_default().iter();
    let name = |device: &Value| Some(device.get("device")?.as_str()?.to_owned());
    Ok(devices.filter_map(name).collect())
}

/// Oldest first, the newest of too many.
fn in_time(events: &mut Vec<Value>, most: usize) {
    events.sort_by_key(|event| event.get("time").and_then(Value::as_int).unwrap_or(0));
    let surplus = events.len().saturating_sub(most);
    events.drain(..surplus);
}

/// The outer error: it does not answer.
type Asked = Vec<(WorkerFacts, Result<Answered, String>)>;

/// All at once: one that does not answer keeps nobody waiting but whoever asked. None where there are none, or the request names one.
async fn ask_all(request: &Request, command: &MemoryCommand) -> Result<Option<Asked>, ApiError> {
    let Some(far) = request.app.far.clone() else {
        return Ok(None);
    };
    if request.query("worker").is_some_and(|name| !name.is_empty()) {
        return Ok(None);
    }
    let command = command.clone();
    let ask = move || {
        let workers = far.workers();
        let (far, command) = (&far, &command);
        let answers: Vec<Result<Answered, String>> = std::thread::scope(|scope| {
            let calls: Vec<_> = workers
                .iter()
                .map(|worker| scope.spawn(move || carry_out(far, &worker.name, command)))
                .collect();
            let failed = |_| Err("asking it failed".to_owned());
            let ended = calls
                .into_iter()
                .map(|call| call.join().unwrap_or_else(failed));
            ended.collect()
        });
        workers.into_iter().zip(answers).collect()
    };
    blocking(ask).await.map(Some)
}

/// Adds a worker's items to a list.
fn append(whole: &mut Map, list: &str, answer: &Value, worker: &Arc<str>) {
    let items = answer.get(list).and_then(Value::as_list);
    let own = whole.get(list).and_then(Value::as_list);
    let mut all = own.unwrap_or_default().to_vec();
    all.extend(wire::of_worker(items.unwrap_or_default(), worker));
    whole.insert(list.into(), all.into());
}

/// The cluster in `/system_stats`; nothing where there is none.
pub(crate) fn described(far: Option<&Arc<Front>>) -> Option<Map> {
    let far = far?;
    let workers: Vec<Value> = far
        .workers()
        .into_iter()
        .map(|worker| {
            map! {
                "name" => worker.name,
                "state" => worker.state,
                "version" => worker.version,
                "silent_ms" => worker.silent.map_or(Value::Null, Value::from),
            }
            .into()
        })
        .collect();
    Some(map! {
        "nats" => far.trouble().unwrap_or_else(|| "ok".to_owned()),
        "workers" => workers,
    })
}
