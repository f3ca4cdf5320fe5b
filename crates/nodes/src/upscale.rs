//! Pictures enlarged by networks: the models on links, their loader, and the node that works through a picture in tiles.

use std::sync::Arc;

use fresco_graph::{
    Cx, FromValue, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Opaque, Value, entry,
    wrong_kind,
};
use fresco_memory::{Handle, Need};
use fresco_models::ModelError;
use fresco_models::network::Lazy;
use fresco_models::upscale::{UpscaleFacts, UpscaleStore, Upscaler};
use fresco_tensor::{Tensor, tiled_scale};

use crate::loaders::WeightSource;
use crate::resident::{Component, Hold, InUse, LoadOptions, SharedNetwork, refused, registry, who};
use crate::sampling::run::failure;
use crate::types::Image;

pub static NODES: &[NodeEntry] = &[
    entry::<UpscaleModelLoader>(),
    entry::<ImageUpscaleWithModel>(),
];

/// Pixels along a side of a tile, how far tiles reach into each other, and the smallest that are tried.
const TILE: usize = 512;
const OVERLAP: usize = 32;
const LEAST: usize = 128;

/// Values that a network holds for a pixel at its fullest, in colours of the enlarged picture: the reference's measure.
const HELD: u64 = 384;

/// UPSCALE_MODEL on a link. Its weights are packed when it is first used.
#[derive(Clone)]
pub struct UpscaleModel {
    facts: UpscaleFacts,
    network: Arc<Lazy<Upscaler>>,
    hold: Arc<Hold>,
}

impl UpscaleModel {
    pub fn facts(&self) -> UpscaleFacts {
        self.facts
    }

    pub fn handle(&self) -> &Handle {
        self.hold.handle()
    }
}

impl Opaque for UpscaleModel {
    fn describe(&self) -> String {
        format!(
            "a {} upscale model, {} times",
            self.facts.kind, self.facts.scale
        )
    }
}

impl FromValue for UpscaleModel {
    const IO: &'static str = "UPSCALE_MODEL";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind(Self::IO, &value))
    }
}

impl From<UpscaleModel> for Value {
    fn from(model: UpscaleModel) -> Self {
        Self::object(model)
    }
}

fn lazy(found: &UpscaleStore) -> Lazy<Upscaler> {
    let own = found.clone();
    let stores = vec![Arc::clone(&found.store)];
    Lazy::new(stores, Box::new(move || own.build()))
}

/// The upscale model of a name in the user's folder.
pub(crate) fn load_upscaler(
    cx: &Cx,
    name: &str,
    options: &LoadOptions,
) -> Result<UpscaleModel, NodeError> {
    let source = WeightSource::find(cx, "upscale_models", name)?;
    let key = source.key(Component::Upscale)?;
    let opened = registry(cx).open(&who(cx), &key, "UpscaleModel", || {
        let found = UpscaleStore::find(source.open()?).map_err(failure)?;
        Ok::<_, NodeError>(SharedNetwork::new(lazy(&found), found))
    })?;
    let shared = opened.shared;
    let hold = Hold::claim(cx, &shared, &opened.id, Component::Upscale, options);
    let network = lazy(&shared.extra.on(hold.compute().clone()));
    Ok(UpscaleModel {
        facts: shared.extra.facts(),
        network: shared.joined(network),
        hold,
    })
}

/// Loads a model that enlarges pictures: ESRGAN and its relatives, Compact, SPAN, RealPLKSR, SwinIR, DAT, HAT, OmniSR.
#[derive(Node)]
#[node(
    id = "UpscaleModelLoader",
    v3,
    module = "comfy_extras.nodes_upscale_model",
    display = "Load Upscale Model",
    category = "loaders",
    outputs("UPSCALE_MODEL")
)]
pub struct UpscaleModelLoader {
    /// The file of the upscale model.
    #[input(listed = "models/upscale_models")]
    model_name: String,
}

impl Node for UpscaleModelLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let model = load_upscaler(cx, &self.model_name, &LoadOptions::default())?;
        Ok(NodeOutput::one(model))
    }
}

/// Enlarges pictures with a model, in tiles; smaller ones where memory is short.
#[derive(Node)]
#[node(
    id = "ImageUpscaleWithModel",
    v3,
    module = "comfy_extras.nodes_upscale_model",
    display = "Upscale Image (using Model)",
    category = "image/upscaling",
    outputs("IMAGE")
)]
pub struct ImageUpscaleWithModel {
    /// The model that enlarges.
    upscale_model: UpscaleModel,
    image: Image,
}

impl Node for ImageUpscaleWithModel {
    fn run(self, cx: &Cx) -> NodeResult {
        let model = &self.upscale_model;
        let facts = model.facts;
        let [_, _, _, channels] = self.image.0.dims4()?;
        if channels < facts.input {
            return Err(NodeError::value_error(format!(
                "this upscale model takes pictures of {} channels, not of {channels}",
                facts.input
            )));
        }
        let planes = self.image.0.narrow(3, 0, facts.input)?.nhwc_to_nchw()?;
        let mut tile = TILE;
        loop {
            match enlarged(cx, model, &planes, tile) {
                Err(error) if is_shortage(&error) && tile / 2 >= LEAST => {
                    tile /= 2;
                    tracing::warn!("upscaling in smaller tiles of {tile} by {tile}: {error}");
                }
                Err(error) => return Err(failure(error)),
                Ok(out) => {
                    let out = out.clamp(0.0, 1.0).nchw_to_nhwc()?;
                    return Ok(NodeOutput::one(Image(out)));
                }
            }
        }
    }
}

/// Whether there was too little memory.
fn is_shortage(error: &ModelError) -> bool {
    matches!(error, ModelError::NoRoom { .. }) || refused(error).is_some()
}

impl UpscaleModel {
    /// Pictures (b, c, h, w) enlarged as a whole: for callers that have their own tiles.
    pub(crate) fn enlarge(&self, planes: &Tensor, cx: &Cx) -> Result<Tensor, NodeError> {
        let [count, _, h, w] = planes.dims4()?;
        let need = Need {
            required: (count * h * w) as u64 * 3 * 4 * self.facts.scale as u64 * HELD,
            ..Need::default()
        };
        let in_use = InUse::of(cx, &[self.handle()], need)?;
        let out = in_use.run(|| self.network.get()?.enlarge(planes));
        out.map_err(failure)
    }
}

/// Pictures (b, c, h, w) enlarged in tiles of this size.
fn enlarged(
    cx: &Cx,
    model: &UpscaleModel,
    planes: &Tensor,
    tile: usize,
) -> Result<Tensor, ModelError> {
    let scale = model.facts.scale;
    let [count, _, h, w] = planes.dims4()?;
    let side = |len: usize| len.min(tile) as u64;
    let need = Need {
        required: side(h) * side(w) * 3 * 4 * scale as u64 * HELD,
        ..Need::default()
    };
    let stopped = |_| ModelError::Cancelled;
    let in_use = InUse::of(cx, &[model.handle()], need).map_err(|error| ModelError::NoRoom {
        reason: error.message().to_owned(),
    })?;
    let tiles = |len: usize| len.saturating_sub(OVERLAP).div_ceil(tile - OVERLAP).max(1);
    let total = (count * tiles(h) * tiles(w)) as f64;
    let mut done = 0.0;
    tiled_scale(planes, [tile, tile], OVERLAP, scale as f64, |part| {
        cx.check_interrupt().map_err(stopped)?;
        let out = in_use.run(|| model.network.get()?.enlarge(part))?;
        done += 1.0;
        cx.progress(f64::min(done, total), total, None)
            .map_err(stopped)?;
        Ok(out)
    })
}

#[cfg(test)]
mod tests {
    use fresco_files::{Dirs, Folders};
    use fresco_graph::{Resources, Slots};
    use fresco_tensor::safetensors::write;
    use fresco_tensor::synthetic;

    use super::*;
    use crate::small_files::keys;

    /// A folder with a small network in it.
    fn place(base: &std::path::Path) -> Cx {
        let folder = base.join("models/upscale_models");
        std::fs::create_dir_all(&folder).unwrap();
        let tensors: Vec<(String, Tensor)> = keys("esrgan_x4_small")
            .into_iter()
            .map(|(key, shape)| {
                let shape: Vec<usize> = shape.iter().map(|n| *n as usize).collect();
                let weight = synthetic::weight(&key, &shape).unwrap();
                (key, weight)
            })
            .collect();
        let tensors: Vec<(&str, &Tensor)> = tensors.iter().map(|(k, t)| (k.as_str(), t)).collect();
        write(folder.join("x4.safetensors"), &tensors, &[]).unwrap();
        let mut resources = Resources::default();
        resources.insert(Folders::new(&Dirs::under(base)));
        Cx::detached(Arc::new(resources))
    }

    #[test]
    fn pictures_are_enlarged_and_files_of_other_kinds_refused() {
        let base = tempfile::tempdir().unwrap();
        let cx = place(base.path());
        let model = load_upscaler(&cx, "x4.safetensors", &LoadOptions::default()).unwrap();
        assert_eq!((model.facts().kind, model.facts().scale), ("ESRGAN", 4));
        // With opacity, which the network does not know.
        let picture = Tensor::from_fn([1, 40, 52, 4], |i| (i as f32 * 0.37).sin().abs()).unwrap();
        let node = ImageUpscaleWithModel {
            upscale_model: model.clone(),
            image: Image(picture.clone()),
        };
        let out = node.run(&cx).unwrap();
        let out = match out.slots {
            Slots::Values(mut values) => Image::from_value(values.remove(0)).unwrap().0,
            other => panic!("{other:?}"),
        };
        assert_eq!(out.shape(), [1, 160, 208, 3]);
        assert!(out.data().iter().all(|v| (0.0..=1.0).contains(v)));
        let planes = picture.narrow(3, 0, 3).unwrap().nhwc_to_nchw().unwrap();
        let whole = model.network.get().unwrap().enlarge(&planes).unwrap();
        assert_eq!(out, whole.nchw_to_nhwc().unwrap());
        // In tiles it is nearly the same.
        let tiled = enlarged(&cx, &model, &planes, 36).unwrap();
        let far = |a: &f32, b: &f32| (a - b).abs();
        let worst = tiled
            .data()
            .iter()
            .zip(whole.data())
            .map(|(a, b)| far(a, b));
        assert!(worst.fold(0.0, f32::max) < 0.2);
        let grey = ImageUpscaleWithModel {
            upscale_model: model,
            image: Image(Tensor::zeros([1, 4, 4, 1]).unwrap()),
        };
        assert!(
            grey.run(&cx)
                .err()
                .unwrap()
                .message()
                .contains("3 channels")
        );
        let other = base.path().join("models/upscale_models/other.safetensors");
        let one = Tensor::zeros([2, 2]).unwrap();
        write(&other, &[("lora_unet_x.lora_down.weight", &one)], &[]).unwrap();
        let said = load_upscaler(&cx, "other.safetensors", &LoadOptions::default());
        let said = said.err().unwrap().message().to_owned();
        assert!(said.contains("a LoRA, not an upscale model"), "{said}");
    }
}
