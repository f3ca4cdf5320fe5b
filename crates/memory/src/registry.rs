//! The registry: one owner of where models are and how long they stay.
//!
//! All of it is one state behind one lock. Under it units are given their places, which takes room on devices but copies
//! nothing. Files are read and units copied to their devices without the lock (the entry is marked busy, whoever needs it
//! waits for that), and listeners are called without it. Only what leaves a device is copied under the lock: its room is
//! what the decision is about.

use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fresco_tensor::{Device, TensorError, cancel};

use crate::claims::Claim;
use crate::entry::{DeviceIndex, Devices, ModelEntry};
use crate::events::{Draft, EventNumbers, Listener, Log, Outbox};
use crate::oom::OomStep;
use crate::plan::{Item, Scene};
use crate::settings::{HostMemory, Probes, Settings};
use crate::{DeviceTotal, Event, ModelId, Policy, WeightsId, Who};

/// Owns the weights of all models. Cheap to clone; clones are the same registry.
#[derive(Clone)]
pub struct ModelRegistry(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) settings: Settings,
    accelerators: Vec<Device>,
    state: Mutex<State>,
    /// Some entry is not busy any more.
    idle: Condvar,
    outbox: Outbox,
    probes: Mutex<Probes>,
    /// Handles that were dropped by a thread that had the lock: what the registry drops or calls may hold some.
    dropped: Mutex<Vec<(WeightsId, ModelId)>>,
}

thread_local! {
    /// The registries whose lock this thread has, by address.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A use of models that goes on now.
pub(crate) struct Active {
    pub(crate) who: Who,
    pub(crate) models: Vec<(WeightsId, ModelId)>,
    /// Steps taken against running out of memory.
    pub(crate) step: Option<OomStep>,
}

pub(crate) struct State {
    pub(crate) devices: Devices,
    pub(crate) entries: BTreeMap<WeightsId, ModelEntry>,
    pub(crate) flight: BTreeSet<Arc<str>>,
    pub(crate) active: BTreeMap<u64, Active>,
    pub(crate) log: Log,
    /// Numbers for handles, leases, patches and uses.
    pub(crate) counter: u64,
    pub(crate) models: u64,
    /// When the last prompt ended or something was used.
    pub(crate) quiet_since: Instant,
    /// Dropped after the lock is given back: what is in here may call the registry when it goes.
    pub(crate) trash: Vec<Box<dyn Any + Send>>,
    pub(crate) fresh: Vec<Event>,
}

impl State {
    pub(crate) fn next(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    pub(crate) fn next_model(&mut self) -> ModelId {
        self.models += 1;
        ModelId(self.models)
    }

    pub(crate) fn emit(&mut self, draft: Draft) {
        let event = self.log.write(draft);
        self.fresh.push(event);
    }

    pub(crate) fn discard(&mut self, thing: impl Any + Send) {
        self.trash.push(Box::new(thing));
    }

    pub(crate) fn name(&self, spot: DeviceIndex) -> String {
        self.devices.get(spot).name()
    }

    /// Bytes that can be had there; everything in main memory.
    pub(crate) fn free(&self, spot: DeviceIndex) -> u64 {
        self.devices.get(spot).free().unwrap_or(u64::MAX)
    }

    /// By weights id, or by the id of one of its handles.
    pub(crate) fn find(&self, id: &str) -> Option<WeightsId> {
        let key = WeightsId::new(id);
        if self.entries.contains_key(&key) {
            return Some(key);
        }
        let model = ModelId(id.strip_prefix('m')?.parse().ok()?);
        let mine = |entry: &&ModelEntry| entry.handles.contains_key(&model);
        self.entries
            .values()
            .find(mine)
            .map(|entry| entry.id.clone())
    }

    /// What the planner sees. `needed`: the current load. `merged`: what handles have of their own counts with the
    /// weights they share. `ending`: a prompt that is over.
    pub(crate) fn scene(
        &self,
        needed: &[(WeightsId, ModelId)],
        merged: bool,
        ending: Option<&str>,
    ) -> Scene {
        let count = self.devices.len();
        let mut items = Vec::new();
        for entry in self.entries.values() {
            let touched = |prompt: &str| {
                entry.holds.iter().any(|hold| &*hold.prompt == prompt)
                    || entry.claims.active().any(|claim| &*claim.prompt == prompt)
            };
            let touched = ending.is_some_and(touched);
            let ends = ending.and_then(|prompt| entry.claims.ending(prompt, touched).next());
            // Of several wishes for it to go, the one whose time has come is the one that decides.
            let mut effective = entry.claims.effective();
            if effective.policy <= Policy::EjectAfter {
                let deferred = entry.ejected.clone();
                let due = ends.map(Claim::wish).or(deferred);
                effective = due.unwrap_or(effective);
            }
            let item = Item {
                weights: entry.id.clone(),
                model: None,
                policy: effective.policy,
                set_by: effective.set_by,
                orphan: entry.is_orphan(),
                ejected: entry.ejected.is_some(),
                held: match ending {
                    Some(prompt) => entry.is_held_by_other(prompt) || entry.busy,
                    None => entry.is_held(),
                },
                // Nor what is being read: whoever reads it may hold locks of its own.
                needed: entry.busy || needed.iter().any(|(id, _)| *id == entry.id),
                touched,
                eject: ends.is_some(),
                removed: entry.removed.clone(),
                bytes: (0..count)
                    .map(|spot| match (spot, merged) {
                        (0, true) => entry.in_main_memory(),
                        (0, false) => entry.base.in_main_memory(),
                        (_, true) => entry.on(spot),
                        (_, false) => entry.base.on(spot),
                    })
                    .collect(),
                offloaded: entry.offloaded(),
                size: entry.base.total,
                last_used: entry.used,
            };
            for (model, handle) in &entry.handles {
                let Some(part) = handle
                    .own
                    .as_ref()
                    .filter(|part| !merged && part.in_memory() > 0)
                else {
                    continue;
                };
                let line = |(id, other): &(WeightsId, ModelId)| {
                    *id == entry.id && entry.lineage(*other).contains(model)
                };
                items.push(Item {
                    model: Some(*model),
                    orphan: false,
                    held: entry.busy
                        || entry
                            .holds
                            .iter()
                            .any(|hold| entry.lineage(hold.model).contains(model)),
                    needed: entry.busy || needed.iter().any(line),
                    bytes: (0..count)
                        .map(|spot| match spot {
                            0 => part.in_main_memory(),
                            _ => part.on(spot),
                        })
                        .collect(),
                    offloaded: part.on(0) + part.missing(),
                    size: part.total,
                    ..item.clone()
                });
            }
            items.push(item);
        }
        Scene {
            devices: self.devices.iter().map(Device::name).collect(),
            items,
        }
    }

    /// An entry that nothing needs to be remembered about goes for good.
    pub(crate) fn sweep(&mut self, id: &WeightsId) {
        let done = |entry: &ModelEntry| {
            entry.in_memory() == 0
                && entry.is_orphan()
                && entry.claims.active().next().is_none()
                && entry.failed.is_none()
        };
        if self.entries.get(id).is_some_and(done)
            && let Some(entry) = self.entries.remove(id)
        {
            self.discard((entry.shared, entry.base.weights));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state, locked. When it goes, what was dropped is dropped and what happened is handed out.
pub(crate) struct Guard<'a> {
    registry: &'a ModelRegistry,
    state: Option<MutexGuard<'a, State>>,
}

/// How long a thread that waits for another's load does not look whether its work is still wanted.
const LOOK: Duration = Duration::from_millis(50);

const HELD: &str = "the state is there until the guard is dropped";

impl Deref for Guard<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        self.state.as_ref().expect(HELD)
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect(HELD)
    }
}

impl Guard<'_> {
    fn hand_over(&mut self) -> Vec<Box<dyn Any + Send>> {
        let state = self.state.as_mut().expect(HELD);
        for event in state.fresh.drain(..) {
            self.registry.0.outbox.put(event);
        }
        std::mem::take(&mut state.trash)
    }

    /// Gives the lock back until an entry is not busy any more: the lease that made it busy makes it idle again, also when it
    /// panics. That lease may wait for a disk that does not answer, so the wait ends as soon as this thread's work is not wanted.
    pub(crate) fn wait(&mut self, id: &WeightsId) -> Result<(), TensorError> {
        self.unlock();
        let inner = &*self.registry.0;
        let busy = |state: &mut State| state.entries.get(id).is_some_and(|entry| entry.busy);
        let mut state = lock(&inner.state);
        let mut wanted = cancel::check();
        while wanted.is_ok() && busy(&mut state) {
            let waited = inner.idle.wait_timeout_while(state, LOOK, busy);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            wanted = cancel::check();
        }
        self.state = Some(state);
        self.registry.note_locked();
        wanted
    }

    fn unlock(&mut self) {
        let trash = self.hand_over();
        self.state = None;
        self.registry.note_unlocked();
        drop(trash);
        loop {
            let dropped = std::mem::take(&mut *lock(&self.registry.0.dropped));
            if dropped.is_empty() {
                break;
            }
            for (id, model) in dropped {
                self.registry.drop_handle(&id, model);
            }
        }
        self.registry.0.outbox.deliver();
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.unlock();
    }
}

impl ModelRegistry {
    /// `devices`: the accelerators, the primary one first.
    pub fn new(settings: Settings, devices: Vec<Device>) -> Self {
        Self::with_log(settings, devices, Log::default())
    }

    /// The registry of one of several workers. Their events are numbered together.
    pub fn of_worker(
        settings: Settings,
        devices: Vec<Device>,
        worker: &str,
        numbers: &EventNumbers,
    ) -> Self {
        Self::with_log(settings, devices, Log::of_worker(worker, numbers))
    }

    fn with_log(settings: Settings, devices: Vec<Device>, log: Log) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::new(State {
                devices: Devices::new(&devices),
                entries: BTreeMap::new(),
                flight: BTreeSet::new(),
                active: BTreeMap::new(),
                log,
                counter: 0,
                models: 0,
                quiet_since: Instant::now(),
                trash: Vec::new(),
                fresh: Vec::new(),
            }),
            settings,
            accelerators: devices,
            idle: Condvar::new(),
            outbox: Outbox::default(),
            probes: Mutex::default(),
            dropped: Mutex::default(),
        }))
    }

    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// The main memory, then the accelerators.
    pub fn devices(&self) -> Vec<Device> {
        let all = std::iter::once(Device::cpu()).chain(self.0.accelerators.iter().cloned());
        all.collect()
    }

    /// Where models compute that were told nothing.
    pub fn primary(&self) -> Device {
        let mut usable = self.0.accelerators.iter();
        let first = usable.find(|device| device.failure().is_none());
        first.cloned().unwrap_or_default()
    }

    /// The devices with their memory, as placements are reckoned with.
    pub fn totals(&self) -> Vec<DeviceTotal> {
        let host = self.host().map_or(0, |host| host.total);
        let total = |device: Device| DeviceTotal {
            total: device.capacity().unwrap_or(host),
            name: device.name(),
        };
        self.devices().into_iter().map(total).collect()
    }

    pub fn on_event(&self, listener: Listener) {
        self.0.outbox.listen(listener);
    }

    /// Another clock and another main memory, for tests.
    pub fn set_probes(&self, probes: Probes) {
        let now = (probes.now)();
        *lock(&self.0.probes) = probes;
        self.lock().quiet_since = now;
    }

    pub(crate) fn now(&self) -> Instant {
        let now = Arc::clone(&lock(&self.0.probes).now);
        now()
    }

    /// The main memory; none where nobody knows.
    pub fn host(&self) -> Option<HostMemory> {
        let host = Arc::clone(&lock(&self.0.probes).host);
        host()
    }

    pub(crate) fn lock(&self) -> Guard<'_> {
        let state = Some(lock(&self.0.state));
        self.note_locked();
        Guard {
            registry: self,
            state,
        }
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Notes that this thread has the lock. A thread that ends may have nowhere to note it any more; nothing that the
    /// registry calls is left to be dropped there.
    fn note_locked(&self) {
        let _ = INSIDE.try_with(|inside| inside.borrow_mut().push(self.address()));
    }

    fn note_unlocked(&self) {
        let _ = INSIDE.try_with(|inside| {
            let mut inside = inside.borrow_mut();
            if let Some(at) = inside
                .iter()
                .rposition(|address| *address == self.address())
            {
                inside.remove(at);
            }
        });
    }

    /// A handle is gone. Where this thread has the lock, that is noticed when it gives it back.
    pub(crate) fn forget_handle(&self, id: &WeightsId, model: ModelId) {
        let here = INSIDE.try_with(|inside| inside.borrow().contains(&self.address()));
        if here.unwrap_or(false) {
            lock(&self.0.dropped).push((id.clone(), model));
        } else {
            self.drop_handle(id, model);
        }
    }

    pub(crate) fn wake(&self) {
        self.0.idle.notify_all();
    }

    pub fn events(&self, since: u64, kinds: &[String], limit: usize) -> Vec<Event> {
        self.lock().log.since(since, kinds, limit)
    }

    pub fn last_seq(&self) -> u64 {
        self.lock().log.last()
    }
}
