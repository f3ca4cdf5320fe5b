//! Which worker takes which job.
//!
//! Pure: no clock, no thread, no file. Whoever hands jobs out keeps a [`FairQueue`] of what waits and a [`Fleet`] of who works,
//! and asks [`Fleet::place`] whenever a worker is free. The store of the engine does so, and so does the simulator of
//! `cargo xtask sim cluster`, over the same functions.
//!
//! The order of the queue is kept, except that
//!
//! - clients take turns: the first job of each comes before the second of any ([`FairQueue`]);
//! - a job whose weights are in the memory of the worker that asks may go before others, each of which is passed over at most
//!   [`Rules::passes`] times;
//! - a job may wait for the worker that has its weights, if that is free again sooner than another could load them.
//!
//! A job that was put in front waits for nobody but an idle worker that has its weights.

mod fleet;
mod free;
mod key;
mod queue;
mod report;

pub use fleet::{Choice, Fleet, Lacking, Rules, WaitingJob};
pub use free::{FreeNote, FreeRequest};
pub use key::NeedKey;
pub use queue::{FairQueue, InLine};
pub use report::{DeviceBytes, FreedModel, PlannedStep, RoomReport, StepAction};

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// What a job wants from its worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobNeeds {
    /// What it loads, by key.
    models: Vec<ModelNeed>,
    /// Devices that its nodes name: it runs only where they are.
    devices: Vec<Arc<str>>,
}

/// Weights of one job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelNeed {
    pub key: NeedKey,
    pub bytes: u64,
}

impl JobNeeds {
    pub fn new(mut models: Vec<ModelNeed>, mut devices: Vec<Arc<str>>) -> Self {
        models.sort();
        models.dedup_by(|a, b| a.key == b.key);
        devices.sort();
        devices.dedup();
        Self { models, devices }
    }

    pub fn models(&self) -> &[ModelNeed] {
        &self.models
    }

    pub fn devices(&self) -> &[Arc<str>] {
        &self.devices
    }

    fn bytes(&self) -> u64 {
        let bytes = self.models.iter().map(|model| model.bytes);
        bytes.fold(0, u64::saturating_add)
    }
}

/// What a worker has, as it said when it last asked for a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "ViewMessage")]
pub struct WorkerView {
    resident: Vec<Resident>,
    devices: Vec<Arc<str>>,
    /// Bytes of weights that its devices hold together; 0: unknown, whatever comes fits.
    room: u64,
    /// What it can load; none: what everybody has.
    #[serde(skip)]
    inventory: Option<Inventory>,
}

/// A view as it is read, before its lists are put in order.
#[derive(Deserialize)]
struct ViewMessage {
    resident: Vec<Resident>,
    devices: Vec<Arc<str>>,
    room: u64,
}

impl From<ViewMessage> for WorkerView {
    fn from(message: ViewMessage) -> Self {
        Self::new(message.resident, message.devices, message.room)
    }
}

/// Keys of the models, and of whatever else jobs need, that a worker has at hand. Clones share it: it is long, and views are
/// made for every job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory(Arc<[NeedKey]>);

impl Inventory {
    pub fn new(mut keys: Vec<NeedKey>) -> Self {
        keys.sort();
        keys.dedup();
        Self(keys.into())
    }

    pub fn has(&self, key: &NeedKey) -> bool {
        self.0.binary_search(key).is_ok()
    }

    pub fn keys(&self) -> &[NeedKey] {
        &self.0
    }
}

/// Weights in a worker's memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Resident {
    pub key: NeedKey,
    pub bytes: u64,
    /// Somebody wants them to stay: they make no room for others.
    pub kept: bool,
}

impl WorkerView {
    pub fn new(mut resident: Vec<Resident>, mut devices: Vec<Arc<str>>, room: u64) -> Self {
        resident.sort();
        // Parts of one file count together.
        let mut merged: Vec<Resident> = Vec::with_capacity(resident.len());
        for one in resident {
            match merged.last_mut() {
                Some(last) if last.key == one.key => {
                    last.bytes = last.bytes.saturating_add(one.bytes);
                    last.kept |= one.kept;
                }
                _ => merged.push(one),
            }
        }
        devices.sort();
        Self {
            resident: merged,
            devices,
            room,
            inventory: None,
        }
    }

    /// Says that it can load these models and no others.
    pub fn with_inventory(mut self, inventory: Inventory) -> Self {
        self.inventory = Some(inventory);
        self
    }

    /// The same worker with its models under other keys.
    pub fn with_resident(&self, resident: Vec<Resident>) -> Self {
        let inventory = self.inventory.clone();
        let new = Self::new(resident, self.devices.clone(), self.room);
        Self { inventory, ..new }
    }

    pub fn devices(&self) -> &[Arc<str>] {
        &self.devices
    }

    pub fn room(&self) -> u64 {
        self.room
    }

    /// Keys of what a job needs and this worker cannot load.
    fn lacks<'a>(&self, needs: &'a JobNeeds) -> impl Iterator<Item = &'a NeedKey> {
        let keys = needs.models.iter().map(|model| &model.key);
        keys.filter(|key| self.inventory.as_ref().is_some_and(|have| !have.has(key)))
    }

    pub fn resident(&self) -> &[Resident] {
        &self.resident
    }

    fn find(&self, key: &NeedKey) -> Option<&Resident> {
        let at = self.resident.binary_search_by(|one| one.key.cmp(key));
        at.ok().map(|at| &self.resident[at])
    }

    /// Bytes that it would have to load for a job.
    pub fn missing(&self, needs: &JobNeeds) -> u64 {
        let missing = needs.models.iter().map(|model| {
            let there = self.find(&model.key).map_or(0, |one| one.bytes);
            // What is there for the most part counts as there: the rest streams or was never meant to stay.
            if there > 0 && there >= model.bytes / 2 {
                0
            } else {
                model.bytes
            }
        });
        missing.fold(0, u64::saturating_add)
    }

    /// Whether everything that a job loads is there.
    pub fn is_home(&self, needs: &JobNeeds) -> bool {
        needs.models.is_empty() || self.missing(needs) == 0
    }

    /// Whether a job's weights can all be there at once, beside those that are to stay.
    pub fn fits(&self, needs: &JobNeeds) -> bool {
        if self.room == 0 {
            return true;
        }
        let stays =
            |one: &&Resident| one.kept && !needs.models.iter().any(|model| model.key == one.key);
        let kept = self.resident.iter().filter(stays).map(|one| one.bytes);
        let kept = kept.fold(0, u64::saturating_add);
        needs.bytes() <= self.room.saturating_sub(kept)
    }

    /// Whether that needs nobody to make room.
    fn fits_beside(&self, needs: &JobNeeds) -> bool {
        let there = self.resident.iter().map(|one| one.bytes);
        let there = there.fold(0, u64::saturating_add);
        self.room == 0 || there.saturating_add(self.missing(needs)) <= self.room
    }

    /// Whether it may run a job at all.
    fn may_run(&self, needs: &JobNeeds) -> bool {
        let has = |device: &Arc<str>| self.devices.binary_search(device).is_ok();
        needs.devices.iter().all(has) && self.lacks(needs).next().is_none()
    }

    /// As it will be with a job's weights, those that were there longest counted out. Who really goes, the worker decides;
    /// it says so when it asks again.
    fn with(&self, needs: &JobNeeds) -> Self {
        let mut next = self.clone();
        for model in &needs.models {
            match next
                .resident
                .binary_search_by(|one| one.key.cmp(&model.key))
            {
                Ok(at) => next.resident[at].bytes = next.resident[at].bytes.max(model.bytes),
                Err(at) => next.resident.insert(
                    at,
                    Resident {
                        key: model.key.clone(),
                        bytes: model.bytes,
                        kept: false,
                    },
                ),
            }
        }
        next
    }
}
