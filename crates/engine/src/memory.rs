//! The seam to the memory room: what the engine asks of whoever owns models, in words of its own.
//!
//! Nothing here knows how models are placed or what a request looks like on the wire: the binary puts the memory room
//! behind [`MemoryRoom`], the server turns these structs into JSON.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fresco_graph::Map;

/// Implemented by the memory room; the engine never touches a model. All calls are thread-safe; those about prompts come
/// from the thread that runs them.
pub trait MemoryRoom: Send + Sync {
    /// Whether a prompt can run, asked before its first node.
    fn admit(&self, _: &Arriving<'_>) -> Admission {
        Admission::Ok
    }

    /// A prompt starts now. What prompts that ended without a word still hold is taken back here.
    fn prompt_started(&self, _prompt_id: &str) {}

    /// After every prompt that was started, whatever its end, exactly once.
    fn after_prompt(&self, prompt_id: &str);

    /// Takes every model of this prompt, and those that nobody uses, from the devices.
    fn unload_all(&self, prompt_id: &str, why: Unload);

    /// Carries a request out. With a prompt that runs: only what it does not hold; the rest comes with a second call
    /// after its end.
    fn free(&self, request: &FreeRequest, running: Option<&str>) -> FreeReport;

    /// What [`MemoryRoom::free`] would do, without doing it.
    fn free_plan(&self, _: &FreeRequest) -> FreePlan {
        FreePlan::default()
    }

    /// A request that does nothing, or not yet.
    fn note_free(&self, _: FreeNote<'_>) {}

    /// The results of all nodes were forgotten.
    fn cache_reset(&self) {}

    /// Give allocator caches back. Called at the reference's garbage-collection points.
    fn release_caches(&self);

    /// What is due by now: times to live, models that are idle for too long. Called between prompts only.
    fn tick(&self) {}

    /// When [`MemoryRoom::tick`] has something to do.
    fn next_tick(&self) -> Option<Instant> {
        None
    }

    /// The program ends.
    fn shutdown(&self) {}

    /// Main memory that can still be had here, in bytes, the container heeded; `None` if unknown.
    fn available_ram(&self) -> Option<u64> {
        None
    }

    /// Main memory this process has now.
    fn resident_ram(&self) -> Option<u64> {
        None
    }

    /// All main memory there is for this program.
    fn total_ram(&self) -> Option<u64> {
        None
    }

    /// Asks for so many bytes of main memory, which count as used until the answer is dropped; or says how many are
    /// missing.
    fn claim(&self, _bytes: u64) -> Result<Box<dyn Any + Send>, u64> {
        Ok(Box::new(()))
    }

    /// Devices and models at one moment.
    fn snapshot(&self) -> Snapshot {
        Snapshot::default()
    }

    /// One model by its weights id or by the id of one of its handles.
    fn model(&self, _id: &str) -> Option<ModelDetail> {
        None
    }

    /// Events with a number above `since`, oldest first; of these kinds, or of all if there are none; the newest `limit`.
    fn events(&self, _since: u64, _kinds: &[String], _limit: usize) -> Vec<MemoryEvent> {
        Vec::new()
    }

    /// The number of the newest event.
    fn last_seq(&self) -> u64 {
        0
    }

    /// Where books and devices disagree; nothing is good.
    fn check(&self) -> Vec<String> {
        Vec::new()
    }

    /// Sets how long a model stays, as `GET /memory/models` spells it.
    fn set_policy(&self, id: &str, _policy: &str) -> Result<ModelReport, MemoryProblem> {
        Err(MemoryProblem::Unknown { id: id.to_owned() })
    }

    /// Drops a model from all devices and the main memory.
    fn remove(&self, id: &str, _force: bool) -> Result<Removed, MemoryProblem> {
        Err(MemoryProblem::Unknown { id: id.to_owned() })
    }

    /// As [`MemoryRoom::remove`], but refused for what a prompt uses.
    fn release(&self, id: &str) -> Result<(), MemoryProblem> {
        Err(MemoryProblem::Unknown { id: id.to_owned() })
    }

    /// How a model would be placed, without placing it.
    fn plan_load(&self, _: &LoadRequest) -> Result<LoadPlan, MemoryProblem> {
        Err(MemoryProblem::Request(vec![
            "this program has no memory room".to_owned(),
        ]))
    }
}

/// No models, nothing to free.
pub struct NoModels;

impl MemoryRoom for NoModels {
    fn after_prompt(&self, _: &str) {}
    fn unload_all(&self, _: &str, _: Unload) {}
    fn free(&self, _: &FreeRequest, _: Option<&str>) -> FreeReport {
        FreeReport::default()
    }
    fn release_caches(&self) {}
}

/// A prompt that is about to run.
pub struct Arriving<'a> {
    pub prompt_id: &'a str,
    pub client: Option<&'a str>,
    pub prompt: &'a Arc<Map>,
    /// The outputs that are wanted.
    pub outputs: &'a [Arc<str>],
    /// Nodes whose results are there already.
    pub cached: &'a [Arc<str>],
}

/// Whether a prompt may run.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Admission {
    #[default]
    Ok,
    /// It will run, but not as it was meant to; the text says how and why.
    Downgraded(String),
    /// It cannot run here; the text says why and what would help.
    Refused {
        /// The node to blame.
        node: Option<Arc<str>>,
        message: String,
    },
}

/// Why all models have to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unload {
    /// A node ran out of memory.
    OutOfMemory,
    /// The prompt is done, and nothing is to stay.
    PromptDone,
}

/// `POST /free`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FreeRequest {
    pub unload_models: bool,
    /// Also forget the results of all nodes. Implies unloading.
    pub free_memory: bool,
    /// Spare models that are to be kept.
    pub respect: bool,
    /// Pinned models too, and do not wait for the end of the prompt with what it does not use.
    pub force: bool,
    /// Only these devices; none: all.
    pub devices: Option<Vec<String>>,
    /// Only these models, by weights id or handle id; none: all.
    pub models: Option<Vec<String>>,
}

impl FreeRequest {
    pub fn is_noop(&self) -> bool {
        !self.unload_models && !self.free_memory
    }

    /// Two requests that wait, as one: the flags add up, limits widen.
    pub fn merge(&mut self, other: Self) {
        fn widen(a: &mut Option<Vec<String>>, b: Option<Vec<String>>) {
            match (a.as_mut(), b) {
                (Some(a), Some(b)) => {
                    for name in b {
                        if !a.contains(&name) {
                            a.push(name);
                        }
                    }
                }
                _ => *a = None,
            }
        }
        self.unload_models |= other.unload_models;
        self.free_memory |= other.free_memory;
        self.respect &= other.respect;
        self.force |= other.force;
        widen(&mut self.devices, other.devices);
        widen(&mut self.models, other.models);
    }
}

/// A request that is not carried out now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeNote<'a> {
    /// It asks for nothing.
    Noop,
    /// It waits for the end of this prompt.
    Deferred { prompt_id: &'a str },
}

/// One line of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanStep {
    pub weights_id: String,
    /// None: all devices and the main memory.
    pub device: Option<String>,
    /// `keep`, `demote`, `evict`, `release`, `defer`, `load`.
    pub action: &'static str,
    /// Bytes that the action is about.
    pub action_bytes: Option<u64>,
    pub policy: String,
    /// Bytes that are there now.
    pub bytes: u64,
    pub reason: String,
}

/// What would be done, in order.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FreePlan {
    pub steps: Vec<PlanStep>,
}

/// Bytes by device, the main memory under `cpu`.
pub type Places = Vec<(String, u64)>;

/// What freeing one model did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freed {
    pub weights_id: String,
    pub before: Places,
    pub after: Places,
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FreeReport {
    /// Who did it.
    pub worker: Arc<str>,
    pub models: Vec<Freed>,
    /// Main memory of the process. The engine measures it around everything the request asked for.
    pub ram_before: Option<u64>,
    pub ram_after: Option<u64>,
    pub took: Duration,
    /// The results of nodes were forgotten.
    pub cache_reset: bool,
    pub plan: FreePlan,
}

/// One device as it is now, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    /// `cpu`, `sim:0`, `cuda:0`.
    pub device: String,
    /// `cpu`, `sim`, `cuda`.
    pub kind: &'static str,
    pub index: Option<u32>,
    pub total: u64,
    pub free: u64,
    pub allocator_reserved: u64,
    pub allocator_free: u64,
    /// Kept free for computing.
    pub reserved: u64,
    pub weights_resident: u64,
    /// Kept for streaming.
    pub weights_buffer: u64,
    pub pinned_host: u64,
    /// Most bytes in use at once since the start.
    pub peak: u64,
}

/// Who wants a model to stay, or to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimReport {
    pub client: Arc<str>,
    pub node: Arc<str>,
    pub prompt_id: Arc<str>,
    pub policy: String,
    /// `default`, `node_input`, `policy_node`, `api`.
    pub source: &'static str,
    pub at: SystemTime,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandleReport {
    pub model_id: String,
    pub patch_version: u64,
    pub patches: usize,
    pub compute_device: String,
    /// Patches that are applied at every use.
    pub on_the_fly: usize,
    /// Bytes that are this handle's own.
    pub own: Places,
    /// The allocation string, where the handle has a placement.
    pub placement: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelReport {
    pub weights_id: String,
    pub files: Vec<PathBuf>,
    pub component: String,
    pub class: Arc<str>,
    pub bytes_total: u64,
    /// Accelerators only.
    pub residency: Places,
    pub host_bytes: u64,
    pub pinned_bytes: u64,
    /// `resident`, `partial`, `offloaded`, `released`, `release_failed`.
    pub state: &'static str,
    pub policy: String,
    pub policy_source: &'static str,
    pub claims: Vec<ClaimReport>,
    /// Prompts that hold it.
    pub leases: Vec<Arc<str>>,
    pub handles: Vec<HandleReport>,
    pub last_used: Option<SystemTime>,
    pub demoted_by: Option<&'static str>,
    /// Bytes read from its files since it was registered.
    pub read_bytes: u64,
}

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// The main memory, then the accelerators, the primary one first.
    pub devices: Vec<DeviceReport>,
    pub models: Vec<ModelReport>,
}

/// Where one layer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitReport {
    pub name: Arc<str>,
    pub bytes: u64,
    /// None: only in the file.
    pub device: Option<String>,
    /// Where its plan wants it.
    pub planned: Option<String>,
    /// No rule of the plan named it.
    pub orphan: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDetail {
    pub model: ModelReport,
    pub units: Vec<UnitReport>,
}

/// Something the memory room did or decided.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryEvent {
    pub seq: u64,
    pub time: SystemTime,
    pub kind: &'static str,
    pub trigger: Option<&'static str>,
    pub prompt_id: Option<Arc<str>>,
    pub node_id: Option<Arc<str>>,
    pub weights_id: Option<String>,
    pub model_id: Option<String>,
    pub class: Option<Arc<str>>,
    pub device: Option<String>,
    pub bytes_before: Option<u64>,
    pub bytes_after: Option<u64>,
    /// The policy that counted, and what, which node and which client set it.
    pub policy: Option<String>,
    pub policy_source: Option<&'static str>,
    pub policy_node: Option<Arc<str>>,
    pub policy_client: Option<Arc<str>>,
    /// Who made it happen.
    pub origin: Option<MemoryOrigin>,
    pub decision: Option<&'static str>,
    pub reason: Option<String>,
    pub error: Option<String>,
    /// Where the model's bytes are afterwards, where that is worth saying.
    pub places: Places,
    /// Further numbers of this kind of event.
    pub numbers: Vec<(&'static str, u64)>,
}

/// Who made something happen in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOrigin {
    /// `default`, `node`, `api`, `flag`, `pressure`, `program`.
    pub kind: &'static str,
    /// The input of the node, the request, or the flag.
    pub name: Option<&'static str>,
    pub node: Option<Arc<str>>,
    pub client: Option<Arc<str>>,
}

/// How a model left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    Done,
    /// As soon as the prompts that hold it have ended.
    Deferred,
}

/// Why a request about models cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryProblem {
    #[error("there is no model {id}")]
    Unknown { id: String },
    #[error("the model {id} is in use")]
    Leased { id: String },
    #[error("the model {id} is pinned")]
    Pinned { id: String },
    #[error("there is no policy {policy:?}; there are {known}")]
    Policy { policy: String, known: &'static str },
    /// One line for each thing that is wrong.
    #[error("{}", .0.join("; "))]
    Request(Vec<String>),
}

/// A layer of a model that is only thought of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedUnit {
    pub name: String,
    pub bytes: u64,
    pub embedding: bool,
    pub biased: bool,
    pub castable: bool,
    pub block: Option<u32>,
}

/// What the load is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadSubject {
    /// A model that is there.
    Weights { id: String },
    /// One that is described.
    Units(Vec<PlannedUnit>),
}

/// A load that is only thought of.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadRequest {
    pub subject: LoadSubject,
    /// Devices with their memory instead of the real ones.
    pub devices: Option<Vec<(String, u64)>>,
    /// None: the primary one.
    pub compute_device: Option<String>,
    pub virtual_vram_gb: Option<f64>,
    pub donor_device: Option<String>,
    pub expert: Option<String>,
    pub eject_models: bool,
    pub text_encoder: bool,
    /// Bytes for computing beside the weights.
    pub required: u64,
}

/// How the load would go.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct LoadPlan {
    /// What would leave first.
    pub steps: FreePlan,
    /// Bytes by device.
    pub places: Places,
    /// Layer to device.
    pub units: Vec<(String, String)>,
    pub resident_bytes: u64,
    pub offloaded_bytes: u64,
    pub buffer_bytes: u64,
    /// Whether all of it would be where it computes.
    pub full: bool,
    pub fits: bool,
    pub allocation: Option<String>,
    pub orphans: Vec<String>,
    pub warnings: Vec<String>,
    pub explanation: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Option<Vec<String>> {
        Some(list.iter().map(|s| (*s).to_owned()).collect())
    }

    #[test]
    fn requests_that_wait_become_one() {
        let mut sum = FreeRequest {
            unload_models: true,
            respect: true,
            devices: names(&["sim:0"]),
            models: names(&["a"]),
            ..FreeRequest::default()
        };
        sum.merge(FreeRequest {
            unload_models: true,
            respect: true,
            devices: names(&["sim:1", "sim:0"]),
            ..FreeRequest::default()
        });
        assert_eq!(sum.devices, names(&["sim:0", "sim:1"]));
        assert_eq!(sum.models, None, "all beats some");
        assert!(sum.respect && !sum.free_memory && !sum.force);
        sum.merge(FreeRequest {
            free_memory: true,
            force: true,
            ..FreeRequest::default()
        });
        assert!(!sum.respect && sum.free_memory && sum.force);
        assert_eq!(sum.devices, None);
    }
}
