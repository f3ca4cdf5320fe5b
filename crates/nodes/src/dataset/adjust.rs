//! One picture at a time: size, cut, brightness.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output};
use fresco_tensor::{Generator, Tensor};

use super::Picture;
use crate::types::Image;

/// `side * edge / other`, cut off, as the reference computes it in double precision.
fn scaled(side: usize, edge: usize, other: usize) -> Result<usize, NodeError> {
    let ratio = edge as f64 / other as f64;
    let size = (side as f64 * ratio) as usize;
    if size == 0 || size > 1 << 20 {
        return Err(NodeError::value_error(
            "height and width must be > 0 and not absurd",
        ));
    }
    Ok(size)
}

/// Resizes each picture so that its shorter edge has the given length.
#[derive(Node)]
#[node(id = "ResizeImagesByShorterEdge", v3, module = "comfy_extras.nodes_dataset",
       display = "Resize Images by Shorter Edge", category = "dataset/image",
       outputs(Output::new("IMAGE").named("images")), experimental)]
pub(super) struct ResizeImagesByShorterEdge {
    images: Image,
    /// Length of the shorter edge in pixels.
    #[input(default = 512, min = 1, max = 8192)]
    shorter_edge: usize,
}

impl Node for ResizeImagesByShorterEdge {
    fn run(self, _: &Cx) -> NodeResult {
        let picture = Picture::only(&self.images.0)?;
        let (w, h, edge) = (picture.width, picture.height, self.shorter_edge);
        let (w, h) = if w < h {
            (edge, scaled(h, edge, w)?)
        } else {
            (scaled(w, edge, h)?, edge)
        };
        Ok(NodeOutput::one(Image(picture.resize(w, h)?.tensor()?)))
    }
}

/// Resizes each picture so that its longer edge has the given length.
#[derive(Node)]
#[node(id = "ResizeImagesByLongerEdge", v3, module = "comfy_extras.nodes_dataset",
       display = "Resize Images by Longer Edge", category = "dataset/image",
       outputs(Output::new("IMAGE").named("images")), experimental)]
pub(super) struct ResizeImagesByLongerEdge {
    images: Image,
    /// Length of the longer edge in pixels.
    #[input(default = 1024, min = 1, max = 8192)]
    longer_edge: usize,
}

impl Node for ResizeImagesByLongerEdge {
    fn run(self, cx: &Cx) -> NodeResult {
        let [count, h, w, _] = self.images.0.dims4()?;
        let edge = self.longer_edge;
        let (w, h) = if w > h {
            (edge, scaled(h, edge, w)?)
        } else {
            (scaled(w, edge, h)?, edge)
        };
        let mut resized = Vec::with_capacity(count);
        for i in 0..count {
            cx.check_interrupt()?;
            let picture = Picture::only(&self.images.0.narrow(0, i, 1)?)?;
            resized.push(picture.resize(w, h)?.tensor()?);
        }
        let all: Vec<&Tensor> = resized.iter().collect();
        Ok(NodeOutput::one(Image(Tensor::cat(&all, 0)?)))
    }
}

/// Cuts the middle out of each picture.
#[derive(Node)]
#[node(id = "CenterCropImages", v3, module = "comfy_extras.nodes_dataset", display = "Center Crop Images",
       category = "dataset/image", outputs(Output::new("IMAGE").named("images")), experimental)]
pub(super) struct CenterCropImages {
    images: Image,
    #[input(default = 512, min = 1, max = 8192)]
    width: usize,
    #[input(default = 512, min = 1, max = 8192)]
    height: usize,
}

impl Node for CenterCropImages {
    fn run(self, _: &Cx) -> NodeResult {
        let picture = Picture::only(&self.images.0)?;
        let left = picture.width.saturating_sub(self.width) / 2;
        let top = picture.height.saturating_sub(self.height) / 2;
        let (w, h) = (
            self.width.min(picture.width - left),
            self.height.min(picture.height - top),
        );
        let cut = picture.crop(left, top, w, h)?;
        Ok(NodeOutput::one(Image(cut.tensor()?)))
    }
}

/// Cuts a part at a random place out of each picture.
#[derive(Node)]
#[node(id = "RandomCropImages", v3, module = "comfy_extras.nodes_dataset", display = "Random Crop Images",
       category = "dataset/image", outputs(Output::new("IMAGE").named("images")), experimental)]
pub(super) struct RandomCropImages {
    images: Image,
    #[input(default = 512, min = 1, max = 8192)]
    width: usize,
    #[input(default = 512, min = 1, max = 8192)]
    height: usize,
    /// The same number gives the same place.
    #[input(default = 0, min = 0, max = 18446744073709551615u64)]
    seed: u64,
}

impl Node for RandomCropImages {
    fn run(self, _: &Cx) -> NodeResult {
        let picture = Picture::only(&self.images.0)?;
        let mut random = Generator::numpy(self.seed);
        let mut place = |have: usize, want: usize| {
            let spare = u32::try_from(have.saturating_sub(want)).unwrap_or(u32::MAX - 1);
            random.numpy_below(spare + 1) as usize
        };
        let left = place(picture.width, self.width);
        let top = place(picture.height, self.height);
        let (w, h) = (
            self.width.min(picture.width - left),
            self.height.min(picture.height - top),
        );
        let cut = picture.crop(left, top, w, h)?;
        Ok(NodeOutput::one(Image(cut.tensor()?)))
    }
}

/// Subtracts a mean and divides by a spread.
#[derive(Node)]
#[node(id = "NormalizeImages", v3, module = "comfy_extras.nodes_dataset", display = "Normalize Images",
       category = "dataset/image", outputs(Output::new("IMAGE").named("images")), experimental)]
pub(super) struct NormalizeImages {
    images: Image,
    /// The value that becomes 0.
    #[input(default = 0.5, min = 0.0, max = 1.0)]
    mean: f64,
    /// The spread that becomes 1.
    #[input(default = 0.5, min = 0.001, max = 1.0)]
    std: f64,
}

impl Node for NormalizeImages {
    fn run(self, _: &Cx) -> NodeResult {
        let (mean, std) = (self.mean as f32, self.std as f32);
        let image = self.images.0.map(|v| (v - mean) / std);
        Ok(NodeOutput::one(Image(image)))
    }
}

/// Multiplies all values.
#[derive(Node)]
#[node(id = "AdjustBrightness", v3, module = "comfy_extras.nodes_dataset", display = "Adjust Brightness",
       category = "dataset/image", outputs(Output::new("IMAGE").named("images")), experimental)]
pub(super) struct AdjustBrightness {
    images: Image,
    /// Below 1 darkens, above 1 brightens.
    #[input(default = 1.0, min = 0.0, max = 2.0)]
    factor: f64,
}

impl Node for AdjustBrightness {
    fn run(self, _: &Cx) -> NodeResult {
        let factor = self.factor as f32;
        let image = self.images.0.map(|v| (v * factor).clamp(0.0, 1.0));
        Ok(NodeOutput::one(Image(image)))
    }
}

/// Moves values away from the middle grey, or towards it.
#[derive(Node)]
#[node(id = "AdjustContrast", v3, module = "comfy_extras.nodes_dataset", display = "Adjust Contrast",
       category = "dataset/image", outputs(Output::new("IMAGE").named("images")), experimental)]
pub(super) struct AdjustContrast {
    images: Image,
    /// Below 1 flattens, above 1 sharpens the differences.
    #[input(default = 1.0, min = 0.0, max = 2.0)]
    factor: f64,
}

impl Node for AdjustContrast {
    fn run(self, _: &Cx) -> NodeResult {
        let factor = self.factor as f32;
        let image = self
            .images
            .0
            .map(|v| ((v - 0.5) * factor + 0.5).clamp(0.0, 1.0));
        Ok(NodeOutput::one(Image(image)))
    }
}
