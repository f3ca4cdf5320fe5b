//! What memory rooms answer and tell, as processes and clients of the API read it.

use std::sync::Arc;
use std::time::SystemTime;

use fresco_cluster::protocol::memory::{
    BookCheck, EventList, EventOrigin, EventState, FreeState, LeaseState, LoadPlanState,
    MemoryReply, Millis, ModelDetail, OverviewState, PolicyState, Removal, millis,
};
use fresco_engine::placement::{DeviceBytes, FreedModel, PlannedStep, StepAction};
use fresco_engine::{FreeReport, RoomReport};
use fresco_memory::{
    Action, Event, EvictionPlan, Freed, LoadPlan, MemoryAnswer, Origin, Overview, PlanStep,
    Removed, Trigger, device_bytes,
};
use indexmap::IndexMap;
use serde::Serialize;

use crate::http::response::wire_text;
use crate::services::memory_words::{origin_name, reason};

/// One line of the memory log.
pub fn event_line(event: &Event) -> String {
    let mut line = wire_text(&event_state(event));
    line.push('\n');
    line
}

/// A prompt runs otherwise than it was meant to. The engine says so, not the memory room: it has no number.
#[derive(Serialize)]
pub(crate) struct DowngradeEvent<'a> {
    seq: Option<u64>,
    time: Millis,
    kind: &'static str,
    trigger: &'static str,
    prompt_id: Option<&'a str>,
    decision: &'static str,
    reason: &'a str,
}

impl<'a> DowngradeEvent<'a> {
    pub(crate) fn new(prompt_id: Option<&'a Arc<str>>, reason: &'a str) -> Self {
        Self {
            seq: None,
            time: millis(SystemTime::now()),
            kind: "admission.downgraded",
            trigger: "load",
            prompt_id: prompt_id.map(|id| &**id),
            decision: "downgrade",
            reason,
        }
    }
}

/// What all workers freed.
pub(crate) fn free_state(reports: Vec<FreeReport>) -> FreeState {
    let took = reports.iter().map(|report| report.took).max();
    let mut state = FreeState {
        ram_before: reports.iter().filter_map(|report| report.ram_before).max(),
        ram_after: reports.last().and_then(|report| report.ram_after),
        duration: took.unwrap_or_default().as_secs_f64(),
        cache_reset: reports.iter().any(|report| report.cache_reset),
        ..FreeState::default()
    };
    for room in reports.into_iter().filter_map(|report| report.models) {
        state.models.extend(room.models);
        state.plan.extend(room.plan);
    }
    state
}

fn text(text: impl ToString) -> Arc<str> {
    text.to_string().into()
}

/// An empty text stands for no client.
fn name(text: &Arc<str>) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| Arc::clone(text))
}

fn planned_step(step: &PlanStep) -> PlannedStep {
    let (action, action_bytes) = match step.action {
        Action::Keep => (StepAction::Keep, None),
        Action::Demote { bytes } => (StepAction::Demote, Some(bytes)),
        Action::Evict => (StepAction::Evict, None),
        Action::Release => (StepAction::Release, None),
        Action::Defer => (StepAction::Defer, None),
        Action::Load { bytes } => (StepAction::Load, Some(bytes)),
    };
    PlannedStep {
        weights_id: step.weights.as_str().into(),
        device: step.device.as_deref().map(Into::into),
        action,
        action_bytes,
        policy: text(step.policy),
        bytes: step.bytes,
        reason: reason(&step.reason).into(),
        worker: None,
    }
}

fn planned_steps(plan: &EvictionPlan) -> Vec<PlannedStep> {
    plan.steps.iter().map(planned_step).collect()
}

/// What a memory room freed.
pub fn room_report(report: &fresco_memory::FreeReport) -> RoomReport {
    let model = |freed: &Freed| FreedModel {
        weights_id: freed.weights.as_str().into(),
        before: device_bytes(&freed.before),
        after: device_bytes(&freed.after),
        error: freed.error.clone(),
        worker: None,
    };
    RoomReport {
        models: report.models.iter().map(model).collect(),
        plan: planned_steps(&report.plan),
    }
}

fn event_origin(origin: &Origin) -> EventOrigin {
    let (node, client) = origin.place();
    EventOrigin {
        kind: origin.kind().into(),
        name: origin_name(origin).map(Into::into),
        node_id: node.cloned(),
        client_id: client.cloned(),
    }
}

/// An event as requests, sockets and the log show it.
pub(crate) fn event_state(event: &Event) -> EventState {
    let set_by = event.set_by.as_ref();
    let numbers = event.numbers.iter();
    EventState {
        seq: event.seq,
        time: millis(event.time),
        kind: event.kind.into(),
        trigger: event.trigger.map(Trigger::name).map(Into::into),
        prompt_id: event.prompt.clone(),
        node_id: event.node.clone(),
        weights_id: event.weights.as_ref().map(|id| id.as_str().into()),
        model_id: event.model.map(text),
        class: event.class.clone(),
        device: event.device.as_deref().map(Into::into),
        bytes_before: event.bytes_before,
        bytes_after: event.bytes_after,
        policy: event.policy.map(text),
        policy_source: set_by.map(|set_by| set_by.source.name().into()),
        policy_node: set_by.and_then(|set_by| name(&set_by.node)),
        policy_client: set_by.and_then(|set_by| name(&set_by.client)),
        origin: event.origin.as_ref().map(event_origin),
        decision: event.decision.map(Into::into),
        reason: event.reason.as_ref().map(|why| reason(why).into()),
        error: event.error.as_deref().map(Into::into),
        places: device_bytes(&event.places),
        numbers: numbers.map(|(name, n)| ((*name).into(), *n)).collect(),
        worker: event.worker.clone(),
    }
}

fn overview(whole: &Overview) -> OverviewState {
    let Overview {
        snapshot,
        decisions,
        last_seq,
    } = whole;
    // Several workers may have the same one: the first says its policy, and its places are those of all.
    let mut places: IndexMap<Arc<str>, (DeviceBytes, u64)> = IndexMap::new();
    let mut policies = IndexMap::new();
    let mut leases = Vec::new();
    for model in &snapshot.models {
        let id: Arc<str> = model.weights.as_str().into();
        let (devices, host) = places.entry(id.clone()).or_default();
        devices.extend(device_bytes(&model.residency));
        *host += model.host_bytes;
        policies.entry(id.clone()).or_insert_with(|| PolicyState {
            policy: text(model.policy),
            source: model.policy_source.name().into(),
        });
        leases.extend(model.leases.iter().map(|prompt| LeaseState {
            prompt_id: prompt.clone(),
            weights_id: id.clone(),
        }));
    }
    let with_host = |(id, (mut devices, host)): (_, (DeviceBytes, u64))| {
        devices.insert("cpu".into(), host);
        (id, devices)
    };
    OverviewState {
        devices: snapshot.devices.iter().map(Into::into).collect(),
        models: snapshot.models.iter().map(Into::into).collect(),
        places: places.into_iter().map(with_host).collect(),
        leases,
        policies,
        decisions: decisions.iter().map(event_state).collect(),
        last_seq: *last_seq,
        workers: None,
    }
}

fn load_plan(load: &LoadPlan) -> LoadPlanState {
    let model = load.models.first().cloned().unwrap_or_default();
    let units = model.units.iter();
    LoadPlanState {
        fits: load.fits,
        full: model.full,
        places: device_bytes(&model.places),
        resident_bytes: model.resident,
        offloaded_bytes: model.offloaded,
        buffer_bytes: model.buffer,
        allocation: model.allocation.map(Into::into),
        units: units
            .map(|(name, device)| (name.clone(), device.as_str().into()))
            .collect(),
        orphans: model.orphans,
        warnings: model.warnings,
        explanation: (!load.problems.is_empty()).then(|| load.problems.join("; ")),
        plan: planned_steps(&load.evictions),
        worker: None,
    }
}

/// What a command gave back.
pub fn memory_reply(answer: &MemoryAnswer) -> MemoryReply {
    match answer {
        MemoryAnswer::Overview(whole) => MemoryReply::Overview(Box::new(overview(whole))),
        MemoryAnswer::Model(model, units) => {
            MemoryReply::Model(Box::new(ModelDetail::new(model, units)))
        }
        MemoryAnswer::Events { events, last_seq } => MemoryReply::Events(EventList {
            events: events.iter().map(event_state).collect(),
            last_seq: *last_seq,
            last_seqs: None,
        }),
        MemoryAnswer::Problems(problems) => MemoryReply::Check(BookCheck {
            consistent: problems.is_empty(),
            problems: problems.clone(),
        }),
        MemoryAnswer::PolicySet(model) => MemoryReply::Policy(Box::new((&**model).into())),
        MemoryAnswer::Removed(Removed::Done) => MemoryReply::Removal(Removal::Released),
        MemoryAnswer::Removed(Removed::Deferred) => MemoryReply::Removal(Removal::Deferred),
        MemoryAnswer::Freed(report) => MemoryReply::Free(room_report(report)),
        MemoryAnswer::FreePlan(plan) => MemoryReply::FreePlan(planned_steps(plan)),
        MemoryAnswer::LoadPlan(load) => MemoryReply::LoadPlan(Box::new(load_plan(load))),
        MemoryAnswer::Done => MemoryReply::Done,
    }
}
