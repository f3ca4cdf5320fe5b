//! The building blocks of a UNet. Feature maps are (b, h, w, c), sequences (b, n, c).

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{
    Act, After, ChannelParts, Conv2d, GroupNorm, LayerNorm, Linear, Mask, attention,
};

use super::context::Keys;
use super::time::{TimeResidual, TimeTransformer};
use crate::denoise::hooks::{AttentionHooks, BlockInfo, BlockKind, CallInfo, Hooks};
use crate::epilogue::{before_norm, plus};
use crate::error::{ModelError, Result};
use crate::store::Walk;

/// Groups of every group norm here.
pub(crate) const GROUPS: usize = 32;
pub(super) const EPS: f32 = 1e-5;

/// What all blocks of one pass share.
pub(crate) struct Pass<'a> {
    pub(crate) hooks: &'a Hooks,
    /// The embedding of the noise level after SiLU, (b, 4 * model channels), or one for all.
    pub(crate) emb: &'a Tensor,
    /// What layers of blocks make of it, of those that were asked together.
    pub(crate) levels: &'a [(&'a Arc<Linear>, Tensor)],
    pub(crate) context: Option<&'a Tensor>,
    /// Keys and values of the context, where they were computed before.
    pub(crate) keys: &'a Keys,
    /// The shape of the latent, with all items. Until the prompt is looked at, feature maps may be of the first few, of which the others are copies.
    pub(crate) original: &'a [usize],
    /// Frames of each film, where the pictures of the batch are frames.
    pub(crate) frames: usize,
}

impl Pass<'_> {
    /// What a block's layer makes of the noise level.
    fn level(&self, layer: &Arc<Linear>) -> Result<Tensor> {
        let mut known = self.levels.iter();
        match known.find(|(other, _)| Arc::ptr_eq(other, layer)) {
            Some((_, level)) => Ok(level.clone()),
            None => Ok(layer.forward(self.emb)?),
        }
    }

    /// What was made of the first items alone, for all of them.
    pub(crate) fn of_all(&self, x: Tensor) -> Result<Tensor> {
        let (found, items) = (x.dim(0)?, self.original[0]);
        if found >= items {
            return Ok(x);
        }
        let mut counts = vec![1; x.rank()];
        counts[0] = items / found;
        Ok(x.repeat(&counts)?)
    }

    pub(crate) fn at(&self, kind: BlockKind, number: usize, size: (usize, usize)) -> BlockInfo<'_> {
        let CallInfo {
            sigma,
            cond_or_uncond,
            ..
        } = &self.hooks.info;
        BlockInfo {
            kind,
            number,
            index: 0,
            heads: 0,
            size: [1, size.0, size.1],
            original: self.original,
            sigma: *sigma,
            cond_or_uncond,
        }
    }
}

/// Norm, activation, convolution twice, with the noise level added between.
pub(crate) struct Residual {
    norm1: Arc<GroupNorm>,
    conv1: Arc<Conv2d>,
    emb: Arc<Linear>,
    norm2: Arc<GroupNorm>,
    conv2: Arc<Conv2d>,
    skip: Option<Arc<Linear>>,
    time: Option<TimeResidual>,
}

impl Residual {
    /// `emb` is the width of the embedding of the noise level; `timed` blocks see the frames of a film.
    pub(crate) fn new(
        weights: &Walk<'_>,
        (input, out): (usize, usize),
        emb: usize,
        timed: bool,
    ) -> Result<Self> {
        Ok(Self {
            time: timed
                .then(|| TimeResidual::new(weights, out, emb))
                .transpose()?,
            norm1: weights.group_norm("in_layers.0", input, GROUPS, EPS)?,
            conv1: weights.conv("in_layers.2", out, input, 3, 1)?,
            emb: weights.linear("emb_layers.1", out, emb)?,
            norm2: weights.group_norm("out_layers.0", out, GROUPS, EPS)?,
            conv2: weights.conv("out_layers.3", out, out, 3, 1)?,
            skip: (input != out)
                .then(|| weights.linear("skip_connection", out, input))
                .transpose()?,
        })
    }

    /// The layer that makes the noise level its own.
    pub(crate) fn level(&self) -> &Arc<Linear> {
        &self.emb
    }

    pub(crate) fn forward(&self, x: ChannelParts, pass: &Pass<'_>) -> Result<Tensor> {
        let skip = self.skip.as_deref();
        let (h, around) = self.norm1.with_shortcut(x, Act::Silu, skip, &self.conv2)?;
        let emb = pass.level(&self.emb)?; // (b, c) or (1, c)
        let time = After {
            per_item: Some(&emb),
            ..After::default()
        };
        let h = self.conv1.forward_with(&h, before_norm(time))?;
        let h = self.norm2.forward_owned(h, Act::Silu)?;
        let after = before_norm(After::default());
        let h = self.conv2.forward_to(&h, around, after)?;
        match &self.time {
            Some(time) => time.forward(h, pass),
            None => Ok(h),
        }
    }
}

pub(super) struct Attention {
    pub(super) q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    pub(super) out: Arc<Linear>,
}

impl Attention {
    /// `context` is the width of what keys and values come from.
    pub(super) fn new(weights: &Walk<'_>, channels: usize, context: usize) -> Result<Self> {
        Ok(Self {
            q: weights.matrix("to_q", channels, channels)?,
            k: weights.matrix("to_k", channels, context)?,
            v: weights.matrix("to_v", channels, context)?,
            out: weights.linear("to_out.0", channels, channels)?,
        })
    }

    pub(super) fn project(&self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        Ok((self.k.forward(k)?, self.v.forward(v)?))
    }

    /// The same from one.
    fn project_both(&self, of: &Tensor) -> Result<(Tensor, Tensor)> {
        let [k, v] = Linear::forward_each([&self.k, &self.v], of)?;
        Ok((k, v))
    }

    /// `x` plus the attention of `normed` to `context`, or to itself. `known` makes the keys and values where no hook
    /// changes what they come from.
    fn forward(
        &self,
        x: Tensor,
        normed: Tensor,
        context: Option<&Tensor>,
        known: impl FnOnce() -> Result<(Tensor, Tensor)>,
        hooks: &AttentionHooks,
        at: &BlockInfo<'_>,
    ) -> Result<Tensor> {
        let (q, k, v) = if hooks.input.is_empty() {
            if context.is_some() {
                let (k, v) = known()?;
                (self.q.forward(&normed)?, k, v)
            } else {
                let [q, k, v] = Linear::forward_each([&self.q, &self.k, &self.v], &normed)?;
                (q, k, v)
            }
        } else {
            let of = context.unwrap_or(&normed);
            let [q, k, v] = hooks.change_input([normed.clone(), of.clone(), of.clone()], at)?;
            let (k, v) = self.project(&k, &v)?;
            (self.q.forward(&q)?, k, v)
        };
        drop(normed);
        let seen = match hooks.replacement(at) {
            Some(replace) => replace.apply(&q, &k, &v, at)?,
            None => attention(&q, &k, &v, at.heads, Mask::None, None)?,
        };
        drop((q, k, v));
        if hooks.output.is_empty() {
            return Ok(self.out.forward_with(&seen, plus(&x))?);
        }
        let out = hooks.change_output(self.out.forward(&seen)?, at)?;
        Ok(x.add(&out)?)
    }
}

/// Attention to itself, attention to the prompt, and a gated layer.
struct Block {
    norm1: Arc<LayerNorm>,
    attn1: Attention,
    norm2: Arc<LayerNorm>,
    attn2: Attention,
    norm3: Arc<LayerNorm>,
    ff_in: Arc<Linear>,
    ff_out: Arc<Linear>,
    /// Number of this block among all of the network.
    slot: usize,
}

impl Block {
    fn new(weights: &Walk<'_>, channels: usize, context: usize, slot: usize) -> Result<Self> {
        Ok(Self {
            norm1: weights.layer_norm("norm1", channels, EPS)?,
            attn1: Attention::new(&weights.at("attn1"), channels, channels)?,
            norm2: weights.layer_norm("norm2", channels, EPS)?,
            attn2: Attention::new(&weights.at("attn2"), channels, context)?,
            norm3: weights.layer_norm("norm3", channels, EPS)?,
            ff_in: weights.linear("ff.net.0.proj", 8 * channels, channels)?,
            ff_out: weights.linear("ff.net.2", channels, 4 * channels)?,
            slot,
        })
    }

    fn forward(&self, x: Tensor, pass: &Pass<'_>, at: &BlockInfo<'_>) -> Result<Tensor> {
        let hooks = pass.hooks;
        let context = pass
            .context
            .ok_or_else(|| ModelError::invalid("unet", "this network needs a prompt"))?;
        let normed = self.norm1.forward(&x)?;
        let nothing = || Err(ModelError::invalid("unet", "no context"));
        let on_self = &hooks.self_attention;
        let x = self.attn1.forward(x, normed, None, nothing, on_self, at)?;
        let x = pass.of_all(on_self.change_after(x, at)?)?;
        let normed = self.norm2.forward(&x)?;
        let known = || {
            let project = || self.attn2.project_both(context);
            pass.keys.get(self.slot, project)
        };
        let on_prompt = &hooks.prompt_attention;
        let attn2 = &self.attn2;
        let x = attn2.forward(x, normed, Some(context), known, on_prompt, at)?;
        let x = on_prompt.change_after(x, at)?;
        let gated = self.ff_in.geglu(&self.norm3.forward(&x)?)?;
        Ok(self.ff_out.forward_with(&gated, plus(&x))?)
    }
}

/// Transformer blocks over the positions of a feature map.
pub(crate) struct Transformer {
    norm: Arc<GroupNorm>,
    proj_in: Arc<Linear>,
    blocks: Vec<Block>,
    proj_out: Arc<Linear>,
    heads: usize,
    time: Option<TimeTransformer>,
}

/// What decides a transformer besides its channels.
#[derive(Clone, Copy)]
pub(crate) struct TransformerShape {
    pub(crate) channels: usize,
    pub(crate) depth: usize,
    pub(crate) context: usize,
    pub(crate) heads: usize,
    pub(crate) timed: bool,
}

impl Transformer {
    /// `slot` counts the transformer blocks of the network.
    pub(crate) fn new(
        weights: &Walk<'_>,
        shape: TransformerShape,
        slot: &mut usize,
    ) -> Result<Self> {
        let channels = shape.channels;
        if shape.heads == 0 || !channels.is_multiple_of(shape.heads) {
            return Err(weights.unsupported(format!(
                "{channels} channels cannot be split into {} heads",
                shape.heads
            )));
        }
        let norm = weights.group_norm("norm", channels, GROUPS, 1e-6)?;
        let proj_in = weights.linear("proj_in", channels, channels)?;
        let mut blocks = Vec::new();
        for index in 0..shape.depth {
            let weights = weights.at("transformer_blocks").at(index);
            blocks.push(Block::new(&weights, channels, shape.context, *slot)?);
            *slot += 1;
        }
        Ok(Self {
            norm,
            proj_in,
            blocks,
            proj_out: weights.linear("proj_out", channels, channels)?,
            heads: shape.heads,
            time: shape
                .timed
                .then(|| TimeTransformer::new(weights, shape))
                .transpose()?,
        })
    }

    pub(crate) fn forward(
        &self,
        x: Tensor,
        pass: &Pass<'_>,
        kind: BlockKind,
        number: usize,
    ) -> Result<Tensor> {
        let [b, h, w, c] = x.dims4()?;
        let normed = self.norm.forward(&x, Act::None)?;
        let mut seq = self.proj_in.forward(&normed)?.reshape([b, h * w, c])?; // (b, n, c)
        drop(normed);
        let places = self.time.as_ref().map(|time| time.places(pass.frames));
        let places = places.transpose()?;
        for (index, block) in self.blocks.iter().enumerate() {
            pass.hooks.check()?;
            let at = BlockInfo {
                index,
                heads: self.heads,
                ..pass.at(kind, number, (h, w))
            };
            seq = block.forward(seq, pass, &at)?;
            if let (Some(time), Some(places)) = (&self.time, &places) {
                seq = time.forward(index, seq, places, pass)?;
            }
        }
        let x = pass.of_all(x)?;
        let map = seq.reshape(x.shape())?;
        drop(seq);
        let after = before_norm(plus(&x));
        Ok(self.proj_out.forward_with(&map, after)?)
    }
}
