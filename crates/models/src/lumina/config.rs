//! The shape of a network, read from keys and shapes.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// Cells along a side of a token.
pub(super) const PATCH: usize = 2;

/// How blocks are told the noise level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modulation {
    /// As Lumina 2: after an activation, from `adaLN_modulation.1`.
    Activated,
    /// As Z-Image: from `adaLN_modulation.0`.
    Plain,
}

impl Modulation {
    pub(super) fn layer(self) -> &'static str {
        match self {
            Self::Activated => "adaLN_modulation.1",
            Self::Plain => "adaLN_modulation.0",
        }
    }
}

/// The sizes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockConfig {
    pub dim: usize,
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    pub ffn: usize,
    /// Width of what says the noise level.
    pub signal: usize,
    pub modulation: Modulation,
}

/// A network of this family.
#[derive(Clone, Debug, PartialEq)]
pub struct LuminaConfig {
    pub channels: usize,
    pub block: BlockConfig,
    pub layers: usize,
    pub noise_refiners: usize,
    pub context_refiners: usize,
    /// Width of the prompt's vectors.
    pub caption: usize,
    /// Width inside of what makes the signal.
    pub time: usize,
    pub time_scale: f64,
    /// Channels of a head for each axis of a position.
    pub axes: Vec<usize>,
    pub theta: f64,
    /// Prompt and picture are filled up to multiples of this with learnt tokens.
    pub pad: Option<usize>,
    /// Width of a pooled prompt that is a part of the signal.
    pub pooled: Option<usize>,
}

/// What Z-Image fills up to.
const PAD: usize = 32;

impl BlockConfig {
    /// The sizes of the block whose keys begin like this.
    pub(super) fn detect(shapes: Shapes<'_>, at: &str) -> Result<Self> {
        let key = |name: &str| format!("{at}.{name}");
        let (rows, dim) = shapes.matrix(&key("attention.qkv.weight"))?;
        let head = shapes.vector(&key("attention.q_norm.weight"))?;
        let beside = rows.saturating_sub(dim);
        if !dim.is_multiple_of(head) || !beside.is_multiple_of(2 * head) || beside == 0 {
            let reason = format!("{rows} rows over {dim} channels are no heads of width {head}");
            return Err(shapes.unsupported(reason));
        }
        let (heads, kv_heads) = (dim / head, beside / 2 / head);
        if !heads.is_multiple_of(kv_heads) {
            let reason = format!("{heads} heads cannot share {kv_heads} heads of keys");
            return Err(shapes.unsupported(reason));
        }
        let plain = shapes.has(&key("adaLN_modulation.0.weight"));
        let modulation = if plain {
            Modulation::Plain
        } else {
            Modulation::Activated
        };
        let (_, signal) = shapes.matrix(&key(&format!("{}.weight", modulation.layer())))?;
        Ok(Self {
            dim,
            heads,
            kv_heads,
            ffn: shapes.matrix(&key("feed_forward.w1.weight"))?.0,
            signal,
            modulation,
        })
    }

    pub fn head(&self) -> usize {
        self.dim / self.heads
    }
}

impl LuminaConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let block = BlockConfig::detect(shapes, "layers.0")?;
        let (_, values) = shapes.matrix("x_embedder.weight")?;
        let (_, caption) = shapes.matrix("cap_embedder.1.weight")?;
        let (time, _) = shapes.matrix("t_embedder.mlp.0.weight")?;
        if !values.is_multiple_of(PATCH * PATCH) {
            return Err(shapes.unsupported(format!("a token of {values} values is not a square")));
        }
        let head = block.head();
        let (axes, theta, time_scale) = match block.modulation {
            Modulation::Plain => (vec![head / 4, head * 3 / 8, head * 3 / 8], 256.0, 1000.0),
            Modulation::Activated => (vec![head / 3; 3], 10000.0, 1.0),
        };
        if axes.iter().sum::<usize>() != head || axes.iter().any(|axis| axis % 2 != 0) {
            return Err(shapes.unsupported(format!("heads of width {head} are not known")));
        }
        let pooled = "clip_text_pooled_proj.0.weight";
        let pooled = shapes.has(pooled).then(|| shapes.vector(pooled));
        Ok(Self {
            channels: values / PATCH / PATCH,
            block,
            layers: shapes.count("layers"),
            noise_refiners: shapes.count("noise_refiner"),
            context_refiners: shapes.count("context_refiner"),
            caption,
            time,
            time_scale,
            axes,
            theta,
            pad: shapes.has("cap_pad_token").then_some(PAD),
            pooled: pooled.transpose()?,
        })
    }

    /// What models of this shape are called.
    pub fn name(&self) -> &'static str {
        match (self.block.modulation, self.pooled) {
            (Modulation::Plain, _) => "Z-Image",
            (Modulation::Activated, Some(_)) => "NewBie",
            (Modulation::Activated, None) => "Lumina 2",
        }
    }
}
