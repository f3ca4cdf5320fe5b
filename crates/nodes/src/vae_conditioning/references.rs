//! Pictures that an edit model refers to, several at once.

use std::sync::Arc;

use fresco_graph::{Cx, Grown, Input, Map, Node, NodeError, NodeOutput, NodeResult, Output, Value};
use fresco_tensor::{Crop, ResizeMethod, Tensor};

use crate::image::check_room;
use crate::types::{Conditioning, Image, Latent, tensor};
use crate::vae::{Vae, fit_by};

/// Sides of resized pictures are multiples of this, which every autoencoder and patch of these families divides.
const STEP: f64 = 16.0;

fn resolutions() -> Input {
    let megapixels = Input::new("megapixels", "FLOAT")
        .option("default", 1.0)
        .option("min", 0.01)
        .option("max", 16.0)
        .tooltip("Size of each picture in millions of pixels.");
    Input::dynamic_combo(
        "resolution",
        vec![
            ("keep resolution", Vec::new()),
            ("resize", vec![megapixels]),
        ],
    )
}

fn images() -> Input {
    Input::autogrow("images", Input::new("image", "IMAGE"), "image", 0, 10).optional()
}

/// Gives an edit model any number of pictures to refer to, and an empty latent of the first one's size.
#[derive(Node)]
#[node(
    id = "ReferenceMultiLatent",
    v3,
    module = "comfy_extras.nodes_edit_model",
    display = "Set Reference Multi Latent",
    category = "advanced/conditioning/edit_models",
    outputs(
        Output::new("CONDITIONING").named("positive"),
        Output::new("CONDITIONING").named("negative"),
        Output::new("LATENT").named("empty_latent")
    )
)]
pub(super) struct ReferenceMultiLatent {
    positive: Conditioning,
    /// As they are, or all of about so many pixels.
    #[input(spec = resolutions())]
    resolution: Arc<Map>,
    #[input(optional)]
    negative: Option<Conditioning>,
    /// Needed as soon as there are pictures.
    #[input(optional)]
    vae: Option<Vae>,
    /// The pictures to refer to; as many as are connected.
    #[input(spec = images())]
    images: Grown<Image>,
}

impl Node for ReferenceMultiLatent {
    fn run(self, cx: &Cx) -> NodeResult {
        if self.images.0.is_empty() {
            return Err(NodeError::value_error(
                "there is no picture to refer to: connect one, or leave the node out",
            ));
        }
        let vae = self.vae.ok_or_else(|| {
            NodeError::value_error("pictures to refer to need the VAE that encodes them")
        })?;
        let mut positive = self.positive;
        let mut negative = self.negative.unwrap_or(Conditioning(Vec::new()));
        let mut empty = None;
        for image in &self.images.0 {
            for i in 0..image.0.dim(0)? {
                cx.check_interrupt()?;
                let picture = resized(&image.0.narrow(0, i, 1)?, &self.resolution)?;
                let latent = vae.encode_rgb(&picture, cx)?;
                if empty.is_none() {
                    empty = Some(Tensor::zeros(latent.shape())?);
                }
                let latent = tensor(latent);
                positive = positive.append("reference_latents", latent.clone());
                negative = negative.append("reference_latents", latent);
            }
        }
        let empty = empty.ok_or_else(|| NodeError::value_error("the pictures are empty"))?;
        Ok(NodeOutput::slots(vec![
            positive.into(),
            negative.into(),
            Latent::new(empty).into(),
        ]))
    }
}

fn resized(picture: &Tensor, resolution: &Map) -> Result<Tensor, NodeError> {
    let word = resolution.get("resolution").and_then(Value::as_str);
    if word != Some("resize") {
        return Ok(picture.clone());
    }
    let megapixels = resolution.get("megapixels").and_then(Value::as_f64);
    let [_, h, w, _] = picture.dims4()?;
    let (width, height) = size(w, h, megapixels.unwrap_or(1.0))?;
    if (width, height) == (w, h) {
        return Ok(picture.clone());
    }
    check_room(&[1, height, width, 3])?;
    fit_by(picture, width, height, ResizeMethod::Lanczos, Crop::Center)
}

/// About so many pixels of the same ratio.
fn size(width: usize, height: usize, megapixels: f64) -> Result<(usize, usize), NodeError> {
    let pixels = width as f64 * height as f64;
    if pixels == 0.0 || !megapixels.is_finite() || megapixels <= 0.0 || megapixels > 1024.0 {
        return Err(NodeError::value_error(format!(
            "a picture of {width} x {height} cannot have {megapixels} million pixels"
        )));
    }
    let scale = (megapixels * 1_048_576.0 / pixels).sqrt();
    let side = |n: usize| ((n as f64 * scale / STEP).round_ties_even().max(1.0) * STEP) as usize;
    Ok((side(width), side(height)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_keep_the_ratio() {
        assert_eq!(size(2048, 1024, 1.0).unwrap(), (1456, 720));
        assert_eq!(size(1024, 1024, 1.0).unwrap(), (1024, 1024));
        assert_eq!(size(10000, 1, 0.01).unwrap(), (10240, 16));
        assert!(size(0, 5, 1.0).is_err());
        assert!(size(5, 5, f64::NAN).is_err());
    }
}
