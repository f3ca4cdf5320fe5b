//! The blocks, and what turns pictures and camera paths into something they take.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{
    Act, Conv2d, LayerNorm, Linear, Mask, RmsNorm, Value, activate, attention as attend,
};

use super::config::{CAMERA_CELL, CELLS, CameraConfig, PATCH, VisionConfig, WanConfig};
use super::speech::Hearing;
use super::talk::Talking;
use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::store::{Bias, Walk};
use crate::transformer::{
    AdaLn, Attention, AttentionLayers, HeadNorm, Heads, Looks, Mlp, MlpLayers, PatchOrder,
    QkvLayers, Rope, Rotation, TokenGrid, TokenRows, video_to_tokens,
};

pub(super) const EPS: f32 = 1e-6;

/// Queries, keys and values with a bias, normalised over all heads at once.
pub(super) fn attention(
    weights: &Walk<'_>,
    heads: usize,
    dim: usize,
    looks: Looks,
) -> Result<Attention> {
    let norm = HeadNorm::RmsOfAll(["norm_q.weight", "norm_k.weight"], EPS);
    let heads = Heads::new(heads, dim / heads.max(1), norm);
    let layers = AttentionLayers {
        looks,
        ..AttentionLayers::new(QkvLayers::Apart(["q", "k", "v"]), "o", dim, heads)
    };
    Attention::new(weights, &layers)
}

/// What tokens see of pictures, beside the prompt.
struct PictureKeys {
    k: Arc<Linear>,
    v: Arc<Linear>,
    norm: Arc<RmsNorm>,
}

/// The tokens that blocks look at besides those of the video.
pub(super) struct BlockContext {
    /// The prompt's tokens.
    pub(super) text: Tensor,
    /// Tokens of pictures; none where pictures are not looked at apart.
    pub(super) pictures: Option<Tensor>,
    /// For each frame, the tokens of a voice.
    pub(super) speech: Option<Tensor>,
    /// A network of its own that lets people speak.
    pub(super) talk: Option<Talking>,
}

/// How the noise level is told: rows for each item, or each frame of each item, or each token.
pub(super) struct Level {
    /// (rows, dim), for the end.
    pub(super) plain: Tensor,
    /// (rows, 6 * dim), for blocks.
    pub(super) blocks: Tensor,
    /// Tokens as (rows, tokens of a row, dim), and as (b, n, dim).
    pub(super) apart: [usize; 3],
    pub(super) joined: [usize; 3],
}

/// One block; those that follow a control video have matrices before and after.
pub(super) struct Block {
    modulation: AdaLn<6>,
    heads: usize,
    self_attn: Attention,
    norm3: Arc<LayerNorm>,
    cross_attn: Attention,
    pictures: Option<PictureKeys>,
    hearing: Option<Hearing>,
    ffn: Mlp,
    norm: LayerNorm,
    pub(super) before: Option<Arc<Linear>>,
    pub(super) after: Option<Arc<Linear>>,
}

impl Block {
    pub(super) fn new(weights: &Walk<'_>, config: &WanConfig) -> Result<Self> {
        let (dim, heads) = (config.dim, config.heads);
        let layers = MlpLayers::Plain(["0", "2"], Act::GeluTanh);
        let cross = weights.at("cross_attn");
        let pictures = config.vision.map(|_| -> Result<PictureKeys> {
            Ok(PictureKeys {
                k: cross.linear("k_img", dim, dim)?,
                v: cross.linear("v_img", dim, dim)?,
                norm: cross.rms_norm("norm_k_img.weight", dim, EPS)?,
            })
        });
        let hearing = config.speech;
        let hearing = hearing.map(|speech| Hearing::new(weights, heads, dim, speech));
        Ok(Self {
            modulation: AdaLn::table(weights, "modulation", &[1, 6, dim])?,
            heads,
            self_attn: attention(&weights.at("self_attn"), heads, dim, Looks::Own)?,
            norm3: weights.layer_norm("norm3", dim, EPS)?,
            cross_attn: attention(&cross, heads, dim, Looks::Prompt(dim))?,
            pictures: pictures.transpose()?,
            hearing: hearing.transpose()?,
            ffn: Mlp::new(&weights.at("ffn"), layers, (dim, config.ffn), Bias::With)?,
            norm: LayerNorm::new(None, None, EPS)?,
            before: None,
            after: None,
        })
    }

    /// One that follows a control video. The first of them takes the video's tokens in.
    pub(super) fn following(weights: &Walk<'_>, config: &WanConfig, first: bool) -> Result<Self> {
        let square = |name: &str| weights.linear(name, config.dim, config.dim);
        let plain = WanConfig {
            vision: None,
            ..config.clone()
        };
        Ok(Self {
            before: first.then(|| square("before_proj")).transpose()?,
            after: Some(square("after_proj")?),
            ..Self::new(weights, &plain)?
        })
    }

    /// Tokens as (rows of the noise level, tokens, dim) to the same. Blocks of the model itself have a number, and hear what
    /// people say.
    pub(super) fn forward(
        &self,
        number: Option<usize>,
        x: Tensor,
        level: &Level,
        beside: &BlockContext,
        rope: &Rope,
    ) -> Result<Tensor> {
        let parts = self.modulation.forward(&level.blocks)?;
        let [shift, scale, gate, shift_ffn, scale_ffn, gate_ffn] = parts;
        let talk = number.zip(beside.talk.as_ref());
        // A film's tokens are hundreds of megabytes: each value is dropped as soon as it has been used.
        let input = self
            .norm
            .modulated(&x, &shift, &scale)?
            .reshape(level.joined)?;
        let (seen, places) = self.look_around(input, rope, talk.map(|(_, talk)| talk))?;
        let mut x = self
            .self_attn
            .add_gated(&seen.reshape(level.apart)?, x, &gate)?;
        drop(seen);
        let input = self.norm3.forward(&x)?.reshape(level.joined)?;
        let seen = self.look_beside(input, beside)?;
        x = self.cross_attn.add(&seen.reshape(level.apart)?, &x)?;
        drop(seen);
        if let (Some(hearing), Some(speech)) = (&self.hearing, &beside.speech) {
            x = hearing.forward(x, speech)?;
        }
        if let Some((number, talk)) = talk {
            x = talk.hear(number, x, level.joined, self.heads, places.as_deref())?;
        }
        let rows = TokenRows::modulated(&self.norm, &x, &shift_ffn, &scale_ffn);
        let inner = self.ffn.inner(rows)?;
        self.ffn.add_gated(&inner, x, &gate_ffn)
    }

    /// What tokens see of each other, and where they are between people who speak.
    fn look_around(
        &self,
        x: Tensor,
        rope: &Rope,
        talk: Option<&Talking>,
    ) -> Result<(Tensor, Option<Vec<Vec<f64>>>)> {
        let qkv = self.self_attn.qkv(&x)?;
        drop(x);
        let Some(talk) = talk else {
            return Ok((qkv.attend(rope, Mask::None)?, None));
        };
        let [q, k, v] = qkv.heads(rope)?;
        let places = talk.places(&q, &k, self.heads)?;
        Ok((self.self_attn.attend([q, k, v], Mask::None)?, places))
    }

    fn look_beside(&self, x: Tensor, beside: &BlockContext) -> Result<Tensor> {
        let qkv = self.cross_attn.qkv_to(&x, &beside.text)?;
        drop(x);
        let Some(pictures) = &self.pictures else {
            return qkv.attend(Rotation::NONE, Mask::None);
        };
        let [q, k, v] = qkv.heads(Rotation::NONE)?;
        let seen = self.cross_attn.attend([q.clone(), k, v], Mask::None)?;
        // Without a picture the prompt is looked at twice.
        let from = beside.pictures.as_ref().unwrap_or(&beside.text);
        let k = pictures.norm.forward(&pictures.k.forward(from)?)?;
        let v = pictures.v.forward(from)?;
        Ok(seen.add(&attend(&q, &k, &v, self.heads, Mask::None, None)?)?)
    }
}

/// What a vision network saw, as tokens.
pub(super) struct Vision {
    places: Option<Arc<Value>>,
    norm: Arc<LayerNorm>,
    first: Arc<Linear>,
    second: Arc<Linear>,
    last: Arc<LayerNorm>,
}

impl Vision {
    pub(super) fn new(weights: &Walk<'_>, config: VisionConfig, dim: usize) -> Result<Self> {
        const NORM_EPS: f32 = 1e-5;
        let width = config.width;
        let places = config.places;
        let places = places.map(|count| weights.value("emb_pos", &[1, count, width]));
        let proj = weights.at("proj");
        Ok(Self {
            places: places.transpose()?,
            norm: proj.layer_norm("0", width, NORM_EPS)?,
            first: proj.linear("1", width, width)?,
            second: proj.linear("3", dim, width)?,
            last: proj.layer_norm("4", dim, NORM_EPS)?,
        })
    }

    /// (b, n, width) on the device to tokens.
    pub(super) fn forward(&self, states: &Tensor) -> Result<Tensor> {
        let mut x = states.clone();
        if let Some(places) = &self.places {
            let places = places.at(&x.device())?;
            let count = x.dim(1)?.min(places.dim(1)?);
            x = x.narrow(1, 0, count)?.add(&places.narrow(1, 0, count)?)?;
        }
        let x = self
            .first
            .forward_with(&self.norm.forward(&x)?, then(Act::Gelu))?;
        Ok(self.last.forward(&self.second.forward(&x)?)?)
    }
}

/// What turns a camera's path into something added to tokens.
pub(super) struct Camera {
    conv: Arc<Linear>,
    blocks: Vec<[Arc<Conv2d>; 2]>,
    dim: usize,
}

impl Camera {
    pub(super) fn new(weights: &Walk<'_>, config: CameraConfig, dim: usize) -> Result<Self> {
        let values = config.channels * CAMERA_CELL * CAMERA_CELL * CELLS;
        let block = |number: usize| -> Result<[Arc<Conv2d>; 2]> {
            let weights = weights.at("residual_blocks").at(number);
            Ok([
                weights.conv("conv1", dim, dim, 3, 1)?,
                weights.conv("conv2", dim, dim, 3, 1)?,
            ])
        };
        Ok(Self {
            conv: weights.linear("conv", dim, values)?,
            blocks: (0..config.blocks).map(block).collect::<Result<_>>()?,
            dim,
        })
    }

    /// The path (b, c, t, 8 * h, 8 * w) as (b, n, dim) on the device, for tokens of this grid.
    pub(super) fn forward(
        &self,
        path: &Tensor,
        grid: TokenGrid,
        device: &fresco_tensor::Device,
    ) -> Result<Tensor> {
        let &[b, c, t, high, wide] = path.shape() else {
            let reason = format!("{:?} is not the shape of a camera's path", path.shape());
            return Err(ModelError::invalid("camera_conditions", reason));
        };
        let (h, w) = (high / CAMERA_CELL, wide / CAMERA_CELL);
        let cell = CAMERA_CELL;
        let path = path.narrow(3, 0, h * cell)?.narrow(4, 0, w * cell)?;
        let cells = path.reshape([b * c * t, h, cell, w, cell])?;
        let cells = cells.permute(&[0, 2, 4, 1, 3])?;
        let cells = cells.reshape([b, c, t, cell * cell, h, w])?;
        let cells = cells.permute(&[0, 1, 3, 2, 4, 5])?;
        let cells = cells.reshape([b, c * cell * cell, t, h, w])?;
        let (tokens, found) = video_to_tokens(&cells, PATCH, PatchOrder::ChannelFirst)?;
        if found != grid {
            let reason = format!("it is for {found:?} tokens, the video has {grid:?}");
            return Err(ModelError::invalid("camera_conditions", reason));
        }
        let x = self.conv.forward(&tokens.to(device)?)?;
        let [frames, rows, columns] = grid;
        let mut x = x.reshape([b * frames, rows, columns, self.dim])?;
        for [first, second] in &self.blocks {
            let inner = activate(first.forward(&x)?, Act::Relu);
            x = second.forward_with(&inner, plus(&x))?;
        }
        Ok(x.reshape([b, frames * rows * columns, self.dim])?)
    }
}

/// The end: tokens to values of their cells.
pub(super) struct Head {
    modulation: AdaLn<2>,
    norm: LayerNorm,
    values: Arc<Linear>,
}

impl Head {
    pub(super) fn new(weights: &Walk<'_>, config: &WanConfig) -> Result<Self> {
        Ok(Self {
            modulation: AdaLn::table(weights, "modulation", &[1, 2, config.dim])?,
            norm: LayerNorm::new(None, None, EPS)?,
            values: weights.linear("head", config.out_channels * CELLS, config.dim)?,
        })
    }

    /// Tokens as (rows of the noise level, tokens, dim) to (b, n, values).
    pub(super) fn forward(&self, x: &Tensor, level: &Level) -> Result<Tensor> {
        let [shift, scale] = self.modulation.forward(&level.plain.repeat(&[1, 2])?)?;
        let x = self.norm.modulated(x, &shift, &scale)?;
        Ok(self.values.forward(&x)?.reshape([
            level.joined[0],
            level.joined[1],
            self.values.out_features(),
        ])?)
    }
}
