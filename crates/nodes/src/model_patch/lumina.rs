//! Control nets of Z-Image.

use std::any::Any;
use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_memory::Handle;
pub(super) use fresco_models::lumina::control::ControlConfig as PictureControl;
use fresco_models::lumina::control::{FunControl, KIND, steers};
use fresco_tensor::{Crop, ResizeMethod, Tensor, common_upscale, resize_to_batch};

use super::{LastMade, ModelPatch, kept_planes};
use crate::sampling::Model;
use crate::sampling::model::ModelAddition;
use crate::types::{Image, Mask};
use crate::vae::{Vae, fit_by};

/// Steers Z-Image with a picture, or lets it paint into one.
#[derive(Node)]
#[node(
    id = "ZImageFunControlnet",
    v1,
    module = "comfy_extras.nodes_model_patch",
    category = "advanced/loaders/zimage",
    outputs("MODEL"),
    experimental
)]
pub(super) struct ZImageFunControlnet {
    pub(super) model: Model,
    pub(super) model_patch: ModelPatch,
    pub(super) vae: Vae,
    #[input(default = 1.0, min = -10.0, max = 10.0, step = 0.01)]
    pub(super) strength: f64,
    /// The hint: edges, depth, a pose.
    #[input(optional)]
    pub(super) image: Option<Image>,
    /// The picture to paint into.
    #[input(optional)]
    pub(super) inpaint_image: Option<Image>,
    /// Where to paint.
    #[input(optional)]
    pub(super) mask: Option<Mask>,
}

impl Node for ZImageFunControlnet {
    fn run(self, _: &Cx) -> NodeResult {
        let config: &PictureControl = self.model_patch.config(KIND)?;
        let mut model = self.model;
        if !model.base.store().is_some_and(|store| steers(store)) {
            return Err(NodeError::value_error(format!(
                "{} is {KIND}, and {} is no such model",
                self.model_patch.name,
                model.base.name()
            )));
        }
        let channels = self.vae.0.latent_channels();
        let inpaints = config.inpaints(channels);
        if !inpaints && config.channels != channels {
            return Err(NodeError::value_error(format!(
                "{} sees {} channels, which cannot be made of latents with {channels}: the VAE is of another family of \
                 models",
                self.model_patch.name, config.channels
            )));
        }
        let mask = self.mask.map(|mask| kept_planes(&mask.0)).transpose()?;
        model.additions.push(Arc::new(AppliedPatch {
            patch: self.model_patch,
            vae: self.vae,
            strength: self.strength as f32,
            image: self.image.map(|image| image.0),
            inpaint: inpaints.then_some(Inpainting {
                image: self.inpaint_image.map(|image| image.0),
                mask,
            }),
            made: LastMade::default(),
        }));
        Ok(NodeOutput::one(model))
    }
}

/// What nets see that paint in.
struct Inpainting {
    image: Option<Tensor>,
    /// 1 where the picture stays.
    mask: Option<Tensor>,
}

/// A control net on a model.
struct AppliedPatch {
    patch: ModelPatch,
    vae: Vae,
    strength: f32,
    image: Option<Tensor>,
    inpaint: Option<Inpainting>,
    /// Control latents.
    made: LastMade,
}

impl AppliedPatch {
    /// A picture at the size of the run, grey where there is none.
    fn picture(
        image: Option<&Tensor>,
        (height, width): (usize, usize),
    ) -> Result<Tensor, NodeError> {
        let Some(image) = image else {
            return Ok(Tensor::full([1, height, width, 3], 0.5)?);
        };
        let [_, h, w, channels] = image.dims4()?;
        let image = image.narrow(3, 0, channels.min(3))?;
        if (h, w) == (height, width) {
            return Ok(image);
        }
        fit_by(&image, width, height, ResizeMethod::Area, Crop::Center)
    }

    /// A picture as the network sees it.
    fn latent(&self, model: &Model, picture: &Tensor, cx: &Cx) -> Result<Tensor, NodeError> {
        let latent = self.vae.encode_rgb(picture, cx)?;
        Ok(model.process_latent_in(&latent)?)
    }

    /// The control latent for a run over latents of so many rows and columns.
    fn control(
        &self,
        model: &Model,
        (rows, columns): (usize, usize),
        cx: &Cx,
    ) -> Result<Tensor, NodeError> {
        let ratio = self.vae.ratio()?;
        let size = (rows * ratio, columns * ratio);
        let seen = Self::picture(self.image.as_ref(), size)?;
        let seen = self.latent(model, &seen, cx)?;
        let Some(inpaint) = &self.inpaint else {
            return Ok(seen);
        };
        let mut picture = Self::picture(inpaint.image.as_ref(), size)?;
        let count = picture.dim(0)?;
        let fitted = |mask: &Tensor, width, height, method| -> Result<Tensor, NodeError> {
            let mask = common_upscale(mask, width, height, method, Crop::Center)?;
            Ok(mask)
        };
        let plane = match &inpaint.mask {
            None => Tensor::zeros([1, 1, rows, columns])?,
            Some(mask) => {
                let stays = fitted(mask, size.1, size.0, ResizeMethod::Bilinear)?.round();
                let stays = resize_to_batch(&stays, count)?.nchw_to_nhwc()?;
                picture = picture.sub_scalar(0.5).mul(&stays)?.add_scalar(0.5);
                fitted(mask, columns, rows, ResizeMethod::NearestExact)?
            }
        };
        let picture = self.latent(model, &picture, cx)?;
        let most = [&seen, &plane, &picture].map(|part| part.shape()[0]);
        let most = most.into_iter().max().unwrap_or(1);
        let parts = [&seen, &plane, &picture].map(|part| resize_to_batch(part, most));
        let [seen, plane, picture] = parts;
        Ok(Tensor::cat(&[&seen?, &plane?, &picture?], 1)?)
    }
}

impl ModelAddition for AppliedPatch {
    fn handle(&self) -> Option<&Handle> {
        self.patch.handle()
    }

    fn for_run(
        &self,
        model: &Model,
        shape: &[usize],
        cx: &Cx,
    ) -> Result<Arc<dyn Any + Send + Sync>, NodeError> {
        let &[_, _, rows, columns] = shape else {
            return Err(NodeError::value_error(format!(
                "a control net for pictures cannot steer latents of shape {shape:?}"
            )));
        };
        let size = (rows, columns);
        let latent = self.made.of(size, || self.control(model, size, cx))?;
        Ok(Arc::new(FunControl {
            network: Arc::clone(&self.patch.network),
            latent,
            strength: self.strength,
        }))
    }
}
