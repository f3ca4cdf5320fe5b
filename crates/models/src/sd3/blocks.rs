//! The blocks: two streams of tokens, the prompt's and the picture's, that meet in one attention. Sequences are (b, n, c).

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask};

use super::config::Sd3Config;
use crate::error::Result;
use crate::store::{Bias, Walk};
use crate::transformer::{
    Attention, AttentionLayers, HeadNorm, Heads, Mlp, MlpLayers, Qkv, QkvLayers, Rotation,
    TokenRows,
};

pub(crate) const EPS: f32 = 1e-6;

/// Equal parts of the last dimension of (b, n * width).
pub(crate) fn parts(x: &Tensor, width: usize) -> Result<Vec<Tensor>> {
    Ok(x.split(x.rank() - 1, width)?)
}

/// Queries, keys and values from one matrix, and the way out where anything needs the result.
fn attention(weights: &Walk<'_>, config: &Sd3Config, role: StreamRole) -> Result<Attention> {
    let norm = if config.qk_norm {
        HeadNorm::Rms(["ln_q.weight", "ln_k.weight"], EPS)
    } else {
        HeadNorm::None
    };
    let (width, qkv) = (config.width, QkvLayers::Joined("qkv"));
    let heads = Heads::new(config.heads, width / config.heads, norm);
    let mut layers = AttentionLayers::new(qkv, "proj", width, heads);
    layers.out = layers.out.filter(|_| role != StreamRole::Ends);
    Attention::new(weights, &layers)
}

/// What a stream is in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamRole {
    Plain,
    /// With a second attention of its own.
    Dual,
    /// The prompt in the last block, after which no block needs it.
    Ends,
}

impl StreamRole {
    /// The picture's, by whether its block has a second attention.
    pub(crate) fn of_picture(dual: bool) -> Self {
        if dual { Self::Dual } else { Self::Plain }
    }
}

/// One stream's half of a block.
pub(crate) struct Stream {
    modulation: Arc<Linear>,
    attn: Attention,
    /// The picture's attention to itself.
    second: Option<Attention>,
    /// None for the prompt in the last block, whose result nobody needs.
    mlp: Option<Mlp>,
    norm: LayerNorm,
    width: usize,
}

/// What a stream keeps while the attention that it shares runs.
struct Pending<'a> {
    /// Shifts, scales and gates: (b, width) each.
    modulation: Vec<Tensor>,
    /// The second attention, and what its tokens saw.
    own: Option<(&'a Attention, Tensor)>,
}

impl Stream {
    pub(crate) fn new(weights: &Walk<'_>, config: &Sd3Config, role: StreamRole) -> Result<Self> {
        let width = config.width;
        let numbers = match role {
            StreamRole::Ends => 2,
            StreamRole::Plain => 6,
            StreamRole::Dual => 9,
        };
        let mlp = || {
            let layers = MlpLayers::Plain(["fc1", "fc2"], Act::GeluTanh);
            Mlp::new(
                &weights.at("mlp"),
                layers,
                (width, config.mlp * width),
                Bias::With,
            )
        };
        Ok(Self {
            modulation: weights.linear("adaLN_modulation.1", numbers * width, width)?,
            attn: attention(&weights.at("attn"), config, role)?,
            second: (role == StreamRole::Dual)
                .then(|| attention(&weights.at("attn2"), config, role))
                .transpose()?,
            mlp: (role != StreamRole::Ends).then(mlp).transpose()?,
            norm: LayerNorm::new(None, None, EPS)?,
            width,
        })
    }

    /// Queries, keys and values for the shared attention. `c` is the embedding after SiLU.
    fn begin(&self, x: &Tensor, c: &Tensor) -> Result<(Qkv<'_>, Pending<'_>)> {
        let m = parts(&self.modulation.forward(c)?, self.width)?;
        let normed = |shift, scale| TokenRows::modulated(&self.norm, x, shift, scale);
        let qkv = self.attn.qkv(normed(&m[0], &m[1]))?;
        let own = self.second.as_ref().map(|second| -> Result<_> {
            let qkv = second.qkv(normed(&m[6], &m[7]))?;
            Ok((second, qkv.attend(Rotation::NONE, Mask::None)?))
        });
        let own = own.transpose()?;
        Ok((qkv, Pending { modulation: m, own }))
    }

    /// Without another stream.
    pub(crate) fn alone(&self, x: Tensor, c: &Tensor) -> Result<Tensor> {
        let (qkv, pending) = self.begin(&x, c)?;
        let seen = qkv.attend(Rotation::NONE, Mask::None)?;
        self.finish(x, &seen, pending)
    }

    fn finish(&self, x: Tensor, seen: &Tensor, pending: Pending<'_>) -> Result<Tensor> {
        let Some(mlp) = &self.mlp else {
            return Ok(x);
        };
        let Pending { modulation: m, own } = pending;
        let mut x = self.attn.add_gated(seen, x, &m[2])?;
        if let Some((second, seen)) = own {
            x = second.add_gated(&seen, x, &m[8])?;
        }
        let inner = mlp.inner(TokenRows::modulated(&self.norm, &x, &m[3], &m[4]))?;
        mlp.add_gated(&inner, x, &m[5])
    }
}

/// Both streams.
pub(crate) struct JointBlock {
    context: Stream,
    x: Stream,
}

impl JointBlock {
    pub(crate) fn new(
        weights: &Walk<'_>,
        config: &Sd3Config,
        [context, x]: [StreamRole; 2],
    ) -> Result<Self> {
        Ok(Self {
            context: Stream::new(&weights.at("context_block"), config, context)?,
            x: Stream::new(&weights.at("x_block"), config, x)?,
        })
    }

    /// The prompt's tokens and the picture's.
    pub(crate) fn forward(
        &self,
        context: Tensor,
        x: Tensor,
        c: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let (mine, of_context) = self.context.begin(&context, c)?;
        let (theirs, of_x) = self.x.begin(&x, c)?;
        let [seen_context, seen_x] = Qkv::attend_joint([mine, theirs], Rotation::NONE, Mask::None)?;
        let context = self.context.finish(context, &seen_context, of_context)?;
        drop(seen_context);
        Ok((context, self.x.finish(x, &seen_x, of_x)?))
    }
}
