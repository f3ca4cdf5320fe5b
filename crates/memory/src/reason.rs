//! Why something was decided: a typed value that plans and events carry. Its words are made where people read them.

use std::sync::Arc;

use crate::oom::OomStep;
use crate::plan::EvictionRank;
use crate::{Policy, SetBy, WeightsId};

/// A policy as it counted at one moment, and who set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    pub policy: Policy,
    pub set_by: SetBy,
}

impl Default for Wish {
    /// Nobody has claimed anything.
    fn default() -> Self {
        Self {
            policy: Policy::Auto,
            set_by: SetBy::default(),
        }
    }
}

/// A node of a client's workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePlace {
    pub node: Arc<str>,
    pub client: Arc<str>,
}

/// Why a model is kept, moved, released or loaded as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// A device needs this many bytes more.
    Room {
        rank: EvictionRank,
        device: String,
        missing: u64,
    },
    /// Main memory runs short.
    MainMemory {
        rank: EvictionRank,
    },
    Pinned,
    /// The loader of another model asked for the device.
    EjectedByLoader,
    /// This loader did, with its input `eject_models`.
    EjectedBy(NodePlace),
    /// Another prompt holds it; the wish that it goes is carried out later.
    HeldByOther(Option<Wish>),
    /// A prompt holds it.
    Held,
    /// Somebody asked for it to go while a prompt held it.
    ReleaseWasDeferred,
    UnloadWasDeferred,
    /// The policy that counts decides.
    Policy(Wish),
    /// `--disable-smart-memory`.
    SmartMemoryOff,
    /// A request spares what is kept.
    RetentionRespected(Wish),
    FreeMemoryRequest,
    UnloadRequest,
    ReleaseRequest,
    /// A request to free waits for the end of a prompt.
    FreeDeferred,
    PolicySetByApi,
    UnloadInNode,
    NodeOutOfMemory,
    /// The device is full and the node failed.
    DeviceFull,
    OutOfMemoryStep(OomStep),
    /// Computing needs the room.
    StreamsMore,
    /// `--unload-after`.
    Idle,
    ProgramEnds,
    PromptOver(Wish),
    TimeToLiveOver(Wish),
    /// A release that failed is tried again, for the reason it had.
    Retry(Option<Box<Reason>>),
    LoadFailed(Option<String>),
    DeviceFailed {
        device: String,
        failure: String,
    },
    LastUserGone,
    /// What its files hold is read again.
    ReadAgain,
    LeakSuspected,
    AccountingDrift,
    /// A claim was set or a sleeping one counts again; this policy counts now.
    Counts(Wish),
    UsedAgain(Wish),
    /// Two claims disagree.
    Conflict {
        loser: Wish,
        winner: Wish,
        weights: WeightsId,
    },
    /// A node that had claimed this model uses another file now.
    ClaimMoved {
        claimant: NodePlace,
        file: String,
        counts: Wish,
    },
    /// A loader's input keeps part of the model elsewhere.
    PlacementInput {
        by: NodePlace,
        input: &'static str,
        amount: String,
    },
    /// Donors had no room for all that was meant for them.
    DonorsFull(Vec<String>),
    NoVram {
        device: String,
    },
    /// The device has room for so many bytes, of which the second number is kept for streaming.
    DeviceShort {
        device: String,
        limit: Option<(u64, u64)>,
    },
    /// All of these.
    Several(Vec<Reason>),
}
