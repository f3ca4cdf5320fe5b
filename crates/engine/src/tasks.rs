//! Futures of asynchronous nodes, polled by the executor thread itself.

use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use fresco_graph::{NodeError, NodeFuture, NodeOutput, NodeResult, lock};

/// Node ids whose tasks want to be polled; also rung when an interrupt arrives.
#[derive(Default)]
pub(crate) struct Bell {
    woken: Mutex<(BTreeSet<Arc<str>>, bool)>,
    changed: Condvar,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, (BTreeSet<Arc<str>>, bool)> {
        lock(&self.woken)
    }

    /// Wakes a waiting executor without naming a node.
    pub(crate) fn ring(&self) {
        self.lock().1 = true;
        self.changed.notify_all();
    }

    fn wake(&self, node: &Arc<str>) {
        self.lock().0.insert(node.clone());
        self.changed.notify_all();
    }

    fn take(&self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.lock().0).into_iter().collect()
    }

    /// Waits until a node was woken or the bell rung.
    fn wait(&self) -> Vec<Arc<str>> {
        let mut state = self.lock();
        while state.0.is_empty() && !state.1 {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.1 = false;
        std::mem::take(&mut state.0).into_iter().collect()
    }
}

struct NodeWaker {
    node: Arc<str>,
    bell: Arc<Bell>,
}

impl Wake for NodeWaker {
    fn wake(self: Arc<Self>) {
        self.bell.wake(&self.node);
    }
}

/// One mapped call: finished, or still going.
pub(crate) enum CallState {
    Done(NodeResult),
    Going(NodeFuture),
}

/// The unfinished calls of the running prompt, by node.
pub(crate) struct Tasks {
    nodes: HashMap<Arc<str>, Vec<CallState>>,
    bell: Arc<Bell>,
}

impl Tasks {
    pub(crate) fn new(bell: Arc<Bell>) -> Self {
        Self {
            nodes: HashMap::new(),
            bell,
        }
    }

    fn poll_calls(&self, node: &Arc<str>, calls: &mut [CallState]) -> bool {
        let waker = Waker::from(Arc::new(NodeWaker {
            node: node.clone(),
            bell: self.bell.clone(),
        }));
        let mut cx = Context::from_waker(&waker);
        let mut all_done = true;
        for call in calls {
            if let CallState::Going(future) = call {
                let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
                match polled {
                    Ok(Poll::Ready(result)) => *call = CallState::Done(result),
                    Ok(Poll::Pending) => all_done = false,
                    Err(panic) => *call = CallState::Done(Err(panicked(&*panic))),
                }
            }
        }
        all_done
    }

    /// Polls each call once. Gives the results if all are done, else keeps them under the node's id.
    pub(crate) fn start(
        &mut self,
        node: &Arc<str>,
        mut calls: Vec<CallState>,
    ) -> Option<Vec<NodeResult>> {
        if self.poll_calls(node, &mut calls) {
            return Some(results(calls));
        }
        self.nodes.insert(node.clone(), calls);
        None
    }

    /// Polls what was woken; gives the nodes whose calls are all done. With `wait` it blocks until the bell.
    pub(crate) fn poll(&mut self, wait: bool) -> Vec<Arc<str>> {
        let woken = if wait {
            self.bell.wait()
        } else {
            self.bell.take()
        };
        let mut done = Vec::new();
        for node in woken {
            if let Some(mut calls) = self.nodes.remove(&node) {
                if self.poll_calls(&node, &mut calls) {
                    done.push(node.clone());
                }
                self.nodes.insert(node, calls);
            }
        }
        done
    }

    /// The results of a node whose calls are all done.
    pub(crate) fn take(&mut self, node: &str) -> Option<Vec<NodeResult>> {
        self.nodes.remove(node).map(results)
    }
}

fn results(calls: Vec<CallState>) -> Vec<NodeResult> {
    calls
        .into_iter()
        .map(|c| match c {
            CallState::Done(r) => r,
            CallState::Going(_) => Ok(NodeOutput::default()),
        })
        .collect()
}

/// A panic in a node is that node's failure.
pub(crate) fn panicked(panic: &(dyn std::any::Any + Send)) -> NodeError {
    // Operations that have no other way to fail unwind with an error of their own.
    if let Some(error) = panic.downcast_ref::<Box<dyn Error + Send + Sync>>() {
        return NodeError::runtime(error.to_string());
    }
    let text = panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown panic".into());
    NodeError::failed("RuntimeError", format!("the node panicked: {text}"))
}
