//! The seam to the memory room: what the engine itself asks of whoever owns models.
//!
//! Nothing here knows how models are placed or how that is told: the binary puts the memory room behind [`MemoryRoom`], and
//! whoever wants to know where models are asks that room, not the engine.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fresco_graph::Map;
use fresco_placement::{FreeNote, FreeRequest, JobNeeds, RoomReport, WorkerView};

/// Implemented by the memory room; the engine never touches a model. All calls are thread-safe; those about prompts come
/// from the thread that runs them.
pub trait MemoryRoom: Send + Sync {
    /// Whether a prompt can run, asked before its first node.
    fn admit(&self, _: &Arriving<'_>) -> Admission {
        Admission::Ok
    }

    /// What a prompt loads and which devices it names, as far as the prompt itself says. Asked when it is accepted, where there
    /// are several workers; nothing is read for the answer but the sizes of files.
    fn needs(&self, _prompt: &Map, _outputs: &[Arc<str>]) -> JobNeeds {
        JobNeeds::default()
    }

    /// Which weights are on the devices, for whoever decides who runs what.
    fn view(&self) -> WorkerView {
        WorkerView::default()
    }

    /// A prompt starts now. What prompts that ended without a word still hold is taken back here.
    fn prompt_started(&self, _prompt_id: &str) {}

    /// After every prompt that was started, whatever its end, exactly once.
    fn after_prompt(&self, prompt_id: &str);

    /// Takes every model of this prompt, and those that nobody uses, from the devices.
    fn unload_all(&self, prompt_id: &str, why: Unload);

    /// Carries a request out. With a prompt that runs: only what it does not hold; the rest comes with a second call
    /// after its end.
    fn free(&self, request: &FreeRequest, running: Option<&str>) -> Option<RoomReport>;

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

    /// Asks for so many bytes of main memory, which count as used until the answer is dropped; or says how many are
    /// missing.
    fn claim(&self, _bytes: u64) -> Result<Box<dyn Any + Send>, u64> {
        Ok(Box::new(()))
    }
}

/// No models, nothing to free.
pub struct NoModels;

impl MemoryRoom for NoModels {
    fn after_prompt(&self, _: &str) {}
    fn unload_all(&self, _: &str, _: Unload) {}
    fn free(&self, _: &FreeRequest, _: Option<&str>) -> Option<RoomReport> {
        None
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

/// What one worker did about a request.
#[derive(Clone, Debug, Default)]
pub struct FreeReport {
    /// Who did it.
    pub worker: Arc<str>,
    /// What became of the models; none where the memory room was not asked.
    pub models: Option<RoomReport>,
    /// Main memory of the process, around everything the request asked for.
    pub ram_before: Option<u64>,
    pub ram_after: Option<u64>,
    pub took: Duration,
    /// The results of nodes were forgotten.
    pub cache_reset: bool,
}
