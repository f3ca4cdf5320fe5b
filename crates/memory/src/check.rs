//! Whether registry, weights and devices agree. Tests ask after everything they do.

use crate::Policy;
use crate::entry::ModelEntry;
use crate::registry::{ModelRegistry, State};

impl ModelRegistry {
    /// What does not fit together, one line each; nothing is good.
    pub fn check(&self) -> Vec<String> {
        let gpu_only = self.settings().gpu_only;
        let mut guard = self.lock();
        let state = &mut *guard;
        let mut problems = Vec::new();
        for entry in state.entries.values() {
            entry.check(state, &mut problems);
        }
        state.check_devices(gpu_only, &mut problems);
        for active in state.active.values() {
            for (id, model) in &active.models {
                let known = state
                    .entries
                    .get(id)
                    .is_some_and(|entry| entry.handles.contains_key(model));
                if !known {
                    problems.push(format!(
                        "a lease of {:?} is about {model} of {id}, which is not there",
                        active.who
                    ));
                }
            }
        }
        problems
    }
}

impl ModelEntry {
    fn check(&self, state: &State, problems: &mut Vec<String>) {
        let id = &self.id;
        // Whoever reads its files now changes what is where.
        if !self.busy {
            for part in self.parts() {
                let mut sums = vec![0u64; state.devices.len()];
                for &unit in &part.mine {
                    let written = part.home(unit).map(|spot| state.name(spot));
                    let real = part.weights.home(unit).map(|device| device.name());
                    if written != real {
                        let name = &part.units[unit].name;
                        problems.push(format!(
                            "{id}: {name} is on {real:?}, the books say {written:?}"
                        ));
                    }
                    if let Some(spot) = part.home(unit) {
                        sums[spot] += part.units[unit].bytes;
                    }
                }
                for (spot, sum) in sums.into_iter().enumerate() {
                    if part.on(spot) != sum {
                        let (device, counted) = (state.name(spot), part.on(spot));
                        problems.push(format!("{id}: {sum} bytes on {device}, counted {counted}"));
                    }
                }
            }
        }
        for hold in &self.holds {
            if !hold.prompt.is_empty() && !state.flight.contains(&hold.prompt) {
                problems.push(format!(
                    "{id}: held by prompt {}, which does not run",
                    hold.prompt
                ));
            }
        }
        for claim in self.claims.active() {
            let orphan =
                claim.policy == Policy::Auto && self.handles.is_empty() && self.opening.is_empty();
            if orphan && claim.source != crate::PolicySource::Api {
                let (policy, node) = (claim.policy, &claim.node);
                problems.push(format!(
                    "{id}: a claim without a handle: {policy} of node {node:?}"
                ));
            }
            let over = claim.policy == Policy::EjectAfter && !state.flight.contains(&claim.prompt);
            if over && !claim.prompt.is_empty() {
                let (policy, node) = (claim.policy, &claim.node);
                problems.push(format!(
                    "{id}: a claim of a prompt that is over: {policy} of node {node:?}"
                ));
            }
        }
        if self.gone && self.in_memory() > 0 && self.failed.is_none() {
            problems.push(format!(
                "{id}: released, but {} bytes are in memory",
                self.in_memory()
            ));
        }
        for (model, handle) in &self.handles {
            if handle
                .parent
                .is_some_and(|parent| !self.handles.contains_key(&parent))
            {
                problems.push(format!("{id}: {model} was made from a handle that is gone"));
            }
        }
    }
}

impl State {
    fn check_devices(&self, gpu_only: bool, problems: &mut Vec<String>) {
        for (spot, device) in self.devices.iter().enumerate().skip(1) {
            let resident: u64 = self.entries.values().map(|entry| entry.on(spot)).sum();
            let used = device.used();
            let idle = self.active.is_empty()
                && !gpu_only
                && !self.entries.values().any(|entry| entry.busy);
            if used < resident || (idle && used != resident) {
                problems.push(format!(
                    "{device}: {used} bytes in use, {resident} by weights"
                ));
            }
            if let Some(problem) = idle.then(|| device.discrepancy()).flatten() {
                problems.push(format!("{device}: {problem}"));
            }
        }
    }
}
