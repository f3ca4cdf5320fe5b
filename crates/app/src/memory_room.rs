//! The memory room as the engine knows it: the registry behind the engine's seam.
//!
//! Nothing is decided here. Requests go to the registry, its reports come back in the engine's words, and its events go
//! to whoever listens to the engine and to the memory log.

use std::any::Any;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::Context as _;
use fresco_engine as engine;
use fresco_engine::{EventKind, EventSink, MemoryProblem, MemoryRoom};
use fresco_files::Folders;
use fresco_graph::lock;
use fresco_memory::{
    ApiError, DeviceTotal, EjectOthers, ModelRegistry, Need, Placement, Policy, Unit, WeightsId,
    Who, parse_expert,
};
use fresco_nodes::admission::{self, Asked, Verdict};

/// What [`Policy::parse`] takes.
const POLICIES: &str = "auto, keep, pin, eject_after, ttl:SECONDS";
/// More virtual memory than this cannot be meant.
const MOST_VIRTUAL_GB: f64 = 1e6;

pub(crate) struct Room {
    registry: ModelRegistry,
    /// Where models are looked for before a prompt runs; none: prompts are not looked at.
    folders: Option<Folders>,
}

impl Room {
    /// Sends the registry's events on from now on.
    pub(crate) fn new(
        registry: ModelRegistry,
        sink: Arc<dyn EventSink>,
        log: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let log = log.map(MemoryLog::open).transpose()?;
        registry.on_event(Arc::new(move |event| {
            let event = Arc::new(to_engine_event(event));
            if let Some(log) = &log {
                log.write(&event);
            }
            sink.emit(engine::Event {
                prompt_id: event.prompt_id.clone(),
                client: None,
                worker: None,
                kind: EventKind::Memory(event),
            });
        }));
        Ok(Self {
            registry,
            folders: None,
        })
    }

    /// Lets it look at prompts before they run.
    pub(crate) fn admitting(mut self, folders: Folders) -> Self {
        self.folders = Some(folders);
        self
    }
}

/// One JSON object a line, at the end of what is there.
struct MemoryLog {
    /// None after the first failure: one line in the log of the program says more than a thousand.
    file: Mutex<Option<File>>,
}

impl MemoryLog {
    fn open(path: &Path) -> anyhow::Result<Self> {
        // A pipe would make the start wait for somebody who reads it.
        if path.exists() && !path.is_file() {
            anyhow::bail!("the memory log {} is not a file", path.display());
        }
        let file = File::options().append(true).create(true).open(path);
        let file =
            file.with_context(|| format!("cannot write the memory log {}", path.display()))?;
        Ok(Self {
            file: Mutex::new(Some(file)),
        })
    }

    fn write(&self, event: &engine::MemoryEvent) {
        let mut file = lock(&self.file);
        let Some(open) = file.as_mut() else { return };
        if let Err(error) = open.write_all(fresco_server::event_line(event).as_bytes()) {
            tracing::error!("the memory log ends here: {error}");
            *file = None;
        }
    }
}

impl MemoryRoom for Room {
    fn admit(&self, arriving: &engine::Arriving<'_>) -> engine::Admission {
        let Some(folders) = &self.folders else {
            return engine::Admission::Ok;
        };
        let asked = Asked {
            prompt: arriving.prompt,
            outputs: Some(arriving.outputs),
            cached: arriving.cached,
        };
        let found = admission::assess_run(&asked, folders, &self.registry);
        match found.verdict {
            Verdict::Fits => engine::Admission::Ok,
            Verdict::Streams(how) => engine::Admission::Downgraded(how),
            Verdict::Refused(message) => engine::Admission::Refused {
                node: found.blamed,
                message,
            },
        }
    }

    fn available_ram(&self) -> Option<u64> {
        fresco_tensor::available_memory()
    }

    fn total_ram(&self) -> Option<u64> {
        fresco_tensor::total_memory()
    }

    fn resident_ram(&self) -> Option<u64> {
        fresco_memory::resident_set()
    }

    fn claim(&self, bytes: u64) -> Result<Box<dyn Any + Send>, u64> {
        match fresco_tensor::claim_memory(bytes) {
            Ok(claim) => Ok(Box::new(claim)),
            Err(refused) => Err(refused.missing),
        }
    }

    fn prompt_started(&self, prompt_id: &str) {
        self.registry.prompt_started(prompt_id);
    }

    fn after_prompt(&self, prompt_id: &str) {
        self.registry.prompt_ended(prompt_id);
        fresco_tensor::free_spare_memory();
    }

    fn unload_all(&self, prompt_id: &str, why: engine::Unload) {
        match why {
            engine::Unload::OutOfMemory => self.registry.unload_after_oom(&Who {
                prompt: prompt_id.into(),
                ..Who::default()
            }),
            // The registry was told the same, and does it with the rest of the cleanup.
            engine::Unload::PromptDone => {}
        }
    }

    fn free(&self, request: &engine::FreeRequest, running: Option<&str>) -> engine::FreeReport {
        let report = self.registry.free(&to_memory_request(request), running);
        let freed = |freed: fresco_memory::Freed| engine::Freed {
            weights_id: freed.weights.to_string(),
            before: freed.before,
            after: freed.after,
            error: freed.error,
        };
        engine::FreeReport {
            worker: "".into(),
            models: report.models.into_iter().map(freed).collect(),
            ram_before: report.ram_before,
            ram_after: report.ram_after,
            took: report.took,
            cache_reset: false,
            plan: to_engine_plan(report.plan),
        }
    }

    fn free_plan(&self, request: &engine::FreeRequest) -> engine::FreePlan {
        to_engine_plan(self.registry.free_plan(&to_memory_request(request)))
    }

    fn note_free(&self, note: engine::FreeNote<'_>) {
        self.registry.note_free(match note {
            engine::FreeNote::Noop => fresco_memory::FreeNote::Noop,
            engine::FreeNote::Deferred { prompt_id } => {
                fresco_memory::FreeNote::Deferred(prompt_id.into())
            }
        });
    }

    fn cache_reset(&self) {
        self.registry.note_cache_reset();
    }

    fn release_caches(&self) {
        self.registry.soft_empty();
        fresco_tensor::free_spare_memory();
    }

    fn tick(&self) {
        self.registry.tick();
    }

    fn next_tick(&self) -> Option<Instant> {
        self.registry.next_tick()
    }

    fn shutdown(&self) {
        self.registry.shutdown();
    }

    fn snapshot(&self) -> engine::Snapshot {
        let snapshot = self.registry.snapshot();
        engine::Snapshot {
            devices: snapshot.devices.into_iter().map(device).collect(),
            models: snapshot.models.into_iter().map(model).collect(),
        }
    }

    fn model(&self, id: &str) -> Option<engine::ModelDetail> {
        let (report, units) = self.registry.model(id)?;
        let unit = |unit: fresco_memory::UnitReport| engine::UnitReport {
            name: unit.name,
            bytes: unit.bytes,
            device: unit.home,
            planned: unit.planned,
            orphan: unit.orphan,
        };
        Some(engine::ModelDetail {
            model: model(report),
            units: units.into_iter().map(unit).collect(),
        })
    }

    fn events(&self, since: u64, kinds: &[String], limit: usize) -> Vec<engine::MemoryEvent> {
        let events = self.registry.events(since, kinds, limit);
        events.iter().map(to_engine_event).collect()
    }

    fn last_seq(&self) -> u64 {
        self.registry.last_seq()
    }

    fn check(&self) -> Vec<String> {
        self.registry.check()
    }

    fn set_policy(&self, id: &str, policy: &str) -> Result<engine::ModelReport, MemoryProblem> {
        let policy = Policy::parse(policy).ok_or_else(|| MemoryProblem::Policy {
            policy: policy.to_owned(),
            known: POLICIES,
        })?;
        let report = self.registry.set_policy(id, policy);
        report.map(model).map_err(|e| refused(e, id))
    }

    fn remove(&self, id: &str, force: bool) -> Result<engine::Removed, MemoryProblem> {
        match self.registry.remove(id, force) {
            Ok(fresco_memory::Removed::Done) => Ok(engine::Removed::Done),
            Ok(fresco_memory::Removed::Deferred) => Ok(engine::Removed::Deferred),
            Err(error) => Err(refused(error, id)),
        }
    }

    fn release(&self, id: &str) -> Result<(), MemoryProblem> {
        self.registry.release(id).map_err(|e| refused(e, id))
    }

    fn plan_load(&self, request: &engine::LoadRequest) -> Result<engine::LoadPlan, MemoryProblem> {
        let plan = self.registry.plan_load(&self.load(request)?);
        Ok(load_plan(plan))
    }
}

impl Room {
    /// A load of one model, in the registry's words.
    fn load(
        &self,
        request: &engine::LoadRequest,
    ) -> Result<fresco_memory::LoadRequest, MemoryProblem> {
        let devices: Option<Vec<DeviceTotal>> = request.devices.as_ref().map(|devices| {
            let total = |(name, total): &(String, u64)| DeviceTotal {
                name: name.clone(),
                total: *total,
            };
            devices.iter().map(total).collect()
        });
        let totals = devices.clone().unwrap_or_else(|| self.registry.totals());
        let compute = request.compute_device.clone().unwrap_or_else(|| {
            let first = totals.iter().find(|d| d.name != "cpu");
            first.map_or_else(|| "cpu".to_owned(), |d| d.name.clone())
        });
        let (name, weights, units): (_, _, Arc<[Unit]>) = match &request.subject {
            engine::LoadSubject::Weights { id } => {
                let found = self.registry.model(id);
                let (report, _) = found.ok_or_else(|| MemoryProblem::Unknown { id: id.clone() })?;
                (
                    report.weights.to_string(),
                    Some(report.weights),
                    Arc::default(),
                )
            }
            engine::LoadSubject::Units(units) => (
                "model".to_owned(),
                None::<WeightsId>,
                units.iter().map(unit).collect(),
            ),
        };
        let mut problems = Vec::new();
        let known = |name: &str| name == "cpu" || totals.iter().any(|d| d.name == name);
        let names = || {
            let names: Vec<&str> = totals.iter().map(|d| d.name.as_str()).collect();
            names.join(", ")
        };
        let donors: Vec<String> = match request.donor_device.as_deref() {
            None | Some("") => vec!["cpu".to_owned()],
            Some(text) => text.split(',').map(|d| d.trim().to_owned()).collect(),
        };
        for name in donors.iter().chain([&compute]).filter(|name| !known(name)) {
            problems.push(format!(
                "there is no device {name:?}; there are {}",
                names()
            ));
        }
        let gb = request.virtual_vram_gb.unwrap_or(0.0);
        if gb > MOST_VIRTUAL_GB {
            problems.push(format!("{gb} GB of virtual memory cannot be meant"));
        }
        let expert = parse_expert(request.expert.as_deref().unwrap_or_default(), &totals);
        let expert = expert.unwrap_or_else(|errors| {
            problems.extend(errors.iter().map(ToString::to_string));
            None
        });
        if !problems.is_empty() {
            return Err(MemoryProblem::Request(problems));
        }
        // As with the loaders, an expert text decides alone.
        let placement = match expert {
            Some(expert) => Some(Placement::Expert(expert)),
            None => (gb > 0.0).then_some(Placement::Virtual { gb, donors }),
        };
        Ok(fresco_memory::LoadRequest {
            models: vec![fresco_memory::LoadModel {
                name,
                weights,
                units,
                compute,
                offload: "cpu".to_owned(),
                placement,
                text_encoder: request.text_encoder,
                full: false,
            }],
            devices,
            need: Need {
                required: request.required,
                ..Need::default()
            },
            eject: if request.eject_models {
                EjectOthers::ComputeDevice
            } else {
                EjectOthers::None
            },
        })
    }
}

fn unit(unit: &engine::PlannedUnit) -> Unit {
    Unit {
        name: unit.name.as_str().into(),
        bytes: unit.bytes,
        cost: unit.bytes,
        embedding: unit.embedding,
        biased: unit.biased,
        castable: unit.castable,
        own: false,
        block: unit.block,
    }
}

fn to_memory_request(request: &engine::FreeRequest) -> fresco_memory::FreeRequest {
    let engine::FreeRequest {
        unload_models,
        free_memory,
        respect,
        force,
        devices,
        models,
    } = request.clone();
    fresco_memory::FreeRequest {
        unload_models,
        free_memory,
        respect,
        force,
        devices,
        models,
    }
}

fn refused(error: ApiError, id: &str) -> MemoryProblem {
    let id = id.to_owned();
    match error {
        ApiError::Unknown => MemoryProblem::Unknown { id },
        ApiError::Leased => MemoryProblem::Leased { id },
        ApiError::Pinned => MemoryProblem::Pinned { id },
    }
}

fn to_engine_plan(plan: fresco_memory::EvictionPlan) -> engine::FreePlan {
    let step = |step: fresco_memory::PlanStep| engine::PlanStep {
        weights_id: step.weights.to_string(),
        device: step.device,
        action: step.action.name(),
        action_bytes: match step.action {
            fresco_memory::Action::Demote { bytes } | fresco_memory::Action::Load { bytes } => {
                Some(bytes)
            }
            _ => None,
        },
        policy: step.policy.to_string(),
        bytes: step.bytes,
        reason: step.reason,
    };
    engine::FreePlan {
        steps: plan.steps.into_iter().map(step).collect(),
    }
}

fn load_plan(plan: fresco_memory::LoadPlan) -> engine::LoadPlan {
    let explanation = (!plan.problems.is_empty()).then(|| plan.problems.join("; "));
    let mut out = engine::LoadPlan {
        steps: to_engine_plan(plan.evictions),
        fits: plan.fits,
        explanation,
        ..engine::LoadPlan::default()
    };
    if let Some(model) = plan.models.into_iter().next() {
        out.places = model.places;
        let name = |(name, device): (Arc<str>, String)| (name.to_string(), device);
        out.units = model.units.into_iter().map(name).collect();
        out.resident_bytes = model.resident;
        out.offloaded_bytes = model.offloaded;
        out.buffer_bytes = model.buffer;
        out.full = model.full;
        out.allocation = model.allocation;
        out.orphans = model.orphans.iter().map(ToString::to_string).collect();
        out.warnings = model.warnings;
    }
    out
}

fn device(device: fresco_memory::DeviceReport) -> engine::DeviceReport {
    let index = device.device.rsplit_once(':');
    let cpu = device.kind == "cpu";
    engine::DeviceReport {
        index: index.and_then(|(_, number)| number.parse().ok()),
        // The main memory has no allocator of its own; a simulated device holds nothing in reserve.
        allocator_reserved: if cpu {
            device.total
        } else {
            device.total.saturating_sub(device.free)
        },
        allocator_free: if cpu { device.free } else { 0 },
        device: device.device,
        kind: device.kind,
        total: device.total,
        free: device.free,
        reserved: device.reserved,
        weights_resident: device.weights_resident,
        weights_buffer: device.weights_buffer,
        pinned_host: device.pinned_host,
        peak: device.peak,
    }
}

fn model(model: fresco_memory::ModelReport) -> engine::ModelReport {
    let claim = |claim: fresco_memory::ClaimReport| engine::ClaimReport {
        client: claim.client,
        node: claim.node,
        prompt_id: claim.prompt,
        policy: claim.policy.to_string(),
        source: claim.source.name(),
        at: claim.at,
    };
    let handle = |handle: fresco_memory::HandleReport| engine::HandleReport {
        model_id: handle.model.to_string(),
        patch_version: handle.patch_version,
        patches: handle.patches,
        compute_device: handle.compute_device,
        on_the_fly: handle.on_the_fly,
        own: handle.own,
        placement: handle.placement,
    };
    engine::ModelReport {
        weights_id: model.weights.to_string(),
        files: model.files,
        component: model.component,
        class: model.class,
        bytes_total: model.bytes_total,
        residency: model.residency,
        host_bytes: model.host_bytes,
        pinned_bytes: model.pinned_bytes,
        state: model.state.name(),
        policy: model.policy.to_string(),
        policy_source: model.policy_source.name(),
        claims: model.claims.into_iter().map(claim).collect(),
        leases: model.leases,
        handles: model.handles.into_iter().map(handle).collect(),
        last_used: model.last_used,
        demoted_by: model.demoted_by,
        read_bytes: model.read_bytes,
    }
}

fn to_engine_event(event: &fresco_memory::Event) -> engine::MemoryEvent {
    let event = event.clone();
    let said = |text: &Arc<str>| (!text.is_empty()).then(|| Arc::clone(text));
    let origin = event.origin.as_ref().map(|origin| {
        let (node, client) = origin.place();
        engine::MemoryOrigin {
            kind: origin.kind(),
            name: origin.name(),
            node: node.cloned(),
            client: client.cloned(),
        }
    });
    let set_by = event.set_by.as_ref();
    engine::MemoryEvent {
        seq: event.seq,
        time: event.time,
        kind: event.kind,
        trigger: event.trigger.map(fresco_memory::Trigger::name),
        prompt_id: event.prompt,
        node_id: event.node,
        weights_id: event.weights.map(|id| id.to_string()),
        model_id: event.model.map(|id| id.to_string()),
        class: event.class,
        device: event.device,
        bytes_before: event.bytes_before,
        bytes_after: event.bytes_after,
        policy: event.policy.map(|policy| policy.to_string()),
        policy_source: set_by.map(|set_by| set_by.source.name()),
        policy_node: set_by.and_then(|set_by| said(&set_by.node)),
        policy_client: set_by.and_then(|set_by| said(&set_by.client)),
        origin,
        decision: event.decision,
        reason: event.reason,
        error: event.error,
        places: event.places,
        numbers: event.numbers,
    }
}

#[cfg(test)]
mod tests;
