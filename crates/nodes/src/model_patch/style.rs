//! Patches that give a model the style of a picture.

use std::any::Any;
use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_memory::Handle;
use fresco_models::flux::style_tokens::{KIND, StyleConfig, StyleReference, check_states};
use fresco_tensor::Tensor;

use super::ModelPatch;
use crate::loaders::vision::DEEPER;
use crate::sampling::Model;
use crate::sampling::model::ModelAddition;
use crate::sampling::run::failure;
use crate::vision::VisionOutput;

/// Gives Flux.1 the style of a picture that SigLIP saw.
#[derive(Node)]
#[node(
    id = "USOStyleReference",
    v1,
    module = "comfy_extras.nodes_model_patch",
    category = "advanced/model_patches/flux",
    outputs("MODEL"),
    experimental
)]
pub(super) struct UsoStyleReference {
    model: Model,
    model_patch: ModelPatch,
    clip_vision_output: VisionOutput,
}

impl Node for UsoStyleReference {
    fn run(self, _: &Cx) -> NodeResult {
        let config: &StyleConfig = self.model_patch.config(KIND)?;
        let seen = &self.clip_vision_output;
        let deeper = |at: usize| {
            seen.tensor(DEEPER[at]).cloned().map_err(|_| {
                NodeError::value_error(format!(
                    "{} needs what a SigLIP vision model saw, with all of its 27 layers",
                    self.model_patch.name
                ))
            })
        };
        let last = seen.tensor("penultimate_hidden_states")?.clone();
        let states = [last, deeper(0)?, deeper(1)?];
        check_states(config, &states).map_err(failure)?;
        let mut model = self.model;
        model.additions.push(Arc::new(Styled {
            patch: self.model_patch,
            states,
        }));
        Ok(NodeOutput::one(model))
    }
}

struct Styled {
    patch: ModelPatch,
    states: [Tensor; 3],
}

impl ModelAddition for Styled {
    fn handle(&self) -> Option<&Handle> {
        self.patch.handle()
    }

    fn for_run(
        &self,
        _: &Model,
        _: &[usize],
        _: &Cx,
    ) -> Result<Arc<dyn Any + Send + Sync>, NodeError> {
        Ok(Arc::new(StyleReference {
            network: Arc::clone(&self.patch.network),
            states: self.states.clone(),
        }))
    }
}
