//! The classes this server knows, by name, in registration order.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use indexmap::IndexMap;

use crate::{Map, NodeClass, NodeEntry, NodeError, Schema, Value};

/// A list of classes. What runs keeps the list it began with; a change is made to a copy that takes its place.
#[derive(Clone, Default)]
pub struct NodeRegistry {
    classes: IndexMap<Arc<str>, Arc<dyn NodeClass>>,
}

impl NodeRegistry {
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

    /// Removes a class; the others keep their order.
    pub fn remove(&mut self, name: &str) -> Option<Arc<dyn NodeClass>> {
        self.classes.shift_remove(name)
    }

    /// Removes all classes of an owner.
    pub fn remove_owned(&mut self, owner: &str) {
        self.classes
            .retain(|_, class| class.owner().is_none_or(|o| &**o != owner));
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

    /// Whether a prompt has a node whose class is not the program's own. Asking such a class anything may wait for another
    /// process.
    pub fn has_foreign(&self, prompt: &Map) -> bool {
        prompt.values().any(|node| {
            let class = node.get("class_type").and_then(Value::as_str);
            class
                .and_then(|name| self.get(name))
                .is_some_and(|class| class.owner().is_some())
        })
    }
}

/// A class as one prompt sees it.
#[derive(Clone)]
pub struct PromptClass {
    pub class: Arc<dyn NodeClass>,
    /// What it declared when this prompt first asked.
    pub schema: Arc<Schema>,
    /// The same, asked for the order of nodes: whether an input is lazy is read from here.
    pub scheduling: Arc<Schema>,
    /// It could not say what it declares; the schemas are the last that were known.
    pub problem: Option<NodeError>,
}

/// The classes of one prompt: a list that stays as it is, each schema asked for once.
pub struct PromptClasses {
    registry: Arc<NodeRegistry>,
    asked: RefCell<HashMap<Arc<str>, Arc<PromptClass>>>,
}

impl PromptClasses {
    pub fn new(registry: Arc<NodeRegistry>) -> Self {
        Self {
            registry,
            asked: RefCell::default(),
        }
    }

    pub fn get(&self, name: &str) -> Option<Arc<PromptClass>> {
        if let Some(known) = self.asked.borrow().get(name) {
            return Some(known.clone());
        }
        let class = self.registry.get(name)?.clone();
        let last_known = class.schema();
        let (schema, scheduling, problem) = match class.describe() {
            Ok(declared) => (declared.schema, declared.scheduling, None),
            Err(error) => (last_known.clone(), last_known.clone(), Some(error)),
        };
        let found = Arc::new(PromptClass {
            class,
            schema,
            scheduling,
            problem,
        });
        // Under the name it is registered by, whatever the schema of this prompt says.
        let mut asked = self.asked.borrow_mut();
        asked.insert(name.into(), found.clone());
        Some(found)
    }
}
