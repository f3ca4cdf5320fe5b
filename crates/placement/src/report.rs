//! What memory rooms say that they did or would do: the same on a socket between processes and in answers of the API.

use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// Bytes by device, main memory under `cpu`.
pub type DeviceBytes = IndexMap<Arc<str>, u64>;

/// What a memory room did about a [`crate::FreeRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomReport {
    pub models: Vec<FreedModel>,
    /// The plan that it followed.
    pub plan: Vec<PlannedStep>,
}

impl RoomReport {
    /// The same with the name of the worker whose memory it is about.
    #[must_use]
    pub fn of_worker(mut self, worker: &Arc<str>) -> Self {
        for model in &mut self.models {
            model.worker = Some(worker.clone());
        }
        for step in &mut self.plan {
            step.worker = Some(worker.clone());
        }
        self
    }
}

/// A model before and after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreedModel {
    pub weights_id: Arc<str>,
    pub before: DeviceBytes,
    pub after: DeviceBytes,
    pub error: Option<String>,
    /// A worker on another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Arc<str>>,
}

/// What becomes of a model in one step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepAction {
    /// Nothing, for a reason worth saying.
    Keep,
    /// Some of it leaves the device.
    Demote,
    /// All of it leaves the device, for its offload device.
    Evict,
    /// It leaves the main memory too.
    Release,
    /// As soon as no prompt uses it.
    Defer,
    /// It is brought onto the device, as far as there is room.
    Load,
}

impl StepAction {
    /// As messages have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Demote => "demote",
            Self::Evict => "evict",
            Self::Release => "release",
            Self::Defer => "defer",
            Self::Load => "load",
        }
    }
}

/// One step of a plan, with its reason in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedStep {
    pub weights_id: Arc<str>,
    /// None: all devices and the main memory.
    pub device: Option<Arc<str>>,
    pub action: StepAction,
    /// How much is demoted or loaded.
    pub action_bytes: Option<u64>,
    /// As users write it.
    pub policy: Arc<str>,
    /// Bytes that are there before the step.
    pub bytes: u64,
    pub reason: Arc<str>,
    /// A worker on another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Arc<str>>,
}
