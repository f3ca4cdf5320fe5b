//! Before a prompt runs: which models it loads, onto which devices, and whether they fit. Nothing is loaded for the answer;
//! of files only the headers are read, and those once.
//!
//! A prompt is refused only where it is certain that it cannot run. What can run with weights that come and go while they
//! are used does run, and the answer says so with numbers.

mod files;
mod prompt;
mod room;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use fresco_files::Folders;
use fresco_graph::Map;
use fresco_memory::{ModelRegistry, Policy};
use fresco_models::detect::Families;

pub use room::Latent;

/// What was found out about a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assessment {
    /// In the order of the prompt's nodes.
    pub models: Vec<ModelPlan>,
    /// The main memory, then accelerators by number; empty if the prompt loads nothing.
    pub devices: Vec<DevicePlan>,
    /// The largest picture the prompt starts from, where it says how large.
    pub latent: Option<Latent>,
    /// The node to blame for a refusal.
    pub blamed: Option<Arc<str>>,
    pub verdict: Verdict,
}

/// Whether it can run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    #[default]
    Fits,
    /// It runs, but not all weights can stay where they are used.
    Streams(String),
    /// It cannot: why, and what could.
    Refused(String),
}

/// One network that a prompt loads.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelPlan {
    /// The node that loads it.
    pub node: Arc<str>,
    pub class: Arc<str>,
    /// `diffusion`, `clip`, ...
    pub component: &'static str,
    pub files: Vec<PathBuf>,
    /// `SD1.x`, ...; empty where it could not be found out.
    pub what: String,
    pub bytes: u64,
    /// Bytes of its largest layer.
    pub largest: u64,
    pub layers: usize,
    /// The device it computes on.
    pub compute: String,
    /// What the node's inputs ask for, where they ask.
    pub placement: Option<String>,
    /// Where its weights are while it runs.
    pub places: Vec<(String, u64)>,
    /// The same by layers, where its node spreads it.
    pub shards: Vec<Shard>,
    /// For computing as asked, beside the weights.
    pub required: u64,
    /// For computing at all.
    pub minimum: u64,
    pub policy: Policy,
    pub outcome: Outcome,
    pub warnings: Vec<String>,
}

/// The layers of a network on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    pub device: String,
    pub layers: usize,
    /// The first and the last of them in the order of the network, tiny ones left out.
    pub span: Option<(Arc<str>, Arc<str>)>,
}

/// How one network gets along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it stays where it computes.
    Fits,
    /// It is spread as its node says.
    Placed,
    /// Part of it comes and goes: how and why.
    Streams(String),
    Refused(String),
    /// Its file is not there or not understood; its loader will say so.
    Unknown(String),
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePlan {
    pub device: String,
    pub total: u64,
    /// Free now.
    pub free: u64,
    /// Free once models that are there have made room.
    pub available: u64,
    /// Kept free for computing.
    pub reserved: u64,
    /// What this prompt's models put there: for an accelerator the most at one time, for the main memory all together.
    pub wanted: u64,
}

/// The prompt whose admission is in question.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionQuery<'a> {
    pub prompt: &'a Map,
    /// The outputs that are wanted; none: all of the prompt.
    pub outputs: Option<&'a [Arc<str>]>,
    /// Nodes whose results are there already.
    pub cached: &'a [Arc<str>],
}

/// The files of each network that is needed for these outputs, and their bytes: what the prompt says, before anything is
/// opened. Those that are not there are left out; their loaders will say so.
pub fn wanted_files(
    prompt: &Map,
    outputs: &[Arc<str>],
    folders: &Folders,
) -> Vec<(Vec<PathBuf>, u64)> {
    let asked = AdmissionQuery {
        prompt,
        outputs: Some(outputs),
        cached: &[],
    };
    let nodes = prompt::loader_nodes(&asked);
    let sized = |files: Vec<PathBuf>| {
        let size = |file: &PathBuf| Some(file.metadata().ok()?.len());
        let bytes: Option<u64> = files.iter().map(size).sum();
        Some((files, bytes?))
    };
    nodes
        .iter()
        .filter_map(|node| sized(node.present_files(folders)?))
        .collect()
}

/// Whether a whole prompt can run.
pub fn assess(
    prompt: &Map,
    folders: &Folders,
    families: &Families,
    registry: &ModelRegistry,
) -> Assessment {
    let asked = AdmissionQuery {
        prompt,
        outputs: None,
        cached: &[],
    };
    assess_run(&asked, folders, families, registry)
}

/// Whether what is left to do of a prompt can run.
pub fn assess_run(
    asked: &AdmissionQuery<'_>,
    folders: &Folders,
    families: &Families,
    registry: &ModelRegistry,
) -> Assessment {
    let nodes = prompt::loader_nodes(asked);
    if nodes.is_empty() {
        return Assessment::default();
    }
    let loads = prompt::loads(&nodes, folders, families, registry);
    room::judge(&loads, prompt::largest_latent(asked.prompt), registry)
}
