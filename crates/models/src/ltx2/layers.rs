//! Layers that the network and its connectors share.

use std::sync::Arc;

use fresco_tensor::nn::{
    Act, Linear, Mask, RmsNorm, Value, add_gated, attention, modulate, sigmoid, silu,
};
use fresco_tensor::{Device, Tensor};

use super::config::{Ltx2Config, StreamConfig};
use super::positions::Turns;
use crate::epilogue::then;
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::{Embedder, sinusoid};

pub(super) const EPS: f32 = 1e-6;

/// Widths of an attention.
#[derive(Clone, Copy)]
pub(super) struct Widths {
    /// Of queries' and keys' inputs.
    pub(super) input: usize,
    pub(super) from: usize,
    pub(super) inner: usize,
    pub(super) heads: usize,
    pub(super) gated: bool,
}

pub(super) struct Attention {
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    out: Arc<Linear>,
    gate: Option<Arc<Linear>>,
    q_norm: Arc<RmsNorm>,
    k_norm: Arc<RmsNorm>,
    heads: usize,
}

impl Attention {
    pub(super) fn new(weights: &Walk<'_>, widths: Widths) -> Result<Self> {
        let Widths {
            input,
            from,
            inner,
            heads,
            gated,
        } = widths;
        let gate = || weights.linear("to_gate_logits", heads, input);
        Ok(Self {
            q: weights.linear("to_q", inner, input)?,
            k: weights.linear("to_k", inner, from)?,
            v: weights.linear("to_v", inner, from)?,
            out: weights.linear("to_out.0", input, inner)?,
            gate: gated.then(gate).transpose()?,
            q_norm: weights.rms_norm("q_norm.weight", inner, EPS)?,
            k_norm: weights.rms_norm("k_norm.weight", inner, EPS)?,
            heads,
        })
    }

    /// What queries of `x` see in `from`; positions of both, where they count.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        from: &Tensor,
        turns: Option<(&Turns, &Turns)>,
        mask: Mask<'_>,
    ) -> Result<Tensor> {
        let mut q = self.q_norm.forward(&self.q.forward(x)?)?;
        let mut k = self.k_norm.forward(&self.k.forward(from)?)?;
        if let Some((of_queries, of_keys)) = turns {
            q = of_queries.apply(&q)?;
            k = of_keys.apply(&k)?;
        }
        let v = self.v.forward(from)?;
        let mut seen = attention(&q, &k, &v, self.heads, mask, None)?;
        if let Some(gate) = &self.gate {
            let gate = sigmoid(&gate.forward(x)?).mul_scalar(2.0);
            let [b, n, inner] = seen.dims3()?;
            let heads = seen.reshape([b, n, self.heads, inner / self.heads.max(1)])?;
            let gate = gate.reshape([b, n, self.heads, 1])?;
            seen = heads.mul(&gate)?.reshape([b, n, inner])?;
        }
        Ok(self.out.forward(&seen)?)
    }
}

/// Two layers after the attention.
pub(super) struct FeedForward([Arc<Linear>; 2]);

impl FeedForward {
    pub(super) fn new(weights: &Walk<'_>, dim: usize, ffn: usize, bias: bool) -> Result<Self> {
        Ok(Self([
            weights.linear_with("net.0.proj", ffn, dim, bias)?,
            weights.linear_with("net.2", dim, ffn, bias)?,
        ]))
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = self.0[0].forward_with(x, then(Act::GeluTanh))?;
        Ok(self.0[1].forward(&inner)?)
    }
}

/// What a noise level says to layers: rows of numbers for each level.
pub(super) struct LevelRows {
    time: Embedder,
    linear: Arc<Linear>,
    waves: usize,
}

impl LevelRows {
    pub(super) fn new(weights: &Walk<'_>, dim: usize, rows: usize, waves: usize) -> Result<Self> {
        let time = weights.at("emb.timestep_embedder");
        Ok(Self {
            time: Embedder::new(&time, ["linear_1", "linear_2"], waves, dim, true)?,
            linear: weights.linear("linear", rows * dim, dim)?,
            waves,
        })
    }

    /// All rows (levels, rows * dim), and what they are made from (levels, dim).
    pub(super) fn forward(&self, levels: &[f32], device: &Device) -> Result<(Tensor, Tensor)> {
        let waves = sinusoid(levels, self.waves)?.to(device)?;
        let plain = self.time.forward(&waves)?;
        Ok((self.linear.forward(&silu(&plain))?, plain))
    }
}

/// Rows of a table plus those that a noise level says, by number.
pub(super) struct Rows {
    all: Tensor,
    dim: usize,
}

impl Rows {
    /// `first` is the number of the table's first row that counts.
    pub(super) fn new(table: &Value, first: usize, said: &Tensor) -> Result<Self> {
        let table = table.at(&said.device())?;
        let (count, dim) = (table.dim(0)? - first, table.dim(1)?);
        let table = table.narrow(0, first, count)?;
        let rows = said.dim(1)? / dim.max(1);
        let table = table.narrow(0, 0, rows.min(count))?;
        Ok(Self {
            all: said.add(&table.reshape([1, table.len()])?)?,
            dim,
        })
    }

    /// One row for each level, (levels, dim).
    pub(super) fn row(&self, number: usize) -> Result<Tensor> {
        Ok(self.all.narrow(1, number * self.dim, self.dim)?)
    }
}

/// Tokens by the rows that noise levels have for them: (levels, tokens of each, dim), and as they are, (b, n, dim).
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    apart: [usize; 3],
    joined: [usize; 3],
}

impl Spread {
    pub(super) fn new(joined: [usize; 3], levels: usize) -> Self {
        let [b, n, dim] = joined;
        Self {
            apart: [levels, b * n / levels.max(1), dim],
            joined,
        }
    }

    /// `x * (1 + scale) + shift`, both (levels, dim).
    pub(super) fn modulate(self, x: &Tensor, scale: &Tensor, shift: &Tensor) -> Result<Tensor> {
        let x = modulate(x.reshape(self.apart)?, scale, Some(shift))?;
        Ok(x.reshape(self.joined)?)
    }

    /// `x + gate * y`.
    pub(super) fn add_gated(self, x: &Tensor, gate: &Tensor, y: &Tensor) -> Result<Tensor> {
        let (x, y) = (x.reshape(self.apart)?, y.reshape(self.apart)?);
        Ok(add_gated(x, gate, &y)?.reshape(self.joined)?)
    }
}

/// What a noise level says to one stream, for all blocks.
pub(super) struct StreamLevels {
    pub(super) spread: Spread,
    /// For each block, and for the end.
    pub(super) rows: Tensor,
    pub(super) plain: Tensor,
    /// Where streams look at each other.
    pub(super) across: Spread,
    pub(super) cross_rows: Tensor,
    pub(super) cross_gate: Tensor,
    /// For the prompt, where the network tells it.
    pub(super) prompt: Option<Tensor>,
}

/// The layers of a block that one stream has for itself.
pub(super) struct StreamBlock {
    table: Arc<Value>,
    cross_table: Arc<Value>,
    prompt_table: Option<Arc<Value>>,
    attn1: Attention,
    attn2: Attention,
    ff: FeedForward,
    norm: RmsNorm,
}

/// How a stream is called in keys.
pub(super) struct StreamNames {
    before: &'static str,
    cross_table: &'static str,
}

pub(super) const VIDEO: StreamNames = StreamNames {
    before: "",
    cross_table: "scale_shift_table_a2v_ca_video",
};

pub(super) const SOUND: StreamNames = StreamNames {
    before: "audio_",
    cross_table: "scale_shift_table_a2v_ca_audio",
};

/// What a stream looks at besides itself.
pub(super) struct StreamPass<'a> {
    pub(super) levels: &'a StreamLevels,
    pub(super) turns: &'a Turns,
    pub(super) cross_turns: &'a Turns,
    pub(super) text: &'a Tensor,
    pub(super) mask: Mask<'a>,
}

impl StreamBlock {
    pub(super) fn new(
        weights: &Walk<'_>,
        names: &StreamNames,
        stream: &StreamConfig,
        config: &Ltx2Config,
    ) -> Result<Self> {
        let StreamConfig { dim, heads, .. } = *stream;
        let before = names.before;
        let widths = |from: usize| Widths {
            input: dim,
            from,
            inner: dim,
            heads,
            gated: config.gated,
        };
        let named = |rest: &str| format!("{before}{rest}");
        let prompt = || weights.value(&named("prompt_scale_shift_table"), &[2, dim]);
        let text = if config.projected {
            dim
        } else {
            stream.context
        };
        let ff = weights.at(named("ff"));
        Ok(Self {
            table: weights.value(&named("scale_shift_table"), &[config.rows(), dim])?,
            cross_table: weights.value(names.cross_table, &[5, dim])?,
            prompt_table: config.prompted.then(prompt).transpose()?,
            attn1: Attention::new(&weights.at(named("attn1")), widths(dim))?,
            attn2: Attention::new(&weights.at(named("attn2")), widths(text))?,
            ff: FeedForward::new(&ff, dim, stream.ffn, stream.ff_bias)?,
            norm: RmsNorm::new(None, EPS)?,
        })
    }

    /// What comes before streams look at each other: at itself, then at the prompt.
    pub(super) fn first(&self, x: Tensor, pass: &StreamPass<'_>) -> Result<Tensor> {
        let levels = pass.levels;
        let spread = levels.spread;
        let rows = Rows::new(&self.table, 0, &levels.rows)?;
        let input = self.norm.forward(&x)?;
        let input = spread.modulate(&input, &rows.row(1)?, &rows.row(0)?)?;
        let turns = Some((pass.turns, pass.turns));
        let seen = self.attn1.forward(&input, &input, turns, Mask::None)?;
        let x = spread.add_gated(&x, &rows.row(2)?, &seen)?;
        let input = self.norm.forward(&x)?;
        let (Some(table), Some(said)) = (&self.prompt_table, &levels.prompt) else {
            let seen = self.attn2.forward(&input, pass.text, None, pass.mask)?;
            return Ok(x.add(&seen)?);
        };
        let input = spread.modulate(&input, &rows.row(7)?, &rows.row(6)?)?;
        let prompt = Rows::new(table, 0, said)?;
        let text = pass.text.clone();
        let text = modulate(text, &prompt.row(1)?, Some(&prompt.row(0)?))?;
        let seen = self.attn2.forward(&input, &text, None, pass.mask)?;
        spread.add_gated(&x, &rows.row(8)?, &seen)
    }

    /// Its tokens as the other stream sees them and as they look at it, without the block's shift and scale.
    pub(super) fn normed(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.norm.forward(x)?)
    }

    /// Shift, scale and gate of looking at each other: `second` is for the sound's look at the pictures.
    pub(super) fn across(
        &self,
        normed: &Tensor,
        levels: &StreamLevels,
        second: bool,
    ) -> Result<Tensor> {
        let rows = Rows::new(&self.cross_table, 0, &levels.cross_rows)?;
        let first = if second { 2 } else { 0 };
        let (scale, shift) = (rows.row(first)?, rows.row(first + 1)?);
        levels.across.modulate(normed, &scale, &shift)
    }

    pub(super) fn add_across(
        &self,
        x: &Tensor,
        seen: &Tensor,
        levels: &StreamLevels,
    ) -> Result<Tensor> {
        let gate = Rows::new(&self.cross_table, 4, &levels.cross_gate)?;
        levels.across.add_gated(x, &gate.row(0)?, seen)
    }

    pub(super) fn last(&self, x: &Tensor, levels: &StreamLevels) -> Result<Tensor> {
        let rows = Rows::new(&self.table, 0, &levels.rows)?;
        let input = self.norm.forward(x)?;
        let input = levels
            .spread
            .modulate(&input, &rows.row(4)?, &rows.row(3)?)?;
        let made = self.ff.forward(&input)?;
        levels.spread.add_gated(x, &rows.row(5)?, &made)
    }
}
