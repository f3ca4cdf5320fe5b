//! A job on its way through a worker: what is to be run, how it is stopped, how it ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fresco_graph::{CancelToken, Map, Value};

/// A prompt to run.
#[derive(Clone, Debug)]
pub struct RunJob {
    pub prompt_id: Arc<str>,
    /// As validated.
    pub prompt: Arc<Map>,
    pub extra_data: Map,
    pub outputs: Vec<Arc<str>>,
    /// Secrets that no record shows.
    pub sensitive: Map,
    pub client: Option<Arc<str>>,
}

/// How one run is stopped. Clones are the same run.
#[derive(Clone, Default)]
pub struct RunControl {
    /// Raised when somebody asks the run to stop, and until it ends.
    pub cancel: CancelToken,
    given_up: Arc<AtomicBool>,
    /// Renews the lease on the job; none where it lasts as long as this process.
    renew: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl RunControl {
    pub(crate) fn with_lease(renew: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            renew: Some(Arc::new(renew)),
            ..Self::default()
        }
    }

    /// The run goes on: its job is this worker's for another term. A worker in another process calls this for each sign of
    /// life, more often than its term is long; a job whose lease ends is given to another.
    pub fn renew_lease(&self) {
        if let Some(renew) = &self.renew {
            renew();
        }
    }

    /// It was asked to stop and did not: whatever it still does is for nobody. Also raises the token.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
        self.cancel.raise();
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }
}

/// How a prompt ended, in the form history keeps.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub success: bool,
    pub interrupted: bool,
    /// UI output by node id.
    pub outputs: Map,
    pub meta: Map,
    /// `[event, data]` pairs.
    pub messages: Vec<Value>,
}
