//! Memory of workers on other machines: what is about one such worker (`?worker=NAME`) is passed on to it, and all of them are added to what
//! `GET /memory` shows.

use std::sync::Arc;
use std::time::Duration;

use fresco_cluster::protocol::control::{WorkerAnswer, WorkerRequest};
use fresco_cluster::protocol::memory::{
    EventList, EventState, LoadPlanState, MemoryReply, MemoryWorker, OfWorker, OverviewState,
};
use fresco_cluster::{Front, WorkerFacts};
use fresco_engine::placement::PlannedStep;
use fresco_memory::{MemoryCommand, Refusal};
use indexmap::IndexMap;
use serde::Serialize;

use crate::http::blocking::blocking;
use crate::http::error::{ApiError, Code};
use crate::http::query::{NonEmpty, query_struct};
use crate::http::request::Request;

query_struct! {
    /// Query of requests about memory.
    WorkerQuery {
        worker: NonEmpty = "worker", "only the memory of this worker";
    }
}

/// How long a worker's memory room may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Events of each worker that an overview has.
const RECENT: usize = 50;
/// Everything that a worker has.
pub(crate) const OVERVIEW: MemoryCommand = MemoryCommand::Overview { recent: RECENT };

/// Why an answer is not used that belongs to another question.
pub(crate) const OTHER_ANSWER: &str = "it answers something else than what was asked";

/// A worker's answer about its memory; the error is its room's refusal.
type MemoryAnswer = Result<MemoryReply, Refusal>;

/// Has a worker carry a command out; an error says why it does not answer. Waits: not for threads that serve sockets.
fn carry_out(front: &Front, worker: &str, command: &MemoryCommand) -> Result<MemoryAnswer, String> {
    let request = WorkerRequest::Memory(command.clone());
    match front.ask(worker, &request, PATIENCE) {
        Ok(WorkerAnswer::Memory(answer)) => Ok(answer),
        Ok(_) => Err(OTHER_ANSWER.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The worker on another machine that a request is about.
pub(crate) fn named(request: &Request) -> Option<(Arc<Front>, Arc<str>)> {
    let far = request.app.far.clone()?;
    let wanted = WorkerQuery::of(request).worker.0?;
    let known = far.workers();
    let found = known.iter().find(|one| *one.name == *wanted)?;
    Some((far, found.name.clone()))
}

/// Asks the worker that a request names; none if it names none on another machine.
pub(crate) async fn ask(
    request: &Request,
    command: &MemoryCommand,
) -> Result<Option<MemoryAnswer>, ApiError> {
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
pub(crate) async fn add_to_overview(
    request: &Request,
    whole: &mut OverviewState,
) -> Result<(), ApiError> {
    let Some(answers) = ask_all(request, &OVERVIEW).await? else {
        return Ok(());
    };
    let mut workers = Vec::new();
    for (facts, answer) in answers {
        let error = match answer {
            Ok(Ok(MemoryReply::Overview(theirs))) => {
                append(&mut whole.devices, theirs.devices, &facts.name);
                append(&mut whole.models, theirs.models, &facts.name);
                append(&mut whole.decisions, theirs.decisions, &facts.name);
                None
            }
            Ok(Ok(_)) => Some(OTHER_ANSWER.to_owned()),
            Ok(Err(refusal)) => Some(refusal.to_string()),
            Err(why) => Some(why),
        };
        workers.push(MemoryWorker {
            worker: facts.name,
            state: facts.state,
            error,
        });
    }
    in_time(&mut whole.decisions, RECENT);
    whole.workers = Some(workers);
    Ok(())
}

/// Adds the events of all workers, in the order of their times; each says whose it is, and numbers are each worker's own.
pub(crate) async fn add_events(
    request: &Request,
    command: &MemoryCommand,
    limit: usize,
    whole: &mut EventList,
) -> Result<(), ApiError> {
    let Some(answers) = ask_all(request, command).await? else {
        return Ok(());
    };
    let mut numbers = IndexMap::new();
    for (facts, answer) in answers {
        if let Ok(Ok(MemoryReply::Events(theirs))) = answer {
            append(&mut whole.events, theirs.events, &facts.name);
            whole.last_seq = whole.last_seq.max(theirs.last_seq);
            numbers.insert(facts.name, theirs.last_seq);
        }
    }
    in_time(&mut whole.events, limit);
    whole.last_seqs = Some(numbers);
    Ok(())
}

/// Adds what all workers would do, or says what the one would that the request names.
pub(crate) async fn add_plans(
    request: &Request,
    command: &MemoryCommand,
    mut plan: Vec<PlannedStep>,
) -> Result<Vec<PlannedStep>, ApiError> {
    if let Some((_, worker)) = named(request) {
        if let Some(Ok(MemoryReply::FreePlan(steps))) = ask(request, command).await? {
            append(&mut plan, steps, &worker);
        }
        return Ok(plan);
    }
    for (facts, answer) in ask_all(request, command).await?.unwrap_or_default() {
        if let Ok(Ok(MemoryReply::FreePlan(steps))) = answer {
            append(&mut plan, steps, &facts.name);
        }
    }
    Ok(plan)
}

/// How a load would go at the worker that a request names, or at the first that can have it; none where no other worker can.
pub(crate) async fn load_plan(
    request: &Request,
    command: &MemoryCommand,
) -> Result<Option<LoadPlanState>, ApiError> {
    let answers: Vec<(Arc<str>, MemoryAnswer)> = if let Some((_, worker)) = named(request) {
        let answer = ask(request, command).await?;
        answer.map(|answer| (worker, answer)).into_iter().collect()
    } else {
        let all = ask_all(request, command).await?.unwrap_or_default();
        let all = all.into_iter();
        all.filter_map(|(facts, answer)| Some((facts.name, answer.ok()?)))
            .collect()
    };
    let mut plans = answers.into_iter().filter_map(|(worker, answer)| {
        let Ok(MemoryReply::LoadPlan(mut plan)) = answer else {
            return None;
        };
        plan.set_worker(&worker);
        Some(*plan)
    });
    Ok(plans.next())
}

/// Asks all workers about a model and gives the answer of the one that has most of it on its devices; if none has it, why.
pub(crate) async fn at_its_worker(
    request: &Request,
    command: &MemoryCommand,
) -> Result<MemoryAnswer, ApiError> {
    let answers = ask_all(request, command).await?.unwrap_or_default();
    let mut why = Refusal::Unknown;
    let mut best: Option<(u64, MemoryReply)> = None;
    for (facts, answer) in answers {
        let mut reply = match answer {
            Ok(Ok(reply)) => reply,
            Err(_) | Ok(Err(Refusal::Unknown)) => continue,
            Ok(Err(other)) => {
                why = other;
                continue;
            }
        };
        let model = match &mut reply {
            MemoryReply::Model(detail) => Some(&mut detail.model),
            MemoryReply::Policy(model) => Some(&mut **model),
            _ => None,
        };
        let resident = model.map_or(0, |model| {
            model.set_worker(&facts.name);
            model.resident_bytes()
        });
        if best.as_ref().is_none_or(|(most, _)| resident > *most) {
            best = Some((resident, reply));
        }
    }
    Ok(best.map(|(_, reply)| reply).ok_or(why))
}

/// Oldest first, the newest of too many.
fn in_time(events: &mut Vec<EventState>, most: usize) {
    events.sort_by_key(|event| event.time);
    let surplus = events.len().saturating_sub(most);
    events.drain(..surplus);
}

/// The answers of all workers; the outer error says why one does not answer.
type WorkerAnswers = Vec<(WorkerFacts, Result<MemoryAnswer, String>)>;

/// All workers are asked at once: one that does not answer delays this request alone. None where there are none, or the request names one.
async fn ask_all(
    request: &Request,
    command: &MemoryCommand,
) -> Result<Option<WorkerAnswers>, ApiError> {
    let Some(far) = request.app.far.clone() else {
        return Ok(None);
    };
    if WorkerQuery::of(request).worker.0.is_some() {
        return Ok(None);
    }
    let command = command.clone();
    let ask = move || {
        let workers = far.workers();
        let (far, command) = (&far, &command);
        let answers: Vec<Result<MemoryAnswer, String>> = std::thread::scope(|scope| {
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
fn append<T: OfWorker>(whole: &mut Vec<T>, items: Vec<T>, worker: &Arc<str>) {
    let named = items.into_iter().map(|mut item| {
        item.set_worker(worker);
        item
    });
    whole.extend(named);
}

/// The cluster in `/system_stats`.
#[derive(Serialize)]
pub(crate) struct ClusterStats {
    /// `ok`, or what is wrong with the connection.
    nats: String,
    workers: Vec<WorkerStats>,
}

#[derive(Serialize)]
struct WorkerStats {
    name: Arc<str>,
    state: String,
    version: Arc<str>,
    silent_ms: Option<u64>,
}

impl ClusterStats {
    /// None where this process is in no cluster.
    pub(crate) fn of(far: Option<&Arc<Front>>) -> Option<Self> {
        let far = far?;
        let stats = |worker: WorkerFacts| WorkerStats {
            name: worker.name,
            state: worker.state,
            version: worker.version,
            silent_ms: worker.silent,
        };
        Some(Self {
            nats: far.trouble().unwrap_or_else(|| "ok".to_owned()),
            workers: far.workers().into_iter().map(stats).collect(),
        })
    }
}
