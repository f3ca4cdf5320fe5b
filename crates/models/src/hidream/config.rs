//! The shape of a network, read from keys and shapes.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// Cells along a side of a token.
pub(super) const PATCH: usize = 2;

/// A network of this family.
#[derive(Clone, Debug, PartialEq)]
pub struct HiDreamConfig {
    pub channels: usize,
    pub dim: usize,
    pub heads: usize,
    pub double: usize,
    pub single: usize,
    /// Experts, and how many of them each row asks.
    pub experts: usize,
    pub asked: usize,
    pub ffn: usize,
    pub shared_ffn: usize,
    pub text_ffn: usize,
    /// Widths of T5's and Llama's vectors, and of the pooled prompt.
    pub context: usize,
    pub states: usize,
    pub pooled: usize,
    /// Channels of a head for each axis of a position.
    pub axes: Vec<usize>,
    pub theta: f64,
}

/// Width of a head; no shape says it.
const HEAD: usize = 128;

impl HiDreamConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (dim, values) = shapes.matrix("x_embedder.proj.weight")?;
        let (double, single) = (
            shapes.count("double_stream_blocks"),
            shapes.count("single_stream_blocks"),
        );
        let first = "double_stream_blocks.0.block";
        let rows = |name: &str| -> Result<usize> {
            Ok(shapes.matrix(&format!("{first}.{name}.weight"))?.0)
        };
        if values % (PATCH * PATCH) != 0 {
            return Err(shapes.unsupported(format!("a token of {values} values is not a square")));
        }
        let last = format!("caption_projection.{}.linear.weight", double + single);
        Ok(Self {
            channels: values / PATCH / PATCH,
            dim,
            heads: (dim / HEAD).max(1),
            double,
            single,
            experts: rows("ff_i.gate")?,
            asked: 2,
            ffn: rows("ff_i.experts.0.w1")?,
            shared_ffn: rows("ff_i.shared_experts.w1")?,
            text_ffn: rows("ff_t.w1")?,
            context: shapes.matrix(&last)?.1,
            states: shapes.matrix("caption_projection.0.linear.weight")?.1,
            pooled: shapes
                .matrix("p_embedder.pooled_embedder.linear_1.weight")?
                .1,
            axes: vec![HEAD / 2, HEAD / 4, HEAD / 4],
            theta: 10000.0,
        })
    }
}
