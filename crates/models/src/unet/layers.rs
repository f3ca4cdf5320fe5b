//! The building blocks of a UNet. Feature maps are (b, h, w, c), sequences (b, n, c).

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{
    Act, After, Conv2d, GroupNorm, LayerNorm, Linear, Mask, Padding, attention,
};

use super::context::Keys;
use super::hooks::{
    AttnInput, AttnOutput, AttnReplace, BlockInfo, CallInfo, Part, UNetHooks, replacement,
};
use crate::error::{ModelError, Result};
use crate::layout::Layout;
use crate::store::Store;

/// Groups of every group norm here.
pub(crate) const GROUPS: usize = 32;
const EPS: f32 = 1e-5;

/// What all blocks of one pass share.
pub(crate) struct Pass<'a> {
    pub(crate) hooks: &'a UNetHooks,
    /// The embedding of the noise level after SiLU, (b, 4 * model channels).
    pub(crate) emb: &'a Tensor,
    pub(crate) context: Option<&'a Tensor>,
    /// Keys and values of the context, where they were computed before.
    pub(crate) keys: &'a Keys,
    pub(crate) original: [usize; 4],
}

impl Pass<'_> {
    pub(crate) fn at(&self, part: Part, number: usize, size: (usize, usize)) -> BlockInfo<'_> {
        let CallInfo {
            sigma,
            cond_or_uncond,
        } = &self.hooks.info;
        BlockInfo {
            part,
            number,
            index: 0,
            heads: 0,
            size,
            original: self.original,
            sigma: *sigma,
            cond_or_uncond,
        }
    }
}

/// Adds at the end of a layer.
pub(crate) fn plus(x: &Tensor) -> After<'_> {
    After {
        add: Some(x),
        ..After::default()
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
}

impl Residual {
    pub(crate) fn layout(to: &mut Layout, key: &str, input: usize, out: usize, emb: usize) {
        to.norm(&format!("{key}.in_layers.0"), input);
        to.conv(&format!("{key}.in_layers.2"), out, input, 3);
        to.linear(&format!("{key}.emb_layers.1"), out, emb);
        to.norm(&format!("{key}.out_layers.0"), out);
        to.conv(&format!("{key}.out_layers.3"), out, out, 3);
        if input != out {
            to.linear(&format!("{key}.skip_connection"), out, input);
        }
    }

    pub(crate) fn new(store: &Store, key: &str, input: usize, out: usize) -> Result<Self> {
        let skip = format!("{key}.skip_connection");
        Ok(Self {
            norm1: store.group_norm(&format!("{key}.in_layers.0"), GROUPS, EPS)?,
            conv1: store.conv(&format!("{key}.in_layers.2"), 1, Padding::Same(1))?,
            emb: store.linear(&format!("{key}.emb_layers.1"))?,
            norm2: store.group_norm(&format!("{key}.out_layers.0"), GROUPS, EPS)?,
            conv2: store.conv(&format!("{key}.out_layers.3"), 1, Padding::Same(1))?,
            skip: (input != out).then(|| store.linear(&skip)).transpose()?,
        })
    }

    pub(crate) fn forward(&self, x: Tensor, emb: &Tensor) -> Result<Tensor> {
        let emb = self.emb.forward(emb)?; // (b, c)
        let (x, h) = if let Some(skip) = &self.skip {
            let skipped = skip.forward(&x)?;
            (skipped, self.norm1.forward_owned(x, Act::Silu)?)
        } else {
            let h = self.norm1.forward(&x, Act::Silu)?;
            (x, h)
        };
        let time = After {
            per_item: Some(&emb),
            ..After::default()
        };
        let h = self.conv1.forward_with(&h, time)?;
        let h = self.norm2.forward_owned(h, Act::Silu)?;
        Ok(self.conv2.forward_with(&h, plus(&x))?)
    }
}

struct Attention {
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    out: Arc<Linear>,
}

/// The hooks of one attention.
struct AttnHooks<'a> {
    input: &'a [Arc<dyn AttnInput>],
    output: &'a [Arc<dyn AttnOutput>],
    replace: Option<&'a dyn AttnReplace>,
}

impl Attention {
    fn layout(to: &mut Layout, key: &str, channels: usize, context: usize) {
        to.matrix(&format!("{key}.to_q"), channels, channels);
        to.matrix(&format!("{key}.to_k"), channels, context);
        to.matrix(&format!("{key}.to_v"), channels, context);
        to.linear(&format!("{key}.to_out.0"), channels, channels);
    }

    fn new(store: &Store, key: &str) -> Result<Self> {
        Ok(Self {
            q: store.linear(&format!("{key}.to_q"))?,
            k: store.linear(&format!("{key}.to_k"))?,
            v: store.linear(&format!("{key}.to_v"))?,
            out: store.linear(&format!("{key}.to_out.0"))?,
        })
    }

    fn project(&self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        Ok((self.k.forward(k)?, self.v.forward(v)?))
    }

    /// `x` plus the attention of `normed` to `context`, or to itself. `known` makes the keys and values where no hook
    /// changes what they come from.
    fn forward(
        &self,
        x: Tensor,
        normed: Tensor,
        context: Option<&Tensor>,
        known: impl FnOnce() -> Result<(Tensor, Tensor)>,
        hooks: &AttnHooks<'_>,
        at: &BlockInfo<'_>,
    ) -> Result<Tensor> {
        let (q, k, v) = if hooks.input.is_empty() {
            let (k, v) = match context {
                Some(_) => known()?,
                None => self.project(&normed, &normed)?,
            };
            (self.q.forward(&normed)?, k, v)
        } else {
            let of = context.unwrap_or(&normed);
            let (mut q, mut k, mut v) = (normed.clone(), of.clone(), of.clone());
            for hook in hooks.input {
                (q, k, v) = hook.apply(q, k, v, at)?;
            }
            let (k, v) = self.project(&k, &v)?;
            (self.q.forward(&q)?, k, v)
        };
        drop(normed);
        let seen = match hooks.replace {
            Some(replace) => replace.apply(&q, &k, &v, at)?,
            None => attention(&q, &k, &v, at.heads, Mask::None, None)?,
        };
        drop((q, k, v));
        if hooks.output.is_empty() {
            return Ok(self.out.forward_with(&seen, plus(&x))?);
        }
        let mut out = self.out.forward(&seen)?;
        for hook in hooks.output {
            out = hook.apply(out, at)?;
        }
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
    fn layout(to: &mut Layout, key: &str, channels: usize, context: usize) {
        to.norm(&format!("{key}.norm1"), channels);
        Attention::layout(to, &format!("{key}.attn1"), channels, channels);
        to.norm(&format!("{key}.norm2"), channels);
        Attention::layout(to, &format!("{key}.attn2"), channels, context);
        to.norm(&format!("{key}.norm3"), channels);
        to.linear(&format!("{key}.ff.net.0.proj"), 8 * channels, channels);
        to.linear(&format!("{key}.ff.net.2"), channels, 4 * channels);
    }

    fn new(store: &Store, key: &str, slot: usize) -> Result<Self> {
        Ok(Self {
            norm1: store.layer_norm(&format!("{key}.norm1"), EPS)?,
            attn1: Attention::new(store, &format!("{key}.attn1"))?,
            norm2: store.layer_norm(&format!("{key}.norm2"), EPS)?,
            attn2: Attention::new(store, &format!("{key}.attn2"))?,
            norm3: store.layer_norm(&format!("{key}.norm3"), EPS)?,
            ff_in: store.linear(&format!("{key}.ff.net.0.proj"))?,
            ff_out: store.linear(&format!("{key}.ff.net.2"))?,
            slot,
        })
    }

    fn forward(&self, x: Tensor, pass: &Pass<'_>, at: &BlockInfo<'_>) -> Result<Tensor> {
        let hooks = pass.hooks;
        let context = pass
            .context
            .ok_or_else(|| ModelError::invalid("unet", "this network needs a prompt"))?;
        let normed = self.norm1.forward(&x)?;
        let on_self = AttnHooks {
            input: &hooks.attn1,
            output: &hooks.attn1_output,
            replace: replacement(&hooks.attn1_replace, at),
        };
        let nothing = || Err(ModelError::invalid("unet", "no context"));
        let mut x = self.attn1.forward(x, normed, None, nothing, &on_self, at)?;
        for hook in &hooks.middle_patch {
            x = hook.apply(x, at)?;
        }
        let normed = self.norm2.forward(&x)?;
        let on_prompt = AttnHooks {
            input: &hooks.attn2,
            output: &hooks.attn2_output,
            replace: replacement(&hooks.attn2_replace, at),
        };
        let known = || {
            let project = || self.attn2.project(context, context);
            pass.keys.get(self.slot, project)
        };
        let x = self
            .attn2
            .forward(x, normed, Some(context), known, &on_prompt, at)?;
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
}

/// What decides a transformer besides its channels.
#[derive(Clone, Copy)]
pub(crate) struct TransformerShape {
    pub(crate) channels: usize,
    pub(crate) depth: usize,
    pub(crate) context: usize,
    pub(crate) heads: usize,
}

impl Transformer {
    pub(crate) fn layout(to: &mut Layout, key: &str, shape: TransformerShape) {
        let channels = shape.channels;
        to.norm(&format!("{key}.norm"), channels);
        to.linear(&format!("{key}.proj_in"), channels, channels);
        for index in 0..shape.depth {
            let key = format!("{key}.transformer_blocks.{index}");
            Block::layout(to, &key, channels, shape.context);
        }
        to.linear(&format!("{key}.proj_out"), channels, channels);
    }

    /// `slot` counts the transformer blocks of the network.
    pub(crate) fn new(
        store: &Store,
        key: &str,
        shape: TransformerShape,
        slot: &mut usize,
    ) -> Result<Self> {
        if shape.heads == 0 || !shape.channels.is_multiple_of(shape.heads) {
            let reason = format!(
                "{key}: {} channels cannot be split into {} heads",
                shape.channels, shape.heads
            );
            return Err(ModelError::unsupported(store.file(), reason));
        }
        let mut blocks = Vec::new();
        for index in 0..shape.depth {
            let key = format!("{key}.transformer_blocks.{index}");
            blocks.push(Block::new(store, &key, *slot)?);
            *slot += 1;
        }
        Ok(Self {
            norm: store.group_norm(&format!("{key}.norm"), GROUPS, 1e-6)?,
            proj_in: store.linear(&format!("{key}.proj_in"))?,
            blocks,
            proj_out: store.linear(&format!("{key}.proj_out"))?,
            heads: shape.heads,
        })
    }

    pub(crate) fn forward(
        &self,
        x: Tensor,
        pass: &Pass<'_>,
        part: Part,
        number: usize,
    ) -> Result<Tensor> {
        let [b, h, w, c] = x.dims4()?;
        let normed = self.norm.forward(&x, Act::None)?;
        let mut seq = self.proj_in.forward(&normed)?.reshape([b, h * w, c])?; // (b, n, c)
        drop(normed);
        for (index, block) in self.blocks.iter().enumerate() {
            pass.hooks.check()?;
            let at = BlockInfo {
                index,
                heads: self.heads,
                ..pass.at(part, number, (h, w))
            };
            seq = block.forward(seq, pass, &at)?;
        }
        let map = seq.reshape([b, h, w, c])?;
        drop(seq);
        Ok(self.proj_out.forward_with(&map, plus(&x))?)
    }
}
