//! What clients ask for: `POST /free`, single models, and the service that unloads everything from within a node.

use std::collections::BTreeSet;

use crate::act::Done;
use crate::claims::Claim;
use crate::entry::{Later, ModelEntry};
use crate::events::event;
use crate::plan;
use crate::registry::{ModelRegistry, State};
use crate::{
    Action, ApiRequest, EvictionPlan, FreeNote, FreeReport, FreeRequest, Freed, ModelReport,
    Origin, Policy, PolicySource, Reason, Refusal, Trigger, WeightsId, Who,
};

/// The origin of what `POST /free` does.
pub(crate) const REQUEST: Origin = Origin::Api {
    request: ApiRequest::Free,
};
const PATCH: Origin = Origin::Api {
    request: ApiRequest::SetPolicy,
};
const DELETE: Origin = Origin::Api {
    request: ApiRequest::Remove,
};

/// How a model left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    Done,
    /// As soon as the prompts that hold it are over.
    Deferred,
}

impl ModelRegistry {
    /// Carries a request out. With a prompt that runs: only what no prompt holds; the caller asks again after its end.
    pub fn free(&self, request: &FreeRequest, prompt: Option<&str>) -> FreeReport {
        if request.is_noop() {
            self.note_free(FreeNote::Noop);
            return FreeReport::default();
        }
        let started = self.now();
        let who = Who {
            prompt: prompt.unwrap_or("").into(),
            ..Who::default()
        };
        let trigger = if request.force {
            Trigger::Force
        } else {
            Trigger::Free
        };
        let mut guard = self.lock();
        let state = &mut *guard;
        let used_before = state.used();
        let plan = state.free_plan(request);
        let named: BTreeSet<WeightsId> =
            plan.steps.iter().map(|step| step.weights.clone()).collect();
        let before: Vec<(WeightsId, Vec<(String, u64)>)> = named
            .iter()
            .map(|id| (id.clone(), state.places(id)))
            .collect();
        let mut cause = self.cause(trigger, &who, started);
        cause.origin = REQUEST;
        cause.merged = true;
        cause.to_host = true;
        cause.forget = true;
        let done = state.execute(&plan, &cause);
        if prompt.is_none() {
            // Held by prompts of other workers: nobody else would come back to it.
            for step in plan
                .steps
                .iter()
                .filter(|step| step.action == Action::Defer)
            {
                state.free_later(&step.weights, request);
            }
        }
        state.mark_offloaded(request);
        state.settle(&done, trigger, &who, &used_before);
        let models = before
            .into_iter()
            .map(|(id, before)| Freed {
                after: state.places(&id),
                error: done
                    .errors
                    .iter()
                    .find(|(failed, _)| *failed == id)
                    .map(|(_, e)| e.clone()),
                weights: id,
                before,
            })
            .collect();
        if prompt.is_none() || done.changed() {
            state.report_freed(request, trigger, &who, &done);
        }
        drop(guard);
        if done.changed() {
            fresco_tensor::free_spare_memory();
            // Other programs can have it then.
            self.devices().iter().for_each(fresco_tensor::Device::trim);
        }
        FreeReport { models, plan }
    }

    /// What [`ModelRegistry::free`] would do.
    pub fn free_plan(&self, request: &FreeRequest) -> EvictionPlan {
        self.lock().free_plan(request)
    }

    pub fn note_free(&self, note: FreeNote<'_>) {
        let draft = match note {
            FreeNote::Noop => event("free.noop").trigger(Trigger::Free).origin(REQUEST),
            FreeNote::Deferred { prompt_id } => event("free.deferred")
                .trigger(Trigger::Free)
                .origin(REQUEST)
                .prompt(prompt_id)
                .decision("defer")
                .reason(Reason::FreeDeferred),
        };
        self.lock().emit(draft);
    }

    /// The remembered results of nodes were dropped.
    pub fn note_cache_reset(&self) {
        self.lock().emit(event("cache.reset").origin(REQUEST));
    }

    /// Gives back what is only held to be faster. No model moves, nothing is forgotten.
    pub fn soft_empty(&self) {
        let mut state = self.lock();
        let count = state.devices.len();
        for spot in 1..count {
            state.soft_empty_on(spot, Trigger::Free);
        }
        if count == 1 {
            fresco_tensor::free_spare_memory();
        }
    }

    /// Sets what the API says about a model. What should go after its prompt goes now if no prompt uses it.
    pub fn set_policy(&self, id: &str, policy: Policy) -> Result<ModelReport, Refusal> {
        let who = Who::default();
        let now = self.now();
        let mut guard = self.lock();
        let state = &mut *guard;
        let id = state.visible(id).ok_or(Refusal::Unknown)?;
        let claim = Claim::new(&who, None, policy, PolicySource::Api);
        state.claim(&id, claim, &who);
        let entry = state.entries.get_mut(&id).ok_or(Refusal::Unknown)?;
        let held = entry.is_held();
        if let (Policy::Ttl(time), false) = (policy, held) {
            entry.deadline = now.checked_add(time);
        }
        let report = state.report(&id);
        let counts = state
            .entries
            .get(&id)
            .is_some_and(|e| e.claims.policy() == Policy::EjectAfter);
        if policy == Policy::EjectAfter && counts && !held {
            let mut cause = self.cause(Trigger::Api, &who, now);
            cause.origin = PATCH;
            cause.merged = true;
            // Before the claim ends: it is what decides.
            let steps = state.releases(|entry| entry.id == id, &Reason::PolicySetByApi);
            if let Some(entry) = state.entries.get_mut(&id) {
                entry.claims.end("", true);
            }
            let used_before = state.used();
            let done = state.execute(&EvictionPlan { steps }, &cause);
            state.settle(&done, Trigger::Api, &who, &used_before);
        }
        let after = state.report(&id);
        after.or(report).ok_or(Refusal::Unknown)
    }

    /// Drops a model and what is claimed for it. Pinned ones only with `force`; what a prompt uses goes after it.
    pub fn remove(&self, id: &str, force: bool) -> Result<Removed, Refusal> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let id = state.visible(id).ok_or(Refusal::Unknown)?;
        let entry = state.entries.get_mut(&id).ok_or(Refusal::Unknown)?;
        if entry.claims.policy() == Policy::Pin && !force {
            return Err(Refusal::Pinned);
        }
        if entry.is_held() {
            let effective = entry.claims.effective();
            entry.removed = Some(DELETE);
            entry.claims.forget();
            let draft = event("cleanup.deferred")
                .trigger(Trigger::Api)
                .weights(&id, &entry.class)
                .effective(effective)
                .origin(DELETE)
                .decision("defer")
                .reason(Reason::Held);
            state.emit(draft);
            return Ok(Removed::Deferred);
        }
        self.release_now(state, &id, DELETE);
        Ok(Removed::Done)
    }

    /// As [`ModelRegistry::remove`], but not for what a prompt uses.
    pub fn release(&self, id: &str) -> Result<(), Refusal> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let id = state.visible(id).ok_or(Refusal::Unknown)?;
        let entry = &state.entries[&id];
        if entry.is_held() {
            return Err(Refusal::Leased);
        }
        if entry.claims.policy() == Policy::Pin {
            return Err(Refusal::Pinned);
        }
        self.release_now(state, &id, PATCH);
        Ok(())
    }

    fn release_now(&self, state: &mut State, id: &WeightsId, origin: Origin) {
        let who = &Who::default();
        let mut cause = self.cause(Trigger::Api, who, self.now());
        cause.origin = origin;
        cause.merged = true;
        cause.forget = true;
        let steps = state.releases(|entry| entry.id == *id, &Reason::ReleaseRequest);
        let used_before = state.used();
        let done = state.execute(&EvictionPlan { steps }, &cause);
        state.settle(&done, Trigger::Api, who, &used_before);
    }

    /// A node asks for everything to leave the devices. Models of its own prompt come back at their next use; what other
    /// prompts hold and what is pinned stays.
    pub fn unload_in_node(&self, who: &Who) {
        let origin = Origin::node(who, "unload");
        self.unload(who, Trigger::InNode, origin, &Reason::UnloadInNode);
    }

    /// A node ran out of memory and failed: the same, on all devices.
    pub fn unload_after_oom(&self, who: &Who) {
        let origin = Origin::pressure(who);
        self.unload(who, Trigger::OutOfMemory, origin, &Reason::NodeOutOfMemory);
    }

    fn unload(&self, who: &Who, trigger: Trigger, origin: Origin, reason: &Reason) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let used_before = state.used();
        let mut scene = state.scene(&[], true, None);
        let free = |id: &WeightsId| {
            !state.entries[id].is_held_by_other(&who.prompt) && !state.entries[id].busy
        };
        scene.items.retain(|item| free(&item.weights));
        let mut plan = plan::eject(&scene, None);
        let evictions = plan.steps.iter_mut();
        for step in evictions.filter(|step| step.action == Action::Evict) {
            step.reason = reason.clone();
        }
        let mut cause = self.cause(trigger, who, self.now());
        cause.origin = origin;
        cause.merged = true;
        cause.to_host = true;
        let done = state.execute(&plan, &cause);
        state.settle(&done, trigger, who, &used_before);
    }
}

impl State {
    fn free_plan(&self, request: &FreeRequest) -> EvictionPlan {
        let mut scene = self.scene(&[], true, None);
        scene.items.retain(|item| {
            self.entries
                .get(&item.weights)
                .is_some_and(ModelEntry::is_visible)
        });
        let chosen: Option<BTreeSet<WeightsId>> = request
            .models
            .as_ref()
            .map(|names| names.iter().filter_map(|name| self.find(name)).collect());
        plan::free(&scene, request, |id| {
            chosen.as_ref().is_none_or(|chosen| chosen.contains(id))
        })
    }

    /// As soon as nobody holds it any more.
    fn free_later(&mut self, id: &WeightsId, request: &FreeRequest) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        if request.free_memory && request.devices.is_none() {
            entry.removed = Some(REQUEST);
            entry.claims.forget();
        } else {
            let names = request.devices.clone();
            entry.unload_later = Some(names.map_or(Later::All, Later::Some));
        }
    }

    /// A listed model by weights id or handle id.
    pub(crate) fn visible(&self, id: &str) -> Option<WeightsId> {
        self.find(id).filter(|id| self.entries[id].is_visible())
    }

    /// Bytes by device, without those that have none.
    pub(crate) fn places(&self, id: &WeightsId) -> Vec<(String, u64)> {
        let Some(entry) = self.entries.get(id) else {
            return Vec::new();
        };
        let there = (0..self.devices.len()).map(|spot| (self.name(spot), entry.on(spot)));
        there.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Models that compute in main memory have nothing to unload; they are only said to be.
    fn mark_offloaded(&mut self, request: &FreeRequest) {
        let Self {
            entries, devices, ..
        } = self;
        let listed = request.names_device(&devices.get(0).name());
        for entry in entries.values_mut() {
            let policy = entry.claims.policy();
            let spared = entry.is_held()
                || (policy == Policy::Pin && !request.force)
                || (request.respect && policy > Policy::EjectAfter);
            let named = request.models.as_ref().is_none_or(|names| {
                let model = |name: &String| entry.handles.keys().any(|id| id.to_string() == *name);
                names
                    .iter()
                    .any(|name| name == entry.id.as_str() || model(name))
            });
            let on_cpu = entry.handles.values().all(|handle| handle.compute == 0);
            if !spared && named && on_cpu && listed {
                entry.marked_offloaded = true;
            }
        }
    }

    fn report_freed(&mut self, request: &FreeRequest, trigger: Trigger, who: &Who, done: &Done) {
        let draft = event("free.applied")
            .trigger(trigger)
            .who(who)
            .origin(REQUEST)
            .decision(if request.free_memory {
                "release"
            } else {
                "evict"
            })
            .error(
                done.errors
                    .first()
                    .map(|(id, error)| format!("{id}: {error}")),
            )
            .number("released", done.released)
            .number("evicted", done.evicted)
            .number("kept", done.kept)
            .number("deferred", done.deferred)
            .number("device_bytes", done.from_devices)
            .number("host_bytes", done.from_host);
        self.emit(draft);
    }
}
