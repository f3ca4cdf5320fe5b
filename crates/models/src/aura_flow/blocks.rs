//! The blocks. Sequences are (b, n, c), the prompt's tokens before the picture's.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{LayerNorm, Linear, Mask, add_gated, attention, swiglu};

use super::config::AuraFlowConfig;
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::chunks;

pub(super) const EPS: f32 = 1e-5;

/// A layer whose values are gated by another.
struct Mlp([Arc<Linear>; 3]);

impl Mlp {
    fn new(weights: &Walk<'_>, config: &AuraFlowConfig) -> Result<Self> {
        let (dim, inner) = (config.dim, config.ffn);
        Ok(Self([
            weights.matrix("c_fc1", inner, dim)?,
            weights.matrix("c_fc2", inner, dim)?,
            weights.matrix("c_proj", dim, inner)?,
        ]))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [gate, value, out] = &self.0;
        let inner = swiglu(&gate.forward(x)?, &value.forward(x)?)?;
        Ok(out.forward(&inner)?)
    }
}

/// What one set of weights does with its tokens.
struct Stream {
    modulation: Arc<Linear>,
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    out: Arc<Linear>,
    mlp: Mlp,
    heads: usize,
}

/// What a stream keeps while attention runs.
struct Waiting {
    parts: [Tensor; 6],
    qkv: [Tensor; 3],
}

impl Stream {
    /// `number` is that of the set of weights in the attention's names.
    fn new(
        weights: &Walk<'_>,
        config: &AuraFlowConfig,
        number: usize,
        (modulation, mlp): (&str, &str),
    ) -> Result<Self> {
        let dim = config.dim;
        let attn = weights.at("attn");
        let matrix = |letter: char| attn.matrix(&format!("w{number}{letter}"), dim, dim);
        Ok(Self {
            modulation: weights.matrix(modulation, 6 * dim, dim)?,
            q: matrix('q')?,
            k: matrix('k')?,
            v: matrix('v')?,
            out: matrix('o')?,
            mlp: Mlp::new(&weights.at(mlp), config)?,
            heads: config.heads,
        })
    }

    /// Each head by itself, without weights.
    fn normed(&self, norm: &LayerNorm, x: &Tensor) -> Result<Tensor> {
        let [b, n, dim] = x.dims3()?;
        let heads = x.reshape([b, n, self.heads, dim / self.heads])?;
        Ok(norm.forward(&heads)?.reshape([b, n, dim])?)
    }

    fn project(&self, norm: &LayerNorm, x: &Tensor, signal: &Tensor) -> Result<Waiting> {
        let parts: [Tensor; 6] = chunks(&self.modulation.forward(signal)?)?;
        let input = norm.modulated(x, &parts[0], &parts[1])?;
        Ok(Waiting {
            qkv: [
                self.normed(norm, &self.q.forward(&input)?)?,
                self.normed(norm, &self.k.forward(&input)?)?,
                self.v.forward(&input)?,
            ],
            parts,
        })
    }

    /// What is added at the end goes to what came into the block, without the attention.
    fn finish(
        &self,
        norm: &LayerNorm,
        x: Tensor,
        seen: &Tensor,
        [_, _, gate, shift, scale, last_gate]: &[Tensor; 6],
    ) -> Result<Tensor> {
        let seen = self.out.forward(seen)?;
        let between = add_gated(x.clone(), gate, &seen)?;
        let made = self.mlp.forward(&norm.modulated(&between, shift, scale)?)?;
        Ok(add_gated(x, last_gate, &made)?)
    }
}

/// Prompt and picture have weights of their own, and look at each other.
pub(super) struct DoubleBlock {
    prompt: Stream,
    picture: Stream,
}

impl DoubleBlock {
    pub(super) fn new(weights: &Walk<'_>, config: &AuraFlowConfig) -> Result<Self> {
        Ok(Self {
            prompt: Stream::new(weights, config, 1, ("modC.1", "mlpC"))?,
            picture: Stream::new(weights, config, 2, ("modX.1", "mlpX"))?,
        })
    }

    pub(super) fn forward(
        &self,
        norm: &LayerNorm,
        (prompt, picture): (Tensor, Tensor),
        signal: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let words = self.prompt.project(norm, &prompt, signal)?;
        let cells = self.picture.project(norm, &picture, signal)?;
        let both = |at: usize| Tensor::cat(&[&words.qkv[at], &cells.qkv[at]], 1);
        let (q, k, v) = (both(0)?, both(1)?, both(2)?);
        let seen = attention(&q, &k, &v, self.prompt.heads, Mask::None, None)?;
        drop((q, k, v));
        let (count, rest) = (prompt.dim(1)?, picture.dim(1)?);
        let of_words = seen.narrow(1, 0, count)?;
        let of_cells = seen.narrow(1, count, rest)?;
        Ok((
            self.prompt.finish(norm, prompt, &of_words, &words.parts)?,
            self.picture
                .finish(norm, picture, &of_cells, &cells.parts)?,
        ))
    }
}

/// One set of weights for all tokens.
pub(super) struct SingleBlock(Stream);

impl SingleBlock {
    pub(super) fn new(weights: &Walk<'_>, config: &AuraFlowConfig) -> Result<Self> {
        Ok(Self(Stream::new(weights, config, 1, ("modCX.1", "mlp"))?))
    }

    pub(super) fn forward(&self, norm: &LayerNorm, x: Tensor, signal: &Tensor) -> Result<Tensor> {
        let waiting = self.0.project(norm, &x, signal)?;
        let [q, k, v] = &waiting.qkv;
        let seen = attention(q, k, v, self.0.heads, Mask::None, None)?;
        self.0.finish(norm, x, &seen, &waiting.parts)
    }
}
