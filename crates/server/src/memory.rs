//! `/free` and `/memory`: what is in memory, why, and how to have it otherwise.
//!
//! Every call of the memory room may wait for its lock, so all of them run off the network threads.

use std::sync::Arc;

use axum::http::StatusCode;
use fresco_engine::{
    FreeRequest, LoadRequest, LoadSubject, MemoryProblem, MemoryRoom, PlannedUnit, Removed,
};
use fresco_graph::{Map, Value, json, map};

use crate::error::{ApiError, Code};
use crate::memory_json as wire;
use crate::request::Request;
use crate::response;
use crate::route::{Answer, blocking};

/// Events that `GET /memory` shows.
const RECENT: u64 = 50;
/// Events that are remembered, and so the most that can be asked for.
const MOST_EVENTS: usize = 10_000;
/// Layers of a model that is only described.
const MOST_UNITS: usize = 100_000;
/// A policy that is none: drop it now, and say so if that is not possible.
const RELEASE_NOW: &str = "release_now";

impl From<MemoryProblem> for ApiError {
    fn from(problem: MemoryProblem) -> Self {
        let code = match problem {
            MemoryProblem::Unknown { .. } => Code::NoSuchModel,
            MemoryProblem::Leased { .. } => Code::ModelInUse,
            MemoryProblem::Pinned { .. } => Code::ModelPinned,
            MemoryProblem::Policy { .. } | MemoryProblem::Request(_) => Code::BadMemoryRequest,
        };
        Self::coded(code, problem.to_string())
    }
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

/// Asks the memory room.
async fn ask<T: Send + 'static>(
    request: &Request,
    question: impl FnOnce(&dyn MemoryRoom) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let memory = request.app.engine.memory().clone();
    blocking(move || question(&*memory)).await
}

/// `POST /free`. Nothing is freed inside the request: the worker does it when no prompt runs.
pub(crate) async fn free(mut request: Request) -> Answer {
    let body = object(&mut request, Code::BadFree).await?;
    let wanted = free_request(&body, Code::BadFree)?;
    known_devices(&request, wanted.devices.as_deref(), Code::BadFree).await?;
    let flag = |name: &str| body.get(name).is_some_and(Value::truthy);
    let engine = request.app.engine.clone();
    if flag("dry_run") {
        let plan = ask(&request, move |memory| memory.free_plan(&implied(wanted))).await?;
        let answer = map! {"dry_run" => true, "plan" => wire::plan(&plan)};
        return Ok(response::json(&answer.into()));
    }
    if flag("wait") {
        let replies = blocking(move || engine.free_and_wait(wanted)).await?;
        let mut reports = Vec::new();
        for reply in replies {
            let report = reply.await;
            let stopping = || ApiError::coded(Code::Stopping, "nothing was freed");
            reports.push(report.ok_or_else(stopping)?);
        }
        return Ok(response::json(&wire::reports(reports)));
    }
    blocking(move || engine.free(wanted)).await?;
    Ok(response::empty())
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
    let snapshot = ask(request, |memory| memory.snapshot()).await?;
    let mut known: Vec<&str> = snapshot.devices.iter().map(|d| d.device.as_str()).collect();
    if known.is_empty() {
        known.push("cpu");
    }
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
    let overview = ask(&request, |memory| {
        let last = memory.last_seq();
        let decisions = memory.events(last.saturating_sub(RECENT), &[], RECENT as usize);
        wire::overview(&memory.snapshot(), &decisions, last)
    });
    Ok(response::json(&overview.await?))
}

/// `GET /memory/devices`.
pub(crate) async fn devices(request: Request) -> Answer {
    let snapshot = ask(&request, |memory| memory.snapshot()).await?;
    Ok(response::json(&wire::devices(&snapshot.devices)))
}

/// `GET /memory/models`.
pub(crate) async fn models(request: Request) -> Answer {
    let snapshot = ask(&request, |memory| memory.snapshot()).await?;
    Ok(response::json(&wire::models(&snapshot.models)))
}

fn unknown(id: &str) -> ApiError {
    MemoryProblem::Unknown { id: id.to_owned() }.into()
}

/// `GET /memory/models/{weights_id}`.
pub(crate) async fn model(request: Request) -> Answer {
    let id = request.param(0).to_owned();
    let asked = id.clone();
    let found = ask(&request, move |memory| memory.model(&asked)).await?;
    let detail = found.ok_or_else(|| unknown(&id))?;
    Ok(response::json(&wire::detail(&detail)))
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
    let (engine, id) = (request.app.engine.clone(), request.param(0).to_owned());
    if policy != RELEASE_NOW {
        let model = blocking(move || engine.set_policy(&id, &policy)).await??;
        return Ok(response::json(&wire::model(&model)));
    }
    let asked = id.clone();
    blocking(move || engine.release_model(&asked)).await??;
    Ok(removed(&id, Removed::Done))
}

/// `DELETE /memory/models/{weights_id}`.
pub(crate) async fn remove(request: Request) -> Answer {
    let force = request
        .query("force")
        .is_some_and(|v| !matches!(v.as_str(), "" | "0" | "false"));
    let (engine, id) = (request.app.engine.clone(), request.param(0).to_owned());
    let asked = id.clone();
    let how = blocking(move || engine.remove_model(&asked, force)).await??;
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
    let answer = ask(&request, move |memory| {
        // In this order, so that nothing up to the number is missing.
        let last_seq = memory.last_seq();
        let events = memory.events(since, &kinds, limit);
        Value::from(map! {"events" => wire::events(&events), "last_seq" => last_seq})
    });
    Ok(response::json(&answer.await?))
}

/// `GET /memory/check`.
pub(crate) async fn check(request: Request) -> Answer {
    let problems = ask(&request, |memory| memory.check()).await?;
    let answer = map! {"consistent" => problems.is_empty(), "problems" => problems};
    Ok(response::json(&answer.into()))
}

/// `POST /memory/plan`.
pub(crate) async fn plan(mut request: Request) -> Answer {
    let code = Code::BadMemoryRequest;
    let body = object(&mut request, code).await?;
    if body.contains_key("units") || body.contains_key("weights_id") {
        let load = load_request(&body)?;
        if load.devices.is_none() {
            let named = load.compute_device.as_ref().map(std::slice::from_ref);
            known_devices(&request, named, code).await?;
        }
        let plan = ask(&request, move |memory| memory.plan_load(&load)).await??;
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
    let plan = ask(&request, move |memory| memory.free_plan(&wanted)).await?;
    Ok(response::json(&map! {"plan" => wire::plan(&plan)}.into()))
}

/// Reads a load that is only thought of; every problem is named.
fn load_request(body: &Map) -> Result<LoadRequest, ApiError> {
    let mut reader = Reader {
        problems: Vec::new(),
    };
    let subject = match body.get("weights_id") {
        Some(Value::Str(id)) => LoadSubject::Weights { id: id.to_string() },
        Some(_) => {
            reader.problem("weights_id must be text");
            LoadSubject::Units(Vec::new())
        }
        None => LoadSubject::Units(reader.units(body.get("units"))),
    };
    let request = LoadRequest {
        subject,
        devices: reader.devices(body.get("devices")),
        compute_device: reader.text(body, "compute_device"),
        virtual_vram_gb: reader.amount(body, "virtual_vram_gb"),
        donor_device: reader.text(body, "donor_device"),
        expert: reader.text(body, "expert_mode_allocations"),
        eject_models: body.get("eject_models").is_some_and(Value::truthy),
        text_encoder: body.get("text_encoder").is_some_and(Value::truthy),
        required: reader
            .bytes(body.get("required"), "required")
            .unwrap_or_default(),
    };
    if reader.problems.is_empty() {
        Ok(request)
    } else {
        Err(MemoryProblem::Request(reader.problems).into())
    }
}

struct Reader {
    problems: Vec<String>,
}

impl Reader {
    fn problem(&mut self, text: impl Into<String>) {
        // A long list says no more than its start.
        if self.problems.len() < 20 {
            self.problems.push(text.into());
        }
    }

    fn text(&mut self, body: &Map, key: &str) -> Option<String> {
        match body.get(key)? {
            Value::Null => None,
            Value::Str(text) => Some(text.to_string()),
            _ => {
                self.problem(format!("{key} must be text"));
                None
            }
        }
    }

    fn amount(&mut self, body: &Map, key: &str) -> Option<f64> {
        let value = match body.get(key)? {
            Value::Null => return None,
            Value::Int(i) => *i as f64,
            Value::Float(f) => *f,
            _ => f64::NAN,
        };
        if value.is_finite() && value >= 0.0 {
            return Some(value);
        }
        self.problem(format!("{key} must be a number, 0 or more"));
        None
    }

    fn bytes(&mut self, value: Option<&Value>, what: &str) -> Option<u64> {
        match value {
            None | Some(Value::Null) => return None,
            Some(Value::Int(i)) => {
                // More than any machine has, and still far from overflowing sums.
                if let Some(bytes) = u64::try_from(*i).ok().filter(|b| *b <= 1 << 50) {
                    return Some(bytes);
                }
            }
            Some(_) => {}
        }
        self.problem(format!("{what} must be a whole number of bytes, 0 to 2^50"));
        None
    }

    fn units(&mut self, value: Option<&Value>) -> Vec<PlannedUnit> {
        let Some(items) = value.and_then(Value::as_list) else {
            self.problem("units must be a list of {name, bytes}");
            return Vec::new();
        };
        if items.is_empty() || items.len() > MOST_UNITS {
            self.problem(format!("there must be 1 to {MOST_UNITS} units"));
            return Vec::new();
        }
        let mut units = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            let Some(name) = item.get("name").and_then(Value::as_str) else {
                self.problem(format!("units[{i}] must have a name"));
                continue;
            };
            let what = format!("bytes of units[{i}]");
            if item.get("bytes").is_none() {
                self.problem(format!("units[{i}] must have bytes"));
            }
            let flag = |key: &str, default: bool| item.get(key).map_or(default, Value::truthy);
            let embedding = flag("embedding", false);
            let block = match item.get("block") {
                Some(Value::Int(i)) => u32::try_from(*i).ok(),
                _ => None,
            };
            units.push(PlannedUnit {
                name: name.to_owned(),
                bytes: self.bytes(item.get("bytes"), &what).unwrap_or_default(),
                embedding,
                biased: flag("biased", !embedding),
                castable: flag("castable", true),
                block,
            });
        }
        units
    }

    fn devices(&mut self, value: Option<&Value>) -> Option<Vec<(String, u64)>> {
        let items = match value {
            None | Some(Value::Null) => return None,
            Some(value) => value.as_list(),
        };
        let Some(items) = items.filter(|i| (1..=256).contains(&i.len())) else {
            self.problem("devices must be a list of {device, total}");
            return None;
        };
        let mut devices: Vec<(String, u64)> = Vec::new();
        for (i, item) in items.iter().enumerate() {
            let total = self.bytes(item.get("total"), &format!("total of devices[{i}]"));
            match item.get("device").and_then(Value::as_str) {
                Some(name) if devices.iter().any(|(n, _)| n == name) => {
                    self.problem(format!("devices names {name} twice"));
                }
                Some(name) if !name.is_empty() => {
                    devices.push((name.to_owned(), total.unwrap_or_default()));
                }
                _ => self.problem(format!("devices[{i}] must have a device")),
            }
        }
        Some(devices)
    }
}
