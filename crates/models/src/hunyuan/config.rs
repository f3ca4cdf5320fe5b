//! The shape of a network, read from keys and shapes.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// Width of a head; no shape says it where heads have no norm of their own.
const HEAD: usize = 128;

/// A network of this family.
#[derive(Clone, Debug, PartialEq)]
pub struct HunyuanConfig {
    pub channels: usize,
    pub dim: usize,
    pub heads: usize,
    pub mlp: usize,
    pub double: usize,
    pub single: usize,
    pub refiners: usize,
    /// Width of the prompt's vectors.
    pub context: usize,
    pub guidance: bool,
    /// Widths of the vectors of letters, and inside of what takes them.
    pub letters: Option<(usize, usize)>,
    /// Whether it is told the noise level of the next step too, as distilled ones are.
    pub looks_ahead: bool,
    /// Channels of a head for each axis of a position.
    pub axes: Vec<usize>,
    pub theta: f64,
}

impl HunyuanConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (dim, _) = shapes.matrix("txt_in.input_embedder.weight")?;
        let (channels, _) = shapes.matrix("final_layer.linear.weight")?;
        let head = shapes.vector("double_blocks.0.img_attn.norm.query_norm.scale");
        let head = head.unwrap_or(HEAD);
        if !dim.is_multiple_of(head) || !head.is_multiple_of(4) {
            let reason = format!("a width of {dim} in heads of {head} is not known");
            return Err(shapes.unsupported(reason));
        }
        let letters = "byt5_in.fc1.weight";
        let letters = shapes.has(letters).then(|| shapes.matrix(letters));
        Ok(Self {
            channels,
            dim,
            heads: dim / head,
            mlp: shapes.matrix("double_blocks.0.img_mlp.0.weight")?.0,
            double: shapes.count("double_blocks"),
            single: shapes.count("single_blocks"),
            refiners: shapes.count("txt_in.individual_token_refiner.blocks"),
            context: shapes.matrix("txt_in.input_embedder.weight")?.1,
            guidance: shapes.has("guidance_in.in_layer.weight"),
            letters: letters.transpose()?.map(|(inner, width)| (width, inner)),
            looks_ahead: shapes.has("time_r_in.in_layer.weight"),
            axes: vec![head / 2; 2],
            theta: 256.0,
        })
    }

    pub fn head(&self) -> usize {
        self.dim / self.heads
    }
}
