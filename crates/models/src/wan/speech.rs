//! Videos of people who speak: each frame sees a window of the sound's features.

use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask};
use fresco_tensor::{Device, Tensor};

use super::blocks::{EPS, attention};
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::store::Walk;
use crate::transformer::{Attention, Looks, Rotation, Shapes};

const NORM_EPS: f32 = 1e-5;

/// Channels beside the latent of larger networks: a mask and a picture.
pub(super) const BESIDE: usize = 20;
/// Channels of the mask.
pub(super) const MASK: usize = 4;

/// The latent of nothing, by channel: of the first frame, of the second, of all later ones.
#[rustfmt::skip]
pub(super) const NOTHING: [[f32; 16]; 3] = [
    [0.8660, -0.4326, -0.0017, -0.4884, -0.5283, 0.9207, -0.9896, 0.4433,
     -0.5543, -0.0113, 0.5753, -0.6000, -0.8346, -0.3497, -0.1926, -0.6938],
    [1.0869, -1.2370, 0.0206, -0.4357, -0.6411, 2.0307, -1.5972, 1.2659,
     -0.8595, -0.4654, 0.9638, -1.6330, -1.4310, -0.1098, -0.3856, -1.4583],
    [0.8642, -1.8583, 0.1577, 0.1350, -0.3641, 2.5863, -1.9670, 1.6065,
     -1.0475, -0.8678, 1.1734, -1.8138, -1.5933, -0.7721, -0.3289, -1.3745],
];

/// What a network that follows speech has more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeechConfig {
    /// Values of a frame's window.
    pub input: usize,
    pub inner: usize,
    /// Tokens that become of it, and their width.
    pub tokens: usize,
    pub width: usize,
}

impl SpeechConfig {
    pub(super) fn detect(shapes: Shapes<'_>) -> Result<Self> {
        let place = "audio_proj.audio_proj_glob";
        let (inner, input) = shapes.matrix(&format!("{place}_1.layer.weight"))?;
        let (values, _) = shapes.matrix(&format!("{place}_3.layer.weight"))?;
        let width = shapes.vector(&format!("{place}_norm.layer.weight"))?;
        if !values.is_multiple_of(width) {
            let reason = format!("{values} values are no tokens of width {width}");
            return Err(shapes.unsupported(reason));
        }
        Ok(Self {
            input,
            inner,
            tokens: values / width,
            width,
        })
    }
}

/// Windows of features as tokens.
pub(super) struct Speech {
    config: SpeechConfig,
    layers: [Arc<Linear>; 3],
    norm: Arc<LayerNorm>,
}

impl Speech {
    pub(super) fn new(weights: &Walk<'_>, config: SpeechConfig) -> Result<Self> {
        let SpeechConfig {
            input,
            inner,
            tokens,
            width,
        } = config;
        let layer = |number: usize, out: usize, input: usize| {
            weights.linear(&format!("audio_proj_glob_{number}.layer"), out, input)
        };
        Ok(Self {
            config,
            layers: [
                layer(1, inner, input)?,
                layer(2, inner, inner)?,
                layer(3, tokens * width, inner)?,
            ],
            norm: weights.layer_norm("audio_proj_glob_norm.layer", width, NORM_EPS)?,
        })
    }

    /// Windows (b, frames, ..) as (b * frames, tokens, width); frames of references hear nothing.
    pub(super) fn tokens(
        &self,
        windows: &Tensor,
        frames: usize,
        references: usize,
        device: &Device,
    ) -> Result<Tensor> {
        let SpeechConfig {
            input,
            tokens,
            width,
            ..
        } = self.config;
        let shape = windows.shape();
        let each: usize = shape.iter().skip(2).product();
        if shape.len() < 3 || each != input || shape[1] < frames {
            let reason = format!(
                "windows of shape {shape:?} for {frames} latent frames of {input} values each"
            );
            return Err(ModelError::invalid("audio_embed", reason));
        }
        let b = shape[0];
        let windows = windows.narrow(1, 0, frames)?.reshape([b, frames, input])?;
        let nothing = Tensor::zeros([b, references, input])?;
        let all = Tensor::cat(&[&windows, &nothing], 1)?;
        let rows = all.reshape([b * (frames + references), input])?;
        let relu = then(Act::Relu);
        let x = self.layers[0].forward_with(&rows.to(device)?, relu)?;
        let x = self.layers[1].forward_with(&x, relu)?;
        let x = self.layers[2].forward(&x)?;
        let x = x.reshape([b * (frames + references), tokens, width])?;
        Ok(self.norm.forward(&x)?)
    }
}

/// What a block hears.
pub(super) struct Hearing {
    norm: Arc<LayerNorm>,
    looks: Attention,
}

impl Hearing {
    pub(super) fn new(
        weights: &Walk<'_>,
        heads: usize,
        dim: usize,
        config: SpeechConfig,
    ) -> Result<Self> {
        let weights = weights.at("audio_cross_attn_wrapper");
        Ok(Self {
            norm: weights.layer_norm("norm1_audio", dim, EPS)?,
            looks: attention(
                &weights.at("audio_cross_attn"),
                heads,
                dim,
                Looks::Beside(config.width),
            )?,
        })
    }

    /// (b, n, dim) with what each frame hears, (b * frames, tokens, width).
    pub(super) fn forward(&self, x: Tensor, speech: &Tensor) -> Result<Tensor> {
        let (shape, width) = (x.shape().to_vec(), x.dims3()?[2]);
        let frames = speech.dim(0)?;
        let each = x.len() / (frames * width).max(1);
        let x = x.reshape([frames, each, width])?;
        let qkv = self.looks.qkv_to(&self.norm.forward(&x)?, speech)?;
        let seen = qkv.attend(Rotation::NONE, Mask::None)?;
        Ok(self.looks.add(&seen, &x)?.reshape(shape)?)
    }
}
