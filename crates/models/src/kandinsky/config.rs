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
    /// Channels that go in: of films also what they begin with, and a mask of it.
    pub in_channels: usize,
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
    /// By what rows and columns of films are divided; those of pictures are as they are.
    pub apart: f64,
}

/// The width of the larger network of films, which sees large frames closer together.
const LARGE_FILMS: usize = 4096;
const MANY_CELLS: usize = 14080;
const FAR_APART: f64 = 3.16;

impl KandinskyConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (dim, into) = shapes.matrix("visual_embeddings.in_layer.weight")?;
        let (values, _) = shapes.matrix("out_layer.out_layer.weight")?;
        let first = "visual_transformer_blocks.0";
        let head = shapes.vector(&format!("{first}.self_attention.query_norm.weight"))?;
        let axes = vec![head / 4, head * 3 / 8, head * 3 / 8];
        let whole = axes.iter().sum::<usize>() == head && axes.iter().all(|axis| axis % 2 == 0);
        let cells = PATCH * PATCH;
        if !whole || !dim.is_multiple_of(head) || values % cells != 0 || into % cells != 0 {
            let reason = format!("a width of {dim} in heads of {head} is not known");
            return Err(shapes.unsupported(reason));
        }
        Ok(Self {
            channels: values / cells,
            in_channels: into / cells,
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
            apart: if into == values { 1.0 } else { 2.0 },
        })
    }

    /// Whether it makes films.
    pub fn moves(&self) -> bool {
        self.in_channels != self.channels
    }

    /// By what the rows and columns of latent frames with so many cells are divided.
    pub(super) fn closeness(&self, cells: usize) -> f64 {
        if self.dim == LARGE_FILMS && cells >= MANY_CELLS {
            return FAR_APART;
        }
        self.apart
    }

    pub fn head(&self) -> usize {
        self.dim / self.heads
    }
}
