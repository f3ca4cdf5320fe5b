//! What a front asks of a worker, beside running jobs.

use std::sync::Arc;

use fresco_engine::{FreeRequest, RoomReport};
use fresco_memory::{MemoryCommand, Refusal};
use serde::{Deserialize, Serialize};

use super::alive::TaskName;
use super::memory::MemoryReply;
use super::models::{ModelAnswer, ModelRequest};
use crate::content::ModelEntry;

/// Front to worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerRequest {
    /// This front has jobs for the worker, which another front has now.
    Want {
        front: Arc<str>,
    },
    Interrupt(TaskName),
    Free(FreeRequest),
    /// Say which nodes and models there are.
    Describe,
    Memory(MemoryCommand),
    Models(ModelRequest),
}

/// Worker to front.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerAnswer {
    Done,
    Freed(FreedMemory),
    Description(WorkerDescription),
    /// The error: why the memory room does not do it.
    Memory(Result<MemoryReply, Refusal>),
    Models(ModelAnswer),
}

/// What a request to free memory did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FreedMemory {
    /// False: a job still runs, and it comes later.
    pub done: bool,
    pub cache_reset: bool,
    /// What became of the models.
    pub room: Option<RoomReport>,
    pub ram_before: Option<u64>,
    pub ram_after: Option<u64>,
}

/// What a worker can run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerDescription {
    /// Its classes of nodes.
    pub classes: Vec<Arc<str>>,
    pub models: Vec<ModelEntry>,
}
