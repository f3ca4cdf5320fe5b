//! What the memory room says, as JSON.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fresco_graph::{Map, Value, json, map};
use fresco_memory::{
    Action, ClaimReport, DeviceReport, Event, EvictionPlan, FreeReport, Freed, HandleReport,
    LoadPlan, MemoryAnswer, ModelReport, Origin, Overview, PlanStep, Policy, Removed, Trigger,
    UnitReport, WeightsId,
};

/// Milliseconds since 1970, as everywhere in the API.
fn time(at: SystemTime) -> Value {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Value::Int(since.as_millis() as i128)
}

fn list<T>(items: &[T], one: impl Fn(&T) -> Value) -> Value {
    items.iter().map(one).collect::<Vec<_>>().into()
}

fn id(weights: &WeightsId) -> Value {
    weights.as_str().into()
}

fn policy(policy: &Policy) -> Value {
    policy.to_string().into()
}

/// Empty texts stand for nobody.
fn somebody(text: &Arc<str>) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| Arc::clone(text))
}

/// Device to bytes.
fn places(places: &[(String, u64)]) -> Value {
    let map: Map = places
        .iter()
        .map(|(device, bytes)| (Arc::from(device.as_str()), (*bytes).into()))
        .collect();
    map.into()
}

fn device(device: &DeviceReport) -> Value {
    map! {
        "device" => &device.device,
        "type" => device.kind,
        "index" => device.index,
        "total" => device.total,
        "free" => device.free,
        "allocator_reserved" => device.allocator_reserved,
        "allocator_free" => device.allocator_free,
        "reserved" => device.reserved,
        "weights_resident" => device.weights_resident,
        "weights_buffer" => device.weights_buffer,
        "pinned_host" => device.pinned_host,
        "peak" => device.peak,
    }
    .into()
}

fn devices(devices: &[DeviceReport]) -> Value {
    list(devices, device)
}

fn claim(claim: &ClaimReport) -> Value {
    map! {
        "claimant" => map! {"client_id" => &claim.client, "node_id" => &claim.node},
        "prompt_id" => &claim.prompt,
        "policy" => policy(&claim.policy),
        "source" => claim.source.name(),
        "at" => time(claim.at),
    }
    .into()
}

fn handle(handle: &HandleReport) -> Value {
    map! {
        "model_id" => handle.model.to_string(),
        "patch_version" => handle.patch_version,
        "patches" => handle.patches,
        "compute_device" => &handle.compute_device,
        "on_the_fly" => handle.on_the_fly,
        "own" => places(&handle.own),
        "placement" => handle.placement.clone(),
    }
    .into()
}

fn model_map(model: &ModelReport) -> Map {
    let files = list(&model.files, |f| Value::from(f.to_string_lossy().as_ref()));
    let mut out = map! {
        "weights_id" => id(&model.weights),
        "content" => files,
        "component" => &model.component,
        "class" => &model.class,
        "bytes_total" => model.bytes_total,
        "residency" => places(&model.residency),
        "host_bytes" => model.host_bytes,
        "pinned_bytes" => model.pinned_bytes,
        "state" => model.state.name(),
        "effective_policy" => policy(&model.policy),
        "policy_source" => model.policy_source.name(),
        "claims" => list(&model.claims, claim),
        "leases" => list(&model.leases, |l| l.into()),
        "handles" => list(&model.handles, handle),
        "last_used" => model.last_used.map(time),
        "demoted_by" => model.demoted_by,
        "read_bytes" => model.read_bytes,
    };
    if let Some(worker) = &model.worker {
        out.insert("worker".into(), worker.into());
    }
    out
}

fn model(model: &ModelReport) -> Value {
    model_map(model).into()
}

fn models(models: &[ModelReport]) -> Value {
    list(models, model)
}

fn unit(unit: &UnitReport) -> Value {
    map! {
        "name" => &unit.name,
        "bytes" => unit.bytes,
        "device" => unit.home.clone(),
        "planned" => unit.planned.clone(),
        "orphan" => unit.orphan,
    }
    .into()
}

/// One model, its layers, and the plans its handles have.
fn detail(model: &ModelReport, units: &[UnitReport]) -> Value {
    let mut out = model_map(model);
    let plans: Vec<Value> = model
        .handles
        .iter()
        .filter_map(|h| {
            let allocation = h.placement.as_ref()?;
            let model = h.model.to_string();
            Some(map! {"model_id" => model, "allocation" => allocation}.into())
        })
        .collect();
    out.insert("placement".into(), plans.into());
    out.insert("units".into(), list(units, unit));
    out.into()
}

/// What a command gave back.
pub(crate) fn answer(answer: &MemoryAnswer) -> Value {
    match answer {
        MemoryAnswer::Overview(whole) => overview(whole),
        MemoryAnswer::Model(model, units) => detail(model, units),
        MemoryAnswer::Events {
            events: all,
            last_seq,
        } => map! {"events" => events(all), "last_seq" => *last_seq}.into(),
        MemoryAnswer::Problems(problems) => {
            map! {"consistent" => problems.is_empty(), "problems" => problems.clone()}.into()
        }
        MemoryAnswer::PolicySet(report) => model(report),
        MemoryAnswer::Removed(Removed::Done) => map! {"status" => "released"}.into(),
        MemoryAnswer::Removed(Removed::Deferred) => map! {"status" => "deferred"}.into(),
        MemoryAnswer::Freed(report) => free_report(report),
        MemoryAnswer::FreePlan(steps) => map! {"plan" => plan(steps)}.into(),
        MemoryAnswer::LoadPlan(load) => load_plan(load),
        MemoryAnswer::Done => Map::new().into(),
    }
}

/// Everything at once: the models, and the same told by places, leases and policies.
fn overview(whole: &Overview) -> Value {
    let Overview {
        snapshot,
        decisions,
        last_seq,
    } = whole;
    // Several workers may have the same one: the first says its policy, and its places are those of all.
    let same = |m: &ModelReport| {
        snapshot.models.iter().filter({
            let weights = m.weights.clone();
            move |other| other.weights == weights
        })
    };
    let by_model = |what: &dyn Fn(&ModelReport) -> Value| -> Value {
        let mut map = Map::new();
        for m in &snapshot.models {
            let id = Arc::from(m.weights.as_str());
            map.entry(id).or_insert_with(|| what(m));
        }
        map.into()
    };
    let everywhere = |m: &ModelReport| {
        let mut all: Vec<(String, u64)> = Vec::new();
        let mut host = 0;
        for m in same(m) {
            all.extend(m.residency.iter().cloned());
            host += m.host_bytes;
        }
        all.push(("cpu".to_owned(), host));
        places(&all)
    };
    let leases: Vec<Value> = snapshot
        .models
        .iter()
        .flat_map(|m| {
            m.leases.iter().map(|prompt| {
                Value::from(map! {"prompt_id" => prompt, "weights_id" => id(&m.weights)})
            })
        })
        .collect();
    let counts = |m: &ModelReport| {
        map! {"policy" => policy(&m.policy), "source" => m.policy_source.name()}.into()
    };
    map! {
        "devices" => devices(&snapshot.devices),
        "models" => models(&snapshot.models),
        "places" => by_model(&everywhere),
        "leases" => leases,
        "policies" => by_model(&counts),
        "decisions" => events(decisions),
        "last_seq" => *last_seq,
    }
    .into()
}

/// An event as requests, sockets and the log show it.
pub(crate) fn event(event: &Event) -> Value {
    let set_by = event.set_by.as_ref();
    let mut out = map! {
        "seq" => event.seq,
        "time" => time(event.time),
        "kind" => event.kind,
        "trigger" => event.trigger.map(Trigger::name),
        "prompt_id" => event.prompt.clone(),
        "node_id" => event.node.clone(),
        "weights_id" => event.weights.as_ref().map(id),
        "model_id" => event.model.map(|model| model.to_string()),
        "class" => event.class.clone(),
        "device" => event.device.clone(),
        "bytes_before" => event.bytes_before,
        "bytes_after" => event.bytes_after,
        "policy" => event.policy.as_ref().map(policy),
        "policy_source" => set_by.map(|set_by| set_by.source.name()),
        "policy_node" => set_by.and_then(|set_by| somebody(&set_by.node)),
        "policy_client" => set_by.and_then(|set_by| somebody(&set_by.client)),
        "origin" => event.origin.as_ref().map(origin),
        "decision" => event.decision,
        "reason" => event.reason.as_ref().map(ToString::to_string),
        "error" => event.error.clone(),
    };
    if !event.places.is_empty() {
        out.insert("places".into(), places(&event.places));
    }
    if !event.numbers.is_empty() {
        let numbers: Map = event
            .numbers
            .iter()
            .map(|(name, value)| (Arc::from(*name), (*value).into()))
            .collect();
        out.insert("numbers".into(), numbers.into());
    }
    if let Some(worker) = &event.worker {
        out.insert("worker".into(), worker.into());
    }
    out.into()
}

fn origin(origin: &Origin) -> Value {
    let (node, client) = origin.place();
    map! {
        "kind" => origin.kind(),
        "name" => origin.name(),
        "node_id" => node.cloned(),
        "client_id" => client.cloned(),
    }
    .into()
}

fn events(events: &[Event]) -> Value {
    list(events, event)
}

/// One line of the memory log.
pub fn event_line(one: &Event) -> String {
    let mut line = json::to_string(&event(one));
    line.push('\n');
    line
}

/// Told by the engine, not by the memory room: it has no number.
pub(crate) fn downgraded(prompt_id: Option<&Arc<str>>, message: &Arc<str>) -> Value {
    map! {
        "seq" => Value::Null,
        "time" => time(SystemTime::now()),
        "kind" => "admission.downgraded",
        "trigger" => "load",
        "prompt_id" => prompt_id.cloned(),
        "decision" => "downgrade",
        "reason" => message,
    }
    .into()
}

fn step(step: &PlanStep) -> Value {
    let bytes = match step.action {
        Action::Demote { bytes } | Action::Load { bytes } => Some(bytes),
        Action::Keep | Action::Evict | Action::Release | Action::Defer => None,
    };
    map! {
        "weights_id" => id(&step.weights),
        "device" => step.device.clone(),
        "action" => step.action.name(),
        "action_bytes" => bytes,
        "policy" => policy(&step.policy),
        "bytes" => step.bytes,
        "reason" => step.reason.to_string(),
    }
    .into()
}

fn plan(plan: &EvictionPlan) -> Value {
    steps(&plan.steps)
}

fn steps<'a>(all: impl IntoIterator<Item = &'a PlanStep>) -> Value {
    all.into_iter().map(step).collect::<Vec<_>>().into()
}

fn freed(freed: &Freed) -> Value {
    map! {
        "weights_id" => id(&freed.weights),
        "before" => places(&freed.before),
        "after" => places(&freed.after),
        "error" => freed.error.clone(),
    }
    .into()
}

/// What a worker's memory room did, for the front that asked for it; none of a report that is not its own.
pub fn room_report(report: &fresco_engine::RoomReport) -> Option<Value> {
    report.downcast_ref::<FreeReport>().map(free_report)
}

fn free_report(report: &FreeReport) -> Value {
    map! {"models" => list(&report.models, freed), "plan" => plan(&report.plan)}.into()
}

/// The items of a list with the worker that they are of.
pub(crate) fn of_worker(items: &[Value], worker: &Arc<str>) -> Vec<Value> {
    let named = |item: &Value| {
        let mut item = item.clone();
        if let Value::Map(map) = &mut item {
            Arc::make_mut(map).insert("worker".into(), worker.into());
        }
        item
    };
    items.iter().map(named).collect()
}

/// What all workers did, as one report.
pub(crate) fn reports(reports: &[fresco_engine::FreeReport]) -> Value {
    // Those on other machines say it as JSON, and under their names.
    let listed = |name: &str| -> Vec<Value> {
        let of = |report: &fresco_engine::FreeReport| {
            let room = report.models.as_ref()?;
            let far = room.downcast_ref::<Value>();
            let whole = far.cloned().or_else(|| room_report(room))?;
            let items = whole.get(name)?.as_list()?;
            Some(match far {
                Some(_) => of_worker(items, &report.worker),
                None => items.to_vec(),
            })
        };
        reports.iter().filter_map(of).flatten().collect()
    };
    let took = reports.iter().map(|report| report.took).max();
    map! {
        "models" => listed("models"),
        "ram_before" => reports.iter().filter_map(|report| report.ram_before).max(),
        "ram_after" => reports.last().and_then(|report| report.ram_after),
        "duration" => took.unwrap_or_default().as_secs_f64(),
        "cache_reset" => reports.iter().any(|report| report.cache_reset),
        "plan" => listed("plan"),
    }
    .into()
}

/// A plan for one model.
fn load_plan(load: &LoadPlan) -> Value {
    let placed = load.models.first().cloned().unwrap_or_default();
    let units: Map = placed
        .units
        .iter()
        .map(|(name, device)| (Arc::clone(name), device.into()))
        .collect();
    let explanation = (!load.problems.is_empty()).then(|| load.problems.join("; "));
    map! {
        "fits" => load.fits,
        "full" => placed.full,
        "places" => places(&placed.places),
        "resident_bytes" => placed.resident,
        "offloaded_bytes" => placed.offloaded,
        "buffer_bytes" => placed.buffer,
        "allocation" => placed.allocation.clone(),
        "units" => units,
        "orphans" => list(&placed.orphans, |name| name.into()),
        "warnings" => list(&placed.warnings, |text| text.into()),
        "explanation" => explanation,
        "plan" => plan(&load.evictions),
    }
    .into()
}
