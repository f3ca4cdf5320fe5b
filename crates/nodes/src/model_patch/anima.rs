//! Control nets of Anima that act inside its layers.

use std::any::Any;
use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_memory::Handle;
use fresco_models::anima::lite::{CELL, KIND, LiteConfig, LiteControl, steers};
use fresco_tensor::{Crop, ResizeMethod, Tensor, common_upscale};

use super::{LastMade, ModelPatch, mask_planes};
use crate::sampling::Model;
use crate::sampling::model::ModelAddition;
use crate::types::{Image, Mask};

/// Steers Anima with a picture, or lets it paint into one.
#[derive(Node)]
#[node(
    id = "AnimaLLLiteApply",
    display = "Apply Anima LLLite",
    module = "comfy_extras.nodes_model_patch",
    category = "advanced/loaders/anima",
    outputs("MODEL")
)]
pub(super) struct AnimaLLLiteApply {
    model: Model,
    model_patch: ModelPatch,
    /// What the control net was made for: lines, edges, depth; or the picture to paint into. Of several the first counts.
    image: Image,
    #[input(default = 1.0, min = -10.0, max = 10.0, step = 0.01)]
    strength: f64,
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.001)]
    start_percent: f64,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.001)]
    end_percent: f64,
    /// Where to paint, for control nets that paint.
    #[input(optional)]
    mask: Option<Mask>,
}

impl Node for AnimaLLLiteApply {
    fn run(self, _: &Cx) -> NodeResult {
        let config: &LiteConfig = self.model_patch.config(KIND)?;
        let mut model = self.model;
        if !model.base.store().is_some_and(|store| steers(store)) {
            return Err(NodeError::value_error(format!(
                "{} is {KIND}, and {} is no such model",
                self.model_patch.name(),
                model.base.name()
            )));
        }
        if config.paints() && self.mask.is_none() {
            return Err(NodeError::value_error(format!(
                "{} paints into a picture: connect a mask that says where",
                self.model_patch.name()
            )));
        }
        let image = first_of(&self.image.0.permute(&[0, 3, 1, 2])?)?;
        let colours = image.dim(1)?;
        if colours < 3 {
            let reason = format!("the picture has {colours} channels in place of three colours");
            return Err(NodeError::value_error(reason));
        }
        let mask = self.mask.filter(|_| config.paints());
        let mask = mask
            .map(|mask| first_of(&mask_planes(&mask.0)?))
            .transpose()?;
        model.additions.push(Arc::new(AppliedPatch {
            mask,
            masked: config.masked,
            patch: self.model_patch,
            image: image.narrow(1, 0, 3)?,
            strength: self.strength as f32,
            percents: (self.start_percent, self.end_percent),
            made: LastMade::default(),
        }));
        Ok(NodeOutput::one(model))
    }
}

fn first_of(list: &Tensor) -> Result<Tensor, NodeError> {
    if list.dim(0)? == 0 {
        return Err(NodeError::value_error("there is no picture"));
    }
    Ok(list.narrow(0, 0, 1)?)
}

/// A control net on a model.
struct AppliedPatch {
    patch: ModelPatch,
    /// (1, 3, h, w)
    image: Tensor,
    mask: Option<Tensor>,
    /// Whether the picture is grey where it is painted in.
    masked: bool,
    strength: f32,
    percents: (f64, f64),
    /// Pictures.
    made: LastMade,
}

impl AppliedPatch {
    /// The picture (1, h, w, channels) in -1..1 at the size of a run.
    fn picture(&self, (width, height): (usize, usize)) -> Result<Tensor, NodeError> {
        let sized = |x: &Tensor, method| -> Result<Tensor, NodeError> {
            if x.shape()[2..] == [height, width] {
                return Ok(x.clone());
            }
            Ok(common_upscale(x, width, height, method, Crop::Disabled)?)
        };
        let image = sized(&self.image, ResizeMethod::Bicubic)?;
        let mut image = image.map(|v| v.clamp(0.0, 1.0) * 2.0 - 1.0);
        if let Some(mask) = &self.mask {
            let mask = sized(mask, ResizeMethod::NearestExact)?;
            let painted = mask.map(|v| if v >= 0.5 { 1.0 } else { 0.0 });
            if self.masked {
                image = image.mul(&painted.rsub_scalar(1.0))?;
            }
            image = Tensor::cat(&[&image, &painted.map(|v| v * 2.0 - 1.0)], 1)?;
        }
        Ok(image.permute(&[0, 2, 3, 1])?)
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
        _: &Cx,
    ) -> Result<Arc<dyn Any + Send + Sync>, NodeError> {
        let &[_, _, 1, rows, columns] = shape else {
            return Err(NodeError::value_error(format!(
                "{} steers pictures, and not latents of shape {shape:?}",
                self.patch.name()
            )));
        };
        // Two cells of a latent along each side are a token.
        let side = |cells: usize| cells.div_ceil(2) * CELL;
        let size = (side(columns), side(rows));
        let picture = self.made.of(size, || self.picture(size))?;
        let (start, end) = self.percents;
        Ok(Arc::new(LiteControl {
            network: Arc::clone(self.patch.network()),
            picture,
            strength: self.strength,
            from: model.sampling.percent_to_sigma(start),
            to: model.sampling.percent_to_sigma(end),
        }))
    }
}
