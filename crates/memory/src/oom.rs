//! When a device is full although it was planned otherwise: steps that go further and further, and what to say at the
//! end.

use crate::act::{Cause, OUT_OF_MEMORY};
use crate::entry::DeviceIndex;
use crate::events::event;
use crate::lease::Lease;
use crate::plan::{self, EvictionRank, Room};
use crate::registry::{ModelRegistry, State};
use crate::{ModelId, Origin, Reason, Trigger, WeightsId, Who, shrink};

/// What is tried when a device is full, one after the other. After the last that makes others leave, the models of the lease itself
/// shrink; then it is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OomStep {
    EmptyCaches = 1,
    EvictUnkept,
    EvictKept,
    EvictPinned,
    ReleaseHostCopies,
    GiveUp,
}

impl OomStep {
    /// The next step that makes others leave.
    pub(crate) fn after(done: Option<Self>) -> Option<Self> {
        Some(match done {
            None => Self::EmptyCaches,
            Some(Self::EmptyCaches) => Self::EvictUnkept,
            Some(Self::EvictUnkept) => Self::EvictKept,
            Some(Self::EvictKept) => Self::EvictPinned,
            Some(Self::EvictPinned) => Self::ReleaseHostCopies,
            Some(Self::ReleaseHostCopies | Self::GiveUp) => return None,
        })
    }
}

impl State {
    /// One step. Gives the bytes that came free on the device.
    pub(crate) fn oom_step(
        &mut self,
        registry: &ModelRegistry,
        step: OomStep,
        spot: DeviceIndex,
        wanted: u64,
        needed: &[(WeightsId, ModelId)],
        cause: &Cause<'_>,
    ) -> u64 {
        let before = self.free(spot);
        let most = match step {
            OomStep::EmptyCaches => {
                self.soft_empty_on(spot, cause.trigger);
                None
            }
            OomStep::EvictUnkept => Some(EvictionRank::Held),
            OomStep::EvictKept => Some(EvictionRank::KeptAndHeld),
            OomStep::EvictPinned => Some(EvictionRank::Pinned),
            OomStep::ReleaseHostCopies | OomStep::GiveUp => {
                let short = registry
                    .host()
                    .filter(|host| host.available < host.floor(None));
                if let Some(host) = short {
                    let missing = host.floor(None) - host.available;
                    let plan = plan::host(&self.scene(needed, false, None), missing, true);
                    self.execute(&plan, cause);
                    fresco_tensor::free_spare_memory();
                }
                None
            }
        };
        if let Some(most) = most {
            let wish = Room {
                device: spot,
                to_free: u64::MAX,
                most,
                whole: true,
            };
            let plan = plan::room(&self.scene(needed, false, None), wish);
            self.execute(&plan, cause);
        }
        let after = self.free(spot);
        self.report_oom_step(step, spot, wanted, before, after, cause.who);
        after.saturating_sub(before)
    }

    fn report_oom_step(
        &mut self,
        step: OomStep,
        spot: DeviceIndex,
        wanted: u64,
        before: u64,
        after: u64,
        who: &Who,
    ) {
        let draft = event("oom.step")
            .trigger(Trigger::OutOfMemory)
            .who(who)
            .device(self.devices.get(spot))
            .origin(Origin::pressure(who))
            .reason(Reason::OutOfMemoryStep(step))
            .number("step", step as u64)
            .number("wanted", wanted)
            .number("free_before", before)
            .number("free_after", after);
        self.emit(draft);
    }

    /// Gives back what is only held to be faster. Models stay where they are.
    pub(crate) fn soft_empty_on(&mut self, spot: DeviceIndex, trigger: Trigger) {
        let before = self.devices.get(spot).used();
        for entry in self.entries.values().filter(|entry| !entry.busy) {
            for part in entry.parts() {
                part.weights.drop_spare();
            }
        }
        fresco_tensor::free_spare_memory();
        let after = self.devices.get(spot).used();
        let draft = event("device.soft_empty")
            .trigger(trigger)
            .device(self.devices.get(spot))
            .bytes(before, after);
        self.emit(draft);
    }

    /// Some of what the lease computes with leaves the device and is streamed from now on. Gives the bytes.
    fn shrink_own(
        &mut self,
        spot: DeviceIndex,
        wanted: u64,
        needed: &[(WeightsId, ModelId)],
        who: &Who,
        streams: usize,
    ) -> u64 {
        let mut freed = 0;
        for (id, model) in needed {
            let Some(entry) = self.entries.get(id) else {
                continue;
            };
            let Some(handle) = entry.handles.get(model) else {
                continue;
            };
            let units = entry.units_of(*model);
            let there = |unit: &usize| entry.home(*model, *unit) == Some(spot);
            let resident: Vec<usize> = (0..units.len()).filter(there).collect();
            let bytes: u64 = resident.iter().map(|unit| units[*unit].bytes).sum();
            if resident.is_empty() || freed > wanted {
                continue;
            }
            // At least a quarter: many small steps would each cost a try.
            let less = shrink(
                &units,
                &resident,
                wanted.max(bytes / 4),
                handle.buffer,
                streams,
            );
            let mut left = 0;
            for unit in &less.units {
                if self.move_away(id, *model, *unit).is_ok() {
                    left += units[*unit].bytes;
                }
            }
            freed += left;
            let Some(entry) = self.entries.get_mut(id) else {
                continue;
            };
            entry.demoted_by = Some(OUT_OF_MEMORY);
            entry.weights_of(*model).set_ahead(0);
            if let Some(handle) = entry.handles.get_mut(model) {
                handle.buffer = less.buffer;
            }
            let effective = entry.claims.effective();
            let draft = event("model.shrunk")
                .trigger(Trigger::OutOfMemory)
                .who(who)
                .weights(id, &entry.class)
                .model(Some(*model))
                .device(self.devices.get(spot))
                .bytes(bytes, bytes - left)
                .effective(effective)
                .origin(Origin::pressure(who))
                .decision("demote")
                .reason(Reason::StreamsMore);
            self.emit(draft);
        }
        freed
    }

    fn move_away(
        &mut self,
        id: &WeightsId,
        model: ModelId,
        unit: usize,
    ) -> Result<(), fresco_tensor::TensorError> {
        let Self {
            entries, devices, ..
        } = self;
        let Some(entry) = entries.get_mut(id) else {
            return Ok(());
        };
        let (owner, index) = entry.owner(model, unit);
        match entry.part_mut(owner) {
            Some(part) => part.move_to(index, 0, devices),
            None => Ok(()),
        }
    }
}

impl ModelRegistry {
    /// An allocation failed while computing: takes the next steps until one gives room. True: try again. False: there is
    /// nothing left that could be done, and what could leave the device has left it.
    pub fn relieve(&self, lease: &Lease, device: &str, wanted: u64) -> bool {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(spot) = state.devices.find(device) else {
            return false;
        };
        let Some(active) = state.active.get(&lease.number) else {
            return false;
        };
        let (who, models, mut step) = (active.who.clone(), active.models.clone(), active.step);
        let cause = self.oom_cause(&who);
        let mut freed = 0;
        while freed == 0
            && let Some(next) = OomStep::after(step)
        {
            step = Some(next);
            freed = state.oom_step(self, next, spot, wanted, &models, &cause);
        }
        if let Some(active) = state.active.get_mut(&lease.number) {
            active.step = step;
        }
        if freed > 0 {
            return true;
        }
        if state.shrink_own(spot, wanted, &models, &who, self.settings().streams) > 0 {
            return true;
        }
        state.give_up(spot, wanted, &who, &cause);
        false
    }

    fn oom_cause<'a>(&self, who: &'a Who) -> Cause<'a> {
        Cause {
            trigger: Trigger::OutOfMemory,
            who,
            origin: Origin::pressure(who),
            demoted_by: OUT_OF_MEMORY,
            merged: false,
            to_host: true,
            forget: false,
            streams: self.settings().streams,
            now: self.now(),
        }
    }

    /// What would have fitted.
    pub fn explain(&self, lease: &Lease, device: &str) -> String {
        let state = self.lock();
        let Some(spot) = state.devices.find(device) else {
            return format!("Unknown device {device}.");
        };
        let device = state.devices.get(spot);
        let (Some(capacity), Some(free)) = (device.capacity(), device.free()) else {
            return "The main memory is full.".to_owned();
        };
        let models = state
            .active
            .get(&lease.number)
            .map(|active| active.models.clone());
        let (mut size, mut largest) = (0u64, 0u64);
        for (id, model) in models.unwrap_or_default() {
            if let Some(entry) = state.entries.get(&id) {
                let units = entry.units_of(model);
                size += units.iter().map(|unit| unit.bytes).sum::<u64>();
                largest = largest.max(units.iter().map(|unit| unit.bytes).max().unwrap_or(0));
            }
        }
        let used = mib(capacity - free);
        format!(
            "{device} has {} MiB, {used} MiB are in use; the model has {} MiB, of which {} MiB must be there at once. \
             A smaller picture or batch, a tiled VAE, or computing on cpu would fit.",
            mib(capacity),
            mib(size),
            mib(largest),
        )
    }
}

fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

impl State {
    /// The node fails: what no other prompt holds leaves the device.
    fn give_up(&mut self, spot: DeviceIndex, wanted: u64, who: &Who, cause: &Cause<'_>) {
        let before = self.free(spot);
        let mut scene = self.scene(&[], true, None);
        let mine = |id: &WeightsId| {
            self.entries
                .get(id)
                .is_some_and(|entry| !entry.is_held_by_other(&who.prompt))
        };
        scene.items.retain(|item| mine(&item.weights));
        let mut plan = plan::eject(&scene, Some(spot));
        for step in &mut plan.steps {
            step.action = crate::Action::Evict;
            step.reason = Reason::DeviceFull;
        }
        let cause = Cause {
            merged: true,
            origin: cause.origin.clone(),
            ..*cause
        };
        self.execute(&plan, &cause);
        let after = self.free(spot);
        self.report_oom_step(OomStep::GiveUp, spot, wanted, before, after, who);
    }
}
