//! Which device holds which unit of a model that is spread over several: virtual memory, expert texts, block swap. Pure.

use std::collections::BTreeSet;

use crate::Unit;
use crate::amount::{clamp, gib, readable};
use crate::expert::{DeviceTotal, Expert, device_order, ordered, quotas};

/// What was asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum Placement {
    /// So many GiB of the model are on other devices, filled in this order.
    Virtual { gb: f64, donors: Vec<String> },
    /// Amounts by device.
    Expert(Expert),
    /// The last `blocks` blocks are on `device`; `ahead` of them are fetched before they are used.
    Swap {
        blocks: u32,
        device: String,
        ahead: u32,
    },
}

/// A device for every unit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Distribution {
    /// By unit: position in `devices`.
    pub of: Vec<usize>,
    /// In the order they are filled: by name and number, `cpu` last.
    pub devices: Vec<String>,
    /// By device: bytes it may hold. Small units, and for text encoders embeddings, come on top on the compute device.
    pub quotas: Vec<u64>,
    /// Units that fitted nowhere, ascending.
    pub orphans: Vec<usize>,
    /// Each begins with its code: `underallocated: ...`.
    pub warnings: Vec<String>,
}

impl Distribution {
    pub fn device(&self, unit: usize) -> Option<&str> {
        self.devices.get(*self.of.get(unit)?).map(String::as_str)
    }

    /// Bytes on every device.
    pub fn held(&self, units: &[Unit]) -> Vec<u64> {
        let mut held = vec![0u64; self.devices.len()];
        for (unit, device) in units.iter().zip(&self.of) {
            if let Some(held) = held.get_mut(*device) {
                *held = held.saturating_add(unit.bytes);
            }
        }
        held
    }
}

/// Assigns every unit once. The result depends on what is given, not on the order of `devices`; names that are not
/// among them count as devices without memory.
pub fn distribute(
    units: &[Unit],
    compute: &str,
    placement: &Placement,
    devices: &[DeviceTotal],
    text_encoder: bool,
) -> Distribution {
    let mut plan = Planner::new(units, compute, placement, devices);
    match placement {
        Placement::Virtual { gb, donors } => plan.lend(*gb, donors),
        Placement::Expert(expert) => plan.expert(expert),
        Placement::Swap { blocks, device, .. } => {
            plan.swap(*blocks, device);
            return plan.finish();
        }
    }
    plan.assign(text_encoder);
    plan.finish()
}

struct Planner<'a> {
    units: &'a [Unit],
    /// Σ of all units.
    total: u64,
    devices: Vec<DeviceTotal>,
    /// Positions in `devices`.
    compute: usize,
    /// Where a unit goes that fits nowhere.
    orphanage: usize,
    quotas: Vec<u64>,
    of: Vec<usize>,
    orphans: Vec<usize>,
    warnings: Vec<String>,
}

impl<'a> Planner<'a> {
    fn new(
        units: &'a [Unit],
        compute: &str,
        placement: &Placement,
        devices: &[DeviceTotal],
    ) -> Self {
        let mut devices: Vec<DeviceTotal> = ordered(devices).into_iter().cloned().collect();
        let named: Vec<&str> = match placement {
            Placement::Virtual { donors, .. } => donors.iter().map(String::as_str).collect(),
            Placement::Expert(expert) => (expert.items.iter())
                .map(|(name, _)| name.as_str())
                .chain([expert.wildcard.as_deref().unwrap_or("cpu")])
                .collect(),
            Placement::Swap { device, .. } => vec![device],
        };
        for name in named.into_iter().chain([compute]) {
            if let Err(place) = devices.binary_search_by(|device| device_order(&device.name, name))
            {
                devices.insert(
                    place,
                    DeviceTotal {
                        name: name.to_owned(),
                        total: 0,
                    },
                );
            }
        }
        let total: u128 = units.iter().map(|unit| u128::from(unit.bytes)).sum();
        let mut plan = Self {
            units,
            total: clamp(total),
            quotas: vec![0; devices.len()],
            devices,
            compute: 0,
            orphanage: 0,
            of: Vec::new(),
            orphans: Vec::new(),
            warnings: Vec::new(),
        };
        plan.compute = plan.place(compute);
        plan.orphanage = plan.compute;
        plan.of = vec![plan.compute; units.len()];
        plan
    }

    fn place(&self, name: &str) -> usize {
        self.devices
            .binary_search_by(|device| device_order(&device.name, name))
            .expect("every name of the placement was added")
    }

    /// Virtual memory: donors take what is asked, the compute device keeps the rest.
    fn lend(&mut self, gb: f64, donors: &[String]) {
        let asked = gib(gb).unwrap_or(0).min(self.total);
        self.quotas[self.compute] = self.total - asked;
        let recipient = self.devices[self.compute].clone();
        let most = clamp(u128::from(recipient.total) * 9 / 10);
        if self.total > most {
            self.warnings.push(format!(
                "model_larger_than_device: the model has {}, {} {}: at least {} of virtual VRAM are needed",
                readable(self.total),
                recipient.name,
                readable(recipient.total),
                readable(self.total - most),
            ));
        }
        let mut left = asked;
        let mut lent = vec![0u64; self.devices.len()];
        for donor in donors {
            let place = self.place(donor);
            let donation = left.min(self.devices[place].total - lent[place]);
            lent[place] += donation;
            self.quotas[place] += donation;
            left -= donation;
        }
        if left > 0 {
            self.warnings.push(format!(
                "donors_too_small: {} of the virtual VRAM have no place on {} and stay on {}",
                readable(left),
                if donors.is_empty() {
                    "any donor".to_owned()
                } else {
                    donors.join(", ")
                },
                recipient.name,
            ));
        }
    }

    fn expert(&mut self, expert: &Expert) {
        let (amounts, left) = quotas(expert, self.total, |name| {
            self.devices[self.place(name)].total
        });
        for ((name, _), quota) in expert.items.iter().zip(amounts) {
            let place = self.place(name);
            self.quotas[place] = self.quotas[place].saturating_add(quota);
        }
        let rest = self.place(expert.wildcard.as_deref().unwrap_or("cpu"));
        self.quotas[rest] = self.quotas[rest].saturating_add(left);
        if left > 0 && expert.wildcard.is_none() {
            self.warnings.push(format!(
                "underallocated: the amounts leave {} of the model's {}; they go to {} (write a * behind the device that is to take the rest)",
                readable(left),
                readable(self.total),
                self.devices[rest].name,
            ));
        }
        // Who limits the compute device does not want more on it than that.
        let compute = &self.devices[self.compute].name;
        let limited = expert.items.iter().any(|(name, _)| name == compute);
        if limited {
            self.orphanage = if left > 0 || expert.wildcard.is_some() {
                rest
            } else {
                // The amounts are for all of the model, so no other device was meant to take anything.
                (0..self.quotas.len())
                    .rfind(|place| *place != self.compute && self.quotas[*place] > 0)
                    .unwrap_or(self.compute)
            };
        }
    }

    /// First fit from the last unit to the first, so that the head of the model goes to the later devices.
    fn assign(&mut self, text_encoder: bool) {
        let mut left = self.quotas.clone();
        let fixed = |unit: &Unit| text_encoder && is_embedding(unit);
        for unit in self.units.iter().filter(|unit| fixed(unit)) {
            left[self.compute] = left[self.compute].saturating_sub(unit.bytes);
        }
        for (number, unit) in self.units.iter().enumerate().rev() {
            // 0.0001 of the model.
            let tiny = u128::from(unit.bytes) * 10_000 < u128::from(self.total);
            if fixed(unit) || tiny || !unit.biased || unit.bytes == 0 {
                continue;
            }
            if let Some(place) = left.iter().position(|left| *left >= unit.bytes) {
                left[place] -= unit.bytes;
                self.of[number] = place;
            } else {
                self.of[number] = self.orphanage;
                self.orphans.push(number);
            }
        }
        self.orphans.reverse();
    }

    /// The last blocks go to the other device; what is in no block stays.
    fn swap(&mut self, blocks: u32, device: &str) {
        let place = self.place(device);
        let all: BTreeSet<u32> = self.units.iter().filter_map(|unit| unit.block).collect();
        let moved: BTreeSet<u32> = all.into_iter().rev().take(blocks as usize).collect();
        let mut held = vec![0u128; self.devices.len()];
        for (number, unit) in self.units.iter().enumerate() {
            if unit.block.is_some_and(|block| moved.contains(&block)) {
                self.of[number] = place;
            }
            held[self.of[number]] += u128::from(unit.bytes);
        }
        self.quotas = held.into_iter().map(clamp).collect();
    }

    fn finish(self) -> Distribution {
        let mut done = Distribution {
            of: self.of,
            devices: Vec::new(),
            quotas: self.quotas,
            orphans: self.orphans,
            warnings: self.warnings,
        };
        done.devices = self
            .devices
            .iter()
            .map(|device| device.name.clone())
            .collect();
        for (device, held) in self.devices.iter().zip(done.held(self.units)) {
            if held > device.total {
                done.warnings.push(format!(
                    "above_device: {} of the model go to {}, which has {}",
                    readable(held),
                    device.name,
                    readable(device.total),
                ));
            }
        }
        done
    }
}

/// By kind; also by the names that text encoders give them, for files that say no kind.
fn is_embedding(unit: &Unit) -> bool {
    const NAMES: [&str; 3] = ["embed", "wte", "wpe"];
    let name = unit.name.to_ascii_lowercase();
    unit.embedding || NAMES.iter().any(|part| name.contains(part))
}

/// The internal form of a placement, for logs and plans: `EXPERT#COMPUTE;GB;DONOR,DONOR`. Empty: no placement.
pub fn allocation_string(
    expert: &str,
    compute: &str,
    virtual_gb: f64,
    donors: &[String],
) -> String {
    let expert = expert.trim();
    let memory = if virtual_gb > 0.0 {
        format!("{compute};{virtual_gb:?};{}", donors.join(","))
    } else if expert.is_empty() {
        return String::new();
    } else {
        compute.to_owned()
    };
    format!("{expert}#{memory}")
}
