//! The registry: one owner of where models are and how long they stay.
//!
//! All of it is one state behind one lock. Moving units between devices happens under the lock: it is a copy between
//! memories, touches no file and calls nobody, and everybody who would like to decide in the meantime has to wait for
//! its result anyway. Files are read without the lock (the entry is marked busy, whoever needs it waits for that), and
//! listeners are called without it.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use fresco_tensor::Device;

use crate::claims::{Claim, Location};
use crate::entry::{Devices, Entry, HandleState, Owner, Part, Spot, weights_id};
use crate::events::{Draft, Listener, Log, Outbox, event};
use crate::lease::Handle;
use crate::plan::{Item, Scene};
use crate::settings::{HostMemory, Probes, Settings};
use crate::{
    ContentKey, DeviceTotal, EjectOthers, Event, ModelId, Placement, Policy, PolicySource, Weights,
    WeightsId, Who,
};

/// Owns the weights of all models. Cheap to clone; clones are the same registry.
#[derive(Clone)]
pub struct Registry(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) settings: Settings,
    accelerators: Vec<Device>,
    state: Mutex<State>,
    /// Some entry is not busy any more.
    idle: Condvar,
    outbox: Outbox,
    probes: Mutex<Probes>,
}

/// Weights that were asked for by their content.
pub struct Opened<T> {
    pub id: WeightsId,
    pub shared: Arc<T>,
    /// They were there already.
    pub attached: bool,
}

/// What a loader was told about its model.
#[derive(Debug, Clone)]
pub struct HandleOptions {
    pub compute: Device,
    pub offload: Device,
    pub placement: Option<Placement>,
    pub eject_others: EjectOthers,
    pub policy: Policy,
    pub source: PolicySource,
    /// Embeddings stay where it computes.
    pub text_encoder: bool,
    /// Without budget: all of it, or nothing.
    pub full: bool,
}

impl Default for HandleOptions {
    fn default() -> Self {
        Self {
            compute: Device::cpu(),
            offload: Device::cpu(),
            placement: None,
            eject_others: EjectOthers::None,
            policy: Policy::Auto,
            source: PolicySource::Default,
            text_encoder: false,
            full: false,
        }
    }
}

/// A use of models that goes on now.
pub(crate) struct Active {
    pub(crate) who: Who,
    pub(crate) models: Vec<(WeightsId, ModelId)>,
    /// Steps taken against running out of memory.
    pub(crate) steps: u8,
}

pub(crate) struct State {
    pub(crate) devices: Devices,
    pub(crate) entries: BTreeMap<WeightsId, Entry>,
    pub(crate) flight: BTreeSet<Arc<str>>,
    pub(crate) active: BTreeMap<u64, Active>,
    pub(crate) log: Log,
    /// Numbers for handles, leases, patches and uses.
    counter: u64,
    models: u64,
    /// When the last prompt ended or something was used.
    pub(crate) quiet_since: Instant,
    /// Dropped after the lock is given back: what is in here may call the registry when it goes.
    trash: Vec<Box<dyn Any + Send>>,
    fresh: Vec<Event>,
}

impl State {
    pub(crate) fn next(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn next_model(&mut self) -> ModelId {
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

    pub(crate) fn name(&self, spot: Spot) -> String {
        self.devices.get(spot).name()
    }

    /// Bytes that can be had there; everything in main memory.
    pub(crate) fn free(&self, spot: Spot) -> u64 {
        self.devices.get(spot).free().unwrap_or(u64::MAX)
    }

    /// By weights id, or by the id of one of its handles.
    pub(crate) fn find(&self, id: &str) -> Option<WeightsId> {
        let key = WeightsId::new(id);
        if self.entries.contains_key(&key) {
            return Some(key);
        }
        let model = ModelId(id.strip_prefix('m')?.parse().ok()?);
        let mine = |entry: &&Entry| entry.handles.contains_key(&model);
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
            let (policy, _) = entry.claims.policy();
            let touched = |prompt: &str| {
                entry.holds.iter().any(|hold| &*hold.prompt == prompt)
                    || entry.claims.active().any(|claim| &*claim.prompt == prompt)
            };
            let touched = ending.is_some_and(touched);
            let item = Item {
                weights: entry.id.clone(),
                model: None,
                policy,
                why: entry.claims.why(),
                orphan: entry.is_orphan(),
                ejected: entry.ejected,
                held: match ending {
                    Some(prompt) => entry.is_held_by_other(prompt) || entry.busy,
                    None => entry.is_held(),
                },
                needed: needed.iter().any(|(id, _)| *id == entry.id),
                touched,
                eject: ending
                    .is_some_and(|prompt| entry.claims.ending(prompt, touched).next().is_some()),
                removed: entry.removed,
                bytes: (0..count)
                    .map(|spot| {
                        if merged {
                            entry.on(spot)
                        } else {
                            entry.base.on(spot)
                        }
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
                    needed: needed.iter().any(line),
                    bytes: (0..count).map(|spot| part.on(spot)).collect(),
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
        let done = |entry: &Entry| {
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
    inner: &'a Inner,
    state: Option<MutexGuard<'a, State>>,
}

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
            self.inner.outbox.put(event);
        }
        std::mem::take(&mut state.trash)
    }

    /// Gives the lock back until an entry is not busy any more: whoever made it busy makes it idle again, also when it
    /// panics.
    pub(crate) fn wait(&mut self, id: &WeightsId) {
        let trash = self.hand_over();
        self.state = None;
        drop(trash);
        self.inner.outbox.deliver();
        let busy = |state: &mut State| state.entries.get(id).is_some_and(|entry| entry.busy);
        let state = self.inner.idle.wait_while(lock(&self.inner.state), busy);
        self.state = Some(state.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let trash = self.hand_over();
        self.state = None;
        drop(trash);
        self.inner.outbox.deliver();
    }
}

impl Registry {
    /// `devices`: the accelerators, the primary one first.
    pub fn new(settings: Settings, devices: Vec<Device>) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::new(State {
                devices: Devices::new(&devices),
                entries: BTreeMap::new(),
                flight: BTreeSet::new(),
                active: BTreeMap::new(),
                log: Log::default(),
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
        self.0.accelerators.first().cloned().unwrap_or_default()
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

    pub(crate) fn host(&self) -> Option<HostMemory> {
        let host = Arc::clone(&lock(&self.0.probes).host);
        host()
    }

    pub(crate) fn lock(&self) -> Guard<'_> {
        Guard {
            inner: &self.0,
            state: Some(lock(&self.0.state)),
        }
    }

    pub(crate) fn wake(&self) {
        self.0.idle.notify_all();
    }

    /// Weights by their content: those that are there, or new ones. `make` runs without the lock.
    pub fn open<T: Any + Send + Sync, E>(
        &self,
        who: &Who,
        key: &ContentKey,
        class: &str,
        make: impl FnOnce() -> Result<(Arc<T>, Arc<dyn Weights>), E>,
    ) -> Result<Opened<T>, E> {
        let id = weights_id(key);
        if let Some(opened) = self.attach(who, &id) {
            return Ok(opened);
        }
        let (shared, weights) = make()?;
        // Somebody else may have been faster.
        if let Some(opened) = self.attach(who, &id) {
            return Ok(opened);
        }
        let mut state = self.lock();
        let state = &mut *state;
        let base = Part::new(weights, false, &mut state.devices);
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(&shared) as _;
        let mut entry = Entry::new(key, id.clone(), class, any, base);
        entry.opening.push(Arc::clone(&who.prompt));
        let draft = event("model.registered")
            .who(who)
            .weights(&id, &entry.class)
            .number("bytes", entry.base.total)
            .number("units", entry.base.units.len() as u64);
        // The same content as another type of network would be a mistake of a loader; the newer one counts.
        let old = state.entries.insert(id.clone(), entry);
        if let Some(old) = old {
            state.discard((old.shared, old.base.weights));
        }
        state.emit(draft);
        Ok(Opened {
            id,
            shared,
            attached: false,
        })
    }

    fn attach<T: Any + Send + Sync>(&self, who: &Who, id: &WeightsId) -> Option<Opened<T>> {
        let mut state = self.lock();
        let entry = state.entries.get_mut(id)?;
        let shared = Arc::clone(&entry.shared).downcast::<T>().ok()?;
        entry.opening.push(Arc::clone(&who.prompt));
        let draft = event("model.attached")
            .who(who)
            .weights(id, &entry.class)
            .number("bytes", entry.in_memory());
        state.emit(draft);
        Some(Opened {
            id: id.clone(),
            shared,
            attached: true,
        })
    }

    /// A handle. Here the policy is claimed. Weights that are not known any more give a handle whose use is an error.
    pub fn handle(&self, who: &Who, id: &WeightsId, options: HandleOptions) -> Handle {
        let mut guard = self.lock();
        let state = &mut *guard;
        let model = state.next_model();
        let compute = state.devices.spot(&options.compute);
        let offload = state.devices.spot(&options.offload);
        if let Some(entry) = state.entries.get_mut(id) {
            if let Some(at) = entry
                .opening
                .iter()
                .position(|prompt| *prompt == who.prompt)
            {
                entry.opening.remove(at);
            }
            entry.gone = false;
            let eject = (options.eject_others != EjectOthers::None)
                .then(|| (options.eject_others, Arc::clone(&who.prompt)));
            entry.handles.insert(
                model,
                HandleState {
                    parent: None,
                    compute,
                    offload,
                    placement: options.placement,
                    eject,
                    text_encoder: options.text_encoder,
                    full: options.full,
                    own: None,
                    refs: None,
                    replaced: Vec::new(),
                    patches: 0,
                    patch_version: 0,
                    buffer: 0,
                    planned: Vec::new(),
                },
            );
        }
        let claim = Claim::new(who, Some(model), options.policy, options.source);
        state.claim(id, claim, who);
        drop(guard);
        Handle::new(self.clone(), id.clone(), model, options.compute, None)
    }

    pub(crate) fn derive(
        &self,
        from: &Handle,
        weights: Arc<dyn Weights>,
        patches: usize,
    ) -> Handle {
        let mut guard = self.lock();
        let state = &mut *guard;
        let model = state.next_model();
        let version = state.next();
        let own = Part::new(Arc::clone(&weights), true, &mut state.devices);
        // Dropped without the lock, if it is the last one.
        state.discard(weights);
        if let Some(entry) = state.entries.get_mut(from.id())
            && let Some(parent) = entry.handles.get(&from.model())
        {
            let (refs, replaced) = references(entry, from.model(), model, &own);
            let handle = HandleState {
                parent: Some(from.model()),
                compute: parent.compute,
                offload: parent.offload,
                placement: parent.placement.clone(),
                eject: None,
                text_encoder: parent.text_encoder,
                full: parent.full,
                own: Some(own),
                refs: Some(refs),
                replaced,
                patches,
                patch_version: version,
                buffer: 0,
                planned: Vec::new(),
            };
            entry.handles.insert(model, handle);
        }
        drop(guard);
        Handle::new(
            self.clone(),
            from.id().clone(),
            model,
            from.compute(),
            Some(from.clone()),
        )
    }

    /// The last clone of a handle is gone: so is what was its own.
    pub(crate) fn drop_handle(&self, id: &WeightsId, model: ModelId) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(entry) = state.entries.get_mut(id) else {
            return;
        };
        let Some(mut handle) = entry.handles.remove(&model) else {
            return;
        };
        if entry.handles.is_empty() {
            entry.claims.without_handles();
        }
        let class = Arc::clone(&entry.class);
        if let Some(part) = &mut handle.own {
            let before = part.in_memory();
            let error = part.release(&mut state.devices).err();
            if before > 0 {
                let draft = event("model.released")
                    .trigger(crate::Trigger::HandleDropped)
                    .weights(id, &class)
                    .model(Some(model))
                    .bytes(before, part.in_memory())
                    .decision("release")
                    .reason("its last user is gone")
                    .error(error);
                state.emit(draft);
            }
        }
        state.discard(handle.own.map(|part| part.weights));
        state.sweep(id);
    }

    /// Sets a claim of the node that speaks for a model on a link.
    pub(crate) fn claim_for(
        &self,
        who: &Who,
        handle: &Handle,
        policy: Policy,
        source: PolicySource,
    ) {
        let mut state = self.lock();
        let claim = Claim::new(who, Some(handle.model()), policy, source);
        state.claim(handle.id(), claim, who);
    }

    pub fn events(&self, since: u64, kinds: &[String], limit: usize) -> Vec<Event> {
        self.lock().log.since(since, kinds, limit)
    }

    pub fn last_seq(&self) -> u64 {
        self.lock().log.last()
    }
}

impl State {
    /// Writes a claim down. The same claimant has no other one for weights of the same place.
    pub(crate) fn claim(&mut self, id: &WeightsId, claim: Claim, who: &Who) {
        let Some(location) = self.entries.get(id).map(|entry| entry.location.clone()) else {
            return;
        };
        let mut stale = Vec::new();
        for (other, entry) in &mut self.entries {
            if other != id && same_place(&entry.location, &location) {
                entry.claims.remove_of(&claim);
                stale.push(other.clone());
            }
        }
        let entry = self.entries.get_mut(id).expect("it was found above");
        let explicit = claim.source != PolicySource::Default || claim.policy != Policy::Auto;
        let (policy, source) = (claim.policy, claim.source);
        let model = claim.model;
        entry.claims.set(claim);
        if policy > Policy::EjectAfter {
            // Somebody wants it again before it could go.
            entry.ejected = false;
        }
        let (effective, _) = entry.claims.policy();
        let set = event("policy.set")
            .who(who)
            .weights(id, &entry.class)
            .model(model)
            .policy(policy, source)
            .decision(if explicit { "explicit" } else { "default" })
            .reason(format!("{effective} counts: {}", entry.claims.why()));
        let conflict = entry.claims.beaten().first().map(|loser| {
            let winner = entry.claims.why();
            let (policy, source) = entry.claims.policy();
            event("retention.conflict")
                .who(who)
                .weights(id, &entry.class)
                .model(loser.model)
                .policy(policy, source)
                .decision("keep")
                .reason(format!("{} loses against {winner}", loser.describe()))
        });
        self.emit(set);
        if let Some(conflict) = conflict {
            self.emit(conflict);
        }
        for id in stale {
            self.sweep(&id);
        }
    }

    pub(crate) fn touch(&mut self, id: &WeightsId, model: ModelId) {
        let used = self.next();
        if let Some(entry) = self.entries.get_mut(id) {
            entry.used = used;
            entry.last_used = Some(SystemTime::now());
            entry.last_model = Some(model);
        }
    }
}

fn same_place(a: &Location, b: &Location) -> bool {
    a == b
}

/// For every unit of a patched handle: whose it is. What neither it nor one it was made from changed is shared.
fn references(
    entry: &Entry,
    parent: ModelId,
    model: ModelId,
    own: &Part,
) -> (Arc<[(Owner, usize)]>, Vec<usize>) {
    let mut places: BTreeMap<&str, (Owner, usize)> = BTreeMap::new();
    for (index, unit) in entry.base.units.iter().enumerate() {
        places.insert(&unit.name, (Owner::Shared, index));
    }
    let mut line = entry.lineage(parent);
    line.reverse();
    for ancestor in line {
        if let Some(part) = entry.part(Owner::Model(ancestor)) {
            for index in &part.mine {
                places.insert(&part.units[*index].name, (Owner::Model(ancestor), *index));
            }
        }
    }
    let mut refs = Vec::with_capacity(own.units.len());
    let mut used = vec![false; entry.base.units.len()];
    for (index, unit) in own.units.iter().enumerate() {
        let place = match places.get(&*unit.name) {
            Some(place) if !unit.own => *place,
            // Also one that nobody else has: it can only be its own.
            _ => (Owner::Model(model), index),
        };
        if let (Owner::Shared, shared) = place {
            used[shared] = true;
        }
        refs.push(place);
    }
    let replaced = (0..used.len()).filter(|unit| !used[*unit]).collect();
    (refs.into(), replaced)
}
