//! The running graph: the prompt's nodes plus those that expansions added.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use fresco_graph::{GraphView, Map, SubNode, Value};
use indexmap::IndexMap;

use crate::event::NodeIds;

/// Expansions may loop; at some point that is an error and not a workflow.
const MAX_EPHEMERAL: usize = 1_000_000;

#[derive(Clone, Debug)]
pub(crate) struct RunNode {
    pub(crate) class: Arc<str>,
    pub(crate) inputs: Arc<Map>,
    /// A change token that came with the prompt.
    pub(crate) is_changed: Option<Value>,
}

struct Ephemeral {
    node: RunNode,
    parent: Arc<str>,
    display: Arc<str>,
    real: Arc<str>,
}

/// Expanding nodes from the outermost inwards, as `(id, class)`.
pub(crate) type Owners = Vec<(Arc<str>, Arc<str>)>;

pub(crate) struct DynPrompt {
    original: IndexMap<Arc<str>, RunNode>,
    ephemeral: RwLock<HashMap<Arc<str>, Ephemeral>>,
}

impl DynPrompt {
    /// Takes the prompt as validated; a node without inputs has none.
    pub(crate) fn new(prompt: &Map) -> Self {
        let original = prompt
            .iter()
            .map(|(id, node)| {
                let class = node
                    .get("class_type")
                    .and_then(Value::as_str)
                    .unwrap_or("")
                    .into();
                let inputs = match node.get("inputs") {
                    Some(Value::Map(m)) => m.clone(),
                    _ => Arc::default(),
                };
                (
                    id.clone(),
                    RunNode {
                        class,
                        inputs,
                        is_changed: node.get("is_changed").cloned(),
                    },
                )
            })
            .collect();
        Self {
            original,
            ephemeral: RwLock::default(),
        }
    }

    fn added(&self) -> RwLockReadGuard<'_, HashMap<Arc<str>, Ephemeral>> {
        self.ephemeral
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, id: &str) -> Option<RunNode> {
        if let Some(e) = self.added().get(id) {
            return Some(e.node.clone());
        }
        self.original.get(id).cloned()
    }

    pub(crate) fn top_ids(&self) -> impl Iterator<Item = &Arc<str>> {
        self.original.keys()
    }

    pub(crate) fn top(&self, id: &str) -> Option<&RunNode> {
        self.original.get(id)
    }

    /// Adds a node of `parent`'s expansion. `Err` when the run has grown beyond all bounds.
    pub(crate) fn add(&self, id: Arc<str>, sub: SubNode, parent: &Arc<str>) -> Result<(), usize> {
        let shown = sub.display.unwrap_or_else(|| parent.clone());
        let (display, real) = (self.display_of(&shown), self.real_of(parent));
        let mut all = self
            .ephemeral
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_EPHEMERAL {
            return Err(MAX_EPHEMERAL);
        }
        let node = RunNode {
            class: sub.class,
            inputs: Arc::new(sub.inputs),
            is_changed: None,
        };
        all.insert(
            id,
            Ephemeral {
                node,
                parent: parent.clone(),
                display,
                real,
            },
        );
        Ok(())
    }

    pub(crate) fn parent_of(&self, id: &str) -> Option<Arc<str>> {
        self.added().get(id).map(|e| e.parent.clone())
    }

    /// The id the UI highlights.
    pub(crate) fn display_of(&self, id: &str) -> Arc<str> {
        self.added()
            .get(id)
            .map_or_else(|| id.into(), |e| e.display.clone())
    }

    /// The outermost node of the prompt that brought this one.
    pub(crate) fn real_of(&self, id: &str) -> Arc<str> {
        self.added()
            .get(id)
            .map_or_else(|| id.into(), |e| e.real.clone())
    }

    pub(crate) fn ids_of(&self, id: &Arc<str>) -> NodeIds {
        match self.added().get(id) {
            None => NodeIds {
                node: id.clone(),
                display: id.clone(),
                parent: None,
                real: id.clone(),
            },
            Some(e) => NodeIds {
                node: id.clone(),
                display: e.display.clone(),
                parent: Some(e.parent.clone()),
                real: e.real.clone(),
            },
        }
    }

    /// The chain of expanding nodes a node sits in; empty for a node of the prompt.
    pub(crate) fn owners_of(&self, id: &str) -> Owners {
        let all = self.added();
        let mut owners = Vec::new();
        let mut at = all.get(id).map(|e| e.parent.clone());
        while let Some(parent) = at {
            let class = match all.get(&parent) {
                Some(e) => e.node.class.clone(),
                None => self
                    .original
                    .get(&parent)
                    .map(|n| n.class.clone())
                    .unwrap_or_default(),
            };
            at = all.get(&parent).map(|e| e.parent.clone());
            owners.push((parent, class));
        }
        owners.reverse();
        owners
    }
}

impl GraphView for DynPrompt {
    fn node(&self, id: &str) -> Option<SubNode> {
        self.get(id).map(|n| SubNode {
            class: n.class,
            inputs: (*n.inputs).clone(),
            display: None,
        })
    }

    fn parent(&self, id: &str) -> Option<Arc<str>> {
        self.parent_of(id)
    }

    fn display(&self, id: &str) -> Arc<str> {
        self.display_of(id)
    }

    fn ids(&self) -> Vec<Arc<str>> {
        let mut added: Vec<Arc<str>> = self.added().keys().cloned().collect();
        added.sort();
        self.original.keys().cloned().chain(added).collect()
    }
}
