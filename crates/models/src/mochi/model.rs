//! The network and what goes into it.

use std::sync::Arc;

use fresco_tensor::nn::{
    LayerNorm, Linear, Mask, RmsNorm, Value, add_gated, attention, modulate, silu, tanh,
};
use fresco_tensor::{Axes, Buffer, Device, Tensor};

use super::config::{MochiBlock, MochiConfig};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN_APART};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory,
    names,
};
use crate::error::Result;
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::{Bias, Walk};
use crate::transformer::{
    AdaLn, Attention, AttentionBias, AttentionLayers, Blocks, HeadNorm, Heads, Mlp, MlpLayers,
    Pairs, PatchOrder, PictureTokens, QkvLayers, Rope, TimeEmbed, TokenGrid, TokenMask, chunks,
    part,
};

const EPS: f32 = 1e-6;
const HEAD_EPS: f32 = 1e-5;
/// Tokens of a frame that positions were made for.
const AREA: f64 = 36_864.0;
/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: usize = 16;

/// One vector of a prompt: its mean looks at its tokens.
struct Pool {
    keys: Arc<Linear>,
    query: Arc<Linear>,
    out: Arc<Linear>,
    heads: usize,
}

impl Pool {
    fn new(weights: &Walk<'_>, config: &MochiConfig) -> Result<Self> {
        let width = config.context;
        Ok(Self {
            keys: weights.linear("to_kv", 2 * width, width)?,
            query: weights.linear("to_q", width, width)?,
            out: weights.linear("to_out", config.dim, width)?,
            heads: config.pool_heads,
        })
    }

    /// Tokens (b, n, c) in main memory, and which of them count.
    fn forward(&self, tokens: &Tensor, mask: Option<&Tensor>, device: &Device) -> Result<Tensor> {
        let [b, n, c] = tokens.dims3()?;
        let counted = match mask {
            Some(mask) => mask.reshape([b, n, 1])?,
            None => Tensor::ones([b, n, 1])?,
        };
        let total = counted
            .sum(&[1], Axes::Keep)?
            .maximum(&Tensor::scalar(1.0))?;
        let mean = tokens.mul(&counted)?.sum(&[1], Axes::Keep)?.div(&total)?;
        let all = Tensor::cat(&[&mean, tokens], 1)?.to(device)?;
        let both = self.keys.forward(&all)?;
        let q = self.query.forward(&all.narrow(1, 0, 1)?)?;
        let (k, v) = (part(&both, 0, c)?, part(&both, c, c)?);
        // The mean itself is always seen.
        let mask = mask.map(|mask| -> Result<Tensor> {
            let first = Tensor::ones([b, 1])?;
            Ok(Tensor::cat(&[&first, &mask.reshape([b, n])?], 1)?)
        });
        let mask = TokenMask::new(mask.transpose()?.as_ref(), 0, device)?;
        let seen = attention(&q, &k, &v, self.heads, mask.mask(), None)?;
        Ok(self.out.forward(&seen.reshape([b, c])?)?)
    }
}

/// What tokens of one kind have in a block.
struct Side {
    modulation: Arc<Linear>,
    attention: Attention,
    /// What happens to them after attention; nothing where they end.
    mlp: Option<Mlp>,
}

impl Side {
    fn new(
        weights: &Walk<'_>,
        config: &MochiConfig,
        kind: char,
        width: usize,
        inner: Option<usize>,
    ) -> Result<Self> {
        let name = |start: &str| format!("{start}_{kind}");
        let (qkv, out) = (name("qkv"), name("proj"));
        let norms = ["q_norm", "k_norm"].map(|norm| name(norm) + ".weight");
        let norm = HeadNorm::Rms([&norms[0], &norms[1]], HEAD_EPS);
        let heads = Heads::new(config.heads, config.head, norm);
        let layers = AttentionLayers {
            out: inner.map(|_| out.as_str()),
            bias: AttentionBias::Out,
            ..AttentionLayers::new(QkvLayers::Joined(&qkv), &out, width, heads)
        };
        let mlp = inner.map(|inner| {
            let layers = MlpLayers::GateFirst(["w1", "w2"]);
            Mlp::new(
                &weights.at(name("mlp")),
                layers,
                (width, inner),
                Bias::Without,
            )
        });
        let parts = if inner.is_some() { 4 } else { 1 };
        Ok(Self {
            modulation: weights.linear(&name("mod"), parts * width, config.dim)?,
            attention: Attention::new(&weights.at("attn"), &layers)?,
            mlp: mlp.transpose()?,
        })
    }

    /// Queries, keys and values of tokens that are scaled. The film's heads are turned, each in its own way.
    fn project(
        &self,
        norm: &RmsNorm,
        x: &Tensor,
        scale: &Tensor,
        rope: Option<&Rope>,
    ) -> Result<[Tensor; 3]> {
        let input = modulate(norm.forward(x)?, scale, None)?;
        self.attention.qkv(&input)?.heads(rope)
    }

    /// Tokens with what they saw, and with what a layer makes of them. Both are normalised before they are added.
    fn finish(
        &self,
        norm: &RmsNorm,
        x: Tensor,
        seen: &Tensor,
        [gate, scale, last_gate]: [&Tensor; 3],
    ) -> Result<Tensor> {
        let Some(mlp) = &self.mlp else {
            return Ok(x);
        };
        let seen = norm.forward(&self.attention.out(seen)?)?;
        let x = add_gated(x, &tanh(gate), &seen)?;
        let input = modulate(norm.forward(&x)?, scale, None)?;
        let made = norm.forward(&mlp.forward(&input)?)?;
        Ok(add_gated(x, &tanh(last_gate), &made)?)
    }
}

struct Block {
    film: Side,
    prompt: Side,
}

impl Block {
    fn new(weights: &Walk<'_>, config: &MochiConfig, block: MochiBlock) -> Result<Self> {
        let film = Some(block.film);
        Ok(Self {
            film: Side::new(weights, config, 'x', config.dim, film)?,
            prompt: Side::new(weights, config, 'y', config.prompt_dim, block.prompt)?,
        })
    }

    /// Of the prompt only the first `count` tokens are looked at, and look.
    fn forward(
        &self,
        (x, y): (Tensor, Tensor),
        signal: &Tensor,
        rope: &Rope,
        count: usize,
        net: &MochiNetwork,
    ) -> Result<(Tensor, Tensor)> {
        let (config, norm) = (&net.config, &net.norm);
        let [scale, gate, scale_mlp, gate_mlp] = chunks(&self.film.modulation.forward(signal)?)?;
        let told = self.prompt.modulation.forward(signal)?;
        let prompt_scale = part(&told, 0, config.prompt_dim)?;
        let [q, k, v] = self.film.project(norm, &x, &scale, Some(rope))?;
        let [yq, yk, yv] = self.prompt.project(norm, &y, &prompt_scale, None)?;
        let joined = |x: &Tensor, y: &Tensor| -> Result<Tensor> {
            Ok(Tensor::cat(&[x, &y.narrow(1, 0, count)?], 1)?)
        };
        let (q, k, v) = (joined(&q, &yq)?, joined(&k, &yk)?, joined(&v, &yv)?);
        let seen = self.film.attention.attend([q, k, v], Mask::None)?;
        let own = x.dim(1)?;
        let film = seen.narrow(1, 0, own)?;
        let parts = [&gate, &scale_mlp, &gate_mlp];
        let x = self.film.finish(norm, x, &film, parts)?;
        if self.prompt.mlp.is_none() {
            return Ok((x, y));
        }
        let [b, words, _] = y.dims3()?;
        let mut read = seen.narrow(1, own, count)?;
        if count < words {
            let nothing = Tensor::zeros_on(&y.device(), [b, words - count, seen.dim(2)?])?;
            read = Tensor::cat(&[&read, &nothing], 1)?;
        }
        let [_, gate, scale_mlp, gate_mlp] = chunks::<4>(&told)?;
        let parts = [&gate, &scale_mlp, &gate_mlp];
        Ok((x, self.prompt.finish(norm, y, &read, parts)?))
    }
}

pub struct MochiNetwork {
    device: Device,
    config: MochiConfig,
    frequencies: Arc<Value>,
    cells: PictureTokens,
    time: TimeEmbed,
    pool: Pool,
    words: Arc<Linear>,
    blocks: Vec<Block>,
    norm: RmsNorm,
    last_norm: LayerNorm,
    last_modulation: AdaLn<2>,
}

conds! {
    /// What the network is told besides the latent.
    struct MochiConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        mask: Option<&'a Tensor> = names::MASK,
        count: Option<f64> = COUNT,
    }
}

impl DiffusionNetwork for MochiNetwork {
    type Config = MochiConfig;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN_APART])]);

    fn facts(config: &MochiConfig) -> ModelFacts {
        ModelFacts {
            latent: latent_format::MOCHI,
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_cells(config.patch * config.patch, config.dim, HELD),
            sampling: ModelSampling::flow(6.0, 1.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &MochiConfig) -> Result<Self> {
        let dim = config.dim;
        let values = config.channels * config.patch * config.patch;
        let list = weights.at("blocks");
        let blocks = config.blocks.iter().enumerate();
        let blocks = blocks.map(|(number, block)| Block::new(&list.at(number), config, *block));
        let time = weights.at("t_embedder");
        let end = weights.at("final_layer");
        let pairs = [3, config.heads, config.head / 2];
        Ok(Self {
            device: weights.device().clone(),
            frequencies: weights.value("pos_frequencies", &pairs)?,
            cells: PictureTokens::new(
                weights.linear("x_embedder.proj", dim, values)?,
                end.linear("linear", values, dim)?,
                config.patch,
                [PatchOrder::ChannelFirst, PatchOrder::ChannelLast],
            ),
            time: TimeEmbed::new(&time, ["mlp.0", "mlp.2"], config.waves, dim)?,
            pool: Pool::new(&weights.at("t5_y_embedder"), config)?,
            words: weights.linear("t5_yproj", config.prompt_dim, config.context)?,
            blocks: blocks.collect::<Result<_>>()?,
            norm: RmsNorm::new(None, EPS)?,
            last_norm: LayerNorm::new(None, None, EPS)?,
            last_modulation: AdaLn::new(&end, "mod", dim, dim, Bias::With)?,
            config: config.clone(),
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = MochiConds::read(input.conds)?;
        let (device, config) = (&self.device, &self.config);
        let prompt = conds.prompt;
        let words = prompt.dim(1)?;
        let count = conds.count.map_or(words, |n| n as usize);
        let count = count.clamp(1, words);
        let levels: Vec<f32> = input.timesteps.iter().map(|t| 1.0 - t).collect();
        let mask = conds.mask;
        let pooled = self.pool.forward(prompt, mask, device)?;
        let time = self.time.forward(&levels, 1000.0, device)?;
        let signal = silu(&time.add(&pooled)?);
        let y = self.words.forward(&prompt.to(device)?)?;
        let (x, places) = self.cells.enter(input.x, device)?;
        let rope = self.rope(places.grid)?;
        let (kind, blocks) = (BlockKind::DOUBLE, self.blocks.len());
        let blocks = Blocks::new(kind, blocks, config.heads, places.grid, input);
        let (x, _) = blocks.run_pair((x, y), |number, x, y| {
            self.blocks[number].forward((x, y), &signal, &rope, count, self)
        })?;
        let [shift, scale] = self.last_modulation.forward(&signal)?;
        let x = self.last_norm.modulated(&x, &shift, &scale)?;
        Ok(self.cells.leave(&x, &places)?.mul_scalar(-1.0))
    }

    fn encode(config: &MochiConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tokens = args.prompt_of_width(config.context, file)?;
        conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
        let mask = args.cond.tensors.get("attention_mask");
        let count = tokens.dim(0)? * tokens.dim(1)?;
        if let Some(mask) = mask.filter(|mask| mask.len() == count) {
            let count: f32 = mask.data().iter().sum();
            conds.insert(names::MASK, CondValue::Regular(mask.clone()));
            conds.insert(COUNT, CondValue::Constant(f64::from(count.max(1.0))));
        }
        Ok(conds)
    }
}

/// How many tokens of a prompt are looked at.
const COUNT: &str = "num_tokens";

impl MochiNetwork {
    /// How far each head turns the pairs of its channels at each place, all heads one after the other.
    fn rope(&self, [frames, rows, columns]: TokenGrid) -> Result<Rope> {
        let frequencies = self.frequencies.at(&Device::cpu())?;
        let width = self.config.heads * self.config.head / 2;
        let scale = (AREA / (rows * columns) as f64).sqrt();
        let centre = |at: usize, count: usize| {
            // Frames are as large as those of training, whatever they have of tokens.
            (at as f64 + 0.5 - count as f64 / 2.0) * scale
        };
        let count = frames * rows * columns;
        let (mut cos, mut sin) = (
            Buffer::with_room(count * width)?,
            Buffer::with_room(count * width)?,
        );
        let axis = |number: usize| &frequencies.data()[number * width..][..width];
        let (over_time, over_rows, over_columns) = (axis(0), axis(1), axis(2));
        for frame in 0..frames {
            for row in 0..rows {
                for column in 0..columns {
                    let at = [
                        frame as f32,
                        centre(row, rows) as f32,
                        centre(column, columns) as f32,
                    ];
                    let angles = (0..width).map(|i| {
                        at[0] * over_time[i] + at[1] * over_rows[i] + at[2] * over_columns[i]
                    });
                    let angles: Vec<f32> = angles.collect();
                    cos.extend(angles.iter().map(|angle| angle.cos()));
                    sin.extend(angles.iter().map(|angle| angle.sin()));
                }
            }
        }
        let cos = Tensor::from_buffer([count, width], cos)?;
        let sin = Tensor::from_buffer([count, width], sin)?;
        let rope = Rope::from_tables(cos, sin).pairing(Pairs::NeighboursByHead);
        rope.to(&self.device)
    }
}
