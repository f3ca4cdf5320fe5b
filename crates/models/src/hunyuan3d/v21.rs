//! Version 2.1: one stream that looks at the picture, with shortcuts from its first half to its second, whose last blocks
//! choose among experts.

use std::cell::RefCell;
use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, concat_channels};
use fresco_tensor::{Device, Tensor};

use super::config::Hunyuan3d21Config;
use super::streams::{EPS, PictureConds, picture_conds, solid_facts};
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN, PROMPT};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput};
use crate::error::Result;
use crate::latent_format;
use crate::store::{Bias, Walk};
use crate::transformer::{
    Attention, AttentionBias, AttentionLayers, Blocks, Experts, HeadNorm, Heads, Looks, Mlp,
    MlpLayers, QkvLayers, Rotation, part, sinusoid,
};

fn attention(weights: &Walk<'_>, config: &Hunyuan3d21Config, looks: Looks) -> Result<Attention> {
    let (dim, norm) = (config.dim, ["q_norm.weight", "k_norm.weight"]);
    let heads = Heads::new(config.heads, dim / config.heads, HeadNorm::Rms(norm, EPS));
    let qkv = QkvLayers::Apart(["to_q", "to_k", "to_v"]);
    let layers = AttentionLayers {
        looks,
        bias: AttentionBias::Out,
        ..AttentionLayers::new(qkv, "out_proj", dim, heads)
    };
    Attention::new(weights, &layers)
}

/// Parts that lie behind each other cut anew into heads, each of which has its parts side by side; that is how the
/// network was trained.
fn recut<const N: usize>(parts: [Tensor; N], heads: usize) -> Result<[Tensor; N]> {
    let [b, n, dim] = parts[0].dims3()?;
    let d = dim / heads;
    let all = concat_channels(&parts.each_ref())?;
    let all = all.reshape([b, n, heads, N * d])?;
    let mut out = parts;
    for (i, to) in out.iter_mut().enumerate() {
        *to = part(&all, i * d, d)?.reshape([b, n, dim])?;
    }
    Ok(out)
}

fn feed_forward(weights: &Walk<'_>, names: [&str; 2], config: &Hunyuan3d21Config) -> Result<Mlp> {
    let layers = MlpLayers::Plain(names, Act::Gelu);
    Mlp::new(weights, layers, (config.dim, config.inner), Bias::With)
}

enum Feed {
    Plain(Mlp),
    Experts(Experts),
}

const EXPERT: [&str; 2] = ["net.0.proj", "net.2"];

impl Feed {
    fn new(weights: &Walk<'_>, config: &Hunyuan3d21Config, number: usize) -> Result<Self> {
        if number < config.first_experts {
            let plain = feed_forward(&weights.at("mlp"), ["fc1", "fc2"], config)?;
            return Ok(Self::Plain(plain));
        }
        let at = weights.at("moe");
        let expert = |i: usize| feed_forward(&at.at("experts").at(i), EXPERT, config);
        Ok(Self::Experts(Experts {
            scores: at.matrix("gate", config.experts, config.dim)?,
            shared: feed_forward(&at.at("shared_experts"), EXPERT, config)?,
            list: (0..config.experts).map(expert).collect::<Result<_>>()?,
            asked: config.asked,
        }))
    }

    /// `x` plus what is made of the rows.
    fn add(&self, rows: &Tensor, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Plain(feed) => feed.add(&feed.inner(rows)?, x),
            Self::Experts(experts) => Ok(x.add(&experts.forward(rows)?)?),
        }
    }
}

struct Block {
    /// Of those in the second half.
    skip: Option<(Arc<Linear>, Arc<LayerNorm>)>,
    norms: [Arc<LayerNorm>; 3],
    own: Attention,
    cross: Attention,
    feed: Feed,
    heads: usize,
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
            own: attention(&weights.at("attn1"), config, Looks::Own)?,
            cross: attention(&weights.at("attn2"), config, Looks::Prompt(config.context))?,
            feed: Feed::new(weights, config, number)?,
            heads: config.heads,
        })
    }

    fn forward(&self, x: Tensor, picture: &Tensor, skipped: Option<&Tensor>) -> Result<Tensor> {
        let mut x = x;
        if let (Some((linear, norm)), Some(skipped)) = (&self.skip, skipped) {
            x = norm.forward(&linear.forward(&concat_channels(&[skipped, &x])?)?)?;
        }
        let qkv = self.own.qkv(&self.norms[0].forward(&x)?)?;
        let qkv = qkv.map(|qkv| recut(qkv, self.heads))?;
        let x = self.own.add(&qkv.attend(Rotation::NONE, Mask::None)?, &x)?;
        let qkv = self.cross.qkv_to(&self.norms[1].forward(&x)?, picture)?;
        let qkv = qkv.map(|[q, k, v]| {
            let [k, v] = recut([k, v], self.heads)?;
            Ok([q, k, v])
        })?;
        let x = self
            .cross
            .add(&qkv.attend(Rotation::NONE, Mask::None)?, &x)?;
        self.feed.add(&self.norms[2].forward(&x)?, &x)
    }
}

pub struct Hunyuan3d21Network {
    device: Device,
    config: Hunyuan3d21Config,
    latent: Arc<Linear>,
    time: Mlp,
    blocks: Vec<Block>,
    norm: Arc<LayerNorm>,
    last: Arc<Linear>,
}

impl DiffusionNetwork for Hunyuan3d21Network {
    type Config = Hunyuan3d21Config;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN, PROMPT])]);

    fn facts(config: &Hunyuan3d21Config) -> ModelFacts {
        solid_facts(
            latent_format::HUNYUAN_3D_2_1,
            [config.channels, config.context, config.dim],
        )
    }

    fn new(weights: &Walk<'_>, config: &Hunyuan3d21Config) -> Result<Self> {
        let (dim, inner) = (config.dim, config.time_inner);
        let list = weights.at("blocks");
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            latent: weights.linear("x_embedder", dim, config.channels)?,
            time: Mlp::new(
                &weights.at("t_embedder"),
                MlpLayers::Plain(["mlp.0", "mlp.2"], Act::Gelu),
                (dim, inner),
                Bias::With,
            )?,
            blocks: (0..config.depth)
                .map(|number| Block::new(&list.at(number), config, number))
                .collect::<Result<_>>()?,
            norm: weights.layer_norm("final_layer.norm_final", dim, EPS)?,
            last: weights.linear("final_layer.linear", config.channels, dim)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let (device, dim) = (&self.device, self.config.dim);
        let [b, _, count] = input.x.dims3()?;
        let picture = PictureConds::read(input.conds)?.picture.to(device)?;
        let times: Vec<f32> = input.timesteps.iter().map(|t| 1.0 - t).collect();
        // Sines before cosines.
        let waves = sinusoid(&times, dim)?;
        let half = dim / 2;
        let waves = concat_channels(&[&part(&waves, half, half)?, &part(&waves, 0, half)?])?;
        let token = self.time.forward(&waves.to(device)?)?;
        let token = token.reshape([b, 1, dim])?;
        let x = self
            .latent
            .forward(&input.x.permute(&[0, 2, 1])?.to(device)?)?;
        let x = Tensor::cat(&[&token, &x], 1)?;
        let half = self.config.depth / 2;
        // What comes back to the second half from the first: the last kept first.
        let kept: RefCell<Vec<Option<Tensor>>> = RefCell::new(vec![None; half]);
        let (kind, blocks) = (BlockKind::DOUBLE, self.blocks.len());
        let size = [1, 1, count + 1];
        let blocks = Blocks::new(kind, blocks, self.config.heads, size, input);
        let (x, _) = blocks.run_pair_then(
            (x, picture),
            |number, x, picture| {
                let back = (2 * half).checked_sub(number).filter(|back| *back < half);
                let skipped = back.and_then(|back| kept.borrow_mut()[back].take());
                let x = self.blocks[number].forward(x, &picture, skipped.as_ref())?;
                Ok((x, picture))
            },
            |number, x| {
                if number < half {
                    kept.borrow_mut()[number] = Some(x.clone());
                }
                Ok(x)
            },
        )?;
        let x = self.norm.forward(&x)?.narrow(1, 1, count)?;
        let out = self.last.forward(&x)?.to(&Device::cpu())?;
        Ok(out.permute(&[0, 2, 1])?.mul_scalar(-1.0))
    }

    fn encode(config: &Hunyuan3d21Config, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        picture_conds(config.context, file, args)
    }
}
