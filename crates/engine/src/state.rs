//! What an executor keeps from one prompt to the next.

use std::collections::HashSet;
use std::sync::Arc;

use fresco_graph::{Resources, Value};

use crate::cache::{Instances, OutputCache, Strategy};
use crate::event::EventSink;
use crate::ledger::Ledger;
use crate::live_registry::LiveRegistry;
use crate::memory::MemoryRoom;
use crate::requests::FreeRequests;
use crate::tasks::Bell;

/// What an executor is made from.
#[derive(Clone)]
pub struct ExecutorConfig {
    /// Each prompt takes a snapshot of it when it begins.
    pub registry: Arc<LiveRegistry>,
    pub resources: Arc<Resources>,
    pub memory: Arc<dyn MemoryRoom>,
    pub sink: Arc<dyn EventSink>,
    pub cache: Strategy,
    /// Preview method for prompts that do not name one.
    pub preview_method: Arc<str>,
    /// Unload all models after every prompt.
    pub disable_smart_memory: bool,
    /// Bytes of main memory that the values of one prompt may take together, on links and in caches.
    pub max_prompt_memory: u64,
}

pub(crate) struct ExecutorState {
    pub(crate) config: ExecutorConfig,
    pub(crate) cache: OutputCache,
    pub(crate) instances: Instances,
    pub(crate) prompts_run: u64,
    /// Looked at between nodes.
    pub(crate) requests: Arc<FreeRequests>,
    pub(crate) ledger: Ledger,
    /// Rung by slow nodes, interrupts and urgent requests.
    pub(crate) bell: Arc<Bell>,
}

impl ExecutorState {
    pub(crate) fn new(config: ExecutorConfig, requests: Arc<FreeRequests>) -> Self {
        let bell = Arc::new(Bell::default());
        requests.set_bell(bell.clone());
        Self {
            cache: OutputCache::new(config.cache),
            config,
            instances: Instances::default(),
            prompts_run: 0,
            requests,
            ledger: Ledger::default(),
            bell,
        }
    }

    /// Forgets all outputs and instances.
    pub(crate) fn reset(&mut self) {
        self.cache = OutputCache::new(self.config.cache);
        self.instances = Instances::default();
    }

    /// Forgets outputs that hold a value of this owner, and the instances of its classes.
    pub(crate) fn drop_owned(&mut self, owner: &str) {
        self.cache.retain(|outputs| {
            let mut values = outputs.iter().flatten();
            !values.any(|value| holds(value, owner))
        });
        let registry = self.config.registry.snapshot();
        self.instances.retain(|class| {
            let class = registry.get(class);
            class.is_some_and(|class| class.owner().is_none_or(|o| &**o != owner))
        });
    }
}

/// Whether a value of this owner is somewhere in a value. Lists may share their parts many times over and be deep: each is
/// looked into once, without recursion.
fn holds(value: &Value, owner: &str) -> bool {
    let mut seen = HashSet::new();
    let mut todo = vec![value];
    while let Some(value) = todo.pop() {
        match value {
            Value::Object(object) if object.owner().is_some_and(|o| &**o == owner) => return true,
            Value::List(items) if seen.insert(Arc::as_ptr(items).cast::<()>()) => {
                todo.extend(items.iter());
            }
            Value::Map(map) if seen.insert(Arc::as_ptr(map).cast::<()>()) => {
                todo.extend(map.values());
            }
            _ => {}
        }
    }
    false
}
