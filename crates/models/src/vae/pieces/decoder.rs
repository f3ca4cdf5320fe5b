//! The transformer that makes pictures of a piece's cells.

use std::f64::consts::PI;
use std::sync::Arc;

use fresco_tensor::nn::{
    Conv3d, LayerNorm, Linear, Mask, RmsNorm, Value, add_gated, attention, rope_half, swiglu,
    swiglu_halves,
};
use fresco_tensor::{Buffer, Device, Tensor};

use super::config::{PieceConfig, SPAN};
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::chunks;
use crate::vae::kl::Check;

const EPS: f32 = 1e-5;
const THETA: f64 = 100.0;
/// Shares of a head's channels that positions on one axis turn.
const AXIS_SHARE: usize = 8;

struct Turns {
    cos: Tensor,
    sin: Tensor,
    turned: usize,
}

impl Turns {
    /// Places from -1 to 1 on each axis; tokens that come before all cells have none.
    fn new(size: [usize; 3], before: usize, head: usize, device: &Device) -> Result<Self> {
        let axis = head / AXIS_SHARE;
        let frequency = |k: usize| 2.0 * PI * THETA.powf(-(k as f64) / axis as f64);
        let frequencies: Vec<f32> = (0..axis).map(|k| frequency(k) as f32).collect();
        let [t, h, w] = size;
        let count = before + t * h * w;
        let mut cos = Buffer::with_room(count * 3 * axis)?;
        let mut sin = Buffer::with_room(count * 3 * axis)?;
        cos.extend(std::iter::repeat_n(1.0, before * 3 * axis));
        sin.extend(std::iter::repeat_n(0.0, before * 3 * axis));
        let place = |at: usize, n: usize| (2.0 * (at as f32 + 0.5) / n as f32) - 1.0;
        for frame in 0..t {
            for row in 0..h {
                for column in 0..w {
                    let places = [place(frame, t), place(row, h), place(column, w)];
                    for place in places {
                        for frequency in &frequencies {
                            let angle = f64::from(place * frequency);
                            cos.push(angle.cos() as f32);
                            sin.push(angle.sin() as f32);
                        }
                    }
                }
            }
        }
        let device = &device.exact();
        Ok(Self {
            cos: Tensor::from_buffer([count, 3 * axis], cos)?.to(device)?,
            sin: Tensor::from_buffer([count, 3 * axis], sin)?.to(device)?,
            turned: 6 * axis,
        })
    }

    /// The first channels of each head (n, heads, d).
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let [n, heads, head] = x.dims3()?;
        let first = x.narrow(2, 0, self.turned)?;
        let first = first.reshape([1, n, heads * self.turned])?;
        let first = rope_half(&first, heads, &self.cos, &self.sin)?;
        let first = first.reshape([n, heads, self.turned])?;
        let rest = x.narrow(2, self.turned, head - self.turned)?;
        Ok(Tensor::cat(&[&first, &rest], 2)?)
    }
}

enum Queries {
    /// Of a head, queries, keys and values follow each other.
    Joined(Arc<Linear>),
    Apart([Arc<Linear>; 3]),
}

struct Block {
    norms: [Arc<RmsNorm>; 2],
    queries: Queries,
    head_norm: RmsNorm,
    out: Arc<Linear>,
    ff: [Arc<Linear>; 2],
    scales: [Arc<Value>; 2],
    heads: usize,
}

impl Block {
    fn new(weights: &Walk<'_>, config: &PieceConfig) -> Result<Self> {
        let (dim, ffn) = (config.dim, config.ffn);
        let attn = weights.at("attn");
        let (queries, out, ff) = if config.joined {
            (
                Queries::Joined(attn.linear("to_qkv", 3 * dim, dim)?),
                attn.linear("to_out", dim, dim)?,
                ["ff.w1", "ff.w2"],
            )
        } else {
            let one = |name: &str| attn.linear(name, dim, dim);
            (
                Queries::Apart([one("to_q")?, one("to_k")?, one("to_v")?]),
                one("to_out.0")?,
                ["ff.net.0.proj", "ff.net.2"],
            )
        };
        Ok(Self {
            norms: [
                weights.rms_norm("norm1.weight", dim, EPS)?,
                weights.rms_norm("norm2.weight", dim, EPS)?,
            ],
            queries,
            head_norm: RmsNorm::new(None, EPS)?,
            out,
            ff: [
                weights.linear(ff[0], 2 * ffn, dim)?,
                weights.linear(ff[1], dim, ffn)?,
            ],
            scales: [
                weights.value("scale1", &[dim])?,
                weights.value("scale2", &[dim])?,
            ],
            heads: config.heads,
        })
    }

    /// Tokens (1, n, dim).
    fn forward(&self, x: Tensor, turns: &Turns) -> Result<Tensor> {
        let device = x.device();
        let [_, n, dim] = x.dims3()?;
        let head = dim / self.heads;
        let input = self.norms[0].forward(&x)?;
        let each = [n, self.heads, head];
        let [q, k, v] = match &self.queries {
            Queries::Joined(all) => {
                let all = all.forward(&input)?.reshape([n, self.heads, 3 * head])?;
                chunks::<3>(&all)?
            }
            Queries::Apart([q, k, v]) => [
                q.forward(&input)?.reshape(each)?,
                k.forward(&input)?.reshape(each)?,
                v.forward(&input)?.reshape(each)?,
            ],
        };
        let turned = |x: &Tensor| -> Result<Tensor> {
            let x = turns.apply(&self.head_norm.forward(x)?)?;
            Ok(x.reshape([1, n, dim])?)
        };
        let v = v.reshape([1, n, dim])?;
        let seen = attention(&turned(&q)?, &turned(&k)?, &v, self.heads, Mask::None, None)?;
        let x = add_gated(x, &self.scales[0].at(&device)?, &self.out.forward(&seen)?)?;
        let wide = self.ff[0].forward(&self.norms[1].forward(&x)?)?;
        let inner = match self.queries {
            Queries::Joined(_) => swiglu_halves(&wide)?,
            Queries::Apart(_) => {
                let [value, gate] = chunks::<2>(&wide)?;
                swiglu(&gate, &value)?
            }
        };
        Ok(add_gated(
            x,
            &self.scales[1].at(&device)?,
            &self.ff[1].forward(&inner)?,
        )?)
    }
}

pub(super) struct Decoder {
    quant: Arc<Conv3d>,
    cells: Arc<Linear>,
    registers: Arc<Value>,
    blocks: Vec<Block>,
    norm: Arc<LayerNorm>,
    last: Arc<Linear>,
    config: PieceConfig,
}

impl Decoder {
    pub(super) fn new(weights: &Walk<'_>, config: &PieceConfig) -> Result<Self> {
        let inner = weights.at("decoder");
        let list = inner.at("transformer_blocks");
        let (dim, latent) = (config.dim, config.latent);
        let input = if config.joined {
            "x_embedder"
        } else {
            "proj_in"
        };
        let values = 3 * SPAN * config.patch * config.patch;
        Ok(Self {
            quant: weights.conv3d("post_quant_conv", latent, latent, [1, 1, 1])?,
            cells: inner.linear(input, dim, latent)?,
            registers: inner.value("register_tokens", &[1, config.registers, dim])?,
            blocks: (0..config.blocks)
                .map(|number| Block::new(&list.at(number), config))
                .collect::<Result<_>>()?,
            norm: inner.layer_norm("norm_out", dim, EPS)?,
            last: inner.linear("proj_out", values, dim)?,
            config: config.clone(),
        })
    }

    /// Pictures (4 t, h, w, 3) of the cells (t, h, w, c) of one piece.
    pub(super) fn forward(&self, piece: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let device = piece.device();
        let [t, h, w, c] = piece.dims4()?;
        let count = t * h * w;
        let x = self.quant.forward(piece, &[], None)?;
        let x = self.cells.forward(&x.reshape([1, count, c])?)?;
        let registers = self.registers.at(&device)?;
        let dim = self.config.dim;
        let registers = registers.reshape([1, self.config.registers, dim])?;
        let nothing = Tensor::zeros_on(&device, [1, 1, dim])?;
        let before = self.config.registers + 1;
        let mut x = Tensor::cat(&[&registers, &nothing, &x], 1)?;
        let head = dim / self.config.heads;
        let turns = Turns::new([t, h, w], before, head, &device)?;
        for block in &self.blocks {
            check()?;
            x = block.forward(x, &turns)?;
        }
        let x = self.norm.forward(&x.narrow(1, before, count)?)?;
        let p = self.config.patch;
        let made = self.last.forward(&x)?.reshape([t, h, w, 3, SPAN, p, p])?;
        let made = made.permute(&[0, 4, 1, 5, 2, 6, 3])?;
        Ok(made.reshape([t * SPAN, h * p, w * p, 3])?)
    }
}
