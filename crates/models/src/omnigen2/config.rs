//! The shape of a network, read from keys and shapes.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// Cells along a side of a token.
pub(super) const PATCH: usize = 2;

/// A network of this family.
#[derive(Clone, Debug, PartialEq)]
pub struct OmniGenConfig {
    pub channels: usize,
    pub dim: usize,
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    pub ffn: usize,
    /// Width of what says the noise level.
    pub signal: usize,
    pub layers: usize,
    pub refiners: usize,
    /// Width of the prompt's vectors.
    pub caption: usize,
    /// Reference pictures that can be told apart.
    pub references: usize,
    /// Channels of a head for each axis of a position.
    pub axes: Vec<usize>,
    pub theta: f64,
}

impl OmniGenConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (dim, values) = shapes.matrix("x_embedder.weight")?;
        let head = shapes.vector("layers.0.attn.norm_q.weight")?;
        let (beside, _) = shapes.matrix("layers.0.attn.to_k.weight")?;
        let whole =
            dim.is_multiple_of(head) && beside.is_multiple_of(head) && head.is_multiple_of(6);
        let (heads, kv_heads) = (dim / head, beside / head);
        if !whole
            || kv_heads == 0
            || !heads.is_multiple_of(kv_heads)
            || values % (PATCH * PATCH) != 0
        {
            let reason = format!("a width of {dim} in heads of {head} is not known");
            return Err(shapes.unsupported(reason));
        }
        let embed = "time_caption_embed";
        Ok(Self {
            channels: values / PATCH / PATCH,
            dim,
            heads,
            kv_heads,
            ffn: shapes.matrix("layers.0.feed_forward.linear_1.weight")?.0,
            signal: shapes
                .matrix(&format!("{embed}.timestep_embedder.linear_2.weight"))?
                .0,
            layers: shapes.count("layers"),
            refiners: shapes.count("noise_refiner"),
            caption: shapes
                .matrix(&format!("{embed}.caption_embedder.1.weight"))?
                .1,
            references: shapes.matrix("image_index_embedding")?.0,
            axes: vec![head / 3; 3],
            theta: 10000.0,
        })
    }

    pub fn head(&self) -> usize {
        self.dim / self.heads
    }
}
