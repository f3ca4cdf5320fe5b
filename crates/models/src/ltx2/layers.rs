//! Layers that the network and its connectors share.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Linear, Mask, RmsNorm, Value, modulate, silu};
use fresco_tensor::{Device, Tensor};

use super::config::{Ltx2Config, StreamConfig};
use crate::error::Result;
use crate::store::{Bias, Walk};
use crate::transformer::{
    Attention, AttentionLayers, GateLayer, HeadNorm, Heads, Looks, Mlp, MlpLayers, QkvLayers, Rope,
    Rotation, TimeEmbed,
};

pub(super) const EPS: f32 = 1e-6;

/// Widths of an attention.
#[derive(Clone, Copy)]
pub(super) struct Widths {
    pub(super) input: usize,
    pub(super) looks: Looks,
    pub(super) inner: usize,
    pub(super) heads: usize,
    pub(super) gated: bool,
}

pub(super) fn attention(weights: &Walk<'_>, widths: Widths) -> Result<Attention> {
    let norm = HeadNorm::RmsOfAll(["q_norm.weight", "k_norm.weight"], EPS);
    let heads = Heads::new(widths.heads, widths.inner / widths.heads.max(1), norm);
    let qkv = QkvLayers::Apart(["to_q", "to_k", "to_v"]);
    let gate = if widths.gated {
        GateLayer::Heads("to_gate_logits")
    } else {
        GateLayer::None
    };
    let layers = AttentionLayers {
        looks: widths.looks,
        gate,
        ..AttentionLayers::new(qkv, "to_out.0", widths.input, heads)
    };
    Attention::new(weights, &layers)
}

/// Two layers after the attention.
pub(super) fn feed_forward(weights: &Walk<'_>, dim: usize, ffn: usize, bias: Bias) -> Result<Mlp> {
    let layers = MlpLayers::Plain(["net.0.proj", "net.2"], Act::GeluTanh);
    Mlp::new(weights, layers, (dim, ffn), bias)
}

/// What a noise level says to layers: rows of numbers for each level.
pub(super) struct LevelRows {
    time: TimeEmbed,
    linear: Arc<Linear>,
}

impl LevelRows {
    pub(super) fn new(weights: &Walk<'_>, dim: usize, rows: usize, waves: usize) -> Result<Self> {
        let time = weights.at("emb.timestep_embedder");
        Ok(Self {
            time: TimeEmbed::new(&time, ["linear_1", "linear_2"], waves, dim)?,
            linear: weights.linear("linear", rows * dim, dim)?,
        })
    }

    /// All rows (levels, rows * dim), and what they are made from (levels, dim).
    pub(super) fn forward(&self, levels: &[f32], device: &Device) -> Result<(Tensor, Tensor)> {
        let plain = self.time.forward(levels, 1.0, device)?;
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

    /// `x` plus what an attention has seen times a gate.
    pub(super) fn add_gated(
        self,
        attention: &Attention,
        seen: &Tensor,
        x: &Tensor,
        gate: &Tensor,
    ) -> Result<Tensor> {
        let (x, [levels, tokens, _]) = (x.reshape(self.apart)?, self.apart);
        let seen = seen.reshape([levels, tokens, seen.dim(2)?])?;
        Ok(attention.add_gated(&seen, x, gate)?.reshape(self.joined)?)
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
    ff: Mlp,
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
    pub(super) turns: &'a Rope,
    pub(super) cross_turns: &'a Rope,
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
        let widths = |looks: Looks| Widths {
            input: dim,
            looks,
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
            attn1: attention(&weights.at(named("attn1")), widths(Looks::Own))?,
            attn2: attention(&weights.at(named("attn2")), widths(Looks::Prompt(text)))?,
            ff: feed_forward(&ff, dim, stream.ffn, stream.ff_bias)?,
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
        let seen = self.attn1.qkv(&input)?.attend(pass.turns, Mask::None)?;
        let x = spread.add_gated(&self.attn1, &seen, &x, &rows.row(2)?)?;
        let input = self.norm.forward(&x)?;
        let (Some(table), Some(said)) = (&self.prompt_table, &levels.prompt) else {
            let qkv = self.attn2.qkv_to(&input, pass.text)?;
            return self.attn2.add(&qkv.attend(Rotation::NONE, pass.mask)?, &x);
        };
        let input = spread.modulate(&input, &rows.row(7)?, &rows.row(6)?)?;
        let prompt = Rows::new(table, 0, said)?;
        let text = pass.text.clone();
        let text = modulate(text, &prompt.row(1)?, Some(&prompt.row(0)?))?;
        let qkv = self.attn2.qkv_to(&input, &text)?;
        let seen = qkv.attend(Rotation::NONE, pass.mask)?;
        spread.add_gated(&self.attn2, &seen, &x, &rows.row(8)?)
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
        attention: &Attention,
        seen: &Tensor,
        x: &Tensor,
        levels: &StreamLevels,
    ) -> Result<Tensor> {
        let gate = Rows::new(&self.cross_table, 4, &levels.cross_gate)?;
        levels.across.add_gated(attention, seen, x, &gate.row(0)?)
    }

    pub(super) fn last(&self, x: &Tensor, levels: &StreamLevels) -> Result<Tensor> {
        let rows = Rows::new(&self.table, 0, &levels.rows)?;
        let Spread { apart, joined } = levels.spread;
        let x = x.reshape(apart)?;
        let input = modulate(self.norm.forward(&x)?, &rows.row(4)?, Some(&rows.row(3)?))?;
        let made = self
            .ff
            .add_gated(&self.ff.inner(&input)?, x, &rows.row(5)?)?;
        Ok(made.reshape(joined)?)
    }
}
