//! The shape of a network, read from keys and shapes.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// Cells along a side of a token.
pub(super) const PATCH: usize = 2;

/// A network of this family.
#[derive(Clone, Debug, PartialEq)]
pub struct KandinskyConfig {
    pub channels: usize,
    pub dim: usize,
    pub heads: usize,
    pub ffn: usize,
    /// Width of what says the noise level.
    pub time: usize,
    /// Width of the prompt's vectors, and of the pooled prompt.
    pub context: usize,
    pub pooled: usize,
    pub text_blocks: usize,
    pub blocks: usize,
    /// Channels of a head for each axis of a position.
    pub axes: Vec<usize>,
    pub theta: f64,
}

impl KandinskyConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (dim, _) = shapes.matrix("visual_embeddings.in_layer.weight")?;
        let (values, _) = shapes.matrix("out_layer.out_layer.weight")?;
        let first = "visual_transformer_blocks.0";
        let head = shapes.vector(&format!("{first}.self_attention.query_norm.weight"))?;
        let axes = vec![head / 4, head * 3 / 8, head * 3 / 8];
        let whole = axes.iter().sum::<usize>() == head && axes.iter().all(|axis| axis % 2 == 0);
        if !whole || !dim.is_multiple_of(head) || values % (PATCH * PATCH) != 0 {
            let reason = format!("a width of {dim} in heads of {head} is not known");
            return Err(shapes.unsupported(reason));
        }
        Ok(Self {
            channels: values / PATCH / PATCH,
            dim,
            heads: dim / head,
            ffn: shapes
                .matrix(&format!("{first}.feed_forward.in_layer.weight"))?
                .0,
            time: shapes.matrix("time_embeddings.in_layer.weight")?.0,
            context: shapes.matrix("text_embeddings.in_layer.weight")?.1,
            pooled: shapes.matrix("pooled_text_embeddings.in_layer.weight")?.1,
            text_blocks: shapes.count("text_transformer_blocks"),
            blocks: shapes.count("visual_transformer_blocks"),
            axes,
            theta: 10000.0,
        })
    }

    pub fn head(&self) -> usize {
        self.dim / self.heads
    }
}
