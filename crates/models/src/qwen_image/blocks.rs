//! The blocks: picture and prompt have weights of their own and see each other in attention.

use std::ops::Range;
use std::sync::Arc;

use fresco_tensor::nn::{Act, Embedding, LayerNorm, Linear, Mask, RmsNorm, activate};
use fresco_tensor::{Device, Tensor};

use super::config::{KINDS, QwenConfig};
use crate::error::{ModelError, Result};
use crate::store::{Bias, Walk};
use crate::transformer::{
    AdaLn, Attention, AttentionLayers, HeadNorm, Heads, Mlp, MlpLayers, Qkv, QkvLayers, Rope,
    TimeEmbed, TokenRows,
};

pub(super) const EPS: f32 = 1e-6;
/// Width of the waves that stand for a noise level.
const WAVES: usize = 256;
/// Noise levels are told in thousandths.
const STEPS: f32 = 1000.0;

/// Shifts, scales and gates of a picture's tokens: those of references may have others.
struct PictureModulation {
    main: [Tensor; 6],
    /// Of the tokens from this one on.
    rest: Option<(usize, [Tensor; 6])>,
}

impl PictureModulation {
    /// Changes the tokens of each part, with its modulation.
    fn split(
        &self,
        x: Tensor,
        change: impl Fn(&[Tensor; 6], Tensor, Range<usize>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let count = x.dim(1)?;
        match &self.rest {
            Some((start, rest)) if *start < count => {
                let (first, last) = (0..*start, *start..count);
                let main = change(&self.main, x.narrow(1, 0, *start)?, first)?;
                let rest = change(rest, x.narrow(1, *start, count - start)?, last)?;
                Ok(Tensor::cat(&[&main, &rest], 1)?)
            }
            _ => change(&self.main, x, 0..count),
        }
    }

    /// Tokens after a norm; numbers of shift and scale.
    fn modulated(
        &self,
        norm: &LayerNorm,
        x: &Tensor,
        [shift, scale]: [usize; 2],
    ) -> Result<Tensor> {
        self.split(x.clone(), |parts, x, _| {
            Ok(norm.modulated(&x, &parts[shift], &parts[scale])?)
        })
    }

    /// `x` plus what a layer makes of `inner` times the gate of this number.
    fn add_gated(
        &self,
        x: Tensor,
        inner: &Tensor,
        gate: usize,
        layer: impl Fn(&Tensor, Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        if self.rest.is_none() {
            return layer(inner, x, &self.main[gate]);
        }
        self.split(x, |parts, x, place| {
            let inner = inner.narrow(1, place.start, place.len())?;
            layer(&inner, x, &parts[gate])
        })
    }
}

/// One block.
pub(super) struct Block {
    img_mod: AdaLn<6>,
    txt_mod: AdaLn<6>,
    img: Attention,
    txt: Attention,
    img_mlp: Mlp,
    txt_mlp: Mlp,
    norm: LayerNorm,
}

impl Block {
    pub(super) fn new(weights: &Walk<'_>, config: &QwenConfig) -> Result<Self> {
        let width = config.width;
        let heads = |norms| Heads::new(config.heads(), config.head, HeadNorm::Rms(norms, EPS));
        let picture = AttentionLayers::new(
            QkvLayers::Apart(["to_q", "to_k", "to_v"]),
            "to_out.0",
            width,
            heads(["norm_q.weight", "norm_k.weight"]),
        );
        let prompt = AttentionLayers::new(
            QkvLayers::Apart(["add_q_proj", "add_k_proj", "add_v_proj"]),
            "to_add_out",
            width,
            heads(["norm_added_q.weight", "norm_added_k.weight"]),
        );
        let level = |name: &str| AdaLn::new(weights, name, width, width, Bias::With);
        let mlp = |name: &str| {
            let layers = MlpLayers::Plain(["net.0.proj", "net.2"], Act::GeluTanh);
            Mlp::new(&weights.at(name), layers, (width, config.inner), Bias::With)
        };
        let attn = weights.at("attn");
        Ok(Self {
            img_mod: level("img_mod.1")?,
            txt_mod: level("txt_mod.1")?,
            img: Attention::new(&attn, &picture)?,
            txt: Attention::new(&attn, &prompt)?,
            img_mlp: mlp("img_mlp")?,
            txt_mlp: mlp("txt_mlp")?,
            norm: LayerNorm::new(None, None, EPS)?,
        })
    }

    pub(super) fn forward(
        &self,
        img: Tensor,
        txt: Tensor,
        pass: &TrunkPass<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let items = img.dim(0)?;
        let level = |start: usize| pass.emb.narrow(0, start, items);
        let rest = pass
            .clean_from
            .map(|from| -> Result<_> { Ok((from, self.img_mod.forward(&level(items)?)?)) });
        let of_picture = PictureModulation {
            main: self.img_mod.forward(&level(0)?)?,
            rest: rest.transpose()?,
        };
        let [shift, scale, gate, shift2, scale2, gate2] = self.txt_mod.forward(&level(0)?)?;
        let streams = [
            self.txt
                .qkv(TokenRows::modulated(&self.norm, &txt, &shift, &scale))?,
            self.img
                .qkv(&of_picture.modulated(&self.norm, &img, [0, 1])?)?,
        ];
        let [prompt, picture] = Qkv::attend_joint(streams, pass.rope, Mask::None)?;
        let img = of_picture.add_gated(img, &picture, 2, |seen, x, gate| {
            self.img.add_gated(seen, x, gate)
        })?;
        let txt = self.txt.add_gated(&prompt, txt, &gate)?;
        drop((picture, prompt));
        let inner = of_picture.modulated(&self.norm, &img, [3, 4])?;
        let inner = self.img_mlp.inner(&inner)?;
        let img = of_picture.add_gated(img, &inner, 5, |inner, x, gate| {
            self.img_mlp.add_gated(inner, x, gate)
        })?;
        let rows = TokenRows::modulated(&self.norm, &txt, &shift2, &scale2);
        let inner = self.txt_mlp.inner(rows)?;
        Ok((img, self.txt_mlp.add_gated(&inner, txt, &gate2)?))
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
    time: TimeEmbed,
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
        let blocks = weights.at("transformer_blocks");
        let blocks = blocks.each(config.layers, |weights| Block::new(weights, config))?;
        Ok(Self {
            time: TimeEmbed::new(&time, names, WAVES, width)?,
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
        let mut levels = timesteps.to_vec();
        if clean {
            levels.resize(2 * timesteps.len(), 0.0);
        }
        let mut emb = self.time.forward(&levels, STEPS, &self.device)?;
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
