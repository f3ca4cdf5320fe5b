//! Nodes that leave out passes of a model in which little changes.

use std::sync::{Arc, Mutex};

use fresco_graph::{Cx, Node, NodeOutput, NodeResult, Twin};
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
    model: Model,
    /// How much may change before one is computed; more leaves out more.
    #[input(default = 0.2, min = 0.0, max = 3.0, step = 0.01)]
    reuse_threshold: f64,
    #[input(default = 0.15, min = 0.0, max = 1.0, step = 0.01)]
    start_percent: f64,
    #[input(default = 0.95, min = 0.0, max = 1.0, step = 0.01)]
    end_percent: f64,
    /// Says more in the log.
    #[input(default = false)]
    verbose: bool,
}

impl Node for EasyCache {
    fn run(self, _: &Cx) -> NodeResult {
        self.remember(What::Passes)
    }
}

impl EasyCache {
    fn remember(self, what: What) -> NodeResult {
        let threshold = self.reuse_threshold;
        if self.verbose {
            let left_out = match what {
                What::Passes => "passes",
                What::Steps => "steps",
            };
            tracing::info!("{left_out} are left out below a change of {threshold}");
        }
        let mut model = self.model;
        let rule = ReuseRule {
            threshold,
            start_sigma: model.sampling.percent_to_sigma(self.start_percent),
            end_sigma: model.sampling.percent_to_sigma(self.end_percent),
        };
        let remember = Remember { rule, what };
        model.patches.per_run.push(Arc::new(remember));
        Ok(NodeOutput::one(model))
    }
}

pub static LAZY_CACHE: Twin<EasyCache> = Twin {
    id: "LazyCache",
    display: Some("LazyCache"),
    about: "Leaves out whole steps while little changes; works with every model, less exactly than EasyCache.",
    defaults: &[],
    run: |node, _| node.remember(What::Steps),
};
