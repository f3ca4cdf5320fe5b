//! Puts every unit of the models of a load where it belongs: others leave, then units move, largest first.

use std::collections::BTreeMap;

use fresco_tensor::TensorError;

use crate::act::{Cause, OUT_OF_MEMORY};
use crate::amount::readable;
use crate::entry::DeviceIndex;
use crate::events::event;
use crate::oom::OomStep;
use crate::reason::Reason;
use crate::registry::{ModelRegistry, State};
use crate::{
    Allowance, Budget, Demand, MemoryError, MemoryFlag, ModelId, Need, Origin, Placement, Trigger,
    Unit, UnitPlan, UnitScene, VramState, WeightsId, Who, budget, distribute, plan_units,
};

/// The models of a load, in the order in which they are placed.
pub(crate) type Models = Vec<(WeightsId, ModelId)>;

/// One load request while it is carried out.
pub(crate) struct Load<'a> {
    pub(crate) registry: &'a ModelRegistry,
    pub(crate) who: &'a Who,
    /// What it is about: never evicted.
    pub(crate) models: &'a Models,
    pub(crate) need: Need,
    /// Steps taken because a device was full, by device.
    steps: BTreeMap<DeviceIndex, OomStep>,
    /// Bytes in use by device: when it began, and after room was made.
    used_at_start: Vec<u64>,
    used_with_room: Vec<u64>,
}

impl<'a> Load<'a> {
    pub(crate) fn new(
        registry: &'a ModelRegistry,
        who: &'a Who,
        models: &'a Models,
        need: Need,
    ) -> Self {
        Self {
            registry,
            who,
            models,
            need,
            steps: BTreeMap::new(),
            used_at_start: Vec::new(),
            used_with_room: Vec::new(),
        }
    }

    pub(crate) fn cause(&self, trigger: Trigger, demoted_by: &'static str) -> Cause<'_> {
        Cause {
            trigger,
            who: self.who,
            origin: Origin::pressure(self.who),
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

impl State {
    /// Everything after reading: others leave, units go where they belong.
    pub(crate) fn place_all(
        &mut self,
        load: &mut Load<'_>,
        read: &[u64],
    ) -> Result<(), ((WeightsId, ModelId), MemoryError)> {
        load.used_at_start = self.used();
        self.eject_others(load);
        for (id, model) in load.models {
            self.set_backups_aside(load.models, id, *model);
        }
        let targets: Vec<Option<Vec<(DeviceIndex, bool)>>> = load
            .models
            .iter()
            .map(|(id, model)| self.targets(load.registry, id, *model))
            .collect();
        let reserves = load.registry.settings().reserves;
        let demand = reserves.demand(load.need.required, load.need.minimum);
        self.make_room(load, &targets, &demand);
        load.used_with_room = self.used();
        for (index, (id, model)) in load.models.iter().enumerate() {
            let placed = self
                .place(load, id, *model, targets[index].as_deref(), &demand)
                .map_err(|error| ((id.clone(), *model), error))?;
            self.loaded(load, id, *model, &placed, read[index]);
        }
        Ok(())
    }

    /// Where a placement wants the units of a model; none: no placement.
    fn targets(
        &mut self,
        registry: &ModelRegistry,
        id: &WeightsId,
        model: ModelId,
    ) -> Option<Vec<(DeviceIndex, bool)>> {
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
        let spots: Vec<DeviceIndex> = distribution
            .devices
            .iter()
            .map(|name| self.spot_named(name))
            .collect();
        let mut targets: Vec<(DeviceIndex, bool)> = distribution
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
    fn spot_named(&mut self, name: &str) -> DeviceIndex {
        if let Some(spot) = self.devices.find(name) {
            return spot;
        }
        fresco_tensor::Device::parse(name).map_or(0, |device| self.devices.spot(&device))
    }

    fn place(
        &mut self,
        load: &mut Load<'_>,
        id: &WeightsId,
        model: ModelId,
        targets: Option<&[(DeviceIndex, bool)]>,
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
        let mut elsewhere: Vec<(usize, DeviceIndex)> = Vec::new();
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
            let targets: Option<Vec<DeviceIndex>> =
                targets.map(|targets| targets.iter().map(|(spot, _)| *spot).collect());
            let allowance = Allowance {
                state: settings.state,
                reserves: settings.reserves,
                floor: demand.floor,
                full,
                streams: settings.streams,
            };
            let buffer = self.entries[id].handles[&model].buffer;
            let mut limit = None;
            // Every round is smaller; with a limit of nothing there is nothing left that could be refused.
            loop {
                let homes = self.accelerator_bytes(id, model, units.len());
                let free: Vec<u64> = (0..self.devices.len())
                    .map(|spot| self.free(spot))
                    .collect();
                let plan = plan_units(&UnitScene {
                    units: &units,
                    homes: &homes,
                    compute,
                    offload,
                    targets: targets.as_deref(),
                    free: &free,
                    buffer,
                    allowance,
                    limit,
                });
                placed.limit = plan.limit;
                if self
                    .carry_out(load, id, model, &plan, (compute, offload))?
                    .is_ok()
                {
                    placed.buffer = plan.buffer;
                    break;
                }
                let loaded = self.bytes_on(id, model, &here, &units, compute);
                let (state, free) = (VramState::NormalVram, self.free(compute));
                let smaller = budget(state, free, loaded, demand.floor, &settings.reserves, false);
                let smaller = match smaller {
                    Budget::Bytes(bytes) => loaded.saturating_add_signed(bytes),
                    Budget::Unlimited => loaded,
                };
                limit = Some(plan.limit.map_or(smaller, |limit| smaller.min(limit / 2)));
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
        compute: DeviceIndex,
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
                "Its layer {} alone is larger than the device; a device with {} or more, or computing on cpu, would do.",
                largest.name,
                readable(largest.bytes.saturating_add(demand.floor))
            ),
        })
    }

    fn accelerator_bytes(
        &self,
        id: &WeightsId,
        model: ModelId,
        count: usize,
    ) -> Vec<Option<DeviceIndex>> {
        let entry = &self.entries[id];
        (0..count).map(|unit| entry.home(model, unit)).collect()
    }

    fn bytes_on(
        &self,
        id: &WeightsId,
        model: ModelId,
        among: &[usize],
        units: &[Unit],
        spot: DeviceIndex,
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
        to: DeviceIndex,
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
        to: DeviceIndex,
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
        to: DeviceIndex,
    ) -> Result<Result<(), Full>, MemoryError> {
        loop {
            match self.move_unit(id, model, unit, to) {
                Ok(()) => return Ok(Ok(())),
                Err(TensorError::DeviceFull { wanted, .. }) => {
                    while self.free(to) < wanted
                        && let Some(step) = OomStep::after(load.steps.get(&to).copied())
                    {
                        load.steps.insert(to, step);
                        let cause = load.cause(Trigger::OutOfMemory, OUT_OF_MEMORY);
                        self.oom_step(load.registry, step, to, wanted, load.models, &cause);
                    }
                    if self.free(to) < wanted {
                        return Ok(Err(Full));
                    }
                }
                Err(other) => return Err(other.into()),
            }
        }
    }

    /// What must leave the compute device, then what may come.
    fn carry_out(
        &mut self,
        load: &mut Load<'_>,
        id: &WeightsId,
        model: ModelId,
        plan: &UnitPlan,
        (compute, offload): (DeviceIndex, DeviceIndex),
    ) -> Result<Result<(), Full>, MemoryError> {
        for unit in &plan.leave {
            self.send_away(id, model, *unit, offload)?;
        }
        for unit in &plan.come {
            if self.bring(load, id, model, *unit, compute)?.is_err() {
                return Ok(Err(Full));
            }
        }
        Ok(Ok(()))
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
        // Somebody wants it: that it could not be released before is no reason to try again.
        entry.failed = None;
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
        let effective = entry.claims.effective();
        let on_the_fly = entry.weights_of(model).on_the_fly() as u64;
        let mut draft = event("model.loaded")
            .trigger(Trigger::Load)
            .who(load.who)
            .weights(id, &entry.class)
            .model(Some(model))
            .bytes(here.saturating_sub(placed.moved), here)
            .effective(effective)
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
        let before = |used: &[u64]| used.get(compute).copied().unwrap_or(0);
        if compute != 0 {
            draft = draft
                .number("used_at_start", before(&load.used_at_start))
                .number("used_with_room", before(&load.used_with_room))
                .number("used", self.devices.get(compute).used());
        }
        draft = if away == 0 {
            draft.origin(Origin::node(load.who, "use"))
        } else {
            let (origin, reason) = self.why_partly(load, id, model, placed);
            draft.origin(origin).reason(reason)
        };
        let places = self.places_of(id, model);
        let device = self.name(compute);
        self.emit(draft.device(device).places(places));
    }

    /// Where the bytes that a handle computes with are.
    fn places_of(&self, id: &WeightsId, model: ModelId) -> Vec<(String, u64)> {
        let entry = &self.entries[id];
        let mut sums: BTreeMap<DeviceIndex, u64> = BTreeMap::new();
        for (index, unit) in entry.units_of(model).iter().enumerate() {
            if let Some(spot) = entry.home(model, index) {
                *sums.entry(spot).or_default() += unit.bytes;
            }
        }
        sums.into_iter()
            .map(|(spot, bytes)| (self.name(spot), bytes))
            .collect()
    }

    /// Who asked for a model not to be whole where it computes, and why it is so.
    fn why_partly(
        &self,
        load: &Load<'_>,
        id: &WeightsId,
        model: ModelId,
        placed: &Placed,
    ) -> (Origin, Reason) {
        let entry = &self.entries[id];
        let handle = &entry.handles[&model];
        let device = self.name(handle.compute);
        let mut reasons = Vec::new();
        let mut origin = None;
        if let Some(placement) = &handle.placement {
            let (input, amount) = match placement {
                Placement::Virtual { gb, .. } => ("virtual_vram_gb", format!(" {gb}")),
                Placement::Expert(_) => ("expert_mode_allocations", String::new()),
                Placement::Swap { blocks, .. } => ("blocks_to_swap", format!(" {blocks}")),
            };
            reasons.push(Reason::PlacementInput {
                by: handle.loader.place(),
                input,
                amount,
            });
            origin = Some(Origin::node(&handle.loader, input));
        }
        if !placed.refused.is_empty() {
            reasons.push(Reason::DonorsFull(placed.refused.clone()));
        }
        let meant = |unit: usize| match handle.planned.get(unit) {
            Some((spot, _)) => *spot == handle.compute,
            None => true,
        };
        let short = (0..entry.units_of(model).len())
            .any(|unit| meant(unit) && entry.home(model, unit) != Some(handle.compute));
        if short && load.registry.settings().state == VramState::NoVram {
            reasons.push(Reason::NoVram { device });
            origin = origin.or(Some(Origin::Flag {
                flag: MemoryFlag::NoVram,
            }));
        } else if short {
            let limit = placed.limit.map(|limit| (limit, placed.buffer));
            reasons.push(Reason::DeviceShort { device, limit });
        }
        let origin = origin.unwrap_or_else(|| Origin::pressure(load.who));
        (origin, Reason::Several(reasons))
    }
}
