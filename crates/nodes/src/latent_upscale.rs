//! Latents enlarged by networks: the models on links, their loader, and the node that uses one.

use std::sync::Arc;

use fresco_graph::{
    Cx, FromValue, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Opaque, Value, entry,
    wrong_kind,
};
use fresco_memory::Need;
use fresco_models::ModelError;
use fresco_models::latent_upscale::{LatentUpscaler, UpscalerConfig, UpscalerStore};
use fresco_models::network::Lazy;
use fresco_models::store::WeightStore;
use fresco_tensor::{Crop, Device, ResizeMethod, Tensor, common_upscale};

use crate::loaders::WeightSource;
use crate::python_rules::round;
use crate::resident::{Component, Hold, InUse, LoadOptions, SharedNetwork, registry, who};
use crate::sampling::run::failure;
use crate::types::Latent;

pub static NODES: &[NodeEntry] = &[
    entry::<LatentUpscaleModelLoader>(),
    entry::<HunyuanVideo15LatentUpscaleWithModel>(),
];

type Network = Lazy<Arc<dyn LatentUpscaler>>;

/// LATENT_UPSCALE_MODEL on a link. Its weights are packed when it is first used.
#[derive(Clone)]
pub struct LatentUpscaleModel {
    config: Arc<dyn UpscalerConfig>,
    network: Arc<Network>,
    hold: Arc<Hold>,
}

impl LatentUpscaleModel {
    /// Channels of the latents that it takes.
    pub fn channels(&self) -> usize {
        self.config.channels()
    }

    /// What the network makes of a latent as nodes have it.
    pub(crate) fn run(&self, latent: &Tensor, cx: &Cx) -> Result<Tensor, NodeError> {
        if latent.rank() != 5 || latent.dim(1)? != self.channels() {
            return Err(NodeError::value_error(format!(
                "this model takes latents of videos with {} channels, not of shape {:?}",
                self.channels(),
                latent.shape()
            )));
        }
        let need = Need {
            required: self.config.pass_bytes(latent.shape()),
            ..Need::default()
        };
        let in_use = InUse::of(cx, &[self.hold.handle()], need)?;
        let check = || cx.check_interrupt().map_err(|_| ModelError::Cancelled);
        let made = in_use.run(|| self.network.get()?.upscale(latent, &check));
        made.map_err(failure)
    }
}

impl Opaque for LatentUpscaleModel {
    fn describe(&self) -> String {
        format!(
            "a model that enlarges latents of {} channels",
            self.channels()
        )
    }
}

impl FromValue for LatentUpscaleModel {
    const IO: &'static str = "LATENT_UPSCALE_MODEL";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind(Self::IO, &value))
    }
}

impl From<LatentUpscaleModel> for Value {
    fn from(model: LatentUpscaleModel) -> Self {
        Self::object(model)
    }
}

fn lazy(found: &UpscalerStore, store: &Arc<WeightStore>) -> Network {
    let (found, own) = (found.clone(), Arc::clone(store));
    let build = move || found.build(&own);
    Lazy::new(vec![Arc::clone(store)], Box::new(build))
}

/// Loads a model that enlarges latents.
#[derive(Node)]
#[node(
    id = "LatentUpscaleModelLoader",
    v3,
    module = "comfy_extras.nodes_hunyuan",
    display = "Load Latent Upscale Model",
    category = "loaders",
    outputs("LATENT_UPSCALE_MODEL")
)]
pub struct LatentUpscaleModelLoader {
    /// The file of the latent upscale model.
    #[input(listed = "models/latent_upscale_models")]
    model_name: String,
}

impl Node for LatentUpscaleModelLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let source = WeightSource::find(cx, "latent_upscale_models", &self.model_name)?;
        let key = source.key(Component::Upscale)?;
        let opened = registry(cx).open(&who(cx), &key, "LatentUpscaler", || {
            let found = UpscalerStore::find(source.open()?, &Device::cpu()).map_err(failure)?;
            let network = lazy(&found, &found.store);
            Ok::<_, NodeError>(SharedNetwork::new(network, found))
        })?;
        let shared = opened.shared;
        let options = LoadOptions::default();
        let hold = Hold::claim(cx, &shared, &opened.id, Component::Upscale, &options);
        let found = &shared.extra;
        let store = found.store.on(hold.compute().clone());
        Ok(NodeOutput::one(LatentUpscaleModel {
            config: found.config.clone(),
            network: shared.joined(lazy(found, &store)),
            hold,
        }))
    }
}

/// Pixels along a side of a latent's cell.
const CELL: i64 = 16;
/// The smallest side.
const LEAST: i64 = 64;

/// Resizes the latent of a Hunyuan Video 1.5 to the size of a picture in pixels, and mends it with a model.
#[derive(Node)]
#[node(
    id = "HunyuanVideo15LatentUpscaleWithModel",
    v3,
    module = "comfy_extras.nodes_hunyuan",
    display = "Hunyuan Video 15 Latent Upscale With Model",
    category = "latent",
    outputs("LATENT")
)]
pub struct HunyuanVideo15LatentUpscaleWithModel {
    /// The model that mends the enlarged latent.
    model: LatentUpscaleModel,
    samples: Latent,
    #[input(default = "bilinear", choices = ["nearest-exact", "bilinear", "area", "bicubic", "bislerp"])]
    upscale_method: String,
    #[input(default = 1280, min = 0, max = 16384, step = 8)]
    width: i64,
    #[input(default = 720, min = 0, max = 16384, step = 8)]
    height: i64,
    #[input(choices = ["disabled", "center"])]
    crop: String,
}

impl Node for HunyuanVideo15LatentUpscaleWithModel {
    fn run(self, cx: &Cx) -> NodeResult {
        if self.width == 0 && self.height == 0 {
            return Ok(NodeOutput::one(self.samples));
        }
        let samples = self.samples.samples()?;
        let &[.., h, w] = samples.shape() else {
            return Err(NodeError::value_error("a video latent has five dimensions"));
        };
        if h == 0 || w == 0 {
            return Err(NodeError::value_error("the latent is empty"));
        }
        // A zero asks to keep the shape. The reference mixes latent and pixel units here; so must we.
        let (width, height) = if self.width == 0 {
            let height = self.height.max(LEAST);
            (
                round(w as f64 * height as f64 / h as f64).max(LEAST),
                height,
            )
        } else if self.height == 0 {
            let width = self.width.max(LEAST);
            (width, round(h as f64 * width as f64 / w as f64).max(LEAST))
        } else {
            (self.width.max(LEAST), self.height.max(LEAST))
        };
        let method = ResizeMethod::parse(&self.upscale_method).ok_or_else(|| {
            NodeError::value_error(format!("unknown upscale method '{}'", self.upscale_method))
        })?;
        let cells = |pixels: i64| {
            usize::try_from(pixels / CELL)
                .map_err(|_| NodeError::value_error(format!("{pixels} is not a size")))
        };
        let crop = Crop::parse(&self.crop);
        let resized = common_upscale(samples, cells(width)?, cells(height)?, method, crop)?;
        let made = self.model.run(&resized, cx)?;
        Ok(NodeOutput::one(Latent::new(made)))
    }
}
