//! The words of this room: policies, events, requests and what is reported. Plain data.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fresco_tensor::{Device, TensorError};
use serde::{Deserialize, Serialize};

use crate::reason::{NodePlace, Reason};

/// How long a model stays. Larger beats smaller where several claims meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Policy {
    /// Until its place is needed.
    Auto,
    /// Until the end of the prompt that used it; then it leaves every device and the main memory.
    EjectAfter,
    /// For so long after its last use; then as [`Policy::EjectAfter`].
    Ttl(Duration),
    /// Where it is; pressure may move it to main memory, never drop it.
    Keep,
    /// As keep, and not even moved.
    Pin,
}

impl Policy {
    /// What [`Policy::parse`] takes, for whoever was not understood.
    pub const SPELLINGS: &str = "auto, keep, pin, eject_after, ttl:SECONDS";

    /// `auto`, `eject_after` or `eject`, `ttl:SECONDS`, `keep`, `pin`; nothing else.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "auto" => Self::Auto,
            "eject_after" | "eject" => Self::EjectAfter,
            "keep" => Self::Keep,
            "pin" => Self::Pin,
            _ => {
                let seconds: u32 = text.strip_prefix("ttl:")?.parse().ok()?;
                Self::Ttl(Duration::from_secs(seconds.into()))
            }
        })
    }
}

impl From<Policy> for String {
    fn from(policy: Policy) -> Self {
        policy.to_string()
    }
}

impl TryFrom<String> for Policy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let known = Self::SPELLINGS;
        Self::parse(&text).ok_or_else(|| format!("unknown policy {text:?}; known are {known}"))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::EjectAfter => f.write_str("eject_after"),
            Self::Ttl(time) => write!(f, "ttl:{}", time.as_secs()),
            Self::Keep => f.write_str("keep"),
            Self::Pin => f.write_str("pin"),
        }
    }
}

/// The name of weights, the same in every event, answer and log line from creation to release: of what was read, never
/// of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WeightsId(Arc<str>);

impl WeightsId {
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WeightsId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One handle, numbered in order of creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub u64);

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}", self.0)
    }
}

/// A file as it was when it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStamp {
    pub path: PathBuf,
    pub size: u64,
    pub modified: Option<SystemTime>,
}

/// What weights are: which files, which part of them, in which format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentKey {
    pub files: Vec<FileStamp>,
    /// `diffusion`, `clip`, `vae`, `control`, `vision`, ...
    pub component: String,
    /// Number format, quantisation, architecture options: whatever makes other weights of the same files.
    pub options: String,
}

/// One layer's parameters: what is placed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unit {
    pub name: Arc<str>,
    pub bytes: u64,
    /// What it costs to use it from elsewhere: its bytes and what patches and casts need beside them.
    pub cost: u64,
    pub embedding: bool,
    /// Whether its kind of layer has a bias.
    pub biased: bool,
    pub castable: bool,
    /// Belongs to one handle (a patch changed it), not to the weights that handles share.
    pub own: bool,
    /// The block of the network it is in.
    pub block: Option<u32>,
}

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The weights of one network as the registry moves them. Implemented where networks are built.
pub trait Weights: Send + Sync {
    /// In definition order; known without reading a file, and the same at every call.
    fn units(&self) -> Arc<[Unit]>;

    /// Where a unit is kept; none if it is only in the file.
    fn home(&self, unit: usize) -> Option<Device>;

    /// Bytes of a unit at home in main memory that are still in their file: nothing has used them there yet.
    fn unread_bytes(&self, _unit: usize) -> u64 {
        0
    }

    /// Makes what is missing ready to be placed, for use on a device. Gives the bytes that are read from files; those of weights that
    /// go straight to a device may be read when they are copied there.
    fn load(&self, compute: &Device) -> Result<u64, BoxError>;

    /// Bytes of [`Self::load`] that stay in their files until they are on the device, and take no main memory.
    fn late_bytes(&self, _compute: &Device) -> u64 {
        0
    }

    /// Takes the room on a device, from when on it is the unit's home, and refuses where there is none. The copy may be left
    /// to [`Self::finish_moves`].
    fn move_to(&self, unit: usize, device: &Device) -> Result<(), TensorError>;

    /// Makes the copies that moves have left to be made.
    fn finish_moves(&self) -> Result<(), TensorError> {
        Ok(())
    }

    /// Drops everything in memory: of weights shared by handles all of it, of a patched handle what is its own.
    fn release(&self) -> Result<(), BoxError>;

    /// How many of the next units are fetched ahead while one computes.
    fn set_ahead(&self, count: usize);

    /// Gives fetched-ahead copies back, and what is remembered of the prompt: a use has ended.
    fn drop_ahead(&self);

    /// The same, and all else that is only kept to be faster: memory is short.
    fn drop_spare(&self) {
        self.drop_ahead();
    }

    /// Units whose patches are applied at every use.
    fn on_the_fly(&self) -> usize {
        0
    }
}

/// Who asked: part of the identity of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Who {
    pub client: Arc<str>,
    pub prompt: Arc<str>,
    pub node: Arc<str>,
}

impl Who {
    pub(crate) fn place(&self) -> NodePlace {
        NodePlace {
            node: Arc::clone(&self.node),
            client: Arc::clone(&self.client),
        }
    }
}

/// What set a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PolicySource {
    /// Nothing said anything.
    #[default]
    Default,
    NodeInput,
    /// The node that sets the policy of a model on a link.
    PolicyNode,
    Api,
}

impl PolicySource {
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::NodeInput => "node_input",
            Self::PolicyNode => "policy_node",
            Self::Api => "api",
        }
    }
}

/// Who set a policy. Goes with it wherever it is told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SetBy {
    pub source: PolicySource,
    /// Empty: no node.
    pub node: Arc<str>,
    pub client: Arc<str>,
}

impl SetBy {
    /// As the origin of what the policy decides.
    pub fn origin(&self) -> Origin {
        match self.source {
            PolicySource::Default => Origin::Default,
            PolicySource::NodeInput | PolicySource::PolicyNode => Origin::Node {
                client: Arc::clone(&self.client),
                node: Arc::clone(&self.node),
                input: "retention",
            },
            PolicySource::Api => Origin::Api {
                request: ApiRequest::SetPolicy,
            },
        }
    }
}

/// A request of a client of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiRequest {
    Free,
    SetPolicy,
    Remove,
}

/// A choice at the start of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryFlag {
    NoVram,
    UnloadAfter,
    DisableSmartMemory,
}

/// Who made something happen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Origin {
    /// Nobody asked for anything: what happens by default.
    #[default]
    Default,
    /// A node, by one of its inputs or by what it does.
    Node {
        client: Arc<str>,
        node: Arc<str>,
        input: &'static str,
    },
    Api {
        request: ApiRequest,
    },
    Flag {
        flag: MemoryFlag,
    },
    /// Room was needed; the node that needed it, if it was one.
    Pressure {
        client: Arc<str>,
        node: Arc<str>,
    },
    /// The program itself: its end, something that went wrong.
    Program,
}

impl Origin {
    pub fn node(who: &Who, input: &'static str) -> Self {
        Self::Node {
            client: Arc::clone(&who.client),
            node: Arc::clone(&who.node),
            input,
        }
    }

    pub fn pressure(who: &Who) -> Self {
        Self::Pressure {
            client: Arc::clone(&who.client),
            node: Arc::clone(&who.node),
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Node { .. } => "node",
            Self::Api { .. } => "api",
            Self::Flag { .. } => "flag",
            Self::Pressure { .. } => "pressure",
            Self::Program => "program",
        }
    }

    /// The node and its client; empty texts are none.
    pub fn place(&self) -> (Option<&Arc<str>>, Option<&Arc<str>>) {
        match self {
            Self::Node { client, node, .. } | Self::Pressure { client, node } => (
                Some(node).filter(|node| !node.is_empty()),
                Some(client).filter(|client| !client.is_empty()),
            ),
            Self::Default | Self::Api { .. } | Self::Flag { .. } | Self::Program => (None, None),
        }
    }
}

/// What a load does with models that it does not need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EjectOthers {
    #[default]
    None,
    ComputeDevice,
    AllDevices,
}

/// Why something is done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    Load,
    PromptEnd,
    Recovered,
    Free,
    Force,
    Pressure,
    OutOfMemory,
    Idle,
    Api,
    /// A node called the service that unloads everything.
    InNode,
    HandleDropped,
    Shutdown,
}

impl Trigger {
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::PromptEnd => "prompt_end",
            Self::Recovered => "recovered",
            Self::Free => "free",
            Self::Force => "force",
            Self::Pressure => "pressure",
            Self::OutOfMemory => "oom",
            Self::Idle => "idle",
            Self::Api => "api",
            Self::InNode => "in_node",
            Self::HandleDropped => "handle_dropped",
            Self::Shutdown => "shutdown",
        }
    }
}

/// What a plan does with one model on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing, for a reason worth saying.
    Keep,
    /// Some of it leaves the device.
    Demote { bytes: u64 },
    /// All of it leaves the device, for its offload device.
    Evict,
    /// It leaves the main memory too.
    Release,
    /// As soon as nobody uses it.
    Defer,
    /// It is brought onto the device, as far as there is room.
    Load { bytes: u64 },
}

impl Action {
    pub fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Demote { .. } => "demote",
            Self::Evict => "evict",
            Self::Release => "release",
            Self::Defer => "defer",
            Self::Load { .. } => "load",
        }
    }
}

/// One line of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanStep {
    pub weights: WeightsId,
    /// Only what one handle (a patched one) has of its own; none: what handles share.
    pub model: Option<ModelId>,
    /// None: all devices and the main memory.
    pub device: Option<String>,
    pub action: Action,
    /// The policy that counted when this was decided, and who set it.
    pub policy: Policy,
    pub set_by: SetBy,
    /// Who made this step; none: whoever asked for the plan.
    pub origin: Option<Origin>,
    /// Bytes that are there now.
    pub bytes: u64,
    pub reason: Reason,
}

/// What would be done, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EvictionPlan {
    pub steps: Vec<PlanStep>,
}

/// What happened. Written once, kept in a ring, sent to whoever listens.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// 1, 2, 3, ...
    pub seq: u64,
    pub time: SystemTime,
    /// `model.loaded`, `plan.computed`, ...: the names of the specification.
    pub kind: &'static str,
    pub trigger: Option<Trigger>,
    pub prompt: Option<Arc<str>>,
    pub node: Option<Arc<str>>,
    pub weights: Option<WeightsId>,
    pub model: Option<ModelId>,
    /// Of the model: `diffusion SD1`, `vae`, ...
    pub class: Option<Arc<str>>,
    pub device: Option<String>,
    pub bytes_before: Option<u64>,
    pub bytes_after: Option<u64>,
    /// The policy that counted, and who set it.
    pub policy: Option<Policy>,
    pub set_by: Option<SetBy>,
    /// Who made it happen.
    pub origin: Option<Origin>,
    pub decision: Option<&'static str>,
    pub reason: Option<Reason>,
    pub error: Option<String>,
    /// Where the model's bytes are afterwards, the main memory under `cpu`; where that is worth saying.
    pub places: Vec<(String, u64)>,
    /// Further numbers of this kind of event, in order.
    pub numbers: Vec<(&'static str, u64)>,
    /// Whose models these are, where several workers have their own.
    pub worker: Option<Arc<str>>,
}

/// What freeing one model did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Freed {
    pub weights: WeightsId,
    /// Bytes by device, main memory under `cpu`.
    pub before: Vec<(String, u64)>,
    pub after: Vec<(String, u64)>,
    pub error: Option<String>,
}

/// What a request did, and the plan it followed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FreeReport {
    pub models: Vec<Freed>,
    pub plan: EvictionPlan,
}

/// One device as it is now, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceReport {
    /// `cpu`, `sim:0`, `cuda:0`.
    pub device: String,
    /// `cpu`, `sim`, `cuda`.
    pub kind: &'static str,
    /// Its number among those of its kind.
    pub index: Option<u32>,
    pub total: u64,
    pub free: u64,
    /// What its allocator has taken from the device, and what of that nobody uses.
    pub allocator_reserved: u64,
    pub allocator_free: u64,
    /// Kept free for computing.
    pub reserved: u64,
    pub weights_resident: u64,
    /// Kept for streaming.
    pub weights_buffer: u64,
    /// Most bytes in use at once since the start.
    pub peak: u64,
    pub pinned_host: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimReport {
    pub client: Arc<str>,
    pub node: Arc<str>,
    pub prompt: Arc<str>,
    pub policy: Policy,
    pub source: PolicySource,
    pub at: SystemTime,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandleReport {
    pub model: ModelId,
    pub patch_version: u64,
    pub patches: usize,
    pub compute_device: String,
    pub on_the_fly: usize,
    /// Bytes that are this handle's own, by device.
    pub own: Vec<(String, u64)>,
    /// The allocation string, where the handle has a placement.
    pub placement: Option<String>,
}

/// Where one unit is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitReport {
    pub name: Arc<str>,
    pub bytes: u64,
    /// None: only in the file.
    pub home: Option<String>,
    /// The device its plan wants it on.
    pub planned: Option<String>,
    pub orphan: bool,
}

/// How a model stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// All of it is where it computes.
    Resident,
    /// Some of it is elsewhere and streamed.
    Partial,
    /// In main memory (or on its offload device).
    Offloaded,
    /// Not in memory; read again at its next use.
    Released,
    ReleaseFailed,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Partial => "partial",
            Self::Offloaded => "offloaded",
            Self::Released => "released",
            Self::ReleaseFailed => "release_failed",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelReport {
    pub weights: WeightsId,
    pub files: Vec<PathBuf>,
    pub component: String,
    pub class: Arc<str>,
    pub bytes_total: u64,
    /// Accelerators only, in order of their names.
    pub residency: Vec<(String, u64)>,
    pub host_bytes: u64,
    pub pinned_bytes: u64,
    pub state: State,
    pub policy: Policy,
    pub policy_source: PolicySource,
    pub claims: Vec<ClaimReport>,
    /// Prompts that hold it.
    pub leases: Vec<Arc<str>>,
    pub handles: Vec<HandleReport>,
    pub last_used: Option<SystemTime>,
    /// `oom`, `pressure`, ...
    pub demoted_by: Option<&'static str>,
    /// Bytes read from its files since it was registered.
    pub read_bytes: u64,
    /// Whose model it is, where several workers have their own.
    pub worker: Option<Arc<str>>,
}

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    pub devices: Vec<DeviceReport>,
    pub models: Vec<ModelReport>,
}

/// What a use of models needs beside their weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need {
    /// For computing at the size that is wanted.
    pub required: u64,
    /// For computing at all; none: as required.
    pub minimum: Option<u64>,
    pub full: bool,
}
