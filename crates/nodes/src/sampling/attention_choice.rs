//! Nodes that choose how attention is computed. Here it is always computed in full: what they ask for changes speed or
//! memory elsewhere, never what a picture is meant to be.

use std::sync::Arc;

use fresco_graph::{Cx, Input, Map, Node, NodeOutput, NodeResult, Output};

use super::Model;

/// Asks for an implementation of attention. There is one here for each device, which is used whatever is asked for.
#[derive(Node)]
#[node(
    id = "ModelAttentionBackend",
    v3,
    module = "comfy_extras.nodes_attention",
    display = "Model Attention Backend",
    category = "advanced/model",
    outputs(Output::new("MODEL").named("model"))
)]
pub struct ModelAttentionBackend {
    model: Model,
    /// The implementation to use. Here each device has one, whatever is chosen.
    #[expect(dead_code, reason = "there is one implementation")]
    #[input(default = "pytorch attention", choices = ["pytorch attention", "comfy kitchen attention"])]
    attention: String,
}

impl Node for ModelAttentionBackend {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.model))
    }
}

const KEPT: &str = "Percent of the parts that would be kept. It has no effect here.";

fn selections() -> Input {
    let share = |name: &str, about: &str, default: f64, step: f64| {
        vec![
            Input::new(name, "FLOAT")
                .option("default", default)
                .option("step", step)
                .tooltip(about),
        ]
    };
    Input::dynamic_combo(
        "selection",
        vec![
            (
                "sol-attn",
                share(
                    "tau",
                    "How much of the attention would be kept. It has no effect here.",
                    1.0,
                    0.05,
                ),
            ),
            ("sla", share("keep_percent", KEPT, 10.0, 0.5)),
            ("vsa", share("keep_percent", KEPT, 10.0, 0.5)),
        ],
    )
}

/// Asks to leave out attention between parts of a long video that have little to do with each other. Here all of it is
/// computed.
#[derive(Node)]
#[node(
    id = "BlockSparseAttention",
    v3,
    module = "comfy_extras.nodes_attention",
    display = "Model Sparse Attention",
    category = "advanced/model",
    outputs(Output::new("MODEL").named("model"))
)]
#[expect(dead_code, reason = "attention is computed in full")]
pub struct BlockSparseAttention {
    model: Model,
    /// How parts that belong together would be found. Here nothing is left out.
    #[input(spec = selections())]
    selection: Option<Arc<Map>>,
    #[input(optional, or = 0.0, default = 0.0, step = 0.01)]
    start_percent: f64,
    #[input(optional, or = 1.0, default = 1.0, step = 0.01)]
    end_percent: f64,
    /// Blocks that would compute all of attention. It has no effect here.
    #[input(optional, or = String::new(), default = "")]
    dense_blocks: String,
    /// Shortest sequence of tokens that would be thinned. It has no effect here.
    #[input(optional, or = 12288, default = 12288, step = 512)]
    min_tokens: i64,
    /// Further tokens that would be kept. It has no effect here.
    #[input(optional, or = 256, default = 256, step = 64)]
    extra_tokens: i64,
    /// How tokens of the prompt would be kept. It has no effect here.
    #[input(optional, or = "exact_kv_and_rows".to_owned(), default = "exact_kv_and_rows",
            choices = ["exact_kv", "exact_kv_and_rows", "off"])]
    sink_conditioning: String,
    /// Says more in the log. It has no effect here.
    #[input(optional, or = false, default = false)]
    verbose: bool,
}

impl Node for BlockSparseAttention {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.model))
    }
}

/// Asks to keep what reference pictures add to attention from step to step. Here it is computed anew, with the same
/// result.
#[derive(Node)]
#[node(
    id = "FluxKVCache",
    v3,
    module = "comfy_extras.nodes_flux",
    display = "Flux KV Cache",
    category = "advanced/model",
    outputs("MODEL")
)]
pub struct FluxKVCache {
    model: Model,
}

impl Node for FluxKVCache {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.model))
    }
}
