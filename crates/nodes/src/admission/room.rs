//! Whether models find room: each by itself on its device, all together in main memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use fresco_memory::amount::readable;
use fresco_memory::{DeviceReport, LoadModel, LoadRequest, ModelRegistry, Need, Policy, Snapshot};

use super::files::{FilePart, Pass};
use super::prompt::{PlannedLoad, plan};
use super::{Assessment, DevicePlan, ModelPlan, Outcome, Shard, Verdict};
use crate::resident::Component;

/// Pixels of a latent's cell.
const CELL: u64 = 8;

/// A picture before it is one, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    pub batch: u64,
    pub width: u64,
    pub height: u64,
}

impl Latent {
    pub(super) fn cells(&self) -> u64 {
        let (h, w) = (self.height / CELL, self.width / CELL);
        self.batch.saturating_mul(h.saturating_mul(w))
    }

    /// Of a picture's latent with cells of so many pixels; those with more dimensions have one frame.
    fn shape(&self, batch: u64, channels: usize, dimensions: usize, cell: usize) -> Vec<usize> {
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let mut shape = vec![size(batch), channels];
        shape.resize(shape.len() + dimensions.saturating_sub(2), 1);
        shape.extend([self.height, self.width].map(|side| size(side) / cell.max(1)));
        shape
    }
}

/// What can be known about room before anything is loaded.
struct Room<'a> {
    registry: &'a ModelRegistry,
    snapshot: Snapshot,
    devices: Vec<DevicePlan>,
    latent: Option<Latent>,
    /// Bytes of models that stay in main memory whatever happens.
    pinned: u64,
}

pub(super) fn judge(
    loads: &[PlannedLoad],
    latent: Option<Latent>,
    registry: &ModelRegistry,
) -> Assessment {
    let snapshot = registry.snapshot();
    let in_host: u64 = snapshot.models.iter().map(|model| model.host_bytes).sum();
    let pinned = snapshot.models.iter().filter(|m| m.policy == Policy::Pin);
    let pinned: u64 = pinned.map(|model| model.host_bytes).sum();
    let device = |report: &DeviceReport| {
        let (held, kept) = if report.device == "cpu" {
            // A twentieth stays free for everything else, as when models are loaded.
            (in_host - pinned, report.total / 20)
        } else {
            (report.weights_resident, 0)
        };
        let available = report.total.min(report.free.saturating_add(held));
        DevicePlan {
            device: report.device.clone(),
            total: report.total,
            free: report.free,
            available: available.saturating_sub(kept),
            reserved: report.reserved,
            wanted: 0,
        }
    };
    let mut room = Room {
        registry,
        devices: snapshot.devices.iter().map(device).collect(),
        snapshot,
        latent,
        pinned,
    };
    let mut models = Vec::new();
    let mut counted = BTreeSet::new();
    let mut host = Host::default();
    for load in loads {
        let compute = load.options.compute.clone();
        let compute = compute.unwrap_or_else(|| load.component.compute(registry));
        let mut model = plan(load, compute.name());
        match &load.part {
            Ok(part) => {
                room.place(load, part, &mut model);
                if counted.insert(part.id.clone()) {
                    let late = if compute.is_gpu() { part.late } else { 0 };
                    host.add(&model, late);
                }
            }
            Err(why) => model.outcome = Outcome::Unknown(why.clone()),
        }
        models.push(model);
    }
    room.conclude(models, &host)
}

/// What all models of a prompt put into main memory.
#[derive(Default)]
struct Host {
    /// Of which some can be on accelerators at the same time.
    movable: Vec<(String, u64)>,
    /// By placement.
    fixed: u64,
    /// A file is read into main memory before it is spread, but for what a GPU takes straight from it.
    largest: u64,
}

impl Host {
    fn add(&mut self, model: &ModelPlan, late: u64) {
        self.largest = self.largest.max(model.bytes.saturating_sub(late));
        if model.placement.is_some() || model.compute == "cpu" {
            let cpu = model.places.iter().filter(|(device, _)| device == "cpu");
            self.fixed += cpu.map(|(_, bytes)| bytes).sum::<u64>();
        } else {
            self.movable.push((model.compute.clone(), model.bytes));
        }
    }

    /// The least that main memory must hold at some time.
    fn needed(&self, devices: &[DevicePlan]) -> u64 {
        let mut needed = self.fixed;
        for device in devices {
            let here = self
                .movable
                .iter()
                .filter(|(name, _)| *name == device.device);
            let bytes: u64 = here.map(|(_, bytes)| bytes).sum();
            needed += bytes.saturating_sub(device.available);
        }
        needed.max(self.largest)
    }
}

impl Room<'_> {
    fn device(&self, name: &str) -> Option<&DevicePlan> {
        self.devices.iter().find(|device| device.device == name)
    }

    /// Bytes for computing as asked and for computing at all.
    fn estimate(&self, part: &FilePart) -> (u64, u64) {
        let Some(latent) = &self.latent else {
            return (0, 0);
        };
        match &part.pass {
            Pass::Diffusion(facts) => {
                let format = facts.latent;
                let bytes = |times: u64| {
                    let batch = latent.batch.saturating_mul(times);
                    let channels = facts.latent_channels;
                    let shape = latent.shape(batch, channels, format.dimensions, format.ratio);
                    facts.pass.bytes(&shape)
                };
                // With and without the prompt at once, or one after the other.
                (bytes(2), bytes(1))
            }
            // With less it works in tiles.
            Pass::Vae(facts) => {
                let dimensions = if facts.temporal_ratio.is_some() { 3 } else { 2 };
                let channels = facts.latent_channels;
                let shape = latent.shape(latent.batch, channels, dimensions, facts.ratio);
                (facts.decode_bytes(&shape), 0)
            }
            Pass::Unknown => (0, 0),
        }
    }

    /// As the registry would place it now.
    fn place(&mut self, load: &PlannedLoad, part: &FilePart, model: &mut ModelPlan) {
        (model.required, model.minimum) = self.estimate(part);
        let offload = load.options.offload.clone();
        let offload = offload.unwrap_or_else(|| load.component.offload(self.registry));
        let known = self.snapshot.models.iter().find(|known| {
            known.component == load.component.name()
                && known.files == load.files
                && known.bytes_total == part.bytes
        });
        let request = LoadRequest {
            models: vec![LoadModel {
                name: model.what.clone(),
                weights: known.map(|known| known.weights.clone()),
                units: part.units.clone(),
                compute: model.compute.clone(),
                offload: offload.name(),
                placement: load.options.placement.clone(),
                text_encoder: load.component == Component::Text,
                full: false,
            }],
            devices: None,
            need: need_of(part, model),
            eject: load.options.eject_others,
        };
        let planned = self.registry.plan_load(&request).models.into_iter().next();
        // Without one the main memory is too small, which is found out for all models together.
        let Some(planned) = planned else {
            model.places = vec![("cpu".to_owned(), part.bytes)];
            return;
        };
        if load.options.placement.is_some() {
            model.shards = shards(&planned.units, part);
        }
        model.places = planned.places;
        model.placement = planned.allocation;
        model.warnings = planned.warnings;
        if !planned.orphans.is_empty() {
            let count = planned.orphans.len();
            model.warnings.push(format!(
                "{count} layers fit into no device's share and go to the one that takes the rest"
            ));
        }
        let device = self.device(&model.compute).filter(|d| d.device != "cpu");
        if let Some(device) = device {
            model.outcome = self.outcome(device, (part, &planned.meant), model);
        }
        for (name, bytes) in &model.places {
            let device = self.devices.iter_mut().find(|d| d.device == *name);
            let computing = if *name == model.compute {
                model.minimum
            } else {
                0
            };
            if let Some(device) = device.filter(|_| name != "cpu") {
                device.wanted = device.wanted.max(bytes.saturating_add(computing));
            }
        }
    }

    /// How a model gets along on the accelerator it computes on.
    fn outcome(
        &self,
        device: &DevicePlan,
        (part, meant): (&FilePart, &[(String, u64)]),
        model: &ModelPlan,
    ) -> Outcome {
        if let Some(why) = refusal(device, part, model) {
            return Outcome::Refused(why);
        }
        let resident = on(&model.places, &model.compute);
        let streamed = part.bytes.saturating_sub(resident);
        if model.placement.is_none() {
            if streamed == 0 {
                return Outcome::Fits;
            }
            let reserves = &self.registry.settings().reserves;
            let need = need_of(part, model);
            let floor = reserves.demand(need.required, need.minimum).floor;
            return Outcome::Streams(format!(
                "{} of {} does not fit on {}, which has {} for it, {} of them kept for computing: {} stay there, {} are brought over while they are used",
                model.what,
                readable(part.bytes),
                device.device,
                readable(device.available),
                readable(floor.min(device.available)),
                readable(resident),
                readable(streamed),
            ));
        }
        let meant = meant.iter();
        let tight: Vec<String> = meant
            .filter(|(name, bytes)| name != "cpu" && on(&model.places, name) < *bytes)
            .map(|(name, bytes)| {
                let have = readable(on(&model.places, name));
                format!(
                    "{} are to be on {name}, there is room for {have}",
                    readable(*bytes)
                )
            })
            .collect();
        if tight.is_empty() {
            Outcome::Placed
        } else {
            Outcome::Streams(format!(
                "{} does not fit as it is placed: {}",
                model.what,
                tight.join("; ")
            ))
        }
    }

    fn conclude(mut self, models: Vec<ModelPlan>, host: &Host) -> Assessment {
        let needed = host.needed(&self.devices);
        let pinned = self.pinned;
        let mut host_refusal = None;
        if let Some(main) = self.devices.iter_mut().find(|d| d.device == "cpu") {
            main.wanted = needed;
            // An unknown size refuses nothing.
            if main.total > 0 && needed > main.available {
                let kept = match pinned {
                    0 => String::new(),
                    bytes => format!(" ({} are pinned by other models)", readable(bytes)),
                };
                host_refusal = Some(format!(
                    "host_memory: the models of this prompt need {} of main memory, and {} of {} can be had{kept}. Possible are fewer or smaller models in one prompt, or more of them on other devices",
                    readable(needed),
                    readable(main.available),
                    readable(main.total),
                ));
            }
        }
        let refused = models.iter().find_map(|model| match &model.outcome {
            Outcome::Refused(why) => Some((model.node.clone(), why.clone())),
            _ => None,
        });
        let streams: Vec<&str> = models
            .iter()
            .filter_map(|model| match &model.outcome {
                Outcome::Streams(how) => Some(how.as_str()),
                _ => None,
            })
            .collect();
        let (blamed, verdict) = if let Some((node, why)) = refused {
            (Some(node), Verdict::Refused(why))
        } else if let Some(why) = host_refusal {
            let largest = models.iter().max_by_key(|model| model.bytes);
            (largest.map(|m| m.node.clone()), Verdict::Refused(why))
        } else if streams.is_empty() {
            (None, Verdict::Fits)
        } else {
            (None, Verdict::Streams(streams.join(". ")))
        };
        Assessment {
            models,
            devices: self.devices,
            latent: self.latent,
            blamed,
            verdict,
        }
    }
}

/// As whoever computes with it will ask. Only sampling can do with less than it wants.
fn need_of(part: &FilePart, model: &ModelPlan) -> Need {
    Need {
        required: model.required,
        minimum: matches!(part.pass, Pass::Diffusion(_)).then_some(model.minimum),
        full: false,
    }
}

/// Devices with the layers they hold; empty if it is one device. Where a part begins and ends is said without the tiny layers,
/// which are with those that compute wherever they stand in the network.
fn shards(places: &[(Arc<str>, String)], part: &FilePart) -> Vec<Shard> {
    let mut shards: Vec<Shard> = Vec::new();
    for ((name, device), unit) in places.iter().zip(part.units.iter()) {
        let tiny = unit.bytes < part.bytes / 10_000;
        let found = shards.iter().position(|shard| shard.device == *device);
        let at = found.unwrap_or_else(|| {
            shards.push(Shard {
                device: device.clone(),
                layers: 0,
                span: None,
            });
            shards.len() - 1
        });
        let shard = &mut shards[at];
        shard.layers += 1;
        if !tiny {
            let first = shard
                .span
                .take()
                .map_or_else(|| name.clone(), |span| span.0);
            shard.span = Some((first, name.clone()));
        }
    }
    if shards.len() < 2 {
        shards.clear();
    }
    shards
}

fn on(places: &[(String, u64)], device: &str) -> u64 {
    let place = places.iter().find(|(name, _)| name == device);
    place.map_or(0, |(_, bytes)| *bytes)
}

/// What cannot run at all: its largest layer and the least for computing must be there together.
fn refusal(device: &DevicePlan, part: &FilePart, model: &ModelPlan) -> Option<String> {
    let needed = part.largest.saturating_add(model.minimum);
    if needed <= device.total {
        return None;
    }
    let name = &device.device;
    let (needed, largest) = (readable(needed), readable(part.largest));
    let (computing, smaller) = match model.minimum {
        0 => (String::new(), ""),
        bytes => (
            format!(" and computing {}, together {needed}", readable(bytes)),
            "a smaller picture, ",
        ),
    };
    Some(format!(
        "{} cannot run on {name}: its largest layer takes {largest}{computing}, and {name} has {}. Possible are {smaller}a device with at least {needed}, or computing on cpu",
        model.what,
        readable(device.total),
    ))
}
