//! What the memory room says, as JSON.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fresco_engine::{
    ClaimReport, DeviceReport, FreePlan, FreeReport, HandleReport, LoadPlan, MemoryEvent,
    MemoryOrigin, ModelDetail, ModelReport, Places, PlanStep, Snapshot, UnitReport,
};
use fresco_graph::{Map, Value, json, map};

/// Milliseconds since 1970, as everywhere in the API.
fn time(at: SystemTime) -> Value {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Value::Int(since.as_millis() as i128)
}

fn list<T>(items: &[T], one: impl Fn(&T) -> Value) -> Value {
    items.iter().map(one).collect::<Vec<_>>().into()
}

/// Device to bytes.
fn places(places: &Places) -> Value {
    let map: Map = places
        .iter()
        .map(|(device, bytes)| (Arc::from(device.as_str()), (*bytes).into()))
        .collect();
    map.into()
}

pub(crate) fn device(device: &DeviceReport) -> Value {
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

pub(crate) fn devices(devices: &[DeviceReport]) -> Value {
    list(devices, device)
}

fn claim(claim: &ClaimReport) -> Value {
    map! {
        "claimant" => map! {"client_id" => &claim.client, "node_id" => &claim.node},
        "prompt_id" => &claim.prompt_id,
        "policy" => &claim.policy,
        "source" => claim.source,
        "at" => time(claim.at),
    }
    .into()
}

fn handle(handle: &HandleReport) -> Value {
    map! {
        "model_id" => &handle.model_id,
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
    map! {
        "weights_id" => &model.weights_id,
        "content" => files,
        "component" => &model.component,
        "class" => &model.class,
        "bytes_total" => model.bytes_total,
        "residency" => places(&model.residency),
        "host_bytes" => model.host_bytes,
        "pinned_bytes" => model.pinned_bytes,
        "state" => model.state,
        "effective_policy" => &model.policy,
        "policy_source" => model.policy_source,
        "claims" => list(&model.claims, claim),
        "leases" => list(&model.leases, |l| l.into()),
        "handles" => list(&model.handles, handle),
        "last_used" => model.last_used.map(time),
        "demoted_by" => model.demoted_by,
        "read_bytes" => model.read_bytes,
    }
}

pub(crate) fn model(model: &ModelReport) -> Value {
    model_map(model).into()
}

pub(crate) fn models(models: &[ModelReport]) -> Value {
    list(models, model)
}

fn unit(unit: &UnitReport) -> Value {
    map! {
        "name" => &unit.name,
        "bytes" => unit.bytes,
        "device" => unit.device.clone(),
        "planned" => unit.planned.clone(),
        "orphan" => unit.orphan,
    }
    .into()
}

/// One model, its layers, and the plans its handles have.
pub(crate) fn detail(detail: &ModelDetail) -> Value {
    let mut out = model_map(&detail.model);
    let plans: Vec<Value> = detail
        .model
        .handles
        .iter()
        .filter_map(|h| {
            let allocation = h.placement.as_ref()?;
            Some(map! {"model_id" => &h.model_id, "allocation" => allocation}.into())
        })
        .collect();
    out.insert("placement".into(), plans.into());
    out.insert("units".into(), list(&detail.units, unit));
    out.into()
}

/// Everything at once: the models, and the same told by places, leases and policies.
pub(crate) fn overview(snapshot: &Snapshot, decisions: &[MemoryEvent], last_seq: u64) -> Value {
    let by_model = |what: &dyn Fn(&ModelReport) -> Value| -> Value {
        let map: Map = snapshot
            .models
            .iter()
            .map(|m| (Arc::from(m.weights_id.as_str()), what(m)))
            .collect();
        map.into()
    };
    let everywhere = |m: &ModelReport| {
        let mut all = m.residency.clone();
        all.push(("cpu".to_owned(), m.host_bytes));
        places(&all)
    };
    let leases: Vec<Value> = snapshot
        .models
        .iter()
        .flat_map(|m| {
            m.leases.iter().map(|prompt| {
                Value::from(map! {"prompt_id" => prompt, "weights_id" => &m.weights_id})
            })
        })
        .collect();
    let policy = |m: &ModelReport| map! {"policy" => &m.policy, "source" => m.policy_source}.into();
    map! {
        "devices" => devices(&snapshot.devices),
        "models" => models(&snapshot.models),
        "places" => by_model(&everywhere),
        "leases" => leases,
        "policies" => by_model(&policy),
        "decisions" => events(decisions),
        "last_seq" => last_seq,
    }
    .into()
}

/// An event as requests, sockets and the log show it.
pub(crate) fn event(event: &MemoryEvent) -> Value {
    let mut out = map! {
        "seq" => event.seq,
        "time" => time(event.time),
        "kind" => event.kind,
        "trigger" => event.trigger,
        "prompt_id" => event.prompt_id.clone(),
        "node_id" => event.node_id.clone(),
        "weights_id" => event.weights_id.clone(),
        "model_id" => event.model_id.clone(),
        "class" => event.class.clone(),
        "device" => event.device.clone(),
        "bytes_before" => event.bytes_before,
        "bytes_after" => event.bytes_after,
        "policy" => event.policy.clone(),
        "policy_source" => event.policy_source,
        "policy_node" => event.policy_node.clone(),
        "policy_client" => event.policy_client.clone(),
        "origin" => event.origin.as_ref().map(origin),
        "decision" => event.decision,
        "reason" => event.reason.clone(),
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
    out.into()
}

fn origin(origin: &MemoryOrigin) -> Value {
    map! {
        "kind" => origin.kind,
        "name" => origin.name,
        "node_id" => origin.node.clone(),
        "client_id" => origin.client.clone(),
    }
    .into()
}

pub(crate) fn events(events: &[MemoryEvent]) -> Value {
    list(events, event)
}

/// One line of the memory log.
pub fn event_line(one: &MemoryEvent) -> String {
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
    map! {
        "weights_id" => &step.weights_id,
        "device" => step.device.clone(),
        "action" => step.action,
        "action_bytes" => step.action_bytes,
        "policy" => &step.policy,
        "bytes" => step.bytes,
        "reason" => &step.reason,
    }
    .into()
}

pub(crate) fn plan(plan: &FreePlan) -> Value {
    list(&plan.steps, step)
}

/// What all workers did, as one report.
pub(crate) fn reports(reports: Vec<FreeReport>) -> Value {
    let mut all = FreeReport::default();
    for report in reports {
        all.models.extend(report.models);
        all.plan.steps.extend(report.plan.steps);
        all.ram_before = all.ram_before.max(report.ram_before);
        all.ram_after = report.ram_after;
        all.took = all.took.max(report.took);
        all.cache_reset |= report.cache_reset;
    }
    report(&all)
}

fn report(report: &FreeReport) -> Value {
    let freed = list(&report.models, |m| {
        map! {
            "weights_id" => &m.weights_id,
            "before" => places(&m.before),
            "after" => places(&m.after),
            "error" => m.error.clone(),
        }
        .into()
    });
    map! {
        "models" => freed,
        "ram_before" => report.ram_before,
        "ram_after" => report.ram_after,
        "duration" => report.took.as_secs_f64(),
        "cache_reset" => report.cache_reset,
        "plan" => plan(&report.plan),
    }
    .into()
}

pub(crate) fn load_plan(load: &LoadPlan) -> Value {
    let units: Map = load
        .units
        .iter()
        .map(|(name, device)| (Arc::from(name.as_str()), device.into()))
        .collect();
    let strings = |texts: &[String]| list(texts, |t| t.into());
    map! {
        "fits" => load.fits,
        "full" => load.full,
        "places" => places(&load.places),
        "resident_bytes" => load.resident_bytes,
        "offloaded_bytes" => load.offloaded_bytes,
        "buffer_bytes" => load.buffer_bytes,
        "allocation" => load.allocation.clone(),
        "units" => units,
        "orphans" => strings(&load.orphans),
        "warnings" => strings(&load.warnings),
        "explanation" => load.explanation.clone(),
        "plan" => plan(&load.steps),
    }
    .into()
}
