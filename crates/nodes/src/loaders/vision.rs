//! Vision encoders from files.

use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, map};
use fresco_memory::{Handle, Need};
use fresco_models::network::Lazy;
use fresco_models::store::WeightStore;
use fresco_models::vision::{self, VisionConfig, VisionEncoder};
use fresco_tensor::{Device, Tensor};

use super::WeightSource;
use crate::resident::{Component, Hold, InUse, LoadOptions, SharedNetwork, registry, who};
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
    /// The file of the vision model.
    #[input(listed = "models/clip_vision")]
    clip_name: String,
}

impl Node for ClipVisionLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let vision = load_vision(cx, &self.clip_name, &LoadOptions::default())?;
        Ok(NodeOutput::one(vision))
    }
}

type Encoder = Lazy<VisionEncoder>;

/// An encoder whose weights are packed when it is first used.
fn encoder(store: &Arc<WeightStore>, config: &VisionConfig) -> Encoder {
    let (own, config) = (Arc::clone(store), config.clone());
    let build = move || VisionEncoder::new(&own, &config);
    Lazy::new(vec![Arc::clone(store)], Box::new(build))
}

/// The vision encoder in a file.
pub(crate) fn load_vision(cx: &Cx, name: &str, options: &LoadOptions) -> Result<Vision, NodeError> {
    let source = WeightSource::find(cx, "clip_vision", name)?;
    open_vision(cx, &source, "", options)
}

/// The vision encoder under a prefix of a file.
pub(crate) fn open_vision(
    cx: &Cx,
    source: &WeightSource,
    prefix: &str,
    options: &LoadOptions,
) -> Result<Vision, NodeError> {
    let key = source.key(Component::Vision)?;
    let opened = registry(cx).open(&who(cx), &key, "VisionEncoder", || {
        let store = vision::store_in(source.open()?, prefix, Device::cpu());
        let config = VisionConfig::detect(&store).map_err(failure)?;
        let network = encoder(&store, &config);
        Ok::<_, NodeError>(SharedNetwork::new(network, (store, config)))
    })?;
    let shared = opened.shared;
    let hold = Hold::claim(cx, &shared, &opened.id, Component::Vision, options);
    let (store, config) = &shared.extra;
    let network = encoder(&store.on(hold.compute().clone()), config);
    let network = shared.joined(network);
    Ok(Vision(Arc::new(LoadedVision { network, hold })))
}

struct LoadedVision {
    network: Arc<Encoder>,
    hold: Arc<Hold>,
}

/// Names of the states that tell a style.
pub(crate) const DEEPER: [&str; 2] = ["hidden_states_middle", "hidden_states_early"];

impl VisionModel for LoadedVision {
    fn encode(&self, image: &Tensor, crop: bool, cx: &Cx) -> Result<VisionOutput, NodeError> {
        let in_use = InUse::of(cx, &[self.hold.handle()], Need::default())?;
        let seen = in_use.run(|| self.network.get()?.encode(image, crop));
        let seen = seen.map_err(failure)?;
        let mut found = map! {
            "last_hidden_state" => tensor(seen.last),
            "image_embeds" => tensor(seen.embeds),
            "penultimate_hidden_states" => tensor(seen.penultimate),
        };
        for (name, state) in DEEPER.into_iter().zip(seen.deeper.into_iter().flatten()) {
            found.insert(name.into(), tensor(state));
        }
        Ok(VisionOutput(Arc::new(found)))
    }

    fn handle(&self) -> Option<&Handle> {
        Some(self.hold.handle())
    }
}
