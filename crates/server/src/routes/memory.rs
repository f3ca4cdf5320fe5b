//! `/free` and `/memory`: what is in memory, why, and how to have it otherwise.
//!
//! Every call of the memory room may wait for its lock, so all of them run off the network threads.

use std::sync::Arc;

use axum::http::StatusCode;
use fresco_cluster::protocol::memory::{
    FreePlanState, MemoryReply, OverviewState, Removal, RemovalState,
};
use fresco_engine::FreeRequest;
use fresco_engine::placement::PlannedStep;
use fresco_graph::{Map, Value, json};
use fresco_memory::{MemoryCommand, Policy, Refusal, Registries};

use crate::http::blocking::blocking;
use crate::http::error::{ApiError, Code};
use crate::http::query::{NonEmpty, Switch, query_struct};
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;
use crate::routes::far::{self, OVERVIEW, WorkerQuery};
use crate::routes::memory_load::load_query;
use crate::services::memory_json::{free_state, memory_reply};

query_struct! {
    /// Query of `DELETE /memory/models/{weights_id}`.
    RemoveQuery {
        force: Switch = "force", "1: pinned ones too";
    }
}

query_struct! {
    /// Query of `GET /memory/events`.
    EventsQuery {
        since: NonEmpty = "since", "only events with a larger number";
        kinds: String = "kinds", "comma list";
        limit: NonEmpty = "limit", "at most so many";
    }
}

/// Events that are remembered, and so the most that can be asked for.
const MOST_EVENTS: usize = 10_000;
/// A policy that is none: drop it now, and say so if that is not possible.
const RELEASE_NOW: &str = "release_now";

/// What a memory room answers to one kind of command; anything else is its mistake.
macro_rules! reply_of {
    ($answer:expr, $kind:path) => {
        match $answer {
            $kind(reply) => Ok(reply),
            _ => Err(ApiError::trouble(far::OTHER_ANSWER)),
        }
    };
}

/// Why the memory room does not do it, with the model's name.
fn refused(refusal: Refusal, id: &str) -> ApiError {
    let (code, text) = match refusal {
        Refusal::Unknown => (Code::NoSuchModel, format!("unknown model {id}")),
        Refusal::Invalid(problems) => (Code::BadMemoryRequest, problems.join("; ")),
        Refusal::Leased => (Code::ModelInUse, format!("the model {id} is in use")),
        Refusal::Pinned => (Code::ModelPinned, format!("the model {id} is pinned")),
    };
    ApiError::coded(code, text)
}

/// The body as a JSON object; anything else is the client's mistake.
async fn object(request: &mut Request, code: Code) -> Result<Map, ApiError> {
    match request.try_json().await? {
        Ok(Value::Map(map)) => Ok(Arc::unwrap_or_clone(map)),
        Ok(_) => Err(ApiError::coded(
            code,
            "the request body is not a JSON object",
        )),
        Err(error) => Err(ApiError::coded(
            code,
            format!("the request body is not JSON: {error}"),
        )),
    }
}

/// The memory rooms that a request is about: all of them, or that of the worker it names.
fn workers(request: &Request) -> Result<Registries, ApiError> {
    let all = &request.app.models;
    let wanted = WorkerQuery::of(request).worker.0;
    // Groups have a plus in their names, which stands for a blank where nobody encoded it.
    let wanted = wanted.map(|name| name.replace(' ', "+"));
    all.of(wanted.as_deref()).ok_or_else(|| {
        let name = wanted.unwrap_or_default();
        let known = all.names().join(", ");
        let text = format!("unknown worker {name:?}; there are {known}");
        ApiError::coded(Code::BadMemoryRequest, text)
    })
}

/// Has the memory rooms of this process carry a command out; workers then look what has become due.
async fn carry_out_here(
    request: &Request,
    command: &MemoryCommand,
) -> Result<Result<MemoryReply, Refusal>, ApiError> {
    let (memory, command) = (workers(request)?, command.clone());
    let engine = request.app.engine.clone();
    blocking(move || {
        let answer = memory.carry_out(&command);
        if command.changes() {
            engine.memory_changed();
        }
        answer.map(|answer| memory_reply(&answer))
    })
    .await
}

/// Has a command about a model carried out where the model is: at the worker that the request names, here, or elsewhere.
async fn carry_out(
    request: &Request,
    id: &str,
    command: MemoryCommand,
) -> Result<MemoryReply, ApiError> {
    let answer = match far::ask(request, &command).await? {
        Some(answer) => answer,
        None => match carry_out_here(request, &command).await? {
            Err(Refusal::Unknown) => far::at_its_worker(request, &command).await?,
            answer => answer,
        },
    };
    answer.map_err(|refusal| refused(refusal, id))
}

/// Has a command carried out by the worker that the request names, else here. True: it was here.
async fn carry_out_at_one(
    request: &Request,
    command: &MemoryCommand,
) -> Result<(MemoryReply, bool), ApiError> {
    let (answer, here) = match far::ask(request, command).await? {
        Some(answer) => (answer, false),
        None => (carry_out_here(request, command).await?, true),
    };
    let answer = answer.map_err(|refusal| refused(refusal, "asked for"))?;
    Ok((answer, here))
}

/// `POST /free`. Nothing is freed inside the request: the worker does it when no prompt runs.
pub(crate) async fn free(mut request: Request) -> Answer {
    let body = object(&mut request, Code::BadFree).await?;
    let wanted = free_request(&body, Code::BadFree)?;
    known_devices(&request, wanted.devices.as_deref(), Code::BadFree).await?;
    let flag = |name: &str| body.get(name).is_some_and(Value::truthy);
    let engine = request.app.engine.clone();
    if flag("dry_run") {
        let plan = free_plan(&request, implied(wanted)).await?;
        return Ok(response::typed(&FreePlanState {
            dry_run: Some(true),
            plan,
        }));
    }
    let packs = request.app.packs.clone();
    blocking(move || packs.shrink()).await?;
    if flag("wait") {
        let replies = blocking(move || engine.free_and_wait(wanted)).await?;
        let mut reports = Vec::new();
        for reply in replies {
            let report = reply.await;
            let stopping = || ApiError::coded(Code::Stopping, "nothing was freed");
            reports.push(report.ok_or_else(stopping)?);
        }
        return Ok(response::typed(&free_state(reports)));
    }
    blocking(move || engine.free(wanted)).await?;
    Ok(response::empty())
}

/// What all workers would do, or the one that is named.
async fn free_plan(request: &Request, wanted: FreeRequest) -> Result<Vec<PlannedStep>, ApiError> {
    let command = MemoryCommand::PlanFree(wanted);
    let own = if far::named(request).is_some() {
        Vec::new()
    } else {
        let answer = carry_out_here(request, &command).await?;
        let answer = answer.map_err(|refusal| refused(refusal, "asked for"))?;
        reply_of!(answer, MemoryReply::FreePlan)?
    };
    far::add_plans(request, &command, own).await
}

/// Forgetting results implies unloading, also in a plan.
fn implied(mut request: FreeRequest) -> FreeRequest {
    request.unload_models |= request.free_memory;
    request
}

fn free_request(body: &Map, code: Code) -> Result<FreeRequest, ApiError> {
    let flag = |name: &str| body.get(name).is_some_and(Value::truthy);
    let respect = match body.get("retention") {
        None | Some(Value::Null) => false,
        Some(Value::Str(text)) if &**text == "override" => false,
        Some(Value::Str(text)) if &**text == "respect" => true,
        Some(other) => {
            let shown = json::to_string(other);
            let text = format!("retention must be \"override\" or \"respect\", not {shown}");
            return Err(ApiError::coded(code, text));
        }
    };
    Ok(FreeRequest {
        unload_models: flag("unload_models"),
        free_memory: flag("free_memory"),
        respect,
        force: flag("force"),
        devices: names(body, ["devices", "device"], code)?,
        models: names(body, ["models", "model"], code)?,
    })
}

/// One name or a list of names, under either key; none if neither is there.
fn names(body: &Map, keys: [&str; 2], code: Code) -> Result<Option<Vec<String>>, ApiError> {
    let mut found: Option<Vec<String>> = None;
    for key in keys {
        let items = match body.get(key) {
            None | Some(Value::Null) => continue,
            Some(Value::List(items)) => &items[..],
            Some(one) => std::slice::from_ref(one),
        };
        let names = found.get_or_insert_default();
        for item in items {
            let Some(name) = item.as_str() else {
                let text = format!("{key} must be a name or a list of names");
                return Err(ApiError::coded(code, text));
            };
            if !names.iter().any(|n| n == name) {
                names.push(name.to_owned());
            }
        }
    }
    Ok(found)
}

async fn known_devices(
    request: &Request,
    wanted: Option<&[String]>,
    code: Code,
) -> Result<(), ApiError> {
    let Some(wanted) = wanted.filter(|w| !w.is_empty()) else {
        return Ok(());
    };
    let devices = overview(request).await?.devices;
    let mut known: Vec<&str> = Vec::new();
    for device in &devices {
        if !known.contains(&&*device.device) {
            known.push(&device.device);
        }
    }
    match wanted.iter().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let text = format!("unknown device {name:?}; there are {}", known.join(", "));
            Err(ApiError::coded(code, text))
        }
    }
}

/// `GET /memory`.
pub(crate) async fn all(request: Request) -> Answer {
    Ok(response::typed(&overview(&request).await?))
}

/// `GET /memory/devices`.
pub(crate) async fn devices(request: Request) -> Answer {
    Ok(response::typed(&overview(&request).await?.devices))
}

/// `GET /memory/models`.
pub(crate) async fn models(request: Request) -> Answer {
    Ok(response::typed(&overview(&request).await?.models))
}

/// Everything of the worker that the request names, or of all.
async fn overview(request: &Request) -> Result<OverviewState, ApiError> {
    let (answer, here) = carry_out_at_one(request, &OVERVIEW).await?;
    let mut whole = *reply_of!(answer, MemoryReply::Overview)?;
    if here {
        far::add_to_overview(request, &mut whole).await?;
    }
    Ok(whole)
}

/// `GET /memory/models/{weights_id}`.
pub(crate) async fn model(request: Request) -> Answer {
    let id = request.param(0).to_owned();
    let command = MemoryCommand::Model { id: id.clone() };
    let model = carry_out(&request, &id, command).await?;
    Ok(response::typed(&reply_of!(model, MemoryReply::Model)?))
}

/// `PATCH /memory/models/{weights_id}`.
pub(crate) async fn set_policy(mut request: Request) -> Answer {
    let body = object(&mut request, Code::BadMemoryRequest).await?;
    let bad = |text: &str| ApiError::coded(Code::BadMemoryRequest, text);
    let policy = body
        .get("policy")
        .and_then(Value::as_str)
        .ok_or_else(|| bad("policy must be given as text"))?;
    let policy = match (policy, body.get("seconds")) {
        ("ttl", Some(Value::Int(seconds))) => format!("ttl:{seconds}"),
        ("ttl", _) => return Err(bad("the policy ttl needs seconds, as \"ttl:30\"")),
        _ => policy.to_owned(),
    };
    let id = request.param(0).to_owned();
    if policy == RELEASE_NOW {
        let answer = carry_out(&request, &id, MemoryCommand::Release { id: id.clone() }).await?;
        return Ok(removal(&id, reply_of!(answer, MemoryReply::Removal)?));
    }
    let policy = Policy::parse(&policy).ok_or_else(|| {
        let known = Policy::SPELLINGS;
        bad(&format!("unknown policy {policy:?}; there are {known}"))
    })?;
    let command = MemoryCommand::SetPolicy {
        id: id.clone(),
        policy,
    };
    let model = carry_out(&request, &id, command).await?;
    Ok(response::typed(&reply_of!(model, MemoryReply::Policy)?))
}

/// `DELETE /memory/models/{weights_id}`.
pub(crate) async fn remove(request: Request) -> Answer {
    let force = RemoveQuery::of(&request).force.0;
    let id = request.param(0).to_owned();
    let command = MemoryCommand::Remove {
        id: id.clone(),
        force,
    };
    let answer = carry_out(&request, &id, command).await?;
    Ok(removal(&id, reply_of!(answer, MemoryReply::Removal)?))
}

fn removal(weights_id: &str, removal: Removal) -> axum::response::Response {
    let status = match removal {
        Removal::Deferred => StatusCode::ACCEPTED,
        Removal::Released => StatusCode::OK,
    };
    let answer = RemovalState {
        weights_id: weights_id.into(),
        removal,
    };
    response::typed_status(status, &answer)
}

/// `GET /memory/events`.
pub(crate) async fn events(request: Request) -> Answer {
    let query = EventsQuery::of(&request);
    let number = |key: &str, given: NonEmpty, default: u64| match given.0 {
        None => Ok(default),
        Some(text) => text.trim().parse::<u64>().map_err(|_| {
            let text = format!("{key} must be a whole number, not {text:?}");
            ApiError::coded(Code::BadMemoryRequest, text)
        }),
    };
    let since = number("since", query.since, 0)?;
    let limit = number("limit", query.limit, MOST_EVENTS as u64)?;
    let limit = usize::try_from(limit).map_or(MOST_EVENTS, |n| n.min(MOST_EVENTS));
    let kinds: Vec<String> = query
        .kinds
        .split(',')
        .map(str::trim)
        .filter(|k| !k.is_empty())
        .map(str::to_owned)
        .collect();
    let command = MemoryCommand::Events {
        since,
        kinds,
        limit,
    };
    let (answer, here) = carry_out_at_one(&request, &command).await?;
    let mut list = reply_of!(answer, MemoryReply::Events)?;
    if here {
        far::add_events(&request, &command, limit, &mut list).await?;
    }
    Ok(response::typed(&list))
}

/// `GET /memory/check`.
pub(crate) async fn check(request: Request) -> Answer {
    let answer = carry_out_here(&request, &MemoryCommand::Check).await?;
    let answer = answer.map_err(|refusal| refused(refusal, "asked for"))?;
    Ok(response::typed(&reply_of!(answer, MemoryReply::Check)?))
}

/// `POST /memory/plan`.
pub(crate) async fn plan(mut request: Request) -> Answer {
    let code = Code::BadMemoryRequest;
    let body = object(&mut request, code).await?;
    if body.contains_key("units") || body.contains_key("weights_id") {
        let load = load_query(&body)?;
        let id = body.get("weights_id").and_then(Value::as_str);
        let id = id.unwrap_or("asked for").to_owned();
        // With devices of its own it is about no worker's.
        let (described, compute) = (load.devices.is_some(), load.compute_device.clone());
        let command = MemoryCommand::PlanLoad(load);
        if (!described || far::named(&request).is_some())
            && let Some(plan) = far::load_plan(&request, &command).await?
        {
            return Ok(response::typed(&plan));
        }
        if !described {
            let named = compute.as_ref().map(std::slice::from_ref);
            known_devices(&request, named, code).await?;
        }
        let plan = carry_out_here(&request, &command).await?;
        let plan = plan.map_err(|refusal| refused(refusal, &id))?;
        return Ok(response::typed(&reply_of!(plan, MemoryReply::LoadPlan)?));
    }
    let asks = ["unload_models", "free_memory"].map(|name| body.contains_key(name));
    match body.get("trigger").map(Value::as_str) {
        Some(Some("free" | "force")) => {}
        None if asks != [false, false] => {}
        None => {
            let text = "nothing to plan: give units or weights_id for a load, or unload_models or free_memory";
            return Err(ApiError::coded(code, text));
        }
        Some(_) => {
            let text = "the only triggers that can be planned from outside are free and force";
            return Err(ApiError::coded(code, text));
        }
    }
    let mut wanted = implied(free_request(&body, code)?);
    // A trigger without flags stands for the button that unloads.
    wanted.unload_models |= asks == [false, false];
    wanted.force |= body.get("trigger").and_then(Value::as_str) == Some("force");
    known_devices(&request, wanted.devices.as_deref(), code).await?;
    let plan = free_plan(&request, wanted).await?;
    Ok(response::typed(&FreePlanState {
        dry_run: None,
        plan,
    }))
}
