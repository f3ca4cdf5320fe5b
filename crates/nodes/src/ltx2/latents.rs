//! Latents of videos and of their sound: joined, taken apart, made larger, begun with a picture.

use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output, Value};
use fresco_models::denoise::Guidance;
use fresco_tensor::Tensor;

use crate::latent_upscale::LatentUpscaleModel;
use crate::sampling::run::{Guided, failure};
use crate::sampling::{Guider, Model};
use crate::types::{Conditioning, Image, Latent, Nested, tensor};
use crate::vae::{Vae, fit};

const MASK: &str = "noise_mask";

/// Joins a video and its sound to one latent, which is sampled as one.
#[derive(Node)]
#[node(
    id = "LTXVConcatAVLatent",
    v3,
    module = "comfy_extras.nodes_lt",
    display = "Concat AV Latent",
    category = "latent/video/ltxv",
    outputs(Output::new("LATENT").named("latent"))
)]
pub(super) struct LtxvConcatAvLatent {
    /// The latent of the pictures.
    video_latent: Latent,
    /// The latent of the sound.
    audio_latent: Latent,
}

impl Node for LtxvConcatAvLatent {
    fn run(self, _: &Cx) -> NodeResult {
        let video = self.video_latent.samples()?.clone();
        let sound = self.audio_latent.samples()?.clone();
        let mut joined = (*self.video_latent.0).clone();
        for (key, value) in &*self.audio_latent.0 {
            joined.insert(key.clone(), value.clone());
        }
        let masks = [&self.video_latent, &self.audio_latent].map(|latent| latent.tensor(MASK));
        let mut latent = Latent(Arc::new(joined)).without(MASK);
        if masks.iter().any(Option::is_some) {
            let whole = |mask: Option<&Tensor>, of: &Tensor| -> Result<Tensor, NodeError> {
                Ok(match mask {
                    Some(mask) => mask.clone(),
                    None => Tensor::ones(of.shape())?,
                })
            };
            let masks = vec![whole(masks[0], &video)?, whole(masks[1], &sound)?];
            latent = latent.with(MASK, Value::object(Nested(masks)));
        }
        let parts = Value::object(Nested(vec![video, sound]));
        Ok(NodeOutput::one(latent.with("samples", parts)))
    }
}

/// Takes a video and its sound apart.
#[derive(Node)]
#[node(
    id = "LTXVSeparateAVLatent",
    v3,
    module = "comfy_extras.nodes_lt",
    display = "Separate AV Latent",
    category = "latent/video/ltxv",
    outputs(
        Output::new("LATENT").named("video_latent"),
        Output::new("LATENT").named("audio_latent")
    )
)]
pub(super) struct LtxvSeparateAvLatent {
    /// The latent of both.
    av_latent: Latent,
}

impl Node for LtxvSeparateAvLatent {
    fn run(self, _: &Cx) -> NodeResult {
        let Some([video, sound]) = self.av_latent.parts() else {
            return Err(NodeError::value_error(
                "this latent is not a video together with its sound: there is nothing to take apart",
            ));
        };
        let masks = self.av_latent.parts_of(MASK);
        let part = |samples: &Tensor, at: usize| -> Value {
            let mut latent = self.av_latent.clone();
            latent = match masks.and_then(|masks| masks.get(at)) {
                Some(mask) => latent.with(MASK, tensor(mask.clone())),
                None => latent.without(MASK),
            };
            latent.with("samples", tensor(samples.clone())).into()
        };
        Ok(NodeOutput::slots(vec![part(video, 0), part(sound, 1)]))
    }
}

const MEANS: &str = "per_channel_statistics.mean-of-means";
const DEVIATIONS: &str = "per_channel_statistics.std-of-means";

/// Means and deviations of the channels of a VAE's latents, as (1, c, 1, 1, 1).
fn measures(vae: &Vae) -> Result<[Tensor; 2], NodeError> {
    let store = vae.0.store();
    let store = store.filter(|store| store.has(MEANS) && store.has(DEVIATIONS));
    let store = store.ok_or_else(|| {
        NodeError::value_error(
            "this VAE has no means of its latents: connect the VAE of the LTX model",
        )
    })?;
    let one = |key: &str| -> Result<Tensor, NodeError> {
        let value = store.tensor(key).map_err(failure)?;
        Ok(value.reshape([1, value.len(), 1, 1, 1])?)
    };
    Ok([one(MEANS)?, one(DEVIATIONS)?])
}

/// Makes the latent of a video larger with a model.
#[derive(Node)]
#[node(
    id = "LTXVLatentUpsampler",
    v3,
    module = "comfy_extras.nodes_lt_upsampler",
    display = "LTXVLatentUpsampler",
    category = "latent/video",
    outputs("LATENT")
)]
pub(super) struct LtxvLatentUpsampler {
    samples: Latent,
    /// The model that makes latents larger.
    upscale_model: LatentUpscaleModel,
    vae: Vae,
}

impl Node for LtxvLatentUpsampler {
    fn run(self, cx: &Cx) -> NodeResult {
        let samples = self.samples.samples()?;
        let [means, deviations] = measures(&self.vae)?;
        let channels = self.upscale_model.channels();
        if samples.rank() != 5 || samples.dim(1)? != channels || means.dim(1)? != channels {
            return Err(NodeError::value_error(format!(
                "this model enlarges latents of videos with {channels} channels, but this one has shape {:?} and the VAE {} \
                 channels",
                samples.shape(),
                means.dim(1)?
            )));
        }
        let plain = samples.mul(&deviations)?.add(&means)?;
        let made = self.upscale_model.run(&plain, cx)?;
        let made = made.sub(&means)?.div(&deviations)?;
        let latent = self.samples.without(MASK);
        Ok(NodeOutput::one(latent.with_tensor("samples", made)))
    }
}

/// Puts a picture over the first frames of a video that is about to be made.
#[derive(Node)]
#[node(
    id = "LTXVImgToVideoInplace",
    v3,
    module = "comfy_extras.nodes_lt",
    display = "LTXVImgToVideoInplace",
    category = "conditioning/video_models",
    outputs(Output::new("LATENT").named("latent"))
)]
pub(super) struct LtxvImgToVideoInplace {
    vae: Vae,
    image: Image,
    latent: Latent,
    /// How closely the video keeps to the picture.
    #[input(default = 1.0, min = 0.0, max = 1.0)]
    strength: f64,
    /// On: the latent stays as it is.
    #[input(default = false)]
    bypass: bool,
}

impl Node for LtxvImgToVideoInplace {
    fn run(self, cx: &Cx) -> NodeResult {
        if self.bypass {
            return Ok(NodeOutput::one(self.latent));
        }
        let mut samples = self.latent.samples()?.clone();
        let &[batch, channels, frames, h, w] = samples.shape() else {
            return Err(NodeError::value_error(format!(
                "a picture is put over the latent of a video, which has five dimensions, not over shape {:?}",
                samples.shape()
            )));
        };
        let ratio = self.vae.ratio()?;
        let pixels = fit(&self.image.0, w * ratio, h * ratio)?;
        let encoded = self.vae.encode_rgb(&pixels, cx)?;
        let fits = matches!(*encoded.shape(), [_, c, n, eh, ew]
            if c == channels && n <= frames && (eh, ew) == (h, w));
        if !fits {
            return Err(NodeError::value_error(format!(
                "the picture makes a latent of shape {:?}, which does not fit into {:?}: is the VAE that of the model?",
                encoded.shape(),
                samples.shape()
            )));
        }
        let held = encoded.dim(2)?;
        let one = encoded.narrow(0, 0, 1)?;
        for item in 0..batch {
            samples.paste(&[item, 0, 0, 0, 0], &one)?;
        }
        let mut mask = match self.latent.tensor(MASK) {
            Some(mask) if mask.rank() == 5 && mask.dim(2)? == frames => mask.clone(),
            _ => Tensor::ones([batch, 1, frames, 1, 1])?,
        };
        let mut shape = mask.shape().to_vec();
        shape[2] = held;
        let part = Tensor::full(shape, (1.0 - self.strength) as f32)?;
        mask.paste(&[0; 5], &part)?;
        let latent = Latent::new(samples).with_tensor(MASK, mask);
        Ok(NodeOutput::one(latent))
    }
}

/// Guides a video and its sound towards one prompt and away from another, each with its own strength.
#[derive(Node)]
#[node(
    id = "LTXVDualCFGGuider",
    v3,
    module = "comfy_extras.nodes_lt",
    display = "LTXV Dual CFG Guider",
    category = "sampling/custom_sampling/guiders",
    outputs("GUIDER")
)]
pub(super) struct LtxvDualCfgGuider {
    model: Model,
    positive: Conditioning,
    negative: Conditioning,
    /// How closely the pictures follow the prompt; 1 ignores the negative prompt.
    #[input(default = 3.0, min = 0.0, max = 100.0)]
    video_cfg: f64,
    /// How closely the sound follows the prompt; 1 ignores the negative prompt.
    #[input(default = 7.0, min = 0.0, max = 100.0)]
    audio_cfg: f64,
}

impl Node for LtxvDualCfgGuider {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(Guider(Guided {
            model: self.model,
            guidance: Guidance::Parts {
                first: self.video_cfg,
                beside: self.audio_cfg,
            },
            lists: vec![("positive", self.positive), ("negative", self.negative)],
            negative: None,
            own: None,
        })))
    }
}
