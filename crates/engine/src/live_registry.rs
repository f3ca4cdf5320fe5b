//! The node classes of a running program.

use std::sync::{Arc, PoisonError, RwLock};

use fresco_graph::NodeRegistry;

/// The newest list of classes. A change makes a new list; whoever took a snapshot before, as a running prompt, keeps that.
#[derive(Default)]
pub struct LiveRegistry(RwLock<Arc<NodeRegistry>>);

impl LiveRegistry {
    pub fn new(registry: NodeRegistry) -> Arc<Self> {
        Arc::new(Self(RwLock::new(Arc::new(registry))))
    }

    /// The classes as they are now.
    pub fn snapshot(&self) -> Arc<NodeRegistry> {
        let current = self.0.read().unwrap_or_else(PoisonError::into_inner);
        current.clone()
    }

    /// Adds, replaces and removes classes in one step.
    pub fn update(&self, change: impl FnOnce(&mut NodeRegistry)) {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = (**current).clone();
        change(&mut changed);
        *current = Arc::new(changed);
    }
}
