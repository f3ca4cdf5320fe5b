//! The blocks: two streams of tokens, the prompt's and the picture's, that meet in one attention. Sequences are (b, n, c).

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, RmsNorm, add_gated, attention};

use super::config::Sd3Config;
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::store::Walk;

pub(crate) const EPS: f32 = 1e-6;

/// Equal parts of the last dimension of (b, n * width).
pub(crate) fn parts(x: &Tensor, width: usize) -> Result<Vec<Tensor>> {
    Ok(x.split(x.rank() - 1, width)?)
}

/// Queries, keys and values from one matrix, and the way out.
pub(crate) struct Attention {
    qkv: Arc<Linear>,
    norms: Option<(Arc<RmsNorm>, Arc<RmsNorm>)>,
    /// None where nobody needs the result.
    proj: Option<Arc<Linear>>,
    heads: usize,
}

impl Attention {
    pub(crate) fn new(weights: &Walk<'_>, config: &Sd3Config, ends: bool) -> Result<Self> {
        let (width, head) = (config.width, config.width / config.heads);
        let norm = |name: &str| weights.rms_norm(name, head, EPS);
        let norms = || Ok::<_, ModelError>((norm("ln_q.weight")?, norm("ln_k.weight")?));
        Ok(Self {
            qkv: weights.linear("qkv", 3 * width, width)?,
            norms: config.qk_norm.then(norms).transpose()?,
            proj: (!ends)
                .then(|| weights.linear("proj", width, width))
                .transpose()?,
            heads: config.heads,
        })
    }

    /// Queries, keys and values.
    fn project(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        let [b, n, width] = x.dims3()?;
        let all = self.qkv.forward(x)?;
        let part = |i: usize| all.narrow(2, i * width, width);
        let (mut q, mut k, v) = (part(0)?, part(1)?, part(2)?);
        if let Some((of_q, of_k)) = &self.norms {
            let heads = [b, n * self.heads, width / self.heads];
            q = of_q.forward(&q.reshape(heads)?)?.reshape([b, n, width])?;
            k = of_k.forward(&k.reshape(heads)?)?.reshape([b, n, width])?;
        }
        Ok([q, k, v])
    }

    /// Of tokens to each other.
    pub(crate) fn alone(&self, x: &Tensor) -> Result<Tensor> {
        let [q, k, v] = self.project(x)?;
        let seen = attention(&q, &k, &v, self.heads, Mask::None, None)?;
        Ok(match &self.proj {
            Some(proj) => proj.forward(&seen)?,
            None => seen,
        })
    }
}

/// Two layers with a GELU between.
pub(crate) struct Mlp {
    fc1: Arc<Linear>,
    fc2: Arc<Linear>,
}

impl Mlp {
    pub(crate) fn new(weights: &Walk<'_>, width: usize, inner: usize) -> Result<Self> {
        Ok(Self {
            fc1: weights.linear("fc1", inner, width)?,
            fc2: weights.linear("fc2", width, inner)?,
        })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = self.fc1.forward_with(x, then(Act::GeluTanh))?;
        Ok(self.fc2.forward(&inner)?)
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
struct Waiting {
    /// Shifts, scales and gates: (b, width) each.
    modulation: Vec<Tensor>,
    /// What the second attention gave.
    own: Option<Tensor>,
}

impl Stream {
    /// `ends`: the prompt in the last block. `dual`: with a second attention.
    pub(crate) fn new(
        weights: &Walk<'_>,
        config: &Sd3Config,
        ends: bool,
        dual: bool,
    ) -> Result<Self> {
        let width = config.width;
        let numbers = match (ends, dual) {
            (true, _) => 2,
            (false, false) => 6,
            (false, true) => 9,
        };
        Ok(Self {
            modulation: weights.linear("adaLN_modulation.1", numbers * width, width)?,
            attn: Attention::new(&weights.at("attn"), config, ends)?,
            second: dual
                .then(|| Attention::new(&weights.at("attn2"), config, false))
                .transpose()?,
            mlp: (!ends)
                .then(|| Mlp::new(&weights.at("mlp"), width, config.mlp * width))
                .transpose()?,
            norm: LayerNorm::new(None, None, EPS)?,
            width,
        })
    }

    /// Queries, keys and values for the shared attention. `c` is the embedding after SiLU.
    fn begin(&self, x: &Tensor, c: &Tensor) -> Result<([Tensor; 3], Waiting)> {
        let modulation = parts(&self.modulation.forward(c)?, self.width)?;
        let normed = self.norm.modulated(x, &modulation[0], &modulation[1])?;
        let qkv = self.attn.project(&normed)?;
        drop(normed);
        let own = match &self.second {
            Some(second) => {
                let normed = self.norm.modulated(x, &modulation[6], &modulation[7])?;
                Some(second.alone(&normed)?)
            }
            None => None,
        };
        Ok((qkv, Waiting { modulation, own }))
    }

    /// Without another stream.
    pub(crate) fn alone(&self, x: Tensor, c: &Tensor) -> Result<Tensor> {
        let ([q, k, v], waiting) = self.begin(&x, c)?;
        let seen = attention(&q, &k, &v, self.attn.heads, Mask::None, None)?;
        self.finish(x, &seen, waiting)
    }

    fn finish(&self, x: Tensor, seen: &Tensor, waiting: Waiting) -> Result<Tensor> {
        let (Some(mlp), Some(proj)) = (&self.mlp, &self.attn.proj) else {
            return Ok(x);
        };
        let Waiting { modulation: m, own } = waiting;
        let mut x = add_gated(x, &m[2], &proj.forward(seen)?)?;
        if let Some(own) = own {
            x = add_gated(x, &m[8], &own)?;
        }
        let normed = self.norm.modulated(&x, &m[3], &m[4])?;
        Ok(add_gated(x, &m[5], &mlp.forward(&normed)?)?)
    }
}

/// Both streams.
pub(crate) struct JointBlock {
    context: Stream,
    x: Stream,
    heads: usize,
}

impl JointBlock {
    /// `last`: after it nobody needs the prompt.
    pub(crate) fn new(
        weights: &Walk<'_>,
        config: &Sd3Config,
        dual: bool,
        last: bool,
    ) -> Result<Self> {
        Ok(Self {
            context: Stream::new(&weights.at("context_block"), config, last, false)?,
            x: Stream::new(&weights.at("x_block"), config, false, dual)?,
            heads: config.heads,
        })
    }

    /// The prompt's tokens and the picture's.
    pub(crate) fn forward(
        &self,
        context: Tensor,
        x: Tensor,
        c: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let (mine, waiting_context) = self.context.begin(&context, c)?;
        let (theirs, waiting_x) = self.x.begin(&x, c)?;
        let [q, k, v] = [0, 1, 2].map(|i| Tensor::cat(&[&mine[i], &theirs[i]], 1));
        drop((mine, theirs));
        let seen = attention(&q?, &k?, &v?, self.heads, Mask::None, None)?;
        let (of_context, of_x) = (context.dim(1)?, x.dim(1)?);
        let seen_x = seen.narrow(1, of_context, of_x)?;
        let seen_context = seen.narrow(1, 0, of_context)?;
        drop(seen);
        let context = self
            .context
            .finish(context, &seen_context, waiting_context)?;
        drop(seen_context);
        Ok((context, self.x.finish(x, &seen_x, waiting_x)?))
    }
}
