//! How a prompt ends when it does not succeed, and whom that is reported on.

use std::collections::HashSet;
use std::sync::Arc;

use fresco_graph::{NodeError, Value};

use super::{Run, SHOWN_BYTES};
use crate::cut;
use crate::event::Failure;
use crate::job::JobEnd;
use crate::memory::Unload;
use crate::messages::{RunMessages, now_ms};
use crate::panics::catch_panic;

/// What an error report shows of a text.
fn short(text: &str) -> String {
    cut::text(text, SHOWN_BYTES).to_string()
}

impl Run<'_> {
    fn current_outputs(&self) -> Vec<Arc<str>> {
        if self.state.cache.strategy() == crate::cache::Strategy::None {
            return Vec::new();
        }
        self.graph.top_ids().cloned().collect()
    }

    pub(super) fn top_class(&self, real: &str) -> Arc<str> {
        self.graph
            .top(real)
            .map(|n| n.class.clone())
            .unwrap_or_default()
    }

    /// Whom an error is reported on: the node itself, or for a link that leads nowhere the output that needs it.
    fn blamed(&self, id: &Arc<str>) -> Arc<str> {
        let mut blamed = id.clone();
        if self.graph.get(id).is_some() {
            return blamed;
        }
        let held = self.held.borrow();
        let mut seen = HashSet::new();
        while !self.job.outputs.contains(&blamed)
            && let Some(next) = held.get(&blamed).and_then(|h| h.consumers.iter().min())
            && seen.insert(next.clone())
        {
            blamed = next.clone();
        }
        blamed
    }

    pub(super) fn failure(&self, id: &Arc<str>, error: &NodeError, inputs: Value) -> Failure {
        let real = self.graph.real_of(&self.blamed(id));
        let class = self.top_class(&real);
        tracing::error!(node = %id, class = %class, kind = error.kind(), "node failed: {}", short(error.message()));
        let mut tips = String::new();
        if matches!(error, NodeError::OutOfMemory { .. }) {
            tips.push_str("This error means you ran out of memory on your GPU.\n\nTIPS: If the workflow worked before you might have accidentally set the batch_size to a large number.");
            let memory = &self.state.config.memory;
            catch_panic("unload_all", || {
                memory.unload_all(&self.job.prompt_id, Unload::OutOfMemory);
            });
        }
        let mut trace = vec![format!(
            "node {id} ({class}): {}: {}\n",
            error.kind(),
            error.message()
        )];
        trace.extend(error.trace().iter().map(|t| format!("caused by: {t}\n")));
        // A node may quote what it was given.
        let trace = trace.iter().map(|line| short(line)).collect();
        Failure {
            class,
            node: real,
            executed: self.executed.clone(),
            message: format!("{}\n{tips}", short(error.message())),
            kind: error.kind().to_owned(),
            trace,
            inputs,
            outputs: self.current_outputs(),
            timestamp: now_ms(),
        }
    }

    /// The end of a prompt that was not let in.
    pub(crate) fn refused(&self, node: Option<Arc<str>>, message: String) -> Failure {
        let kind = NodeError::OutOfMemory {
            message: String::new(),
        };
        tracing::error!(prompt = %self.job.prompt_id, "refused: {message}");
        let node = node.unwrap_or_default();
        Failure {
            class: self.top_class(&node),
            node,
            outputs: self.current_outputs(),
            ..Failure::of_job(kind.kind(), message)
        }
    }

    pub(super) fn cycle(&self, ids: &[Arc<str>]) -> Failure {
        let shown = ids
            .iter()
            .map(|id| (id, self.graph.display_of(id)))
            .find(|(id, display)| **id != *display);
        let node = shown
            .map(|(_, display)| display)
            .or_else(|| ids.first().cloned())
            .unwrap_or_default();
        Failure {
            class: self.graph.get(&node).map(|n| n.class).unwrap_or_default(),
            node,
            executed: self.executed.clone(),
            message: "Dependency cycle detected".into(),
            kind: "graph.DependencyCycleError".into(),
            trace: Vec::new(),
            inputs: Value::List(Arc::default()),
            outputs: Vec::new(),
            timestamp: now_ms(),
        }
    }

    pub(super) fn interrupted(&self, id: &Arc<str>, messages: &mut RunMessages) -> JobEnd {
        let node = self.graph.real_of(id);
        let class = self.top_class(&node);
        messages.interrupted(node, class, self.executed.clone())
    }
}
