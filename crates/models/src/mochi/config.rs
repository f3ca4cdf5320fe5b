//! The shape of a network, read from keys and shapes.

use crate::error::Result;
use crate::store::{WeightStore, flat_length};
use crate::transformer::Shapes;

/// The first layer.
pub(super) const CELLS: &str = "x_embedder.proj.weight";
/// Heads of what makes one vector of a prompt; no shape says it.
const POOL_HEADS: usize = 8;

/// The matrix that the first layer is, whose squares do not overlap.
pub fn flattened(key: &str, shape: &[usize]) -> Option<Vec<usize>> {
    let flat = key == CELLS && shape.len() > 2;
    flat.then(|| vec![shape[0], flat_length(&shape[1..])])
}

/// What becomes of the prompt's tokens in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MochiBlock {
    /// Widths inside of the layers after attention, of the film and of the prompt; the last block lets the prompt be.
    pub film: usize,
    pub prompt: Option<usize>,
}

/// A network of this family.
#[derive(Clone, Debug, PartialEq)]
pub struct MochiConfig {
    pub channels: usize,
    /// Cells along a side of a token.
    pub patch: usize,
    /// Widths of the film's tokens and of the prompt's.
    pub dim: usize,
    pub prompt_dim: usize,
    pub heads: usize,
    pub head: usize,
    /// Width of the prompt's vectors.
    pub context: usize,
    pub pool_heads: usize,
    /// Width of what the noise level is told with.
    pub waves: usize,
    pub blocks: Vec<MochiBlock>,
}

impl MochiConfig {
    /// From a store in which the first convolution is a matrix.
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (dim, values) = shapes.matrix(CELLS)?;
        let (out, _) = shapes.matrix("final_layer.linear.weight")?;
        let (prompt_dim, context) = shapes.matrix("t5_yproj.weight")?;
        let &[_, heads, half] = store.shape("pos_frequencies").unwrap_or_default() else {
            return Err(shapes.unsupported("pos_frequencies does not have three dimensions"));
        };
        let count = shapes.count("blocks");
        let mut blocks = Vec::new();
        for number in 0..count {
            let width = |name: &str| -> Result<usize> {
                let key = format!("blocks.{number}.{name}.w2.weight");
                Ok(shapes.matrix(&key)?.1)
            };
            let prompt = shapes.has(&format!("blocks.{number}.mlp_y.w2.weight"));
            blocks.push(MochiBlock {
                film: width("mlp_x")?,
                prompt: prompt.then(|| width("mlp_y")).transpose()?,
            });
        }
        // Squares of two cells in all published sizes.
        let patch = 2;
        let cells = patch * patch;
        let heads_fit = heads > 0 && half > 0 && context.is_multiple_of(POOL_HEADS);
        if values != out || values % cells != 0 || !heads_fit || blocks.is_empty() {
            let reason = format!("{values} values to {out} in {heads} heads of {}", 2 * half);
            return Err(shapes.unsupported(reason));
        }
        Ok(Self {
            channels: values / cells,
            patch,
            dim,
            prompt_dim,
            heads,
            head: 2 * half,
            context,
            pool_heads: POOL_HEADS,
            waves: shapes.matrix("t_embedder.mlp.0.weight")?.1,
            blocks,
        })
    }
}
