//! What the network makes of a prompt before its blocks see it.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Embedding, Linear, Mask, attention};
use fresco_tensor::{Axes, Tensor};

use super::config::HunyuanDitConfig;
use crate::epilogue::then;
use crate::error::Result;
use crate::store::Walk;

/// Heads of the attention that makes one vector of a prompt.
const HEADS: usize = 8;

/// Both encoders' vectors, in one width, with padding that the network has learnt.
pub(super) struct Words {
    padding: Arc<Embedding>,
    fit: [Arc<Linear>; 2],
    counts: [usize; 2],
}

impl Words {
    pub(super) fn new(weights: &Walk<'_>, config: &HunyuanDitConfig) -> Result<Self> {
        let (rows, width) = (config.words + config.second_words, config.context);
        Ok(Self {
            padding: weights.rows("text_embedding_padding", &[rows, width])?,
            fit: [
                weights.linear("mlp_t5.0", config.fitting, config.second_context)?,
                weights.linear("mlp_t5.2", width, config.fitting)?,
            ],
            counts: [config.words, config.second_words],
        })
    }

    /// (b, n, c) on the device of the inputs. Masks are (b, n) of ones and zeros.
    pub(super) fn forward(
        &self,
        [first, second]: [&Tensor; 2],
        masks: [Option<&Tensor>; 2],
    ) -> Result<Tensor> {
        let inner = self.fit[0].forward_with(second, then(Act::Silu))?;
        let second = self.fit[1].forward(&inner)?;
        let first = self.padded(first, masks[0], (0, self.counts[0]))?;
        let second = self.padded(&second, masks[1], (self.counts[0], self.counts[1]))?;
        Ok(Tensor::cat(&[&first, &second], 1)?)
    }

    /// The last `count` rows, with padding in place of those that are hidden.
    fn padded(
        &self,
        x: &Tensor,
        mask: Option<&Tensor>,
        (start, count): (usize, usize),
    ) -> Result<Tensor> {
        let Some(mask) = mask else {
            return Ok(x.clone());
        };
        let [items, rows, width] = x.dims3()?;
        let count = count.min(rows);
        let ids: Vec<u32> = (start as u32..(start + count) as u32).collect();
        let padding = self.padding.lookup_on(&ids, &x.device())?.unsqueeze(0)?;
        let seen = mask.narrow(1, rows - count, count)?;
        let seen = seen.reshape([items, count, 1])?.to(&x.device())?;
        let kept = x.narrow(1, rows - count, count)?.mul(&seen)?;
        let filled = padding.mul(&seen.rsub_scalar(1.0))?;
        let mut x = x.reshape([items, rows, width])?;
        x.paste(&[0, rows - count, 0], &kept.add(&filled)?)?;
        Ok(x)
    }
}

/// One vector of all of T5's: what their mean sees in them.
pub(super) struct Pooler {
    places: Arc<Embedding>,
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    out: Arc<Linear>,
}

impl Pooler {
    pub(super) fn new(weights: &Walk<'_>, config: &HunyuanDitConfig) -> Result<Self> {
        let width = config.second_context;
        let places = [config.second_words + 1, width];
        Ok(Self {
            places: weights.rows("positional_embedding", &places)?,
            q: weights.linear("q_proj", width, width)?,
            k: weights.linear("k_proj", width, width)?,
            v: weights.linear("v_proj", width, width)?,
            out: weights.linear("c_proj", config.pooled, width)?,
        })
    }

    /// (b, n, c) to (b, c).
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let count = x.dim(1)?.min(self.places.entries().saturating_sub(1));
        let x = x.narrow(1, 0, count)?;
        let mean = x.mean(&[1], Axes::Keep)?;
        let ids: Vec<u32> = (0..=count as u32).collect();
        let places = self.places.lookup_on(&ids, &x.device())?.unsqueeze(0)?;
        let x = Tensor::cat(&[&mean, &x], 1)?.add(&places)?;
        let q = self.q.forward(&x.narrow(1, 0, 1)?)?;
        let (k, v) = (self.k.forward(&x)?, self.v.forward(&x)?);
        let seen = attention(&q, &k, &v, HEADS, Mask::None, None)?;
        Ok(self.out.forward(&seen.squeeze(1)?)?)
    }
}
