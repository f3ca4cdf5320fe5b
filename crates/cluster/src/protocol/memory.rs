//! What memory rooms answer: the same between processes and in answers of the API.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fresco_engine::RoomReport;
use fresco_memory::{
    ClaimReport, DeviceReport, HandleReport, ModelReport, UnitReport, device_bytes,
};
use fresco_placement::{DeviceBytes, FreedModel, PlannedStep};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// Text that may be absent.
type Text = Option<Arc<str>>;
/// Milliseconds since 1970.
pub type Millis = u64;

/// What a [`fresco_memory::MemoryCommand`] gives back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryReply {
    Overview(Box<OverviewState>),
    Model(Box<ModelDetail>),
    Events(EventList),
    Check(BookCheck),
    Policy(Box<ModelState>),
    Removal(Removal),
    Free(RoomReport),
    FreePlan(Vec<PlannedStep>),
    LoadPlan(Box<LoadPlanState>),
    Done,
}

/// Something of a memory room that may be on another machine.
pub trait OfWorker {
    fn set_worker(&mut self, worker: &Arc<str>);
}

macro_rules! of_worker {
    ($($name:ty),*) => {$(
        impl OfWorker for $name {
            fn set_worker(&mut self, worker: &Arc<str>) {
                self.worker = Some(worker.clone());
            }
        }
    )*};
}

of_worker!(
    DeviceState,
    ModelState,
    EventState,
    LoadPlanState,
    PlannedStep
);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceState {
    pub device: Arc<str>,
    #[serde(rename = "type")]
    pub kind: Arc<str>,
    pub index: Option<u32>,
    pub total: u64,
    pub free: u64,
    pub allocator_reserved: u64,
    pub allocator_free: u64,
    pub reserved: u64,
    pub weights_resident: u64,
    pub weights_buffer: u64,
    pub pinned_host: u64,
    pub peak: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Text,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Claimant {
    pub client_id: Arc<str>,
    pub node_id: Arc<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClaimState {
    pub claimant: Claimant,
    pub prompt_id: Arc<str>,
    pub policy: Arc<str>,
    pub source: Arc<str>,
    pub at: Millis,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HandleState {
    pub model_id: Arc<str>,
    pub patch_version: u64,
    pub patches: usize,
    pub compute_device: Arc<str>,
    pub on_the_fly: usize,
    pub own: DeviceBytes,
    pub placement: Text,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelState {
    pub weights_id: Arc<str>,
    /// Its files.
    pub content: Vec<Arc<str>>,
    pub component: Arc<str>,
    pub class: Arc<str>,
    pub bytes_total: u64,
    pub residency: DeviceBytes,
    pub host_bytes: u64,
    pub pinned_bytes: u64,
    pub state: Arc<str>,
    pub effective_policy: Arc<str>,
    pub policy_source: Arc<str>,
    pub claims: Vec<ClaimState>,
    /// Prompts that hold it.
    pub leases: Vec<Arc<str>>,
    pub handles: Vec<HandleState>,
    pub last_used: Option<Millis>,
    pub demoted_by: Text,
    pub read_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Text,
}

impl ModelState {
    /// Bytes on devices other than main memory.
    pub fn resident_bytes(&self) -> u64 {
        self.residency.values().sum()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HandlePlacement {
    pub model_id: Arc<str>,
    pub allocation: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnitState {
    pub name: Arc<str>,
    pub bytes: u64,
    pub device: Text,
    pub planned: Text,
    pub orphan: bool,
}

/// One model, its layers, and the plans its handles have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelDetail {
    #[serde(flatten)]
    pub model: ModelState,
    pub placement: Vec<HandlePlacement>,
    pub units: Vec<UnitState>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventOrigin {
    pub kind: Arc<str>,
    pub name: Text,
    pub node_id: Text,
    pub client_id: Text,
}

/// An event as requests, sockets and the log show it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EventState {
    pub seq: u64,
    pub time: Millis,
    pub kind: Arc<str>,
    pub trigger: Text,
    pub prompt_id: Text,
    pub node_id: Text,
    pub weights_id: Text,
    pub model_id: Text,
    pub class: Text,
    pub device: Text,
    pub bytes_before: Option<u64>,
    pub bytes_after: Option<u64>,
    pub policy: Text,
    pub policy_source: Text,
    pub policy_node: Text,
    pub policy_client: Text,
    pub origin: Option<EventOrigin>,
    pub decision: Text,
    pub reason: Text,
    pub error: Text,
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub places: DeviceBytes,
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub numbers: IndexMap<Arc<str>, u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Text,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventList {
    pub events: Vec<EventState>,
    pub last_seq: u64,
    /// Of each worker on another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seqs: Option<IndexMap<Arc<str>, u64>>,
}

/// Whether the books of a memory room agree with its devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BookCheck {
    pub consistent: bool,
    pub problems: Vec<String>,
}

/// Whether a model has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Removal {
    Released,
    /// After the prompts that use it.
    Deferred,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseState {
    pub prompt_id: Arc<str>,
    pub weights_id: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyState {
    pub policy: Arc<str>,
    pub source: Arc<str>,
}

/// A worker on another machine, in an overview of all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryWorker {
    pub worker: Arc<str>,
    pub state: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Everything at once: the models, and the same by places, leases and policies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OverviewState {
    pub devices: Vec<DeviceState>,
    pub models: Vec<ModelState>,
    /// By weights id.
    pub places: IndexMap<Arc<str>, DeviceBytes>,
    pub leases: Vec<LeaseState>,
    /// By weights id.
    pub policies: IndexMap<Arc<str>, PolicyState>,
    /// The newest events.
    pub decisions: Vec<EventState>,
    pub last_seq: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<Vec<MemoryWorker>>,
}

/// What `POST /free` did, all workers together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FreeState {
    pub models: Vec<FreedModel>,
    pub ram_before: Option<u64>,
    pub ram_after: Option<u64>,
    /// Seconds.
    pub duration: f64,
    pub cache_reset: bool,
    pub plan: Vec<PlannedStep>,
}

/// What a request to free would do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FreePlanState {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
    pub plan: Vec<PlannedStep>,
}

/// A model that left, or leaves later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemovalState {
    pub weights_id: Arc<str>,
    #[serde(flatten)]
    pub removal: Removal,
}

/// How a load of one model would go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadPlanState {
    pub fits: bool,
    pub full: bool,
    pub places: DeviceBytes,
    pub resident_bytes: u64,
    pub offloaded_bytes: u64,
    pub buffer_bytes: u64,
    pub allocation: Text,
    /// Unit to device.
    pub units: IndexMap<Arc<str>, Arc<str>>,
    pub orphans: Vec<Arc<str>>,
    pub warnings: Vec<String>,
    /// Why it does not fit.
    pub explanation: Option<String>,
    pub plan: Vec<PlannedStep>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Text,
}

pub fn millis(at: SystemTime) -> Millis {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn text(text: impl ToString) -> Arc<str> {
    text.to_string().into()
}

fn list<'a, A, B: From<&'a A>>(items: &'a [A]) -> Vec<B> {
    items.iter().map(B::from).collect()
}

impl From<&DeviceReport> for DeviceState {
    fn from(device: &DeviceReport) -> Self {
        Self {
            device: device.device.as_str().into(),
            kind: device.kind.into(),
            index: device.index,
            total: device.total,
            free: device.free,
            allocator_reserved: device.allocator_reserved,
            allocator_free: device.allocator_free,
            reserved: device.reserved,
            weights_resident: device.weights_resident,
            weights_buffer: device.weights_buffer,
            pinned_host: device.pinned_host,
            peak: device.peak,
            worker: None,
        }
    }
}

impl From<&ClaimReport> for ClaimState {
    fn from(claim: &ClaimReport) -> Self {
        Self {
            claimant: Claimant {
                client_id: claim.client.clone(),
                node_id: claim.node.clone(),
            },
            prompt_id: claim.prompt.clone(),
            policy: text(claim.policy),
            source: claim.source.name().into(),
            at: millis(claim.at),
        }
    }
}

impl From<&HandleReport> for HandleState {
    fn from(handle: &HandleReport) -> Self {
        Self {
            model_id: text(handle.model),
            patch_version: handle.patch_version,
            patches: handle.patches,
            compute_device: handle.compute_device.as_str().into(),
            on_the_fly: handle.on_the_fly,
            own: device_bytes(&handle.own),
            placement: handle.placement.as_deref().map(Into::into),
        }
    }
}

impl From<&ModelReport> for ModelState {
    fn from(model: &ModelReport) -> Self {
        let files = model.files.iter();
        Self {
            weights_id: model.weights.as_str().into(),
            content: files.map(|file| file.to_string_lossy().into()).collect(),
            component: model.component.as_str().into(),
            class: model.class.clone(),
            bytes_total: model.bytes_total,
            residency: device_bytes(&model.residency),
            host_bytes: model.host_bytes,
            pinned_bytes: model.pinned_bytes,
            state: model.state.name().into(),
            effective_policy: text(model.policy),
            policy_source: model.policy_source.name().into(),
            claims: list(&model.claims),
            leases: model.leases.clone(),
            handles: list(&model.handles),
            last_used: model.last_used.map(millis),
            demoted_by: model.demoted_by.map(Into::into),
            read_bytes: model.read_bytes,
            worker: model.worker.clone(),
        }
    }
}

impl From<&UnitReport> for UnitState {
    fn from(unit: &UnitReport) -> Self {
        Self {
            name: unit.name.clone(),
            bytes: unit.bytes,
            device: unit.home.as_deref().map(Into::into),
            planned: unit.planned.as_deref().map(Into::into),
            orphan: unit.orphan,
        }
    }
}

impl ModelDetail {
    pub fn new(model: &ModelReport, units: &[UnitReport]) -> Self {
        let plan = |handle: &HandleReport| {
            Some(HandlePlacement {
                model_id: text(handle.model),
                allocation: handle.placement.as_deref()?.into(),
            })
        };
        Self {
            placement: model.handles.iter().filter_map(plan).collect(),
            model: model.into(),
            units: list(units),
        }
    }
}
