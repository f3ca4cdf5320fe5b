//! The classes this server knows, by name, in registration order.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use indexmap::IndexMap;

use crate::{Map, NodeClass, NodeEntry, NodeError, Schema, Value};

/// A list of classes. What runs keeps the list it began with; a change is made to a copy that takes its place.
#[derive(Clone, Default)]
pub struct NodeRegistry {
    classes: IndexMap<Arc<str>, Registered>,
}

#[derive(Clone)]
struct Registered {
    class: Arc<dyn NodeClass>,
    /// Whether checking a node of it may wait for another process or for a disk.
    waits: bool,
}

impl Registered {
    fn new(class: Arc<dyn NodeClass>, schema: &Schema) -> Self {
        // A class's own check may look for a file.
        let waits = class.owner().is_some() || class.validator().is_some() || schema.has_listings();
        Self { class, waits }
    }
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
        let schema = class.schema();
        let registered = Registered::new(class, &schema);
        self.classes.insert(schema.id.clone(), registered);
    }

    /// Removes a class; the others keep their order.
    pub fn remove(&mut self, name: &str) -> Option<Arc<dyn NodeClass>> {
        Some(self.classes.shift_remove(name)?.class)
    }

    /// Removes all classes of an owner.
    pub fn remove_owned(&mut self, owner: &str) {
        self.classes
            .retain(|_, known| known.class.owner().is_none_or(|o| &**o != owner));
    }

    pub fn get(&self, name: &str) -> Option<&Arc<dyn NodeClass>> {
        Some(&self.classes.get(name)?.class)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn NodeClass>> {
        self.classes.values().map(|known| &known.class)
    }

    pub fn len(&self) -> usize {
        self.classes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// Whether checking a prompt may wait: for another process whose class it names, or for a disk or a network share whose files
    /// it names.
    pub fn checks_wait(&self, prompt: &Map) -> bool {
        prompt.values().any(|node| {
            let class = node.get("class_type").and_then(Value::as_str);
            let known = class.and_then(|name| self.classes.get(name));
            known.is_some_and(|known| known.waits)
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
