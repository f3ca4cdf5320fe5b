//! Leases: models that are being used. Reads what is not in memory; the placing is in [`crate::place`].

use std::sync::Arc;

use crate::act::{Cause, PRESSURE};
use crate::entry::{FailedRelease, Hold, ModelEntry, Owner};
use crate::error::WeightsRemoved;
use crate::events::event;
use crate::lease::{Handle, Lease};
use crate::place::{Load, Models};
use crate::plan;
use crate::reason::Reason;
use crate::registry::{Active, ModelRegistry, State};
use crate::{
    Action, HostMemory, MemoryError, ModelId, Need, Origin, Policy, Trigger, Weights, WeightsId,
    Who,
};

impl ModelRegistry {
    /// Brings models to where they compute, in this order, and keeps them there while the lease lasts.
    pub fn lease(&self, who: &Who, handles: &[&Handle], need: Need) -> Result<Lease, MemoryError> {
        let (lease, models, new_holds) = self.begin_lease(who, handles)?;
        let result = self.load_all(who, &models, need);
        if let Err(failure) = result {
            self.detach(who, &failure, lease.number, &new_holds);
            return Err(failure.error);
        }
        Ok(lease)
    }

    fn begin_lease(
        &self,
        who: &Who,
        handles: &[&Handle],
    ) -> Result<(Lease, Models, Models), MemoryError> {
        let mut models = Models::new();
        let mut kept: Vec<Handle> = Vec::new();
        let mut guard = self.lock();
        let state = &mut *guard;
        for handle in handles {
            let known = state.entries.get(handle.id());
            if !known.is_some_and(|entry| entry.handles.contains_key(&handle.model())) {
                let weights = handle.id().clone();
                drop(guard);
                let source = Box::new(WeightsRemoved);
                return Err(MemoryError::Load { weights, source });
            }
            let model = (handle.id().clone(), handle.model());
            if !models.contains(&model) {
                models.push(model);
                kept.push((*handle).clone());
            }
        }
        let mut new_holds = Models::new();
        for (id, model) in &models {
            state.touch(id, *model);
            let entry = state.entries.get_mut(id).expect("it was found above");
            entry.deadline = None;
            let hold = Hold {
                prompt: Arc::clone(&who.prompt),
                model: *model,
            };
            if who.prompt.is_empty() {
                // Nobody's prompt: held as long as the lease.
                entry.holds.push(hold);
                continue;
            }
            if !entry.holds.contains(&hold) {
                entry.holds.push(hold);
                new_holds.push((id.clone(), *model));
            }
            let line = entry.lineage(*model);
            let flight = &state.flight;
            let woke = entry
                .claims
                .wake(&line, &who.prompt, |prompt| flight.contains(prompt));
            if !woke.is_empty() {
                let effective = entry.claims.effective();
                let draft = event("policy.set")
                    .who(who)
                    .weights(id, &entry.class)
                    .model(Some(*model))
                    .decision("renewed")
                    .reason(Reason::UsedAgain(effective.clone()))
                    .origin(effective.set_by.origin())
                    .effective(effective);
                state.emit(draft);
            }
            // A remembered loader does not run again, but its node means this file now; unless it is somebody else who
            // uses what it left.
            for claim in woke.iter().filter(|claim| claim.client == who.client) {
                state.end_elsewhere(id, claim);
            }
        }
        let number = state.next();
        let active = Active {
            who: who.clone(),
            models: models.clone(),
            step: None,
        };
        state.active.insert(number, active);
        drop(guard);
        let lease = Lease {
            registry: self.clone(),
            number,
            handles: kept,
        };
        Ok((lease, models, new_holds))
    }

    pub(crate) fn end_lease(&self, number: u64) {
        let now = self.now();
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(active) = state.active.remove(&number) else {
            return;
        };
        state.quiet_since = now;
        for (id, model) in &active.models {
            let again = state
                .active
                .values()
                .any(|other| other.models.iter().any(|(i, _)| i == id));
            state.touch(id, *model);
            let Some(entry) = state.entries.get_mut(id) else {
                continue;
            };
            if active.who.prompt.is_empty() {
                let mine = |hold: &Hold| hold.prompt.is_empty() && hold.model == *model;
                if let Some(at) = entry.holds.iter().position(mine) {
                    entry.holds.remove(at);
                }
                if let Policy::Ttl(time) = entry.claims.policy() {
                    entry.deadline = now.checked_add(time);
                }
            }
            if !again {
                entry.weights_of(*model).drop_ahead();
            }
        }
        drop(guard);
        // The next network needs storage of other sizes.
        fresco_tensor::trim_spare_memory();
    }

    fn load_all(&self, who: &Who, models: &Models, need: Need) -> Result<(), LoadFailure> {
        let mut reads: Vec<FileRead> = Vec::new();
        for (id, model) in models {
            match self.read(who, models, id, *model) {
                Ok(read) => reads.push(read),
                Err(error) => return Err(LoadFailure::new((id.clone(), *model), error)),
            }
        }
        let bytes: Vec<u64> = reads.iter().map(|read| read.bytes).collect();
        let mut guard = self.lock();
        // What is being copied is not placed anew: that would wait for the copy, and everybody else for this lock.
        while let Some((id, model)) = guard.first_busy(models) {
            let waited = guard.wait(&id);
            waited.map_err(|error| LoadFailure::new((id, model), error.into()))?;
        }
        let mut load = Load::new(self, who, models, need);
        let placed = guard.place_all(&mut load, &bytes);
        drop(guard);
        placed.map_err(|(model, error)| LoadFailure::new(model, error))?;
        for ((id, model), read) in models.iter().zip(reads) {
            let room = self.room_for_rest(who, models, (id, *model), &read);
            if let Err(error) = room.and_then(|()| self.finish_moves(id)) {
                let model = (id.clone(), *model);
                let half_read = read.owners;
                return Err(LoadFailure {
                    model,
                    error,
                    half_read,
                });
            }
        }
        Ok(())
    }

    /// Whether the main memory can take what was left in its files and found no place on a device.
    fn room_for_rest(
        &self,
        who: &Who,
        models: &Models,
        (id, model): (&WeightsId, ModelId),
        read: &FileRead,
    ) -> Result<(), MemoryError> {
        let mut guard = self.lock();
        let in_memory = |entry: &ModelEntry| -> u64 {
            let units = entry.units_of(model);
            let here = units.iter().enumerate();
            let here = here.filter(|(number, _)| entry.home(model, *number) == Some(0));
            here.map(|(_, unit)| unit.bytes).sum()
        };
        let rest = guard.entries.get(id).map_or(0, in_memory);
        match rest.min(read.late) {
            0 => Ok(()),
            wanted => self.host_room(&mut guard, who, models, wanted),
        }
    }

    /// Copies units that were placed. Gigabytes take their time: the entry is busy meanwhile, everybody else goes on.
    fn finish_moves(&self, id: &WeightsId) -> Result<(), MemoryError> {
        let mut guard = self.lock();
        while guard.entries.get(id).is_some_and(|entry| entry.busy) {
            guard.wait(id)?;
        }
        let Some(entry) = guard.entries.get_mut(id) else {
            return Ok(());
        };
        let mut weights = Vec::new();
        for (_, part) in entry.parts_by_owner() {
            weights.push(Arc::clone(&part.weights));
        }
        entry.busy = true;
        drop(guard);
        let _busy = Busy { registry: self, id };
        for weights in weights {
            weights.finish_moves()?;
        }
        Ok(())
    }

    /// Reads what is not in memory. Others that need the same weights wait.
    fn read(
        &self,
        who: &Who,
        models: &Models,
        id: &WeightsId,
        model: ModelId,
    ) -> Result<FileRead, MemoryError> {
        let gone = || MemoryError::Load {
            weights: id.clone(),
            source: Box::new(WeightsRemoved),
        };
        let mut guard = self.lock();
        while guard.entries.get(id).ok_or_else(gone)?.busy {
            guard.wait(id)?;
        }
        let state = &mut *guard;
        state.give_up_lost(who, id);
        let entry = state.entries.get_mut(id).ok_or_else(gone)?;
        let mut owners = vec![Owner::Shared];
        if let Some(refs) = entry
            .handles
            .get(&model)
            .and_then(|handle| handle.refs.clone())
        {
            for (owner, _) in refs.iter() {
                if !owners.contains(owner) {
                    owners.push(*owner);
                }
            }
        }
        let spot = entry.handles.get(&model).map_or(0, |handle| handle.compute);
        let mut wanted = 0;
        let mut loads: Vec<(Owner, Arc<dyn Weights>)> = Vec::new();
        for owner in owners {
            if let Some(part) = entry.part(owner).filter(|part| part.missing() > 0) {
                wanted += part.missing();
                loads.push((owner, Arc::clone(&part.weights)));
            }
        }
        if loads.is_empty() {
            return Ok(FileRead::default());
        }
        let owners: Vec<Owner> = loads.iter().map(|(owner, _)| *owner).collect();
        let compute = state.devices.get(spot).clone();
        let late: u64 = loads.iter().map(|(_, w)| w.late_bytes(&compute)).sum();
        let entry = state.entries.get_mut(id).ok_or_else(gone)?;
        let again = entry.was_loaded
            && loads
                .first()
                .is_some_and(|(owner, _)| *owner == Owner::Shared);
        let effective = entry.claims.effective();
        let requested = event("model.load_requested")
            .trigger(Trigger::Load)
            .who(who)
            .weights(id, &entry.class)
            .model(Some(model))
            .effective(effective)
            .origin(Origin::node(who, "use"))
            .number("wanted", wanted);
        state.emit(requested);
        self.host_room(state, who, models, wanted.saturating_sub(late))?;
        if let Some(entry) = state.entries.get_mut(id) {
            entry.busy = true;
        }
        drop(guard);
        let busy = Busy { registry: self, id };
        let mut read = 0;
        let mut failure = None;
        for (owner, weights) in loads {
            match weights.load(&compute) {
                Ok(bytes) => read += bytes,
                Err(source) => {
                    failure = Some((owner, source));
                    break;
                }
            }
        }
        drop(busy);
        let mut guard = self.lock();
        let state = &mut *guard;
        let State {
            entries, devices, ..
        } = state;
        let entry = entries.get_mut(id).ok_or_else(gone)?;
        entry.read_bytes += read;
        if let Some((owner, source)) = failure {
            // Half of a network is worth nothing, and the next load must find a clean start.
            let left = entry
                .part_mut(owner)
                .and_then(|part| part.release(devices).err());
            entry.gone |= entry.in_memory() == 0 && entry.was_loaded;
            entry.failed = left.map(|_| FailedRelease {
                tried: self.now(),
                step: None,
            });
            return Err(MemoryError::Load {
                weights: id.clone(),
                source,
            });
        }
        entry.was_loaded = true;
        entry.gone = false;
        if again {
            let draft = event("model.rehydrated")
                .trigger(Trigger::Load)
                .who(who)
                .weights(id, &entry.class)
                .model(Some(model))
                .effective(entry.claims.effective())
                .origin(Origin::node(who, "use"))
                .number("read", read)
                .reason(Reason::ReadAgain);
            state.emit(draft);
        }
        Ok(FileRead {
            bytes: read,
            owners,
            late,
        })
    }

    /// Whether the main memory can take so much more, after what nobody needs has gone.
    fn host_room(
        &self,
        state: &mut State,
        who: &Who,
        models: &Models,
        wanted: u64,
    ) -> Result<(), MemoryError> {
        let Some(host) = self.host() else {
            return Ok(());
        };
        let short = |floor: u64, host: HostMemory| {
            wanted.saturating_add(floor).saturating_sub(host.available)
        };
        let missing = short(host.floor(self.settings().host_headroom), host);
        if missing == 0 {
            return Ok(());
        }
        let load = Load::new(self, who, models, Need::default());
        let plan = plan::host(&state.scene(models, false, None), missing, false);
        state.execute(&plan, &load.cause(Trigger::Pressure, PRESSURE));
        fresco_tensor::free_spare_memory();
        let host = self.host().unwrap_or(host);
        if short(host.floor(None), host) == 0 {
            return Ok(());
        }
        Err(MemoryError::Host {
            wanted,
            available: host.available.saturating_sub(host.floor(None)),
        })
    }

    /// A load went wrong: the model is on no device, and this prompt does not hold it.
    fn detach(&self, who: &Who, failure: &LoadFailure, lease: u64, new_holds: &Models) {
        let mut guard = self.lock();
        let state = &mut *guard;
        for (id, model) in new_holds {
            if let Some(entry) = state.entries.get_mut(id) {
                entry
                    .holds
                    .retain(|hold| hold.model != *model || hold.prompt != who.prompt);
            }
        }
        let (id, _) = &failure.model;
        let elsewhere = state
            .active
            .iter()
            .any(|(number, other)| *number != lease && other.models.iter().any(|(i, _)| i == id));
        if elsewhere {
            return;
        }
        if !failure.half_read.is_empty() {
            let reason = Reason::LoadFailed(Some(failure.error.to_string()));
            state.drop_weights(who, id, &failure.half_read, reason);
            return;
        }
        let mut scene = state.scene(&[], true, None);
        scene.items.retain(|item| item.weights == *id);
        let mut plan = plan::eject(&scene, None);
        for step in &mut plan.steps {
            // Also what is pinned: it did not get there.
            step.action = Action::Evict;
            step.reason = Reason::LoadFailed(None);
        }
        let cause = Cause {
            trigger: Trigger::Load,
            who,
            origin: Origin::Program,
            demoted_by: "failed_load",
            merged: true,
            to_host: true,
            forget: false,
            streams: self.settings().streams,
            now: self.now(),
        };
        state.execute(&plan, &cause);
    }
}

impl State {
    /// The first of these models whose weights a thread is reading or copying.
    fn first_busy(&self, models: &Models) -> Option<(WeightsId, ModelId)> {
        let busy = |id| self.entries.get(id).is_some_and(|entry| entry.busy);
        models.iter().find(|(id, _)| busy(id)).cloned()
    }

    /// Weights on a device that has failed cannot be read there any more: they go, with all that was made of them, and their
    /// files are read again.
    fn give_up_lost(&mut self, who: &Who, id: &WeightsId) {
        let Self {
            entries, devices, ..
        } = self;
        let Some(entry) = entries.get_mut(id) else {
            return;
        };
        let failed: Vec<(usize, String)> = devices
            .iter()
            .enumerate()
            .filter_map(|(spot, device)| Some((spot, device.failure()?)))
            .collect();
        let lost = failed.into_iter().find(|(spot, _)| entry.on(*spot) > 0);
        let Some((spot, failure)) = lost else {
            return;
        };
        let reason = Reason::DeviceFailed {
            device: devices.get(spot).name(),
            failure,
        };
        self.drop_weights(who, id, &[Owner::Shared], reason);
    }

    /// Drops weights from memory: those that handles share with all that was made of them, or what is a handle's own. Their files
    /// are read again for the next use.
    fn drop_weights(&mut self, who: &Who, id: &WeightsId, owners: &[Owner], reason: Reason) {
        let Self {
            entries, devices, ..
        } = self;
        let Some(entry) = entries.get_mut(id) else {
            return;
        };
        let before = entry.in_memory();
        let all = owners.contains(&Owner::Shared);
        for (model, handle) in &mut entry.handles {
            if !all && !owners.contains(&Owner::Model(*model)) {
                continue;
            }
            if let Some(part) = &mut handle.own {
                let _ = part.release(devices);
            }
            handle.buffer = 0;
            handle.planned.clear();
        }
        if all {
            let _ = entry.base.release(devices);
        }
        entry.gone = entry.in_memory() == 0;
        let draft = event("model.released")
            .trigger(Trigger::Load)
            .who(who)
            .weights(id, &entry.class)
            .bytes(before, entry.in_memory())
            .effective(entry.claims.effective())
            .origin(Origin::Program)
            .decision("release")
            .reason(reason);
        self.emit(draft);
    }
}

/// What one use of a model read from its files.
#[derive(Default)]
struct FileRead {
    bytes: u64,
    owners: Vec<Owner>,
    /// Bytes that are still in their files.
    late: u64,
}

/// Why a lease could not be had.
struct LoadFailure {
    model: (WeightsId, ModelId),
    error: MemoryError,
    /// Whose weights were being read when it went wrong: half of them may be there.
    half_read: Vec<Owner>,
}

impl LoadFailure {
    fn new(model: (WeightsId, ModelId), error: MemoryError) -> Self {
        Self {
            model,
            error,
            half_read: Vec::new(),
        }
    }
}

/// Ends being busy, also by a panic.
struct Busy<'a> {
    registry: &'a ModelRegistry,
    id: &'a WeightsId,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut guard = self.registry.lock();
        let State {
            entries, devices, ..
        } = &mut *guard;
        if let Some(entry) = entries.get_mut(self.id) {
            entry.busy = false;
            for (_, part) in entry.parts_by_owner() {
                part.refresh(devices);
            }
            // Also where reading went wrong half-way.
            entry.gone &= entry.in_memory() == 0;
        }
        drop(guard);
        self.registry.wake();
    }
}
