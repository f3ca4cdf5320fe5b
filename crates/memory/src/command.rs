//! What memory is told and asked: one enum, whoever makes it (the page, the API, nodes, another machine) and wherever it is carried out.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    Event, EvictionPlan, FreeReport, FreeRequest, LoadPlan, LoadQuery, ModelRegistry, ModelReport,
    Policy, Removed, Snapshot, UnitReport, Who,
};

/// Names a model by the id of its weights or of a handle.
type ModelName = String;

/// Told to a memory room.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryCommand {
    /// Devices, models, and so many of the newest events.
    Overview {
        recent: usize,
    },
    /// One model and where its layers are.
    Model {
        id: ModelName,
    },
    /// Events after a number, of these kinds (none: all); the newest of too many.
    Events {
        since: u64,
        kinds: Vec<String>,
        limit: usize,
    },
    /// Look for contradictions in the books.
    Check,
    SetPolicy {
        id: ModelName,
        policy: Policy,
    },
    /// Drop a model now, unless a prompt uses it or it is pinned.
    Release {
        id: ModelName,
    },
    /// Drop a model and what is claimed for it, after the prompts that use it. `force`: also a pinned one.
    Remove {
        id: ModelName,
        force: bool,
    },
    /// Free what a request names; while a prompt runs, only what no prompt holds.
    Free {
        request: FreeRequest,
        running: Option<Arc<str>>,
    },
    /// What [`MemoryCommand::Free`] would do.
    PlanFree(FreeRequest),
    /// How a load would go.
    PlanLoad(LoadQuery),
    /// A node asks for everything to leave the devices.
    UnloadForNode(Who),
    /// A node ran out of memory and failed.
    UnloadAfterFailure(Who),
    /// Give back what is only held to be faster.
    TrimCaches,
}

impl MemoryCommand {
    /// Whether something may have become due by it.
    pub fn changes(&self) -> bool {
        match self {
            Self::Overview { .. }
            | Self::Model { .. }
            | Self::Events { .. }
            | Self::Check
            | Self::PlanFree(_)
            | Self::PlanLoad(_) => false,
            Self::SetPolicy { .. }
            | Self::Release { .. }
            | Self::Remove { .. }
            | Self::Free { .. }
            | Self::UnloadForNode(_)
            | Self::UnloadAfterFailure(_)
            | Self::TrimCaches => true,
        }
    }
}

/// What a command gives back.
#[derive(Debug, Clone, PartialEq)]
pub enum MemoryAnswer {
    Overview(Overview),
    Model(Box<ModelReport>, Vec<UnitReport>),
    Events { events: Vec<Event>, last_seq: u64 },
    Problems(Vec<String>),
    PolicySet(Box<ModelReport>),
    Removed(Removed),
    Freed(FreeReport),
    FreePlan(EvictionPlan),
    LoadPlan(Box<LoadPlan>),
    Done,
}

/// Everything at one moment, and what led to it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Overview {
    pub snapshot: Snapshot,
    pub decisions: Vec<Event>,
    pub last_seq: u64,
}

/// Why a command is not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    #[error("the model is unknown")]
    Unknown,
    #[error("the model is in use")]
    Leased,
    #[error("the model is pinned")]
    Pinned,
    /// What is asked for cannot be meant, one line for each problem.
    #[error("{}", .0.join("; "))]
    Invalid(Vec<String>),
}

impl ModelRegistry {
    /// Does what it is told.
    pub fn carry_out(&self, command: &MemoryCommand) -> Result<MemoryAnswer, Refusal> {
        Ok(match command {
            MemoryCommand::Overview { recent } => {
                let last_seq = self.last_seq();
                let since = last_seq.saturating_sub(*recent as u64);
                MemoryAnswer::Overview(Overview {
                    decisions: self.events(since, &[], *recent),
                    snapshot: self.snapshot(),
                    last_seq,
                })
            }
            MemoryCommand::Model { id } => {
                let (model, units) = self.model(id).ok_or(Refusal::Unknown)?;
                MemoryAnswer::Model(model.into(), units)
            }
            MemoryCommand::Events {
                since,
                kinds,
                limit,
            } => {
                // In this order, so that nothing up to the number is missing.
                let last_seq = self.last_seq();
                let events = self.events(*since, kinds, *limit);
                MemoryAnswer::Events { events, last_seq }
            }
            MemoryCommand::Check => MemoryAnswer::Problems(self.check()),
            MemoryCommand::SetPolicy { id, policy } => {
                MemoryAnswer::PolicySet(self.set_policy(id, *policy)?.into())
            }
            MemoryCommand::Release { id } => {
                self.release(id)?;
                MemoryAnswer::Removed(Removed::Done)
            }
            MemoryCommand::Remove { id, force } => MemoryAnswer::Removed(self.remove(id, *force)?),
            MemoryCommand::Free { request, running } => {
                MemoryAnswer::Freed(self.free(request, running.as_deref()))
            }
            MemoryCommand::PlanFree(request) => MemoryAnswer::FreePlan(self.free_plan(request)),
            MemoryCommand::PlanLoad(query) => {
                let request = query.resolve(self)?;
                MemoryAnswer::LoadPlan(self.plan_load(&request).into())
            }
            MemoryCommand::UnloadForNode(who) => {
                self.unload_in_node(who);
                MemoryAnswer::Done
            }
            MemoryCommand::UnloadAfterFailure(who) => {
                self.unload_after_oom(who);
                MemoryAnswer::Done
            }
            MemoryCommand::TrimCaches => {
                self.soft_empty();
                MemoryAnswer::Done
            }
        })
    }
}
