//! The shape of a network, read from keys and shapes.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// Cells along a side of a token.
pub(super) const PATCH: usize = 2;

/// Heads of the published networks; no shape says it.
const HEADS: usize = 16;

/// Latent cells along a side of what the first networks were trained on. Positions are counted in these.
pub(super) const BASE: usize = 64;

/// A network of this family.
#[derive(Clone, Debug, PartialEq)]
pub struct PixArtConfig {
    pub channels: usize,
    /// Channels that come out, of which the first half is what is asked for.
    pub out_channels: usize,
    pub dim: usize,
    pub heads: usize,
    pub blocks: usize,
    pub ffn: usize,
    /// Width of the prompt's vectors.
    pub context: usize,
    /// Channels of each number that says the size of the picture; none for networks that are not told.
    pub size: Option<usize>,
    /// How much closer positions are than in the first networks; none where the picture's size says it.
    pub interpolation: Option<f64>,
}

impl PixArtConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let Some(&[dim, channels, PATCH, PATCH]) = store.shape("x_embedder.proj.weight") else {
            return Err(shapes.unsupported("its tokens are not squares of two cells a side"));
        };
        let (out, _) = shapes.matrix("final_layer.linear.weight")?;
        let places = store.shape("pos_embed").and_then(|shape| shape.get(1));
        let interpolation = places.map(|&places| {
            let side = PATCH * (places as f64).sqrt() as usize;
            (side / BASE).max(1) as f64
        });
        let size = shapes.has("ar_embedder.mlp.0.weight");
        let size = size.then(|| shapes.matrix("ar_embedder.mlp.0.weight"));
        if !dim.is_multiple_of(4) || out % (PATCH * PATCH) != 0 {
            return Err(shapes.unsupported(format!("a width of {dim} is not known")));
        }
        Ok(Self {
            channels,
            out_channels: out / (PATCH * PATCH),
            dim,
            heads: if dim.is_multiple_of(HEADS) { HEADS } else { 1 },
            blocks: shapes.count("blocks"),
            ffn: shapes.matrix("blocks.0.mlp.fc1.weight")?.0,
            context: shapes.matrix("y_embedder.y_proj.fc1.weight")?.1,
            size: size.transpose()?.map(|(rows, _)| rows),
            interpolation,
        })
    }
}
