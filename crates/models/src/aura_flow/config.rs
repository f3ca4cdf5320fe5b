//! The shape of a network, read from keys and shapes.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// Cells along a side of a token.
pub(super) const PATCH: usize = 2;

/// Channels of a head of the published networks; no shape says it.
const HEAD: usize = 256;

/// A network of this family.
#[derive(Clone, Debug, PartialEq)]
pub struct AuraFlowConfig {
    pub channels: usize,
    pub out_channels: usize,
    pub dim: usize,
    pub heads: usize,
    pub double: usize,
    pub single: usize,
    pub ffn: usize,
    /// Width of the prompt's vectors.
    pub context: usize,
    /// Tokens along a side of the table of positions.
    pub side: usize,
    /// Tokens before the prompt.
    pub registers: usize,
}

impl AuraFlowConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (dim, values) = shapes.matrix("init_x_linear.weight")?;
        let rows = |key: &str| match store.shape(key) {
            Some(&[_, rows, width]) if width == dim => Ok(rows),
            _ => Err(shapes.unsupported(format!("{key} is not a table of {dim} channels"))),
        };
        let places = rows("positional_encoding")?;
        let side = (places as f64).sqrt() as usize;
        let out = shapes.matrix("final_linear.weight")?.0;
        let double = shapes.count("double_layers");
        if side * side != places || values % (PATCH * PATCH) != 0 || out % (PATCH * PATCH) != 0 {
            return Err(shapes.unsupported(format!("{places} positions are no square")));
        }
        Ok(Self {
            channels: values / (PATCH * PATCH),
            out_channels: out / (PATCH * PATCH),
            dim,
            heads: (dim / HEAD).max(1),
            double,
            single: shapes.count("single_layers"),
            ffn: shapes.matrix("double_layers.0.mlpX.c_fc1.weight")?.0,
            context: shapes.matrix("cond_seq_linear.weight")?.1,
            side,
            registers: rows("register_tokens")?,
        })
    }
}
