//! Nodes that leave out passes of a model in which little changes.

use std::sync::{Arc, Mutex};

use fresco_graph::{Cx, Node, NodeOutput, NodeResult};
use fresco_models::denoise::hooks::Hooks;
use fresco_models::denoise::{Reuse, ReuseRule, RunPatch};
use fresco_tensor::Generator;

use super::Model;

/// What is left out: passes of the network, or whole steps.
#[derive(Clone, Copy)]
enum What {
    Passes,
    Steps,
}

/// Starts to remember anew with every run.
struct Remember {
    rule: ReuseRule,
    what: What,
}

impl RunPatch for Remember {
    fn install(&self, hooks: &mut Hooks, _: &Arc<Mutex<Generator>>) {
        let reuse = Some(Arc::new(Reuse::new(self.rule)));
        match self.what {
            What::Passes => hooks.reused_passes = reuse,
            What::Steps => hooks.reused_steps = reuse,
        }
    }
}

fn remembering(mut model: Model, threshold: f64, range: (f64, f64), what: What) -> NodeResult {
    let rule = ReuseRule {
        threshold,
        start_sigma: model.sampling.percent_to_sigma(range.0),
        end_sigma: model.sampling.percent_to_sigma(range.1),
    };
    model
        .patches
        .per_run
        .push(Arc::new(Remember { rule, what }));
    Ok(NodeOutput::one(model))
}

/// Leaves out passes of the network while little changes; a little faster for a little less detail.
#[derive(Node)]
#[node(
    id = "EasyCache",
    v3,
    module = "comfy_extras.nodes_easycache",
    display = "EasyCache",
    category = "advanced/debug/model",
    outputs("MODEL"),
    experimental
)]
pub struct EasyCache {
    /// The model whose passes are left out.
    model: Model,
    /// How much may change before a pass is made.
    #[input(default = 0.2, min = 0.0, max = 3.0, step = 0.01)]
    reuse_threshold: f64,
    /// Share of the sampling from which on passes are left out.
    #[input(default = 0.15, min = 0.0, max = 1.0, step = 0.01)]
    start_percent: f64,
    /// Share of the sampling up to which passes are left out.
    #[input(default = 0.95, min = 0.0, max = 1.0, step = 0.01)]
    end_percent: f64,
    /// Say more in the log.
    #[input(default = false)]
    verbose: bool,
}

impl Node for EasyCache {
    fn run(self, _: &Cx) -> NodeResult {
        let range = (self.start_percent, self.end_percent);
        if self.verbose {
            tracing::info!(
                "passes are left out below a change of {}",
                self.reuse_threshold
            );
        }
        remembering(self.model, self.reuse_threshold, range, What::Passes)
    }
}

/// Leaves out whole steps while little changes; works with every model, less exactly than EasyCache.
#[derive(Node)]
#[node(
    id = "LazyCache",
    v3,
    module = "comfy_extras.nodes_easycache",
    display = "LazyCache",
    category = "advanced/debug/model",
    outputs("MODEL"),
    experimental
)]
pub struct LazyCache {
    /// The model whose steps are left out.
    model: Model,
    /// How much may change before a step is made.
    #[input(default = 0.2, min = 0.0, max = 3.0, step = 0.01)]
    reuse_threshold: f64,
    /// Share of the sampling from which on steps are left out.
    #[input(default = 0.15, min = 0.0, max = 1.0, step = 0.01)]
    start_percent: f64,
    /// Share of the sampling up to which steps are left out.
    #[input(default = 0.95, min = 0.0, max = 1.0, step = 0.01)]
    end_percent: f64,
    /// Say more in the log.
    #[input(default = false)]
    verbose: bool,
}

impl Node for LazyCache {
    fn run(self, _: &Cx) -> NodeResult {
        let range = (self.start_percent, self.end_percent);
        if self.verbose {
            tracing::info!(
                "steps are left out below a change of {}",
                self.reuse_threshold
            );
        }
        remembering(self.model, self.reuse_threshold, range, What::Steps)
    }
}
