//! `/free` and `/memory`: what is in memory, why, and how to have it otherwise.
//!
//! Every call of the memory room may wait for its lock, so all of them run off the network threads.

use std::sync::Arc;

use axum::http::StatusCode;
use fresco_engine::FreeRequest;
use fresco_graph::{Map, Value, json, map};
use fresco_memory::{ApiError as Refusal, Policy, Removed};

use crate::error::{ApiError, Code};
use crate::far;
use crate::memory_json as wire;
use crate::memory_load::WantedLoad;
use crate::registries::Registries;
use crate::request::Request;
use crate::response;
use crate::route::{Answer, blocking};

/// Events that `GET /memory` shows.
const RECENT: u64 = 50;
/// Events that are remembered, and so the most that can be asked for.
const MOST_EVENTS: usize = 10_000;
/// A policy that is none: drop it now, and say so if that is not possible.
const RELEASE_NOW: &str = "release_now";

/// Why the registry does not do it, with the model's name.
fn refused(refusal: Refusal, id: &str) -> ApiError {
    let (code, text) = match refusal {
        Refusal::Unknown => return unknown(id),
        Refusal::Leased => (Code::ModelInUse, format!("the model {id} is in use")),
        Refusal::Pinned => (Code::ModelPinned, format!("the model {id} is pinned")),
    };
    ApiError::coded(code, text)
}

pub(crate) fn unknown(id: &str) -> ApiError {
    ApiError::coded(Code::NoSuchModel, format!("there is no model {id}"))
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
    let wanted = request.query("worker").filter(|name| !name.is_empty());
    // Groups have a plus in their names, which stands for a blank where nobody encoded it.
    let wanted = wanted.map(|name| name.replace(' ', "+"));
    all.of(wanted.as_deref()).ok_or_else(|| {
        let name = wanted.unwrap_or_default();
        let known = all.names().join(", ");
        let text = format!("there is no worker {name:?}; there are {known}");
        ApiError::coded(Code::BadMemoryRequest, text)
    })
}

/// Asks the memory room.
async fn ask<T: Send + 'static>(
    request: &Request,
    question: impl FnOnce(&Registries) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let memory = workers(request)?;
    blocking(move || question(&memory)).await
}

/// Changes something there; workers then look what has become due.
async fn change<T: Send + 'static>(
    request: &Request,
    change: impl FnOnce(&Registries) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let engine = request.app.engine.clone();
    ask(request, move |memory| {
        let changed = change(memory);
        engine.memory_changed();
        changed
    })
    .await
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
        let answer = map! {"dry_run" => true, "plan" => plan};
        return Ok(response::json(&answer.into()));
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
        return Ok(response::json(&wire::reports(&reports)));
    }
    blocking(move || engine.free(wanted)).await?;
    Ok(response::empty())
}

/// What all workers would do, or the one that is named.
async fn free_plan(request: &Request, wanted: FreeRequest) -> Result<Value, ApiError> {
    let asked = wanted.clone();
    let own = if far::named(request).is_some() {
        Vec::<Value>::new().into()
    } else {
        ask(request, move |memory| wire::plan(&memory.free_plan(&asked))).await?
    };
    far::add_plans(request, &wanted, own).await
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
    let mut names: Vec<String> = Vec::new();
    let asked = map! {"do" => "overview"};
    if let Some(Ok(overview)) = far::ask(request, asked).await? {
        let devices = overview.get("devices").and_then(Value::as_list);
        let name = |device: &Value| Some(device.get("device")?.as_str()?.to_owned());
        names.extend(devices.unwrap_or_default().iter().filter_map(name));
    } else {
        let own = ask(request, Registries::snapshot).await?;
        names.extend(own.devices.into_iter().map(|device| device.device));
        for device in far::devices(request).await? {
            if !names.contains(&device) {
                names.push(device);
            }
        }
    }
    let known: Vec<&str> = names.iter().map(String::as_str).collect();
    match wanted.iter().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let text = format!(
                "there is no device {name:?}; there are {}",
                known.join(", ")
            );
            Err(ApiError::coded(code, text))
        }
    }
}

/// `GET /memory`.
pub(crate) async fn all(request: Request) -> Answer {
    if let Some(answer) = far::ask(&request, map! {"do" => "overview"}).await? {
        let answer = answer.map_err(|refusal| refused(refusal, "asked for"))?;
        return Ok(response::json(&answer));
    }
    let overview = ask(&request, |memory| {
        let last = memory.last_seq();
        let decisions = memory.events(last.saturating_sub(RECENT), &[], RECENT as usize);
        wire::overview(&memory.snapshot(), &decisions, last)
    });
    let mut overview = overview.await?;
    far::add_to_overview(&request, &mut overview).await?;
    Ok(response::json(&overview))
}

/// `GET /memory/devices`.
pub(crate) async fn devices(request: Request) -> Answer {
    if let Some(devices) = of_named(&request, "devices").await? {
        return Ok(response::json(&devices));
    }
    let snapshot = ask(&request, Registries::snapshot).await?;
    let own = wire::devices(&snapshot.devices);
    let all = far::add_list(&request, "devices", own).await?;
    Ok(response::json(&all))
}

/// `GET /memory/models`.
pub(crate) async fn models(request: Request) -> Answer {
    if let Some(models) = of_named(&request, "models").await? {
        return Ok(response::json(&models));
    }
    let snapshot = ask(&request, Registries::snapshot).await?;
    let own = wire::models(&snapshot.models);
    let all = far::add_list(&request, "models", own).await?;
    Ok(response::json(&all))
}

/// A list of the worker elsewhere that a request names; none if it names none.
async fn of_named(request: &Request, list: &str) -> Result<Option<Value>, ApiError> {
    let Some(answer) = far::ask(request, map! {"do" => "overview"}).await? else {
        return Ok(None);
    };
    let answer = answer.map_err(|refusal| refused(refusal, "asked for"))?;
    Ok(answer.get(list).cloned())
}

/// `GET /memory/models/{weights_id}`.
pub(crate) async fn model(request: Request) -> Answer {
    let id = request.param(0).to_owned();
    let question = map! {"do" => "model", "id" => id.as_str()};
    if let Some(answer) = far::ask(&request, question).await? {
        let answer = answer.map_err(|refusal| refused(refusal, &id))?;
        return Ok(response::json(&answer));
    }
    let asked = id.clone();
    let found = ask(&request, move |memory| memory.model(&asked)).await?;
    if let Some((model, units)) = found {
        return Ok(response::json(&wire::detail(&model, &units)));
    }
    let question = map! {"do" => "model", "id" => id.as_str()};
    let found = far::at_its_worker(&request, question).await?;
    let found = found.map_err(|refusal| refused(refusal, &id))?;
    Ok(response::json(&found))
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
    let asked = id.clone();
    if policy != RELEASE_NOW {
        let question = map! {"do" => "policy", "id" => id.as_str(), "policy" => policy.as_str()};
        let known = Policy::parse(&policy).is_some();
        if known && let Some(answer) = far::ask(&request, question).await? {
            let answer = answer.map_err(|refusal| refused(refusal, &id))?;
            return Ok(response::json(&answer));
        }
    }
    if policy == RELEASE_NOW {
        let question = map! {"do" => "release", "id" => id.as_str()};
        if let Some(answer) = far::ask(&request, question).await? {
            answer.map_err(|refusal| refused(refusal, &id))?;
            return Ok(removed(&id, Removed::Done));
        }
        let released = ask(&request, move |memory| memory.release(&asked)).await?;
        let question = map! {"do" => "release", "id" => id.as_str()};
        match released {
            Err(Refusal::Unknown) => drop(
                far::at_its_worker(&request, question)
                    .await?
                    .map_err(|refusal| refused(refusal, &id))?,
            ),
            released => released.map_err(|refusal| refused(refusal, &id))?,
        }
        return Ok(removed(&id, Removed::Done));
    }
    let policy = Policy::parse(&policy).ok_or_else(|| {
        let known = Policy::SPELLINGS;
        bad(&format!("there is no policy {policy:?}; there are {known}"))
    })?;
    let question = map! {"do" => "policy", "id" => id.as_str(), "policy" => policy.to_string()};
    let model = change(&request, move |memory| memory.set_policy(&asked, policy)).await?;
    if matches!(model, Err(Refusal::Unknown)) {
        let model = far::at_its_worker(&request, question).await?;
        let model = model.map_err(|refusal| refused(refusal, &id))?;
        return Ok(response::json(&model));
    }
    let model = model.map_err(|refusal| refused(refusal, &id))?;
    Ok(response::json(&wire::model(&model)))
}

/// `DELETE /memory/models/{weights_id}`.
pub(crate) async fn remove(request: Request) -> Answer {
    let force = request
        .query("force")
        .is_some_and(|v| !matches!(v.as_str(), "" | "0" | "false"));
    let id = request.param(0).to_owned();
    let question = map! {"do" => "remove", "id" => id.as_str(), "force" => force};
    let far_end = |answer: Result<Value, Refusal>| {
        let answer = answer.map_err(|refusal| refused(refusal, &id))?;
        let deferred = answer.get("removed").and_then(Value::as_str) == Some("deferred");
        let how = if deferred {
            Removed::Deferred
        } else {
            Removed::Done
        };
        Ok(removed(&id, how))
    };
    if let Some(answer) = far::ask(&request, question.clone()).await? {
        return far_end(answer);
    }
    let asked = id.clone();
    let how = change(&request, move |memory| memory.remove(&asked, force)).await?;
    if matches!(how, Err(Refusal::Unknown)) {
        return far_end(far::at_its_worker(&request, question).await?);
    }
    let how = how.map_err(|refusal| refused(refusal, &id))?;
    Ok(removed(&id, how))
}

fn removed(id: &str, how: Removed) -> axum::response::Response {
    let (status, word) = match how {
        Removed::Done => (StatusCode::OK, "released"),
        Removed::Deferred => (StatusCode::ACCEPTED, "deferred"),
    };
    response::json_status(status, &map! {"weights_id" => id, "status" => word}.into())
}

/// `GET /memory/events`.
pub(crate) async fn events(request: Request) -> Answer {
    let number = |key: &str, default: u64| match request.query(key).filter(|v| !v.is_empty()) {
        None => Ok(default),
        Some(text) => text.trim().parse::<u64>().map_err(|_| {
            let text = format!("{key} must be a whole number, not {text:?}");
            ApiError::coded(Code::BadMemoryRequest, text)
        }),
    };
    let since = number("since", 0)?;
    let limit = number("limit", MOST_EVENTS as u64)?;
    let limit = usize::try_from(limit).map_or(MOST_EVENTS, |n| n.min(MOST_EVENTS));
    let kinds: Vec<String> = request
        .query("kinds")
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .filter(|k| !k.is_empty())
        .map(str::to_owned)
        .collect();
    let wanted: Vec<Value> = kinds.iter().map(Value::from).collect();
    let question =
        map! {"do" => "events", "since" => since, "limit" => limit as u64, "kinds" => wanted};
    if let Some(answer) = far::ask(&request, question.clone()).await? {
        let answer = answer.map_err(|refusal| refused(refusal, "asked for"))?;
        return Ok(response::json(&answer));
    }
    let answer = ask(&request, move |memory| {
        // In this order, so that nothing up to the number is missing.
        let last_seq = memory.last_seq();
        let events = memory.events(since, &kinds, limit);
        map! {"events" => wire::events(&events), "last_seq" => last_seq}
    });
    let mut answer = answer.await?;
    far::add_events(&request, question, limit, &mut answer).await?;
    Ok(response::json(&answer.into()))
}

/// `GET /memory/check`.
pub(crate) async fn check(request: Request) -> Answer {
    let problems = ask(&request, Registries::check).await?;
    let answer = map! {"consistent" => problems.is_empty(), "problems" => problems};
    Ok(response::json(&answer.into()))
}

/// `POST /memory/plan`.
pub(crate) async fn plan(mut request: Request) -> Answer {
    let code = Code::BadMemoryRequest;
    let body = object(&mut request, code).await?;
    if body.contains_key("units") || body.contains_key("weights_id") {
        let load = WantedLoad::read(&body)?;
        // With devices of its own it is about no worker's.
        if (load.devices.is_none() || far::named(&request).is_some())
            && let Some(plan) = far::load_plan(&request, &body).await?
        {
            return Ok(response::json(&plan));
        }
        if load.devices.is_none() {
            let named = load.compute_device.as_ref().map(std::slice::from_ref);
            known_devices(&request, named, code).await?;
        }
        let plan = ask(&request, move |memory| -> Result<_, ApiError> {
            let memory = load.registry(memory);
            Ok(memory.plan_load(&load.resolve(memory)?))
        });
        let plan = plan.await??;
        return Ok(response::json(&wire::load_plan(&plan)));
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
    Ok(response::json(&map! {"plan" => plan}.into()))
}
