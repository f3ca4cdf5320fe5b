//! Carries plans out: what leaves a device, what is dropped, and what is said about it.
//!
//! Every model for itself: an error with one is written down and does not stop the others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use fresco_tensor::TensorError;

use crate::entry::{DeviceIndex, Devices, FailedRelease, Owner, WeightPart};
use crate::events::event;
use crate::registry::State;
use crate::{
    Action, EvictionPlan, Origin, PlanStep, Policy, Reason, Trigger, WeightsId, Who, shrink,
};

pub(crate) const PRESSURE: &str = "pressure";
pub(crate) const OUT_OF_MEMORY: &str = "oom";

/// On whose behalf, and how.
pub(crate) struct Cause<'a> {
    pub(crate) trigger: Trigger,
    pub(crate) who: &'a Who,
    /// Who made the steps that name nobody themselves.
    pub(crate) origin: Origin,
    /// What the models it moves are said to have been moved by.
    pub(crate) demoted_by: &'static str,
    /// Steps are about weights and all that handles have of their own.
    pub(crate) merged: bool,
    /// To main memory, whatever the handle says.
    pub(crate) to_host: bool,
    /// Released means forgotten: claims go too.
    pub(crate) forget: bool,
    pub(crate) streams: usize,
    pub(crate) now: Instant,
}

impl Cause<'_> {
    fn of(&self, step: &PlanStep) -> Origin {
        step.origin.as_ref().unwrap_or(&self.origin).clone()
    }
}

/// What came of a plan.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Bytes that left accelerators, and which.
    pub(crate) from_devices: u64,
    pub(crate) devices: BTreeSet<DeviceIndex>,
    pub(crate) from_host: u64,
    pub(crate) released: u64,
    pub(crate) evicted: u64,
    pub(crate) kept: u64,
    /// Bytes of what stayed, wherever it is.
    pub(crate) kept_bytes: u64,
    pub(crate) released_bytes: u64,
    pub(crate) deferred: u64,
    pub(crate) errors: Vec<(WeightsId, String)>,
}

impl Done {
    pub(crate) fn changed(&self) -> bool {
        self.from_devices > 0 || self.from_host > 0 || self.released > 0
    }

    /// Bytes that came free on one of the devices or in main memory.
    pub(crate) fn add(&mut self, other: Self) {
        self.from_devices += other.from_devices;
        self.devices.extend(other.devices);
        self.from_host += other.from_host;
        self.released += other.released;
        self.evicted += other.evicted;
        self.kept += other.kept;
        self.kept_bytes += other.kept_bytes;
        self.released_bytes += other.released_bytes;
        self.deferred += other.deferred;
        self.errors.extend(other.errors);
    }
}

/// Units leave a device; where the offload device is full they go to main memory.
fn move_units(
    part: &mut WeightPart,
    units: &[usize],
    to: DeviceIndex,
    devices: &Devices,
) -> Result<(), TensorError> {
    for &unit in units {
        match part.move_to(unit, to, devices) {
            Err(TensorError::DeviceFull { .. }) if to != 0 => part.move_to(unit, 0, devices)?,
            other => other?,
        }
    }
    Ok(())
}

impl State {
    pub(crate) fn execute(&mut self, plan: &EvictionPlan, cause: &Cause<'_>) -> Done {
        let mut done = Done::default();
        for step in &plan.steps {
            self.report_step(step, cause);
            match step.action {
                Action::Keep | Action::Load { .. } => {
                    // What no prompt has used yet is only a name.
                    done.kept += u64::from(step.bytes > 0);
                    done.kept_bytes += step.bytes;
                }
                Action::Defer => done.deferred += 1,
                Action::Release => self.release(step, cause, &mut done),
                Action::Evict => self.evict(step, None, cause, &mut done),
                Action::Demote { bytes } => self.evict(step, Some(bytes), cause, &mut done),
            }
        }
        done
    }

    fn report_step(&mut self, step: &PlanStep, cause: &Cause<'_>) {
        let Some(entry) = self.entries.get(&step.weights) else {
            return;
        };
        let mut draft = event("plan.computed")
            .trigger(cause.trigger)
            .who(cause.who)
            .weights(&step.weights, &entry.class)
            .model(step.model)
            .policy(step.policy, step.set_by.clone())
            .origin(cause.of(step))
            .decision(step.action.name())
            .reason(step.reason.clone())
            .number("bytes", step.bytes);
        if step.action == Action::Keep {
            draft = draft.places(self.places(&step.weights));
        }
        if let Action::Demote { bytes } = step.action {
            draft = draft.number("demote", bytes);
        }
        if let Some(device) = &step.device {
            draft = draft.device(device);
        }
        self.emit(draft);
    }

    /// All of it or `bytes` of it leaves a device.
    fn evict(&mut self, step: &PlanStep, bytes: Option<u64>, cause: &Cause<'_>, done: &mut Done) {
        let Some(spot) = step
            .device
            .as_deref()
            .and_then(|name| self.devices.find(name))
        else {
            return;
        };
        let Self {
            entries, devices, ..
        } = self;
        let Some(entry) = entries.get_mut(&step.weights) else {
            return;
        };
        let to = if cause.to_host {
            0
        } else {
            entry.offload(spot)
        };
        let before = entry.on(spot);
        let mut error = None;
        let mut buffer = None;
        if let Some(bytes) = bytes {
            // Partly: the cheapest to stream leave first.
            let owner = step.model.map_or(Owner::Shared, Owner::Model);
            let old = step.model.or(entry.last_model);
            let old = old
                .and_then(|model| entry.handles.get(&model))
                .map_or(0, |h| h.buffer);
            if let Some(part) = entry.part_mut(owner) {
                let less = shrink(&part.units, &part.on_spot(spot), bytes, old, cause.streams);
                error = move_units(part, &less.units, to, devices).err();
                buffer = Some(less.buffer);
            }
        } else {
            for (owner, part) in entry.parts_by_owner() {
                let chosen =
                    cause.merged || owner == step.model.map_or(Owner::Shared, Owner::Model);
                if chosen {
                    let units = part.on_spot(spot);
                    error = error.or(move_units(part, &units, to, devices).err());
                }
            }
        }
        let after = entry.on(spot);
        if let Some(handle) = entry
            .last_model
            .and_then(|model| entry.handles.get_mut(&model))
        {
            match buffer {
                Some(buffer) => handle.buffer = buffer,
                None if after == 0 => handle.buffer = 0,
                None => {}
            }
        }
        if after < before {
            entry.demoted_by = Some(cause.demoted_by);
            done.devices.insert(spot);
        }
        done.from_devices += before - after;
        done.evicted += 1;
        let error = error.map(|error| error.to_string());
        if let Some(error) = &error {
            done.errors.push((step.weights.clone(), error.clone()));
        }
        let said = event(if after == 0 {
            "model.evicted"
        } else {
            "model.shrunk"
        })
        .trigger(cause.trigger)
        .who(cause.who)
        .weights(&step.weights, &entry.class)
        .model(step.model)
        .device(devices.get(spot))
        .bytes(before, after)
        .policy(step.policy, step.set_by.clone())
        .origin(cause.of(step))
        .decision(step.action.name())
        .reason(step.reason.clone())
        .error(error);
        let overridden = matches!(cause.demoted_by, PRESSURE | OUT_OF_MEMORY)
            && step.policy >= Policy::Keep
            && after < before;
        let overridden = overridden.then(|| {
            event("retention.overridden")
                .trigger(cause.trigger)
                .who(cause.who)
                .weights(&step.weights, &entry.class)
                .device(devices.get(spot))
                .bytes(before, after)
                .policy(step.policy, step.set_by.clone())
                .origin(cause.of(step))
                .decision("demote")
                .reason(step.reason.clone())
        });
        self.emit(said);
        if let Some(overridden) = overridden {
            self.emit(overridden);
        }
    }

    /// All of it leaves all devices and the main memory.
    fn release(&mut self, step: &PlanStep, cause: &Cause<'_>, done: &mut Done) {
        if step.model.is_some() && !cause.merged {
            self.release_own(step, cause, done);
            return;
        }
        let Self {
            entries, devices, ..
        } = self;
        let Some(entry) = entries.get_mut(&step.weights) else {
            return;
        };
        let before = entry.in_memory();
        let host = entry.on(0);
        let really_there = entry.in_main_memory();
        let spots: Vec<DeviceIndex> = (1..devices.len())
            .filter(|spot| entry.on(*spot) > 0)
            .collect();
        let mut error = None;
        // Patched units first: they refer to shared ones.
        for handle in entry.handles.values_mut() {
            if let Some(part) = &mut handle.own {
                error = error.or(part.release(devices).err());
            }
            handle.buffer = 0;
            handle.planned.clear();
        }
        error = error.or(entry.base.release(devices).err());
        let after = entry.in_memory();
        let leak = error.is_some() && after > 0;
        if error.is_some() {
            entry.failed = Some(FailedRelease {
                tried: cause.now,
                step: Some(PlanStep {
                    origin: Some(cause.of(step)),
                    ..step.clone()
                }),
            });
        } else {
            entry.failed = None;
            entry.ejected = None;
            entry.removed = None;
            entry.unload_later = None;
            entry.gone = true;
            entry.deadline = None;
            entry.demoted_by = None;
            entry.marked_offloaded = false;
        }
        if cause.forget {
            entry.claims.forget();
        }
        done.from_host += really_there.saturating_sub(entry.in_main_memory());
        done.from_devices += (before - host).saturating_sub(after - entry.on(0));
        done.devices.extend(spots);
        let class = Arc::clone(&entry.class);
        match &error {
            None => {
                done.released += 1;
                done.released_bytes += before;
            }
            Some(error) => done.errors.push((step.weights.clone(), error.clone())),
        }
        let said = event("model.released")
            .trigger(cause.trigger)
            .who(cause.who)
            .weights(&step.weights, &class)
            .bytes(before, after)
            .policy(step.policy, step.set_by.clone())
            .origin(cause.of(step))
            .decision("release")
            .reason(step.reason.clone())
            .number("host", host)
            .error(error.clone());
        self.emit(said);
        if leak {
            let said = event("model.leak_suspected")
                .trigger(cause.trigger)
                .who(cause.who)
                .weights(&step.weights, &class)
                .bytes(before, after)
                .policy(step.policy, step.set_by.clone())
                .origin(cause.of(step))
                .reason(Reason::LeakSuspected)
                .error(error);
            self.emit(said);
        }
        self.sweep(&step.weights);
    }

    /// What patches made for one handle is dropped; the next use makes it again.
    pub(crate) fn release_own(&mut self, step: &PlanStep, cause: &Cause<'_>, done: &mut Done) {
        let Self {
            entries, devices, ..
        } = self;
        let (id, Some(model)) = (&step.weights, step.model) else {
            return;
        };
        let Some(entry) = entries.get_mut(id) else {
            return;
        };
        let Some(part) = entry.part_mut(Owner::Model(model)) else {
            return;
        };
        let (before, host) = (part.in_memory(), part.on(0));
        let really_there = part.in_main_memory();
        if before == 0 {
            return;
        }
        let spots: Vec<DeviceIndex> = (1..devices.len())
            .filter(|spot| part.on(*spot) > 0)
            .collect();
        let error = part.release(devices).err();
        let after = part.in_memory();
        done.from_host += really_there.saturating_sub(part.in_main_memory());
        done.from_devices += (before - host).saturating_sub(after - part.on(0));
        done.devices.extend(spots);
        if let Some(error) = &error {
            done.errors.push((id.clone(), error.clone()));
        }
        let said = event("model.released")
            .trigger(cause.trigger)
            .who(cause.who)
            .weights(id, &entry.class)
            .model(Some(model))
            .bytes(before, after)
            .policy(step.policy, step.set_by.clone())
            .origin(cause.of(step))
            .decision("release")
            .reason(step.reason.clone())
            .error(error);
        self.emit(said);
    }
}
