//! Patches that steer Qwen-Image with a picture.

use std::any::Any;
use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_memory::Handle;
use fresco_models::qwen_image::patch::{BlockControl, KIND, PatchConfig, steers};
use fresco_tensor::{Crop, ResizeMethod, Tensor, common_upscale, resize_to_batch};

use super::{LastMade, ModelPatch, PictureControl, ZImageFunControlnet, kept_planes};
use crate::sampling::Model;
use crate::sampling::model::ModelAddition;
use crate::types::{Image, Mask};
use crate::vae::{Vae, fit_by};

/// Steers Qwen-Image with a picture, or lets it paint into one.
#[derive(Node)]
#[node(
    id = "QwenImageDiffsynthControlnet",
    v1,
    module = "comfy_extras.nodes_model_patch",
    category = "advanced/loaders/qwen",
    outputs("MODEL"),
    experimental
)]
pub(super) struct QwenImageDiffsynthControlnet {
    model: Model,
    model_patch: ModelPatch,
    vae: Vae,
    /// The hint: edges, depth, a pose; or the picture to paint into.
    image: Image,
    #[input(default = 1.0, min = -10.0, max = 10.0, step = 0.01)]
    strength: f64,
    /// Where to paint.
    #[input(optional)]
    mask: Option<Mask>,
}

impl Node for QwenImageDiffsynthControlnet {
    fn run(self, cx: &Cx) -> NodeResult {
        // Workflows older than the node of Z-Image have this one with its patches.
        if self.model_patch.is::<PictureControl>() {
            let node = ZImageFunControlnet {
                model: self.model,
                model_patch: self.model_patch,
                vae: self.vae,
                strength: self.strength,
                image: Some(self.image),
                inpaint_image: None,
                mask: self.mask,
            };
            return node.run(cx);
        }
        let config: &PatchConfig = self.model_patch.config(KIND)?;
        let mut model = self.model;
        if !model.base.store().is_some_and(|store| steers(store)) {
            return Err(NodeError::value_error(format!(
                "{} is {KIND}, and {} is no such model",
                self.model_patch.name,
                model.base.name()
            )));
        }
        let channels = self.vae.0.latent_channels();
        let masks = config.mask_channels(channels);
        if config.hint != channels + masks || masks > 1 {
            return Err(NodeError::value_error(format!(
                "{} sees {} channels, which cannot be made of latents with {channels}: the VAE is of another family of \
                 models",
                self.model_patch.name, config.hint
            )));
        }
        let [_, _, _, colours] = self.image.0.dims4()?;
        model.additions.push(Arc::new(AppliedPatch {
            patch: self.model_patch,
            vae: self.vae,
            strength: self.strength as f32,
            image: self.image.0.narrow(3, 0, colours.min(3))?,
            masked: masks == 1,
            mask: self.mask.map(|mask| kept_planes(&mask.0)).transpose()?,
            made: LastMade::default(),
        }));
        Ok(NodeOutput::one(model))
    }
}

/// A patch on a model.
struct AppliedPatch {
    patch: ModelPatch,
    vae: Vae,
    strength: f32,
    image: Tensor,
    /// Whether the hint has a mask.
    masked: bool,
    /// 1 where the picture stays.
    mask: Option<Tensor>,
    /// Hints.
    made: LastMade,
}

impl AppliedPatch {
    /// The hint for a run over latents of so many rows and columns.
    fn hint(&self, (rows, columns): (usize, usize), cx: &Cx) -> Result<Tensor, NodeError> {
        let ratio = self.vae.ratio()?;
        let (height, width) = (rows * ratio, columns * ratio);
        let [_, h, w, _] = self.image.dims4()?;
        let image = if (h, w) == (height, width) {
            self.image.clone()
        } else {
            fit_by(&self.image, width, height, ResizeMethod::Area, Crop::Center)?
        };
        let latent = self.vae.encode_rgb(&image, cx)?;
        let latent = match latent.rank() {
            4 => latent.unsqueeze(2)?,
            _ => latent,
        };
        if !self.masked {
            return Ok(latent);
        }
        let &[count, _, frames, rows, columns] = latent.shape() else {
            return Err(NodeError::value_error("the VAE makes no latents of videos"));
        };
        let plane = match &self.mask {
            None => Tensor::ones([1, 1, rows, columns])?,
            Some(mask) => {
                common_upscale(mask, columns, rows, ResizeMethod::Bilinear, Crop::Disabled)?
            }
        };
        let plane = resize_to_batch(&plane, count)?.unsqueeze(2)?;
        let plane = plane.expand(&[count, 1, frames, rows, columns])?;
        Ok(Tensor::cat(&[&latent, &plane], 1)?)
    }
}

impl ModelAddition for AppliedPatch {
    fn handle(&self) -> Option<&Handle> {
        self.patch.handle()
    }

    fn for_run(
        &self,
        _: &Model,
        shape: &[usize],
        cx: &Cx,
    ) -> Result<Arc<dyn Any + Send + Sync>, NodeError> {
        let &[_, _, _, rows, columns] = shape else {
            return Err(NodeError::value_error(format!(
                "a patch of this kind cannot steer latents of shape {shape:?}"
            )));
        };
        let size = (rows, columns);
        let hint = self.made.of(size, || self.hint(size, cx))?;
        Ok(Arc::new(BlockControl {
            network: Arc::clone(&self.patch.network),
            hint,
            strength: self.strength,
        }))
    }
}
