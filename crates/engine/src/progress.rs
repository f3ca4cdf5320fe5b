//! Progress of every node of a prompt.

use std::sync::Arc;

use indexmap::IndexMap;

use crate::event::{NodeIds, NodeProgress, NodeState};

/// Node id to progress, in the order nodes were first seen. One per prompt.
#[derive(Clone, Debug, Default)]
pub struct ProgressRegistry(IndexMap<Arc<str>, NodeProgress>);

impl ProgressRegistry {
    pub fn apply(&mut self, progress: NodeProgress) {
        self.0.insert(progress.ids.node.clone(), progress);
    }

    /// What it means for a node to be finished: value becomes max; a node never seen (a cache hit) appears as 1 of 1.
    pub fn finished(&self, ids: NodeIds) -> NodeProgress {
        let max = self.0.get(&ids.node).map_or(1.0, |p| p.max);
        NodeProgress {
            ids,
            state: NodeState::Finished,
            value: max,
            max,
        }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &NodeProgress> {
        self.0.values()
    }
}
