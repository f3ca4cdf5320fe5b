//! The classes this server knows, by name, in registration order.

use std::sync::Arc;

use indexmap::IndexMap;

use crate::{NodeClass, NodeEntry};

#[derive(Clone, Default)]
pub struct Registry {
    classes: IndexMap<Arc<str>, Arc<dyn NodeClass>>,
}

impl Registry {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a list of native nodes. A later class of the same name replaces the earlier one, in its place.
    pub fn add(&mut self, entries: &[NodeEntry]) {
        for entry in entries {
            self.add_class(entry.class());
        }
    }

    pub fn add_class(&mut self, class: Arc<dyn NodeClass>) {
        self.classes.insert(class.schema().id.clone(), class);
    }

    pub fn get(&self, name: &str) -> Option<&Arc<dyn NodeClass>> {
        self.classes.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn NodeClass>> {
        self.classes.values()
    }

    pub fn len(&self) -> usize {
        self.classes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }
}
