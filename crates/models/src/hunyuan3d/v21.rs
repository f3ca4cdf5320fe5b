//! Version 2.1: one stream that looks at the picture, with shortcuts from its first half to its second, whose last blocks
//! choose among experts.

use std::sync::Arc;

use fresco_tensor::nn::{
    Act, LayerNorm, Linear, Mask, RmsNorm, attention, concat_channels, softmax_last,
};
use fresco_tensor::{Device, Tensor};

use super::config::Hunyuan3d21Config;
use super::streams::{EPS, bytes, picture_conds, solid_facts};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput};
use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::store::Walk;
use crate::transformer::{ExpertPlan, part, sinusoid};

struct Attention {
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    q_norm: Arc<RmsNorm>,
    k_norm: Arc<RmsNorm>,
    out: Arc<Linear>,
    heads: usize,
}

impl Attention {
    fn new(weights: &Walk<'_>, config: &Hunyuan3d21Config, source: usize) -> Result<Self> {
        let (dim, head) = (config.dim, config.dim / config.heads);
        Ok(Self {
            q: weights.matrix("to_q", dim, dim)?,
            k: weights.matrix("to_k", dim, source)?,
            v: weights.matrix("to_v", dim, source)?,
            q_norm: weights.rms_norm("q_norm.weight", head, EPS)?,
            k_norm: weights.rms_norm("k_norm.weight", head, EPS)?,
            out: weights.linear("out_proj", dim, dim)?,
            heads: config.heads,
        })
    }

    /// Parts that lie behind each other cut anew into heads, each of which has its parts side by side; that is how the
    /// network was trained.
    fn recut<const N: usize>(&self, parts: [Tensor; N]) -> Result<[Tensor; N]> {
        let [b, n, dim] = parts[0].dims3()?;
        let d = dim / self.heads;
        let all = concat_channels(&parts.each_ref())?;
        let all = all.reshape([b, n, self.heads, N * d])?;
        let mut out = parts;
        for (i, to) in out.iter_mut().enumerate() {
            *to = part(&all, i * d, d)?.reshape([b, n, dim])?;
        }
        Ok(out)
    }

    fn normed(&self, x: &Tensor, norm: &RmsNorm) -> Result<Tensor> {
        let [b, n, dim] = x.dims3()?;
        let each = x.reshape([b, n, self.heads, dim / self.heads])?;
        Ok(norm.forward(&each)?.reshape([b, n, dim])?)
    }

    fn look(&self, q: &Tensor, k: &Tensor, v: &Tensor, x: &Tensor) -> Result<Tensor> {
        let (q, k) = (self.normed(q, &self.q_norm)?, self.normed(k, &self.k_norm)?);
        let seen = attention(&q, &k, v, self.heads, Mask::None, None)?;
        Ok(self.out.forward_with(&seen, plus(x))?)
    }

    fn own(&self, input: &Tensor, x: &Tensor) -> Result<Tensor> {
        let parts = [
            self.q.forward(input)?,
            self.k.forward(input)?,
            self.v.forward(input)?,
        ];
        let [q, k, v] = self.recut(parts)?;
        self.look(&q, &k, &v, x)
    }

    fn cross(&self, input: &Tensor, other: &Tensor, x: &Tensor) -> Result<Tensor> {
        let [k, v] = self.recut([self.k.forward(other)?, self.v.forward(other)?])?;
        self.look(&self.q.forward(input)?, &k, &v, x)
    }
}

struct FeedForward([Arc<Linear>; 2]);

impl FeedForward {
    fn new(weights: &Walk<'_>, names: [&str; 2], config: &Hunyuan3d21Config) -> Result<Self> {
        let (dim, inner) = (config.dim, config.inner);
        Ok(Self([
            weights.linear(names[0], inner, dim)?,
            weights.linear(names[1], dim, inner)?,
        ]))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = self.0[0].forward_with(x, then(Act::Gelu))?;
        Ok(self.0[1].forward(&inner)?)
    }
}

enum Feed {
    Plain(FeedForward),
    Experts {
        scores: Arc<Linear>,
        shared: FeedForward,
        list: Vec<FeedForward>,
        asked: usize,
    },
}

const EXPERT: [&str; 2] = ["net.0.proj", "net.2"];

impl Feed {
    fn new(weights: &Walk<'_>, config: &Hunyuan3d21Config, number: usize) -> Result<Self> {
        if number < config.first_experts {
            let plain = FeedForward::new(&weights.at("mlp"), ["fc1", "fc2"], config)?;
            return Ok(Self::Plain(plain));
        }
        let at = weights.at("moe");
        let expert = |i: usize| FeedForward::new(&at.at("experts").at(i), EXPERT, config);
        Ok(Self::Experts {
            scores: at.matrix("gate", config.experts, config.dim)?,
            shared: FeedForward::new(&at.at("shared_experts"), EXPERT, config)?,
            list: (0..config.experts).map(expert).collect::<Result<_>>()?,
            asked: config.asked.min(config.experts),
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (scores, shared, list, asked) = match self {
            Self::Plain(feed) => return feed.forward(x),
            Self::Experts {
                scores,
                shared,
                list,
                asked,
            } => (scores, shared, list, *asked),
        };
        let [b, n, dim] = x.dims3()?;
        let rows = x.reshape([b * n, dim])?;
        let scores = softmax_last(&scores.forward(&rows)?)?;
        let plan = ExpertPlan::new(&scores.to(&Device::cpu())?, asked);
        let mut made = Vec::with_capacity(list.len());
        for (expert, own) in list.iter().zip(&plan.rows) {
            if !own.is_empty() {
                made.push(expert.forward(&rows.index_select(0, own)?)?);
            }
        }
        let made = Tensor::cat(&made.iter().collect::<Vec<_>>(), 0)?;
        let mut out = shared.forward(&rows)?;
        for (places, weights) in plan.places.iter().zip(plan.weights) {
            let weights = Tensor::from_vec([b * n, 1], weights)?.to(&rows.device())?;
            out = out.add(&made.index_select(0, places)?.mul(&weights)?)?;
        }
        Ok(out.reshape([b, n, dim])?)
    }
}

struct Block {
    /// Of those in the second half.
    skip: Option<(Arc<Linear>, Arc<LayerNorm>)>,
    norms: [Arc<LayerNorm>; 3],
    own: Attention,
    cross: Attention,
    feed: Feed,
}

impl Block {
    fn new(weights: &Walk<'_>, config: &Hunyuan3d21Config, number: usize) -> Result<Self> {
        let dim = config.dim;
        let skips = number > config.depth / 2;
        let skip = || -> Result<_> {
            let linear = weights.linear("skip_linear", dim, 2 * dim)?;
            Ok((linear, weights.layer_norm("skip_norm", dim, EPS)?))
        };
        let norm = |name: &str| weights.layer_norm(name, dim, EPS);
        Ok(Self {
            skip: skips.then(skip).transpose()?,
            norms: [norm("norm1")?, norm("norm2")?, norm("norm3")?],
            own: Attention::new(&weights.at("attn1"), config, dim)?,
            cross: Attention::new(&weights.at("attn2"), config, config.context)?,
            feed: Feed::new(weights, config, number)?,
        })
    }

    fn forward(&self, x: Tensor, picture: &Tensor, skipped: Option<&Tensor>) -> Result<Tensor> {
        let mut x = x;
        if let (Some((linear, norm)), Some(skipped)) = (&self.skip, skipped) {
            x = norm.forward(&linear.forward(&concat_channels(&[skipped, &x])?)?)?;
        }
        let x = self.own.own(&self.norms[0].forward(&x)?, &x)?;
        let x = self.cross.cross(&self.norms[1].forward(&x)?, picture, &x)?;
        Ok(x.add(&self.feed.forward(&self.norms[2].forward(&x)?)?)?)
    }
}

pub struct Hunyuan3d21Network {
    device: Device,
    config: Hunyuan3d21Config,
    latent: Arc<Linear>,
    time: [Arc<Linear>; 2],
    blocks: Vec<Block>,
    norm: Arc<LayerNorm>,
    last: Arc<Linear>,
}

impl DiffusionNetwork for Hunyuan3d21Network {
    type Config = Hunyuan3d21Config;

    const WHAT: &'static str = "the transformer";

    fn facts(config: &Hunyuan3d21Config) -> ModelFacts {
        solid_facts(
            latent_format::HUNYUAN_3D_2_1,
            config.channels,
            config.context,
        )
    }

    fn new(weights: &Walk<'_>, config: &Hunyuan3d21Config) -> Result<Self> {
        let (dim, inner) = (config.dim, config.time_inner);
        let list = weights.at("blocks");
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            latent: weights.linear("x_embedder", dim, config.channels)?,
            time: [
                weights.linear("t_embedder.mlp.0", inner, dim)?,
                weights.linear("t_embedder.mlp.2", dim, inner)?,
            ],
            blocks: (0..config.depth)
                .map(|number| Block::new(&list.at(number), config, number))
                .collect::<Result<_>>()?,
            norm: weights.layer_norm("final_layer.norm_final", dim, EPS)?,
            last: weights.linear("final_layer.linear", config.channels, dim)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let (hooks, device, dim) = (input.hooks, &self.device, self.config.dim);
        let [b, _, count] = input.x.dims3()?;
        let Some(context) = input.conds.tensor("c_crossattn") else {
            return Err(ModelError::invalid("picture", "this model needs one"));
        };
        let picture = context.to(device)?;
        let times: Vec<f32> = input.timesteps.iter().map(|t| 1.0 - t).collect();
        // Sines before cosines.
        let waves = sinusoid(&times, dim)?;
        let half = dim / 2;
        let waves = concat_channels(&[&part(&waves, half, half)?, &part(&waves, 0, half)?])?;
        let inner = self.time[0].forward_with(&waves.to(device)?, then(Act::Gelu))?;
        let token = self.time[1].forward(&inner)?.reshape([b, 1, dim])?;
        let x = self
            .latent
            .forward(&input.x.permute(&[0, 2, 1])?.to(device)?)?;
        let mut x = Tensor::cat(&[&token, &x], 1)?;
        let (half, mut kept) = (self.config.depth / 2, Vec::new());
        for (number, block) in self.blocks.iter().enumerate() {
            hooks.check()?;
            let skipped = if number > half { kept.pop() } else { None };
            if !hooks.skips(BlockKind::DOUBLE, number) {
                x = block.forward(x, &picture, skipped.as_ref())?;
            }
            if number < half {
                kept.push(x.clone());
            }
        }
        let x = self.norm.forward(&x)?.narrow(1, 1, count)?;
        let out = self.last.forward(&x)?.to(&Device::cpu())?;
        Ok(out.permute(&[0, 2, 1])?.mul_scalar(-1.0))
    }

    fn encode(config: &Hunyuan3d21Config, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        picture_conds(config.context, file, args)
    }

    fn memory_required(config: &Hunyuan3d21Config, shape: &[usize]) -> u64 {
        bytes(config.dim, shape)
    }
}
