//! What reads lyrics: a transformer that knows how far apart tokens are (Dai et al. 2019).

use std::sync::Arc;

use fresco_tensor::nn::{Act, Embedding, LayerNorm, Linear, Value, activate, matmul, softmax_last};
use fresco_tensor::{Buffer, Device, Tensor};

use super::config::{LYRICS, LyricConfig};
use crate::epilogue::plus;
use crate::error::Result;
use crate::store::Walk;

const EPS: f32 = 1e-5;

struct Layer {
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    out: Arc<Linear>,
    place: Arc<Linear>,
    /// Added to queries before they look at tokens, and at places.
    biases: [Arc<Value>; 2],
    norm: Arc<LayerNorm>,
    wide: Arc<Linear>,
    narrow: Arc<Linear>,
    feed_norm: Arc<LayerNorm>,
    heads: usize,
}

impl Layer {
    fn new(weights: &Walk<'_>, config: &LyricConfig) -> Result<Self> {
        let (width, heads) = (config.width, config.heads);
        let look = weights.at("self_attn");
        let each = [heads, width / heads];
        Ok(Self {
            q: look.linear("linear_q", width, width)?,
            k: look.linear("linear_k", width, width)?,
            v: look.linear("linear_v", width, width)?,
            out: look.linear("linear_out", width, width)?,
            place: look.matrix("linear_pos", width, width)?,
            biases: [
                look.value("pos_bias_u", &each)?,
                look.value("pos_bias_v", &each)?,
            ],
            norm: weights.layer_norm("norm_mha", width, EPS)?,
            wide: weights.linear("feed_forward.w_1", config.inner, width)?,
            narrow: weights.linear("feed_forward.w_2", width, config.inner)?,
            feed_norm: weights.layer_norm("norm_ff", width, EPS)?,
            heads,
        })
    }

    /// (b, n, heads * d) as (b * heads, n, d).
    fn apart(&self, x: &Tensor) -> Result<Tensor> {
        let [b, n, width] = x.dims3()?;
        let d = width / self.heads;
        let x = x.reshape([b, n, self.heads, d])?.permute(&[0, 2, 1, 3])?;
        Ok(x.reshape([b * self.heads, n, d])?)
    }

    /// `places` is (1, 2n - 1, width): what is said of distances, the farthest before first.
    fn forward(&self, x: &Tensor, places: &Tensor) -> Result<Tensor> {
        let input = self.norm.forward(x)?;
        let [b, n, width] = input.dims3()?;
        let (device, d) = (input.device(), width / self.heads);
        let q = self.q.forward(&input)?;
        let with = |bias: &Value| -> Result<Tensor> {
            let bias = bias.at(&device)?.reshape([width])?;
            self.apart(&q.add(&bias)?)
        };
        let k = self.apart(&self.k.forward(&input)?)?.transpose(1, 2)?;
        let tokens = matmul(&with(&self.biases[0])?, &k)?;
        let places = self.apart(&self.place.forward(places)?)?.transpose(1, 2)?;
        let places = places.repeat(&[b, 1, 1])?;
        let distances = shifted(&matmul(&with(&self.biases[1])?, &places)?)?;
        let scores = tokens.add(&distances)?.mul_scalar(1.0 / (d as f32).sqrt());
        let v = self.apart(&self.v.forward(&input)?)?;
        let seen = matmul(&softmax_last(&scores)?, &v)?;
        let seen = seen
            .reshape([b, self.heads, n, d])?
            .permute(&[0, 2, 1, 3])?;
        let x = self
            .out
            .forward_with(&seen.reshape([b, n, width])?, plus(x))?;
        let inner = self.wide.forward(&self.feed_norm.forward(&x)?)?;
        let inner = activate(inner, Act::Silu);
        Ok(self.narrow.forward_with(&inner, plus(&x))?)
    }
}

/// Scores (b, n, 2n - 1) of distances as scores (b, n, n) of tokens: row i begins n - 1 - i further.
fn shifted(scores: &Tensor) -> Result<Tensor> {
    let [b, n, wide] = scores.dims3()?;
    // With one column more, each row of the flat list begins one entry later than the one above; so cut anew, it is one
    // entry earlier.
    let zeros = Tensor::zeros_on(&scores.device(), [b, n, 1])?;
    let more = Tensor::cat(&[&zeros, scores], 2)?;
    let turned = more.reshape([b, wide + 1, n])?.narrow(1, 1, wide)?;
    Ok(turned.reshape([b, n, wide])?.narrow(2, 0, n)?)
}

pub(super) struct LyricEncoder {
    table: Arc<Embedding>,
    first: Arc<Linear>,
    first_norm: Arc<LayerNorm>,
    layers: Vec<Layer>,
    last_norm: Arc<LayerNorm>,
    project: Arc<Linear>,
    width: usize,
}

impl LyricEncoder {
    pub(super) fn new(weights: &Walk<'_>, config: &LyricConfig, dim: usize) -> Result<Self> {
        let (inside, width) = (weights.at(LYRICS), config.width);
        let list = inside.at("encoders");
        Ok(Self {
            table: weights.embedding("lyric_embs", config.vocabulary, width)?,
            first: inside.linear("embed.out.0", width, width)?,
            first_norm: inside.layer_norm("embed.out.1", width, EPS)?,
            layers: list.each(config.layers, |weights| Layer::new(weights, config))?,
            last_norm: inside.layer_norm("after_norm", width, EPS)?,
            project: weights.linear("lyric_proj", dim, width)?,
            width,
        })
    }

    /// Tokens (b, n, dim) of the numbers of lyrics, (b, n).
    pub(super) fn forward(&self, numbers: &[Vec<u32>], device: &Device) -> Result<Tensor> {
        let rows = numbers
            .iter()
            .map(|line| Ok(self.table.lookup_on(line, device)?));
        let rows: Vec<Tensor> = rows.collect::<Result<_>>()?;
        let x = Tensor::stack(&rows.iter().collect::<Vec<_>>(), 0)?;
        let x = self.first_norm.forward(&self.first.forward(&x)?)?;
        let mut x = x.mul_scalar((self.width as f32).sqrt());
        let places = places(x.dim(1)?, self.width)?.to(device)?;
        for layer in &self.layers {
            x = layer.forward(&x, &places)?;
        }
        Ok(self.project.forward(&self.last_norm.forward(&x)?)?)
    }
}

/// Sines and cosines in turn of the distances from n - 1 to 1 - n: (1, 2n - 1, width).
fn places(n: usize, width: usize) -> Result<Tensor> {
    let frequencies: Vec<f32> = (0..width / 2)
        .map(|i| (-(10000f32.ln()) * (2 * i) as f32 / width as f32).exp())
        .collect();
    let count = (2 * n).saturating_sub(1);
    let mut out = Buffer::with_room(count * width)?;
    for i in 0..count {
        let distance = n as f32 - 1.0 - i as f32;
        for frequency in &frequencies {
            out.extend([(distance * frequency).sin(), (distance * frequency).cos()]);
        }
        out.extend(std::iter::repeat_n(0.0, width % 2));
    }
    Ok(Tensor::from_buffer([1, count, width], out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_begin_where_their_token_is() {
        let n = 4;
        let wide = 2 * n - 1;
        let scores = Tensor::from_fn([2, n, wide], |i| (i % wide) as f32).unwrap();
        let found = shifted(&scores).unwrap();
        assert_eq!(found.shape(), [2, n, n]);
        for (i, v) in found.data().iter().enumerate() {
            let (row, column) = (i / n % n, i % n);
            // Distance row - column is entry n - 1 - (row - column).
            assert_eq!(*v, (n - 1 + column - row) as f32);
        }
    }
}
