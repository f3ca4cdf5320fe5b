//! Brings models to where they compute: makes room, reads what is missing, places every unit.

use std::sync::Arc;

use fresco_tensor::TensorError;

use crate::act::{Cause, OUT_OF_MEMORY, PRESSURE};
use crate::entry::{Owner, Spot};
use crate::error::Gone;
use crate::events::event;
use crate::lease::{Handle, Lease};
use crate::oom::LAST_STEP;
use crate::plan::{self, ORDINARY, Room};
use crate::registry::{Active, Registry, State};
use crate::{
    Budget, Demand, EjectOthers, MemoryError, ModelId, Need, Placement, Trigger, Unit, VramState,
    Weights, WeightsId, Who, budget, distribute, headroom, shrink, split,
};

type Models = Vec<(WeightsId, ModelId)>;

/// One load request while it is carried out.
pub(crate) struct Load<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) who: &'a Who,
    /// What it is about: never evicted.
    pub(crate) models: &'a Models,
    pub(crate) need: Need,
    /// Steps taken because a device was full.
    steps: u8,
}

impl Load<'_> {
    pub(crate) fn cause(&self, trigger: Trigger, demoted_by: &'static str) -> Cause<'_> {
        Cause {
            trigger,
            who: self.who,
            demoted_by,
            merged: false,
            to_host: demoted_by == OUT_OF_MEMORY,
            forget: false,
            streams: self.registry.settings().streams,
            now: self.registry.now(),
        }
    }
}

/// The device refused, and all that could be done was done.
struct Full;

/// What became of one model.
struct Placed {
    limit: Option<u64>,
    moved: u64,
    buffer: u64,
    /// Devices that had no room for what was meant for them.
    refused: Vec<String>,
}

impl Registry {
    /// Brings models to where they compute, in this order, and keeps them there while the lease lasts.
    pub fn lease(&self, who: &Who, handles: &[&Handle], need: Need) -> Result<Lease, MemoryError> {
        let (lease, models, new_holds) = self.begin_lease(who, handles)?;
        let result = self.carry_out(who, &models, need);
        if let Err((failed, error)) = result {
            self.detach(who, &failed, lease.number, &new_holds);
            return Err(error);
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
                let source = Box::new(Gone);
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
            if who.prompt.is_empty() {
                continue;
            }
            let hold = crate::entry::Hold {
                prompt: Arc::clone(&who.prompt),
                model: *model,
            };
            if !entry.holds.contains(&hold) {
                entry.holds.push(hold);
                new_holds.push((id.clone(), *model));
            }
            let line = entry.lineage(*model);
            if entry.claims.wake(&line, &who.prompt) {
                let (policy, source) = entry.claims.policy();
                let draft = event("policy.set")
                    .who(who)
                    .weights(id, &entry.class)
                    .model(Some(*model))
                    .policy(policy, source)
                    .decision("renewed")
                    .reason(format!("used again: {}", entry.claims.why()));
                state.emit(draft);
            }
        }
        let number = state.next();
        let active = Active {
            who: who.clone(),
            models: models.clone(),
            steps: 0,
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
            if let Some(entry) = state.entries.get(id).filter(|_| !again) {
                entry.weights_of(*model).drop_ahead();
            }
        }
    }

    fn carry_out(
        &self,
        who: &Who,
        models: &Models,
        need: Need,
    ) -> Result<(), ((WeightsId, ModelId), MemoryError)> {
        let mut read = Vec::new();
        for (id, model) in models {
            let bytes = self.read(who, models, id, *model);
            read.push(bytes.map_err(|error| ((id.clone(), *model), error))?);
        }
        let mut guard = self.lock();
        let mut load = Load {
            registry: self,
            who,
            models,
            need,
            steps: 0,
        };
        guard.place_all(&mut load, &read)
    }

    /// Reads what is not in memory. Others that need the same weights wait.
    fn read(
        &self,
        who: &Who,
        models: &Models,
        id: &WeightsId,
        model: ModelId,
    ) -> Result<u64, MemoryError> {
        let gone = || MemoryError::Load {
            weights: id.clone(),
            source: Box::new(Gone),
        };
        let mut guard = self.lock();
        while guard.entries.get(id).ok_or_else(gone)?.busy {
            guard.wait(id);
        }
        let state = &mut *guard;
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
        let mut wanted = 0;
        let mut loads: Vec<(Owner, Arc<dyn Weights>)> = Vec::new();
        for owner in owners {
            if let Some(part) = entry.part(owner).filter(|part| part.missing() > 0) {
                wanted += part.missing();
                loads.push((owner, Arc::clone(&part.weights)));
            }
        }
        if loads.is_empty() {
            return Ok(0);
        }
        let again = entry.was_loaded
            && loads
                .first()
                .is_some_and(|(owner, _)| *owner == Owner::Shared);
        let (policy, source) = entry.claims.policy();
        let requested = event("model.load_requested")
            .trigger(Trigger::Load)
            .who(who)
            .weights(id, &entry.class)
            .model(Some(model))
            .policy(policy, source)
            .number("wanted", wanted);
        state.emit(requested);
        self.host_room(state, who, models, wanted)?;
        if let Some(entry) = state.entries.get_mut(id) {
            entry.busy = true;
        }
        drop(guard);
        let busy = Busy { registry: self, id };
        let mut read = 0;
        let mut failure = None;
        for (owner, weights) in loads {
            match weights.load() {
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
        let crate::registry::State {
            entries, devices, ..
        } = state;
        let entry = entries.get_mut(id).ok_or_else(gone)?;
        entry.read_bytes += read;
        if let Some((owner, source)) = failure {
            // Half of a network is worth nothing, and the next load must find a clean start.
            if let Some(part) = entry.part_mut(owner) {
                let _ = part.release(devices);
            }
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
                .number("read", read)
                .reason("it was released; its files were read again");
            state.emit(draft);
        }
        Ok(read)
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
        let short = |floor: u64, host: crate::HostMemory| {
            wanted.saturating_add(floor).saturating_sub(host.available)
        };
        let missing = short(host.floor(self.settings().host_headroom), host);
        if missing == 0 {
            return Ok(());
        }
        let load = Load {
            registry: self,
            who,
            models,
            need: Need::default(),
            steps: 0,
        };
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
    fn detach(&self, who: &Who, failed: &(WeightsId, ModelId), lease: u64, new_holds: &Models) {
        let mut guard = self.lock();
        let state = &mut *guard;
        for (id, model) in new_holds {
            if let Some(entry) = state.entries.get_mut(id) {
                entry
                    .holds
                    .retain(|hold| hold.model != *model || hold.prompt != who.prompt);
            }
        }
        let (id, _) = failed;
        let elsewhere = state
            .active
            .iter()
            .any(|(number, other)| *number != lease && other.models.iter().any(|(i, _)| i == id));
        if elsewhere {
            return;
        }
        let mut scene = state.scene(&[], true, None);
        scene.items.retain(|item| item.weights == *id);
        let mut plan = plan::eject(&scene, None);
        for step in &mut plan.steps {
            // Also what is pinned: it did not get there.
            step.action = crate::Action::Evict;
            step.reason = "its load failed".to_owned();
        }
        let cause = Cause {
            trigger: Trigger::Load,
            who,
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

/// Ends being busy, also by a panic.
struct Busy<'a> {
    registry: &'a Registry,
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
        }
        drop(guard);
        self.registry.wake();
    }
}

impl State {
    /// Everything after reading: others leave, units go where they belong.
    fn place_all(
        &mut self,
        load: &mut Load<'_>,
        read: &[u64],
    ) -> Result<(), ((WeightsId, ModelId), MemoryError)> {
        self.eject_others(load);
        for (id, model) in load.models {
            self.set_backups_aside(load.models, id, *model);
        }
        let targets: Vec<Option<Vec<(Spot, bool)>>> = load
            .models
            .iter()
            .map(|(id, model)| self.targets(load.registry, id, *model))
            .collect();
        let reserves = load.registry.settings().reserves;
        let demand = reserves.demand(load.need.required, load.need.minimum);
        self.make_room(load, &targets, &demand);
        for (index, (id, model)) in load.models.iter().enumerate() {
            let placed = self
                .place(load, id, *model, targets[index].as_deref(), &demand)
                .map_err(|error| ((id.clone(), *model), error))?;
            self.loaded(load, id, *model, &placed, read[index]);
        }
        Ok(())
    }

    /// What loaders of these models asked for, once.
    fn eject_others(&mut self, load: &Load<'_>) {
        for (id, model) in load.models {
            let Some(entry) = self.entries.get_mut(id) else {
                continue;
            };
            for ancestor in entry.lineage(*model) {
                let Some(handle) = self
                    .entries
                    .get_mut(id)
                    .and_then(|e| e.handles.get_mut(&ancestor))
                else {
                    continue;
                };
                let compute = handle.compute;
                let Some((mode, _)) = handle
                    .eject
                    .take_if(|(_, prompt)| *prompt == load.who.prompt)
                else {
                    continue;
                };
                let only = (mode == EjectOthers::ComputeDevice).then_some(compute);
                let plan = plan::eject(&self.scene(load.models, false, None), only);
                let done = self.execute(&plan, &load.cause(Trigger::Load, "eject"));
                let class = Arc::clone(&self.entries[id].class);
                let device = only.map_or_else(|| "all".to_owned(), |spot| self.name(spot));
                let draft = event("eject.applied")
                    .trigger(Trigger::Load)
                    .who(load.who)
                    .weights(id, &class)
                    .model(Some(*model))
                    .device(device)
                    .decision("evict")
                    .reason("its loader asked for the device")
                    .number("models", done.evicted)
                    .number("bytes", done.from_devices);
                self.emit(draft);
            }
        }
    }

    /// Shared units that a patched handle does not use leave the devices, unless another model of the load uses them.
    fn set_backups_aside(&mut self, models: &Models, id: &WeightsId, model: ModelId) {
        let Self {
            entries, devices, ..
        } = self;
        let Some(entry) = entries.get_mut(id) else {
            return;
        };
        let plain = |other: &ModelId| {
            entry
                .handles
                .get(other)
                .is_some_and(|h| h.replaced.is_empty())
        };
        let others = models.iter().filter(|(i, m)| i == id && *m != model);
        if entry.replaced(model).is_empty() || others.map(|(_, m)| m).any(plain) {
            return;
        }
        let away: Vec<usize> = entry
            .replaced(model)
            .iter()
            .copied()
            .filter(|unit| entry.base.home(*unit).is_some_and(|spot| spot != 0))
            .collect();
        for unit in away {
            // The main memory takes everything; a device that cannot give is not a reason to stop.
            let _ = entry.base.move_to(unit, 0, devices);
        }
    }

    /// Where a placement wants the units of a model; none: no placement.
    fn targets(
        &mut self,
        registry: &Registry,
        id: &WeightsId,
        model: ModelId,
    ) -> Option<Vec<(Spot, bool)>> {
        let entry = self.entries.get(id)?;
        let handle = entry.handles.get(&model)?;
        let placement = handle.placement.clone()?;
        let units = entry.units_of(model);
        let compute = self.name(handle.compute);
        let distribution = distribute(
            &units,
            &compute,
            &placement,
            &registry.totals(),
            handle.text_encoder,
        );
        let spots: Vec<Spot> = distribution
            .devices
            .iter()
            .map(|name| self.spot_named(name))
            .collect();
        let mut targets: Vec<(Spot, bool)> = distribution
            .of
            .iter()
            .map(|place| (spots[*place], false))
            .collect();
        for orphan in distribution.orphans {
            targets[orphan].1 = true;
        }
        Some(targets)
    }

    /// A device by name; the main memory for one that is not there (validation refuses such names before).
    fn spot_named(&mut self, name: &str) -> Spot {
        if let Some(spot) = self.devices.find(name) {
            return spot;
        }
        fresco_tensor::Device::parse(name).map_or(0, |device| self.devices.spot(&device))
    }

    /// Others leave the devices as far as the load needs it: on donors for its weights, where it computes for that too.
    fn make_room(
        &mut self,
        load: &Load<'_>,
        targets: &[Option<Vec<(Spot, bool)>>],
        demand: &Demand,
    ) {
        let settings = load.registry.settings();
        let count = self.devices.len();
        let mut weights = vec![0u64; count];
        let mut computes = vec![false; count];
        for ((id, model), targets) in load.models.iter().zip(targets) {
            let entry = &self.entries[id];
            let handle = &entry.handles[model];
            computes[handle.compute] = true;
            let budgetless = settings.state == VramState::NoVram;
            for (index, unit) in entry.units_of(*model).iter().enumerate() {
                let target = targets.as_ref().map_or(handle.compute, |t| t[index].0);
                let stays = target == handle.compute && budgetless;
                if entry.home(*model, index) != Some(target) && !stays {
                    weights[target] = weights[target].saturating_add(unit.bytes);
                }
            }
        }
        for spot in 1..count {
            let required = if computes[spot] {
                headroom(weights[spot])
                    .saturating_add(demand.expected)
                    .max(demand.floor)
            } else {
                weights[spot]
            };
            if required == 0 {
                continue;
            }
            let to_free = required.saturating_sub(self.free(spot));
            if to_free == 0 && settings.smart {
                continue;
            }
            let wish = Room {
                device: spot,
                to_free,
                most: ORDINARY,
                whole: !settings.smart,
            };
            let plan = plan::room(&self.scene(load.models, false, None), wish);
            self.execute(&plan, &load.cause(Trigger::Load, PRESSURE));
        }
    }

    fn place(
        &mut self,
        load: &mut Load<'_>,
        id: &WeightsId,
        model: ModelId,
        targets: Option<&[(Spot, bool)]>,
        demand: &Demand,
    ) -> Result<Placed, MemoryError> {
        let settings = load.registry.settings();
        let entry = &self.entries[id];
        let handle = &entry.handles[&model];
        let units = entry.units_of(model);
        let compute = handle.compute;
        let offload = if handle.offload == compute {
            0
        } else {
            handle.offload
        };
        let full = handle.full || load.need.full;
        self.check_largest(&units, compute, demand)?;
        let mut placed = Placed {
            limit: None,
            moved: 0,
            buffer: 0,
            refused: Vec::new(),
        };
        let before = self.accelerator_bytes(id, model, units.len());
        // What leaves the compute device goes first, then what other devices hold for it.
        let mut elsewhere: Vec<(usize, Spot)> = Vec::new();
        let mut here: Vec<usize> = Vec::new();
        for unit in 0..units.len() {
            match targets.map_or(compute, |targets| targets[unit].0) {
                target if target == compute => here.push(unit),
                target => elsewhere.push((unit, target)),
            }
        }
        let on_compute =
            |state: &Self, unit: usize| state.entries[id].home(model, unit) == Some(compute);
        elsewhere.sort_by_key(|(unit, _)| !on_compute(self, *unit));
        for (unit, target) in elsewhere {
            if self.bring(load, id, model, unit, target)?.is_err() {
                placed.refused.push(self.name(target));
                self.send_away(id, model, unit, 0)?;
            }
        }
        if compute == 0 {
            for unit in here {
                self.send_away(id, model, unit, 0)?;
            }
        } else {
            let state = settings.state.on(false);
            let loaded = self.bytes_on(id, model, &here, &units, compute);
            let minimum = demand.floor;
            let allowed = budget(
                state,
                self.free(compute),
                loaded,
                minimum,
                &settings.reserves,
                full,
            );
            let mut bound = Bound {
                units: &units,
                here: &here,
                compute,
                offload,
                streams: settings.streams,
            };
            if allowed.excess() > 0 {
                placed.limit = allowed.limit(loaded);
                placed.buffer = self.shrink_to(id, model, &mut bound, allowed.excess())?;
            } else {
                let mut limit = allowed.limit(loaded);
                // Every round is smaller; with a limit of nothing there is nothing left that could be refused.
                loop {
                    placed.limit = limit;
                    let result = self.fit(load, id, model, &bound, limit)?;
                    match result {
                        Ok(buffer) => {
                            placed.buffer = buffer;
                            break;
                        }
                        Err(Full) => {
                            let loaded = self.bytes_on(id, model, &here, &units, compute);
                            let state = VramState::NormalVram;
                            let free = self.free(compute);
                            let smaller =
                                budget(state, free, loaded, minimum, &settings.reserves, false);
                            let smaller = match smaller {
                                Budget::Bytes(bytes) => loaded.saturating_add_signed(bytes),
                                Budget::Unlimited => loaded,
                            };
                            limit = Some(match limit {
                                Some(limit) => smaller.min(limit / 2),
                                None => smaller,
                            });
                        }
                    }
                }
            }
        }
        let entry = self.entries.get_mut(id).expect("a leased entry stays");
        let streams = match entry.handles[&model].placement {
            Some(Placement::Swap { ahead, .. }) => ahead as usize,
            _ => settings.streams,
        };
        let all_here = (0..units.len()).all(|unit| entry.home(model, unit) == Some(compute));
        entry
            .weights_of(model)
            .set_ahead(if all_here { 0 } else { streams });
        let planned = match targets {
            Some(targets) => targets.to_vec(),
            None => Vec::new(),
        };
        let handle = entry
            .handles
            .get_mut(&model)
            .expect("a leased handle stays");
        handle.planned = planned;
        handle.buffer = placed.buffer;
        let after = self.accelerator_bytes(id, model, units.len());
        placed.moved = before
            .iter()
            .zip(&after)
            .zip(units.iter())
            .filter(|((before, after), _)| before != after && after.is_some_and(|spot| spot != 0))
            .map(|(_, unit)| unit.bytes)
            .sum();
        Ok(placed)
    }

    /// A unit that is larger than the device could never be used there.
    fn check_largest(
        &self,
        units: &[Unit],
        compute: Spot,
        demand: &Demand,
    ) -> Result<(), MemoryError> {
        let device = self.devices.get(compute);
        let Some(capacity) = device.capacity() else {
            return Ok(());
        };
        // Of embeddings only rows are copied.
        let streamed = units.iter().filter(|unit| !unit.embedding);
        let Some(largest) = streamed
            .max_by_key(|unit| unit.bytes)
            .filter(|unit| unit.bytes > capacity)
        else {
            return Ok(());
        };
        Err(MemoryError::NoRoom {
            device: device.name(),
            wanted: largest.bytes,
            free: device.free().unwrap_or(0),
            capacity,
            would_fit: format!(
                "Its layer {} alone is larger than the device; a device with {} bytes or more, or computing on cpu, would do.",
                largest.name,
                largest.bytes.saturating_add(demand.floor)
            ),
        })
    }

    fn accelerator_bytes(&self, id: &WeightsId, model: ModelId, count: usize) -> Vec<Option<Spot>> {
        let entry = &self.entries[id];
        (0..count).map(|unit| entry.home(model, unit)).collect()
    }

    fn bytes_on(
        &self,
        id: &WeightsId,
        model: ModelId,
        among: &[usize],
        units: &[Unit],
        spot: Spot,
    ) -> u64 {
        let entry = &self.entries[id];
        let there = among
            .iter()
            .filter(|unit| entry.home(model, **unit) == Some(spot));
        there.map(|unit| units[*unit].bytes).sum()
    }

    fn move_unit(
        &mut self,
        id: &WeightsId,
        model: ModelId,
        unit: usize,
        to: Spot,
    ) -> Result<(), TensorError> {
        let Self {
            entries, devices, ..
        } = self;
        let entry = entries.get_mut(id).expect("a leased entry stays");
        let (owner, index) = entry.owner(model, unit);
        match entry.part_mut(owner) {
            Some(part) => part.move_to(index, to, devices),
            None => Ok(()),
        }
    }

    /// To the offload device, or to main memory where that is full.
    fn send_away(
        &mut self,
        id: &WeightsId,
        model: ModelId,
        unit: usize,
        to: Spot,
    ) -> Result<(), MemoryError> {
        match self.move_unit(id, model, unit, to) {
            Err(TensorError::DeviceFull { .. }) if to != 0 => {
                Ok(self.move_unit(id, model, unit, 0)?)
            }
            other => Ok(other?),
        }
    }

    /// To a device, with room made by all means where it is full.
    fn bring(
        &mut self,
        load: &mut Load<'_>,
        id: &WeightsId,
        model: ModelId,
        unit: usize,
        to: Spot,
    ) -> Result<Result<(), Full>, MemoryError> {
        loop {
            match self.move_unit(id, model, unit, to) {
                Ok(()) => return Ok(Ok(())),
                Err(TensorError::DeviceFull { wanted, .. }) => {
                    while load.steps < LAST_STEP && self.free(to) < wanted {
                        load.steps += 1;
                        let cause = load.cause(Trigger::OutOfMemory, OUT_OF_MEMORY);
                        self.oom_step(load.registry, load.steps, to, wanted, load.models, &cause);
                    }
                    if self.free(to) < wanted {
                        return Ok(Err(Full));
                    }
                }
                Err(other) => return Err(other.into()),
            }
        }
    }

    /// One placement pass: what must leave, then what may come.
    fn fit(
        &mut self,
        load: &mut Load<'_>,
        id: &WeightsId,
        model: ModelId,
        bound: &Bound<'_>,
        limit: Option<u64>,
    ) -> Result<Result<u64, Full>, MemoryError> {
        let list: Vec<Unit> = bound
            .here
            .iter()
            .map(|unit| bound.units[*unit].clone())
            .collect();
        let split = split(&list, limit, bound.streams);
        for unit in &split.offloaded {
            self.send_away(id, model, bound.here[*unit], bound.offload)?;
        }
        for unit in &split.resident {
            if self
                .bring(load, id, model, bound.here[*unit], bound.compute)?
                .is_err()
            {
                return Ok(Err(Full));
            }
        }
        Ok(Ok(split.buffer))
    }

    /// The budget is less than what is there.
    fn shrink_to(
        &mut self,
        id: &WeightsId,
        model: ModelId,
        bound: &mut Bound<'_>,
        excess: u64,
    ) -> Result<u64, MemoryError> {
        let entry = &self.entries[id];
        let there = |unit: &usize| entry.home(model, *unit) == Some(bound.compute);
        let resident: Vec<usize> = bound.here.iter().copied().filter(there).collect();
        let old = entry.handles[&model].buffer;
        let less = shrink(bound.units, &resident, excess, old, bound.streams);
        for unit in less.units {
            self.send_away(id, model, unit, bound.offload)?;
        }
        Ok(less.buffer)
    }

    /// Writes down that a model is in place.
    fn loaded(
        &mut self,
        load: &Load<'_>,
        id: &WeightsId,
        model: ModelId,
        placed: &Placed,
        read: u64,
    ) {
        let entry = self.entries.get_mut(id).expect("a leased entry stays");
        entry.gone = false;
        entry.marked_offloaded = false;
        entry.ejected = false;
        let units = entry.units_of(model);
        let compute = entry.handles[&model].compute;
        let (mut here, mut away) = (0, 0);
        for (index, unit) in units.iter().enumerate() {
            if entry.home(model, index) == Some(compute) {
                here += unit.bytes;
            } else {
                away += unit.bytes;
            }
        }
        if away == 0 || placed.moved > 0 {
            entry.demoted_by = None;
        }
        if read == 0 && placed.moved == 0 {
            return;
        }
        let (policy, source) = entry.claims.policy();
        let on_the_fly = entry.weights_of(model).on_the_fly() as u64;
        let mut draft = event("model.loaded")
            .trigger(Trigger::Load)
            .who(load.who)
            .weights(id, &entry.class)
            .model(Some(model))
            .bytes(here.saturating_sub(placed.moved), here)
            .policy(policy, source)
            .decision(if away == 0 { "full" } else { "partial" })
            .number("loaded", here)
            .number("offloaded", away)
            .number("buffer", placed.buffer)
            .number("on_the_fly", on_the_fly)
            .number("moved", placed.moved)
            .number("read", read);
        if let Some(limit) = placed.limit {
            draft = draft.number("usable", limit);
        }
        if !placed.refused.is_empty() {
            let names = placed.refused.join(", ");
            draft = draft.reason(format!(
                "no room for all that was meant for {names}: the rest is in main memory"
            ));
        }
        let device = self.name(compute);
        self.emit(draft.device(device));
    }
}

/// What one placement pass is about.
struct Bound<'a> {
    units: &'a [Unit],
    /// Those meant for the compute device.
    here: &'a [usize],
    compute: Spot,
    offload: Spot,
    streams: usize,
}
