//! What loaders do: weights by their content, handles on them, and claims.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use fresco_tensor::Device;

use crate::claims::Claim;
use crate::entry::{HandleState, ModelEntry, Owner, WeightPart, weights_id};
use crate::events::event;
use crate::lease::Handle;
use crate::reason::{Reason, Wish};
use crate::registry::{ModelRegistry, State};
use crate::{
    ContentKey, EjectOthers, ModelId, Origin, Placement, Policy, PolicySource, Trigger, Weights,
    WeightsId, Who,
};

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

impl State {
    /// Weights that are there already.
    fn attach<T: Any + Send + Sync>(&mut self, who: &Who, id: &WeightsId) -> Option<Opened<T>> {
        let entry = self.entries.get_mut(id)?;
        let shared = Arc::clone(&entry.shared).downcast::<T>().ok()?;
        entry.opening.push(Arc::clone(&who.prompt));
        let draft = event("model.attached")
            .who(who)
            .weights(id, &entry.class)
            .number("bytes", entry.in_memory());
        self.emit(draft);
        Some(Opened {
            id: id.clone(),
            shared,
            attached: true,
        })
    }
}

impl ModelRegistry {
    /// Weights by their content: those that are there, or new ones. `make` runs without the lock.
    pub fn open<T: Any + Send + Sync, E>(
        &self,
        who: &Who,
        key: &ContentKey,
        class: &str,
        make: impl FnOnce() -> Result<(Arc<T>, Arc<dyn Weights>), E>,
    ) -> Result<Opened<T>, E> {
        let id = weights_id(key);
        let attached = self.lock().attach(who, &id);
        if let Some(opened) = attached {
            return Ok(opened);
        }
        let (shared, weights) = make()?;
        let mut guard = self.lock();
        let state = &mut *guard;
        // Somebody else may have been faster; looked at under the lock that the entry is made under.
        if let Some(opened) = state.attach(who, &id) {
            // Dropped without the lock.
            state.discard((shared, weights));
            return Ok(opened);
        }
        let base = WeightPart::new(weights, false, &mut state.devices);
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(&shared) as _;
        let mut entry = ModelEntry::new(key, id.clone(), class, any, base);
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
                    loader: who.clone(),
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
        let own = WeightPart::new(Arc::clone(&weights), true, &mut state.devices);
        // Dropped without the lock, if it is the last one.
        state.discard(weights);
        if let Some(entry) = state.entries.get_mut(from.id())
            && let Some(parent) = entry.handles.get(&from.model())
        {
            let (refs, replaced) = references(entry, from.model(), model, &own);
            let handle = HandleState {
                parent: Some(from.model()),
                loader: parent.loader.clone(),
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
        // As it counted until now.
        let effective = entry.claims.effective();
        if entry.handles.is_empty() {
            entry.claims.without_handles();
        }
        let class = Arc::clone(&entry.class);
        if let Some(part) = &mut handle.own {
            let before = part.in_memory();
            let error = part.release(&mut state.devices).err();
            if before > 0 {
                let draft = event("model.released")
                    .trigger(Trigger::HandleDropped)
                    .weights(id, &class)
                    .model(Some(model))
                    .bytes(before, part.in_memory())
                    .effective(effective)
                    .origin(Origin::Default)
                    .decision("release")
                    .reason(Reason::LastUserGone)
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
}

impl State {
    /// Writes a claim down. The same claimant has no other one from an earlier prompt.
    pub(crate) fn claim(&mut self, id: &WeightsId, claim: Claim, who: &Who) {
        self.end_elsewhere(id, &claim);
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        let explicit = claim.source != PolicySource::Default || claim.policy != Policy::Auto;
        let (policy, set_by, model) = (claim.policy, claim.set_by(), claim.model);
        entry.claims.set(claim.clone());
        if policy > Policy::EjectAfter {
            // Somebody wants it again before it could go.
            entry.ejected = None;
        }
        let effective = entry.claims.effective();
        let set = event("policy.set")
            .who(who)
            .weights(id, &entry.class)
            .model(model)
            .origin(set_by.origin())
            .policy(policy, set_by)
            .decision(if explicit { "explicit" } else { "default" })
            .reason(Reason::Counts(effective));
        let conflicts = conflicts(entry, &claim);
        let class = Arc::clone(&entry.class);
        self.emit(set);
        for conflict in conflicts {
            let draft = event("retention.conflict")
                .who(who)
                .weights(id, &class)
                .model(conflict.loser)
                .policy(conflict.winner.policy, conflict.winner.set_by)
                .origin(conflict.origin)
                .decision("keep")
                .reason(conflict.reason);
            self.emit(draft);
        }
    }

    /// A node's place in a workflow means one choice: what the same node of the same client said of other models in
    /// earlier prompts ends. Within one prompt a node may load several: parts of a checkpoint, a list of files.
    pub(crate) fn end_elsewhere(&mut self, id: &WeightsId, claim: &Claim) {
        let Some(location) = self.entries.get(id).map(|entry| entry.location.clone()) else {
            return;
        };
        let mut ended = Vec::new();
        for (other, entry) in &mut self.entries {
            if other == id {
                continue;
            }
            let old = if entry.location == location {
                // The same file with other contents.
                entry.claims.remove_of(claim)
            } else if claim.has_place() && !entry.location.is_sibling(&location) {
                entry.claims.supersede(claim)
            } else {
                None
            };
            if let Some(old) = old {
                let reason = Reason::ClaimMoved {
                    claimant: claim.place(),
                    file: location.file_name(),
                    counts: entry.claims.effective(),
                };
                ended.push((other.clone(), Arc::clone(&entry.class), old, reason));
            }
        }
        for (other, class, old, reason) in ended {
            if old.policy > Policy::Auto && !old.asleep {
                let who = Who {
                    client: Arc::clone(&claim.client),
                    prompt: Arc::clone(&claim.prompt),
                    node: Arc::clone(&claim.node),
                };
                let draft = event("policy.ended")
                    .who(&who)
                    .weights(&other, &class)
                    .model(old.model)
                    .origin(Origin::node(&who, "file"))
                    .policy(old.policy, old.set_by())
                    .decision("ended")
                    .reason(reason);
                self.emit(draft);
            }
            self.sweep(&other);
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

/// For every unit of a patched handle: whose it is. What neither it nor one it was made from changed is shared.
fn references(
    entry: &ModelEntry,
    parent: ModelId,
    model: ModelId,
    own: &WeightPart,
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

/// A wish to go that a stronger one does not let count.
struct Conflict {
    loser: Option<ModelId>,
    winner: Wish,
    /// Of the loser: who asks in vain.
    origin: Origin,
    reason: Reason,
}

/// What a claim just made changes: it loses itself, or others lose against it.
fn conflicts(entry: &ModelEntry, made: &Claim) -> Vec<Conflict> {
    let Some(winner) = entry.claims.winner() else {
        return Vec::new();
    };
    let wins = made.is_of(winner);
    let new = entry
        .claims
        .beaten()
        .filter(|lost| wins || lost.is_of(made));
    let conflict = |lost: &Claim| Conflict {
        loser: lost.model,
        winner: winner.wish(),
        origin: lost.set_by().origin(),
        reason: Reason::Conflict {
            loser: lost.wish(),
            winner: winner.wish(),
            weights: entry.id.clone(),
        },
    };
    new.map(conflict).collect()
}
