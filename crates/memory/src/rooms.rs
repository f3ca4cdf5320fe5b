//! The memory of all workers of this process as one.
//!
//! With one worker this is its registry and nothing else. With several each has its own models on its own devices; what is asked
//! is asked of all of them and put together, and what is changed is changed wherever the model is, or at one worker that is named.

use std::sync::Arc;

use crate::{
    LoadQuery, MemoryAnswer, MemoryCommand, ModelRegistry, ModelReport, Refusal, Removed, Snapshot,
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

/// Bytes on devices.
fn resident(model: &ModelReport) -> u64 {
    model.residency.iter().map(|(_, bytes)| bytes).sum()
}

/// The main memory is one device, whoever uses it.
fn join_snapshots(whole: &mut Snapshot, more: Snapshot) {
    for device in more.devices {
        let mut known = whole.devices.iter_mut();
        match known.find(|known| known.device == device.device) {
            Some(known) => known.weights_resident += device.weights_resident,
            None => whole.devices.push(device),
        }
    }
    whole.models.extend(more.models);
}

/// The newest ones, oldest first.
fn join_events<T>(events: &mut Vec<T>, more: Vec<T>, seq: impl Fn(&T) -> u64, limit: usize) {
    events.extend(more);
    events.sort_by_key(seq);
    let surplus = events.len().saturating_sub(limit);
    events.drain(..surplus);
}

/// Two workers' answers to the same command as one.
fn join(command: &MemoryCommand, first: MemoryAnswer, next: MemoryAnswer) -> MemoryAnswer {
    use MemoryAnswer as Answer;
    match (command, first, next) {
        (
            MemoryCommand::Overview { recent },
            Answer::Overview(mut whole),
            Answer::Overview(more),
        ) => {
            join_snapshots(&mut whole.snapshot, more.snapshot);
            join_events(&mut whole.decisions, more.decisions, |e| e.seq, *recent);
            whole.last_seq = whole.last_seq.max(more.last_seq);
            Answer::Overview(whole)
        }
        // The first of equals.
        (_, Answer::Model(best, _), Answer::Model(model, units))
            if resident(&model) > resident(&best) =>
        {
            Answer::Model(model, units)
        }
        (
            MemoryCommand::Events { limit, .. },
            Answer::Events {
                mut events,
                last_seq,
            },
            Answer::Events {
                events: more,
                last_seq: last,
            },
        ) => {
            join_events(&mut events, more, |e| e.seq, *limit);
            Answer::Events {
                events,
                last_seq: last_seq.max(last),
            }
        }
        (_, Answer::Problems(mut all), Answer::Problems(more)) => {
            all.extend(more);
            Answer::Problems(all)
        }
        (_, Answer::Removed(_), Answer::Removed(Removed::Deferred)) => {
            Answer::Removed(Removed::Deferred)
        }
        (_, Answer::FreePlan(mut plan), Answer::FreePlan(more)) => {
            plan.steps.extend(more.steps);
            Answer::FreePlan(plan)
        }
        (_, Answer::Freed(mut report), Answer::Freed(more)) => {
            report.models.extend(more.models);
            report.plan.steps.extend(more.plan.steps);
            Answer::Freed(report)
        }
        (_, first, _) => first,
    }
}

impl Registries {
    pub fn iter(&self) -> impl Iterator<Item = &WorkerModels> {
        self.0.iter()
    }

    /// Of the first worker; there is always one.
    pub fn first(&self) -> &WorkerModels {
        &self.0[0]
    }

    /// Those of one worker, or all; none if the worker is unknown.
    pub fn of(&self, worker: Option<&str>) -> Option<Self> {
        let Some(worker) = worker else {
            return Some(self.clone());
        };
        let one = self.0.iter().find(|one| &*one.worker == worker)?;
        Some(Self(vec![one.clone()].into()))
    }

    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(|one| &*one.worker).collect()
    }

    pub fn snapshot(&self) -> Snapshot {
        let mut whole = Snapshot::default();
        for one in self.iter() {
            join_snapshots(&mut whole, one.registry.snapshot());
        }
        whole
    }

    /// Has all workers do what they are told, or the one that a load is for. A refusal only if nobody could do it.
    pub fn carry_out(&self, command: &MemoryCommand) -> Result<MemoryAnswer, Refusal> {
        if let MemoryCommand::PlanLoad(query) = command {
            return self.for_load(query).carry_out(command);
        }
        let mut done: Option<MemoryAnswer> = None;
        let mut refused = Refusal::Unknown;
        for one in self.iter() {
            match one.registry.carry_out(command) {
                Ok(mut answer) => {
                    if let MemoryAnswer::Problems(problems) = &mut answer
                        && self.0.len() > 1
                    {
                        for text in problems {
                            *text = format!("{}: {text}", one.worker);
                        }
                    }
                    done = Some(match done {
                        Some(others) => join(command, others, answer),
                        None => answer,
                    });
                }
                Err(Refusal::Unknown) => {}
                Err(other) => refused = other,
            }
        }
        done.ok_or(refused)
    }

    /// Who would load something: the one that has the model, or the device; else the first.
    fn for_load(&self, query: &LoadQuery) -> &ModelRegistry {
        let (id, device) = (query.weights_id(), query.compute_device.as_deref());
        let suits = |registry: &&ModelRegistry| {
            let has = |device: &str| registry.devices().iter().any(|d| d.name() == device);
            id.is_none_or(|id| registry.model(id).is_some()) && device.is_none_or(has)
        };
        let mut all = self.iter().map(|one| &one.registry);
        all.find(suits).unwrap_or(&self.first().registry)
    }
}
