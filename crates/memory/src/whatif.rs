//! How a load would go, without doing any of it: for admission, and for whoever wants to know before.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::Device;

use crate::amount::readable;
use crate::entry::DeviceIndex;
use crate::plan::{self, EvictionRank, Room, Scene};
use crate::registry::ModelRegistry;
use crate::report::describe;
use crate::{
    Allowance, DeviceTotal, Distribution, EjectOthers, EvictionPlan, ModelId, Need, Placement,
    Unit, UnitScene, VramState, WeightsId, budget, distribute, headroom, plan_units,
};

/// One model of a load that is only thought of.
#[derive(Debug, Clone)]
pub struct LoadModel {
    /// What it is called in the plan.
    pub name: String,
    /// Weights that are there; their units are taken if none are given.
    pub weights: Option<WeightsId>,
    pub units: Arc<[Unit]>,
    /// Device names.
    pub compute: String,
    pub offload: String,
    pub placement: Option<Placement>,
    pub text_encoder: bool,
    pub full: bool,
}

/// A load that is only thought of.
#[derive(Debug, Clone, Default)]
pub struct LoadRequest {
    pub models: Vec<LoadModel>,
    /// Empty devices with so much memory instead of the real ones.
    pub devices: Option<Vec<DeviceTotal>>,
    pub need: Need,
    pub eject: EjectOthers,
}

/// How one model would be placed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelPlan {
    pub name: String,
    /// Bytes by device.
    pub places: Vec<(String, u64)>,
    /// Unit to device, in definition order.
    pub units: Vec<(Arc<str>, String)>,
    /// Bytes where it computes, and elsewhere.
    pub resident: u64,
    pub offloaded: u64,
    pub buffer: u64,
    /// All of it where it computes.
    pub full: bool,
    pub allocation: Option<String>,
    pub orphans: Vec<Arc<str>>,
    pub warnings: Vec<String>,
    /// What its placement wants, by device, whether there is room or not.
    pub meant: Vec<(String, u64)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePlan {
    pub device: String,
    pub total: u64,
    /// Now.
    pub free: u64,
    /// By what leaves.
    pub freed: u64,
    /// Weights that come.
    pub weights: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPlan {
    /// Bytes that would be read into main memory.
    pub wanted: u64,
    pub available: u64,
}

/// How a load would go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadPlan {
    /// What would leave first.
    pub evictions: EvictionPlan,
    pub models: Vec<ModelPlan>,
    pub devices: Vec<DevicePlan>,
    pub host: Option<HostPlan>,
    /// Whether it can be done at all, streamed or not.
    pub fits: bool,
    /// Why not, one line each.
    pub problems: Vec<String>,
}

/// The devices as the plan sees them.
struct Table {
    names: Vec<String>,
    totals: Vec<u64>,
    free: Vec<u64>,
}

impl Table {
    /// Empty devices; the main memory is there whether it is described or not.
    fn described(devices: &[DeviceTotal]) -> Self {
        let cpu = devices.iter().find(|device| device.name == "cpu");
        let mut table = Self {
            names: vec!["cpu".to_owned()],
            totals: vec![cpu.map_or(u64::MAX, |device| device.total)],
            free: Vec::new(),
        };
        for device in devices.iter().filter(|device| device.name != "cpu") {
            table.names.push(device.name.clone());
            table.totals.push(device.total);
        }
        table.free.clone_from(&table.totals);
        table
    }

    fn spot(&self, name: &str) -> Option<DeviceIndex> {
        self.names.iter().position(|n| n == name)
    }

    fn totals(&self) -> Vec<DeviceTotal> {
        let pairs = self.names.iter().zip(&self.totals);
        pairs
            .map(|(name, total)| DeviceTotal {
                name: name.clone(),
                total: *total,
            })
            .collect()
    }
}

/// What is known about one model before anything is placed.
struct Known {
    units: Arc<[Unit]>,
    homes: Vec<Option<DeviceIndex>>,
    compute: DeviceIndex,
    offload: DeviceIndex,
    spread: Option<Distribution>,
    targets: Option<Vec<DeviceIndex>>,
}

impl ModelRegistry {
    /// Pure: nothing is read, moved or remembered.
    pub fn plan_load(&self, request: &LoadRequest) -> LoadPlan {
        let settings = self.settings();
        let demand = settings
            .reserves
            .demand(request.need.required, request.need.minimum);
        let mut plan = LoadPlan::default();
        let (table, scene, known) = self.look(request, &mut plan);
        if !plan.problems.is_empty() {
            return plan;
        }
        let mut coming = vec![0u64; table.names.len()];
        let mut computes = vec![false; table.names.len()];
        for known in &known {
            computes[known.compute] = true;
            for (index, unit) in known.units.iter().enumerate() {
                let target = known.targets.as_ref().map_or(known.compute, |t| t[index]);
                if known.homes[index] != Some(target) {
                    coming[target] = coming[target].saturating_add(unit.bytes);
                }
            }
        }
        let mut free = table.free.clone();
        for spot in 1..table.names.len() {
            let only = match request.eject {
                EjectOthers::None => None,
                EjectOthers::ComputeDevice => computes[spot].then_some(spot),
                EjectOthers::AllDevices => Some(spot),
            };
            let required = if computes[spot] {
                headroom(coming[spot]).saturating_add(demand.expected)
            } else {
                coming[spot]
            };
            let leaves = match only {
                Some(_) => plan::eject(&scene, only),
                None if required > free[spot] => {
                    let wish = Room {
                        device: spot,
                        to_free: required - free[spot],
                        most: EvictionRank::ORDINARY,
                        whole: !settings.smart,
                    };
                    plan::room(&scene, wish)
                }
                None => EvictionPlan::default(),
            };
            let mut freed = 0u64;
            for step in &leaves.steps {
                freed = freed.saturating_add(match step.action {
                    crate::Action::Keep => 0,
                    crate::Action::Demote { bytes } => bytes,
                    crate::Action::Release => on(&scene, step, spot),
                    _ => step.bytes,
                });
            }
            free[spot] = free[spot].saturating_add(freed).min(table.totals[spot]);
            plan.devices.push(DevicePlan {
                device: table.names[spot].clone(),
                total: table.totals[spot],
                free: table.free[spot],
                freed,
                weights: 0,
            });
            plan.evictions.steps.extend(leaves.steps);
        }
        for (model, known) in request.models.iter().zip(&known) {
            let placed = self.place_one(model, known, request, &table, &mut free, &mut plan);
            for device in &mut plan.devices {
                let here = placed
                    .places
                    .iter()
                    .find(|(name, _)| *name == device.device);
                device.weights += here.map_or(0, |(_, bytes)| *bytes);
            }
            plan.models.push(placed);
        }
        plan.fits = plan.problems.is_empty();
        plan
    }

    /// The devices as they are.
    fn table(&self) -> Table {
        let host = self.host().map_or(u64::MAX, |host| host.total);
        let devices: Vec<Device> = self.lock().devices.iter().cloned().collect();
        Table {
            names: devices.iter().map(Device::name).collect(),
            totals: devices
                .iter()
                .map(|device| device.capacity().unwrap_or(host))
                .collect(),
            free: devices
                .iter()
                .map(|device| device.free().unwrap_or(u64::MAX))
                .collect(),
        }
    }

    /// The devices, what is on them, and what the models are.
    fn look(&self, request: &LoadRequest, plan: &mut LoadPlan) -> (Table, Scene, Vec<Known>) {
        let table = match &request.devices {
            Some(devices) => Table::described(devices),
            None => self.table(),
        };
        let state = self.lock();
        let real = request.devices.is_none();
        let mut needed: Vec<(WeightsId, ModelId)> = Vec::new();
        let mut known = Vec::new();
        let mut wanted = 0u64;
        for model in &request.models {
            let entry = model
                .weights
                .as_ref()
                .and_then(|id| state.entries.get(id))
                .filter(|_| real);
            let named = model.weights.as_ref().and_then(|id| state.entries.get(id));
            let units = match named {
                Some(entry) if model.units.is_empty() => Arc::clone(&entry.base.units),
                _ => Arc::clone(&model.units),
            };
            let same = entry.filter(|entry| entry.base.units.len() == units.len());
            let homes = (0..units.len()).map(|unit| same.and_then(|entry| entry.base.home(unit)));
            let homes: Vec<Option<DeviceIndex>> = homes.collect();
            if let Some(entry) = entry {
                needed.push((entry.id.clone(), ModelId(0)));
            }
            let missing = units.iter().zip(&homes).filter(|(_, home)| home.is_none());
            wanted = wanted.saturating_add(missing.map(|(unit, _)| unit.bytes).sum());
            let spots = (table.spot(&model.compute), table.spot(&model.offload));
            let (Some(compute), Some(offload)) = spots else {
                let names = table.names.join(", ");
                let text = format!(
                    "{}: no device {} or {}; there are {names}",
                    model.name, model.compute, model.offload
                );
                plan.problems.push(text);
                continue;
            };
            let spread = model.placement.as_ref().map(|placement| {
                distribute(
                    &units,
                    &model.compute,
                    placement,
                    &table.totals(),
                    model.text_encoder,
                )
            });
            let targets = spread.as_ref().map(|spread| {
                let spots = spread.devices.iter().map(|name| table.spot(name));
                let spots: Vec<DeviceIndex> = spots.map(|spot| spot.unwrap_or(0)).collect();
                spread.of.iter().map(|place| spots[*place]).collect()
            });
            known.push(Known {
                units,
                homes,
                compute,
                offload: if offload == compute { 0 } else { offload },
                spread,
                targets,
            });
        }
        let scene = if real {
            state.scene(&needed, false, None)
        } else {
            Scene {
                devices: table.names.clone(),
                items: Vec::new(),
            }
        };
        drop(state);
        if let Some(host) = self.host().filter(|_| real) {
            let to_go = plan::host(&scene, u64::MAX, false);
            let gone: u64 = to_go.steps.iter().map(|step| on(&scene, step, 0)).sum();
            let available = host
                .available
                .saturating_add(gone)
                .saturating_sub(host.floor(None));
            plan.host = Some(HostPlan { wanted, available });
            if wanted > available {
                plan.problems.push(format!(
                    "host_memory: {} would be read into main memory, {} can be had",
                    readable(wanted),
                    readable(available)
                ));
            }
        }
        (table, scene, known)
    }

    fn place_one(
        &self,
        model: &LoadModel,
        known: &Known,
        request: &LoadRequest,
        table: &Table,
        free: &mut [u64],
        plan: &mut LoadPlan,
    ) -> ModelPlan {
        let settings = self.settings();
        let demand = settings
            .reserves
            .demand(request.need.required, request.need.minimum);
        let units = &known.units;
        let mut result = ModelPlan {
            name: model.name.clone(),
            allocation: model
                .placement
                .as_ref()
                .map(|placement| describe(placement, &model.compute)),
            ..ModelPlan::default()
        };
        if let Some(spread) = &known.spread {
            let orphans = spread.orphans.iter();
            result.orphans = orphans.map(|unit| Arc::clone(&units[*unit].name)).collect();
            if let Some(Placement::Expert(expert)) = &model.placement {
                result.warnings = expert.warnings.iter().map(ToString::to_string).collect();
            }
            result.warnings.extend(spread.warnings.iter().cloned());
            let held = spread.held(units);
            result.meant = spread.devices.iter().cloned().zip(held).collect();
        }
        let before = free.to_vec();
        let mut scene = UnitScene {
            units,
            homes: &known.homes,
            compute: known.compute,
            offload: known.offload,
            targets: known.targets.as_deref(),
            free: &before,
            buffer: 0,
            allowance: Allowance {
                state: settings.state,
                reserves: settings.reserves,
                floor: demand.floor,
                full: model.full || request.need.full,
                streams: settings.streams,
            },
            limit: None,
        };
        let mut placed = plan_units(&scene);
        if placed.overfull && placed.limit.is_none() {
            // The device would refuse, and get less.
            let smaller = budget(
                VramState::NormalVram,
                before[known.compute],
                placed.loaded,
                demand.floor,
                &settings.reserves,
                false,
            );
            scene.limit = smaller.limit(placed.loaded);
            placed = plan_units(&scene);
        }
        for unit in &placed.refused {
            let target = known.targets.as_ref().map_or(known.compute, |t| t[*unit]);
            let name = &table.names[target];
            result.warnings.push(format!(
                "{} goes to main memory: {name} has no room",
                units[*unit].name
            ));
        }
        free.copy_from_slice(&placed.free);
        result.buffer = placed.buffer;
        let spots = &placed.spots;
        if known.compute != 0 {
            let streamed = units
                .iter()
                .filter(|unit| !unit.embedding)
                .map(|unit| unit.bytes)
                .max()
                .unwrap_or(0);
            let computing = request.need.minimum.unwrap_or(request.need.required);
            let capacity = table.totals[known.compute];
            if streamed.saturating_add(computing) > capacity {
                plan.problems.push(format!(
                    "{}: {} has {}; computing needs {} there and the largest layer {}",
                    model.name,
                    table.names[known.compute],
                    readable(capacity),
                    readable(computing),
                    readable(streamed)
                ));
            }
        }
        let mut places: BTreeMap<DeviceIndex, u64> = BTreeMap::new();
        for (unit, spot) in units.iter().zip(spots) {
            *places.entry(*spot).or_default() += unit.bytes;
            if *spot == known.compute {
                result.resident += unit.bytes;
            } else {
                result.offloaded += unit.bytes;
            }
            result
                .units
                .push((Arc::clone(&unit.name), table.names[*spot].clone()));
        }
        result.places = places
            .into_iter()
            .map(|(spot, bytes)| (table.names[spot].clone(), bytes))
            .collect();
        result.full = result.offloaded == 0;
        result
    }
}

/// Bytes of a step's item on a device.
fn on(scene: &Scene, step: &crate::PlanStep, spot: DeviceIndex) -> u64 {
    let mine = |item: &&plan::Item| item.weights == step.weights && item.model == step.model;
    let item = scene.items.iter().find(mine);
    item.and_then(|item| item.bytes.get(spot).copied())
        .unwrap_or(0)
}
