//! The ends of things: prompts, times to live, idle time, the program.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::act::{Cause, Done, PRESSURE};
use crate::entry::ModelEntry;
use crate::events::event;
use crate::plan;
use crate::reason::{Reason, Wish};
use crate::registry::{ModelRegistry, State};
use crate::{
    Action, EvictionPlan, MemoryFlag, ModelId, Origin, PlanStep, Policy, Trigger, WeightsId, Who,
};

/// Host bytes after which the heap is given back to the system.
const TRIM: u64 = 256 << 20;

/// How long after a failed release it is tried again without anybody asking.
const RETRY: Duration = Duration::from_secs(10);

impl ModelRegistry {
    /// A prompt starts. What prompts hold that are not running was left behind by a crash: their cleanup is done now.
    pub fn prompt_started(&self, prompt: &str) {
        let lost: Vec<Arc<str>> = {
            let mut state = self.lock();
            let mut lost: Vec<Arc<str>> = Vec::new();
            let holds = state
                .entries
                .values()
                .flat_map(|entry| &entry.holds)
                .map(|hold| &hold.prompt);
            let leases = state.active.values().map(|active| &active.who.prompt);
            for name in holds.chain(leases) {
                if !name.is_empty()
                    && !state.flight.contains(name)
                    && &**name != prompt
                    && !lost.contains(name)
                {
                    lost.push(Arc::clone(name));
                }
            }
            state.flight.insert(prompt.into());
            lost
        };
        for name in lost {
            self.clean_up(&name, Trigger::Recovered);
        }
    }

    /// A prompt is over, however it ended. A second call does nothing.
    pub fn prompt_ended(&self, prompt: &str) -> EvictionPlan {
        self.clean_up(prompt, Trigger::PromptEnd)
    }

    fn clean_up(&self, prompt: &str, trigger: Trigger) -> EvictionPlan {
        let now = self.now();
        let who = Who {
            prompt: prompt.into(),
            ..Who::default()
        };
        let mut guard = self.lock();
        let state = &mut *guard;
        if !state.flight.remove(prompt) && !state.knows(prompt) {
            return EvictionPlan::default();
        }
        state.quiet_since = now;
        state.emit(event("cleanup.started").trigger(trigger).prompt(prompt));
        let used_before = state.used();
        state
            .active
            .retain(|_, active| &*active.who.prompt != prompt);
        // Planned before claims end: they are what the plan is made of.
        let plan = plan::prompt_end(
            &state.scene(&[], true, Some(prompt)),
            !self.settings().smart,
        );
        let own = state.end_claims(prompt, now);
        let mut cause = self.cause(trigger, &who, now);
        cause.merged = true;
        let mut done = state.execute(&plan, &cause);
        for step in plan
            .steps
            .iter()
            .filter(|step| step.action == Action::Defer)
        {
            state.defer(step, trigger, &who);
        }
        for step in own {
            state.release_own(&step, &cause, &mut done);
        }
        done.add(state.retry(&cause));
        done.add(state.expire(&cause, now));
        cause.to_host = true;
        done.add(state.unload_late(&cause));
        state.settle(&done, trigger, &who, &used_before);
        let ids: Vec<WeightsId> = state.entries.keys().cloned().collect();
        for id in ids {
            state.sweep(&id);
        }
        let (others, others_bytes) = state.untouched(&plan);
        let draft = event("cleanup.completed")
            .trigger(trigger)
            .prompt(prompt)
            .number("kept", done.kept)
            .number("kept_bytes", done.kept_bytes)
            .number("released", done.released)
            .number("released_bytes", done.released_bytes)
            .number("evicted", done.evicted)
            .number("deferred", done.deferred)
            .number("failed", done.errors.len() as u64)
            .number("others", others)
            .number("others_bytes", others_bytes)
            .number("device_bytes", done.from_devices)
            .number("host_bytes", done.from_host);
        state.emit(draft);
        drop(guard);
        self.host_pressure(&who);
        plan
    }

    pub(crate) fn cause<'a>(&self, trigger: Trigger, who: &'a Who, now: Instant) -> Cause<'a> {
        Cause {
            trigger,
            who,
            origin: Origin::Program,
            demoted_by: trigger.name(),
            merged: false,
            to_host: false,
            forget: false,
            streams: self.settings().streams,
            now,
        }
    }

    /// What is due: times to live, releases that failed, models that were not used for long, main memory that runs short.
    pub fn tick(&self) {
        let now = self.now();
        let who = Who::default();
        let mut guard = self.lock();
        let state = &mut *guard;
        let used_before = state.used();
        let mut cause = self.cause(Trigger::Idle, &who, now);
        cause.merged = true;
        let mut done = state.retry(&cause);
        done.add(state.expire(&cause, now));
        let idle = self.settings().unload_after;
        if idle.is_some_and(|idle| state.flight.is_empty() && now >= state.quiet_since + idle) {
            let scene = state.scene(&[], true, None);
            let mut plan = plan::eject(&scene, None);
            plan.steps.retain(|step| {
                step.policy <= Policy::EjectAfter && !state.entries[&step.weights].is_held()
            });
            for step in &mut plan.steps {
                step.reason = Reason::Idle;
                step.origin = Some(Origin::Flag {
                    flag: MemoryFlag::UnloadAfter,
                });
            }
            done.add(state.execute(&plan, &cause));
        }
        state.settle(&done, Trigger::Idle, &who, &used_before);
        drop(guard);
        self.host_pressure(&who);
    }

    /// When [`ModelRegistry::tick`] has something to do; none: nothing is waiting for time to pass.
    pub fn next_tick(&self) -> Option<Instant> {
        let state = self.lock();
        let mut due: Option<Instant> = None;
        let mut at = |time: Instant| due = Some(due.map_or(time, |due| due.min(time)));
        let mut resident = false;
        for entry in state.entries.values() {
            if let Some(failed) = &entry.failed {
                at(failed.tried + RETRY);
            }
            if let Some(deadline) = entry.deadline.filter(|_| !entry.is_held()) {
                at(deadline);
            }
            let free_to_go = entry.claims.policy() <= Policy::EjectAfter && !entry.is_held();
            resident |= free_to_go && (1..state.devices.len()).any(|spot| entry.on(spot) > 0);
        }
        if let Some(idle) = self.settings().unload_after
            && resident
            && state.flight.is_empty()
        {
            at(state.quiet_since + idle);
        }
        due
    }

    /// Main memory below what should stay available: what nobody needs goes.
    fn host_pressure(&self, who: &Who) {
        // Asking the kernel takes as long as a small prompt's other work here, and without models nothing could go.
        if !self.lock().entries.values().any(|e| e.in_memory() > 0) {
            return;
        }
        let Some(host) = self.host() else {
            return;
        };
        let floor = host.floor(self.settings().host_headroom);
        if host.available >= floor {
            return;
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        let used_before = state.used();
        let desperate = host.available < host.total / 50;
        let plan = plan::host(
            &state.scene(&[], false, None),
            floor - host.available,
            desperate,
        );
        let mut cause = self.cause(Trigger::Pressure, who, self.now());
        cause.origin = Origin::pressure(who);
        cause.demoted_by = PRESSURE;
        let done = state.execute(&plan, &cause);
        state.settle(&done, Trigger::Pressure, who, &used_before);
    }

    /// The program ends: prompts that run are cleaned up, then everything goes.
    pub fn shutdown(&self) {
        let running: Vec<Arc<str>> = self.lock().flight.iter().cloned().collect();
        for prompt in running {
            self.clean_up(&prompt, Trigger::Shutdown);
        }
        let who = Who::default();
        let mut guard = self.lock();
        let state = &mut *guard;
        let mut cause = self.cause(Trigger::Shutdown, &who, self.now());
        cause.merged = true;
        cause.forget = true;
        let plan = EvictionPlan {
            steps: state.releases(|entry| entry.in_memory() > 0, &Reason::ProgramEnds),
        };
        state.execute(&plan, &cause);
        fresco_tensor::free_spare_memory();
    }
}

impl State {
    /// After weights went: caches of the devices, the heap, and whether as much came free as should have.
    pub(crate) fn settle(&mut self, done: &Done, trigger: Trigger, who: &Who, used_before: &[u64]) {
        // Somebody who computes takes and gives memory too: then the counters say nothing.
        if self.active.is_empty() && done.from_devices > 0 {
            let used = self.used();
            let fell = |spot: &usize| used_before[*spot].saturating_sub(used[*spot]);
            let measured: u64 = done.devices.iter().map(fell).sum();
            if measured.abs_diff(done.from_devices) > done.from_devices / 20 {
                let draft = event("accounting.drift")
                    .trigger(trigger)
                    .who(who)
                    .reason(Reason::AccountingDrift)
                    .number("expected", done.from_devices)
                    .number("measured", measured);
                self.emit(draft);
            }
        }
        for spot in &done.devices {
            self.soft_empty_on(*spot, trigger);
        }
        if done.from_host > TRIM || done.released > 0 {
            fresco_tensor::free_spare_memory();
        }
    }

    /// What was asked to leave the devices while a prompt held it.
    fn unload_late(&mut self, cause: &Cause<'_>) -> Done {
        let mut scene = self.scene(&[], true, None);
        let due = |id: &WeightsId| {
            self.entries
                .get(id)
                .is_some_and(|entry| entry.unload_later.is_some() && !entry.is_held())
        };
        scene.items.retain(|item| due(&item.weights));
        let mut plan = plan::eject(&scene, None);
        plan.steps.retain_mut(|step| {
            step.reason = Reason::UnloadWasDeferred;
            step.origin = Some(crate::free::REQUEST);
            // A pin was looked at when it was asked.
            step.action = Action::Evict;
            let later = self.entries[&step.weights].unload_later.as_ref();
            let device = step.device.as_deref().unwrap_or_default();
            later.is_some_and(|later| later.names(device))
        });
        for item in &scene.items {
            if let Some(entry) = self.entries.get_mut(&item.weights) {
                entry.unload_later = None;
            }
        }
        self.execute(&plan, cause)
    }

    fn knows(&self, prompt: &str) -> bool {
        self.active
            .values()
            .any(|active| &*active.who.prompt == prompt)
            || self.entries.values().any(|entry| {
                entry.holds.iter().any(|hold| &*hold.prompt == prompt)
                    || entry.opening.iter().any(|name| &**name == prompt)
                    || entry.claims.ending(prompt, false).next().is_some()
            })
    }

    /// Bytes in use by device.
    pub(crate) fn used(&self) -> Vec<u64> {
        self.devices
            .iter()
            .map(fresco_tensor::Device::used)
            .collect()
    }

    /// Models in memory that a plan says nothing about, and their bytes.
    fn untouched(&self, plan: &EvictionPlan) -> (u64, u64) {
        let told = |id: &WeightsId| plan.steps.iter().any(|step| step.weights == *id);
        let others = self.entries.values().filter(|entry| !told(&entry.id));
        let bytes = others.map(ModelEntry::in_memory).filter(|bytes| *bytes > 0);
        bytes.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes))
    }

    /// The prompt's holds and claims end. Gives what handles have of their own that goes although the weights stay.
    fn end_claims(&mut self, prompt: &str, now: Instant) -> Vec<PlanStep> {
        let mut own = Vec::new();
        for (id, entry) in &mut self.entries {
            let touched = entry.holds.iter().any(|hold| &*hold.prompt == prompt);
            entry.holds.retain(|hold| &*hold.prompt != prompt);
            entry.opening.retain(|name| &**name != prompt);
            for handle in entry.handles.values_mut() {
                handle.eject.take_if(|(_, name)| &**name == prompt);
            }
            let ended = entry.claims.end(prompt, touched);
            let held: Vec<ModelId> = entry.holds.iter().map(|hold| hold.model).collect();
            for model in entry.handles.keys() {
                let line = entry.lineage(*model);
                let mine = ended.iter().find(|(claimed, _)| line.contains(claimed));
                if let Some((_, was)) = mine.filter(|_| !held.contains(model)) {
                    own.push(PlanStep {
                        weights: id.clone(),
                        model: Some(*model),
                        device: None,
                        action: Action::Release,
                        policy: was.policy,
                        set_by: was.set_by.clone(),
                        origin: Some(was.set_by.origin()),
                        bytes: 0,
                        reason: Reason::PromptOver(was.clone()),
                    });
                }
            }
            if let Policy::Ttl(time) = entry.claims.policy()
                && !entry.is_held()
                && (touched || entry.deadline.is_none())
            {
                entry.deadline = now.checked_add(time);
            }
        }
        own
    }

    /// Somebody else still uses what should go.
    fn defer(&mut self, step: &PlanStep, trigger: Trigger, who: &Who) {
        let Some(entry) = self.entries.get_mut(&step.weights) else {
            return;
        };
        if entry.removed.is_none() {
            entry.ejected = Some(Wish {
                policy: step.policy,
                set_by: step.set_by.clone(),
            });
        }
        let draft = event("cleanup.deferred")
            .trigger(trigger)
            .who(who)
            .weights(&step.weights, &entry.class)
            .policy(step.policy, step.set_by.clone())
            .origin(step.origin.clone().unwrap_or(Origin::Program))
            .decision("defer")
            .reason(step.reason.clone())
            .number("bytes", step.bytes);
        self.emit(draft);
    }

    pub(crate) fn releases(
        &self,
        which: impl Fn(&ModelEntry) -> bool,
        reason: &Reason,
    ) -> Vec<PlanStep> {
        let chosen = self.entries.values().filter(|entry| which(entry));
        chosen
            .map(|entry| {
                let effective = entry.claims.effective();
                PlanStep {
                    weights: entry.id.clone(),
                    model: None,
                    device: None,
                    action: Action::Release,
                    policy: effective.policy,
                    set_by: effective.set_by,
                    origin: None,
                    bytes: entry.in_memory(),
                    reason: reason.clone(),
                }
            })
            .collect()
    }

    /// Releases that failed are tried again.
    fn retry(&mut self, cause: &Cause<'_>) -> Done {
        let again = |entry: &ModelEntry| {
            let failed = entry.failed.as_ref();
            failed.is_some_and(|failed| failed.tried < cause.now) && !entry.is_held()
        };
        let mut steps = self.releases(again, &Reason::Retry(None));
        for step in &mut steps {
            let failed = self.entries[&step.weights].failed.as_ref();
            // Decided by whoever decided it the first time.
            if let Some(first) = failed.and_then(|failed| failed.step.as_ref()) {
                step.policy = first.policy;
                step.set_by = first.set_by.clone();
                step.origin = first.origin.clone();
                step.reason = match &first.reason {
                    again @ Reason::Retry(_) => again.clone(),
                    first => Reason::Retry(Some(Box::new(first.clone()))),
                };
            }
        }
        self.execute(&EvictionPlan { steps }, cause)
    }

    /// Times to live that are over.
    fn expire(&mut self, cause: &Cause<'_>, now: Instant) -> Done {
        let over = |entry: &ModelEntry| {
            entry.deadline.is_some_and(|deadline| deadline <= now) && !entry.is_held()
        };
        let lapsed: Vec<WeightsId> = self
            .entries
            .values()
            .filter(|e| over(e))
            .map(|e| e.id.clone())
            .collect();
        let mut steps = Vec::new();
        for id in lapsed {
            let Some(entry) = self.entries.get_mut(&id) else {
                continue;
            };
            entry.deadline = None;
            let effective = entry.claims.effective();
            let alive = matches!(effective.policy, Policy::Ttl(_));
            if alive {
                let reason = Reason::TimeToLiveOver(effective);
                for mut step in self.releases(|entry| entry.id == id, &reason) {
                    step.origin = Some(step.set_by.origin());
                    steps.push(step);
                }
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.claims.expire();
                }
            }
        }
        self.execute(&EvictionPlan { steps }, cause)
    }
}
