//! Vision encoders from files.

use std::sync::{Arc, Mutex, PoisonError};

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, map};
use fresco_models::store::Store;
use fresco_models::vision::{self, VisionConfig, VisionEncoder};
use fresco_tensor::{Device, Tensor};

use super::open_model;
use crate::sampling::run::failure;
use crate::types::tensor;
use crate::vision::{Vision, VisionModel, VisionOutput};

/// Loads a model that looks at pictures.
#[derive(Node)]
#[node(
    id = "CLIPVisionLoader",
    v1,
    module = "nodes",
    display = "Load CLIP Vision",
    category = "loaders",
    outputs("CLIP_VISION")
)]
pub(super) struct ClipVisionLoader {
    #[input(listed = "models/clip_vision")]
    clip_name: String,
}

impl Node for ClipVisionLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let file = open_model(cx, "clip_vision", &self.clip_name)?;
        // One picture is little work: it stays in main memory.
        let store = vision::store(&file, Device::cpu());
        let config = VisionConfig::detect(&store).map_err(failure)?;
        let model = LoadedVision {
            store,
            config,
            network: Mutex::default(),
        };
        Ok(NodeOutput::one(Vision(Arc::new(model))))
    }
}

/// An encoder whose weights are packed when it is first used.
struct LoadedVision {
    store: Arc<Store>,
    config: VisionConfig,
    network: Mutex<Option<Arc<VisionEncoder>>>,
}

impl VisionModel for LoadedVision {
    fn encode(&self, image: &Tensor, crop: bool, _: &Cx) -> Result<VisionOutput, NodeError> {
        let network = {
            let mut slot = self.network.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(network) = &*slot {
                Arc::clone(network)
            } else {
                let built = VisionEncoder::new(&self.store, self.config.clone());
                let built = Arc::new(built.map_err(failure)?);
                *slot = Some(Arc::clone(&built));
                built
            }
        };
        let seen = network.encode(image, crop).map_err(failure)?;
        Ok(VisionOutput(Arc::new(map! {
            "last_hidden_state" => tensor(seen.last),
            "image_embeds" => tensor(seen.embeds),
            "penultimate_hidden_states" => tensor(seen.penultimate),
        })))
    }
}
