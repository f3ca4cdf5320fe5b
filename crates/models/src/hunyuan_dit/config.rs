//! The shape of a network, read from keys and shapes.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// Cells along a side of a token.
pub(super) const PATCH: usize = 2;

/// Width of the waves that a number becomes, and how many numbers say the size of a picture.
pub(super) const WAVES: usize = 256;
pub(super) const SIZES: usize = 6;

/// A network of this family.
#[derive(Clone, Debug, PartialEq)]
pub struct HunyuanDitConfig {
    pub channels: usize,
    /// Channels that come out, of which the first half is what is asked for.
    pub out_channels: usize,
    pub dim: usize,
    pub heads: usize,
    pub blocks: usize,
    pub ffn: usize,
    /// Widths of BERT's and T5's vectors.
    pub context: usize,
    pub second_context: usize,
    /// Tokens of them that have a vector of their own for padding.
    pub words: usize,
    pub second_words: usize,
    /// Widths inside the layers that make T5's vectors fit, and of the vector for all of a prompt.
    pub fitting: usize,
    pub pooled: usize,
    /// Width inside the layers for what is told beside the noise level.
    pub extra: usize,
    /// Whether it is told the size of the picture, and a style (1.1).
    pub size: bool,
    pub style: bool,
}

impl HunyuanDitConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let Some(&[dim, channels, PATCH, PATCH]) = store.shape("x_embedder.proj.weight") else {
            return Err(shapes.unsupported("its tokens are not squares of two cells a side"));
        };
        let (padding, context) = shapes.matrix("text_embedding_padding")?;
        let (places, second_context) = shapes.matrix("pooler.positional_embedding")?;
        let second_words = places.saturating_sub(1);
        let (extra, told) = shapes.matrix("extra_embedder.0.weight")?;
        let (pooled, _) = shapes.matrix("pooler.c_proj.weight")?;
        let style = shapes.has("style_embedder.weight");
        let numbers = told.saturating_sub(pooled + if style { dim } else { 0 });
        let size = numbers == SIZES * WAVES;
        let head = shapes.vector("blocks.0.attn1.q_norm.weight")?;
        if !dim.is_multiple_of(head) || !head.is_multiple_of(4) {
            let reason = format!("a width of {dim} does not divide into heads of {head}");
            return Err(shapes.unsupported(reason));
        }
        if padding < second_words || (numbers != 0 && !size) || !dim.is_multiple_of(4) {
            let reason = "the widths of what it is told beside the prompt are not known";
            return Err(shapes.unsupported(reason));
        }
        Ok(Self {
            channels,
            out_channels: shapes.matrix("final_layer.linear.weight")?.0 / (PATCH * PATCH),
            dim,
            heads: dim / head,
            blocks: shapes.count("blocks"),
            ffn: shapes.matrix("blocks.0.mlp.fc1.weight")?.0,
            context,
            second_context,
            words: padding - second_words,
            second_words,
            fitting: shapes.matrix("mlp_t5.0.weight")?.0,
            pooled,
            extra,
            size,
            style,
        })
    }

    /// From which block on what the first ones gave comes back.
    pub(super) fn skips_from(&self) -> usize {
        self.blocks / 2 + 1
    }
}
