//! The blocks: picture and prompt have weights of their own and see each other in attention.

use std::sync::Arc;

use fresco_tensor::nn::{
    Act, Embedding, HeadPart, HeadSource, LayerNorm, Linear, Mask, RmsNorm, activate, add_gated,
    attention, join_heads,
};
use fresco_tensor::{Device, Tensor};

use super::config::{KINDS, QwenConfig};
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::store::Walk;
use crate::transformer::{Embedder, Rope, chunks, sinusoid};

pub(super) const EPS: f32 = 1e-6;
/// Width of the waves that stand for a noise level.
const WAVES: usize = 256;
/// Noise levels are told in thousandths.
const STEPS: f32 = 1000.0;

/// Shift, scale and gate of the two parts of a block, for each item.
struct Modulation([Tensor; 6]);

impl Modulation {
    /// From the embedding of the noise level, already activated.
    fn new(layer: &Linear, emb: &Tensor, items: std::ops::Range<usize>) -> Result<Self> {
        let all = layer.forward(&emb.narrow(0, items.start, items.len())?)?;
        Ok(Self(chunks(&all)?))
    }

    fn shift(&self, half: usize) -> &Tensor {
        &self.0[3 * half]
    }

    fn scale(&self, half: usize) -> &Tensor {
        &self.0[3 * half + 1]
    }

    fn gate(&self, half: usize) -> &Tensor {
        &self.0[3 * half + 2]
    }
}

/// The modulation of a picture's tokens: those of references may have one of their own.
struct PictureModulation {
    main: Modulation,
    /// Of the tokens from this one on.
    rest: Option<(usize, Modulation)>,
}

impl PictureModulation {
    /// Changes the tokens of each part, with its modulation.
    fn split(
        &self,
        x: &Tensor,
        change: impl Fn(&Modulation, Tensor, std::ops::Range<usize>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let count = x.dim(1)?;
        match &self.rest {
            Some((start, rest)) if *start < count => {
                let (first, last) = (0..*start, *start..count);
                let main = change(&self.main, x.narrow(1, 0, *start)?, first)?;
                let rest = change(rest, x.narrow(1, *start, count - start)?, last)?;
                Ok(Tensor::cat(&[&main, &rest], 1)?)
            }
            _ => change(&self.main, x.clone(), 0..count),
        }
    }

    fn modulated(&self, norm: &LayerNorm, x: &Tensor, half: usize) -> Result<Tensor> {
        self.split(x, |modulation, x, _| {
            Ok(norm.modulated(&x, modulation.shift(half), modulation.scale(half))?)
        })
    }

    fn add(&self, x: Tensor, y: &Tensor, half: usize) -> Result<Tensor> {
        if self.rest.is_none() {
            return Ok(add_gated(x, self.main.gate(half), y)?);
        }
        self.split(&x, |modulation, x, place| {
            let y = y.narrow(1, place.start, place.len())?;
            Ok(add_gated(x, modulation.gate(half), &y)?)
        })
    }
}

/// Linear, activation, linear.
struct FeedForward {
    first: Arc<Linear>,
    second: Arc<Linear>,
}

impl FeedForward {
    fn new(weights: &Walk<'_>, width: usize, inner: usize) -> Result<Self> {
        Ok(Self {
            first: weights.linear("net.0.proj", inner, width)?,
            second: weights.linear("net.2", width, inner)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = self.first.forward_with(x, then(Act::GeluTanh))?;
        Ok(self.second.forward(&inner)?)
    }
}

/// Queries, keys and values of one of the two.
struct Projections {
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    norm_q: Arc<RmsNorm>,
    norm_k: Arc<RmsNorm>,
    out: Arc<Linear>,
}

/// The names of the layers: queries, keys, values, their norms, the way out.
type Names = [&'static str; 6];
const PICTURE: Names = [
    "to_q",
    "to_k",
    "to_v",
    "norm_q.weight",
    "norm_k.weight",
    "to_out.0",
];
const PROMPT: Names = [
    "add_q_proj",
    "add_k_proj",
    "add_v_proj",
    "norm_added_q.weight",
    "norm_added_k.weight",
    "to_add_out",
];

impl Projections {
    fn new(weights: &Walk<'_>, names: &Names, width: usize, head: usize) -> Result<Self> {
        let linear = |name: &str| weights.linear(name, width, width);
        Ok(Self {
            q: linear(names[0])?,
            k: linear(names[1])?,
            v: linear(names[2])?,
            norm_q: weights.rms_norm(names[3], head, EPS)?,
            norm_k: weights.rms_norm(names[4], head, EPS)?,
            out: linear(names[5])?,
        })
    }

    /// Queries, keys and values.
    fn forward(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        Ok(Linear::forward_each([&self.q, &self.k, &self.v], x)?)
    }

    fn part<'a>(&'a self, [q, k, v]: &'a [Tensor; 3]) -> HeadPart<'a> {
        HeadPart {
            from: HeadSource::Apart([q, k, v]),
            norms: Some((&self.norm_q, &self.norm_k)),
        }
    }
}

/// One block.
pub(super) struct Block {
    img_mod: Arc<Linear>,
    txt_mod: Arc<Linear>,
    img: Projections,
    txt: Projections,
    img_mlp: FeedForward,
    txt_mlp: FeedForward,
    norm: LayerNorm,
    heads: usize,
}

impl Block {
    pub(super) fn new(weights: &Walk<'_>, config: &QwenConfig) -> Result<Self> {
        let (width, head) = (config.width, config.head);
        let attn = weights.at("attn");
        Ok(Self {
            img_mod: weights.linear("img_mod.1", 6 * width, width)?,
            txt_mod: weights.linear("txt_mod.1", 6 * width, width)?,
            img: Projections::new(&attn, &PICTURE, width, head)?,
            txt: Projections::new(&attn, &PROMPT, width, head)?,
            img_mlp: FeedForward::new(&weights.at("img_mlp"), width, config.inner)?,
            txt_mlp: FeedForward::new(&weights.at("txt_mlp"), width, config.inner)?,
            norm: LayerNorm::new(None, None, EPS)?,
            heads: config.heads(),
        })
    }

    /// What attention gives for the picture and for the prompt.
    fn attend(&self, img: &Tensor, txt: &Tensor, rope: &Rope) -> Result<(Tensor, Tensor)> {
        let (from_img, from_txt) = (self.img.forward(img)?, self.txt.forward(txt)?);
        let parts = [self.txt.part(&from_txt), self.img.part(&from_img)];
        let width = img.dim(2)?;
        let [q, k, v] = join_heads(&parts, self.heads, width, Some(rope.neighbours()))?;
        drop((from_img, from_txt));
        let seen = attention(&q, &k, &v, self.heads, Mask::None, None)?;
        drop((q, k, v));
        let (prompt, picture) = (txt.dim(1)?, img.dim(1)?);
        Ok((
            self.img.out.forward(&seen.narrow(1, prompt, picture)?)?,
            self.txt.out.forward(&seen.narrow(1, 0, prompt)?)?,
        ))
    }

    pub(super) fn forward(
        &self,
        img: Tensor,
        txt: Tensor,
        pass: &TrunkPass<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let items = img.dim(0)?;
        let of_picture = PictureModulation {
            main: Modulation::new(&self.img_mod, pass.emb, 0..items)?,
            rest: pass
                .clean_from
                .map(|start| {
                    let rest = Modulation::new(&self.img_mod, pass.emb, items..2 * items)?;
                    Ok::<_, ModelError>((start, rest))
                })
                .transpose()?,
        };
        let of_prompt = Modulation::new(&self.txt_mod, pass.emb, 0..items)?;
        let modulated = |txt: &Tensor, half: usize| {
            let (shift, scale) = (of_prompt.shift(half), of_prompt.scale(half));
            self.norm.modulated(txt, shift, scale)
        };
        let (picture, prompt) = self.attend(
            &of_picture.modulated(&self.norm, &img, 0)?,
            &modulated(&txt, 0)?,
            pass.rope,
        )?;
        let img = of_picture.add(img, &picture, 0)?;
        let txt = add_gated(txt, of_prompt.gate(0), &prompt)?;
        drop((picture, prompt));
        let inner = self
            .img_mlp
            .forward(&of_picture.modulated(&self.norm, &img, 1)?)?;
        let img = of_picture.add(img, &inner, 1)?;
        let inner = self.txt_mlp.forward(&modulated(&txt, 1)?)?;
        let txt = add_gated(txt, of_prompt.gate(1), &inner)?;
        Ok((img, txt))
    }
}

/// What all blocks of a pass get.
pub(super) struct TrunkPass<'a> {
    /// The embedding of the noise level, activated: for each item, and once more for no noise where `clean_from` is said.
    pub(super) emb: &'a Tensor,
    pub(super) rope: &'a Rope,
    /// The picture's tokens from this one on have no noise.
    pub(super) clean_from: Option<usize>,
}

/// What the network and its control nets have in common: everything up to the last block.
pub struct Trunk {
    config: QwenConfig,
    /// Where it computes.
    device: Device,
    time: Embedder,
    kinds: Option<Arc<Embedding>>,
    txt_norm: Arc<RmsNorm>,
    txt_in: Arc<Linear>,
    img_in: Arc<Linear>,
    blocks: Vec<Block>,
}

impl Trunk {
    pub(super) fn new(weights: &Walk<'_>, config: &QwenConfig) -> Result<Self> {
        let width = config.width;
        let names = ["linear_1", "linear_2"];
        let time = weights.at("time_text_embed").at("timestep_embedder");
        let mut blocks = Vec::new();
        for number in 0..config.layers {
            let weights = weights.at("transformer_blocks").at(number);
            blocks.push(Block::new(&weights, config)?);
        }
        Ok(Self {
            time: Embedder::new(&time, names, WAVES, width, true)?,
            kinds: config
                .kinds
                .then(|| weights.embedding(KINDS, 2, width))
                .transpose()?,
            txt_norm: weights.rms_norm("txt_norm.weight", config.context, EPS)?,
            txt_in: weights.linear("txt_in", width, config.context)?,
            img_in: weights.linear("img_in", width, config.input)?,
            blocks,
            device: weights.device().clone(),
            config: config.clone(),
        })
    }

    pub fn config(&self) -> &QwenConfig {
        &self.config
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Refuses inputs that do not go together.
    pub(super) fn check(&self, x: &Tensor, timesteps: &[f32], context: &Tensor) -> Result<()> {
        let wrong = |reason: String| Err(ModelError::invalid("transformer", reason));
        let items = x.shape().first().copied().unwrap_or(0);
        if items == 0 || timesteps.len() != items {
            return wrong(format!(
                "{} noise levels for {items} items",
                timesteps.len()
            ));
        }
        match *context.shape() {
            [b, n, width] if b == items && n > 0 && width == self.config.context => Ok(()),
            ref shape => wrong(format!(
                "a prompt of shape {shape:?} for {items} items of width {}",
                self.config.context
            )),
        }
    }

    /// The embedding of noise levels, activated; with `clean`, once more for no noise.
    pub(super) fn embed(&self, timesteps: &[f32], kind: u32, clean: bool) -> Result<Tensor> {
        let mut levels: Vec<f32> = timesteps.iter().map(|t| t * STEPS).collect();
        if clean {
            levels.resize(2 * timesteps.len(), 0.0);
        }
        let waves = sinusoid(&levels, WAVES)?.to(&self.device)?;
        let mut emb = self.time.forward(&waves)?;
        if let Some(kinds) = &self.kinds {
            let rows = kinds.lookup_on(&vec![kind; levels.len()], &self.device)?;
            emb = emb.add(&rows)?;
        }
        Ok(activate(emb, Act::Silu))
    }

    /// The prompt's tokens.
    pub(super) fn prompt(&self, context: &Tensor) -> Result<Tensor> {
        Ok(self.txt_in.forward(&self.txt_norm.forward(context)?)?)
    }

    /// A picture's tokens.
    pub(super) fn picture(&self, tokens: &Tensor) -> Result<Tensor> {
        Ok(self.img_in.forward(tokens)?)
    }

    /// One block over the tokens of picture and prompt.
    pub(super) fn block(
        &self,
        number: usize,
        img: Tensor,
        txt: Tensor,
        pass: &TrunkPass<'_>,
    ) -> Result<(Tensor, Tensor)> {
        self.blocks[number].forward(img, txt, pass)
    }
}
