//! The network and what goes into it.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Conv2d, LayerNorm, Linear, Mask, Value, add_gated, attention, silu};
use fresco_tensor::{Buffer, Device, Tensor};

use super::config::{BASE, PATCH, PixArtConfig};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput,
};
use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::{ModelSampling, Prediction};
use crate::store::Walk;
use crate::transformer::{
    Embedder, PatchOrder, circular_pad, from_tokens, patch_conv, sinusoid, spread_tokens,
};

const EPS: f32 = 1e-6;

/// Width of the waves that a number becomes.
const WAVES: usize = 256;

/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: u64 = 12;

struct Block {
    table: Arc<Value>,
    qkv: Arc<Linear>,
    out: Arc<Linear>,
    prompt_q: Arc<Linear>,
    prompt_kv: Arc<Linear>,
    prompt_out: Arc<Linear>,
    mlp: [Arc<Linear>; 2],
    heads: usize,
}

impl Block {
    fn new(weights: &Walk<'_>, config: &PixArtConfig) -> Result<Self> {
        let dim = config.dim;
        let (own, prompt) = (weights.at("attn"), weights.at("cross_attn"));
        Ok(Self {
            table: weights.value("scale_shift_table", &[6, dim])?,
            qkv: own.linear("qkv", 3 * dim, dim)?,
            out: own.linear("proj", dim, dim)?,
            prompt_q: prompt.linear("q_linear", dim, dim)?,
            prompt_kv: prompt.linear("kv_linear", 2 * dim, dim)?,
            prompt_out: prompt.linear("proj", dim, dim)?,
            mlp: [
                weights.linear("mlp.fc1", config.ffn, dim)?,
                weights.linear("mlp.fc2", dim, config.ffn)?,
            ],
            heads: config.heads,
        })
    }

    /// `time` is (b, 6, dim).
    fn forward(
        &self,
        norm: &LayerNorm,
        x: Tensor,
        prompt: &Tensor,
        time: &Tensor,
    ) -> Result<Tensor> {
        let dim = x.dims3()?[2];
        let table = self.table.at(&x.device())?.unsqueeze(0)?;
        let all = time.add(&table)?;
        let number = |at: usize| all.select(1, at);
        let input = norm.modulated(&x, &number(0)?, &number(1)?)?;
        let qkv = self.qkv.forward(&input)?;
        let part = |at: usize| qkv.narrow(2, at * dim, dim);
        let seen = attention(
            &part(0)?,
            &part(1)?,
            &part(2)?,
            self.heads,
            Mask::None,
            None,
        )?;
        drop(qkv);
        let x = add_gated(x, &number(2)?, &self.out.forward(&seen)?)?;
        // The prompt is looked at without a norm before and a gate behind.
        let q = self.prompt_q.forward(&x)?;
        let kv = self.prompt_kv.forward(prompt)?;
        let (k, v) = (kv.narrow(2, 0, dim)?, kv.narrow(2, dim, dim)?);
        let seen = attention(&q, &k, &v, self.heads, Mask::None, None)?;
        let x = self.prompt_out.forward_with(&seen, plus(&x))?;
        let input = norm.modulated(&x, &number(3)?, &number(4)?)?;
        let inner = self.mlp[0].forward_with(&input, then(Act::GeluTanh))?;
        Ok(add_gated(x, &number(5)?, &self.mlp[1].forward(&inner)?)?)
    }
}

/// See the [module](super).
pub struct PixArtNetwork {
    device: Device,
    config: PixArtConfig,
    cells: Arc<Conv2d>,
    time: Embedder,
    /// Of height and width, and of their ratio.
    sizes: Option<[Embedder; 2]>,
    time_block: Arc<Linear>,
    prompt: [Arc<Linear>; 2],
    blocks: Vec<Block>,
    norm: LayerNorm,
    last_table: Arc<Value>,
    last: Arc<Linear>,
}

impl DiffusionNetwork for PixArtNetwork {
    type Config = PixArtConfig;

    const WHAT: &'static str = "the transformer";

    fn facts(config: &PixArtConfig) -> ModelFacts {
        ModelFacts {
            latent: match config.size {
                Some(_) => latent_format::SD15,
                None => latent_format::SDXL,
            },
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            memory_factor: (5, 10),
            sampling: ModelSampling::even_betas(Prediction::Eps, 1e-4, 0.02),
        }
    }

    fn new(weights: &Walk<'_>, config: &PixArtConfig) -> Result<Self> {
        let dim = config.dim;
        let blocks = weights.at("blocks");
        let layers = ["mlp.0", "mlp.2"];
        let numbers =
            |name: &str, width: usize| Embedder::new(&weights.at(name), layers, WAVES, width, true);
        let sizes = config.size.map(|width| {
            Ok::<_, ModelError>([
                numbers("csize_embedder", width)?,
                numbers("ar_embedder", width)?,
            ])
        });
        let out = config.out_channels * PATCH * PATCH;
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            cells: patch_conv(weights, "x_embedder.proj", dim, config.channels, PATCH)?,
            time: numbers("t_embedder", dim)?,
            sizes: sizes.transpose()?,
            time_block: weights.linear("t_block.1", 6 * dim, dim)?,
            prompt: [
                weights.linear("y_embedder.y_proj.fc1", dim, config.context)?,
                weights.linear("y_embedder.y_proj.fc2", dim, dim)?,
            ],
            blocks: (0..config.blocks)
                .map(|number| Block::new(&blocks.at(number), config))
                .collect::<Result<_>>()?,
            norm: LayerNorm::new(None, None, EPS)?,
            last_table: weights.value("final_layer.scale_shift_table", &[2, dim])?,
            last: weights.linear("final_layer.linear", out, dim)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let (hooks, device) = (input.hooks, &self.device);
        let [items, channels, height, width] = input.x.dims4()?;
        let Some(prompt) = input.conds.tensor("c_crossattn") else {
            return Err(ModelError::invalid("prompt", "this model needs one"));
        };
        let padded = circular_pad(input.x, PATCH)?.to(device)?;
        let (tokens, grid) = spread_tokens(&self.cells, &padded)?;
        drop(padded);
        let places = self.places(grid, (height, width))?.to(device)?;
        let mut x = tokens.add(&places)?;
        let time = self.time(input, (height, width), items)?;
        let parts = self.time_block.forward(&silu(&time))?;
        let parts = parts.reshape([items, 6, self.config.dim])?;
        let inner = self.prompt[0].forward_with(&prompt.to(device)?, then(Act::GeluTanh))?;
        let prompt = self.prompt[1].forward(&inner)?;
        for (number, block) in self.blocks.iter().enumerate() {
            hooks.check()?;
            if !hooks.skips(BlockKind::DOUBLE, number) {
                x = block.forward(&self.norm, x, &prompt, &parts)?;
            }
        }
        let table = self.last_table.at(device)?.unsqueeze(0)?;
        let parts = time.unsqueeze(1)?.add(&table)?;
        let x = self
            .norm
            .modulated(&x, &parts.select(1, 0)?, &parts.select(1, 1)?)?;
        let out = self.last.forward(&x)?.to(&Device::cpu())?;
        let out = from_tokens(&out, grid, PATCH, PatchOrder::ChannelLast)?;
        // The other channels are how sure it is, which no sampler asks for.
        let out = out.narrow(1, 0, channels.min(out.dim(1)?))?;
        Ok(out.narrow(2, 0, height)?.narrow(3, 0, width)?)
    }

    fn encode(config: &PixArtConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tokens = args.prompt_of_width(config.context, file)?;
        conds.insert("c_crossattn", CondValue::CrossAttn(tokens.clone()));
        let number = |name: &str| args.cond.numbers.get(name).copied();
        if let (Some(_), Some(width), Some(height)) =
            (config.size, number("width"), number("height"))
        {
            let ratio = number("aspect_ratio").unwrap_or(height / width);
            let size = Tensor::from_vec([1, 2], vec![height as f32, width as f32])?;
            conds.insert("c_size", CondValue::Regular(size));
            let ratio = Tensor::from_vec([1, 1], vec![ratio as f32])?;
            conds.insert("c_ar", CondValue::Regular(ratio));
        }
        Ok(conds)
    }

    fn memory_required(config: &PixArtConfig, shape: &[usize]) -> u64 {
        let batch = shape.first().copied().unwrap_or(0) as u64;
        let cells: u64 = shape.iter().skip(2).map(|n| *n as u64).product();
        let tokens = batch.saturating_mul(cells / (PATCH * PATCH) as u64 + 1);
        tokens.saturating_mul(config.dim as u64 * HELD * size_of::<f32>() as u64)
    }
}

impl PixArtNetwork {
    /// The noise level, and the size of the picture where the network is told.
    fn time(
        &self,
        input: &NetworkInput<'_>,
        (height, width): (usize, usize),
        items: usize,
    ) -> Result<Tensor> {
        let waves = sinusoid(input.timesteps, WAVES)?.to(&self.device)?;
        let time = self.time.forward(&waves)?;
        let Some([size, ratio]) = &self.sizes else {
            return Ok(time);
        };
        let numbers = |layer: &Embedder, name: &str, usual: &[f32]| -> Result<Tensor> {
            let given = input.conds.tensor(name).map(Tensor::data);
            let values =
                given.filter(|values| !values.is_empty() && values.len() % usual.len() == 0);
            let values = values.unwrap_or(usual);
            // The same for all, if it was said for one.
            let all: Vec<f32> = values
                .iter()
                .copied()
                .cycle()
                .take(items * usual.len())
                .collect();
            let made = layer.forward(&sinusoid(&all, WAVES)?.to(&self.device)?)?;
            let wide = made.dim(1)? * usual.len();
            Ok(made.reshape([items, wide])?)
        };
        let (tall, wide) = (height as f32, width as f32);
        let size = numbers(size, "c_size", &[8.0 * tall, 8.0 * wide])?;
        let ratio = numbers(ratio, "c_ar", &[tall / wide])?;
        Ok(time.add(&Tensor::cat(&[&size, &ratio], 1)?)?)
    }

    /// Sines and cosines of columns and rows, (1, n, dim). However large a picture is, its far end has the place that the
    /// end of a usual one has.
    fn places(
        &self,
        (rows, columns): (usize, usize),
        (height, width): (usize, usize),
    ) -> Result<Tensor> {
        let mean = (height + width) as f64 / 2.0 / BASE as f64;
        let rounded = mean.round_ties_even();
        let base = (rounded as usize * BASE) / PATCH;
        if base == 0 {
            let least = BASE / 2 * 8;
            let reason = format!("this model makes pictures larger than {least} by {least} pixels");
            return Err(ModelError::invalid("latent", reason));
        }
        let closer = self.config.interpolation.unwrap_or(rounded);
        let place = |at: usize, count: usize| {
            let place = at as f32 / (count as f64 / base as f64) as f32;
            f64::from(place / closer as f32)
        };
        let half = self.config.dim / 2;
        let count = half / 2;
        let frequency = |i: usize| 1.0 / 10000_f64.powf(i as f64 / count as f64);
        let mut values = Buffer::with_room(rows * columns * self.config.dim)?;
        for row in 0..rows {
            for column in 0..columns {
                for at in [place(column, columns), place(row, rows)] {
                    values.extend((0..count).map(|i| (at * frequency(i)).sin() as f32));
                    values.extend((0..count).map(|i| (at * frequency(i)).cos() as f32));
                }
            }
        }
        Ok(Tensor::from_buffer(
            [1, rows * columns, self.config.dim],
            values,
        )?)
    }
}
