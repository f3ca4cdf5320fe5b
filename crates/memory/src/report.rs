//! Everything as it is now, for whoever asks.

use std::sync::Arc;

use fresco_placement::DeviceBytes;
use fresco_tensor::DeviceId;

use crate::amount::Decimal;
use crate::entry::{DeviceIndex, ModelEntry};
use crate::registry::{ModelRegistry, State};
use crate::{
    Amount, DeviceReport, HandleReport, HostMemory, ModelId, ModelReport, Placement, Snapshot,
    State as ModelState, UnitReport, WeightsId, allocation_string,
};

/// Bytes by device as other processes and the API read them.
pub fn device_bytes(places: &[(String, u64)]) -> DeviceBytes {
    let of = |(device, bytes): &(String, u64)| (device.as_str().into(), *bytes);
    places.iter().map(of).collect()
}

impl ModelRegistry {
    /// Devices and listed models.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_with(self.host())
    }

    /// The same without a question to the system: figures of main memory are zero.
    pub fn snapshot_of_devices(&self) -> Snapshot {
        self.snapshot_with(None)
    }

    fn snapshot_with(&self, host: Option<HostMemory>) -> Snapshot {
        let minimum = self.settings().reserves.minimum();
        let state = self.lock();
        let mut devices = Vec::new();
        for (spot, device) in state.devices.iter().enumerate() {
            let weights = |entry: &ModelEntry| match spot {
                0 => entry.in_main_memory(),
                _ => entry.on(spot),
            };
            let buffers = |entry: &ModelEntry| -> u64 {
                let mine = entry
                    .handles
                    .values()
                    .filter(|handle| handle.compute == spot);
                mine.map(|handle| handle.buffer).max().unwrap_or(0)
            };
            let cpu = device.is_cpu();
            let total = device.capacity().or(host.map(|h| h.total)).unwrap_or(0);
            let free = device.free().or(host.map(|h| h.available)).unwrap_or(0);
            let name = device.name();
            let number = name.rsplit_once(':');
            devices.push(DeviceReport {
                kind: match device.id() {
                    DeviceId::Cpu => "cpu",
                    DeviceId::Sim(_) => "sim",
                    DeviceId::Gpu(gpu) => gpu.backend,
                },
                index: number.and_then(|(_, number)| number.parse().ok()),
                total,
                free,
                // The main memory has no allocator of its own; a simulated device holds nothing in reserve.
                allocator_reserved: if cpu {
                    total
                } else {
                    total.saturating_sub(free)
                },
                allocator_free: if cpu { free } else { 0 },
                reserved: if cpu { 0 } else { minimum },
                weights_resident: state.entries.values().map(weights).sum(),
                weights_buffer: if cpu {
                    0
                } else {
                    state.entries.values().map(buffers).max().unwrap_or(0)
                },
                peak: device.peak(),
                pinned_host: 0,
                device: name,
            });
        }
        let listed = state.entries.values().filter(|entry| entry.is_visible());
        let models = listed.map(|entry| state.model_report(entry)).collect();
        Snapshot { devices, models }
    }

    /// One listed model, by weights id or by the id of a handle, and where its units are.
    pub fn model(&self, id: &str) -> Option<(ModelReport, Vec<UnitReport>)> {
        let state = self.lock();
        let id = state.visible(id)?;
        let entry = &state.entries[&id];
        Some((state.model_report(entry), state.unit_reports(entry)))
    }
}

impl State {
    pub(crate) fn report(&self, id: &WeightsId) -> Option<ModelReport> {
        self.entries.get(id).map(|entry| self.model_report(entry))
    }

    fn model_report(&self, entry: &ModelEntry) -> ModelReport {
        let effective = entry.claims.effective();
        let mut leases: Vec<Arc<str>> = Vec::new();
        for hold in &entry.holds {
            if !hold.prompt.is_empty() && !leases.contains(&hold.prompt) {
                leases.push(Arc::clone(&hold.prompt));
            }
        }
        let mut residency: Vec<(String, u64)> = self.places(&entry.id);
        residency.retain(|(name, _)| name != "cpu");
        residency.sort_by(|a, b| crate::device_order(&a.0, &b.0));
        ModelReport {
            weights: entry.id.clone(),
            files: entry
                .key
                .files
                .iter()
                .map(|file| file.path.clone())
                .collect(),
            component: entry.key.component.clone(),
            class: Arc::clone(&entry.class),
            bytes_total: entry.base.total,
            residency,
            host_bytes: entry.in_main_memory(),
            pinned_bytes: 0,
            state: state_of(entry),
            policy: effective.policy,
            policy_source: effective.set_by.source,
            claims: entry.claims.reports(),
            leases,
            handles: entry
                .handles
                .keys()
                .map(|model| self.handle_report(entry, *model))
                .collect(),
            last_used: entry.last_used,
            demoted_by: entry.demoted_by,
            read_bytes: entry.read_bytes,
            worker: self.log.worker.clone(),
        }
    }

    fn handle_report(&self, entry: &ModelEntry, model: ModelId) -> HandleReport {
        let handle = &entry.handles[&model];
        let compute_device = self.name(handle.compute);
        let own = match &handle.own {
            Some(part) => (0..self.devices.len())
                .filter(|spot| part.on(*spot) > 0)
                .map(|spot| (self.name(spot), part.on(spot)))
                .collect(),
            None => Vec::new(),
        };
        HandleReport {
            model,
            patch_version: handle.patch_version,
            patches: handle.patches,
            on_the_fly: entry.weights_of(model).on_the_fly(),
            own,
            placement: handle
                .placement
                .as_ref()
                .map(|placement| describe(placement, &compute_device)),
            compute_device,
        }
    }

    /// As the handle that used it last computes with it.
    fn unit_reports(&self, entry: &ModelEntry) -> Vec<UnitReport> {
        let last = entry
            .last_model
            .filter(|model| entry.handles.contains_key(model));
        let model = last.or_else(|| entry.handles.keys().next().copied());
        let units = match model {
            Some(model) => entry.units_of(model),
            None => Arc::clone(&entry.base.units),
        };
        let planned = model
            .and_then(|model| entry.handles.get(&model))
            .map(|handle| &handle.planned);
        let home = |unit: usize| -> Option<DeviceIndex> {
            match model {
                Some(model) => entry.home(model, unit),
                None => entry.base.home(unit),
            }
        };
        let report = |(index, unit): (usize, &crate::Unit)| {
            let planned = planned.and_then(|planned| planned.get(index));
            UnitReport {
                name: Arc::clone(&unit.name),
                bytes: unit.bytes,
                home: home(index).map(|spot| self.name(spot)),
                planned: planned.map(|(spot, _)| self.name(*spot)),
                orphan: planned.is_some_and(|(_, orphan)| *orphan),
            }
        };
        units.iter().enumerate().map(report).collect()
    }
}

/// The allocation string of a placement.
pub(crate) fn describe(placement: &Placement, compute: &str) -> String {
    match placement {
        Placement::Virtual { gb, donors } => allocation_string("", compute, *gb, donors),
        Placement::Expert(expert) => {
            let mut text: Vec<String> = expert
                .items
                .iter()
                .map(|(device, amount)| format!("{device},{}", amount_text(amount)))
                .collect();
            if let Some(wildcard) = &expert.wildcard
                && !expert.items.iter().any(|(device, _)| device == wildcard)
            {
                text.push(format!("{wildcard},*"));
            }
            allocation_string(&text.join(";"), compute, 0.0, &[])
        }
        Placement::Swap {
            blocks,
            device,
            ahead,
        } => format!("blocks {blocks} on {device}, {ahead} ahead#{compute}"),
    }
}

fn amount_text(amount: &Amount) -> String {
    let decimal = |value: Decimal| {
        let text = format!(
            "{}.{:09}",
            value.billionths() / 1_000_000_000,
            value.billionths() % 1_000_000_000
        );
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match amount {
        Amount::Bytes(bytes) => format!("{bytes}b"),
        Amount::Percent(value) => format!("{}%", decimal(*value)),
        Amount::Fraction(value) => decimal(*value),
        Amount::Rest => "*".to_owned(),
    }
}

fn state_of(entry: &ModelEntry) -> ModelState {
    if entry.failed.is_some() {
        return ModelState::ReleaseFailed;
    }
    if entry.in_memory() == 0 {
        return ModelState::Released;
    }
    let last = entry
        .last_model
        .filter(|model| entry.handles.contains_key(model));
    let Some(model) = last.or_else(|| entry.handles.keys().next().copied()) else {
        // Nobody computes with it: what counts is whether it is on a device.
        let away = entry.base.in_memory() - entry.base.on(0);
        return match away {
            0 => ModelState::Offloaded,
            away if away == entry.base.total => ModelState::Resident,
            _ => ModelState::Partial,
        };
    };
    let compute = entry.handles[&model].compute;
    if compute == 0 && entry.marked_offloaded {
        return ModelState::Offloaded;
    }
    let count = entry.units_of(model).len();
    let here = (0..count)
        .filter(|unit| entry.home(model, *unit) == Some(compute))
        .count();
    match here {
        _ if here == count => ModelState::Resident,
        0 => ModelState::Offloaded,
        _ => ModelState::Partial,
    }
}
