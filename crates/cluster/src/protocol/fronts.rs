//! What fronts ask each other.

use std::sync::Arc;

use fresco_graph::Value;
use serde::{Deserialize, Serialize};

use crate::content::FileRef;

/// Front to front.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrontRequest {
    /// What runs and what waits.
    Queue,
    /// The record of one job, with its files.
    History { prompt_id: Arc<str> },
    /// The newest records, with their files.
    Histories,
    /// Stop one job, or all.
    Interrupt { prompt_id: Option<Arc<str>> },
    /// Drop all jobs that wait.
    Clear,
    /// Drop these jobs, if they wait.
    Delete { prompt_ids: Vec<Arc<str>> },
}

/// Front to front, in reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrontAnswer {
    /// Entries as `/queue` shows them.
    Queue {
        running: Vec<Value>,
        pending: Vec<Value>,
    },
    /// Records as `/history` shows them, and the files that they name.
    Records {
        records: Value,
        files: Vec<FileRef>,
    },
    Done,
}
