//! The blocks. Sequences are (b, n, c), the prompt's tokens before the picture's.

use fresco_tensor::Tensor;
use fresco_tensor::nn::{LayerNorm, Mask};

use super::config::AuraFlowConfig;
use crate::error::Result;
use crate::store::{Bias, Walk};
use crate::transformer::{
    AdaLn, Attention, AttentionLayers, HeadNorm, Heads, Mlp, MlpLayers, Qkv, QkvLayers, Rotation,
    TokenRows,
};

pub(super) const EPS: f32 = 1e-5;

/// What one set of weights does with its tokens.
struct Stream {
    modulation: AdaLn<6>,
    attention: Attention,
    mlp: Mlp,
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
        let [q, k, v, out] = ['q', 'k', 'v', 'o'].map(|letter| format!("w{number}{letter}"));
        let heads = Heads::new(config.heads, dim / config.heads, HeadNorm::Plain(EPS));
        let layers = AttentionLayers::unbiased(QkvLayers::Apart([&q, &k, &v]), &out, dim, heads);
        let gated = MlpLayers::Gated(["c_fc1", "c_fc2", "c_proj"]);
        Ok(Self {
            modulation: AdaLn::new(weights, modulation, dim, dim, Bias::Without)?,
            attention: Attention::new(&weights.at("attn"), &layers)?,
            mlp: Mlp::new(&weights.at(mlp), gated, (dim, config.ffn), Bias::Without)?,
        })
    }

    fn qkv(
        &self,
        norm: &LayerNorm,
        x: &Tensor,
        [shift, scale, ..]: &[Tensor; 6],
    ) -> Result<Qkv<'_>> {
        self.attention
            .qkv(TokenRows::modulated(norm, x, shift, scale))
    }

    /// What is added at the end goes to what came into the block, without the attention.
    fn finish(
        &self,
        norm: &LayerNorm,
        x: Tensor,
        seen: &Tensor,
        [_, _, gate, shift, scale, last_gate]: &[Tensor; 6],
    ) -> Result<Tensor> {
        let between = self.attention.add_gated(seen, x.clone(), gate)?;
        let inner = self
            .mlp
            .inner(TokenRows::modulated(norm, &between, shift, scale))?;
        self.mlp.add_gated(&inner, x, last_gate)
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
        (picture, prompt): (Tensor, Tensor),
        signal: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let of_prompt = self.prompt.modulation.forward(signal)?;
        let of_picture = self.picture.modulation.forward(signal)?;
        let streams = [
            self.prompt.qkv(norm, &prompt, &of_prompt)?,
            self.picture.qkv(norm, &picture, &of_picture)?,
        ];
        let [words, cells] = Qkv::attend_joint(streams, Rotation::NONE, Mask::None)?;
        Ok((
            self.picture.finish(norm, picture, &cells, &of_picture)?,
            self.prompt.finish(norm, prompt, &words, &of_prompt)?,
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
        let modulation = self.0.modulation.forward(signal)?;
        let qkv = self.0.qkv(norm, &x, &modulation)?;
        let seen = qkv.attend(Rotation::NONE, Mask::None)?;
        self.0.finish(norm, x, &seen, &modulation)
    }
}
