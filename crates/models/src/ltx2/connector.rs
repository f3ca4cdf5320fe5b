//! Connectors: words of a prompt and registers look at each other before the network sees them.

use std::sync::Arc;

use fresco_tensor::nn::{Embedding, Mask, RmsNorm};
use fresco_tensor::{Device, Tensor};

use super::config::ConnectorConfig;
use super::layers::{EPS, Widths, attention, feed_forward};
use super::positions::turns;
use crate::error::{ModelError, Result};
use crate::store::{Bias, Walk};
use crate::transformer::{Attention, Looks, Mlp};

/// Tokens that come out at least.
const LEAST: usize = 1024;

struct Block {
    attn1: Attention,
    ff: Mlp,
}

/// One of the two.
pub struct Connector {
    device: Device,
    config: ConnectorConfig,
    registers: Arc<Embedding>,
    blocks: Vec<Block>,
    norm: RmsNorm,
}

impl Connector {
    pub fn new(weights: &Walk<'_>, config: &ConnectorConfig) -> Result<Self> {
        let dim = config.dim;
        let list = weights.at("transformer_1d_blocks");
        let block = |number: usize| -> Result<Block> {
            let weights = list.at(number);
            let widths = Widths {
                input: dim,
                looks: Looks::Own,
                inner: dim,
                heads: config.heads,
                gated: config.gated,
            };
            Ok(Block {
                attn1: attention(&weights.at("attn1"), widths)?,
                ff: feed_forward(&weights.at("ff"), dim, config.ffn, Bias::With)?,
            })
        };
        Ok(Self {
            device: weights.device(),
            registers: weights.rows("learnable_registers", &[config.registers, dim])?,
            blocks: (0..config.blocks).map(block).collect::<Result<_>>()?,
            norm: RmsNorm::new(None, EPS)?,
            config: config.clone(),
        })
    }

    /// How many tokens come out for so many.
    pub fn length(&self, words: usize) -> usize {
        words
            .max(LEAST)
            .next_multiple_of(self.config.registers.max(1))
    }

    /// Words (b, n, dim), none of them padding, with registers behind them up to `length` tokens: on the device.
    pub fn forward(&self, words: &Tensor, length: usize) -> Result<Tensor> {
        let [b, n, dim] = words.dims3()?;
        if dim != self.config.dim || n > length {
            let reason = format!(
                "{:?} cannot be read by a connector of width {}",
                words.shape(),
                self.config.dim
            );
            return Err(ModelError::invalid("prompt", reason));
        }
        let mut x = words.to(&self.device)?;
        if n < length {
            let count = self.config.registers.max(1);
            let places: Vec<u32> = (n..length).map(|at| (at % count) as u32).collect();
            let fill = self.registers.lookup_on(&places, &self.device)?;
            let fill = fill.reshape([1, length - n, dim])?.repeat(&[b, 1, 1])?;
            x = Tensor::cat(&[&x, &fill], 1)?;
        }
        let shares: Vec<f32> = (0..length)
            .map(|at| at as f32 / self.config.reach)
            .collect();
        let sizes = (dim, self.config.heads);
        let turns = turns(&shares, 1, sizes, self.config.split, &self.device)?;
        for block in &self.blocks {
            let qkv = block.attn1.qkv(&self.norm.forward(&x)?)?;
            x = block.attn1.add(&qkv.attend(&turns, Mask::None)?, &x)?;
            let inner = block.ff.inner(&self.norm.forward(&x)?)?;
            x = block.ff.add(&inner, &x)?;
        }
        Ok(self.norm.forward(&x)?)
    }
}
