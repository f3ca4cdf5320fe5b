//! What a running prompt shares with its nodes and with whoever watches it.

use std::sync::{Arc, Mutex};

use fresco_graph::{CallScope, CancelToken, NodeError, Progress, Resources, Services, Value, lock};

use crate::dynprompt::DynPrompt;
use crate::event::{Event, EventKind, EventSink, NodeIds, NodeProgress, NodeState};
use crate::job::RunControl;
use crate::progress::ProgressRegistry;
use crate::requests::FreeRequests;

pub(crate) struct Watch {
    pub(crate) prompt_id: Arc<str>,
    pub(crate) client: Option<Arc<str>>,
    pub(crate) sink: Arc<dyn EventSink>,
    pub(crate) graph: Arc<DynPrompt>,
    pub(crate) control: RunControl,
    pub(crate) requests: Arc<FreeRequests>,
    /// Nodes report from any thread.
    pub(crate) progress: Mutex<ProgressRegistry>,
    /// The prompt and the picture information as nodes have changed them.
    pub(crate) hidden: Mutex<(Option<Value>, Option<Value>)>,
}

impl Watch {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.control.cancel.is_raised()
    }

    /// Runs something that can tell wherever it is that the prompt was interrupted.
    pub(crate) fn interruptible<T>(
        &self,
        resources: &Resources,
        f: impl FnOnce() -> Result<T, NodeError>,
    ) -> Result<T, NodeError> {
        let Some(scope) = resources.get::<CallScope>() else {
            return f();
        };
        let (mut f, mut result) = (Some(f), None);
        (scope.0)(self.control.cancel.flag(), &mut || {
            result = f.take().map(|f| f());
        });
        result.unwrap_or_else(|| Err(NodeError::runtime("the node was not called")))
    }

    /// A node that hangs on after its run was given up talks to nobody.
    pub(crate) fn emit(&self, kind: EventKind) {
        if !self.control.is_given_up() {
            self.sink.emit(Event {
                prompt_id: Some(self.prompt_id.clone()),
                client: self.client.clone(),
                worker: None,
                kind,
            });
        }
    }

    fn apply(&self, progress: NodeProgress) {
        lock(&self.progress).apply(progress.clone());
        self.emit(EventKind::NodeProgress(progress));
    }

    pub(crate) fn node_started(&self, ids: NodeIds) {
        self.node_at(ids, 0.0, 1.0);
    }

    fn node_at(&self, ids: NodeIds, value: f64, max: f64) {
        self.apply(NodeProgress {
            ids,
            state: NodeState::Running,
            value,
            max,
        });
    }

    pub(crate) fn node_finished(&self, ids: NodeIds) {
        let finished = lock(&self.progress).finished(ids);
        self.apply(finished);
    }

    /// The first node that has begun and not finished.
    pub(crate) fn running_node(&self) -> Option<Arc<str>> {
        let progress = lock(&self.progress);
        let running = progress.nodes().find(|p| p.state == NodeState::Running);
        running.map(|p| p.ids.node.clone())
    }
}

impl Services for Watch {
    fn progress(&self, _: &str, node_id: &str, progress: Progress) {
        let Progress {
            value,
            max,
            preview,
            bar,
        } = progress;
        let ids = self.graph.ids_of(&node_id.into());
        self.node_at(ids.clone(), value, max);
        if bar {
            self.emit(EventKind::Progress {
                ids,
                value,
                max,
                preview,
            });
        } else if let Some(preview) = preview {
            self.emit(EventKind::Preview { ids, preview });
        }
    }

    fn interrupted(&self) -> bool {
        self.is_cancelled()
    }

    fn cancel_token(&self) -> CancelToken {
        self.control.cancel.clone()
    }

    fn send(&self, event: &str, data: Value, client: Option<&str>) {
        self.emit(EventKind::Custom {
            event: event.into(),
            data,
            client: client.map(Into::into),
        });
    }

    fn text(&self, node_id: &str, text: &str) {
        self.emit(EventKind::Text {
            node: node_id.into(),
            text: text.into(),
        });
    }

    fn set_flag(&self, name: &str, value: Value) {
        self.requests.push_flag(name, value);
    }

    fn change_hidden(&self, prompt: Option<Value>, extra_pnginfo: Option<Value>) {
        let mut hidden = lock(&self.hidden);
        hidden.0 = prompt.or(hidden.0.take());
        hidden.1 = extra_pnginfo.or(hidden.1.take());
    }
}
