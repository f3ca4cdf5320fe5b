//! Requests to free memory, on their way to one worker: the one channel for the API, for nodes, and for owners of values
//! that are gone.
//!
//! They wait for the end of the running prompt and become one meanwhile. Forced ones, and owners that are gone, are also
//! looked at between two nodes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use fresco_graph::{Map, Value, lock};
use fresco_placement::FreeRequest;

use crate::memory::FreeReport;
use crate::reply::Sender;
use crate::tasks::Bell;

#[derive(Default)]
struct PendingRequests {
    /// All of them as one.
    request: Option<FreeRequest>,
    /// Those among them that do not wait for the prompt.
    forced: Option<FreeRequest>,
    /// What nodes of the running prompt asked for, by name.
    flags: Map,
    /// Whose values are gone.
    owners: Vec<Arc<str>>,
    /// Who wants to know when it is done.
    waiters: Vec<Sender<FreeReport>>,
    /// Wakes an executor that waits for slow nodes.
    bell: Option<Arc<Bell>>,
    closed: bool,
}

#[derive(Default)]
pub(crate) struct FreeRequests {
    waiting: Mutex<PendingRequests>,
    /// Whether there is something that does not wait: asked between any two nodes, so without a lock.
    urgent: AtomicBool,
}

/// What does not wait for the end of the prompt.
#[derive(Default)]
pub(crate) struct Urgent {
    pub(crate) forced: Option<FreeRequest>,
    pub(crate) owners: Vec<Arc<str>>,
}

/// Everything that waits.
#[derive(Default)]
pub(crate) struct TakenRequests {
    pub(crate) request: Option<FreeRequest>,
    pub(crate) owners: Vec<Arc<str>>,
    pub(crate) waiters: Vec<Sender<FreeReport>>,
}

fn add(sum: &mut Option<FreeRequest>, request: FreeRequest) {
    match sum {
        Some(sum) => sum.merge(request),
        None => *sum = Some(request),
    }
}

impl FreeRequests {
    /// Adds a request. `note` is called before the worker can see it, so that what it says comes before what is done.
    pub(crate) fn push(
        &self,
        request: FreeRequest,
        waiter: Option<Sender<FreeReport>>,
        note: impl FnOnce(),
    ) {
        let mut waiting = lock(&self.waiting);
        if waiting.closed {
            return;
        }
        note();
        if request.force {
            add(&mut waiting.forced, request.clone());
            self.urge(&waiting);
        }
        add(&mut waiting.request, request);
        waiting.waiters.extend(waiter);
    }

    /// A node of the running prompt asks for `unload_models` or `free_memory` after it; other names mean nothing.
    pub(crate) fn push_flag(&self, name: &str, value: Value) {
        lock(&self.waiting).flags.insert(name.into(), value);
    }

    /// The values of an owner are gone.
    pub(crate) fn push_owner(&self, owner: &Arc<str>) {
        let mut waiting = lock(&self.waiting);
        waiting.owners.push(owner.clone());
        self.urge(&waiting);
    }

    fn urge(&self, waiting: &PendingRequests) {
        self.urgent.store(true, Ordering::Release);
        if let Some(bell) = &waiting.bell {
            bell.ring();
        }
    }

    /// The executor that looks at these from now on.
    pub(crate) fn set_bell(&self, bell: Arc<Bell>) {
        lock(&self.waiting).bell = Some(bell);
    }

    /// Everything that waits, once.
    pub(crate) fn take(&self) -> TakenRequests {
        let mut waiting = lock(&self.waiting);
        self.urgent.store(false, Ordering::Release);
        waiting.forced = None;
        let flags = std::mem::take(&mut waiting.flags);
        let wants = |name: &str| flags.get(name).map(Value::truthy);
        let free_memory = wants("free_memory").unwrap_or(false);
        let unload_models = wants("unload_models").unwrap_or(free_memory);
        if free_memory || unload_models {
            let by_node = FreeRequest {
                unload_models,
                free_memory,
                ..FreeRequest::default()
            };
            add(&mut waiting.request, by_node);
        }
        TakenRequests {
            request: waiting.request.take(),
            owners: std::mem::take(&mut waiting.owners),
            waiters: std::mem::take(&mut waiting.waiters),
        }
    }

    /// What came since the last look and does not wait. Forced requests stay among those that wait.
    pub(crate) fn take_urgent(&self) -> Option<Urgent> {
        if !self.urgent.load(Ordering::Acquire) {
            return None;
        }
        let mut waiting = lock(&self.waiting);
        self.urgent.store(false, Ordering::Release);
        Some(Urgent {
            forced: waiting.forced.take(),
            owners: std::mem::take(&mut waiting.owners),
        })
    }

    /// Nothing will be carried out any more; whoever waits is told so.
    pub(crate) fn close(&self) {
        let mut waiting = lock(&self.waiting);
        *waiting = PendingRequests {
            closed: true,
            ..PendingRequests::default()
        };
    }
}
