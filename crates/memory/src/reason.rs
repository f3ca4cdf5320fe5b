//! Why something was decided: a typed value that plans and events carry. Its words are made here and nowhere else, and no decision
//! reads them.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use crate::amount::readable;
use crate::claims::claimant;
use crate::oom::OomStep;
use crate::plain::megabytes;
use crate::plan::EvictionRank;
use crate::{Policy, PolicySource, SetBy};

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

/// `keep set by node 4 of client 8f3a`.
impl Display for Wish {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (policy, by) = (self.policy, &self.set_by);
        match (by.source, &*by.node) {
            (PolicySource::Default, _) if policy == Policy::Auto => {
                f.write_str("auto: stays until its place is needed")
            }
            (PolicySource::Api, _) => write!(f, "{policy} set by the API"),
            (_, "") => write!(f, "{policy} set without a node"),
            _ => write!(f, "{policy} set by {}", claimant(&by.node, &by.client)),
        }
    }
}

/// A node of a client's workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePlace {
    pub node: Arc<str>,
    pub client: Arc<str>,
}

impl Display for NodePlace {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&claimant(&self.node, &self.client))
    }
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
        loser: String,
        winner: String,
        way_out: String,
    },
    /// A node that had claimed this model uses another file now.
    ClaimMoved {
        claimant: String,
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

impl Display for Reason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Room {
                rank,
                device,
                missing,
            } => return write!(f, "{rank}; {device} needs {} more", readable(*missing)),
            Self::MainMemory { rank } => return write!(f, "{rank}; main memory runs short"),
            Self::Pinned => "pinned",
            Self::EjectedByLoader => "the loader of another model asked for the device",
            Self::EjectedBy(by) => return write!(f, "{by} asked for the device (eject_models)"),
            Self::HeldByOther(None) => "another prompt still uses it",
            Self::HeldByOther(Some(wish)) => {
                return write!(f, "another prompt still uses it; {wish}");
            }
            Self::Held => "a prompt uses it",
            Self::ReleaseWasDeferred => "asked to go while it was in use",
            Self::UnloadWasDeferred => "asked to unload models while it was in use",
            Self::Policy(wish) => return write!(f, "{wish}"),
            Self::SmartMemoryOff => "smart memory is off",
            Self::RetentionRespected(wish) => return write!(f, "retention is respected: {wish}"),
            Self::FreeMemoryRequest => "asked to free memory",
            Self::UnloadRequest => "asked to unload models",
            Self::ReleaseRequest => "asked to go",
            Self::FreeDeferred => "a prompt runs; it is done after its end",
            Self::PolicySetByApi => "set by the API; no prompt uses it",
            Self::UnloadInNode => "a node asked for everything to be unloaded",
            Self::NodeOutOfMemory => "a node ran out of memory and failed",
            Self::DeviceFull => "the device is full and the node failed",
            Self::OutOfMemoryStep(step) => return write!(f, "{step}"),
            Self::StreamsMore => "computing needs the room: more of it is streamed",
            Self::Idle => "nothing was used for long",
            Self::ProgramEnds => "the program ends",
            Self::PromptOver(wish) => return write!(f, "its prompt is over: {wish}"),
            Self::TimeToLiveOver(wish) => return write!(f, "its time to live is over: {wish}"),
            Self::Retry(None) => "releasing it failed before",
            Self::Retry(Some(first)) => return write!(f, "releasing it failed before: {first}"),
            Self::LoadFailed(None) => "its load failed",
            Self::LoadFailed(Some(error)) => return write!(f, "its load failed: {error}"),
            Self::DeviceFailed { device, failure } => {
                return write!(f, "{device} has failed: {failure}");
            }
            Self::LastUserGone => "its last user is gone",
            Self::ReadAgain => "it was released; its files were read again",
            Self::LeakSuspected => "released, but its bytes did not come back",
            Self::AccountingDrift => "the devices do not agree with the books",
            Self::Counts(wish) => return write!(f, "{} counts: {wish}", wish.policy),
            Self::UsedAgain(wish) => return write!(f, "used again: {wish}"),
            Self::Conflict {
                loser,
                winner,
                way_out,
            } => return write!(f, "{loser} loses against {winner}; to undo it, {way_out}"),
            Self::ClaimMoved {
                claimant,
                file,
                counts,
            } => {
                return write!(
                    f,
                    "{claimant} now uses {file}; what counts from now on is {counts}"
                );
            }
            Self::PlacementInput { by, input, amount } => {
                return write!(f, "{by} asked for it ({input}{amount})");
            }
            Self::DonorsFull(names) => {
                let names = names.join(", ");
                return write!(
                    f,
                    "no room for all that was meant for {names}: the rest is in main memory"
                );
            }
            Self::NoVram { device } => return write!(f, "--novram keeps weights off {device}"),
            Self::DeviceShort { device, limit } => {
                write!(f, "{device} has no room for more")?;
                let Some((limit, buffer)) = limit else {
                    return Ok(());
                };
                let (limit, buffer) = (megabytes(*limit), megabytes(*buffer));
                return write!(
                    f,
                    ": {limit} beside what computing needs, {buffer} of them to bring layers over"
                );
            }
            Self::Several(reasons) => {
                for (at, reason) in reasons.iter().enumerate() {
                    let pause = if at == 0 { "" } else { "; " };
                    write!(f, "{pause}{reason}")?;
                }
                return Ok(());
            }
        };
        f.write_str(text)
    }
}
