//! Nodes that speak to the memory room: how long a model stays, what leaves now, which blocks wait elsewhere.

use std::time::Duration;

use fresco_graph::{
    Choices, Cx, Input, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Output, Value, entry,
};
use fresco_memory::{Handle, MemoryCommand, Placement, Policy, PolicySource};

use crate::clip::Clip;
use crate::control::Control;
use crate::multigpu::family::Known;
use crate::resident::{registry, who};
use crate::sampling::Model;
use crate::vae::Vae;
use crate::vision::Vision;

pub static NODES: &[NodeEntry] = &[
    entry::<KeepOrEject>(),
    entry::<UnloadModels>(),
    entry::<BlockSwap>(),
];

/// What has weights.
const MODELS: &str = "MODEL,CLIP,VAE,CONTROL_NET,CLIP_VISION";
/// Longer than a year: nobody means a time.
const MOST_SECONDS: u32 = 31_536_000;

fn any_model() -> Input {
    Input::match_type("model", "model", MODELS).tooltip("What it is about; it is passed on.")
}

/// The handle of a model's weights; none for those that have none, such as a VAE that only scales.
fn handle_of(value: &Value) -> Result<Option<&Handle>, NodeError> {
    if let Some(model) = value.downcast::<Model>() {
        Ok(model.handle())
    } else if let Some(clip) = value.downcast::<Clip>() {
        Ok(clip.handle())
    } else if let Some(vae) = value.downcast::<Vae>() {
        Ok(vae.0.handle())
    } else if let Some(control) = value.downcast::<Control>() {
        Ok(control.model.handle())
    } else if let Some(vision) = value.downcast::<Vision>() {
        Ok(vision.0.handle())
    } else {
        let wrong = fresco_graph::wrong_kind(MODELS, value);
        Err(NodeError::type_error(format!("model: {wrong}")))
    }
}

/// Says how long a model stays in memory: until its place is needed (auto), always (keep), until the prompt ends
/// (eject_after), or for a time after its last use (ttl).
#[derive(Node)]
#[node(
    id = "FrescoRetention",
    v3,
    module = "fresco",
    display = "Keep or Eject Model",
    category = "memory",
    outputs(Output::matching("model", "model"))
)]
struct KeepOrEject {
    #[input(spec = any_model())]
    model: Value,
    /// keep survives the end of prompts; eject_after and ttl give all of its memory back.
    #[input(choices = ["auto", "keep", "eject_after", "ttl"], default = "keep")]
    retention: String,
    /// For ttl: seconds after the last use.
    #[input(default = 300, min = 1, max = MOST_SECONDS)]
    ttl_seconds: u32,
}

impl KeepOrEject {
    fn policy(&self) -> Result<Policy, NodeError> {
        Ok(match &*self.retention {
            "auto" => Policy::Auto,
            "keep" => Policy::Keep,
            "eject_after" => Policy::EjectAfter,
            "ttl" => Policy::Ttl(Duration::from_secs(self.ttl_seconds.into())),
            other => {
                return Err(NodeError::value_error(format!(
                    "retention: {other:?} is none of auto, keep, eject_after, ttl"
                )));
            }
        })
    }
}

impl Node for KeepOrEject {
    fn run(self, cx: &Cx) -> NodeResult {
        let policy = self.policy()?;
        if let Some(handle) = handle_of(&self.model)? {
            handle.set_policy(&who(cx), policy, PolicySource::PolicyNode);
        }
        Ok(NodeOutput::one(self.model))
    }
}

/// Takes all models off the devices at this point of the workflow, when its input is there. Those that are needed again come
/// back by themselves.
#[derive(Node)]
#[node(
    id = "FrescoUnloadModels",
    v3,
    module = "fresco",
    display = "Unload Models",
    category = "memory",
    outputs(Output::matching("any", "value"))
)]
struct UnloadModels {
    #[input(spec = Input::match_type("value", "any", "*").tooltip("Anything; it is passed on."))]
    value: Value,
}

impl Node for UnloadModels {
    fn run(self, cx: &Cx) -> NodeResult {
        let command = MemoryCommand::UnloadForNode(who(cx));
        let answer = registry(cx).carry_out(&command);
        answer.map_err(|refusal| NodeError::runtime(refusal.to_string()))?;
        Ok(NodeOutput::one(self.value))
    }
}

/// Keeps the last blocks of a model on another device and brings each over when its turn comes.
#[derive(Node)]
#[node(
    id = "FrescoBlockSwap",
    v3,
    module = "fresco",
    display = "Block Swap",
    category = "memory",
    outputs("MODEL")
)]
struct BlockSwap {
    model: Model,
    /// How many of its blocks, counted from the last one.
    #[input(default = 20, min = 0, max = 1000)]
    blocks_to_swap: u32,
    /// Where they wait.
    #[input(spec = swap_device())]
    swap_device: String,
    /// How many layers are fetched before they are used.
    #[input(default = 0, min = 0, max = 40)]
    prefetch_blocks: u32,
}

fn swap_device() -> Input {
    Input::combo("swap_device", Choices::Listed("devices/all".into())).option("default", "cpu")
}

impl Node for BlockSwap {
    fn run(self, cx: &Cx) -> NodeResult {
        let device = Known::of(cx).device("swap_device", &self.swap_device)?;
        if self.blocks_to_swap == 0 {
            return Ok(NodeOutput::one(self.model));
        }
        let placement = Placement::Swap {
            blocks: self.blocks_to_swap,
            device: device.name(),
            ahead: self.prefetch_blocks,
        };
        Ok(NodeOutput::one(self.model.with_placement(cx, placement)))
    }
}

#[cfg(test)]
mod tests;
