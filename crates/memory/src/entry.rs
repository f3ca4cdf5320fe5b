//! The registry's record of weights: what they are, where their units are, who refers to them.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use fresco_tensor::{Device, TensorError};
use sha2::{Digest, Sha256};

use crate::claims::{Claims, Location};
use crate::reason::Wish;
use crate::{
    ContentKey, EjectOthers, ModelId, Origin, Placement, PlanStep, Policy, Unit, Weights,
    WeightsId, Who,
};

/// A device by its place in the registry's list; the main memory is 0.
pub(crate) type DeviceIndex = usize;

/// The devices of the registry, the main memory first. Grows when something names another one.
#[derive(Debug, Clone)]
pub(crate) struct Devices(Vec<Device>);

impl Devices {
    pub(crate) fn new(accelerators: &[Device]) -> Self {
        let mut devices = Self(vec![Device::cpu()]);
        for device in accelerators {
            devices.spot(device);
        }
        devices
    }

    pub(crate) fn spot(&mut self, device: &Device) -> DeviceIndex {
        if let Some(spot) = self.0.iter().position(|d| d == device) {
            return spot;
        }
        self.0.push(device.clone());
        self.0.len() - 1
    }

    pub(crate) fn find(&self, name: &str) -> Option<DeviceIndex> {
        self.0.iter().position(|device| device.name() == name)
    }

    pub(crate) fn get(&self, spot: DeviceIndex) -> &Device {
        &self.0[spot]
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Device> {
        self.0.iter()
    }
}

/// Units that are moved and dropped together: those handles share, or those one handle has of its own.
pub(crate) struct WeightPart {
    pub(crate) weights: Arc<dyn Weights>,
    pub(crate) units: Arc<[Unit]>,
    /// Which of the units are counted here.
    pub(crate) mine: Vec<usize>,
    pub(crate) homes: Vec<Option<DeviceIndex>>,
    /// By device.
    pub(crate) sums: Vec<u64>,
    pub(crate) total: u64,
}

impl WeightPart {
    pub(crate) fn new(weights: Arc<dyn Weights>, own_only: bool, devices: &mut Devices) -> Self {
        let units = weights.units();
        let mine: Vec<usize> = (0..units.len())
            .filter(|i| !own_only || units[*i].own)
            .collect();
        let mut part = Self {
            total: mine.iter().map(|i| units[*i].bytes).sum(),
            homes: vec![None; units.len()],
            weights,
            units,
            mine,
            sums: Vec::new(),
        };
        part.refresh(devices);
        part
    }

    /// Asks where everything is.
    pub(crate) fn refresh(&mut self, devices: &mut Devices) {
        self.sums = vec![0; devices.len()];
        for &unit in &self.mine {
            let home = self.weights.home(unit).map(|device| devices.spot(&device));
            self.homes[unit] = home;
            if let Some(spot) = home {
                add(&mut self.sums, spot, self.units[unit].bytes);
            }
        }
    }

    pub(crate) fn home(&self, unit: usize) -> Option<DeviceIndex> {
        self.homes[unit]
    }

    pub(crate) fn on(&self, spot: DeviceIndex) -> u64 {
        self.sums.get(spot).copied().unwrap_or(0)
    }

    /// Bytes in memory, wherever.
    pub(crate) fn in_memory(&self) -> u64 {
        self.sums.iter().sum()
    }

    /// Bytes that main memory really has of those at home there: not what is still in its file, such as what a LoRA replaces.
    pub(crate) fn in_main_memory(&self) -> u64 {
        let home = self.on_spot(0).into_iter();
        let unread: u64 = home.map(|unit| self.weights.unread_bytes(unit)).sum();
        self.on(0).saturating_sub(unread)
    }

    /// Bytes that are only in the file.
    pub(crate) fn missing(&self) -> u64 {
        self.total - self.in_memory()
    }

    pub(crate) fn on_spot(&self, spot: DeviceIndex) -> Vec<usize> {
        let there = |unit: &usize| self.homes[*unit] == Some(spot);
        self.mine.iter().copied().filter(there).collect()
    }

    pub(crate) fn move_to(
        &mut self,
        unit: usize,
        spot: DeviceIndex,
        devices: &Devices,
    ) -> Result<(), TensorError> {
        let Some(from) = self.homes[unit] else {
            // Only in the file: there is nothing to move.
            return Ok(());
        };
        if from == spot {
            return Ok(());
        }
        self.weights.move_to(unit, devices.get(spot))?;
        let bytes = self.units[unit].bytes;
        self.sums[from] -= bytes;
        add(&mut self.sums, spot, bytes);
        self.homes[unit] = Some(spot);
        Ok(())
    }

    /// Drops everything. What is still there afterwards is an error.
    pub(crate) fn release(&mut self, devices: &mut Devices) -> Result<(), String> {
        let result = self.weights.release();
        self.refresh(devices);
        result.map_err(|error| chain(&*error))?;
        match self.in_memory() {
            0 => Ok(()),
            left => Err(format!("{left} bytes did not go")),
        }
    }
}

fn add(sums: &mut Vec<u64>, spot: DeviceIndex, bytes: u64) {
    if sums.len() <= spot {
        sums.resize(spot + 1, 0);
    }
    sums[spot] += bytes;
}

/// An error with its causes.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

/// Whose a unit of a handle is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Shared,
    Model(ModelId),
}

/// Of a handle, what the registry knows.
pub(crate) struct HandleState {
    pub(crate) parent: Option<ModelId>,
    pub(crate) compute: DeviceIndex,
    pub(crate) offload: DeviceIndex,
    pub(crate) placement: Option<Placement>,
    /// The node that made it, or made what it was derived from.
    pub(crate) loader: Who,
    /// To be done before the first load in this prompt.
    pub(crate) eject: Option<(EjectOthers, Arc<str>)>,
    pub(crate) text_encoder: bool,
    pub(crate) full: bool,
    /// What patches made.
    pub(crate) own: Option<WeightPart>,
    /// By unit of the handle: whose it is and which of theirs. None: all shared, in the same order.
    pub(crate) refs: Option<Arc<[(Owner, usize)]>>,
    /// Shared units that own ones stand in for: backups while this handle computes.
    pub(crate) replaced: Vec<usize>,
    pub(crate) patches: usize,
    pub(crate) patch_version: u64,
    /// Kept free for streaming, by its last load.
    pub(crate) buffer: u64,
    /// Where its last load wanted the units; and whether no quota had room for one.
    pub(crate) planned: Vec<(DeviceIndex, bool)>,
}

/// A prompt that uses weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) prompt: Arc<str>,
    pub(crate) model: ModelId,
}

/// A release that did not work.
#[derive(Debug, Clone)]
pub(crate) struct FailedRelease {
    pub(crate) tried: Instant,
    /// What was to be done, so that the next try says the same; none where reading went wrong.
    pub(crate) step: Option<PlanStep>,
}

/// Devices to be left when nobody holds the weights any more.
#[derive(Debug, Clone)]
pub(crate) enum Later {
    All,
    Some(Vec<String>),
}

impl Later {
    pub(crate) fn names(&self, device: &str) -> bool {
        match self {
            Self::All => true,
            Self::Some(names) => names.iter().any(|name| name == device),
        }
    }
}

pub(crate) struct ModelEntry {
    pub(crate) id: WeightsId,
    pub(crate) key: ContentKey,
    pub(crate) location: Location,
    pub(crate) class: Arc<str>,
    pub(crate) shared: Arc<dyn Any + Send + Sync>,
    pub(crate) base: WeightPart,
    pub(crate) handles: BTreeMap<ModelId, HandleState>,
    pub(crate) claims: Claims,
    pub(crate) holds: Vec<Hold>,
    /// Prompts whose loader has it in hand and has not made a handle yet.
    pub(crate) opening: Vec<Arc<str>>,
    /// Somebody reads its files now.
    pub(crate) busy: bool,
    /// It could not be released.
    pub(crate) failed: Option<FailedRelease>,
    /// Its prompt is over and asked for it to go, in these words; somebody else held it.
    pub(crate) ejected: Option<Wish>,
    /// Asked to go, by whom, while somebody held it.
    pub(crate) removed: Option<Origin>,
    /// Asked to leave devices while somebody held it.
    pub(crate) unload_later: Option<Later>,
    /// Released: not listed any more unless a claim keeps it.
    pub(crate) gone: bool,
    /// It was in memory before.
    pub(crate) was_loaded: bool,
    /// Computes in main memory and was told to unload.
    pub(crate) marked_offloaded: bool,
    pub(crate) demoted_by: Option<&'static str>,
    pub(crate) read_bytes: u64,
    /// Order of uses.
    pub(crate) used: u64,
    pub(crate) last_used: Option<SystemTime>,
    /// When its time to live is over.
    pub(crate) deadline: Option<Instant>,
    /// The handle that used it last.
    pub(crate) last_model: Option<ModelId>,
}

impl ModelEntry {
    pub(crate) fn new(
        key: &ContentKey,
        id: WeightsId,
        class: &str,
        shared: Arc<dyn Any + Send + Sync>,
        base: WeightPart,
    ) -> Self {
        Self {
            id,
            location: Location::of(key),
            key: key.clone(),
            class: class.into(),
            shared,
            base,
            handles: BTreeMap::new(),
            claims: Claims::default(),
            holds: Vec::new(),
            opening: Vec::new(),
            busy: false,
            failed: None,
            ejected: None,
            removed: None,
            unload_later: None,
            gone: false,
            was_loaded: false,
            marked_offloaded: false,
            demoted_by: None,
            read_bytes: 0,
            used: 0,
            last_used: None,
            deadline: None,
            last_model: None,
        }
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = &WeightPart> {
        std::iter::once(&self.base).chain(self.handles.values().filter_map(|h| h.own.as_ref()))
    }

    pub(crate) fn parts_by_owner(&mut self) -> impl Iterator<Item = (Owner, &mut WeightPart)> {
        let own = self.handles.iter_mut();
        let own =
            own.filter_map(|(model, handle)| Some((Owner::Model(*model), handle.own.as_mut()?)));
        std::iter::once((Owner::Shared, &mut self.base)).chain(own)
    }

    pub(crate) fn on(&self, spot: DeviceIndex) -> u64 {
        self.parts().map(|part| part.on(spot)).sum()
    }

    pub(crate) fn in_memory(&self) -> u64 {
        self.parts().map(WeightPart::in_memory).sum()
    }

    /// What main memory really has of them.
    pub(crate) fn in_main_memory(&self) -> u64 {
        self.parts().map(WeightPart::in_main_memory).sum()
    }

    pub(crate) fn is_held(&self) -> bool {
        !self.holds.is_empty() || self.busy
    }

    pub(crate) fn is_held_by_other(&self, prompt: &str) -> bool {
        self.holds.iter().any(|hold| &*hold.prompt != prompt)
    }

    pub(crate) fn is_orphan(&self) -> bool {
        self.handles.is_empty()
            && !self.is_held()
            && self.opening.is_empty()
            && self
                .claims
                .active()
                .all(|claim| claim.policy <= Policy::Auto)
    }

    /// Whether it is listed.
    pub(crate) fn is_visible(&self) -> bool {
        !self.gone || self.in_memory() > 0 || self.busy || self.claims.policy() > Policy::EjectAfter
    }

    /// A handle, the one it was made from, and so on.
    pub(crate) fn lineage(&self, model: ModelId) -> Vec<ModelId> {
        let mut line = vec![model];
        while let Some(parent) = line.last().and_then(|id| self.handles.get(id)?.parent) {
            line.push(parent);
        }
        line
    }

    /// Shared units that a handle does not compute with.
    pub(crate) fn replaced(&self, model: ModelId) -> &[usize] {
        self.handles
            .get(&model)
            .map_or(&[], |handle| &handle.replaced)
    }

    /// The units of a handle as it computes with them.
    pub(crate) fn units_of(&self, model: ModelId) -> Arc<[Unit]> {
        let own = self.handles.get(&model).and_then(|h| h.own.as_ref());
        Arc::clone(&own.unwrap_or(&self.base).units)
    }

    pub(crate) fn owner(&self, model: ModelId, unit: usize) -> (Owner, usize) {
        match self.handles.get(&model).and_then(|h| h.refs.as_ref()) {
            Some(refs) => refs[unit],
            None => (Owner::Shared, unit),
        }
    }

    pub(crate) fn part(&self, owner: Owner) -> Option<&WeightPart> {
        match owner {
            Owner::Shared => Some(&self.base),
            Owner::Model(model) => self.handles.get(&model)?.own.as_ref(),
        }
    }

    pub(crate) fn part_mut(&mut self, owner: Owner) -> Option<&mut WeightPart> {
        match owner {
            Owner::Shared => Some(&mut self.base),
            Owner::Model(model) => self.handles.get_mut(&model)?.own.as_mut(),
        }
    }

    /// Where a unit of a handle is.
    pub(crate) fn home(&self, model: ModelId, unit: usize) -> Option<DeviceIndex> {
        let (owner, index) = self.owner(model, unit);
        self.part(owner)?.home(index)
    }

    /// What a handle computes with.
    pub(crate) fn weights_of(&self, model: ModelId) -> Arc<dyn Weights> {
        let own = self.handles.get(&model).and_then(|h| h.own.as_ref());
        Arc::clone(&own.unwrap_or(&self.base).weights)
    }

    /// Where its units go when they leave `from`.
    pub(crate) fn offload(&self, from: DeviceIndex) -> DeviceIndex {
        let last = self.last_model.and_then(|model| self.handles.get(&model));
        let handle = last.or_else(|| self.handles.values().next());
        handle
            .map(|h| h.offload)
            .filter(|to| *to != from)
            .unwrap_or(0)
    }

    /// Bytes that would be on a device if there were room: not what is only a backup of patched units.
    pub(crate) fn offloaded(&self) -> u64 {
        let backups = self.last_model.map_or(0, |model| {
            let bytes = |unit: &usize| self.base.units[*unit].bytes;
            self.replaced(model).iter().map(bytes).sum()
        });
        let on_devices = self.base.in_memory() - self.base.on(0);
        self.base
            .total
            .saturating_sub(on_devices)
            .saturating_sub(backups)
    }
}

/// The name of weights: a file name to read, the component, and a digest of the whole key.
pub(crate) fn weights_id(key: &ContentKey) -> WeightsId {
    let mut hash = Sha256::new();
    let mut text = |part: &[u8]| {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    };
    for file in &key.files {
        text(file.path.as_os_str().as_encoded_bytes());
        text(&file.size.to_le_bytes());
        let modified = file
            .modified
            .map(|time| match time.duration_since(UNIX_EPOCH) {
                Ok(after) => after.as_nanos() as i128,
                Err(before) => -(before.duration().as_nanos() as i128),
            });
        text(&modified.map_or_else(Vec::new, |nanos| nanos.to_le_bytes().to_vec()));
    }
    text(key.component.as_bytes());
    text(key.options.as_bytes());
    let digest = hash.finalize();
    let name = key.files.first().and_then(|file| file.path.file_name());
    let name = name.map_or_else(|| "weights".into(), |name| name.to_string_lossy());
    let digest = hex::encode(&digest[..5]);
    WeightsId::new(&format!("{name}:{}-{digest}", key.component))
}
