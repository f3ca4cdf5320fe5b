//! The shape of a network, read from keys and shapes.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// Cells along a side of a token.
pub(super) const PATCH: usize = 2;

/// The sizes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionConfig {
    pub dim: usize,
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    pub ffn: usize,
}

impl AttentionConfig {
    fn detect(shapes: Shapes<'_>, at: &str) -> Result<Self> {
        let key = |name: &str| format!("{at}.{name}");
        let (width, dim) = shapes.matrix(&key("attn.wq.weight"))?;
        let (beside, _) = shapes.matrix(&key("attn.wk.weight"))?;
        let head = shapes.vector(&key("attn.qknorm.qnorm.scale"))?;
        let fits = width == dim && dim.is_multiple_of(head) && beside.is_multiple_of(head);
        let (heads, kv_heads) = (dim / head, beside / head);
        if !fits || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let reason = format!("{at}: {width} and {beside} rows are no heads of width {head}");
            return Err(shapes.unsupported(reason));
        }
        Ok(Self {
            dim,
            heads,
            kv_heads,
            ffn: shapes.matrix(&key("mlp.gate.weight"))?.0,
        })
    }

    pub fn head(&self) -> usize {
        self.dim / self.heads
    }
}

/// A network of this family.
#[derive(Clone, Debug, PartialEq)]
pub struct KreaConfig {
    pub channels: usize,
    pub block: AttentionConfig,
    pub layers: usize,
    /// Width of the waves that stand for a noise level.
    pub waves: usize,
    /// Blocks that a prompt passes by itself.
    pub text: AttentionConfig,
    /// States of its encoder that a prompt comes with.
    pub text_states: usize,
    pub layerwise: usize,
    pub refiners: usize,
    /// Channels of a head for each axis of a position.
    pub axes: Vec<usize>,
    pub theta: f64,
    pub eps: f32,
}

impl KreaConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let block = AttentionConfig::detect(shapes, "blocks.0")?;
        let (_, values) = shapes.matrix("first.weight")?;
        let (_, text_states) = shapes.matrix("txtfusion.projector.weight")?;
        let head = block.head();
        let axes = vec![head / 4, head * 3 / 8, head * 3 / 8];
        let whole = axes.iter().sum::<usize>() == head && axes.iter().all(|axis| axis % 2 == 0);
        if !values.is_multiple_of(PATCH * PATCH) || !whole {
            let reason = format!("tokens of {values} values and heads of {head} are not known");
            return Err(shapes.unsupported(reason));
        }
        let text = if shapes.count("txtfusion.layerwise_blocks") > 0 {
            "txtfusion.layerwise_blocks.0"
        } else {
            "txtfusion.refiner_blocks.0"
        };
        Ok(Self {
            channels: values / PATCH / PATCH,
            block,
            layers: shapes.count("blocks"),
            waves: shapes.matrix("tmlp.0.weight")?.1,
            text: AttentionConfig::detect(shapes, text)?,
            text_states,
            layerwise: shapes.count("txtfusion.layerwise_blocks"),
            refiners: shapes.count("txtfusion.refiner_blocks"),
            axes,
            theta: 1000.0,
            eps: 1e-5,
        })
    }

    /// Width of a prompt's vectors: all states of a token, one after the other.
    pub fn context(&self) -> usize {
        self.text.dim * self.text_states
    }
}
