//! The network and what goes into it.

use std::sync::Arc;

use fresco_tensor::nn::{
    LayerNorm, Linear, Mask, RmsNorm, Value, add_gated, attention, modulate, silu, swiglu_halves,
    tanh,
};
use fresco_tensor::{Buffer, Device, Tensor};

use super::config::{MochiBlock, MochiConfig};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput,
};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::Walk;
use crate::transformer::{
    Embedder, PatchOrder, Rope, TokenGrid, chunks, hide, part, sinusoid, video_from_tokens,
    video_to_tokens,
};

const EPS: f32 = 1e-6;
const HEAD_EPS: f32 = 1e-5;
/// Tokens of a frame that positions were made for.
const AREA: f64 = 36_864.0;
/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: u64 = 16;

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
        let total = counted.sum(&[1], true)?.maximum(&Tensor::scalar(1.0))?;
        let mean = tokens.mul(&counted)?.sum(&[1], true)?.div(&total)?;
        let all = Tensor::cat(&[&mean, tokens], 1)?.to(device)?;
        let both = self.keys.forward(&all)?;
        let q = self.query.forward(&all.narrow(1, 0, 1)?)?;
        let (k, v) = (part(&both, 0, c)?, part(&both, c, c)?);
        // The mean itself is always seen.
        let hidden = mask.map(|mask| -> Result<Tensor> {
            let first = Tensor::ones([b, 1])?;
            let all = Tensor::cat(&[&first, &mask.reshape([b, n])?], 1)?;
            Ok(hide(&all, 0)?.to(device)?)
        });
        let hidden = hidden.transpose()?;
        let mask = hidden.as_ref().map_or(Mask::None, Mask::Add);
        let seen = attention(&q, &k, &v, self.heads, mask, None)?;
        Ok(self.out.forward(&seen.reshape([b, c])?)?)
    }
}

/// What tokens of one kind have in a block.
struct Side {
    modulation: Arc<Linear>,
    qkv: Arc<Linear>,
    q_norm: Arc<RmsNorm>,
    k_norm: Arc<RmsNorm>,
    /// What happens to them after attention; nothing where they end.
    after: Option<After>,
}

struct After {
    out: Arc<Linear>,
    first: Arc<Linear>,
    second: Arc<Linear>,
}

impl Side {
    fn new(
        weights: &Walk<'_>,
        config: &MochiConfig,
        kind: char,
        width: usize,
        inner: Option<usize>,
    ) -> Result<Self> {
        let all = config.heads * config.head;
        let (look, name) = (weights.at("attn"), |start: &str| format!("{start}_{kind}"));
        let norm = |start: &str| {
            let key = format!("{start}_norm_{kind}.weight");
            look.rms_norm(&key, config.head, HEAD_EPS)
        };
        let after = inner.map(|inner| -> Result<After> {
            let mlp = weights.at(name("mlp"));
            Ok(After {
                out: look.linear(&name("proj"), width, all)?,
                first: mlp.matrix("w1", 2 * inner, width)?,
                second: mlp.matrix("w2", width, inner)?,
            })
        });
        let parts = if inner.is_some() { 4 } else { 1 };
        Ok(Self {
            modulation: weights.linear(&name("mod"), parts * width, config.dim)?,
            qkv: look.matrix(&name("qkv"), 3 * all, width)?,
            q_norm: norm("q")?,
            k_norm: norm("k")?,
            after: after.transpose()?,
        })
    }

    /// Queries, keys and values of tokens that are scaled.
    fn project(
        &self,
        norm: &RmsNorm,
        x: &Tensor,
        scale: &Tensor,
        config: &MochiConfig,
    ) -> Result<[Tensor; 3]> {
        let input = modulate(norm.forward(x)?, scale, None)?;
        let [q, k, v] = chunks(&self.qkv.forward(&input)?)?;
        let normed = |x: &Tensor, norm: &RmsNorm| -> Result<Tensor> {
            let [b, n, width] = x.dims3()?;
            let heads = x.reshape([b, n, config.heads, config.head])?;
            Ok(norm.forward(&heads)?.reshape([b, n, width])?)
        };
        Ok([normed(&q, &self.q_norm)?, normed(&k, &self.k_norm)?, v])
    }
}

impl After {
    /// Tokens with what they saw, and with what a layer makes of them. Both are normalised before they are added.
    fn forward(
        &self,
        norm: &RmsNorm,
        x: Tensor,
        seen: &Tensor,
        [gate, scale, last_gate]: [&Tensor; 3],
    ) -> Result<Tensor> {
        let seen = norm.forward(&self.out.forward(seen)?)?;
        let x = add_gated(x, &tanh(gate), &seen)?;
        let input = modulate(norm.forward(&x)?, scale, None)?;
        let inner = swiglu_halves(&self.first.forward(&input)?)?;
        let made = norm.forward(&self.second.forward(&inner)?)?;
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
        let [q, k, v] = self.film.project(norm, &x, &scale, config)?;
        // Each head is turned in its own way.
        let (q, k) = (rope.interleaved(&q, 1)?, rope.interleaved(&k, 1)?);
        let [yq, yk, yv] = self.prompt.project(norm, &y, &prompt_scale, config)?;
        let joined = |x: &Tensor, y: &Tensor| -> Result<Tensor> {
            Ok(Tensor::cat(&[x, &y.narrow(1, 0, count)?], 1)?)
        };
        let (q, k, v) = (joined(&q, &yq)?, joined(&k, &yk)?, joined(&v, &yv)?);
        let seen = attention(&q, &k, &v, config.heads, Mask::None, None)?;
        drop((q, k, v));
        let own = x.dim(1)?;
        let film = seen.narrow(1, 0, own)?;
        let x = match &self.film.after {
            Some(after) => after.forward(norm, x, &film, [&gate, &scale_mlp, &gate_mlp])?,
            None => x,
        };
        let Some(after) = &self.prompt.after else {
            return Ok((x, y));
        };
        let [b, words, _] = y.dims3()?;
        let mut read = seen.narrow(1, own, count)?;
        if count < words {
            let nothing = Tensor::zeros_on(&y.device(), [b, words - count, seen.dim(2)?])?;
            read = Tensor::cat(&[&read, &nothing], 1)?;
        }
        let [_, gate, scale_mlp, gate_mlp] = chunks::<4>(&told)?;
        let y = after.forward(norm, y, &read, [&gate, &scale_mlp, &gate_mlp])?;
        Ok((x, y))
    }
}

pub struct MochiNetwork {
    device: Device,
    config: MochiConfig,
    frequencies: Arc<Value>,
    cells: Arc<Linear>,
    time: Embedder,
    pool: Pool,
    words: Arc<Linear>,
    blocks: Vec<Block>,
    norm: RmsNorm,
    last_norm: LayerNorm,
    last_modulation: Arc<Linear>,
    last: Arc<Linear>,
}

impl DiffusionNetwork for MochiNetwork {
    type Config = MochiConfig;

    const WHAT: &'static str = "the transformer";

    fn facts(config: &MochiConfig) -> ModelFacts {
        ModelFacts {
            latent: latent_format::MOCHI,
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            memory_factor: (2, 1),
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
            cells: weights.linear("x_embedder.proj", dim, values)?,
            time: Embedder::new(&time, ["mlp.0", "mlp.2"], config.waves, dim, true)?,
            pool: Pool::new(&weights.at("t5_y_embedder"), config)?,
            words: weights.linear("t5_yproj", config.prompt_dim, config.context)?,
            blocks: blocks.collect::<Result<_>>()?,
            norm: RmsNorm::new(None, EPS)?,
            last_norm: LayerNorm::new(None, None, EPS)?,
            last_modulation: end.linear("mod", 2 * dim, dim)?,
            last: end.linear("linear", values, dim)?,
            config: config.clone(),
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let (hooks, device, config) = (input.hooks, &self.device, &self.config);
        let &[_, _, _, h, w] = input.x.shape() else {
            let reason = format!("{:?} is not the shape of a film", input.x.shape());
            return Err(ModelError::invalid("latent", reason));
        };
        let Some(prompt) = input.conds.tensor("c_crossattn") else {
            return Err(ModelError::invalid("prompt", "this model needs one"));
        };
        let words = prompt.dim(1)?;
        let count = input.conds.number(COUNT).map_or(words, |n| n as usize);
        let count = count.clamp(1, words);
        let levels: Vec<f32> = input.timesteps.iter().map(|t| (1.0 - t) * 1000.0).collect();
        let waves = sinusoid(&levels, config.waves)?.to(device)?;
        let mask = input.conds.tensor("attention_mask");
        let pooled = self.pool.forward(prompt, mask, device)?;
        let signal = silu(&self.time.forward(&waves)?.add(&pooled)?);
        let mut y = self.words.forward(&prompt.to(device)?)?;
        let (tokens, grid) = video_to_tokens(input.x, config.patch, PatchOrder::ChannelFirst)?;
        let mut x = self.cells.forward(&tokens.to(device)?)?;
        let rope = self.rope(grid)?;
        for (number, block) in self.blocks.iter().enumerate() {
            hooks.check()?;
            if !hooks.skips(BlockKind::DOUBLE, number) {
                (x, y) = block.forward((x, y), &signal, &rope, count, self)?;
            }
        }
        let [shift, scale] = chunks(&self.last_modulation.forward(&signal)?)?;
        let x = self.last_norm.modulated(&x, &shift, &scale)?;
        let out = self.last.forward(&x)?.to(&Device::cpu())?;
        let order = PatchOrder::ChannelLast;
        let out = video_from_tokens(&out, grid, config.patch, order, (h, w))?;
        Ok(out.mul_scalar(-1.0))
    }

    fn encode(config: &MochiConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tokens = args.prompt_of_width(config.context, file)?;
        conds.insert("c_crossattn", CondValue::Regular(tokens.clone()));
        let mask = args.cond.tensors.get("attention_mask");
        let count = tokens.dim(0)? * tokens.dim(1)?;
        if let Some(mask) = mask.filter(|mask| mask.len() == count) {
            let count: f32 = mask.data().iter().sum();
            conds.insert("attention_mask", CondValue::Regular(mask.clone()));
            conds.insert(COUNT, CondValue::Constant(f64::from(count.max(1.0))));
        }
        Ok(conds)
    }

    fn memory_required(config: &MochiConfig, shape: &[usize]) -> u64 {
        let batch = shape.first().copied().unwrap_or(0) as u64;
        let cells: u64 = shape.iter().skip(2).map(|n| *n as u64).product();
        let tokens = batch.saturating_mul(cells / (config.patch * config.patch) as u64 + 1);
        tokens.saturating_mul(config.dim as u64 * HELD * size_of::<f32>() as u64)
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
        Rope::from_tables(cos, sin).to(&self.device)
    }
}
