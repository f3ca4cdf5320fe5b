//! What lets the pictures of a batch be the frames of films: after each block of a picture one over time, and how much of it
//! counts.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{
    Act, Conv3d, GroupNorm, LayerNorm, Linear, Mask, Value, attention, sigmoid,
};

use super::layers::{Attention, EPS, GROUPS, Pass, TransformerShape};
use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::store::Walk;
use crate::transformer::sinusoid;
use crate::vae::{over_all, over_time};

const TIME: [usize; 3] = [3, 1, 1];

/// How much of a block over a picture counts; the rest is that over time.
struct Mixer(Arc<Value>);

impl Mixer {
    fn new(weights: &Walk<'_>) -> Result<Self> {
        Ok(Self(weights.value("time_mixer.mix_factor", &[1])?))
    }

    fn mix(&self, picture: &Tensor, time: &Tensor) -> Result<Tensor> {
        let share = sigmoid(&self.0.at(&picture.device())?);
        // `time` and that share of what the picture has more.
        Ok(time.add(&picture.sub(time)?.mul(&share)?)?)
    }
}

/// A residual block over time.
pub(super) struct TimeResidual {
    norm1: Arc<GroupNorm>,
    conv1: Arc<Conv3d>,
    level: Arc<Linear>,
    norm2: Arc<GroupNorm>,
    conv2: Arc<Conv3d>,
    mixer: Mixer,
}

/// Films of so many frames in a batch.
fn films(items: usize, frames: usize) -> Result<usize> {
    if frames == 0 || !items.is_multiple_of(frames) {
        let reason = format!("{items} pictures are no films of {frames} frames");
        return Err(ModelError::invalid("num_video_frames", reason));
    }
    Ok(items / frames)
}

impl TimeResidual {
    pub(super) fn new(weights: &Walk<'_>, channels: usize, emb: usize) -> Result<Self> {
        let stack = weights.at("time_stack");
        Ok(Self {
            norm1: stack.group_norm("in_layers.0", channels, GROUPS, EPS)?,
            conv1: stack.conv3d("in_layers.2", channels, channels, TIME)?,
            level: stack.linear("emb_layers.1", channels, emb)?,
            norm2: stack.group_norm("out_layers.0", channels, GROUPS, EPS)?,
            conv2: stack.conv3d("out_layers.3", channels, channels, TIME)?,
            mixer: Mixer::new(weights)?,
        })
    }

    /// (films * frames, h, w, c) to the same.
    pub(super) fn forward(&self, x: Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let [items, _, _, c] = x.dims4()?;
        let frames = pass.frames;
        let level = self.level.forward(pass.emb)?.reshape([items, 1, 1, c])?;
        let mut made = Vec::new();
        for film in 0..films(items, frames)? {
            let start = film * frames;
            let x = x.narrow(0, start, frames)?;
            let h = over_time(&self.conv1, &over_all(&self.norm1, &x, Act::Silu)?)?;
            let h = h.add(&level.narrow(0, start, frames)?)?;
            let h = over_time(&self.conv2, &over_all(&self.norm2, &h, Act::Silu)?)?;
            made.push(self.mixer.mix(&x, &x.add(&h)?)?);
        }
        Ok(Tensor::cat(&made.iter().collect::<Vec<_>>(), 0)?)
    }
}

/// A gated layer.
struct Gated {
    norm: Arc<LayerNorm>,
    first: Arc<Linear>,
    second: Arc<Linear>,
}

impl Gated {
    fn new(weights: &Walk<'_>, norm: &str, name: &str, channels: usize) -> Result<Self> {
        let layer = |part: &str| format!("{name}.net.{part}");
        Ok(Self {
            norm: weights.layer_norm(norm, channels, EPS)?,
            first: weights.linear(&layer("0.proj"), 8 * channels, channels)?,
            second: weights.linear(&layer("2"), channels, 4 * channels)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = self.first.geglu(&self.norm.forward(x)?)?;
        Ok(self.second.forward_with(&inner, plus(x))?)
    }
}

/// A block in which each cell looks at itself in other frames, and at the prompt.
struct TimeBlock {
    before: Gated,
    norm1: Arc<LayerNorm>,
    attn1: Attention,
    norm2: Arc<LayerNorm>,
    attn2: Attention,
    after: Gated,
}

impl TimeBlock {
    fn new(weights: &Walk<'_>, channels: usize, context: usize) -> Result<Self> {
        Ok(Self {
            before: Gated::new(weights, "norm_in", "ff_in", channels)?,
            norm1: weights.layer_norm("norm1", channels, EPS)?,
            attn1: Attention::new(&weights.at("attn1"), channels, channels)?,
            norm2: weights.layer_norm("norm2", channels, EPS)?,
            attn2: Attention::new(&weights.at("attn2"), channels, context)?,
            after: Gated::new(weights, "norm3", "ff", channels)?,
        })
    }
}

/// The blocks over time of a transformer.
pub(super) struct TimeTransformer {
    blocks: Vec<TimeBlock>,
    places: [Arc<Linear>; 2],
    mixer: Mixer,
    channels: usize,
    heads: usize,
}

impl TimeTransformer {
    pub(super) fn new(weights: &Walk<'_>, shape: TransformerShape) -> Result<Self> {
        let channels = shape.channels;
        let list = weights.at("time_stack");
        let block = |number| TimeBlock::new(&list.at(number), channels, shape.context);
        Ok(Self {
            blocks: (0..shape.depth).map(block).collect::<Result<_>>()?,
            places: [
                weights.linear("time_pos_embed.0", 4 * channels, channels)?,
                weights.linear("time_pos_embed.2", channels, 4 * channels)?,
            ],
            mixer: Mixer::new(weights)?,
            channels,
            heads: shape.heads,
        })
    }

    /// What tells frames apart, in main memory: (frames, c).
    pub(super) fn places(&self, frames: usize) -> Result<Tensor> {
        let numbers: Vec<f32> = (0..frames).map(|frame| frame as f32).collect();
        sinusoid(&numbers, self.channels)
    }

    /// Tokens (films * frames, n, c) after a block over pictures.
    pub(super) fn forward(
        &self,
        index: usize,
        x: Tensor,
        places: &Tensor,
        pass: &Pass<'_>,
    ) -> Result<Tensor> {
        let (Some(block), Some(context)) = (self.blocks.get(index), pass.context) else {
            return Err(ModelError::invalid("unet", "this network needs a prompt"));
        };
        let [items, n, c] = x.dims3()?;
        let frames = pass.frames;
        let films = films(items, frames)?;
        let device = x.device();
        let inner = self.places[0].forward_with(&places.to(&device)?, then(Act::Silu))?;
        let places = self.places[1].forward(&inner)?.reshape([1, frames, 1, c])?;
        let all = x.reshape([films, frames, n, c])?.add(&places)?;
        let cells = all
            .permute(&[0, 2, 1, 3])?
            .reshape([films * n, frames, c])?;
        let cells = block.before.forward(&cells)?;
        let normed = block.norm1.forward(&cells)?;
        let (k, v) = block.attn1.project(&normed, &normed)?;
        let q = block.attn1.q.forward(&normed)?;
        let seen = attention(&q, &k, &v, self.heads, Mask::None, None)?;
        let cells = block.attn1.out.forward_with(&seen, plus(&cells))?;
        // What the first frame of a film is told counts for all of it.
        let firsts: Vec<usize> = (0..films).map(|film| film * frames).collect();
        let told = context.to(&device)?.index_select(0, &firsts)?;
        let (k, v) = block.attn2.project(&told, &told)?;
        let (k, v) = (k.repeat_interleave(0, n)?, v.repeat_interleave(0, n)?);
        let q = block.attn2.q.forward(&block.norm2.forward(&cells)?)?;
        let seen = attention(&q, &k, &v, self.heads, Mask::None, None)?;
        let cells = block.attn2.out.forward_with(&seen, plus(&cells))?;
        let cells = block.after.forward(&cells)?;
        let back = cells.reshape([films, n, frames, c])?;
        let back = back.permute(&[0, 2, 1, 3])?.reshape([items, n, c])?;
        self.mixer.mix(&x, &back)
    }
}
