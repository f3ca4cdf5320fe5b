//! Progress of every node of the running prompt.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indexmap::IndexMap;

use crate::event::NodeIds;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    Running,
    Finished,
}

#[derive(Clone, Debug)]
pub struct NodeProgress {
    pub ids: NodeIds,
    pub state: NodeState,
    pub value: f64,
    pub max: f64,
}

/// Node id to progress, in the order nodes were first seen. One per prompt.
#[derive(Default)]
pub struct ProgressRegistry(Mutex<IndexMap<Arc<str>, NodeProgress>>);

impl ProgressRegistry {
    fn lock(&self) -> MutexGuard<'_, IndexMap<Arc<str>, NodeProgress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn start(&self, ids: NodeIds) {
        self.set(ids, NodeState::Running, 0.0, 1.0);
    }

    pub fn update(&self, ids: NodeIds, value: f64, max: f64) {
        self.set(ids, NodeState::Running, value, max);
    }

    /// Finished: value becomes max; a node never seen (a cache hit) appears as 1 of 1.
    pub fn finish(&self, ids: NodeIds) {
        let max = self.lock().get(&ids.node).map_or(1.0, |p| p.max);
        self.set(ids, NodeState::Finished, max, max);
    }

    fn set(&self, ids: NodeIds, state: NodeState, value: f64, max: f64) {
        self.lock().insert(
            ids.node.clone(),
            NodeProgress {
                ids,
                state,
                value,
                max,
            },
        );
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn snapshot(&self) -> Vec<NodeProgress> {
        self.lock().values().cloned().collect()
    }
}
