//! Memory of workers on other machines: both ends of the requests that ask for it.
//!
//! A front passes on what is about one such worker (`?worker=NAME`), and adds all of them to what `GET /memory` shows. The worker's end is
//! [`answer_memory`], over its own memory room.

use std::sync::Arc;

use fresco_graph::{Map, Value, map};
use fresco_memory::{ApiError as Refusal, Policy, Removed};

use crate::error::{ApiError, Code};
use crate::memory_json as wire;
use crate::memory_load::WantedLoad;
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

    /// As [`FarWorkers::tell_front`], and waits until the client has it there. False: it has not, as far as is known here.
    fn hand_to_front(&self, front: &str, message: Vec<u8>) -> bool;

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
        "events" => {
            let number = |name: &str| {
                let found = request.get(name).and_then(Value::as_int);
                found.and_then(|n| u64::try_from(n).ok())
            };
            let kinds = request.get("kinds").and_then(Value::as_list);
            let kinds = kinds.unwrap_or_default().iter();
            let kinds: Vec<String> = kinds.filter_map(Value::as_str).map(str::to_owned).collect();
            let limit = number("limit").and_then(|n| usize::try_from(n).ok());
            let last_seq = memory.last_seq();
            let since = number("since").unwrap_or_default();
            let events = memory.events(since, &kinds, limit.unwrap_or(RECENT as usize));
            map! {"events" => wire::events(&events), "last_seq" => last_seq}.into()
        }
        "free_plan" => {
            let plan = memory.free_plan(&read_free_request(request));
            map! {"plan" => wire::plan(&plan)}.into()
        }
        "load_plan" => {
            let body = request.get("body").and_then(Value::as_map);
            let planned = body.cloned().map(|body| {
                let load = WantedLoad::read(&body)?;
                let memory = load.registry(memory);
                Ok::<_, ApiError>(memory.plan_load(&load.resolve(memory)?))
            });
            match planned {
                Some(Ok(plan)) => wire::load_plan(&plan),
                Some(Err(error)) => map! {"error" => error.to_string()}.into(),
                None => map! {"error" => "there is no load to plan"}.into(),
            }
        }
        other => map! {"error" => format!("there is no request {other:?} about memory")}.into(),
    }
}

/// A request to free, as the other end's [`read_free_request`] reads it.
pub(crate) fn free_question(wanted: &fresco_memory::FreeRequest) -> Map {
    let names = |list: &Option<Vec<String>>| -> Value {
        let list = list.as_ref();
        list.map_or(Value::Null, |list| {
            list.iter().map(Value::from).collect::<Vec<_>>().into()
        })
    };
    map! {
        "do" => "free_plan",
        "unload_models" => wanted.unload_models,
        "free_memory" => wanted.free_memory,
        "respect" => wanted.respect,
        "force" => wanted.force,
        "devices" => names(&wanted.devices),
        "models" => names(&wanted.models),
    }
}

fn read_free_request(request: &Value) -> fresco_memory::FreeRequest {
    let flag = |name: &str| request.get(name).is_some_and(Value::truthy);
    let names = |name: &str| -> Option<Vec<String>> {
        let list = request.get(name)?.as_list()?.iter();
        Some(list.filter_map(Value::as_str).map(str::to_owned).collect())
    };
    fresco_memory::FreeRequest {
        unload_models: flag("unload_models"),
        free_memory: flag("free_memory"),
        respect: flag("respect"),
        force: flag("force"),
        devices: names("devices"),
        models: names("models"),
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
    let Some(asked) = ask_all(request, map! {"do" => "overview"}).await? else {
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
            Ok(answer) => {
                for list in ["devices", "models", "decisions"] {
                    append(whole, list, &answer, &worker.name);
                }
            }
            Err(why) => {
                entry.insert("error".into(), why.into());
            }
        }
        names.push(entry.into());
    }
    if let Some(Value::List(decisions)) = whole.get_mut("decisions") {
        in_time(Arc::make_mut(decisions), RECENT as usize);
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
    let Some(asked) = ask_all(request, map! {"do" => "overview"}).await? else {
        return Ok(own);
    };
    let mut whole = map! {list => own};
    for (worker, answer) in asked {
        if let Ok(answer) = answer {
            append(&mut whole, list, &answer, &worker.name);
        }
    }
    Ok(whole.get(list).cloned().unwrap_or_default())
}

/// Adds the events of all workers, in the order of their times; each says whose it is, and numbers are each worker's own.
pub(crate) async fn add_events(
    request: &Request,
    question: Map,
    limit: usize,
    whole: &mut Map,
) -> Result<(), ApiError> {
    let Some(asked) = ask_all(request, question).await? else {
        return Ok(());
    };
    let number = |value: &Value| value.get("last_seq").and_then(Value::as_int);
    let mut last = whole.get("last_seq").and_then(Value::as_int).unwrap_or(0);
    let mut numbers = Map::new();
    for (worker, answer) in asked {
        let Ok(answer) = answer else { continue };
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
    wanted: &fresco_memory::FreeRequest,
    own: Value,
) -> Result<Value, ApiError> {
    let mut whole = map! {"plan" => own};
    let question = free_question(wanted);
    if let Some((_, worker)) = named(request) {
        if let Some(Ok(answer)) = ask(request, question).await? {
            whole.insert("plan".into(), Vec::<Value>::new().into());
            append(&mut whole, "plan", &answer, &worker);
        }
    } else if let Some(asked) = ask_all(request, question).await? {
        for (worker, answer) in asked {
            if let Ok(answer) = answer {
                append(&mut whole, "plan", &answer, &worker.name);
            }
        }
    }
    Ok(whole.get("plan").cloned().unwrap_or_default())
}

/// How a load would go at the worker that a request names, or at the first that can have it; none where nobody elsewhere can.
pub(crate) async fn load_plan(request: &Request, body: &Map) -> Result<Option<Value>, ApiError> {
    let question = map! {"do" => "load_plan", "body" => body.clone()};
    let with_worker = |mut plan: Value, worker: &Arc<str>| {
        if let Value::Map(map) = &mut plan {
            Arc::make_mut(map).insert("worker".into(), worker.into());
        }
        plan
    };
    if let Some((_, worker)) = named(request) {
        let answer = ask(request, question).await?;
        return Ok(answer.and_then(Result::ok).map(|p| with_worker(p, &worker)));
    }
    let asked = ask_all(request, question).await?.unwrap_or_default();
    let mut plans = asked.into_iter().filter_map(|(worker, answer)| {
        let plan = answer.ok().filter(|plan| plan.get("error").is_none())?;
        Some(with_worker(plan, &worker.name))
    });
    Ok(plans.next())
}

/// Asks all workers about a model and gives the answer of the one that has most of it on its devices; if none has it, why.
pub(crate) async fn at_its_worker(
    request: &Request,
    question: Map,
) -> Result<Result<Value, Refusal>, ApiError> {
    let asked = ask_all(request, question).await?.unwrap_or_default();
    let mut why = Refusal::Unknown;
    let mut best: Option<(i128, Value)> = None;
    for (worker, answer) in asked {
        let Ok(mut answer) = answer else { continue };
        match refused(&answer) {
            Some(Refusal::Unknown) => continue,
            Some(other) => {
                why = other;
                continue;
            }
            None => {}
        }
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

type Asked = Vec<(FarWorker, Result<Value, String>)>;

/// All at once: one that does not answer keeps nobody waiting but whoever asked. None where there are none, or the request names one.
async fn ask_all(request: &Request, question: Map) -> Result<Option<Asked>, ApiError> {
    let Some(far) = request.app.far.clone() else {
        return Ok(None);
    };
    if request.query("worker").is_some_and(|name| !name.is_empty()) {
        return Ok(None);
    }
    let ask = move || {
        let workers = far.workers();
        let (far, question) = (&far, &question);
        let answers: Vec<Result<Value, String>> = std::thread::scope(|scope| {
            let calls: Vec<_> = workers
                .iter()
                .map(|worker| {
                    scope.spawn(move || {
                        let answer = far.ask_memory(&worker.name, question.clone())?;
                        match answer.get("error").and_then(Value::as_str) {
                            Some(why) => Err(why.to_owned()),
                            None => Ok(answer),
                        }
                    })
                })
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
