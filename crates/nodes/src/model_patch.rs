//! MODEL_PATCH: networks in files of their own that act inside a model's, the nodes that load them, and those that put
//! them there. Which kinds of files there are is said in the model room's tables; a kind has a node of its own here.

mod anima;
mod lumina;
mod positions;
mod qwen;
mod qwen_cache;
mod style;

use std::sync::{Arc, Mutex, PoisonError};

use fresco_graph::{
    Cx, FromValue, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Opaque, Pieces, Value,
    entry, wrong_kind,
};
use fresco_memory::Handle;
use fresco_models::model_patch::{PatchNetwork, PatchStore};
use fresco_models::network::Lazy;
use fresco_tensor::{Device, Tensor};

use self::lumina::{PictureControl, ZImageFunControlnet};
use crate::loaders::WeightSource;
use crate::resident::{Component, Hold, LoadOptions, SharedNetwork, registry, who};
use crate::sampling::run::failure;

pub static NODES: &[NodeEntry] = &[
    entry::<ModelPatchLoader>(),
    entry::<ZImageFunControlnet>(),
    entry::<qwen::QwenImageDiffsynthControlnet>(),
    entry::<qwen_cache::QwenImage21Cache>(),
    entry::<positions::ScaleRope>(),
    entry::<style::UsoStyleReference>(),
    entry::<anima::AnimaLLLiteApply>(),
];

/// MODEL_PATCH on a link. Its weights are packed when it is first used.
#[derive(Clone)]
pub struct ModelPatch {
    name: String,
    found: PatchStore,
    network: Arc<Lazy<PatchNetwork>>,
    hold: Option<Arc<Hold>>,
}

fn lazy(found: &PatchStore) -> Lazy<PatchNetwork> {
    let own = found.clone();
    let stores = vec![Arc::clone(&found.store)];
    Lazy::new(stores, Box::new(move || own.build()))
}

impl ModelPatch {
    /// The patch of a name in the user's folder. What is wrong with its keys and shapes is said now.
    fn load(cx: &Cx, name: &str, options: &LoadOptions) -> Result<Self, NodeError> {
        let source = WeightSource::find(cx, "model_patches", name)?;
        let key = source.key(Component::Control)?;
        let opened = registry(cx).open(&who(cx), &key, "ModelPatch", || {
            let found = PatchStore::find(source.open()?, &Device::cpu()).map_err(failure)?;
            Ok::<_, NodeError>(SharedNetwork::new(lazy(&found), found))
        })?;
        let shared = opened.shared;
        let hold = Hold::claim(cx, &shared, &opened.id, Component::Control, options);
        let found = shared.extra.on(hold.compute().clone());
        Ok(Self {
            name: name.to_owned(),
            network: shared.joined(lazy(&found)),
            found,
            hold: Some(hold),
        })
    }

    /// A patch that is not in the memory room.
    pub fn new(name: &str, found: PatchStore) -> Self {
        Self {
            name: name.to_owned(),
            network: Arc::new(lazy(&found)),
            found,
            hold: None,
        }
    }

    /// What is known of a patch of one kind. Others are refused by name.
    pub(crate) fn config<T: 'static>(&self, wanted: &str) -> Result<&T, NodeError> {
        self.found.config().ok_or_else(|| {
            NodeError::value_error(format!(
                "{} is {}, but this node takes {wanted}",
                self.name, self.found.kind
            ))
        })
    }

    /// Whether it is a patch of the kind with this configuration.
    fn is<T: 'static>(&self) -> bool {
        self.found.config::<T>().is_some()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn network(&self) -> &Arc<Lazy<PatchNetwork>> {
        &self.network
    }

    pub(crate) fn handle(&self) -> Option<&Handle> {
        self.hold.as_deref().map(Hold::handle)
    }
}

/// What was made of a picture for the last run, which the next one of the same size needs not make again.
#[derive(Default)]
struct LastMade(Mutex<Option<((usize, usize), Tensor)>>);

impl LastMade {
    fn of(
        &self,
        size: (usize, usize),
        make: impl FnOnce() -> Result<Tensor, NodeError>,
    ) -> Result<Tensor, NodeError> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known().as_ref().filter(|made| made.0 == size).cloned();
        if let Some((_, made)) = before {
            return Ok(made);
        }
        let made = make()?;
        *known() = Some((size, made.clone()));
        Ok(made)
    }
}

/// Masks as planes (n, 1, h, w).
fn mask_planes(mask: &Tensor) -> Result<Tensor, NodeError> {
    let [.., h, w] = *mask.shape() else {
        return Err(NodeError::value_error("a mask has a height and a width"));
    };
    let count = mask.len() / (h * w).max(1);
    Ok(mask.reshape([count, 1, h, w])?)
}

/// The same, 1 where the picture stays.
fn kept_planes(mask: &Tensor) -> Result<Tensor, NodeError> {
    mask_planes(&mask.rsub_scalar(1.0))
}

impl Opaque for ModelPatch {
    fn describe(&self) -> String {
        format!("model patch {}", self.name)
    }

    fn bytes(&self) -> u64 {
        self.found.store.bytes()
    }

    // The memory room counts the weights.
    fn pieces(&self, _: &mut Pieces) {}
}

impl FromValue for ModelPatch {
    const IO: &'static str = "MODEL_PATCH";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind(Self::IO, &value))
    }
}

impl From<ModelPatch> for Value {
    fn from(patch: ModelPatch) -> Self {
        Self::object(patch)
    }
}

/// Loads a network that acts inside a model: a control net that is no control net of its own.
#[derive(Node)]
#[node(
    id = "ModelPatchLoader",
    v1,
    module = "comfy_extras.nodes_model_patch",
    category = "advanced/loaders",
    outputs("MODEL_PATCH"),
    experimental
)]
pub struct ModelPatchLoader {
    /// The file of the network.
    #[input(listed = "models/model_patches")]
    name: String,
}

impl Node for ModelPatchLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let patch = ModelPatch::load(cx, &self.name, &LoadOptions::default())?;
        Ok(NodeOutput::one(patch))
    }
}
