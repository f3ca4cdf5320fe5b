//! Makes room for a load: what loaders asked for, what is only a backup, and what the planner says.

use std::sync::Arc;

use crate::act::PRESSURE;
use crate::entry::DeviceIndex;
use crate::events::event;
use crate::place::{Load, Models};
use crate::plan::{self, EvictionRank, Room};
use crate::registry::State;
use crate::{
    Action, Demand, EjectOthers, ModelId, Origin, Reason, Trigger, VramState, WeightsId, headroom,
};

impl State {
    /// What loaders of these models asked for, once.
    pub(crate) fn eject_others(&mut self, load: &Load<'_>) {
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
                let loader = handle.loader.clone();
                let Some((mode, _)) = handle
                    .eject
                    .take_if(|(_, prompt)| *prompt == load.who.prompt)
                else {
                    continue;
                };
                let only = (mode == EjectOthers::ComputeDevice).then_some(compute);
                let origin = Origin::node(&loader, "eject_models");
                let asked = Reason::EjectedBy(loader.place());
                let mut plan = plan::eject(&self.scene(load.models, false, None), only);
                let leaving = plan.steps.iter_mut();
                for step in leaving.filter(|step| step.action == Action::Evict) {
                    step.reason = asked.clone();
                    step.origin = Some(origin.clone());
                }
                let done = self.execute(&plan, &load.cause(Trigger::Load, "eject"));
                let entry = &self.entries[id];
                let (class, effective) = (Arc::clone(&entry.class), entry.claims.effective());
                let device = only.map_or_else(|| "all".to_owned(), |spot| self.name(spot));
                let draft = event("eject.applied")
                    .trigger(Trigger::Load)
                    .who(load.who)
                    .weights(id, &class)
                    .model(Some(*model))
                    .device(device)
                    .effective(effective)
                    .origin(origin)
                    .decision("evict")
                    .reason(asked)
                    .number("models", done.evicted)
                    .number("bytes", done.from_devices);
                self.emit(draft);
            }
        }
    }

    /// Shared units that a patched handle does not use leave the devices, unless another model of the load uses them.
    pub(crate) fn set_backups_aside(&mut self, models: &Models, id: &WeightsId, model: ModelId) {
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

    /// Others leave the devices as far as the load needs it: on donors for its weights, where it computes for that too.
    pub(crate) fn make_room(
        &mut self,
        load: &Load<'_>,
        targets: &[Option<Vec<(DeviceIndex, bool)>>],
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
                most: EvictionRank::ORDINARY,
                whole: !settings.smart,
            };
            let plan = plan::room(&self.scene(load.models, false, None), wish);
            self.execute(&plan, &load.cause(Trigger::Load, PRESSURE));
        }
    }
}
