//! The shape of a network, read from keys and shapes.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// A network of this family.
#[derive(Clone, Debug, PartialEq)]
pub struct Flux3Config {
    pub channels: usize,
    /// Channels of reference pictures.
    pub reference_channels: usize,
    pub dim: usize,
    pub heads: usize,
    pub ffn: usize,
    /// Blocks of each stream by itself, and of all together.
    pub early: usize,
    pub single: usize,
    /// Width of the prompt's vectors.
    pub context: usize,
    /// Width of the waves that stand for a noise level.
    pub waves: usize,
    /// Whether it is told the noise level of the next step too, as distilled ones are.
    pub looks_ahead: bool,
    /// Channels of a head for each axis of a position.
    pub axes: Vec<usize>,
    pub theta: f64,
}

impl Flux3Config {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (dim, channels) = shapes.matrix("emb_in.image.weight")?;
        let first = "content_mode_blocks.image.0";
        let head = shapes.vector(&format!("{first}.norm.query_norm.scale"))?;
        let (twice, _) = shapes.matrix(&format!("{first}.mlp_in.weight"))?;
        if !dim.is_multiple_of(head) || !head.is_multiple_of(8) || twice % 2 != 0 {
            let reason = format!("a width of {dim} in heads of {head} is not known");
            return Err(shapes.unsupported(reason));
        }
        Ok(Self {
            channels,
            reference_channels: shapes.matrix("emb_in.image_cond.weight")?.1,
            dim,
            heads: dim / head,
            ffn: twice / 2,
            early: shapes.count("content_mode_blocks.image"),
            single: shapes.count("single_blocks"),
            context: shapes.matrix("txt_in.weight")?.1,
            waves: shapes.matrix("time_in.in_layer.weight")?.1,
            looks_ahead: shapes.has("ref_time_in.in_layer.weight"),
            axes: vec![head / 4; 4],
            theta: 10000.0,
        })
    }
}
