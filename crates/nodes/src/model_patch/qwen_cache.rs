//! What Qwen-Image 2.1 keeps from one step of a run to the next.

use std::any::Any;
use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_memory::Handle;
use fresco_models::qwen_image21::{PrefixCache, runs_with_cache};

use crate::sampling::Model;
use crate::sampling::model::ModelAddition;

/// Keeps what does not change from step to step, the prompt's and the references' part of attention, so that it is computed
/// once. Results are the same.
#[derive(Node)]
#[node(
    id = "QwenImage21Cache",
    v3,
    module = "comfy_extras.nodes_qwen",
    display = "QwenImage21Cache",
    category = "advanced/model/qwen",
    outputs("MODEL")
)]
pub(super) struct QwenImage21Cache {
    model: Model,
    /// Where it is kept; off computes it in every step.
    #[input(choices = ["auto", "gpu", "cpu", "off"])]
    device: String,
    /// In which format. It is always kept as it is computed, whatever is chosen.
    #[input(choices = ["default", "int8", "int4"])]
    dtype: String,
}

impl Node for QwenImage21Cache {
    fn run(self, _: &Cx) -> NodeResult {
        let mut model = self.model;
        let known = model
            .base
            .store()
            .is_some_and(|store| runs_with_cache(store));
        if !known {
            return Err(NodeError::value_error(format!(
                "{} is no Qwen-Image 2.1: there is nothing to keep",
                model.base.name()
            )));
        }
        if self.dtype != "default" {
            tracing::info!(
                "the cache is kept as it is computed, and not as {}",
                self.dtype
            );
        }
        if self.device != "off" {
            model.additions.push(Arc::new(CacheOption {
                in_main_memory: self.device == "cpu",
            }));
        }
        Ok(NodeOutput::one(model))
    }
}

struct CacheOption {
    in_main_memory: bool,
}

impl ModelAddition for CacheOption {
    fn handle(&self) -> Option<&Handle> {
        None
    }

    fn for_run(
        &self,
        _: &Model,
        _: &[usize],
        _: &Cx,
    ) -> Result<Arc<dyn Any + Send + Sync>, NodeError> {
        Ok(Arc::new(PrefixCache::new(self.in_main_memory)))
    }
}
