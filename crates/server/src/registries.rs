//! The memory of all workers of this process as one.
//!
//! With one worker this is its registry and nothing else. With several each has its own models on its own devices; what is asked
//! is asked of all of them and put together, and what is changed is changed wherever the model is, or at one worker that is named.

use std::sync::Arc;

use fresco_memory::{
    ApiError as Refusal, Event, EvictionPlan, FreeRequest, ModelRegistry, ModelReport, Policy,
    Removed, Snapshot, UnitReport,
};

/// The registries of all workers, in their order. Clones are the same.
#[derive(Clone)]
pub struct Registries(Arc<[WorkerModels]>);

/// One worker's models.
#[derive(Clone)]
pub struct WorkerModels {
    pub worker: Arc<str>,
    pub registry: ModelRegistry,
}

impl From<ModelRegistry> for Registries {
    fn from(registry: ModelRegistry) -> Self {
        let worker = "local".into();
        Self(vec![WorkerModels { worker, registry }].into())
    }
}

impl From<Vec<WorkerModels>> for Registries {
    fn from(workers: Vec<WorkerModels>) -> Self {
        Self(workers.into())
    }
}

impl Registries {
    fn all(&self) -> impl Iterator<Item = &ModelRegistry> {
        self.0.iter().map(|one| &one.registry)
    }

    pub fn iter(&self) -> impl Iterator<Item = &WorkerModels> {
        self.0.iter()
    }

    /// Of the first worker; there is always one.
    pub fn first(&self) -> &WorkerModels {
        &self.0[0]
    }

    /// Those of one worker, or all; none if there is no such worker.
    pub(crate) fn of(&self, worker: Option<&str>) -> Option<Self> {
        let Some(worker) = worker else {
            return Some(self.clone());
        };
        let one = self.0.iter().find(|one| &*one.worker == worker)?;
        Some(Self(vec![one.clone()].into()))
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.0.iter().map(|one| &*one.worker).collect()
    }

    /// The main memory is one device, whoever uses it.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut whole = Snapshot::default();
        for Snapshot { devices, models } in self.all().map(ModelRegistry::snapshot) {
            for device in devices {
                let mut known = whole.devices.iter_mut();
                match known.find(|known| known.device == device.device) {
                    Some(known) => known.weights_resident += device.weights_resident,
                    None => whole.devices.push(device),
                }
            }
            whole.models.extend(models);
        }
        whole
    }

    pub(crate) fn last_seq(&self) -> u64 {
        self.all().map(ModelRegistry::last_seq).max().unwrap_or(0)
    }

    /// The newest ones, oldest first.
    pub(crate) fn events(&self, since: u64, kinds: &[String], limit: usize) -> Vec<Event> {
        let mut events: Vec<Event> = self
            .all()
            .flat_map(|registry| registry.events(since, kinds, limit))
            .collect();
        events.sort_by_key(|event| event.seq);
        let surplus = events.len().saturating_sub(limit);
        events.drain(..surplus);
        events
    }

    /// Where several have it, from the one that has most of it on its devices.
    pub(crate) fn model(&self, id: &str) -> Option<(ModelReport, Vec<UnitReport>)> {
        let found = self.all().filter_map(|registry| registry.model(id));
        let there =
            |model: &ModelReport| -> u64 { model.residency.iter().map(|(_, bytes)| bytes).sum() };
        // The first of equals.
        found.reduce(|best, next| {
            if there(&next.0) > there(&best.0) {
                next
            } else {
                best
            }
        })
    }

    /// Does something to a model wherever it is. An error only if it could be done nowhere.
    fn everywhere<T>(
        &self,
        act: impl Fn(&ModelRegistry) -> Result<T, Refusal>,
        both: impl Fn(T, T) -> T,
    ) -> Result<T, Refusal> {
        let mut done: Option<T> = None;
        let mut refused = Refusal::Unknown;
        for registry in self.all() {
            match act(registry) {
                Ok(one) => {
                    done = Some(match done {
                        Some(others) => both(others, one),
                        None => one,
                    });
                }
                Err(Refusal::Unknown) => {}
                Err(other) => refused = other,
            }
        }
        done.ok_or(refused)
    }

    pub(crate) fn release(&self, id: &str) -> Result<(), Refusal> {
        self.everywhere(|registry| registry.release(id), |(), ()| ())
    }

    pub(crate) fn set_policy(&self, id: &str, policy: Policy) -> Result<ModelReport, Refusal> {
        self.everywhere(|registry| registry.set_policy(id, policy), |first, _| first)
    }

    pub(crate) fn remove(&self, id: &str, force: bool) -> Result<Removed, Refusal> {
        let both = |a, b| match (a, b) {
            (Removed::Done, Removed::Done) => Removed::Done,
            _ => Removed::Deferred,
        };
        self.everywhere(|registry| registry.remove(id, force), both)
    }

    pub(crate) fn check(&self) -> Vec<String> {
        let named = |one: &WorkerModels| -> Vec<String> {
            let problems = one.registry.check().into_iter();
            if self.0.len() == 1 {
                return problems.collect();
            }
            let worker = &one.worker;
            problems.map(|text| format!("{worker}: {text}")).collect()
        };
        self.0.iter().flat_map(named).collect()
    }

    pub(crate) fn free_plan(&self, request: &FreeRequest) -> EvictionPlan {
        let mut plans = self.all().map(|registry| registry.free_plan(request));
        let mut whole = plans.next().unwrap_or_default();
        for plan in plans {
            whole.steps.extend(plan.steps);
        }
        whole
    }

    /// Who would load something: the one that has the model, or the device; else the first.
    pub(crate) fn for_load(&self, id: Option<&str>, device: Option<&str>) -> &ModelRegistry {
        let suits = |registry: &&ModelRegistry| {
            let has = |device: &str| registry.devices().iter().any(|d| d.name() == device);
            id.is_none_or(|id| registry.model(id).is_some()) && device.is_none_or(has)
        };
        let first = &self.first().registry;
        self.all().find(suits).unwrap_or(first)
    }
}
